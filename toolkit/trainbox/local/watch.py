"""Sees the hosts of one job to their end: output, ends, signals and deadlines in one loop."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainbox.causes import signal_name
from trainbox.errors import PlatformError
from trainbox.local.backend import End, Host
from trainbox.local.screen import Screen
from trainbox.process import STOPPING, Signals

OTHERS_SECONDS = 15.0
"""How long the other hosts may take to end by themselves after one has failed."""

MARGIN_SECONDS = 5.0
"""What `train` gets above the grace period of its script, to say how it ended."""

DRAIN_SECONDS = 2.0
"""How long the output of a host that has ended may still come in."""

ASK_SECONDS = 0.1
"""How often a host is asked whether it has ended, once its output has."""

KILLED_SECONDS = 30.0
"""How long a killed host may take to be gone."""

TIMED_OUT = 124
"""Exit code after `--timeout`, that of timeout(1)."""


_STOPPED = (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


class Result(NamedTuple):
    """How the hosts ended, in the order in which they did.

    stopped_by: the signal that asked the job to stop, or 0. timed_out: `--timeout` was over.
    """

    ends: tuple[tuple[str, End], ...]
    stopped_by: int = 0
    timed_out: bool = False

    @property
    def first(self) -> tuple[str, End] | None:
        """The host that failed first."""
        return next(((host, end) for host, end in self.ends if end.exit_code), None)

    @property
    def _own(self) -> int:
        """An exit code that none of our signals explains."""
        return next((end.exit_code for _, end in self.ends if end.exit_code not in _STOPPED), 0)

    @property
    def was_stopped(self) -> bool:
        """Whether the job ended because it was told to, and for no reason of its own."""
        return bool(self.stopped_by or self.timed_out) and not self._own

    @property
    def exit_code(self) -> int:
        """The first failing host's. A job that was stopped or timed out is no success, whatever it says."""
        if self.stopped_by or self.timed_out:
            return self._own or (128 + self.stopped_by if self.stopped_by else TIMED_OUT)
        return self.first[1].exit_code if self.first else 0


class Watch:
    """The loop. grace: seconds between SIGTERM and SIGKILL. timeout: seconds, 0 for none."""

    def __init__(
        self,
        hosts: Sequence[Host],
        screen: Screen,
        signals: Signals,
        say: Callable[[str], None],
        *,
        grace: float,
        timeout: float = 0,
    ) -> None:
        now = time.monotonic()
        self._running: dict[str, Host] = {host.name: host for host in hosts}
        self._screen = screen
        self._signals = signals
        self._say = say
        self._grace = grace
        self._timeout_at = now + timeout if timeout else None
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._ends: list[tuple[float, str, End]] = []
        self._known: dict[str, tuple[float, End]] = {}
        self._quiet_since: dict[str, float] = {}
        self._stopped_by = 0
        self._timed_out = False

    def run(self) -> Result:
        """Returns when all hosts have ended. Raises PlatformError when one does not even when killed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals.fd, selectors.EVENT_READ)
            for host in self._running.values():
                for fd in host.fds:
                    selector.register(fd, selectors.EVENT_READ, host)
            while self._running:
                for key, _ in selector.select(self._patience(selector)):
                    if key.data is not None:
                        self._read(selector, key.data, key.fd)
                now = time.monotonic()
                self._screen.flush(now)
                self._heed_signals(now)
                self._settle(selector, now)
                self._heed_deadlines(now)
        self._ends.sort(key=lambda entry: entry[0])
        ends = tuple((name, end) for _, name, end in self._ends)
        return Result(ends, self._stopped_by, self._timed_out)

    def _open(self, selector: selectors.BaseSelector, host: Host) -> list[int]:
        mapping = selector.get_map()
        return [fd for fd in host.fds if fd in mapping]

    def _patience(self, selector: selectors.BaseSelector) -> float | None:
        now = time.monotonic()
        deadlines = (self._timeout_at, self._term_at, self._kill_at, self._give_up_at)
        times = [at for at in deadlines if at is not None]
        times += [self._quiet_since[name] + DRAIN_SECONDS for name in self._known]
        if any(not self._open(selector, host) for host in self._running.values()):
            times.append(now + ASK_SECONDS)
        flush = self._screen.wait(now)
        if flush is not None:
            times.append(now + flush)
        return max(0.0, min(times) - now) if times else None

    def _read(self, selector: selectors.BaseSelector, host: Host, fd: int) -> None:
        output = host.read(fd)
        now = time.monotonic()
        if output is None:
            selector.unregister(fd)
            self._ask(host, now)
            return
        self._quiet_since[host.name] = now
        for stream, data in output:
            self._screen.feed(host.name, stream, data, now)

    def _ask(self, host: Host, now: float) -> None:
        if host.name not in self._known:
            end = host.ended()
            if end is not None:
                self._known[host.name] = (now, end)
                self._quiet_since[host.name] = now

    def _settle(self, selector: selectors.BaseSelector, now: float) -> None:
        """Takes out the hosts that have ended and whose output has."""
        for name, host in list(self._running.items()):
            still_open = self._open(selector, host)
            if not still_open:
                self._ask(host, now)
            if name not in self._known:
                continue
            if still_open and now - self._quiet_since[name] < DRAIN_SECONDS:
                continue
            at, end = self._known[name]
            for fd in still_open:
                selector.unregister(fd)
            del self._running[name], self._known[name]
            self._screen.flush(now, all_of=name)
            self._ends.append((at, name, end))
            if end.exit_code and self._running and self._term_at is None and self._kill_at is None:
                self._term_at = now + OTHERS_SECONDS
                others = ", ".join(self._running)
                self._say(
                    f"{name} ended with exit code {end.exit_code}: "
                    f"{others} may take {OTHERS_SECONDS:.0f} s to end"
                )

    def _heed_signals(self, now: float) -> None:
        for number in self._signals.take():
            if number not in STOPPING:
                self._send(number)
            elif not self._stopped_by:
                self._stopped_by = number
                self._say(f"{signal_name(number)}: hosts have {self._grace:g} s to end; once more kills them")
                if self._kill_at is None:
                    self._term_at = now
            else:
                self._term_at, self._kill_at = None, now

    def _heed_deadlines(self, now: float) -> None:
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at = None
            if self._running and self._kill_at is None:
                self._timed_out, self._term_at = True, now
                self._say(f"--timeout is over: hosts have {self._grace:g} s to end")
        if self._term_at is not None and now >= self._term_at:
            self._term_at, self._kill_at = None, now + self._grace + MARGIN_SECONDS
            self._send(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._give_up_at = now + KILLED_SECONDS
            if self._running:
                self._say(f"killing {', '.join(self._running)}")
            self._send(signal.SIGKILL)
        if self._give_up_at is not None and now >= self._give_up_at and self._running:
            names = ", ".join(self._running)
            raise PlatformError(f"{names} did not end within {KILLED_SECONDS:.0f} s of SIGKILL")

    def _send(self, number: int) -> None:
        for name, host in self._running.items():
            if name not in self._known:
                host.signal(number)
