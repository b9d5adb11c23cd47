"""What the caller sees: the hosts' output as it is, and a few lines of the runner's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

FLUSH_SECONDS = 0.5
"""How long the beginning of a line waits for its end, when several hosts share the screen."""

_MOST = 1 << 16
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Announcer:
    """The runner's own lines on standard error: coloured on a terminal that `rich` can write to, else plain.

    Phases are told on a terminal only, where a person is waiting.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._terminal = os.isatty(fd)

    def phase(self, text: str) -> None:
        """What is going on now."""
        if self._terminal:
            self._write(text, "cyan")

    def say(self, text: str) -> None:
        """Something worth a line in a log file too."""
        self._write(text, "bold")

    def warn(self, text: str) -> None:
        """Something that the caller should look at."""
        self._write(f"warning: {text}", "yellow")

    def fail(self, text: str) -> None:
        """What went wrong."""
        self._write(text, "red")

    def _write(self, text: str, style: str) -> None:
        if self._terminal and "NO_COLOR" not in os.environ:
            try:
                from rich.console import Console  # only on a terminal
                from rich.text import Text
            except ImportError:
                pass
            else:
                line = Text.assemble(("trainbox: ", "bold"), (text, style))
                Console(stderr=True, soft_wrap=True).print(line)
                return
        try:
            os.write(self._fd, f"trainbox: {text}\n".encode(errors="replace"))
        except OSError:
            pass  # nobody is listening any more; the exit code still tells


class _Shown:
    """A stream of ours or a log file. When one is gone or full, the job goes on, and the others show it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.gone = False

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                import select  # a stream that our parent made non-blocking

                select.select([], [self._fd], [], 1.0)
            except OSError:
                self.gone = True

    def close(self) -> None:
        os.close(self._fd)


class Screen:
    """Takes the hosts' bytes to our standard output and error, and into a log file a host.

    With several hosts, whole lines at a time, so that hosts do not break into each other's lines.
    """

    def __init__(self, logs: Mapping[str, str], *, out: int = 1, err: int = 2) -> None:
        """logs: the file of each host."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._whole_lines = len(logs) > 1
        self._shown = {1: _Shown(out), 2: _Shown(err)}
        self._waiting: dict[tuple[str, int], tuple[bytes, float]] = {}
        self._paths = logs
        self._logs = {host: _Shown(os.open(path, _NEW, 0o644)) for host, path in logs.items()}

    @property
    def gone(self) -> bool:
        """Whether nobody reads our standard output any more."""
        return self._shown[1].gone

    @property
    def unlogged(self) -> bool:
        """Whether a log file could not be written to its end."""
        return any(log.gone for log in self._logs.values())

    def feed(self, host: str, stream: int, data: bytes, now: float) -> None:
        """Bytes of a host. stream: 1 or 2. now: seconds on the monotonic clock."""
        self._logs[host].write(data)
        if not self._whole_lines:
            self._shown[stream].write(data)
            return
        before, since = self._waiting.pop((host, stream), (b"", now))
        data = before + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _MOST:
            end = len(data)
        if end:
            self._shown[stream].write(data[:end])
            since = now
        if data[end:]:
            self._waiting[host, stream] = (data[end:], since)

    def flush(self, now: float, *, all_of: str = "") -> None:
        """Shows beginnings of lines that have waited long enough, and everything of host `all_of`."""
        for (host, stream), (data, since) in list(self._waiting.items()):
            if host == all_of or now - since >= FLUSH_SECONDS:
                del self._waiting[host, stream]
                self._shown[stream].write(data)

    def wait(self, now: float) -> float | None:
        """Seconds until `flush` has something to do, or None."""
        times = [since + FLUSH_SECONDS - now for _, since in self._waiting.values()]
        return max(0.0, min(times)) if times else None

    def close(self, *, discard: bool = False) -> None:
        """Ends the log files. discard: no host was started, there is nothing in them."""
        for host, log in self._logs.items():
            log.close()
            if discard:
                os.unlink(self._paths[host])
