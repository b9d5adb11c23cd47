"""`trainbox run` as a person starts it, for tests: the command in a process of its own, and what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PATIENCE = 120.0
"""Seconds after which a job that still runs is a failure of the test."""


class Ran(NamedTuple):
    """How a job ended. folder: of the one job in the output folder, or None."""

    code: int
    out: str
    err: str
    folder: Path | None

    def archive(self, kind: str) -> dict[str, bytes]:
        """Files of `model` or `output`; empty when there is no archive."""
        assert self.folder is not None, self.err
        path = self.folder / "output" / f"{kind}.tar.gz"
        if not path.exists():
            return {}
        with tarfile.open(path) as tar:
            return {info.name: tar.extractfile(info).read() for info in tar if info.isreg()}

    @property
    def failure(self) -> str:
        """The failure file that the job left."""
        assert self.folder is not None, self.err
        path = self.folder / "output" / "failure"
        return path.read_text() if path.exists() else ""

    def log(self, host: str) -> str:
        """All that one host printed."""
        assert self.folder is not None, self.err
        return (self.folder / "logs" / f"{host}.log").read_text()


class Command:
    """A `trainbox` that is running."""

    def __init__(
        self, words: tuple[str, ...], folder: Path, environ: Mapping[str, str], output: Path, **more
    ) -> None:
        self._output = output
        self.process = subprocess.Popen(
            [*more.pop("interpreter", (sys.executable,)), "-m", "trainbox.cli", *words],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            **more,
        )

    def wait_for(self, words: str, times: int = 1) -> None:
        """Returns when so many lines of standard output have held the words; what was read is lost."""
        assert self.process.stdout
        for line in self.process.stdout:
            times -= words in line
            if not times:
                return
        raise AssertionError(f"{words!r} did not come: {self.finish().err}")

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def finish(self) -> Ran:
        """Waits for the end; a job that does not come to it is killed, and the test fails."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGTERM)
            out, err = self.process.communicate(timeout=PATIENCE)
            raise AssertionError(f"the job did not end by itself:\n{out}\n{err}") from None
        folders = sorted(self._output.iterdir()) if self._output.is_dir() else []
        return Ran(self.process.returncode, out, err, folders[-1] if folders else None)


class Project:
    """A folder with a script, in which `trainbox` is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TRAINBOX_", "SM_", "SAGEMAKER_"))
        }
        self.more: dict[str, object] = {}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def start(self, *words: str, **environ: str) -> Command:
        """Starts `trainbox` with these words and further variables."""
        return Command(words, self.folder, {**self.environ, **environ}, self.folder / "out", **self.more)

    def run(self, *words: str, **environ: str) -> Ran:
        """Runs `trainbox` to its end."""
        return self.start(*words, **environ).finish()
