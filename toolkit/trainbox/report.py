"""What is left behind at the end: the failure file, the exit code's words, the owner of the files."""

from __future__ import annotations

import os
from collections.abc import Callable

from trainbox import causes
from trainbox.errors import TrainboxError
from trainbox.job import Paths
from trainbox.machine import Machine
from trainbox.masking import Mask
from trainbox.plan import Failure, Outcome

REASON_CHARACTERS = 1024
"""How much of the failure file the platform shows (contract 1.2)."""

_LISTED = 10


def _who(failure: Failure) -> str:
    return failure.host if failure.rank is None else f"{failure.host} rank {failure.rank}"


def sentence(failure: Failure, machine: Machine, *, out_of_memory: bool = False, stopped_by: int = 0) -> str:
    """The reason in words: host and rank, then exception and message, then how the process ended."""
    who = _who(failure)
    stop = f"stopped by {causes.signal_name(stopped_by)}: " if stopped_by else ""
    if failure.signal and failure.signal == stopped_by:
        return f"{who}: stopped by {causes.signal_name(stopped_by)}\nexit code {failure.exit_code}"
    words = f"; its last words: {failure.message}" if failure.message else ""
    hint = causes.hint(failure.message, machine.shm)
    end = f"exit code {failure.exit_code}" + (f"; {hint}" if hint else "")
    if failure.signal:
        cause = causes.of_signal(
            failure.signal, out_of_memory=out_of_memory, memory=machine.memory, shm=machine.shm
        )
        if failure.raised:
            return f"{who}: {stop}{failure.message}\nthen {cause}, {end}"
        return f"{who}: {stop}{cause}{words}\n{end}"
    if failure.raised:
        return f"{who}: {stop}{failure.message}\n{end}"
    return f"{who}: {stop}ended with exit code {failure.exit_code}{words}" + (f"\n{hint}" if hint else "")


def of_outcome(outcome: Outcome, machine: Machine, mask: Mask, *, out_of_memory: bool = False) -> str:
    """The text of the failure file for a failed job; its first 1024 characters hold the first cause."""
    if outcome.first is None:
        return ""
    first = sentence(outcome.first, machine, out_of_memory=out_of_memory, stopped_by=outcome.stopped_by)
    text = mask.text(first)
    if len(text) > REASON_CHARACTERS:
        head, _, tail = text.rpartition("\n")
        text = head[: REASON_CHARACTERS - len(tail) - 5] + " ...\n" + tail
    others = [f"{_who(failure)}: exit code {failure.exit_code}" for failure in outcome.others[:_LISTED]]
    return text + ("\nafter it: " + "; ".join(others) if others else "") + "\n"


def of_error(error: TrainboxError, host: str, mask: Mask) -> str:
    """The text of the failure file for a job that could not be started."""
    return mask.text(f"{host + ': ' if host else ''}{error}") + "\n"


def clear_leftovers(paths: Paths, log: Callable[[str], None]) -> None:
    """Removes the failure file of an earlier start in the same container, which would be taken for ours."""
    try:
        os.unlink(paths.failure)
        log(f"removed {paths.failure} of an earlier start")
    except FileNotFoundError:
        pass
    except OSError as error:
        log(f"cannot remove {paths.failure} of an earlier start: {error.strerror}")


def write_failure(paths: Paths, text: str, log: Callable[[str], None]) -> None:
    """Writes the failure file, unless the script wrote one itself; logs a reason that cannot be written."""
    try:
        os.makedirs(paths.output, exist_ok=True)
        with open(paths.failure, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except FileExistsError as error:
        if error.filename != paths.failure:
            log(f"cannot write {paths.failure}: {error.filename} is no folder")
            return
        log(f"{paths.failure} was written by the script and stays as it is")
    except OSError as error:
        log(f"cannot write {paths.failure}: {error.strerror}")


def _files(folder: str) -> list[tuple[str, int]]:
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                found.append((os.path.relpath(path, folder), os.lstat(path).st_size))
            except OSError:
                continue
    return sorted(found)


def size(number: float) -> str:
    """Bytes for people: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def artifacts(paths: Paths, log: Callable[[str], None]) -> bool:
    """Says which files the job leaves; returns whether there is a model."""
    for name, folder in (("model", paths.model), ("output", paths.output_data)):
        files = _files(folder)
        if files:
            listed = ", ".join(f"{path} ({size(number)})" for path, number in files[:_LISTED])
            more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
            total = size(sum(number for _, number in files))
            count = "1 file" if len(files) == 1 else f"{len(files)} files"
            log(f"{name}: {count}, {total} in {folder}: {listed}{more}")
    return bool(_files(paths.model))


def hand_over(paths: Paths, owner: str, log: Callable[[str], None]) -> None:
    """Gives model and output to a user and group, as `UID` or `UID:GID`; nothing happens when it is empty."""
    if not owner:
        return
    user, _, group = owner.partition(":")
    for folder in (paths.model, paths.output):
        for parent, folders, names in os.walk(folder):
            for path in (parent, *(os.path.join(parent, name) for name in (*folders, *names))):
                try:
                    os.chown(path, int(user), int(group or user), follow_symlinks=False)
                except OSError as error:
                    log(f"cannot give {path} to {owner}: {error.strerror}")
                    return
