"""What `trainbox run` is asked for, checked and as one value."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trainbox.errors import UserError
from trainbox.job import is_channel_name
from trainbox.local import distribution

CODE_CHANNEL = "code"
DEFAULT_SHM = 1 << 30
DEFAULT_GRACE_SECONDS = 30
"""Seconds between SIGTERM and SIGKILL, when TRAINBOX_GRACE_SECONDS is not set: a person is waiting."""

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

# Written by the runner itself; a second value would contradict the command line.
_OWN_VARIABLES = (
    "SAGEMAKER_BASE_DIR", "SAGEMAKER_PROGRAM", "SAGEMAKER_SUBMIT_DIRECTORY", "TRAINING_JOB_NAME",
    "TRAINBOX_JOB_TOKEN",
)  # fmt: skip
_OWN_HYPERPARAMETERS = ("sagemaker_program", "sagemaker_submit_directory", "sagemaker_job_name")


class RunRequest(NamedTuple):
    """One local job.

    program: as hyperparameter sagemaker_program, relative to source_dir. hyperparameters: values as Python
    has them. reserved: what the distribution sends. image: empty for hosts as processes. user, network: as
    given, may be empty. cpus: 0 for no limit. memory, shm: bytes, 0 when not given. timeout: seconds, 0 for
    none. name: empty for one made from the program and the time.
    """

    program: str
    source_dir: str
    hosts: tuple[str, ...]
    launcher: str
    hyperparameters: Mapping[str, Any]
    reserved: Mapping[str, Any]
    channels: Mapping[str, str]
    output: str
    image: str
    env: Mapping[str, str]
    instance_type: str
    shm: int
    cpus: float
    memory: int
    user: str
    network: str
    name: str
    timeout: float
    keep: bool


def host_names(count: int) -> tuple[str, ...]:
    """algo-1 to algo-N."""
    return tuple(f"algo-{number}" for number in range(1, count + 1))


def size(option: str, text: str) -> int:
    """Bytes of `2g`, `512m`, `1048576`. Raises UserError that names the option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if not match or not float(match[1]):
        raise UserError(f"{option} is {text!r}, expected a size such as 512m or 2g")
    return int(float(match[1]) * _UNITS[match[2]])


def pairs(option: str, items: Iterable[str], example: str) -> dict[str, str]:
    """NAME=VALUE arguments; the last of a name counts."""
    found = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not (name and sign):
            raise UserError(f"{option} {item!r} is not NAME=VALUE", f"write it like {option} {example}")
        found[name] = value
    return found


def environment(items: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of `--env`: NAME=VALUE, or NAME to take it from the caller without showing it."""
    found = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env {name!r} is not a variable's name")
        if name in _OWN_VARIABLES:
            raise UserError(f"--env {name}: trainbox run sets this variable itself")
        if not sign:
            if name not in environ:
                raise UserError(f"--env {name}: there is no such variable here", f"write --env {name}=VALUE")
            value = environ[name]
        found[name] = value
    return found


def _file_object(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            value = json.load(file)
    except OSError as error:
        raise UserError(f"--hyperparameters {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--hyperparameters {path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"--hyperparameters {path} holds no object", 'it should look like {"epochs": 3}')
    return value


def hyperparameters(path: str, items: Iterable[str]) -> dict[str, Any]:
    """Those of the file, then those of `-p`, which are JSON where they can be read as JSON, else text."""
    values = _file_object(path) if path else {}
    for name, text in pairs("-p", items, "epochs=3").items():
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError):
            values[name] = text
    for name in _OWN_HYPERPARAMETERS:
        if name in values:
            raise UserError(f"hyperparameter {name}: trainbox run sets it itself, from its command line")
    return values


def program(script: str, source_dir: str) -> tuple[str, str]:
    """The program, relative to the source folder, and that folder as an absolute path.

    A script may be given as it lies from here, or relative to the source folder, or be a module in it.
    Raises UserError that names the places looked at.
    """
    if not source_dir:
        if os.path.isfile(script):
            folder, name = os.path.split(os.path.abspath(script))
            return name, folder
        what = "is a folder" if os.path.isdir(script) else "there is no such file"
        raise UserError(f"script {script}: {what}", "for a module, name its folder with --source-dir")
    if not os.path.isdir(source_dir):
        raise UserError(f"--source-dir {source_dir}: there is no such folder")
    folder = os.path.abspath(source_dir)
    if not os.path.isabs(script) and os.path.isfile(os.path.join(folder, script)):
        relative = os.path.normpath(script)
    elif os.path.isfile(script):
        relative = os.path.relpath(os.path.realpath(script), os.path.realpath(folder))
    elif _is_module(script, folder):
        return script, folder
    else:
        raise UserError(f"script {script}: there is no such file here or in {source_dir}")
    if relative.startswith(".." + os.sep):
        raise UserError(f"script {script} is not inside --source-dir {source_dir}")
    return relative, folder


def _is_module(name: str, folder: str) -> bool:
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        return False
    path = os.path.join(folder, *name.split("."))
    return os.path.isfile(path + ".py") or os.path.isfile(os.path.join(path, "__main__.py"))


def channels(items: Iterable[str]) -> dict[str, str]:
    """Folders of the channels by name."""
    found = {}
    for name, folder in pairs("--channel", items, "train=data/").items():
        if not is_channel_name(name):
            raise UserError(f"--channel {name!r} is not a channel's name (letters, digits, '.', '-', '_')")
        if name == CODE_CHANNEL:
            raise UserError("--channel code: the source folder has this name", "choose another one")
        if not os.path.isdir(folder):
            what = "is a file, expected a folder" if os.path.exists(folder) else "there is no such folder"
            raise UserError(f"--channel {name}={folder}: {what}")
        found[name] = os.path.abspath(folder)
    return found


def check_name(name: str) -> str:
    """A job's name, as the platform takes it."""
    if name and not re.fullmatch(r"(?=.{1,63}$)[A-Za-z0-9](-*[A-Za-z0-9])*", name):
        raise UserError(f"--job-name {name!r} is not a job's name (63 letters, digits, inner dashes)")
    return name


def reserved(
    chosen: str, given: str, per_host: int, instance_type: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The platform's hyperparameters for `--launcher`, `--distribution` and `--processes-per-host`."""
    if chosen and given:
        raise UserError("--launcher and --distribution both choose the launcher", "give one of them")
    sent: dict[str, Any] = {}
    if given:
        sent = distribution.reserved(distribution.parse(given), instance_type)
    elif chosen == "torchrun":
        sent = distribution.reserved({"torch_distributed": {"enabled": True}}, instance_type)
    if per_host:
        key = "sagemaker_mpi_num_of_processes_per_host"
        if sent.get(key, per_host) != per_host:
            raise UserError(f"--processes-per-host is {per_host}, --distribution says {sent[key]}")
        launched = any(name.endswith("_enabled") and value is True for name, value in sent.items())
        asked_elsewhere = not chosen and environ.get("TRAINBOX_LAUNCHER", "script") != "script"
        if per_host > 1 and not launched and not asked_elsewhere:
            raise UserError(
                f"--processes-per-host {per_host} needs a launcher that starts them",
                "add --launcher torchrun",
            )
        sent[key] = per_host
    return sent
