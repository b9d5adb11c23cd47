"""Output of the script: bytes passed on live and unaltered, a prefix a line if asked for, a bounded tail."""

from __future__ import annotations

import os
import re
import select
import stat

CHUNK = 1 << 16
TAIL = 1 << 16
BACKLOG = 1 << 18
"""Bytes waiting for a slow reader of our own output, from which on the script has to wait."""

FLUSH_SECONDS = 0.5
"""How long the beginning of a line is held back for the rest of it."""

_PIPE_BUF = 4096
_LINE_START = rb"(?s)(\r\n|\n|\r(?!\n))(?=.)"


class Sink:
    """One of our own two streams, written without ever blocking the loop.

    A regular file takes everything at once. For the rest no more is written than a poll says there is room
    for: the description may be shared with other programs, so it must not be made non-blocking.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = bytearray()
        self.broken = False
        self.owner: object = None
        self.line_open = False
        try:
            mode = os.fstat(fd).st_mode
            self.waits = not stat.S_ISREG(mode)
            own = stat.S_ISFIFO(mode)
        except OSError:
            self.waits, own, self.broken = False, False, True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._own = _reopen(fd) if own else -1

    def write(self, data: bytes | bytearray) -> None:
        """Takes all of `data`; what does not go out at once waits for `drain`."""
        if self.broken:
            return
        if self.pending:
            self.pending += data
            self.drain()
        else:
            done = self._send(data)
            if done < len(data):
                self.pending += memoryview(data)[done:]

    def drain(self) -> None:
        """Writes what is waiting, as far as there is room."""
        if self.pending and not self.broken:
            done = self._send(self.pending)
            del self.pending[:done]

    def _send(self, data: bytes | bytearray) -> int:
        view = memoryview(data)
        done = 0
        try:
            while done < len(view):
                if self._own >= 0:
                    done += os.write(self._own, view[done : done + CHUNK])
                elif not self.waits:
                    done += os.write(self.fd, view[done:])
                elif self._poll.poll(0):
                    done += os.write(self.fd, view[done : done + _PIPE_BUF])
                else:
                    break
        except BlockingIOError:
            pass
        except OSError:
            # Nobody reads us any more (EPIPE), or the disk is full: the job goes on without its log.
            self.broken = True
            return len(view)
        finally:
            view.release()
        return done

    @property
    def poll_fd(self) -> int:
        """The descriptor to watch for room."""
        return self._own if self._own >= 0 else self.fd

    @property
    def full(self) -> bool:
        return len(self.pending) >= BACKLOG

    def line(self, owner: object, data: bytes, complete: bool) -> None:
        """Writes whole lines, or the beginning of one; ends a line of another owner that is still open."""
        if self.line_open and self.owner is not owner:
            data = b"\n" + data
        self.owner, self.line_open = owner, not complete
        self.write(data)

    def close(self) -> None:
        if self._own >= 0:
            os.close(self._own)
            self._own = -1


def _reopen(fd: int) -> int:
    """A description of our own of a pipe, which may be non-blocking; -1 where that is not allowed."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1


class Stream:
    """One stream of one process of the job: a pipe, where it goes, and its last bytes.

    prefix: put before each line. lines: whole lines are passed on, so that those of several processes do not
    mix; a prefix implies it. Else bytes pass through as they come. shown: whether it goes to the sink at all.
    """

    def __init__(
        self, fd: int, sink: Sink, prefix: bytes = b"", *, lines: bool = False, shown: bool = True
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.sink = sink
        self.prefix = prefix
        self.lines = lines or bool(prefix)
        self.shown = shown
        self._tail = bytearray()
        self._part = bytearray()
        self.held_since = 0.0

    @property
    def tail(self) -> bytes:
        """The last bytes that were read, at most TAIL of them."""
        return bytes(self._tail[-TAIL:])

    def pump(self, now: float) -> bool:
        """Passes on what is there; false at the end of the stream."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.flush()
            return False
        self._keep(data)
        if not self.shown:
            return True
        if self.lines:
            self._lines(data, now)
        else:
            self.sink.line(self, data, complete=data.endswith(b"\n"))
        return True

    def _keep(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def _lines(self, data: bytes, now: float) -> None:
        part = self._part
        part += data
        # A carriage return at the very end may be the first half of a line end.
        end = len(part) - 1 if part.endswith(b"\r") else len(part)
        cut = max(part.rfind(b"\n", 0, end), part.rfind(b"\r", 0, end)) + 1
        if cut:
            whole = bytes(part[:cut])
            del part[:cut]
            if b"\r" in whole:
                whole = re.sub(_LINE_START, rb"\1" + self.prefix.replace(b"\\", rb"\\"), whole)
            else:
                whole = whole[:-1].replace(b"\n", b"\n" + self.prefix) + b"\n"
            self.sink.line(self, self._lead() + whole, complete=True)
            self.held_since = now
        if len(part) >= CHUNK:
            self.flush()
        elif part and not self.held_since:
            self.held_since = now
        if not part:
            self.held_since = 0.0

    def _lead(self) -> bytes:
        """The prefix, unless our own open line is being continued."""
        return b"" if self.sink.line_open and self.sink.owner is self else self.prefix

    def flush(self) -> None:
        """Passes on the beginning of a line that is held back."""
        if self._part:
            part = bytes(self._part)
            self._part.clear()
            self.sink.line(self, self._lead() + part, complete=part.endswith((b"\n", b"\r")))
        self.held_since = 0.0

    def close(self) -> None:
        self.flush()
        os.close(self.fd)
