"""Containers for tests: a tree for /opt/ml, containers and networks that are always removed, their ends.

Nothing has a fixed name, so that the same tests can run beside each other on one engine.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LABEL = "trainbox.test"
PATIENCE = 90.0
"""Seconds after which whatever a test waits for will not come any more."""

ALARMING = re.compile(
    r"warn(ing)?\b|error|traceback|exception|fatal|cannot|failed|ld\.so|\bkilled\b", re.IGNORECASE
)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Returns once the condition holds; a test fails that waits for PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.05)


class Engine:
    """The docker client that DOCKER names, else the distribution's own, else the first on PATH."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        usual = "/usr/bin/docker"
        self.client = environ.get("DOCKER") or (usual if os.access(usual, os.X_OK) else "docker")

    def problem(self) -> str:
        """Why there is no engine to be had, or an empty string."""
        command = [self.client, "version", "--format", "{{.Server.Version}}"]
        try:
            subprocess.run(command, capture_output=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            return f"no Docker Engine answers '{self.client} version'"
        return ""

    def call(self, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Runs the client, and fails the test when the client fails."""
        command = [self.client, *words]
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, encoding="utf-8")
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done

    def __call__(self, *words: str, timeout: float = PATIENCE) -> str:
        """What the client prints."""
        return self.call(*words, timeout=timeout).stdout.strip()

    def has(self, image: str) -> bool:
        return image in self("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").splitlines()


class Tree:
    """A folder that is mounted at /opt/ml, open to every user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("input/config", "input/data", "code", "model", "output/data", "checkpoints"):
            (folder / name).mkdir(parents=True)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777)

    def config(self, name: str, value: Any) -> Path:
        """Writes one of the JSON files: text or bytes as they are, anything else as JSON."""
        path = self.folder / "input" / "config" / f"{name}.json"
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        path.chmod(0o644)
        return path

    def program(self, text: str, name: str = "train.py", **parameters: Any) -> Tree:
        """Puts a script into the code directory and names it, with its hyperparameters."""
        path = self.folder / "code" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        values = {"sagemaker_program": name, **parameters}
        self.config("hyperparameters", {key: json.dumps(value) for key, value in values.items()})
        return self

    def hosts(self, me: str, *others: str) -> Tree:
        """Makes this the tree of one host of several."""
        names = sorted({me, *others})
        self.config("resourceconfig", {"current_host": me, "hosts": names, "network_interface_name": "eth0"})
        return self

    @property
    def failure(self) -> str:
        path = self.folder / "output" / "failure"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def model(self, name: str) -> Any:
        """A JSON file that the script left as its model."""
        return json.loads((self.folder / "model" / name).read_text(encoding="utf-8"))


class Ended(NamedTuple):
    """How a container ended. oom: whether the engine saw a process of it killed for want of memory."""

    code: int
    out: str
    err: str
    oom: bool

    @property
    def log(self) -> str:
        return self.out + self.err

    def alarms(self, *expected: str) -> list[str]:
        """Lines that would alarm a reader of a successful job's log, less those with expected words."""
        lines = [line for line in self.log.splitlines() if ALARMING.search(line)]
        return [line for line in lines if not any(words in line for words in expected)]


class Container:
    """A container, by its id."""

    def __init__(self, engine: Engine, identity: str) -> None:
        self.engine = engine
        self.id = identity

    def start(self) -> Container:
        self.engine("start", self.id)
        return self

    def join(self, network: str, alias: str = "") -> Container:
        """Puts it on one more network; its interfaces are named in the order of joining."""
        named = ("--alias", alias) if alias else ()
        self.engine("network", "connect", *named, network, self.id)
        return self

    def address(self, network: str) -> str:
        """Its address on a network, while it runs."""
        template = "{{json .NetworkSettings.Networks}}"
        networks = json.loads(self.engine("inspect", "--format", template, self.id)).values()
        return next(str(each["IPAddress"]) for each in networks if each["NetworkID"] == network)

    def stop(self, seconds: int) -> None:
        """SIGTERM to process 1, and SIGKILL to all after so many seconds."""
        self.engine("stop", "--time", str(seconds), self.id, timeout=seconds + PATIENCE)

    def wait(self) -> Ended:
        """How it ended; a test fails whose container does not end by itself."""
        try:
            self.engine("wait", self.id)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a container did not end in {PATIENCE:g} s:\n{self._logs()}") from None
        state = json.loads(self.engine("inspect", "--format", "{{json .State}}", self.id))
        assert state["Status"] == "exited"
        logs = self._logs()
        return Ended(state["ExitCode"], logs.stdout, logs.stderr, state["OOMKilled"])

    def _logs(self) -> subprocess.CompletedProcess[str]:
        return self.engine.call("logs", self.id)


class Lab:
    """What one test makes in the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._containers: list[str] = []
        self._networks: list[str] = []

    def create(
        self,
        image: str,
        *command: str,
        tree: Tree | None = None,
        options: tuple[str, ...] = (),
        mode: str = "rw",
    ) -> Container:
        """A container, not started. options: those of `docker run`; mode: how the tree is mounted."""
        mount = ("--volume", f"{tree.folder}:/opt/ml:{mode}") if tree else ()
        identity = self.engine("create", "--label", LABEL, *mount, *options, image, *command)
        self._containers.append(identity)
        return Container(self.engine, identity)

    def start(self, image: str, *command: str, **kwargs: Any) -> Container:
        """A running container; arguments as for `create`."""
        return self.create(image, *command, **kwargs).start()

    def run(self, image: str, *command: str, **kwargs: Any) -> Ended:
        """Runs a container to its end; arguments as for `create`."""
        return self.start(image, *command, **kwargs).wait()

    def network(self) -> str:
        """A bridge network, on which aliases are names."""
        name = f"trainbox-test-{secrets.token_hex(6)}"
        identity = self.engine("network", "create", "--label", LABEL, name)
        self._networks.append(identity)
        return identity

    def close(self) -> None:
        """Removes everything, each by its id."""
        if self._containers:
            self.engine("rm", "--force", "--volumes", *self._containers)
        if self._networks:
            self.engine("network", "rm", *self._networks)
