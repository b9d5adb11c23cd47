"""Reasons out of the last output of a process."""

import signal

import pytest

from trainbox import causes

TRACEBACK = """\
epoch 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError('bad lr')
ValueError: bad lr
"""


def reason(stderr="", stdout="", code=1, number=0):
    return causes.from_output(stderr.encode(), stdout.encode(), code, number)


def test_known_failure_05_type_and_message():
    assert reason(TRACEBACK) == ("ValueError: bad lr", True)


def test_the_last_of_a_chain_is_the_one_that_was_not_caught():
    chain = TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
    chain += 'Traceback (most recent call last):\n  File "x", line 1, in f\n    g()\n    ~^^\nOSError: disk\n'
    assert reason(chain) == ("OSError: disk", True)


def test_messages_of_several_lines_and_without_any():
    assert reason(TRACEBACK + "  hint: 3\n\nlater\n") == ("ValueError: bad lr\n  hint: 3", True)
    bare = 'Traceback (most recent call last):\n  File "x", line 1\nKeyboardInterrupt\n'
    assert reason(bare) == ("KeyboardInterrupt", True)


def test_an_exception_group():
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "x", line 1, in <module>\n'
        "  | ExceptionGroup: several (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | ValueError: one\n"
    )
    message, raised = reason(text)
    assert raised
    assert message.startswith("ExceptionGroup: several (2 sub-exceptions)\n")
    assert "ValueError: one" in message


def test_a_rank_before_each_line():
    text = "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()[1:])
    assert reason(text) == ("ValueError: bad lr", True)


def test_a_traceback_that_the_script_caught_is_not_the_cause():
    assert reason(TRACEBACK + "giving up\n", code=3) == ("giving up", False)


def test_a_traceback_on_standard_output():
    assert reason(stdout=TRACEBACK) == ("ValueError: bad lr", True)


def test_native_threads_that_abort_after_an_exception():
    tail = TRACEBACK + "terminate called without an active exception\n"
    message, raised = reason(tail, code=0, number=signal.SIGABRT)
    assert raised
    assert message.startswith("ValueError: bad lr\n")
    assert reason(tail + "\n1\n2\n3\n4\n", code=0, number=signal.SIGABRT) == ("4", False)


def test_killed_from_outside_after_a_traceback_that_was_caught():
    assert reason(TRACEBACK, code=0, number=signal.SIGKILL) == ("ValueError: bad lr", False)


def test_bytes_that_are_no_text_and_no_output_at_all():
    assert causes.from_output(b"\xff\xfe bad\n", b"", 2, 0)[0].endswith("bad")
    assert causes.from_output(b"", b"", 2, 0) == ("", False)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "OOM killer"),
        (signal.SIGBUS, "shared memory"),
        (signal.SIGSEGV, "segmentation fault"),
        (signal.SIGABRT, "abort"),
        (signal.SIGUSR1, "killed by SIGUSR1"),
        (99, "killed by signal 99"),
    ],
)
def test_known_failure_05_signals_in_words(number, words):
    assert words in causes.of_signal(number, out_of_memory=False, memory=0, shm=0)


def test_known_failure_05_the_memory_limit_is_named():
    text = causes.of_signal(signal.SIGKILL, out_of_memory=True, memory=256 << 20, shm=0)
    assert "ran out of memory (limit 256 MiB)" in text


def test_known_failure_35_a_bus_error_names_shared_memory_and_its_size():
    assert "/dev/shm holds 64 MiB" in causes.of_signal(
        signal.SIGBUS, out_of_memory=False, memory=0, shm=64 << 20
    )
    message = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."
    assert "--shm-size" in causes.hint(message, 64 << 20)
    assert causes.hint("ValueError: bad lr", 64 << 20) == ""
