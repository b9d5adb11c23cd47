"""Starting, signalling and reaping processes without `subprocess`: one owner of all waiting, a fast start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from trainbox.errors import UserError

FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals after which the job is being stopped; the others are only passed on."""


class Stopped(Exception):
    """A signal stopped the job before its script was started."""


class Signals:
    """Records signals in the handler, for the loop to act on. `fd` is readable when there are some."""

    def __init__(self) -> None:
        self.fd, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}
        self._seen: list[int] = []
        self.stopped_by = 0

    def __enter__(self) -> Signals:
        for number in (*FORWARDED, signal.SIGCHLD):
            self._before[number] = signal.signal(number, lambda number, frame: self._seen.append(number))
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.fd)
        os.close(self._wake)

    def check(self) -> None:
        """Raises Stopped when a signal has asked for the end."""
        self.take()
        if self.stopped_by:
            raise Stopped

    def take(self) -> list[int]:
        """Signals since the last call, in order, without SIGCHLD; remembers the first that stops the job."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        seen, self._seen = [number for number in self._seen if number != signal.SIGCHLD], []
        if not self.stopped_by:
            self.stopped_by = next((number for number in seen if number in STOPPING), 0)
        return seen


def adopt_orphans() -> None:
    """Makes orphaned descendants our children, as they are for process 1 anyway, so that none is missed."""
    if os.getpid() == 1:
        return
    import ctypes  # only where we are not process 1

    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def spawn(argv: tuple[str, ...], environ: Mapping[str, str], cwd: str, stdout: int, stderr: int) -> int:
    """Starts a program in a session of its own and returns its process id.

    Raises UserError when it cannot be started.
    """
    # Not fork: a copy of this interpreter's pages would cost as much as all that is done in the child.
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    program = _find(argv[0], environ.get("PATH", os.defpath))
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    what = f"enter {cwd}"
    try:
        os.chdir(cwd)
        what = f"run {argv[0]}"
        return os.posix_spawn(
            program, argv, environ, file_actions=actions, setsid=True, setsigmask=(),
            setsigdef=(*FORWARDED, signal.SIGCHLD, signal.SIGPIPE),
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"cannot {what}: {os.strerror(error.errno or 0)}") from None
    finally:
        os.fchdir(before)
        os.close(before)


def _find(program: str, path: str) -> str:
    """Where a program lies that is named without a folder; its bare name when it lies nowhere."""
    if "/" in program:
        return program
    places = (os.path.join(folder, program) for folder in path.split(":") if folder)
    return next((place for place in places if os.access(place, os.X_OK) and os.path.isfile(place)), program)


def signal_group(pid: int, number: int) -> None:
    """Sends a signal to a process's whole group; one that has gone is no error."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_one(pid: int, number: int) -> None:
    """Sends a signal to one process; one that has gone is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def reap() -> list[tuple[int, int]]:
    """Ends of all children that have ended, as (pid, exit code or minus signal)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def childless() -> bool:
    """Whether nothing of what was started is left: orphans become our children, so all are counted."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def descendants(read: Callable[[], list[str]] = lambda: os.listdir("/proc")) -> dict[int, str]:
    """Process ids and names of all our living descendants, zombies left out."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in read():
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                line = file.read()
        except OSError:
            continue
        name = line[line.index(b"(") + 1 : line.rindex(b")")].decode(errors="replace")
        state, above = line[line.rindex(b")") + 2 :].split()[:2]
        if state not in (b"Z", b"X"):
            parents[int(entry)] = (int(above), name)
    mine = {os.getpid()}
    found: dict[int, str] = {}
    grew = True
    while grew:
        grew = False
        for pid, (parent, name) in parents.items():
            if parent in mine and pid not in mine:
                mine.add(pid)
                found[pid] = name
                grew = True
    return found
