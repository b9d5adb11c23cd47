"""What pip is asked to install, and what its failures are made into."""

from __future__ import annotations

import os
import sys
import types

import pytest

from trainbox import codeartifact, job, requirements, settings
from trainbox.entry import Script
from trainbox.errors import PlatformError, UserError

PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check")
ARN = "arn:aws:codeartifact:eu-west-1:123456789012:repository/my-domain/my.repo"


def script(name="train.py", kind="python"):
    return Script(name, kind, (sys.executable, name))


@pytest.fixture
def lines():
    return []


@pytest.fixture
def installs(tree, lines, monkeypatch):
    monkeypatch.setattr(requirements, "_can_install", lambda: True)
    monkeypatch.setattr(requirements, "_writable", lambda path: True)
    monkeypatch.setattr(os, "getuid", lambda: 1000)

    def call(what=None, environ=(), python=sys.executable, **values):
        names = {f"TRAINBOX_{name.upper()}": value for name, value in values.items()}
        return requirements.installs(
            job.read(tree.environ), str(tree.base / "code"), what or script(), settings.read(names),
            dict(environ), python, lines.append,
        )  # fmt: skip

    return call


def words(steps):
    (step,) = steps
    assert step.argv[:5] == PIP
    assert (step.role, step.essential, step.ranks) == ("pip", True, ())
    return step.argv[5:]


REQUIREMENTS = ("-r", "requirements.txt")


@pytest.mark.parametrize(
    ("files", "what", "expected"),
    [
        ({}, script(), None),
        ({"requirements.txt": "x"}, script(), REQUIREMENTS),
        ({"requirements.txt": "x", "setup.py": "setup()"}, script(), (".", *REQUIREMENTS)),
        ({"setup.py": "setup()"}, script(), (".",)),
        ({"requirements.txt": "x", "setup.py": "\n \n"}, script(), REQUIREMENTS),
        ({"requirements.txt": "x"}, script("src/pkg/train.py"), REQUIREMENTS),
        ({"src/pkg/requirements.txt": "x"}, script("src/pkg/train.py"), ("-r", "src/pkg/requirements.txt")),
        ({"src/requirements.txt": "x"}, script("src/pkg/train.py"), ("-r", "src/requirements.txt")),
        ({"src/requirements.txt": "x"}, script("src/train.sh", "shell"), ("-r", "src/requirements.txt")),
        ({"src/requirements.txt": "x"}, script("src.train", "module"), ("-r", "src/requirements.txt")),
        ({"pkg/requirements.txt": "x"}, script("pkg", "package"), ("-r", "pkg/requirements.txt")),
        (
            {"my-pkg/requirements.txt": "x", "my-pkg/__main__.py": ""},
            script("my-pkg"),
            ("-r", "my-pkg/requirements.txt"),
        ),
        ({"requirements.txt": "x", "src/requirements.txt": "y"}, script("src/train.py"), REQUIREMENTS),
        ({"other/requirements.txt": "x"}, script("src/train.py"), None),
        ({"requirements.txt": "x", "setup.py": "setup()"}, script("run.sh", "shell"), REQUIREMENTS),
        ({"requirements.txt": "x"}, script("accelerate", "command"), REQUIREMENTS),
        ({"requirements.txt": "x"}, script("/app/train.py"), REQUIREMENTS),
        ({"requirements.txt": "# nothing\n\n"}, script(), None),
        ({"requirements.txt": "", "setup.py": ""}, script(), None),
    ],
)
def test_known_failure_27_what_is_installed(tree, installs, lines, files, what, expected):
    for name, text in files.items():
        tree.code(name, text)
    steps = installs(what)
    if expected is None:
        assert steps == ()
    else:
        assert words(steps) == expected
        assert steps[0].cwd == str(tree.base / "code")
        assert steps[0].env == ()
        assert any(expected[-1] in line or "setup.py is installed" in line for line in lines)


def test_known_failure_65_the_users_pip_settings_stay(tree, installs):
    tree.code("requirements.txt", "x")
    (step,) = installs(environ={"PIP_INDEX_URL": "https://u:secret@index/simple", "PIP_NO_INPUT": "1"})
    assert step.env == ()
    assert "secret" not in repr(step)


def test_wheelhouse_and_constraints(tree, installs, tmp_path):
    tree.code("requirements.txt", "x")
    tree.code("wheels/x.whl")
    limits = tmp_path / "limits.txt"
    limits.write_text("x<2")
    assert words(installs(wheelhouse="wheels", constraints=str(limits))) == (
        "--no-index", "--find-links", f"{tree.base}/code/wheels", "-c", str(limits), *REQUIREMENTS,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["wheelhouse", "constraints"])
def test_missing_wheelhouse_or_constraints(tree, installs, name):
    assert installs(**{name: "/no/such"}) == ()  # needed for nothing
    tree.code("requirements.txt", "x")
    with pytest.raises(UserError, match=f"TRAINBOX_{name.upper()} is /no/such, which does not exist"):
        installs(**{name: "/no/such"})


def test_no_pip(tree, installs, monkeypatch):
    tree.code("requirements.txt", "x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="has no pip"):
        installs()
    assert installs(python="/other/python")[0].argv[0] == "/other/python"


def test_root_and_a_cache_that_may_not_be_written(tree, installs, monkeypatch):
    tree.code("requirements.txt", "x")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(requirements, "_writable", lambda path: not path.endswith("/.cache/pip"))
    (step,) = installs(environ={"HOME": "/"})
    assert [variable[:2] for variable in step.env] == [
        ("PIP_ROOT_USER_ACTION", "ignore"),
        ("PIP_NO_CACHE_DIR", "1"),
    ]
    assert step.env[1].why == "/.cache/pip may not be written"
    assert installs(environ={"PIP_CACHE_DIR": "/c", "PIP_ROOT_USER_ACTION": "warn"})[0].env == ()


class TestPrefix:
    @pytest.fixture(autouse=True)
    def unprivileged(self, installs, monkeypatch, tmp_path, tree):
        tree.code("requirements.txt", "x")
        monkeypatch.setattr(requirements, "_can_install", lambda: False)
        monkeypatch.setattr(os, "getuid", os.geteuid)
        self.environ = {"TMPDIR": str(tmp_path), "PIP_ROOT_USER_ACTION": "warn"}

    def test_known_failure_72_where_neither_site_directory_may_be_written(self, installs, tmp_path):
        steps = installs(environ=self.environ)
        prefix = str(tmp_path / f"trainbox-{os.geteuid()}-job-algo-1")
        assert words(steps) == ("--prefix", prefix, *REQUIREMENTS)
        assert os.stat(prefix).st_mode & 0o777 == 0o700
        path = requirements.import_path(steps)
        assert path.startswith(prefix)
        assert path.endswith("-packages")
        assert words(installs(environ=self.environ)) == ("--prefix", prefix, *REQUIREMENTS)

    def test_users_own_place(self, installs):
        steps = installs(environ={**self.environ, "PIP_TARGET": "/somewhere"})
        assert words(steps) == REQUIREMENTS
        assert requirements.import_path(steps) == ""

    def test_a_directory_of_somebody_else_is_not_imported_from(self, installs, tmp_path):
        (tmp_path / f"trainbox-{os.geteuid()}-job-algo-1").symlink_to("/usr")
        with pytest.raises(UserError, match="is not a directory of user"):
            installs(environ=self.environ)

    def test_no_place_at_all(self, installs):
        with pytest.raises(UserError, match="pip has no place to install to"):
            installs(environ={**self.environ, "TMPDIR": "/proc/nowhere"})


class TestCodeArtifact:
    @pytest.fixture
    def boto3(self, monkeypatch):
        asked: list[object] = []

        class Client:
            def get_authorization_token(self, **arguments):
                asked.append(arguments)
                return {"authorizationToken": "t0ken"}

        def client(service, region_name):
            asked.append((service, region_name))
            return Client()

        monkeypatch.setitem(sys.modules, "boto3", types.SimpleNamespace(client=client))
        return asked

    def test_index_goes_by_the_environment_only(self, tree, installs, boto3):
        tree.code("requirements.txt", "x")
        (step,) = installs(environ={"CA_REPOSITORY_ARN": ARN})
        assert step.argv == (*PIP, *REQUIREMENTS)
        assert step.env == (
            (
                "PIP_INDEX_URL",
                "https://aws:t0ken@my-domain-123456789012.d.codeartifact.eu-west-1.amazonaws.com/pypi/my.repo/simple/",
                "CA_REPOSITORY_ARN",
            ),
        )
        assert boto3 == [
            ("codeartifact", "eu-west-1"),
            {"domain": "my-domain", "domainOwner": "123456789012"},
        ]

    def test_no_token_where_none_is_needed(self, tree, installs, boto3):
        assert installs(environ={"CA_REPOSITORY_ARN": ARN}) == ()
        tree.code("requirements.txt", "x")
        assert installs(environ={"CA_REPOSITORY_ARN": ARN}, wheelhouse=".")[0].env == ()
        assert boto3 == []

    def test_other_partition(self, boto3):
        assert ".codeartifact.cn-north-1.amazonaws.com.cn/" in codeartifact.index_url(
            ARN.replace(":aws:", ":aws-cn:").replace("eu-west-1", "cn-north-1")
        )

    @pytest.mark.parametrize(
        "arn", ["x", ARN + "/more", ARN.replace("codeartifact", "s3"), ARN.replace("1234", "x")]
    )
    def test_what_is_no_arn(self, boto3, arn):
        with pytest.raises(UserError, match="CA_REPOSITORY_ARN is"):
            codeartifact.index_url(arn)
        assert boto3 == []

    def test_neither_boto3_nor_the_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.setattr("shutil.which", lambda name: None)
        with pytest.raises(UserError, match="install boto3 in the image, or set PIP_INDEX_URL"):
            codeartifact.index_url(ARN)

    def test_service_that_gives_no_token(self, monkeypatch):
        def client(service, region_name):
            raise RuntimeError("one\nAccessDeniedException: not yours")

        monkeypatch.setitem(sys.modules, "boto3", types.SimpleNamespace(client=client))
        with pytest.raises(
            PlatformError, match="my-domain: AccessDeniedException: not yours; let the job's role"
        ):
            codeartifact.index_url(ARN)


BUILD = """
  error: subprocess-exited-with-error

  \u00d7 Getting requirements to build wheel did not run successfully.
  │ exit code: 1
  ╰─> [17 lines of output]
      Traceback (most recent call last):
      ValueError: boom
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
ERROR: Failed to build 'x' when getting requirements to build wheel
"""


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (
            "Collecting x\nERROR: Could not find a version\nERROR: No matching distribution found for x\n",
            "Could not find a version; No matching distribution found for x",
        ),
        ("\x1b[31mERROR: bad\x1b[0m\n[notice] new pip\n", "bad"),
        ("ERROR: for https://aws:t0ken@host/simple/\n", "for https://******@host/simple/"),
        (
            "WARNING: 401 Error, Credentials not correct for https://h/\nERROR: No matching distribution\n",
            "No matching distribution; 401 Error, Credentials not correct for https://h/",
        ),
        (BUILD, "Getting requirements to build wheel did not run successfully.; ValueError: boom; "
                "Failed to build 'x' when getting requirements to build wheel"),
        ("/usr/bin/python3: No module named pip\n", "the interpreter has no pip: install it in the image"),
        ("User for h: ERROR: Exception:\nEOFError: EOF when reading\n", "asks for a user and a password"),
        ("one\ntwo\nthree\nfour\n", "two; three; four"),
        ("", "it gave no reason"),
        ("\udcff\udcfeERROR", "ERROR"),
    ],
)  # fmt: skip
def test_explain(tail, text):
    found = requirements.explain(tail.encode("utf-8", "surrogateescape"))
    assert text in found
    assert "\n" not in found
    assert "t0ken" not in found


def test_explain_is_bounded():
    assert len(requirements.explain(b"ERROR: " + b"x" * 5000)) < 1000
