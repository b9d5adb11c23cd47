"""What a job leaves: model, output, failure file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainbox import causes
from trainbox.job import Paths
from trainbox.local import archive
from trainbox.local.tree import Folder

_MOST = 1 << 16


class Artifact(NamedTuple):
    """An archive that was written. size: bytes."""

    path: str
    size: int


def merge(folders: Sequence[tuple[str, str]]) -> tuple[archive.Listing, list[str]]:
    """Files of all hosts, given as (host, folder) in rank order, in one listing, and the names met twice.

    The first host's file stays where two have the same name: mostly the leader's.
    """
    files: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    twice: list[str] = []
    for host, folder in folders:
        if not os.path.isdir(folder):
            continue
        found = archive.listing(folder)
        left_out += [(f"{host}:{name}", why) for name, why in found.left_out]
        for name, path in found.files.items():
            if name not in files and not _below_file(name, files):
                files[name] = path
            elif not (os.path.isdir(path) and os.path.isdir(files.get(name, path))):
                twice.append(f"{host}:{name}")
    return archive.Listing(files, tuple(left_out)), twice


def _below_file(name: str, files: dict[str, str]) -> bool:
    """Whether another host has a file where this one has a folder."""
    parts = name.split("/")[:-1]
    above = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(part in files and not os.path.isdir(files[part]) for part in above)


def gather(
    folder: Folder, hosts: Sequence[str], kind: str, target: str, warn: Callable[[str], None]
) -> Artifact | None:
    """Packs one kind of output of all hosts; None when there is nothing. kind: `model` or `output`.

    Raises PlatformError when it cannot be packed.
    """
    trees = [(host, Paths(folder.base(host))) for host in hosts]
    merged, twice = merge(
        [(host, paths.model if kind == "model" else paths.output_data) for host, paths in trees]
    )
    what = os.path.basename(target)
    if merged.left_out:
        warn(archive.left_out_line(what, merged.left_out))
    if twice:
        others = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        warn(f"{what}: {twice[0]}{others} left out, a host before it has written a file of that name")
    if merged.empty:
        return None
    return Artifact(target, archive.pack(merged.files, target))


def last_words(folder: Folder, host: str) -> str:
    """The last line that a host printed: the reason, when there is no failure file."""
    try:
        with open(folder.log(host), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST))
            return causes.last_words(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def failure_text(folder: Folder, host: str) -> str:
    """The host's failure file, or an empty string."""
    try:
        with open(Paths(folder.base(host)).failure, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST).strip()
    except OSError:
        return ""
