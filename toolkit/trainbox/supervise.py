"""Runs the processes of a plan on this host: one selector for output, signals, ends and deadlines."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping

from trainbox import causes, process
from trainbox.log import Log
from trainbox.output import FLUSH_SECONDS, Sink, Stream
from trainbox.plan import Failure, Outcome, Process
from trainbox.settings import RANK_SOCKET
from trainbox.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainbox.ranks import RankServer

LEFTOVER_SECONDS = 5.0
"""How long processes that the script left behind have between SIGTERM and SIGKILL."""

DRAIN_SECONDS = 110.0
"""How long a slow reader of our output may take for the last of it."""


class Display(NamedTuple):
    """How output is shown. prefix: host and rank before each line. ranks: those shown, empty for all."""

    prefix: bool
    lines: bool = False
    ranks: tuple[range, ...] = ()

    def stream(self, fd: int, sink: Sink, host: str, rank: int | None, role: str) -> Stream:
        label = f"[{host} {role if rank is None else rank}] ".encode() if self.prefix else b""
        shown = rank is None or not self.ranks or any(rank in span for span in self.ranks)
        return Stream(fd, sink, label, lines=self.lines, shown=shown)


class Worker:
    """A started process, or a rank that a launcher started, with its output."""

    def __init__(self, role: str, rank: int | None, pid: int, out: Stream, err: Stream) -> None:
        self.role = role
        self.rank = rank
        self.pid = pid
        self.out = out
        self.err = err
        self.code: int | None = None
        self.ended_at = 0.0

    def end(self, code: int) -> None:
        """code: exit code, or minus the signal."""
        self.code, self.ended_at = code, time.time()

    def failure(self, host: str) -> Failure:
        code = self.code or 0
        number = max(-code, 0)
        message, raised = causes.from_output(self.err.tail, self.out.tail, code, number)
        return Failure(
            host, self.rank, 128 + number if number else code, number, message, self.ended_at, raised
        )


class Supervisor:
    """Starts processes and sees them to their end.

    grace: seconds between the first SIGTERM and SIGKILL. limit: seconds that all of it may take, 0 for ever.
    Signals that come in are passed on; the first essential process that fails ends the others.
    """

    def __init__(
        self,
        host: str,
        processes: tuple[Process, ...],
        environ: Mapping[str, str],
        signals: process.Signals,
        display: Display,
        *,
        grace: float,
        limit: float = 0,
        log: Log,
    ) -> None:
        self.host = host
        self.plan = processes
        self.environ = environ
        self.signals = signals
        self.display = display
        self.grace = grace
        self.log = log
        self.sinks = (Sink(1), Sink(2))
        log.sink = self.sinks[1]
        self.selector = selectors.DefaultSelector()
        self.selector.register(signals.fd, selectors.EVENT_READ, None)
        self.workers: dict[int, tuple[Process, Worker]] = {}
        self.streams: set[Stream] = set()
        self.paused: set[Stream] = set()
        self.waiting: set[Sink] = set()
        self.ranks: RankServer | None = None
        self.failed: Worker | None = None
        self.overdue = ""
        self.kill_at = 0.0
        self.limit_at = time.monotonic() + limit if limit else 0.0
        self.limit = limit

    # -- the story -----------------------------------------------------------------------------------------

    def last_output(self) -> bytes:
        """The last bytes that the processes printed, errors at the end."""
        workers = [worker for _, worker in self.workers.values()]
        return b"".join(worker.out.tail + worker.err.tail for worker in workers)

    def run(self) -> Outcome:
        """Runs everything and returns how it ended. Raises UserError when a program cannot be started."""
        process.adopt_orphans()
        try:
            for item in self.plan:
                self._start(item)
            if self.signals.stopped_by:
                self._end_all(self.signals.stopped_by)
            while self._alive():
                self._turn(self._next_deadline())
        finally:
            self._end_leftovers()
            self._drain()
            self._close()
        return self._outcome()

    def _start(self, item: Process) -> None:
        environ = {**self.environ, **{variable.name: variable.value for variable in item.env}}
        if item.launches:
            from trainbox.ranks import RankServer  # sockets, only for launchers that start ranks

            self.ranks = self.ranks or RankServer(self)
            environ[RANK_SOCKET] = self.ranks.name
        out, out_write = os.pipe2(os.O_CLOEXEC)
        err, err_write = os.pipe2(os.O_CLOEXEC)
        try:
            pid = process.spawn(item.argv, environ, item.cwd, out_write, err_write)
        except BaseException:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        rank = item.ranks[0] if item.ranks and not item.launches else None
        self.workers[pid] = (item, self.attach(item.role, rank, pid, out, err))

    def attach(self, role: str, rank: int | None, pid: int, out: int, err: int) -> Worker:
        """Begins to read the output of a process."""
        streams = [
            self.display.stream(fd, sink, self.host, rank, role)
            for fd, sink in zip((out, err), self.sinks, strict=True)
        ]
        for stream in streams:
            self.streams.add(stream)
            self.selector.register(stream.fd, selectors.EVENT_READ, stream)
        return Worker(role, rank, pid, *streams)

    def _alive(self) -> list[tuple[Process, Worker]]:
        return [pair for pair in self.workers.values() if pair[1].code is None]

    # -- one turn of the loop ------------------------------------------------------------------------------

    def _next_deadline(self) -> float:
        return min((at for at in (self.kill_at, self.limit_at) if at), default=0.0)

    def _turn(self, deadline: float) -> None:
        now = time.monotonic()
        held = [stream.held_since for stream in self.streams if stream.held_since]
        wake = [at for at in (deadline, min(held, default=0.0) + FLUSH_SECONDS if held else 0.0) if at]
        events = self.selector.select(max(0.0, min(wake) - now) if wake else None)
        now = time.monotonic()
        self._dispatch(events, now)
        if any(key.data is None for key, _ in events):
            for number in self.signals.take():
                self._pass_on(number)
            for pid, code in process.reap():
                self._ended(pid, code)
        if self.limit_at and now >= self.limit_at:
            self.limit_at, self.overdue = 0.0, f"took longer than {self.limit:g} s"
            self._end_all(signal.SIGTERM)
        if self.kill_at and now >= self.kill_at:
            self.kill_at = 0.0
            self._kill_all()

    def _dispatch(self, events: list[tuple[selectors.SelectorKey, int]], now: float) -> int:
        """Handles what is ready; returns how many streams and reports of ranks there were."""
        heard = 0
        for key, _ in events:
            if isinstance(key.data, Stream):
                self._pump(key.data, now)
                heard += 1
            elif isinstance(key.data, Sink):
                key.data.drain()
            elif key.data is not None:
                key.data()
                heard += 1
        for stream in self.streams:
            if stream.held_since and now - stream.held_since >= FLUSH_SECONDS:
                stream.flush()
        self._balance()
        return heard

    def _pump(self, stream: Stream, now: float) -> None:
        if not stream.pump(now):
            self.selector.unregister(stream.fd)
            self.streams.discard(stream)
            stream.close()

    def _balance(self) -> None:
        """Lets the script wait while nobody reads our output, and watches for room in it."""
        for sink in self.sinks:
            if sink.pending and sink not in self.waiting:
                self.selector.register(sink.poll_fd, selectors.EVENT_WRITE, sink)
                self.waiting.add(sink)
            elif sink in self.waiting and not sink.pending:
                self.selector.unregister(sink.poll_fd)
                self.waiting.discard(sink)
        if not self.waiting and not self.paused:
            return
        for stream in self.streams:
            if stream.sink.full and stream not in self.paused:
                self.selector.unregister(stream.fd)
                self.paused.add(stream)
            elif stream in self.paused and not stream.sink.full:
                self.selector.register(stream.fd, selectors.EVENT_READ, stream)
                self.paused.discard(stream)

    # -- signals and ends ----------------------------------------------------------------------------------

    def _pass_on(self, number: int) -> None:
        if number in process.STOPPING:
            self.log(f"{causes.signal_name(number)} received: passed on, {self.grace:g} s to end")
            self._end_all(number)
            return
        for item, worker in self._alive():
            if item.launches and self.ranks:
                self.ranks.signal(number)
            else:
                process.signal_group(worker.pid, number)

    def _end_all(self, number: int) -> None:
        """Asks all processes to end. A launcher passes the signal on to its ranks itself."""
        self.hush_launchers()
        for item, worker in self._alive():
            (process.signal_one if item.launches else process.signal_group)(worker.pid, number)
        self.kill_at = self.kill_at or time.monotonic() + self.grace

    def hush_launchers(self) -> None:
        """From the first failure or stop on, a launcher repeats at length what we say in a line."""
        for item, worker in self.workers.values():
            if item.launches:
                for stream in (worker.out, worker.err):
                    stream.flush()
                    stream.shown = False

    def _kill_all(self) -> None:
        self.overdue = self.overdue or f"did not end within {self.grace:g} s"
        self.log(f"{self.overdue}: killed")
        for pid in process.descendants():
            process.signal_one(pid, signal.SIGKILL)

    def _ended(self, pid: int, code: int) -> None:
        if pid not in self.workers:
            return  # an orphan that we adopted
        item, worker = self.workers[pid]
        worker.end(code)
        if code and item.essential and not self.failed:
            self.failed = worker
            self._end_all(signal.SIGTERM)
        elif not any(other.essential for other, _ in self._alive()):
            self._end_all(signal.SIGTERM)

    # -- the end -------------------------------------------------------------------------------------------

    def _end_leftovers(self) -> None:
        """Ends what the script left running: in other sessions, daemons, children of killed ranks."""
        left = {} if process.childless() else process.descendants()
        if not left:
            return
        names = ", ".join(f"{name} ({pid})" for pid, name in sorted(left.items())[:5])
        self.log(f"ending {len(left)} processes that were left behind: {names}")
        for number, seconds in (
            (signal.SIGTERM, min(self.grace, LEFTOVER_SECONDS)),
            (signal.SIGKILL, 5.0),
        ):
            deadline = time.monotonic() + seconds
            for pid in process.descendants():
                process.signal_one(pid, number)
            while process.descendants() and time.monotonic() < deadline:
                self._turn(min(deadline, time.monotonic() + 0.1))
        process.reap()

    def _drain(self) -> None:
        """Passes on what is still in the pipes; every writer has ended."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            now = time.monotonic()
            if self._dispatch(self.selector.select(0), now):
                continue
            for stream in self.streams - self.paused:
                stream.flush()
            if not self.paused and not any(sink.pending for sink in self.sinks):
                return
            self._turn(min(deadline, now + 0.5))
        self.log("nobody read our output any more: the last of it is lost")

    def _close(self) -> None:
        if self.ranks:
            self.ranks.close()
        for stream in self.streams:
            os.close(stream.fd)
        self.selector.close()
        self.log.sink, self.log.line_open = None, self.sinks[1].line_open
        for sink in self.sinks:
            sink.close()

    def _repeat_launchers(self) -> None:
        """Shows the last of what a launcher said that failed before any rank did."""
        for item, worker in self.workers.values():
            if item.launches and worker.code and not worker.err.shown:
                self.log(worker.err.tail.decode("utf-8", "replace"))

    def _outcome(self) -> Outcome:
        started = [(item, worker) for item, worker in self.workers.values() if item.essential]
        ranks = [worker for item, worker in started if not item.launches]
        if self.ranks:
            ranks += self.ranks.last_generation()
        bad = sorted((worker for worker in ranks if worker.code), key=lambda worker: worker.ended_at)
        stopped = self.signals.stopped_by
        succeeded = all(worker.code == 0 for _, worker in started)
        if succeeded or (stopped and ranks and all(worker.code == 0 for worker in ranks)):
            return Outcome(0, stopped_by=stopped)
        failed = bad or [worker for _, worker in started if worker.code]
        if not bad:
            self._repeat_launchers()
        failures = [worker.failure(self.host) for worker in failed]
        if self.overdue:
            failures[0] = failures[0]._replace(message=self.overdue)
        return Outcome(failures[0].exit_code, failures[0], tuple(failures[1:]), stopped)
