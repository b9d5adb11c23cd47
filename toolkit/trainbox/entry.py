"""What the user asked to run: from a program's name or a command line to an argument list (contract 4.3)."""

from __future__ import annotations

import os

from trainbox.errors import UserError
from trainbox.job import Job
from trainbox.values import NamedTuple

PLACEHOLDER = "{hyperparameters}"
"""A word of a command that stands for the hyperparameter arguments."""

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
# The shebang and the line endings of any sane script show within this much of it.
_HEAD = 64 * 1024
_SHOWN = 10
_SEARCHED = 2000


class Script(NamedTuple):
    """The program to run, without the arguments that hyperparameters become.

    name: as it was asked for, normalised: a path relative to the code directory, a module, or a command.
    kind: `python` (a file or folder that the interpreter runs), `module` or `package` (by -m), `shell` (a
    script, through its interpreter), `executable`, or `command` (found on PATH).
    argv: run with the code directory as working directory. For `python` it is (interpreter, path, ...), for
    `module` and `package` (interpreter, "-m", name, ...). Python puts the script's own folder first on
    sys.path, for modules the code directory.
    """

    name: str
    kind: str
    argv: tuple[str, ...]


def with_arguments(script: Script, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The whole command: `arguments` last, or in place of a word that is exactly `{hyperparameters}`."""
    if PLACEHOLDER not in script.argv:
        return script.argv + arguments
    words: list[str] = []
    for word in script.argv:
        words += arguments if word == PLACEHOLDER else (word,)
    return tuple(words)


def resolve(job: Job, code: str, python: str, path: str = "") -> Script:
    """Finds out what to run, and how.

    code: the code directory. python: the interpreter for the script. path: value of PATH, for commands.

    A program is a file below the code directory (`train.py`, `sub/train.py`, `run.sh`, any executable), a
    folder with a `__main__.py`, or a module (`pkg.train`, `-m pkg.train`); a file of that very name comes
    first. What is asked for is what runs, whether there is a setup.py beside it or not. Nothing passes
    through a shell, so no name is ever more than a name.

    The first word of a command is looked for in the code directory, then on PATH.
    Raises UserError, before anything runs, when it cannot be found or cannot be run.
    """
    if not job.command and not job.program:
        raise UserError(
            "no program was named",
            "name one by hyperparameter sagemaker_program, by variable SAGEMAKER_PROGRAM, "
            "or as `train SCRIPT [ARGUMENTS]`",
        )
    interpreter = _interpreter(python, path)
    if job.command:
        return _command(job.command[0], job.command[1:], code, interpreter, path)
    script = _program(job.program, code, interpreter)
    if script is None:
        raise _missing(job.program, code)
    return script


def _command(word: str, rest: tuple[str, ...], code: str, python: str, path: str) -> Script:
    from shutil import which  # only for commands

    if os.path.isabs(word) and not _below(word, code):
        # Whoever writes the command line may name any program of the image; a hyperparameter may not.
        script = _file(word, word, python) if os.path.isfile(word) else None
    else:
        # The interpreter's own folder too: programs of an environment that is not on PATH.
        places = f"{path}{os.pathsep}{os.path.dirname(python)}"
        found = which(word, path=places) if "/" not in word else None
        on_path = Script(word, "command", (found,)) if found else None
        if on_path and "." not in word and not os.path.isfile(os.path.join(code, word)):
            script = on_path  # `train python x.py` means Python, even where there is a python.py
        else:
            script = _program(word, code, python) or on_path or _to_be_installed(word, code)
    if script is None:
        raise _missing(word, code, " and not on PATH")
    return script._replace(argv=script.argv + rest)


def _to_be_installed(word: str, code: str) -> Script | None:
    """A command that nobody has yet, where requirements may bring it before it is run."""
    files = (os.path.join(code, name) for name in ("requirements.txt", "setup.py"))
    plain = "/" not in word and "." not in word
    return Script(word, "command", (word,)) if plain and any(map(os.path.isfile, files)) else None


def _interpreter(python: str, path: str) -> str:
    if "/" in python:
        found: str | None = os.path.abspath(python)
    else:
        from shutil import which  # only for a bare name in TRAINBOX_PYTHON

        found = which(python, path=path)
    if not found or not os.path.isfile(found) or not os.access(found, os.X_OK):
        raise UserError(
            f"the interpreter {python} does not exist or may not be run",
            "correct TRAINBOX_PYTHON, or unset it",
        )
    return found


def _below(name: str, code: str) -> str:
    """`name` relative to the code directory, or empty when it leaves it."""
    relative = os.path.relpath(name, code) if os.path.isabs(name) else os.path.normpath(name)
    return "" if relative == ".." or relative.startswith("../") else relative


def _program(name: str, code: str, python: str) -> Script | None:
    """The program of this name in the code directory, or None when there is none."""
    if name[:2] == "-m" and name[2:3].isspace():
        return _named_module(name[2:].strip(), code, python)
    if "\0" in name:
        raise UserError(f"{name!r} is not the name of a program")
    relative = _below(name, code)
    if not relative:
        raise UserError(
            f"the program {name!r} leaves the code directory {code}", "name a file or module below it"
        )
    path = os.path.join(code, relative)
    if os.path.isfile(path):
        return _file(relative, path, python)
    if os.path.isfile(os.path.join(path, "__main__.py")):
        # A name that is no identifier, such as my-pkg, can be run by its path only.
        dotted = relative.replace("/", ".")
        if all(part.isidentifier() for part in relative.split("/")):
            return Script(dotted, "package", (python, "-m", dotted))
        return Script(relative, "python", (python, _no_option(relative)))
    if _is_module(name):
        return _module(name, code, python)
    return None


def _no_option(relative: str) -> str:
    return f"./{relative}" if relative.startswith("-") else relative


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _module(name: str, code: str, python: str) -> Script | None:
    base = os.path.join(code, *name.split("."))
    if os.path.isfile(f"{base}.py"):
        return Script(name, "module", (python, "-m", name))
    if os.path.isfile(os.path.join(base, "__main__.py")):
        return Script(name, "package", (python, "-m", name))
    installable = os.path.isfile(os.path.join(code, "setup.py"))
    if installable and "." in name and not name.endswith((".py", ".sh")) and not _top(name, code):
        # For example src/pkg/train.py, which `pip install .` makes importable as pkg.train.
        return Script(name, "module", (python, "-m", name))
    return None


def _top(name: str, code: str) -> bool:
    """Whether the module's first part is in the code directory."""
    top = os.path.join(code, name.partition(".")[0])
    return os.path.isdir(top) or os.path.isfile(f"{top}.py")


def _named_module(name: str, code: str, python: str) -> Script | None:
    """A module asked for with -m: in the code directory, or one that is installed."""
    if not _is_module(name):
        raise UserError(f"-m {name!r} is not a module's name", "separate identifiers by dots: -m pkg.train")
    found = _module(name, code, python)
    if found is None and not _top(name, code):
        found = Script(name, "module", (python, "-m", name))
    return found


def _file(name: str, path: str, python: str) -> Script:
    path = os.path.abspath(path)
    if name.endswith(".py"):
        return Script(name, "python", (python, _no_option(name)))
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        if not os.access(path, os.X_OK):
            raise UserError(f"cannot read {path}: {error.strerror} (as user {os.getuid()})") from None
        return Script(name, "executable", (path,))
    runs = os.access(path, os.X_OK)
    if head.startswith(b"#!"):
        return _with_shebang(name, path, head, runs)
    if b"\0" not in head:
        # A script without a shebang is the shell's, as it is for execvp and for a shell.
        _refuse_crlf(name, head)
        return Script(name, "shell", ("/bin/sh", path))
    if not runs:
        raise UserError(
            f"{name} is a program without execute permission", f"set it before submitting: chmod +x {name}"
        )
    return Script(name, "executable", (path,))


def _with_shebang(name: str, path: str, head: bytes, runs: bool) -> Script:
    """The way the kernel does it: the interpreter, at most one argument, the path."""
    line = head[2:].partition(b"\n")[0]
    if line.endswith(b"\r"):
        raise _crlf(name)
    words = [os.fsdecode(word) for word in line.strip().split(None, 1)] or [""]
    if not os.path.isfile(words[0]) or not os.access(words[0], os.X_OK):
        raise UserError(
            f"the first line of {name} names the interpreter {words[0]!r}, which is not in this image",
            "name one by its full path, for example #!/bin/sh",
        )
    asked = words[-1].split()[-1] if os.path.basename(words[0]) == "env" else words[0]
    if name.endswith(".sh") or os.path.basename(asked) in _SHELLS:
        _refuse_crlf(name, head)
        return Script(name, "shell", (*words, path))
    return Script(name, "executable", (path,) if runs else (*words, path))


def _refuse_crlf(name: str, head: bytes) -> None:
    # A single such line may be meant; a file of them comes from an editor on Windows.
    if head.count(b"\r\n") * 2 > head.count(b"\n"):
        raise _crlf(name)


def _crlf(name: str) -> UserError:
    return UserError(
        f"{name} has Windows line endings (CRLF), which no shell here can read",
        f"convert it before submitting, for example with: dos2unix {name}",
    )


def _missing(name: str, code: str, elsewhere: str = "") -> UserError:
    """The error that says what there is instead."""
    where = f"the program {name!r} is not in {code}{elsewhere}"
    if not os.path.isdir(code):
        return UserError(f"{where}: there is no such directory", "submit code, or put it there in the image")
    if os.path.isdir(os.path.join(code, _below(name, code) or name)):
        return UserError(f"the program {name!r} is a folder without a __main__.py", "name a file in it")
    there = sorted(os.listdir(code))
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    listing = f"there is: {', '.join(there[:_SHOWN])}{more}" if there else "the directory is empty"
    files = _files(code)
    alike = [file for file in files if os.path.basename(file) == os.path.basename(name)]
    if not alike:
        from difflib import get_close_matches  # only for a typing error

        alike = get_close_matches(name, files, 1)
    return UserError(where, f"did you mean {alike[0]}? {listing}" if alike else listing)


def _files(code: str) -> list[str]:
    """Relative paths below the code directory, of a bounded number of files."""
    found: list[str] = []
    for folder, folders, names in os.walk(code):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        found += (os.path.relpath(os.path.join(folder, name), code) for name in sorted(names))
        if len(found) >= _SEARCHED:
            break
    return found
