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
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    # Blocked, so that a signal in between is not recorded by the copy of our handlers in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGCHLD))
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, environ, cwd, stdout, stderr, error_write)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(error_write)
    with open(error_read, "rb") as report:
        number = report.read()
    if number:
        os.waitpid(pid, 0)
        where, _, code = number.partition(b" ")
        what = cwd if where == b"cwd" else argv[0]
        raise UserError(f"cannot run {argv[0]}: {what}: {os.strerror(int(code))}")
    return pid


def _become(
    argv: tuple[str, ...], environ: Mapping[str, str], cwd: str, stdout: int, stderr: int, report: int
) -> None:
    where = b"exec"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, fd in ((0, null), (1, stdout), (2, stderr)):
            os.dup2(fd, target)
        where = b"cwd"
        os.chdir(cwd)
        where = b"exec"
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        os.write(report, where + b" %d" % (error.errno or 0))
    finally:
        os._exit(127)


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
