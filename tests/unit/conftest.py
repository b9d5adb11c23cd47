"""Guards of the unit tests: no process, no connection, no changed environment."""

from __future__ import annotations

import json
import os
import socket
import subprocess

import pytest

PACKAGE = "trainbox"


def _forbidden(name):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a unit test called {name}")

    return refuse


@pytest.fixture(autouse=True)
def guard(monkeypatch):
    for module, name in (
        (os, "fork"),
        (os, "posix_spawn"),
        (os, "system"),
        (subprocess, "Popen"),
        (socket.socket, "connect"),
        (socket.socket, "bind"),
    ):
        monkeypatch.setattr(module, name, _forbidden(name))


@pytest.fixture(autouse=True)
def environment():
    before = dict(os.environ)
    yield
    after = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    before.pop("PYTEST_CURRENT_TEST", None)
    assert after == before


class Tree:
    """An /opt/ml tree in a temporary folder."""

    def __init__(self, base):
        self.base = base
        self.environ = {"SAGEMAKER_BASE_DIR": str(base), "PATH": "/usr/bin:/bin"}
        for folder in ("input/config", "input/data", "code", "model", "output/data"):
            (base / folder).mkdir(parents=True)

    def config(self, name, value):
        path = self.base / "input/config" / f"{name}.json"
        if isinstance(value, bytes):
            path.write_bytes(value)
        else:
            path.write_text(json.dumps(value))
        return path

    def code(self, name, text="", mode=0o644):
        path = self.base / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def hosts(self, *names, me="", **more):
        resources = {
            "current_host": me or names[0],
            "current_instance_type": "ml.c5.xlarge",
            "current_group_name": "homogeneousCluster",
            "hosts": list(names),
            "instance_groups": [
                {
                    "instance_group_name": "homogeneousCluster",
                    "instance_type": "ml.c5.xlarge",
                    "hosts": list(reversed(names)),
                }
            ],
            "network_interface_name": "eth0",
            "topology": None,
        }
        self.config("resourceconfig", {**resources, **more})


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "ml")
