"""Hosts as processes and as containers: what can be said without starting any."""

from __future__ import annotations

import sys
import types

import pytest

from trainbox.errors import PlatformError, UserError
from trainbox.local import containers, processes, runner
from trainbox.local.request import RunRequest, host_names
from trainbox.local.tree import Folder

PORTS = {"TRAINBOX_PORT": "1", "TRAINBOX_CHANNEL_PORT": "2"}


def request_of(**more):
    values = {
        "program": "train.py", "source_dir": "/src", "hosts": host_names(2), "launcher": "",
        "reserved": {}, "hyperparameters": {}, "channels": {}, "output": "/out", "image": "", "env": {},
        "instance_type": "local", "shm": 0, "cpus": 0, "memory": 0, "user": "", "network": "",
        "name": "", "timeout": 0, "keep": False,
    }  # fmt: skip
    return RunRequest(**{**values, **more})


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"shm": 1}, "--shm-size"),
        ({"memory": 1}, "--memory"),
        ({"user": "1:1"}, "--user"),
        ({"network": "n"}, "--network"),
    ],
)
def test_processes_refuse_what_only_containers_have(more, option):
    with pytest.raises(UserError, match=f"{option} needs --image"):
        processes.Processes(request_of(**more)).check()


@pytest.mark.parametrize(("cpus", "word"), [(0.5, "whole number"), (4096, "this machine has")])
def test_processes_refuse_cpus_that_they_cannot_have(cpus, word):
    with pytest.raises(UserError, match=word):
        processes.Processes(request_of(cpus=cpus)).check()


@pytest.mark.parametrize(
    ("index", "count", "expected"),
    [(0, 2, (4, 5)), (1, 2, (6, 7)), (2, 2, (4, 5)), (1, 3, (4, 5, 7)), (1, 4, (4, 5, 6, 7))],
)
def test_hosts_get_cpus_of_their_own_while_there_are_some(index, count, expected):
    assert processes.cpus_of(index, count, (4, 5, 6, 7)) == expected


def test_processes_get_the_callers_environment_and_loopback_addresses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"A": "1", "SAGEMAKER_PROGRAM": "outer.py", "PYTHONPATH": "lib:/abs:", **PORTS}
    found = processes.Processes(request_of()).environment(given)
    assert found == {
        "A": "1", **PORTS,
        "PYTHONPATH": f"{tmp_path}/lib:/abs",
        "PYTHONUNBUFFERED": "1",
        "TRAINBOX_ADDRESSES": "algo-1=127.0.0.1,algo-2=127.0.0.1",
        "TRAINBOX_INSTALL_LOCK": sys.prefix,
    }  # fmt: skip


def test_containers_get_nothing_of_the_callers_machine_but_settings_and_region():
    given = {
        "PATH": "/x",
        "HOME": "/me",
        "AWS_REGION": "r",
        "TRAINBOX_PREFIX": "on",
        "TRAINBOX_REQUIRE_DOCKER": "1",
    }
    found = containers.Containers(request_of(image="i")).environment(given)
    assert found == {"AWS_REGION": "r", "TRAINBOX_PREFIX": "on"}


@pytest.mark.parametrize(
    ("launcher", "environ", "env", "expected"),
    [
        ("", {}, {}, {"TRAINBOX_GRACE_SECONDS": "30"}),
        ("", {"TRAINBOX_GRACE_SECONDS": "5"}, {"A": "1"}, {"TRAINBOX_GRACE_SECONDS": "5", "A": "1"}),
        (
            "",
            {"TRAINBOX_GRACE_SECONDS": "5"},
            {"TRAINBOX_GRACE_SECONDS": "6"},
            {"TRAINBOX_GRACE_SECONDS": "6"},
        ),
        ("script", {"TRAINBOX_LAUNCHER": "torchrun"}, {}, {"TRAINBOX_GRACE_SECONDS": "30"}),
    ],
)
def test_what_hosts_have_in_common(launcher, environ, env, expected):
    request = request_of(image="i", launcher=launcher, env=env)
    assert runner.host_environment(request, containers.Containers(request), environ) == expected


def frame(stream, data):
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def test_frames_are_taken_apart_wherever_the_reads_end():
    sent = frame(1, b"out\n") + frame(2, b"\xff" * 300) + frame(1, b"") + frame(1, b"more")
    for size in (1, 3, 7, 8, 9, 64, len(sent)):
        frames = containers.Frames()
        found = {1: b"", 2: b""}
        for at in range(0, len(sent), size):
            for stream, data in frames.feed(sent[at : at + size]):
                found[stream] += data
        assert found == {1: b"out\nmore", 2: b"\xff" * 300}


class EngineError(Exception):
    def __init__(self, status_code, explanation):
        super().__init__(explanation)
        self.status_code = status_code
        self.explanation = explanation


class FakeApi:
    """An engine that has one image and one network."""

    def __init__(self):
        self.others = []
        self.calls = []
        self.failing = {}

    def info(self):
        return {"SecurityOptions": ["name=seccomp"]}

    def inspect_image(self, name):
        if name != "there":
            raise EngineError(404, f"No such image: {name}")

    def networks(self, names):
        return [{"Name": "mynet-2", "Id": "1"}, {"Name": "mynet", "Id": "2"}, {"Name": "bridge", "Id": "3"}]

    def containers(self, filters):
        return self.others

    def create_network(self, name, **more):
        self.calls.append(("create_network", name, more))
        return {"Id": "net-id"}

    def remove_network(self, name):
        self.calls.append(("remove_network", name))

    def remove_container(self, name, **more):
        self.calls.append(("remove_container", name))
        if name in self.failing:
            raise EngineError(500, "busy")

    def create_host_config(self, **more):
        return more

    def create_networking_config(self, value):
        return value

    def create_endpoint_config(self, **more):
        return more

    def create_container(self, *args, **more):
        self.calls.append(("create_container", more))
        return {"Id": "c1"}

    def attach_socket(self, container, params):
        return types.SimpleNamespace(fileno=lambda: 0, close=lambda: self.calls.append(("close",)))

    def start(self, container):
        self.calls.append(("start", container))
        if "start" in self.failing:
            raise EngineError(400, self.failing["start"])


@pytest.fixture
def api(monkeypatch):
    made = FakeApi()
    client = types.SimpleNamespace(api=made)
    errors = types.SimpleNamespace(APIError=EngineError, DockerException=EngineError)
    modules = {
        "docker": types.SimpleNamespace(from_env=lambda **more: client),
        "docker.errors": errors,
        "requests.exceptions": types.SimpleNamespace(RequestException=EngineError),
    }
    monkeypatch.setattr(containers, "import_module", modules.__getitem__)
    return made


def test_an_image_and_a_network_that_are_there(api):
    containers.Containers(request_of(image="there", network="mynet")).check()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"image": "trainbox/none:cpu"}, ("trainbox/none:cpu", "make images")),
        ({"image": "none:1"}, ("none:1", "docker pull none:1")),
        ({"network": "my"}, ("no network my", "docker network create my")),
        ({"network": "bridge"}, ("no names",)),
        ({"network": "host"}, ("--network host is for one host, not for 2", "ports")),
        ({"network": "none"}, ("--network none", "reach")),
    ],
)
def test_what_is_not_there_is_one_line(api, more, words):
    with pytest.raises(UserError) as caught:
        containers.Containers(request_of(**{"image": "there", **more})).check()
    assert all(word in str(caught.value) for word in words)


def test_known_failure_70_two_jobs_on_one_network_are_refused(api):
    api.others = [{"Labels": {"trainbox.job": "other-job"}}]
    with pytest.raises(UserError, match="other-job"):
        containers.Containers(request_of(image="there", network="mynet")).check()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(UserError, match="pip install docker"):
        containers.Containers(request_of(image="there")).check()


def started(api, tmp_path, **more):
    folder = Folder(str(tmp_path), "job")
    (tmp_path / ".work/algo-1/opt/ml").mkdir(parents=True)
    backend = containers.Containers(request_of(image="there", **more))
    backend.check()
    backend.open(folder)
    try:
        backend.start(folder, "algo-1", {"A": "1"})
    finally:
        backend.close()
    return next(call[1] for call in api.calls if call[0] == "create_container")


def test_known_failure_35_a_container_as_it_is_made(api, tmp_path):
    made = started(api, tmp_path, channels={"train": "/data"}, cpus=1.5, memory=1 << 30, user="7:8")
    ((network, endpoint),) = made["networking_config"].items()
    assert made["command"] == ["train"]
    assert made["user"] == "7:8"
    assert made["hostname"] == "algo-1"
    assert made["environment"] == {"A": "1"}
    assert made["labels"] == {"trainbox.job": "job"}
    assert endpoint == {"aliases": ["algo-1"]}
    limits = made["host_config"]
    assert limits["shm_size"] == 1 << 30  # not Docker's 64 MB
    assert (limits["nano_cpus"], limits["mem_limit"]) == (1_500_000_000, 1 << 30)
    assert limits["network_mode"] == network
    assert limits["binds"] == {
        f"{tmp_path}/.work/algo-1/opt/ml": {"bind": "/opt/ml", "mode": "rw"},
        "/data": {"bind": "/opt/ml/input/data/train", "mode": "ro"},
    }


def test_known_failure_90_on_the_hosts_network(api, tmp_path, monkeypatch):
    made = started(api, tmp_path, network="host", hosts=("algo-1",), shm=5)
    assert made["host_config"]["network_mode"] == "host"
    assert made["host_config"]["shm_size"] == 5
    assert "networking_config" not in made
    assert not any(call[0] in ("create_network", "remove_network") for call in api.calls)


def test_all_is_removed_when_a_container_cannot_start(api, tmp_path):
    api.failing["start"] = 'exec: "train": executable file not found in $PATH'
    with pytest.raises(UserError, match="no command train"):
        started(api, tmp_path)
    assert api.calls[-3:] == [("close",), ("remove_container", "c1"), ("remove_network", "net-id")]


def test_one_container_that_cannot_be_removed_keeps_nothing_else(api, tmp_path):
    api.failing["c1"] = True
    with pytest.raises(PlatformError, match="busy"):
        started(api, tmp_path)
    assert api.calls[-1] == ("remove_network", "net-id")
