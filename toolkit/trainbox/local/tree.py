"""Writes the tree under /opt/ml of each host, as the platform does (contract 1.2, 3.1 to 3.3)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from trainbox.errors import PlatformError, UserError
from trainbox.job import DEFAULT_BASE, DEFAULT_GROUP, DEFAULT_INTERFACE, Paths
from trainbox.local import archive
from trainbox.local.request import CODE_CHANNEL, RunRequest

SOURCE_ARCHIVE = "sourcedir.tar.gz"
LARGE_SOURCE = 100_000_000
_NEVER_PACKED = (".git", "__pycache__", ".venv")


class Folder(NamedTuple):
    """The places of one local job under the output folder."""

    path: str
    name: str

    @property
    def output(self) -> str:
        return os.path.join(self.path, "output")

    @property
    def logs(self) -> str:
        return os.path.join(self.path, "logs")

    @property
    def work(self) -> str:
        return os.path.join(self.path, ".work")

    def log(self, host: str) -> str:
        """All that a host printed."""
        return os.path.join(self.logs, f"{host}.log")

    def home(self, host: str) -> str:
        """What is one host's alone."""
        return os.path.join(self.work, host)

    def base(self, host: str) -> str:
        """The tree that is /opt/ml of the host."""
        return os.path.join(self.home(host), "opt", "ml")


def _default_name(program: str) -> str:
    stem = os.path.splitext(os.path.basename(program))[0]
    words = re.sub(r"[^A-Za-z0-9]+", "-", stem)[:38].strip("-") or "job"
    return f"{words}-{time.strftime('%Y-%m-%d-%H-%M-%S')}-{secrets.token_hex(2)}"


def reserve(request: RunRequest) -> Folder:
    """Makes the job's folder, which no other job has. Raises UserError when it cannot be made."""
    for _ in range(100):
        name = request.name or _default_name(request.program)
        folder = Folder(os.path.join(request.output, name), name)
        try:
            os.makedirs(request.output, exist_ok=True)
            os.mkdir(folder.path)
        except FileExistsError as error:
            if os.path.isdir(request.output) and not request.name:
                continue
            taken = error.filename or request.output
            raise UserError(f"{taken} exists already", "choose another --job-name or --output") from None
        except OSError as error:
            raise UserError(f"cannot write to --output {request.output}: {error.strerror}") from None
        os.mkdir(folder.output)
        os.mkdir(folder.logs)
        os.mkdir(folder.work, 0o700)  # hyperparameters may be secret; the trees below are open to any user
        return folder
    raise PlatformError(f"found no free name for a job in {request.output}")


def pack_source(request: RunRequest, folder: Folder) -> tuple[str, list[str]]:
    """Packs the source folder once for all hosts; path of the archive, and warnings."""
    output = os.path.realpath(request.output)

    def leave(path: str, name: str) -> bool:
        if name in _NEVER_PACKED or os.path.exists(os.path.join(path, "pyvenv.cfg")):
            return True
        return os.path.realpath(path) == output

    target = os.path.join(folder.work, SOURCE_ARCHIVE)
    found = archive.listing(request.source_dir, leave)
    packed = archive.pack(found.files, target)
    warnings = [archive.left_out_line("the source", found.left_out)] if found.left_out else []
    if packed > LARGE_SOURCE:
        warnings.append(
            f"the source folder {request.source_dir} makes {archive.human(packed)}: name a smaller one with "
            "--source-dir, and data with --channel"
        )
    return target, warnings


def hyperparameters(request: RunRequest, name: str, base: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Content of hyperparameters.json: each value as JSON, as SageMaker's SDK v2 does (contract 3.1)."""
    values: dict[str, Any] = {
        "sagemaker_container_log_level": 20,
        "sagemaker_region": environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        **request.hyperparameters,
        **request.reserved,
        "sagemaker_program": request.program,
        "sagemaker_submit_directory": os.path.join(Paths(base).data, CODE_CHANNEL, SOURCE_ARCHIVE),
        "sagemaker_job_name": name,
    }
    return {key: json.dumps(value) for key, value in values.items()}


def resources(request: RunRequest, host: str, interface: str = DEFAULT_INTERFACE) -> dict[str, Any]:
    """Content of resourceconfig.json, in the shape that is live since 2022 (contract 3.2)."""
    return {
        "current_host": host,
        "current_instance_type": request.instance_type,
        "current_group_name": DEFAULT_GROUP,
        "hosts": sorted(request.hosts),
        "instance_groups": [
            {
                "instance_group_name": DEFAULT_GROUP,
                "instance_type": request.instance_type,
                "hosts": sorted(request.hosts),
            }
        ],
        "network_interface_name": interface,
        "topology": None,
    }


def inputs(request: RunRequest) -> dict[str, Any]:
    """Content of inputdataconfig.json (contract 3.3)."""
    entry = {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    return {name: dict(entry) for name in sorted({*request.channels, CODE_CHANNEL})}


def write(
    request: RunRequest, folder: Folder, host: str, source: str, environ: Mapping[str, str], *, interface: str
) -> Paths:
    """Writes the tree of one host. source: the packed source. interface: name of its network interface.

    In a container the tree is seen at /opt/ml and channels are mounted; a process sees it where it lies, and
    channels are links.
    """
    paths = Paths(folder.base(host))
    for path in (paths.config, paths.data, paths.model, paths.output_data, paths.code):
        os.makedirs(path)
    os.mkdir(os.path.join(paths.data, CODE_CHANNEL))
    shutil.copyfile(source, os.path.join(paths.data, CODE_CHANNEL, SOURCE_ARCHIVE))
    for name, target in request.channels.items():
        if request.image:
            os.mkdir(os.path.join(paths.data, name))
        else:
            os.symlink(target, os.path.join(paths.data, name))
    seen = DEFAULT_BASE if request.image else paths.base
    for name, content in (
        ("hyperparameters.json", hyperparameters(request, folder.name, seen, environ)),
        ("resourceconfig.json", resources(request, host, interface)),
        ("inputdataconfig.json", inputs(request)),
    ):
        with open(paths.config_file(name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    return paths


def open_to_all(base: str) -> None:
    """Lets any user write to a tree; what keeps others out is the folder above it."""
    for path, folders, files in os.walk(base):
        os.chmod(path, 0o777)
        for name in files:
            os.chmod(os.path.join(path, name), 0o666)
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(path, name))]


def remove(path: str) -> str:
    """Removes a tree; returns an empty string, or what could not be removed, and whose it is."""
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return ""
    _make_removable(path)  # folders that a script made read only
    shutil.rmtree(path, ignore_errors=True)
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            rest = os.path.join(folder, name)
            return f"{rest}, which belongs to user {os.lstat(rest).st_uid}"
    return path if os.path.lexists(path) else ""


def _make_removable(path: str) -> None:
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, stat.S_IRWXU)


def strangers(path: str) -> bool:
    """Whether something under `path` belongs to another user than the caller."""
    me = os.geteuid()
    for folder, folders, files in os.walk(path):
        if any(os.lstat(os.path.join(folder, name)).st_uid != me for name in (*folders, *files)):
            return True
    return False
