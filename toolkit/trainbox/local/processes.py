"""Hosts as plain processes of this machine: no engine, no privileges; all addresses are loopback ones."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

from trainbox.errors import PlatformError, UserError
from trainbox.local.backend import End
from trainbox.local.request import RunRequest
from trainbox.local.tree import Folder
from trainbox.settings import INSTALL_LOCK

CHUNK = 1 << 16
LEFTOVER_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_LOOPBACK = "127.0.0.1"

# They name the script of an outer job; this one is named by the command line.
_NOT_PASSED_ON = ("SAGEMAKER_PROGRAM", "SAGEMAKER_SUBMIT_DIRECTORY")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind((_LOOPBACK, 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def free_port_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Ports for jobs that share this machine's addresses; those that the caller chose stay."""
    names = [name for name in ("TRAINBOX_PORT", "TRAINBOX_CHANNEL_PORT") if not environ.get(name)]
    return {name: str(port) for name, port in zip(names, free_ports(len(names)), strict=True)}


def cpus_of(index: int, count: int, available: tuple[int, ...]) -> tuple[int, ...]:
    """`count` CPUs for the host of this index: each host its own as long as there are enough."""
    return tuple(sorted({available[(index * count + offset) % len(available)] for offset in range(count)}))


class ProcessHost:
    """`train` as a child, in a session of its own."""

    def __init__(self, name: str, base: str, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout and child.stderr
        self.name = name
        self._base = base
        self._child = child
        self._end = os.pidfd_open(child.pid)
        self._streams = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
        self.fds: tuple[int, ...] = (self._end, *self._streams)

    def read(self, fd: int) -> list[tuple[int, bytes]] | None:
        """Output of one stream; the process's end when `fd` is that of the process."""
        if fd == self._end:
            return None
        data = os.read(fd, CHUNK)
        return [(self._streams[fd], data)] if data else None

    def ended(self) -> End | None:
        """Exit code of `train`; with it ends what it left behind, which would keep the pipes open."""
        code = self._child.poll()
        if code is None:
            return None
        kill_leftovers(self._base)
        return End(128 - code if code < 0 else code)

    def signal(self, number: int) -> None:
        """`train` forwards signals itself; SIGKILL it cannot forward."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)
        if number == signal.SIGKILL:
            kill_leftovers(self._base)

    def close(self) -> None:
        """Ends whatever the host left behind."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
            kill_leftovers(self._base)
        os.close(self._end)
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe:
                pipe.close()


def kill_leftovers(base: str) -> None:
    """Kills every process that was started with this base directory in its environment, and sees it end."""
    mark = f"SAGEMAKER_BASE_DIR={base}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone, or another user's
            process = os.pidfd_open(int(entry))
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    ours = mark in file.read().split(b"\0")
                if ours:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    select.select([process], [], [], LEFTOVER_SECONDS)
            finally:
                os.close(process)


class Processes:
    """The embedded default."""

    kind = "processes"
    interface = "lo"

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._cpus = tuple(sorted(os.sched_getaffinity(0)))

    def check(self) -> None:
        """Refuses what only containers can give."""
        request = self._request
        given = {
            "--shm-size": request.shm, "--memory": request.memory, "--user": request.user,
            "--network": request.network,
        }  # fmt: skip
        for option, value in given.items():
            if value:
                raise UserError(f"{option} needs --image: hosts that are processes share this machine's")
        if request.cpus and request.cpus != int(request.cpus):
            raise UserError("--cpus needs a whole number, or --image: processes get whole CPUs")
        if request.cpus > len(self._cpus):
            raise UserError(f"--cpus {request.cpus:g}: this machine has {len(self._cpus)}")

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """All of the caller's, and where the hosts find each other."""
        passed = {name: value for name, value in environ.items() if name not in _NOT_PASSED_ON}
        if passed.get("PYTHONPATH"):  # hosts start in folders of their own
            folders = passed["PYTHONPATH"].split(os.pathsep)
            passed["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders if folder)
        passed.setdefault("PYTHONUNBUFFERED", "1")  # as images have it: output is seen while the job runs
        addresses = ",".join(f"{host}={_LOOPBACK}" for host in self._request.hosts)
        shared = {"TRAINBOX_ADDRESSES": addresses, INSTALL_LOCK: sys.prefix}
        return {**passed, **free_port_variables(environ), **shared}

    def open(self, folder: Folder) -> None:
        """Nothing is shared."""

    def start(self, folder: Folder, host: str, environ: Mapping[str, str]) -> ProcessHost:
        """Starts `train` with the interpreter that we run on."""
        base = folder.base(host)
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "trainbox.train"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=folder.home(host),  # -m puts it on sys.path: a folder without modules
                env={**environ, "SAGEMAKER_BASE_DIR": base},
                start_new_session=True,
                preexec_fn=self._setup(self._request.hosts.index(host)),  # safe: there are no threads
            )
        except OSError as error:
            raise PlatformError(f"cannot start {host}: {error.strerror}") from None
        return ProcessHost(host, base, child)

    def _setup(self, index: int) -> Callable[[], None]:
        """For the child, before it becomes `train`: it ends when we are killed, and keeps to its CPUs."""
        prctl = ctypes.CDLL(None).prctl
        parent = os.getpid()
        count = int(self._request.cpus)
        mine = cpus_of(index, count, self._cpus) if count else self._cpus

        def setup() -> None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(127)
            os.sched_setaffinity(0, mine)

        return setup

    def close(self) -> None:
        """Nothing is shared."""

    def settle(self, folder: Folder) -> None:
        """All files are the caller's already."""
