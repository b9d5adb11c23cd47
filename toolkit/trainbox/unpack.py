"""Files of a tar archive, of a directory, or a single one, into a directory that may hold others already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainbox.errors import UserError

if TYPE_CHECKING:
    import tarfile


def extract(path: str, shown: str, target: str) -> set[str]:
    """Extracts a tar archive, compressed or not, and returns the names of its entries at the top.

    Files of the same name are replaced. Execute permission is kept; owner, set-id bits and the like are not.
    shown: what messages call the archive.
    Raises UserError when it is cut off, when `target` cannot be written, and, before anything is extracted,
    when a member would leave `target` or is no file, directory or link.
    """
    import lzma
    import tarfile
    import zlib

    try:
        with tarfile.open(path, "r:*") as archive:
            members = archive.getmembers()
            _check_end(archive)
            wanted = list(_checked(members, shown, target))
            with _Writing(target):
                for member in wanted:
                    _extract_member(archive, member, target)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        reason = "it is empty" if os.path.getsize(path) == 0 else str(error) or "unexpected end"
        raise UserError(
            f"{shown} is not a usable tar archive: {reason}",
            "submit a .tar.gz or .tar, and check that it is not cut off",
        ) from None
    return {member.name.partition("/")[0] for member in wanted}


def copy_file(path: str, target: str) -> set[str]:
    """Copies one file into a directory and returns its name in a set. Raises UserError."""
    import shutil

    name = os.path.basename(path)
    with _Writing(target):
        shutil.copy(path, _room_for(os.path.join(target, name)))
    return {name}


def copy_tree(source: str, target: str) -> set[str]:
    """Copies what a directory holds and returns the names at its top.

    Links within the tree stay links, others become what they point to; sockets, FIFOs and links that lead
    nowhere are left out. Raises UserError, also when `target` lies within `source`.
    """
    root = os.path.realpath(source)
    if _inside(os.path.realpath(target), root):
        raise UserError(
            f"the submitted directory {source} contains the code directory {target}",
            f"submit it as {target} itself",
        )
    with _Writing(target):
        _copy(source, target, root, target)
        return set(os.listdir(source))


def _copy(source: str, target: str, root: str, top: str) -> None:
    import shutil

    for entry in os.scandir(source):
        there = os.path.join(target, entry.name)
        real = os.path.realpath(entry.path) if entry.is_symlink() else ""
        if real and _inside(real, root):
            copied = os.path.join(top, os.path.relpath(real, root))
            os.symlink(os.path.relpath(copied, target), _room_for(there))
        elif entry.is_dir():
            os.makedirs(there, exist_ok=True)
            _copy(entry.path, there, root, top)
        elif entry.is_file():
            shutil.copy(entry.path, _room_for(there))


class _Writing:
    """Makes the directory, and a sentence of what goes wrong while it is written to."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __enter__(self) -> None:
        try:
            os.makedirs(self.target, exist_ok=True)
        except OSError as error:
            raise self._explained(error) from None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self._explained(error) from None

    def _explained(self, error: OSError) -> UserError:
        where = f" ({error.filename})" if error.filename and error.filename != self.target else ""
        return UserError(
            f"cannot put the code into {self.target} as user {os.getuid()}: {error.strerror or error}{where}",
            f"make {self.target} writable for that user or mount a writable one there; "
            "code that is in the image already needs no writing",
        )


def _room_for(path: str) -> str:
    """Removes what is at `path`, so that nothing is written through a link or into a running program."""
    if os.path.lexists(path):
        if os.path.isdir(path) and not os.path.islink(path):
            raise UserError(f"{path} is a directory already, and a file in the submitted code")
        os.unlink(path)
    return path


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _check_end(archive: tarfile.TarFile) -> None:
    """tarfile takes a cut or damaged header for the end; a true end is a block of zeros."""
    import tarfile

    file = archive.fileobj
    if file is not None:
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
        if any(block) or len(block) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"it is cut off or damaged after {archive.offset} bytes of contents")


def _checked(members: list[tarfile.TarInfo], shown: str, target: str) -> Iterator[tarfile.TarInfo]:
    """Members with normalised names, all of which end up below `target`.

    Names alone cannot tell where a path through links leads. So no member may lie below a link of the
    archive, and a link's target may go up only at its beginning; then each link leads inside, whatever it
    passes.
    """
    names = {os.path.normpath(member.name) for member in members}
    links = {os.path.normpath(member.name) for member in members if member.issym()}
    root = os.path.realpath(target)
    for member in members:
        name = os.path.normpath(member.name)
        reason = _fault(member, names, links)
        if not reason and not _inside(os.path.realpath(os.path.join(root, os.path.dirname(name))), root):
            reason = "lies below a link that leaves the code directory"
        if reason:
            raise UserError(
                f"{shown}: member {member.name!r} {reason}: nothing was extracted",
                "make the archive of the files below one directory, with relative names",
            )
        member.name = name
        if name != ".":
            yield member


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _goes_up(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def _below_link(path: str, links: set[str]) -> bool:
    parts = _parts(path)
    return any("/".join(parts[:length]) in links for length in range(1, len(parts)))


def _fault(member: tarfile.TarInfo, names: set[str], links: set[str]) -> str:
    """What is wrong with a member, or empty. names: of all members; links: of the symbolic links."""
    if _goes_up(member.name):
        return "would leave the code directory"
    if _below_link(member.name, links):
        return "lies below a link of the archive"
    if member.issym() and _link_leaves(member):
        return f"is a link to {member.linkname!r}, which may leave the code directory"
    if member.islnk():
        to = os.path.normpath(member.linkname)
        if _goes_up(member.linkname) or to in links or to not in names or _below_link(to, links):
            return f"is a hard link to {member.linkname!r}, which is no file of the archive"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is a device, a FIFO or of an unknown type"
    return ""


def _link_leaves(member: tarfile.TarInfo) -> bool:
    target = _parts(member.linkname)
    ups = 0
    while target[ups : ups + 1] == [".."]:
        ups += 1
    return member.linkname.startswith("/") or ups >= len(_parts(member.name)) or ".." in target[ups:]


def _extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    import tarfile

    path = os.path.join(target, member.name)
    if not member.isdir():
        _room_for(path)
    elif os.path.lexists(path) and not os.path.isdir(path):
        raise UserError(f"{path} is a file already and a directory in the submitted code")
    # For Pythons without the filter: not the archive's owner, no set-id bits, always ours to replace.
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, target, filter="data")
    else:
        archive.extract(member, target)
