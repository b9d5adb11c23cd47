"""Why a process failed, in words: from its exit, the last bytes it printed, and what the machine knows."""

from __future__ import annotations

import signal

_HEADER = "Traceback (most recent call last):"
_MESSAGE_LINES = 8
_LINE = 600

# Native threads that outlive Python's end after an exception bring these, with a line or two of their own.
_AFTER_EXCEPTION = (signal.SIGABRT, signal.SIGSEGV)
_LINES_OF_ABORT = 3


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exception_in(text: str) -> tuple[str, int]:
    """Type and message of the last Python traceback in a text, and how many lines follow it; or ("", 0)."""
    at = text.rfind(_HEADER)
    if at < 0:
        return "", 0
    start = text.rfind("\n", 0, at) + 1
    # Bars of an exception group, or a rank that PyTorch writes before each line.
    margin = text[start:at].replace("+ Exception Group ", "| ")
    lines = [line.removeprefix(margin) for line in text[at:].splitlines()[1:]]
    for index, line in enumerate(lines):
        if line and not line[0].isspace() and line[0] not in "|+":
            message = []
            for following in lines[index : index + _MESSAGE_LINES]:
                if not following.strip():
                    break
                message.append(following.rstrip()[:_LINE])
            after = [following for following in lines[index + len(message) :] if following.strip()]
            return "\n".join(message), len(after)
    return "", 0


def last_words(text: str) -> str:
    """The last line that is not blank."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return line.strip()[:_LINE]
    return ""


def from_output(stderr: bytes, stdout: bytes, exit_code: int, signal_number: int) -> tuple[str, bool]:
    """The reason that a process gave itself, and whether it is an uncaught exception or just its last words.

    A Python program ends with 1 after an uncaught exception, or by a signal when native threads do not
    survive its end. After any other exit, a traceback in its output is one that it caught and printed.
    """
    texts = [stream.decode("utf-8", "replace") for stream in (stderr, stdout)]
    if signal_number in _AFTER_EXCEPTION or (signal_number == 0 and exit_code == 1):
        for text in texts:
            found, after = exception_in(text)
            if found and (signal_number == 0 or after <= _LINES_OF_ABORT):
                return found, True
    return last_words(texts[0]) or last_words(texts[1]), False


def of_signal(number: int, *, out_of_memory: bool, memory: int, shm: int) -> str:
    """What a deadly signal means. memory, shm: limits in bytes, 0 when unknown."""
    name = signal_name(number)
    if number == signal.SIGKILL and out_of_memory:
        limit = f" (limit {memory >> 20} MiB)" if memory else ""
        return (
            f"killed by {name}: the container ran out of memory{limit}, so the kernel's OOM killer ended it"
        )
    if number == signal.SIGKILL:
        return f"killed by {name}: from outside, or by the machine's OOM killer for want of memory"
    if number == signal.SIGBUS:
        return f"killed by {name} (bus error): mostly shared memory that ran out; {_shm(shm)}"
    if number == signal.SIGSEGV:
        return f"killed by {name}: segmentation fault in native code"
    if number == signal.SIGABRT:
        return f"killed by {name}: native code gave up (abort)"
    return f"killed by {name}"


def _shm(shm: int) -> str:
    size = f"/dev/shm holds {shm >> 20} MiB, " if shm else ""
    return f"{size}start the container with a larger one (--shm-size) or use fewer data loader processes"


def hint(message: str, shm: int) -> str:
    """A next step for messages that have a known one, or an empty string."""
    if "bus error" in message.lower() or "insufficient shared memory" in message.lower():
        return _shm(shm)
    return ""
