"""URLs, configuration and errors of object stores. Servers are met in tests/cluster/test_stores_s3.py."""

from __future__ import annotations

import sys

import pytest

from trainbox import process, stores
from trainbox.errors import PlatformError, UserError


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b.tgz", ("s3", "bucket", "a/b.tgz")),
        ("s3://bucket", ("s3", "bucket", "")),
        ("gs://bucket/a b%20?#", ("gs", "bucket", "a b%20?#")),
        ("az://container//x", ("az", "container", "/x")),
        ("file:///a/b", ("file", "", "a/b")),
    ],
)
def test_split(url, parts):
    assert stores.split(url) == parts


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "http://bucket/key", "/a/b", "bucket", ""])
def test_no_store(url):
    with pytest.raises(UserError, match="names no object store"):
        stores.split(url)


@pytest.mark.parametrize(
    ("environ", "config"),
    [
        ({}, {}),
        ({"AWS_REGION": "r", "AWS_DEFAULT_REGION": "d"}, {"AWS_REGION": "r"}),
        ({"AWS_DEFAULT_REGION": "d"}, {"AWS_REGION": "d"}),
        ({"SAGEMAKER_REGION": "s"}, {"AWS_REGION": "s"}),
        ({"AWS_ENDPOINT_URL": "http://a:1/"}, {"AWS_ENDPOINT_URL": "http://a:1"}),
        ({"AWS_ENDPOINT_URL": "http://a", "S3_ENDPOINT_URL": "http://b"}, {"AWS_ENDPOINT_URL": "http://b"}),
        ({"AWS_ENDPOINT_URL_S3": "https://c", "S3_ENDPOINT_URL": "b"}, {"AWS_ENDPOINT_URL": "https://c"}),
        (
            {"AWS_REGION": "cn-north-1"},
            {"AWS_REGION": "cn-north-1", "AWS_ENDPOINT_URL": "https://s3.cn-north-1.amazonaws.com.cn"},
        ),
        (
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x", "AWS_PROFILE": "p", "AWS_ACCESS_KEY_ID": ""},
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x"},
        ),
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "OTHER": "o"},
         {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}),
    ],
)  # fmt: skip
def test_configuration_of_s3(environ, config):
    assert stores.aws_config(environ) == config


def test_extra_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UserError) as caught:
        stores.open_store("s3://bucket/x", {})
    assert "pip install obstore" in str(caught.value)
    assert "s3://bucket/x" in str(caught.value)


class TestWithObstore:
    @pytest.fixture(autouse=True)
    def extra(self):
        self.obstore = pytest.importorskip("obstore")

    def test_every_variable_is_known(self):
        from obstore.store import AzureStore, GCSStore, S3Store

        for names, make, bucket in (
            (stores._AWS, S3Store, "bucket"),
            (stores._GOOGLE, GCSStore, "bucket"),
            (stores._AZURE, AzureStore, "container"),
        ):
            for name in names:
                try:
                    make(bucket, config={name: "true"})
                except self.obstore.exceptions.UnknownConfigurationKeyError:
                    pytest.fail(f"obstore does not know {name}")
                except Exception:
                    pass  # a value that makes no sense; it is the name that counts

    def test_directory(self, tmp_path):
        (tmp_path / "a b%20.txt").write_bytes(b"text")
        (tmp_path / "empty").write_bytes(b"")
        for name, size in (("a b%20.txt", 4), ("empty", 0)):
            store = stores.open_store(f"file://{tmp_path}/{name}", {})
            assert store.get(f"{tmp_path}/{name}".lstrip("/"), str(tmp_path / "out")) == size
            assert (tmp_path / "out").read_bytes() == (tmp_path / name).read_bytes()

    def test_a_signal_ends_a_download(self, tmp_path):
        (tmp_path / "in").write_bytes(b"text")

        def stopped():
            raise process.Stopped

        with pytest.raises(process.Stopped):
            stores.download(f"file://{tmp_path}/in", str(tmp_path / "out"), {}, stopped)

    def test_missing_file(self, tmp_path):
        with pytest.raises(UserError, match=r"file://.*/nothing does not exist"):
            stores.download(f"file://{tmp_path}/nothing", str(tmp_path / "out"), {})

    def test_destination_that_cannot_be_written(self, tmp_path):
        (tmp_path / "in").write_bytes(b"text")
        with pytest.raises(PlatformError, match="No such file or directory"):
            stores.download(f"file://{tmp_path}/in", str(tmp_path / "no/out"), {})

    def test_account_that_is_not_named(self):
        with pytest.raises(UserError, match="cannot open az://container"):
            stores.open_store("az://container/x", {})

    @pytest.mark.parametrize(
        ("error", "kind", "text"),
        [
            (FileNotFoundError("<Code>NoSuchKey</Code>"), UserError, "s3://b/k does not exist"),
            (
                FileNotFoundError("<Code>NoSuchBucket</Code>"),
                UserError,
                "the bucket of s3://b/k does not exist",
            ),
            (
                "PermissionDeniedError:<Code>AccessDenied</Code>",
                UserError,
                "access to s3://b/k is denied: AccessDenied",
            ),
            ("UnauthenticatedError:", UserError, "access to s3://b/k is denied: the credentials"),
            ("GenericError:301 PermanentRedirect", PlatformError, "another region: set AWS_REGION"),
            (
                "GenericError:PUT http://169.254.169.254/latest/api/token",
                PlatformError,
                "no credentials were found",
            ),
            (
                "GenericError:error at https://u:secret@host/x\n\nDebug source:\n",
                PlatformError,
                "******@host",
            ),
        ],
    )
    def test_errors_are_one_line_with_the_url(self, monkeypatch, tmp_path, error, kind, text):
        if isinstance(error, str):
            name, _, message = error.partition(":")
            error = getattr(self.obstore.exceptions, name)(message)

        def fail(*args, **kwargs):
            raise error

        monkeypatch.setattr(self.obstore, "get", fail)
        with pytest.raises(kind) as caught:
            stores.download("s3://b/k", str(tmp_path / "out"), {"AWS_REGION": "r"})
        assert text in str(caught.value)
        assert "s3://b/k" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_reading_goes_on_where_it_stopped(self, monkeypatch, tmp_path):
        content = bytes(range(100))
        asked = []

        class Result:
            meta = {"size": 100, "e_tag": "v1"}

            def __init__(self, start):
                self.start = start

            def stream(self, min_chunk_size):
                yield content[self.start : self.start + 30]
                raise error

        error = self.obstore.exceptions.GenericError("broken pipe")

        def get(backend, key, options):
            asked.append(options)
            return Result(options["range"]["offset"] if options else 0)

        monkeypatch.setattr(self.obstore, "get", get)
        stores.download("s3://b/k", str(tmp_path / "out"), {})
        assert (tmp_path / "out").read_bytes() == content
        assert asked == [None, *({"range": {"offset": at}, "if_match": "v1"} for at in (30, 60, 90))]

    def test_connections_that_break_again_and_again_end_it(self, monkeypatch, tmp_path):
        calls: list[int] = []

        class Result:
            meta = {"size": 100, "e_tag": "v1"}

            def stream(self, min_chunk_size):
                yield b"" if len(calls) > 1 else b"x" * 10

        def get(backend, key, options):
            calls.append(1)
            return Result()

        monkeypatch.setattr(self.obstore, "get", get)
        with pytest.raises(PlatformError, match="10 of 100 bytes"):
            stores.download("s3://b/k", str(tmp_path / "out"), {})
        assert len(calls) == 6
