"""Requirements with the real pip, from an index on loopback, with and without a password (fixture F5)."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import sys
import sysconfig
import threading
import zipfile

import pytest

from trainbox import codeartifact, job, requirements, settings
from trainbox.entry import Script
from trainbox.errors import PlatformError
from trainbox.plan import Process

pytestmark = pytest.mark.cluster

PASSWORD = "s3cr3t-w0rd"
BACKEND = """
import zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "theproject-1.0-py3-none-any.whl"
    files = {
        "METADATA": "Metadata-Version: 2.1\\nName: theproject\\nVersion: 1.0\\n",
        "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        wheel.writestr("theproject.py", "")
        for file, text in files.items():
            wheel.writestr("theproject-1.0.dist-info/" + file, text)
    return name
"""


def wheel(folder, name, version):
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


class Index(http.server.SimpleHTTPRequestHandler):
    """A folder of packages; below /private only with the password."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        token = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
        if self.path.startswith("/private") and self.headers.get("Authorization") != f"Basic {token}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Address of an index of the package `small` 1.0 and 2.0, as host:port."""
    root = tmp_path_factory.mktemp("index")
    for place in ("public", "private"):
        for version in ("1.0", "2.0"):
            wheel(root / place / "small", "small", version)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Index(*args, directory=str(root))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    return folder


class Pip:
    """Runs the steps of one job as `train` does, with nothing of this machine's pip settings."""

    def __init__(self, python, base):
        self.python = python
        self.base = base
        self.code = base / "code"
        self.code.mkdir()
        home = base / "home"
        home.mkdir()
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_CONFIG_FILE": os.devnull,
                        "TMPDIR": str(base)}  # fmt: skip
        self.output = b""
        self.steps: tuple[Process, ...] = ()

    def install(self, name="train.py", kind="python", **values):
        names = {f"TRAINBOX_{name.upper()}": str(value) for name, value in values.items()}
        self.steps = requirements.installs(
            job.read({"SAGEMAKER_BASE_DIR": str(self.base)}), str(self.code), Script(name, kind, (name,)),
            settings.read(names), self.environ, self.python,
        )  # fmt: skip
        code = 0
        for step in self.steps:
            env = {**self.environ, **{name: value for name, value, _ in step.env}}
            done = subprocess.run(
                step.argv, cwd=step.cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=120,
            )  # fmt: skip
            self.output, code = done.stdout, done.returncode
        assert PASSWORD not in repr(self.steps)
        assert PASSWORD.encode() not in self.output
        return code

    def version(self, name="small", path=""):
        code = f"import {name}; print({name}.VERSION)"
        done = subprocess.run(
            [self.python, "-c", code],
            env={"PYTHONPATH": path},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.strip()


@pytest.fixture
def pip(template, tmp_path):
    made = Pip(str(template / "bin/python"), tmp_path)
    yield made
    subprocess.run(
        [made.python, "-m", "pip", "uninstall", "-y", "small", "theproject"], capture_output=True, timeout=60
    )


def test_known_failure_65_index_without_a_password(pip, index):
    pip.environ["PIP_INDEX_URL"] = f"http://{index}/public"
    (pip.code / "requirements.txt").write_text("small\n")
    assert pip.install() == 0, pip.output
    assert pip.version() == "2.0"
    for word in (b"WARNING", b"ERROR", b"notice"):
        assert word not in pip.output


def test_known_failure_65_password_in_the_environment(pip, index):
    pip.environ["PIP_INDEX_URL"] = f"http://user:{PASSWORD}@{index}/private"
    (pip.code / "requirements.txt").write_text("small\n")
    assert pip.install() == 0, pip.output
    assert pip.version() == "2.0"


def test_known_failure_65_password_in_pip_conf(pip, index, tmp_path):
    pip.environ["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = http://user:{PASSWORD}@{index}/private\n")
    (pip.code / "requirements.txt").write_text("small\n")
    assert pip.install() == 0, pip.output
    assert pip.version() == "2.0"


@pytest.mark.parametrize(
    ("user", "requirement", "reason"),
    [
        ("", "small", "asks for a user and a password"),
        ("user:wr0ng@", "small", "401 Error, Credentials not correct"),
        (f"user:{PASSWORD}@", "missing-package==3", "No matching distribution found for missing-package==3"),
        (f"user:{PASSWORD}@", "not a requirement", "not a requirement"),
    ],
)
def test_known_failure_27_a_failure_is_explained(pip, index, user, requirement, reason):
    pip.environ["PIP_INDEX_URL"] = f"http://{user}{index}/private"
    (pip.code / "requirements.txt").write_text(f"{requirement}\n")
    assert pip.install() != 0
    found = requirements.explain(pip.output[-8192:])
    assert reason in found, pip.output
    for secret in (PASSWORD, "wr0ng"):
        assert secret not in found
    assert "Traceback" not in found


def test_known_failure_65_wheelhouse_without_an_index(pip):
    wheel(pip.code / "wheels", "small", "1.5")
    pip.environ["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"
    (pip.code / "requirements.txt").write_text("small\n")
    assert pip.install(wheelhouse="wheels") == 0, pip.output
    assert pip.version() == "1.5"


def test_constraints(pip, index, tmp_path):
    pip.environ["PIP_INDEX_URL"] = f"http://{index}/public"
    (pip.code / "requirements.txt").write_text("small\n")
    (tmp_path / "limits.txt").write_text("small<2\n")
    assert pip.install(constraints=tmp_path / "limits.txt") == 0, pip.output
    assert pip.version() == "1.0"


@pytest.mark.parametrize("folder", ["", "src", "src/pkg"])
def test_known_failure_27_requirements_of_a_nested_entry_point(pip, index, folder):
    pip.environ["PIP_INDEX_URL"] = f"http://{index}/public"
    (pip.code / "src/pkg").mkdir(parents=True)
    (pip.code / folder / "requirements.txt").write_text("small==1.0\n")
    assert pip.install("src/pkg/train.py") == 0, pip.output
    assert pip.version() == "1.0"


def test_known_failure_27_setup_py_and_requirements(pip, index):
    pip.environ["PIP_INDEX_URL"] = f"http://{index}/public"
    (pip.code / "setup.py").write_text("import setuptools\n")
    (pip.code / "backend.py").write_text(BACKEND)
    (pip.code / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (pip.code / "requirements.txt").write_text("small\n")
    assert pip.install() == 0, pip.output
    assert pip.version() == "2.0"
    listed = subprocess.run([pip.python, "-m", "pip", "list"], capture_output=True, text=True, timeout=60)
    assert "theproject" in listed.stdout


def test_known_failure_72_prefix_where_site_packages_may_not_be_written(index, tmp_path, monkeypatch):
    if not os.path.exists(os.path.join(sysconfig.get_path("purelib"), "pip")):
        pytest.skip("the interpreter of the tests has no pip")
    monkeypatch.setattr(requirements, "_can_install", lambda: False)
    pip = Pip(sys.executable, tmp_path)
    pip.environ["PIP_INDEX_URL"] = f"http://{index}/public"
    (pip.code / "requirements.txt").write_text("small==1.0\n")
    assert pip.install() == 0, pip.output
    path = requirements.import_path(pip.steps)
    assert path.startswith(str(tmp_path))
    assert pip.version(path=path) == "1.0"
    assert pip.version() == ""


ARN = "arn:aws:codeartifact:eu-west-1:123456789012:repository/domain/repo"


@pytest.mark.parametrize("answer", ["echo t0ken", "echo 'Unable to locate credentials' >&2; exit 253"])
def test_token_from_the_aws_command(tmp_path, monkeypatch, answer):
    command = tmp_path / "aws"
    command.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n{answer}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "boto3", None)
    if "exit" in answer:
        with pytest.raises(PlatformError, match="Unable to locate credentials"):
            codeartifact.index_url(ARN)
    else:
        assert codeartifact.index_url(ARN).startswith("https://aws:t0ken@domain-123456789012.d.codeartifact.")
    assert (
        "--domain domain --domain-owner 123456789012 --region eu-west-1" in (tmp_path / "asked").read_text()
    )
