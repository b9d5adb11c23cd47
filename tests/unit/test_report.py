"""The failure file, and the words of how a job ended."""

from __future__ import annotations

import os
import signal

import pytest

from trainbox import report
from trainbox.errors import UserError
from trainbox.job import Paths
from trainbox.machine import Machine
from trainbox.masking import Mask
from trainbox.plan import Failure, Outcome

MACHINE = Machine(2, memory=1 << 30, shm=64 << 20)
RAISED = Failure("algo-2", 3, 1, 0, "ValueError: bad label", 1.0, raised=True)


def text(first, *others, stopped_by=0, mask=None, **more):
    outcome = Outcome(first.exit_code, first, others, stopped_by)
    return report.of_outcome(outcome, MACHINE, mask or Mask(), **more)


def test_known_failure_05_host_rank_exception_and_message_come_first():
    assert text(RAISED).startswith("algo-2 rank 3: ValueError: bad label\nexit code 1")


def test_a_process_without_a_rank_and_last_words():
    failure = Failure("algo-1", None, 3, 0, "cannot open data", 1.0)
    assert text(failure) == "algo-1: ended with exit code 3; its last words: cannot open data\n"


def test_known_failure_05_a_signal_and_the_memory_limit():
    killed = Failure("algo-1", 0, 137, signal.SIGKILL, "step 7", 1.0)
    assert "ran out of memory (limit 1024 MiB)" in text(killed, out_of_memory=True)
    assert "step 7" in text(killed)


def test_an_exception_and_then_a_signal():
    aborted = RAISED._replace(exit_code=134, signal=signal.SIGABRT)
    assert text(aborted).startswith("algo-2 rank 3: ValueError: bad label\nthen killed by SIGABRT")


def test_a_job_that_was_stopped_says_so():
    ended = Failure("algo-1", 0, 143, signal.SIGTERM, "saving", 1.0)
    assert text(ended, stopped_by=signal.SIGTERM) == "algo-1 rank 0: stopped by SIGTERM\nexit code 143\n"
    raised = Failure("algo-1", 0, 1, 0, "KeyError: 'x'", 1.0, raised=True)
    assert text(raised, stopped_by=signal.SIGTERM).startswith("algo-1 rank 0: stopped by SIGTERM: KeyError")


def test_the_others_come_after():
    assert text(RAISED, RAISED._replace(rank=1, exit_code=7)).endswith(
        "after it: algo-2 rank 1: exit code 7\n"
    )


def test_a_long_message_leaves_room_for_the_exit_code():
    long = text(RAISED._replace(message="ValueError: " + "x" * 5000))
    head = long[: report.REASON_CHARACTERS]
    assert head.startswith("algo-2 rank 3: ValueError: xxx")
    assert "exit code 1" in head


def test_known_failure_74_secrets_are_masked_before_the_text_is_cut():
    mask = Mask({"token": "s" * 40})
    assert "sss" not in text(RAISED._replace(message="x" * 1000 + "s" * 40), mask=mask)


def test_a_job_that_could_not_start():
    assert (
        report.of_error(UserError("no program", "name one"), "algo-1", Mask())
        == "algo-1: no program; name one\n"
    )


def test_a_text_of_the_script_stays(tmp_path):
    paths, lines = Paths(str(tmp_path)), []
    report.write_failure(paths, "ours\n", lines.append)
    report.write_failure(paths, "another\n", lines.append)
    assert (tmp_path / "output/failure").read_text() == "ours\n"
    assert "stays as it is" in lines[0]


def test_a_failure_file_of_an_earlier_start_is_removed(tmp_path):
    paths, lines = Paths(str(tmp_path)), []
    report.clear_leftovers(paths, lines.append)
    assert lines == []
    report.write_failure(paths, "old\n", lines.append)
    report.clear_leftovers(paths, lines.append)
    assert not os.path.exists(paths.failure)
    assert len(lines) == 1


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "output").write_text("a file")
    lines = []
    report.write_failure(Paths(str(tmp_path)), "x", lines.append)
    assert lines == [f"cannot write {tmp_path}/output/failure: {tmp_path}/output is no folder"]


def test_known_failure_17_what_will_be_uploaded_is_listed_with_sizes(tmp_path):
    lines, paths = [], Paths(str(tmp_path))
    assert not report.artifacts(paths, lines.append)
    (tmp_path / "model/sub").mkdir(parents=True)
    (tmp_path / "model/sub/w.bin").write_bytes(b"x" * 1500)
    assert report.artifacts(paths, lines.append)
    assert "1 file, 1.5 kB" in lines[0]
    assert "sub/w.bin (1.5 kB)" in lines[0]


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (3e12, "3.0 TB")]
)
def test_sizes(number, shown):
    assert report.size(number) == shown


def test_known_failure_34_outputs_are_handed_to_the_owner(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(os, "chown", lambda path, user, group, **more: given.append((path, user, group)))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/m").write_text("x")
    (tmp_path / "output/data").mkdir(parents=True)
    report.hand_over(Paths(str(tmp_path)), "1000", lambda line: None)
    assert (str(tmp_path / "model/m"), 1000, 1000) in given
    assert (str(tmp_path / "output/data"), 1000, 1000) in given
