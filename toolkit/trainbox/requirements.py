"""What the user's code needs from pip, installed once a host before the launch (contract 4.3)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping

from trainbox.entry import Script
from trainbox.errors import UserError
from trainbox.job import Job
from trainbox.plan import EnvVar, Process
from trainbox.settings import Settings

NAME = "requirements.txt"
ROLE = "pip"

# Ways in which a user tells pip where to install; then that is left to them.
_PLACES = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_PYTHON")
_SENTENCE = 700


def installs(
    job: Job,
    code: str,
    script: Script,
    settings: Settings,
    environ: Mapping[str, str],
    python: str,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[Process, ...]:
    """The run of pip that the code needs, or none.

    `requirements.txt` is taken from the code directory, else from the folder of the entry point, else from
    the nearest of its parents below the code directory. A `setup.py` in the code directory is installed by
    `pip install .`, unless the entry point is a shell script or program, which does that itself if it wants.
    pip runs in the code directory, which is what relative paths within the file are relative to, with the
    user's PIP_* and pip.conf; a wheelhouse and constraints come from the settings, where relative paths are
    relative to the code directory too. With CA_REPOSITORY_ARN the index is that CodeArtifact repository, its
    token in the environment of pip alone.

    A user who may write neither site-packages nor, where Python looks there, their own site directory gets
    a prefix in the temporary directory: see `import_path`.

    log: takes a line that says which files are installed. Raises UserError, or PlatformError when there is
    no token to be had.
    """
    targets = _targets(code, script, log)
    if not targets:
        return ()
    _require_pip(python)
    argv = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if settings.wheelhouse:
        wheels = _existing(code, settings.wheelhouse, "TRAINBOX_WHEELHOUSE", os.path.isdir)
        argv += ["--no-index", "--find-links", wheels]
    if settings.constraints:
        argv += ["-c", _existing(code, settings.constraints, "TRAINBOX_CONSTRAINTS", os.path.isfile)]
    if python == sys.executable and not any(name in environ for name in _PLACES) and not _can_install():
        argv += ["--prefix", _private_prefix(job, environ)]
    return (Process(ROLE, (*argv, *targets), _variables(settings, environ), code, ()),)


def _variables(settings: Settings, environ: Mapping[str, str]) -> tuple[EnvVar, ...]:
    """What pip gets beside the user's own environment."""
    env = []
    if os.getuid() == 0 and "PIP_ROOT_USER_ACTION" not in environ:
        env.append(EnvVar("PIP_ROOT_USER_ACTION", "ignore", "root is the usual user of a training container"))
    cache = _cache(environ)
    if not _writable(cache) and not {"PIP_CACHE_DIR", "PIP_NO_CACHE_DIR"} & environ.keys():
        env.append(EnvVar("PIP_NO_CACHE_DIR", "1", f"{cache} may not be written"))
    arn = environ.get("CA_REPOSITORY_ARN", "")
    if arn and not settings.wheelhouse:
        from trainbox.codeartifact import index_url

        env.append(EnvVar("PIP_INDEX_URL", index_url(arn), "CA_REPOSITORY_ARN"))
    return tuple(env)


def import_path(installed: tuple[Process, ...]) -> str:
    """Directory that has to be on the script's PYTHONPATH, or empty when it finds the packages anyway."""
    prefixes = [step.argv[step.argv.index("--prefix") + 1] for step in installed if "--prefix" in step.argv]
    if not prefixes:
        return ""
    import sysconfig

    places = {"base": prefixes[0], "platbase": prefixes[0]}
    return sysconfig.get_path("purelib", sysconfig.get_preferred_scheme("prefix"), places)


def _targets(code: str, script: Script, log: Callable[[str], None]) -> list[str]:
    """The arguments of pip that say what to install."""
    targets: list[str] = []
    if os.path.isfile(os.path.join(code, "setup.py")):
        if script.kind in ("shell", "executable"):
            log(f"setup.py is not installed: {script.name} is no Python program and does that itself")
        elif _is_blank(os.path.join(code, "setup.py")):
            log("setup.py is empty and not installed")
        else:
            log("setup.py is installed with pip")
            targets.append(".")
    file = find(code, script)
    if file and _is_blank(os.path.join(code, file)):
        log(f"{file} names nothing to install")
    elif file:
        log(f"{file} is installed with pip")
        targets += ["-r", file]
    return targets


def find(code: str, script: Script) -> str:
    """Path of the requirements.txt that counts, relative to the code directory; empty when there is none."""
    folder = ""
    if script.kind in ("module", "package"):
        parts = script.name.split(".")
        folder = "/".join(parts if script.kind == "package" else parts[:-1])
    elif script.kind != "command" and not os.path.isabs(script.name):
        is_folder = os.path.isdir(os.path.join(code, script.name))
        folder = script.name if is_folder else os.path.dirname(script.name)
    candidates = [NAME]
    while folder:
        candidates.append(f"{folder}/{NAME}")
        folder = os.path.dirname(folder)
    return next((name for name in candidates if os.path.isfile(os.path.join(code, name))), "")


def _is_blank(path: str) -> bool:
    """Whether a file holds nothing but comments and space."""
    try:
        with open(path, "rb") as file:
            lines = file.read().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror} (as user {os.getuid()})") from None
    return all(not line.strip() or line.lstrip().startswith(b"#") for line in lines)


def _require_pip(python: str) -> None:
    if python != sys.executable:
        return  # another interpreter's packages cannot be seen from here; `explain` knows that case
    from importlib.util import find_spec

    if find_spec("pip") is None:
        raise _no_pip(python)


def _no_pip(python: str) -> UserError:
    return UserError(
        f"{python} has no pip, which the code's requirements need",
        f"install it in the image ({python} -m ensurepip), or install the requirements there",
    )


def _existing(code: str, value: str, name: str, test: Callable[[str], bool]) -> str:
    path = os.path.join(code, value)
    if not test(path):
        raise UserError(f"{name} is {value}, which does not exist", "correct the path, or mount it there")
    return path


def _writable(path: str) -> bool:
    """Whether a user may write to a directory, or make it."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return os.access(path, os.W_OK | os.X_OK)


def _cache(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "pip")


def _can_install() -> bool:
    """Whether pip finds a place by itself: site-packages, else the user's, when this Python looks there."""
    import site
    import sysconfig

    return _writable(sysconfig.get_path("purelib")) or (
        bool(site.ENABLE_USER_SITE) and _writable(site.getusersitepackages())
    )


def _private_prefix(job: Job, environ: Mapping[str, str]) -> str:
    """A directory of this user, job and host; the script will import from it, so nobody else may own it."""
    import tempfile

    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"trainbox-{os.getuid()}-{job.name or 'job'}-{job.me}")
    path = os.path.join(environ.get("TMPDIR") or tempfile.gettempdir(), name)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise UserError(
            f"pip has no place to install to: cannot make {path} as user {os.getuid()}: {error.strerror}",
            "mount a writable /tmp, or install the requirements in the image",
        ) from None
    if status.st_uid != os.getuid() or status.st_mode & 0o170000 != 0o040000 or status.st_mode & 0o022:
        raise UserError(f"{path} is not a directory of user {os.getuid()} alone", "remove it, or set TMPDIR")
    return path


def explain(tail: bytes) -> str:
    """The reason, in one line, out of the last output of a pip that failed; without credentials of URLs."""
    from trainbox.masking import mask_urls

    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", tail.decode("utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return mask_urls("; ".join(_reasons(lines)))[:_SENTENCE]


def _reasons(lines: list[str]) -> list[str]:
    if any(line.endswith("No module named pip") for line in lines):
        return ["the interpreter has no pip: install it in the image (python -m ensurepip)"]
    if any(line.startswith("EOFError") for line in lines) and any("User for " in line for line in lines):
        return ["the package index asks for a user and a password: put them into PIP_INDEX_URL or pip.conf"]
    reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")][:3]
    if "[end of output]" in lines:  # a build: the last line of its output is the reason
        end = lines.index("[end of output]")
        what = [line[1:].lstrip() for line in lines[:end] if line.startswith("\u00d7")]
        reasons = what[:1] + lines[end - 1 : end] + reasons
    hints = [line.removeprefix("WARNING: ") for line in lines if line.startswith("WARNING: ")]
    causes = ("Error", "connection broken", "is ignored", "credentials")
    reasons += [hint for hint in hints if any(cause in hint for cause in causes)][:1]
    return list(dict.fromkeys(reasons)) or lines[-3:] or ["it gave no reason"]
