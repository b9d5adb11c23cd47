"""Hosts as containers of a Docker Engine, spoken to through its API: no docker command, no Compose.

Whatever answers at DOCKER_HOST will do, Podman's service included.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from trainbox.errors import PlatformError, TrainboxError, UserError
from trainbox.job import DEFAULT_BASE
from trainbox.local import tree
from trainbox.local.backend import End
from trainbox.local.processes import free_port_variables
from trainbox.local.request import DEFAULT_SHM, RunRequest
from trainbox.local.tree import Folder
from trainbox.settings import INTERNAL, PREFIX

LABEL = "trainbox.job"
CHUNK = 1 << 16
REQUEST_SECONDS = 120
"""How long the engine may take for one answer."""

_HEADER = 8  # of a frame: stream, three zeros, length


class Frames:
    """Takes the engine's stream apart into (1 or 2, bytes), whatever the borders of the reads."""

    def __init__(self) -> None:
        self._pending = b""
        self._stream = 1
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The output in `data`, which comes as it arrives: long frames are not waited for."""
        data = self._pending + data
        found = []
        at = 0
        while True:
            if self._left:
                part = data[at : at + self._left]
                if not part:
                    break
                found.append((self._stream, part))
                at += len(part)
                self._left -= len(part)
            elif len(data) - at >= _HEADER:
                self._stream = 2 if data[at] == 2 else 1
                self._left = int.from_bytes(data[at + 4 : at + _HEADER], "big")
                at += _HEADER
            else:
                break
        self._pending = data[at:]
        return found


class ContainerHost:
    """A container that has been started."""

    def __init__(self, name: str, api: Any, container: str, stream: Any) -> None:
        self.name = name
        self._api = api
        self._container = container
        self._stream = stream
        self._frames = Frames()
        self.fds: tuple[int, ...] = (stream.fileno(),)

    def read(self, fd: int) -> list[tuple[int, bytes]] | None:
        """Output of both streams; its end is mostly that of the container."""
        try:
            data = os.read(fd, CHUNK)
        except OSError:
            return None
        return self._frames.feed(data) if data else None

    def ended(self) -> End | None:
        """What the engine knows of the container's end."""
        with _engine(f"look at {self.name}"):
            state = self._api.inspect_container(self._container)["State"]
        if state.get("Running") or state.get("Status") not in ("exited", "dead", "stopped"):
            return None
        return End(int(state["ExitCode"]) & 0xFF, bool(state.get("OOMKilled")))

    def signal(self, number: int) -> None:
        """Process 1 of the container gets it; SIGKILL ends them all."""
        with contextlib.suppress(Exception):  # it has ended in between
            self._api.kill(self._container, signal=int(number))

    def close(self) -> None:
        """The container itself is removed with the others."""
        self._stream.close()


@contextlib.contextmanager
def _engine(what: str) -> Iterator[None]:
    """Turns the engine's errors into a line. what: "cannot" comes before it."""
    errors = import_module("docker.errors")
    requests = import_module("requests.exceptions")
    try:
        yield
    except errors.APIError as error:
        raise PlatformError(f"the engine cannot {what}: {error.explanation or error}") from None
    except (errors.DockerException, requests.RequestException, OSError) as error:
        raise PlatformError(f"the engine cannot {what}: {error}") from None


class Containers:
    """A private network of the job's own, and a container a host on it."""

    interface = "eth0"

    def __init__(self, request: RunRequest) -> None:
        self.kind = request.image
        self._request = request
        self._api: Any = None
        self._rootless = False
        self._network = request.network
        self._own_network = ""
        self._containers: list[str] = []

    def check(self) -> None:
        """Connects to the engine and looks for the image and the network."""
        request = self._request
        if request.network in ("host", "none") and len(request.hosts) > 1:
            why = {
                "host": "they would share this machine's address and ports",
                "none": "they could not reach each other",
            }[request.network]
            raise UserError(
                f"--network {request.network} is for one host, not for {len(request.hosts)}: {why}",
                "leave --network out for a network of the job's own",
            )
        self._connect()
        with _engine(f"look for the image {request.image}"):
            try:
                self._api.inspect_image(request.image)
            except import_module("docker.errors").APIError as error:
                if error.status_code not in (400, 404):
                    raise
                own = request.image.startswith("trainbox/")
                raise UserError(
                    f"there is no image {request.image} on this machine",
                    "run: make images" if own else f"run: docker pull {request.image}",
                ) from None
        if request.network not in ("", "host", "none"):
            self._check_network(request.network)

    def _connect(self) -> None:
        try:
            docker = import_module("docker")
        except ImportError:
            raise UserError(
                "hosts in containers need the Python package docker", "run: pip install docker"
            ) from None
        where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            self._api = docker.from_env(timeout=REQUEST_SECONDS, version="auto").api
            options = self._api.info().get("SecurityOptions") or []
        except Exception as error:  # docker, requests and urllib3 each have their own
            raise PlatformError(
                f"no Docker Engine answers at {where}: {_root_cause(error)}",
                "start it, or leave --image out to have hosts as processes",
            ) from None
        self._rootless = any("rootless" in option for option in options)

    def _check_network(self, name: str) -> None:
        with _engine(f"look for the network {name}"):
            similar = self._api.networks(names=[name])
            found = [entry for entry in similar if name in (entry["Name"], entry["Id"])]
            others = self._api.containers(filters={"network": [name], "label": [LABEL]}) if found else []
        if not found:
            raise UserError(f"there is no network {name}", f"run: docker network create {name}")
        if name in ("bridge", "podman") and len(self._request.hosts) > 1:
            raise UserError(
                f"--network {name}: hosts have no names on the default network",
                "leave --network out for a network of the job's own",
            )
        if others:
            job = others[0]["Labels"][LABEL]
            raise UserError(
                f"--network {name}: job {job} runs on it, whose hosts have the same names",
                "wait for its end, or leave --network out for a network of the job's own",
            )

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """TRAINBOX_* and the region of the caller: nothing else of this machine belongs into a container."""
        passed = {
            name: value
            for name, value in environ.items()
            if (name.startswith(PREFIX) and name not in INTERNAL) or name == "AWS_REGION"
        }
        if self._request.network == "host":
            passed.update(free_port_variables(environ))
        return passed

    def open(self, folder: Folder) -> None:
        """Makes the job's network, unless one was named."""
        if self._network:
            return
        name = f"trainbox-{folder.name}-{secrets.token_hex(4)}"
        with _engine("make a network"):
            labels = {LABEL: folder.name}
            self._own_network = self._api.create_network(name, driver="bridge", labels=labels)["Id"]
        self._network = name

    def start(self, folder: Folder, host: str, environ: Mapping[str, str]) -> ContainerHost:
        """Makes a container and attaches to it before it starts, so that no output is missed."""
        if self._user() != f"{os.geteuid()}:{os.getegid()}":
            tree.open_to_all(folder.base(host))
        with _engine(f"make a container for {host}"):
            container = self._api.create_container(**self._container(folder, host, environ))["Id"]
            self._containers.append(container)
            stream = self._api.attach_socket(container, {"stdout": 1, "stderr": 1, "stream": 1})
        try:
            with _engine(f"start {host}"):
                self._api.start(container)
        except TrainboxError as error:
            stream.close()
            if "executable file not found" in str(error) or "no such file or directory" in str(error):
                raise UserError(
                    f"the image {self.kind} has no command train on its PATH", "install trainbox in the image"
                ) from None
            raise
        return ContainerHost(host, self._api, container, stream)

    def _user(self) -> str:
        """The caller, who then owns what the job writes. A rootless engine's root is the caller."""
        return self._request.user or ("0:0" if self._rootless else f"{os.geteuid()}:{os.getegid()}")

    def _container(self, folder: Folder, host: str, environ: Mapping[str, str]) -> dict[str, Any]:
        request = self._request
        shared = self._network in ("host", "none")
        binds = {folder.base(host): {"bind": DEFAULT_BASE, "mode": "rw"}}
        for name, path in request.channels.items():
            binds[path] = {"bind": f"{DEFAULT_BASE}/input/data/{name}", "mode": "ro"}
        networking = {} if shared else {
            "hostname": host,
            "networking_config": self._api.create_networking_config(
                {self._network: self._api.create_endpoint_config(aliases=[host] if self._named() else None)}
            ),
        }  # fmt: skip
        return {
            "image": request.image,
            "name": f"{folder.name}-{host}",
            "command": ["train"],
            "user": self._user(),
            "environment": dict(environ),
            "labels": {LABEL: folder.name},
            "host_config": self._api.create_host_config(
                binds=binds,
                network_mode=self._network,
                shm_size=request.shm or DEFAULT_SHM,
                mem_limit=request.memory or None,
                nano_cpus=int(request.cpus * 1e9) or None,
                log_config={"Type": "none"},  # the output goes to the caller and to a file there already
            ),
            **networking,
        }

    def _named(self) -> bool:
        """Whether the network resolves names: the default one does not, and takes no aliases."""
        return self._network not in ("bridge", "podman")

    def close(self) -> None:
        """Removes the containers and the network; one that cannot be removed does not keep the others."""
        problems = []
        for container in self._containers:
            try:
                with _engine("remove a container"):
                    self._api.remove_container(container, force=True, v=True)
            except PlatformError as error:
                problems.append(str(error))
        if self._own_network:
            try:
                with _engine("remove the job's network"):
                    self._api.remove_network(self._own_network)
            except PlatformError as error:
                problems.append(str(error))
        self._containers, self._own_network = [], ""
        if problems:
            raise PlatformError(problems[0], f"look for what has the label {LABEL}")

    def settle(self, folder: Folder) -> None:
        """Lets a root of the image's give the files to the caller, where a job ran as another user."""
        if os.geteuid() == 0 or not tree.strangers(folder.work):
            return
        owner = "0:0" if self._rootless else f"{os.geteuid()}:{os.getegid()}"
        with _engine("give the job's files to you"):
            container = self._api.create_container(
                self.kind,
                entrypoint=["chown", "-R", "-h", owner, "/job"],
                command=[],
                user="0:0",
                labels={LABEL: folder.name},
                host_config=self._api.create_host_config(
                    binds={folder.work: {"bind": "/job", "mode": "rw"}},
                    network_mode="none",
                    log_config={"Type": "none"},
                ),
            )["Id"]
            self._containers.append(container)
            try:
                self._api.start(container)
                self._api.wait(container, timeout=REQUEST_SECONDS)
            finally:
                self.close()


def _root_cause(error: BaseException) -> str:
    """The words of the operating system, out of the wrappings of three libraries."""
    seen: BaseException | None = error
    while seen:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return str(error)
