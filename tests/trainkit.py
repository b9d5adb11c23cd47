"""`train` as a process of this machine, for tests: a tree, the command, and how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 120.0
"""Seconds after which whatever a test waits for will not come any more."""

DUMP = """\
import json, os, sys
from pathlib import Path
rank = os.environ.get("RANK", "0")
seen = {"argv": sys.argv[1:], "env": dict(os.environ), "path": sys.path, "cwd": os.getcwd()}
Path(os.environ["SM_MODEL_DIR"], f"seen-{rank}.json").write_text(json.dumps(seen))
"""
"""A script that leaves what it was given as its model."""


class Ended(NamedTuple):
    """How `train` ended. failure: the failure file, empty when there is none."""

    code: int
    out: bytes
    err: str
    failure: str

    def launch(self) -> dict[str, Any]:
        """The line that says what was started."""
        (line,) = (line for line in self.err.splitlines() if ": launch {" in line)
        found: dict[str, Any] = json.loads(line.partition("launch ")[2])
        return found


class Running:
    """A `train` that has been started."""

    def __init__(self, tree: Tree, process: subprocess.Popen[bytes]) -> None:
        self.tree = tree
        self.process = process
        self._seen = b""

    def wait_for(self, words: bytes) -> None:
        """Returns when standard output has held the words."""
        assert self.process.stdout
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + PATIENCE
        while words not in self._seen:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(fd, 1 << 16) if ready else b""
            assert data, f"{words!r} did not come, but {self._seen[-2000:]!r}"
            self._seen += data

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def status(self, key: str) -> int:
        """A figure of /proc/PID/status, in kB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key}:"))

    def end(self) -> Ended:
        """Waits for the end; a job that does not come to it is killed, and the test fails."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the job did not end:\n{out[-2000:]!r}\n{err[-4000:].decode()}") from None
        text = err.decode("utf-8", "backslashreplace")
        return Ended(self.process.returncode, self._seen + (out or b""), text, self.tree.failure)


class Tree:
    """An /opt/ml tree of one host in a temporary folder, and `train` in it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for folder in ("input/config", "input/data", "code", "model", "output/data"):
            (base / folder).mkdir(parents=True)

    def config(self, name: str, value: Any) -> Path:
        """Writes one of the JSON files: bytes as they are, anything else as JSON."""
        path = self.base / "input/config" / f"{name}.json"
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return path

    def code(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.base / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def program(self, text: str = DUMP, name: str = "train.py", **parameters: Any) -> Tree:
        """Puts a script into the code directory and names it, with its hyperparameters."""
        self.code(name, text)
        values = {"sagemaker_program": name, **parameters}
        self.config("hyperparameters", {key: json.dumps(value) for key, value in values.items()})
        return self

    def hosts(self, me: str, *others: str) -> Tree:
        """Makes this the tree of one host of several."""
        names = sorted({me, *others})
        self.config("resourceconfig", {"current_host": me, "hosts": names, "network_interface_name": "lo"})
        return self

    def environ(self, **more: str) -> dict[str, str]:
        """A small environment: what tests need of this machine's, the tree, and what the test gives."""
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
        passed = {name: os.environ[name] for name in kept if name in os.environ}
        return {**passed, "PYTHONUNBUFFERED": "1", "SAGEMAKER_BASE_DIR": str(self.base), **more}

    def start(self, *arguments: str, **more: str) -> Running:
        """Starts `train` with these arguments and further variables."""
        command = [sys.executable, "-m", "trainbox.train", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.base,
            env=self.environ(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return Running(self, process)

    def run(self, *arguments: str, **more: str) -> Ended:
        """Runs `train` to its end."""
        return self.start(*arguments, **more).end()

    @property
    def failure(self) -> str:
        path = self.base / "output/failure"
        return path.read_text() if path.exists() else ""

    def seen(self, rank: int = 0) -> dict[str, Any]:
        """What `DUMP` was given."""
        found: dict[str, Any] = json.loads((self.base / f"model/seen-{rank}.json").read_text())
        return found


def cluster(folder: Path, count: int, port: int, channel_port: int) -> tuple[list[Tree], dict[str, str]]:
    """Trees of hosts that meet on loopback, and the variables that they need for it."""
    names = [f"algo-{number}" for number in range(1, count + 1)]
    trees = [Tree(folder / name).hosts(name, *names) for name in names]
    addresses = ",".join(f"{name}=127.0.0.1" for name in names)
    return trees, {
        "TRAINBOX_ADDRESSES": addresses,
        "TRAINBOX_PORT": str(port),
        "TRAINBOX_CHANNEL_PORT": str(channel_port),
    }
