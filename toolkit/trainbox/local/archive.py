"""Folders into tar.gz, in one fixed order, with a line for what had to stay out."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from trainbox.errors import PlatformError

LEVEL = 1
"""Compression: weights hardly shrink, whatever the level."""


class Listing(NamedTuple):
    """What a folder holds. files: path in the archive to path on disk, folders too. left_out: path, why."""

    files: Mapping[str, str]
    left_out: tuple[tuple[str, str], ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing but folders."""
        return all(os.path.isdir(path) and not os.path.islink(path) for path in self.files.values())


def listing(root: str, leave: Callable[[str, str], bool] = lambda path, name: False) -> Listing:
    """Everything under `root`, in the order of names.

    leave: whether to leave out a file or folder, by its path and its name.
    Links that stay inside are kept as links, others to a file become that file; sockets, pipes, devices and
    links to folders outside are left out. Raises PlatformError for a folder that cannot be read.
    """
    files: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []

    def visit(folder: str, above: str) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise PlatformError(f"cannot read {folder}: {error.strerror}") from None
        for entry in entries:
            if leave(entry.path, entry.name):
                continue
            relative = above + entry.name
            why = _unfit(entry.path, root)
            if why:
                left_out.append((relative, why))
                continue
            files[relative] = entry.path
            if entry.is_dir(follow_symlinks=False):
                visit(entry.path, relative + "/")

    visit(root, "")
    return Listing(files, tuple(left_out))


def _inside(path: str, root: str) -> bool:
    """Whether a link stays in the folder wherever that is unpacked."""
    target = os.readlink(path)
    if os.path.isabs(target):
        return False
    landing = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return landing.startswith(os.path.normpath(root) + os.sep)


def _unfit(path: str, root: str) -> str:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode) and not _inside(path, root):
        return "" if os.path.isfile(path) else "a link that leads outside"
    if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        return "neither file nor folder"
    return ""


def _members(files: Mapping[str, str]) -> Iterator[tuple[tarfile.TarInfo, str]]:
    for name in sorted(files):
        path = files[name]
        info = tarfile.TarInfo(name)
        follow = os.path.islink(path) and not _inside(path, path[: -len(name)])
        status = os.stat(path) if follow else os.lstat(path)
        info.mode = stat.S_IMODE(status.st_mode) | stat.S_IRUSR | stat.S_IWUSR
        info.mtime = int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        else:
            info.size = status.st_size
        yield info, path


def pack(files: Mapping[str, str], target: str) -> int:
    """Writes the files to `target`, which appears when it is whole, and returns its size in bytes.

    The same files give the same bytes: order by name, owner 0:0, no name or time in the gzip header.
    Raises PlatformError when a file cannot be read or the disk is full.
    """
    part = f"{target}.part"
    try:
        with (
            open(part, "wb") as raw,
            gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for info, path in _members(files):
                if info.isreg():
                    with open(path, "rb") as file:
                        tar.addfile(info, file)
                else:
                    tar.addfile(info)
        os.replace(part, target)
        return os.path.getsize(target)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        raise PlatformError(f"cannot pack {os.path.basename(target)}: {what}") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)


def left_out_line(what: str, left_out: tuple[tuple[str, str], ...]) -> str:
    """One line about what is not in an archive."""
    name, why = left_out[0]
    others = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
    return f"left out of {what}: {name} ({why}){others}"


def human(size: int) -> str:
    """12.3 MB."""
    for unit, power in (("GB", 3), ("MB", 2), ("kB", 1)):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} bytes"
