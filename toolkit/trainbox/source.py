"""The user's code: from where the platform says it is, into the code directory (contract 1.8)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from trainbox.errors import PlatformError, UserError
from trainbox.job import Job

CHANNEL = "code"
ARCHIVE = "sourcedir.tar.gz"
REMOTE = ("s3", "gs", "az")

_ARCHIVE_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
_SHOWN = 5


def fetch(
    job: Job,
    log: Callable[[str], None],
    environ: Mapping[str, str],
    check: Callable[[], None] = lambda: None,
) -> str:
    """Puts the submitted code where it runs, and returns that directory.

    The code is what `job.submit_directory` names: a directory, a tar archive (compressed or not, whatever its
    name), a single file, by path, as file://, or in an object store; else what is in the channel `code`; else
    what is in the image. Code that is in place already, in the image or by a mount, needs no writing at all.

    Other toolkits skip what was submitted as soon as the code directory has any file. Here what was submitted
    is used: its files replace those of the same name, also when a container is started again, and other files
    stay, which a line of the log says.

    log: takes a line. environ: for the credentials of object stores. check: called while a download runs;
    what it raises ends it.
    Raises UserError or PlatformError naming the archive, member or directory. An archive with a member that
    would leave the code directory is refused before anything of it is extracted.
    """
    code = job.paths.code
    source = job.submit_directory or _channel(job, log)
    if not source:
        return _in_image(code, log)
    scheme, sign, rest = source.partition("://")
    if sign and scheme in REMOTE:
        return _download(source, code, log, _with_region(environ, job.region), check)
    if sign and scheme != "file":
        raise UserError(
            f"the code is submitted as {_masked(source)}, which begins with none of file://, "
            + ", ".join(f"{known}://" for known in REMOTE)
        )
    path = _local(rest) if sign else source
    if not os.path.exists(path):
        raise UserError(
            f"the submitted code {path} does not exist in the container",
            "check sagemaker_submit_directory, or mount it there",
        )
    if os.path.isdir(path):
        if os.path.exists(code) and os.path.samefile(path, code):
            return code
        return _put_directory(path, code, log)
    return _put_file(path, os.path.basename(path), code, log)


def _masked(url: str) -> str:
    from trainbox.masking import mask_urls

    return mask_urls(url)


def _local(rest: str) -> str:
    """Path of a file URL after its ://, which may name localhost."""
    from urllib.parse import unquote

    return unquote(rest.removeprefix("localhost"))


def _with_region(environ: Mapping[str, str], region: str) -> Mapping[str, str]:
    return {"AWS_REGION": region, **environ} if region else environ


def _in_image(code: str, log: Callable[[str], None]) -> str:
    if os.path.isdir(code):
        return code
    here = os.getcwd()
    log(f"no code was submitted and there is no {code}: the working directory {here} is the code directory")
    return here


def _channel(job: Job, log: Callable[[str], None]) -> str:
    """Where the channel `code` holds the user's code; empty when it does not.

    A job may also have data of that name: it is data when the program is in the image and not in the channel.
    """
    path = next((channel.path for channel in job.channels if channel.name == CHANNEL), "")
    if not path or not os.path.isdir(path):
        return ""
    names = os.listdir(path)
    if ARCHIVE in names or (len(names) == 1 and _is_archive(os.path.join(path, names[0]))):
        return os.path.join(path, ARCHIVE if ARCHIVE in names else names[0])
    program = job.program or "".join(job.command[:1])
    if not names or (_holds(job.paths.code, program) and not _holds(path, program)):
        log(f"{path} does not hold the program: channel {CHANNEL} is taken for data")
        return ""
    return path


def _holds(directory: str, program: str) -> bool:
    """Whether a program, or the package of a module, is in a directory."""
    name = program.removeprefix("-m").strip()
    names = (os.path.normpath(name), name.partition(".")[0], f"{name}.py") if name else ()
    return any(candidate and os.path.exists(os.path.join(directory, candidate)) for candidate in names)


def _is_archive(path: str) -> bool:
    """By its first bytes, or by its name, so that a damaged archive is not taken for a script."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        head = file.read(512)
    return head.startswith(_COMPRESSED) or head[257:262] == b"ustar" or path.endswith(_ARCHIVE_NAMES)


def _download(
    url: str,
    code: str,
    log: Callable[[str], None],
    environ: Mapping[str, str],
    check: Callable[[], None],
) -> str:
    import shutil
    import tempfile

    from trainbox import stores

    name = url.rsplit("/", 1)[1]
    if name in ("", ".", "..") or url.count("/") < 3:
        raise UserError(
            f"the submitted code {url} is a folder in an object store", "name an archive: " + url + ARCHIVE
        )
    try:
        folder = tempfile.mkdtemp(prefix="trainbox-code-")
    except OSError as error:
        raise PlatformError(
            f"no temporary directory for {url}: {error.strerror or error}", "mount a writable /tmp"
        ) from None
    try:
        path = os.path.join(folder, name)
        log(f"code: from {url}")
        stores.download(url, path, environ, check)
        return _put_file(path, url, code, log)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_file(path: str, shown: str, code: str, log: Callable[[str], None]) -> str:
    """Extracts an archive, or copies a single file. shown: what messages call it."""
    from trainbox import unpack

    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {shown} as user {os.getuid()}", "make the file readable for that user")
    before = _names(code)
    put = unpack.extract(path, shown, code) if _is_archive(path) else unpack.copy_file(path, code)
    _report_others(code, before - put, log)
    return code


def _put_directory(path: str, code: str, log: Callable[[str], None]) -> str:
    from trainbox import unpack

    before = _names(code)
    # The submitted directory may itself lie below the code directory.
    put = unpack.copy_tree(path, code) | {os.path.relpath(path, code).partition("/")[0]}
    _report_others(code, before - put, log)
    return code


def _names(directory: str) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()


def _report_others(code: str, others: set[str], log: Callable[[str], None]) -> None:
    names = sorted(others - {"__pycache__"})
    if names:
        shown = ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")
        log(f"{code} also holds files that were not submitted, which stay: {shown}")
