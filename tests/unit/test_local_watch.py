"""The loop that sees hosts to their end, with hosts made of pipes and a clock that jumps."""

from __future__ import annotations

import os
import selectors
import signal

import pytest

from trainbox.errors import PlatformError
from trainbox.local import watch as module
from trainbox.local.backend import End
from trainbox.local.screen import Screen
from trainbox.local.watch import Result, Watch


class Clock:
    """Time goes on only while the loop waits for nothing."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class FakeHost:
    """Its life is a list of steps, one a time it is looked at; `on` maps signals to exit codes."""

    def __init__(self, name, clock, *, output=b"", code=None, ends_at=0.0, on=None):
        self.name = name
        self.clock = clock
        self.code, self.ends_at, self.on = code, clock.now + ends_at, on or {}
        self.signals = []
        self._read_end, self._write_end = os.pipe()
        self.fds = (self._read_end,)
        os.write(self._write_end, output)
        self.closed_at = None

    def tick(self):
        if self.code is not None and self.clock.now >= self.ends_at and self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    def next(self):
        return self.ends_at if self.code is not None and self._write_end is not None else None

    def read(self, fd):
        data = os.read(fd, 1 << 16)
        return [(1, data)] if data else None

    def ended(self):
        return End(self.code) if self.code is not None and self._write_end is None else None

    def signal(self, number):
        self.signals.append((int(number), self.clock.now))
        deadly = number in self.on or (number == signal.SIGKILL and "deaf" not in self.on)
        if deadly and self._write_end is not None:
            self.code, self.ends_at = self.on.get(number, 137), self.clock.now

    def close(self):
        if self._write_end is not None:
            os.close(self._write_end)
        os.close(self._read_end)


class FakeSignals:
    def __init__(self, clock, *arrivals):
        self.fd, self._write_end = os.pipe()
        self.clock = clock
        self.arrivals = [(clock.now + after, number) for after, number in arrivals]

    def next(self):
        return self.arrivals[0][0] if self.arrivals else None

    def take(self):
        due = [number for at, number in self.arrivals if at <= self.clock.now]
        self.arrivals = [entry for entry in self.arrivals if entry[0] > self.clock.now]
        return due

    def close(self):
        os.close(self.fd)
        os.close(self._write_end)


@pytest.fixture
def run(monkeypatch, tmp_path):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    opened = []

    def go(hosts, arrivals=(), **more):
        signals = FakeSignals(clock, *arrivals)
        made = [FakeHost(name, clock, **life) for name, life in hosts.items()]
        opened.extend([signals, *made])
        out, err = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err"))
        screen = Screen({name: str(tmp_path / f"{name}.log") for name in hosts}, out=out, err=err)

        class Selector(selectors.SelectSelector):
            def select(self, timeout=None):
                for host in made:
                    host.tick()
                ready = super().select(0)
                if not ready:
                    coming = [
                        at for at in (*(host.next() for host in made), signals.next()) if at is not None
                    ]
                    if timeout is not None:
                        coming.append(clock.now + timeout)
                    assert coming, "the loop would wait for ever"
                    clock.now = max(clock.now + 0.001, min(coming))
                return ready

        monkeypatch.setattr(module.selectors, "DefaultSelector", Selector)
        said = []
        watch = Watch(made, screen, signals, said.append, **{"grace": 30, **more})
        began = clock.now
        try:
            result = watch.run()
        finally:
            screen.close()
            os.close(out)
            os.close(err)
        return result, clock.now - began, {host.name: host for host in made}, said

    yield go
    for entry in opened:
        entry.close()


def test_a_job_ends_when_all_hosts_have(run, tmp_path):
    result, seconds, _, _ = run(
        {"a": {"code": 0, "ends_at": 1}, "b": {"code": 0, "ends_at": 500, "output": b"x\n"}}
    )
    assert result.exit_code == 0
    assert seconds >= 500
    assert (tmp_path / "out").read_bytes() == b"x\n"


def test_the_code_is_that_of_the_first_host_that_failed(run):
    result, _, hosts, _ = run(
        {"a": {"code": 0, "ends_at": 1}, "b": {"code": 5, "ends_at": 9}, "c": {"code": 4, "ends_at": 3}}
    )
    assert result.exit_code == 4
    assert result.first == ("c", End(4))
    assert not hosts["b"].signals


def test_other_hosts_get_time_then_sigterm_then_sigkill(run):
    result, _, hosts, said = run({"a": {"code": 3, "ends_at": 1}, "b": {}})
    term, kill = hosts["b"].signals
    assert term[0] == signal.SIGTERM
    assert kill[0] == signal.SIGKILL
    assert term[1] == pytest.approx(1001 + module.OTHERS_SECONDS, abs=0.1)
    assert kill[1] - term[1] == pytest.approx(30 + module.MARGIN_SECONDS, abs=0.1)
    assert result.exit_code == 3
    assert "a ended with exit code 3" in said[0]


@pytest.mark.parametrize(("code", "expected"), [(143, 130), (0, 130), (137, 130), (3, 3)])
def test_an_interrupted_job(run, code, expected):
    result, seconds, hosts, _ = run({"a": {"on": {signal.SIGTERM: code}}}, [(5, signal.SIGINT)])
    assert [number for number, _ in hosts["a"].signals] == [signal.SIGTERM]
    assert result.exit_code == expected
    assert result.was_stopped is (expected == 130)
    assert seconds < 6


def test_a_second_signal_kills_at_once(run):
    result, seconds, hosts, _ = run({"a": {}}, [(5, signal.SIGINT), (6, signal.SIGINT)])
    assert [number for number, _ in hosts["a"].signals] == [signal.SIGTERM, signal.SIGKILL]
    assert seconds < 7
    assert result.exit_code == 130


def test_other_signals_are_passed_on(run):
    result, _, hosts, _ = run({"a": {"code": 0, "ends_at": 9}}, [(5, signal.SIGUSR1)])
    assert [number for number, _ in hosts["a"].signals] == [signal.SIGUSR1]
    assert result.exit_code == 0


@pytest.mark.parametrize(("code", "expected"), [(143, 124), (0, 124), (9, 9)])
def test_a_job_that_takes_too_long(run, code, expected):
    result, seconds, _, said = run({"a": {"on": {signal.SIGTERM: code}}}, timeout=60)
    assert result.exit_code == expected
    assert 60 <= seconds < 61
    assert "--timeout" in said[0]


def test_a_host_that_not_even_sigkill_ends(run):
    with pytest.raises(PlatformError, match="a did not end"):
        run({"a": {"on": {"deaf": 0}}}, [(1, signal.SIGTERM)])


def test_a_stop_after_the_end_of_all_is_none():
    assert Result((("a", End(0)),)).exit_code == 0


@pytest.fixture
def screen(tmp_path):
    opened = []

    def make(*hosts):
        out, err = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err"))
        made = Screen({host: str(tmp_path / f"{host}.log") for host in hosts}, out=out, err=err)
        opened.extend([out, err])
        return made

    yield make
    for fd in opened:
        os.close(fd)


def test_one_host_is_shown_raw(screen, tmp_path):
    shown = screen("a")
    shown.feed("a", 1, b"\xff\x00half", 0)
    shown.feed("a", 2, b"err", 0)
    assert (tmp_path / "out").read_bytes() == b"\xff\x00half"
    assert (tmp_path / "err").read_bytes() == b"err"
    shown.close()
    assert (tmp_path / "a.log").read_bytes() == b"\xff\x00halferr"


def test_hosts_do_not_break_into_each_others_lines(screen, tmp_path):
    shown = screen("a", "b")
    shown.feed("a", 1, b"one\ntw", 0)
    shown.feed("b", 1, b"ONE\nTWO\n", 0)
    shown.feed("a", 1, b"o\n50%\r", 0.1)
    assert (tmp_path / "out").read_bytes() == b"one\nONE\nTWO\ntwo\n50%\r"
    assert shown.wait(0.1) is None
    shown.close()


def test_half_a_line_does_not_wait_for_ever(screen, tmp_path):
    shown = screen("a", "b")
    shown.feed("a", 1, b"name? ", 10)
    assert shown.wait(10.2) == pytest.approx(0.3)
    shown.flush(10.4)
    assert (tmp_path / "out").read_bytes() == b""
    shown.flush(10.5)
    shown.feed("b", 1, b"rest", 10.6)
    shown.flush(10.6, all_of="b")
    assert (tmp_path / "out").read_bytes() == b"name? rest"
    shown.close()


def test_a_line_without_end_takes_little_memory(screen, tmp_path):
    shown = screen("a", "b")
    for _ in range(100):
        shown.feed("a", 1, b"x" * 10_000, 0)
        assert sum(len(data) for data, _ in shown._waiting.values()) <= 1 << 16
    shown.flush(0, all_of="a")
    assert (tmp_path / "out").stat().st_size == 1_000_000
    shown.close()


def test_a_reader_that_has_gone_does_not_end_the_job(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    shown = Screen({"a": str(tmp_path / "a.log")}, out=write_end, err=write_end)
    shown.feed("a", 1, b"x\n", 0)
    assert shown.gone
    shown.close()
    os.close(write_end)
    assert (tmp_path / "a.log").read_bytes() == b"x\n"
