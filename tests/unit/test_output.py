"""The byte pump: what comes out of a pipe goes to another, whole, in order, with or without a prefix."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbox import output
from trainbox.output import CHUNK, TAIL, Sink, Stream


class Bench:
    """A stream from a pipe into a file; `shown` is what the file holds."""

    def __init__(self, path, prefix=b"", *, lines=False, shown=True, sink=None):
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.sink = sink or Sink(self.file)
        read, self.feed_fd = os.pipe()
        self.stream = Stream(read, self.sink, prefix, lines=lines, shown=shown)

    def feed(self, *parts, now=1.0):
        for part in parts:
            os.write(self.feed_fd, part)
            self.stream.pump(now)

    def end(self):
        os.close(self.feed_fd)
        while self.stream.pump(2.0):
            pass
        self.stream.close()
        os.close(self.file)
        return self.path.read_bytes()


@pytest.fixture
def bench(tmp_path):
    return lambda prefix=b"", **more: Bench(tmp_path / f"{len(os.listdir(tmp_path))}", prefix, **more)


@pytest.mark.parametrize("prefix", [b"", b"[algo-1 0] "])
def test_known_failure_37_bytes_that_are_no_text(bench, prefix):
    data = bytes(range(0x80, 0x100)) + b"\n"
    made = bench(prefix)
    made.feed(data)
    assert made.end() == prefix + data


@pytest.mark.parametrize("prefix", [b"", b"> "])
def test_known_failure_37_a_character_in_two_writes(bench, prefix):
    euro = "€\n".encode()
    made = bench(prefix)
    made.feed(euro[:1], euro[1:])
    assert made.end() == prefix + euro


def test_known_failure_37_a_character_across_the_chunk(bench):
    line = b"x" * (CHUNK - 1) + "€\n".encode()
    made = bench(b"> ")
    os.set_blocking(made.feed_fd, False)
    made.feed(line[:40000], line[40000:])
    made.stream.pump(1.0)
    assert made.end() == b"> " + line


def test_a_prefix_a_line(bench):
    made = bench(b"> ")
    made.feed(b"one\ntw", b"o\n\nthree")
    assert made.end() == b"> one\n> two\n> \n> three"


def test_a_line_is_held_back_until_it_is_whole_or_late(bench):
    made = bench(b"> ")
    made.feed(b"slow", now=5.0)
    assert made.path.read_bytes() == b""
    assert made.stream.held_since == 5.0
    made.stream.flush()
    assert made.path.read_bytes() == b"> slow"
    made.feed(b" line\nnext\n")
    assert made.end() == b"> slow line\n> next\n"


def test_carriage_returns_get_a_prefix_and_pairs_stay_together(bench):
    made = bench(b"> ")
    made.feed(b"10%\r20%\r30%\r", b"\n", b"dos\r\nend\n")
    assert made.end() == b"> 10%\r> 20%\r> 30%\r\n> dos\r\n> end\n"


def test_a_backslash_in_a_prefix_is_just_that(bench):
    made = bench(rb"\1 ")
    made.feed(b"a\rb\n")
    assert made.end() == b"\\1 a\r\\1 b\n"


def test_lines_of_two_processes_do_not_mix(tmp_path):
    first = Bench(tmp_path / "shared", b"[0] ")
    second = Bench(tmp_path / "shared", b"[1] ", sink=first.sink)
    first.feed(b"begun")
    first.stream.flush()
    second.feed(b"whole\n")
    first.feed(b", ended\n")
    second.end()
    assert first.end() == b"[0] begun\n[1] whole\n[0] , ended\n"


def test_whole_lines_of_two_processes_without_a_prefix(tmp_path):
    first = Bench(tmp_path / "shared", lines=True)
    second = Bench(tmp_path / "shared", lines=True, sink=first.sink)
    first.feed(b"out of")
    second.feed(b"out of", b" 1\n")
    first.feed(b" 0\n")
    second.end()
    assert first.end() == b"out of 1\nout of 0\n"


def test_what_is_not_shown_is_kept_for_the_reason(bench):
    made = bench(shown=False)
    made.feed(b"secret cause\n")
    assert made.stream.tail == b"secret cause\n"
    assert made.end() == b""


def test_known_failure_04_the_tail_is_bounded(bench):
    made = bench()
    for _ in range(20):
        made.feed(b"y" * 50000)
    made.feed(b"last words\n")
    assert len(made.stream.tail) == TAIL
    assert made.stream.tail.endswith(b"last words\n")
    assert len(made.end()) == 20 * 50000 + 11


def test_known_failure_04_a_line_without_end_is_not_collected(bench):
    made = bench(b"> ")
    for _ in range(6):
        made.feed(b"z" * 30000)
    assert len(made.path.read_bytes()) > 100000
    assert made.end() == b"> " + b"z" * 180000


def test_a_slow_reader_makes_the_sink_full_and_loses_nothing():
    read, write = os.pipe()
    sink = Sink(write)
    data = os.urandom(output.BACKLOG + (1 << 18))
    sink.write(data)
    assert sink.full
    got = b""
    while len(got) < len(data):
        got += os.read(read, 1 << 16)
        sink.drain()
    assert got == data
    assert not sink.full
    sink.close()
    os.close(read)
    os.close(write)


def test_a_reader_that_has_gone_does_not_end_the_job():
    read, write = os.pipe()
    sink = Sink(write)
    os.close(read)
    sink.write(b"into the void\n")
    assert sink.broken
    sink.write(b"more\n")
    assert not sink.pending
    sink.close()
    os.close(write)


def test_a_closed_descriptor_is_a_broken_sink():
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    sink = Sink(write)
    sink.write(b"x")
    assert sink.broken


PIECES = st.lists(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xff", "é".encode()]), max_size=6).map(b"".join),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(PIECES)
def test_whatever_comes_in_whatever_pieces_comes_out(tmp_path_factory, pieces):
    made = Bench(tmp_path_factory.mktemp("pump") / "out", b"<P>")
    made.feed(*(piece for piece in pieces if piece))
    data, shown = b"".join(pieces), made.end()
    assert shown.replace(b"<P>", b"") == data
    starts = len(re.findall(rb"(?:\A|\r\n|\n|\r(?!\n))(?=.)", data, re.DOTALL))
    assert shown.count(b"<P>") == starts
