"""What the platform asks for: the tree under /opt/ml, read once, as a value (contract 1 and 3)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from trainbox import hyperparameters
from trainbox.errors import UserError
from trainbox.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

DEFAULT_BASE = "/opt/ml"
DEFAULT_GROUP = "homogeneousCluster"
DEFAULT_INTERFACE = "eth0"


class Paths(NamedTuple):
    """Every path of the tree (contract 1.2)."""

    base: str

    def _of(self, *parts: str) -> str:
        return os.path.join(self.base, *parts)

    @property
    def code(self) -> str:
        return self._of("code")

    @property
    def input(self) -> str:
        return self._of("input")

    @property
    def config(self) -> str:
        return self._of("input", "config")

    @property
    def data(self) -> str:
        return self._of("input", "data")

    @property
    def model(self) -> str:
        return self._of("model")

    @property
    def output(self) -> str:
        return self._of("output")

    @property
    def output_data(self) -> str:
        return self._of("output", "data")

    @property
    def intermediate(self) -> str:
        return self._of("output", "intermediate")

    @property
    def failure(self) -> str:
        return self._of("output", "failure")

    def config_file(self, name: str) -> str:
        return self._of("input", "config", name)


class Group(NamedTuple):
    """A set of hosts of one instance type (contract 2.6)."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


class Channel(NamedTuple):
    """One input channel; `mode` is File, FastFile or Pipe (contract 1.3, 1.4)."""

    name: str
    path: str
    mode: str
    content_type: str


class Job(NamedTuple):
    """One job as one host sees it.

    hosts: all hosts, in the order of the file. ranked: the hosts that run the distributed job, in rank order;
    its first is the leader. me: this host. hyperparameters: the script's own; reserved: the platform's.
    program: name of the entry point, or empty; command: a command line given to `train` instead.
    arguments: further arguments given to `train`. notes: what a reader should be warned of.
    """

    name: str
    paths: Paths
    hosts: tuple[str, ...]
    ranked: tuple[str, ...]
    me: str
    groups: tuple[Group, ...]
    group: str
    distribution_groups: tuple[str, ...]
    instance_type: str
    interface: str
    topology: Any
    hyperparameters: Mapping[str, Any]
    reserved: Mapping[str, Any]
    channels: tuple[Channel, ...]
    program: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    submit_directory: str
    region: str
    log_level: int
    resource_config: Mapping[str, Any]
    input_config: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def leader(self) -> str:
        """First host in rank order."""
        return self.ranked[0]

    @property
    def distributed(self) -> bool:
        """Whether this host is one of those that run the distributed job (contract 5.2)."""
        return self.me in self.ranked

    @property
    def rank(self) -> int:
        """This host's place in rank order; 0 outside of the distributed groups."""
        return self.ranked.index(self.me) if self.distributed else 0


# Reserved flags that ask for a launcher: with one of them, the own group is the default distribution group.
DISTRIBUTION_FLAGS = (
    "sagemaker_mpi_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_torch_distributed_enabled",
)


def natural(name: str) -> tuple[Any, ...]:
    """Sort key by which algo-2 comes before algo-10."""
    return tuple(
        (0, int(part), part) if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)
    )


def is_channel_name(name: str) -> bool:
    """Whether the platform takes it (contract 1.3), and it names a folder of its own."""
    return bool(re.fullmatch(r"[A-Za-z0-9._\-]{1,64}", name)) and name not in (".", "..")


def is_on(value: Any) -> bool:
    """A reserved flag, which clients send as true, "true" or 1."""
    return value is True or value == 1 or (isinstance(value, str) and value.strip().lower() in ("true", "1"))


def _read_object(path: str, notes: list[str]) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file or nothing in it.

    Raises UserError that names the file, and the byte where it stops being JSON.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror} (as user {os.getuid()})",
            "run the container as a user who may read it, or mount it readable",
        ) from None
    size = len(data)
    data = data.removeprefix(b"\xef\xbb\xbf")
    mark = size - len(data)
    if not data.strip():
        notes.append(f"{path} is empty: read as if it were absent")
        return {}
    try:
        text = data.decode("utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte {mark + error.start}") from None
    except json.JSONDecodeError as error:
        offset = mark + len(text[: error.pos].encode())
        cut = offset >= size - 1 or error.msg.startswith("Unterminated")
        ends = " (the file ends within a value: is it cut off?)" if cut else ""
        raise UserError(f"{path} is not JSON at byte {offset} of {size}: {error.msg}{ends}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, expected a JSON object")
    return value


def _get(config: Mapping[str, Any], key: str, kind: type[Any], default: Any, path: str) -> Any:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        names: dict[type[Any], str] = {str: "a string", list: "a list", dict: "an object"}
        raise UserError(f"{path}: key {key} is {json.dumps(value)[:80]}, expected {names[kind]}")
    return value


def _strings(config: Mapping[str, Any], key: str, path: str) -> list[str]:
    values = _get(config, key, list, [], path)
    for value in values:
        if not isinstance(value, str) or not value:
            raise UserError(f"{path}: key {key} holds {json.dumps(value)[:80]}, expected names of hosts")
    if len(set(values)) != len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise UserError(f"{path}: key {key} names {twice} more than once")
    return list(values)


def _groups(config: Mapping[str, Any], hosts: list[str], path: str) -> tuple[Group, ...]:
    groups = []
    for entry in _get(config, "instance_groups", list, [], path):
        if not isinstance(entry, dict):
            raise UserError(f"{path}: key instance_groups holds {json.dumps(entry)[:80]}, expected objects")
        name = _get(entry, "instance_group_name", str, DEFAULT_GROUP, path)
        members = _strings(entry, "hosts", path)
        strangers = [host for host in members if host not in hosts]
        if strangers:
            raise UserError(f"{path}: group {name} names {strangers[0]}, which is not among hosts")
        groups.append(Group(name, _get(entry, "instance_type", str, "local", path), tuple(members)))
    return tuple(groups)


def _as_host(resources: Mapping[str, Any], host: str) -> dict[str, Any]:
    """The file as another host of the job has it."""
    changed = {**resources, "current_host": host}
    for entry in resources.get("instance_groups") or ():
        if isinstance(entry, dict) and host in (entry.get("hosts") or ()):
            changed["current_group_name"] = entry.get("instance_group_name")
            changed["current_instance_type"] = entry.get("instance_type")
    return changed


def _ranked(
    groups: tuple[Group, ...], chosen: tuple[str, ...], hosts: list[str], path: str
) -> tuple[str, ...]:
    """Hosts of the distributed job in natural order, which is the same on every host (contract 3.2)."""
    if not groups or not chosen:
        return tuple(sorted(hosts, key=natural))
    known = {group.name: group for group in groups}
    for name in chosen:
        if name not in known:
            raise UserError(
                f"sagemaker_distribution_instance_groups names {name}, {path} has {', '.join(known)}"
            )
    members = {host for name in chosen for host in known[name].hosts}
    if not members:
        raise UserError(f"{path}: the groups {', '.join(chosen)} have no hosts")
    return tuple(sorted(members, key=natural))


def _channels(config: Mapping[str, Any], paths: Paths, path: str) -> tuple[Channel, ...]:
    channels = []
    for name in sorted(config):
        if not is_channel_name(name):
            raise UserError(f"{path}: {name!r} is not a channel's name (letters, digits, '.', '-', '_')")
        entry = _get(config, name, dict, {}, path)
        channels.append(
            Channel(
                name,
                os.path.join(paths.data, name),
                _get(entry, "TrainingInputMode", str, "File", path),
                _get(entry, "ContentType", str, "", path),
            )
        )
    return tuple(channels)


def _log_level(value: Any) -> int:
    """10 to 50; clients send 20, "20" and a quoted "20" (contract 3.1)."""
    text = str(value).strip().strip('"')
    names = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
    if text.upper() in names:
        return names[text.upper()]
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise UserError(f"sagemaker_container_log_level is {text!r}, expected a number such as 20") from None


def _text(value: Any) -> str:
    """A reserved value that is text by meaning, even when a job is called 123."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _distribution_groups(
    reserved: Mapping[str, Any], groups: tuple[Group, ...], group: str, requested: bool
) -> tuple[str, ...]:
    asked = reserved.get("sagemaker_distribution_instance_groups")
    if asked:
        names = asked if isinstance(asked, list) else [asked]
        return tuple(str(name) for name in names)
    return (group,) if groups and requested else ()


def read(
    environ: Mapping[str, str], arguments: tuple[str, ...] = (), *, launcher_set: bool = False, host: str = ""
) -> Job:
    """Reads the job of this host.

    environ: SAGEMAKER_BASE_DIR, SAGEMAKER_PROGRAM, SAGEMAKER_SUBMIT_DIRECTORY, TRAINING_JOB_NAME, AWS_REGION.
    arguments: the command line of `train`: options are added to the script's; a first word that is no
    option names the program, or is a command with its own arguments.
    launcher_set: a setting asks for a launcher, as a distribution flag would.
    host: read the job as this host sees it, instead of the one that the files belong to.
    Raises UserError naming the file, the key, and what was expected.
    """
    paths = Paths(os.path.abspath(environ.get("SAGEMAKER_BASE_DIR") or DEFAULT_BASE))
    notes: list[str] = []
    resource_path = paths.config_file("resourceconfig.json")
    input_path = paths.config_file("inputdataconfig.json")
    resources = _read_object(resource_path, notes)
    if host:
        resources = _as_host(resources, host)
    inputs = _read_object(input_path, notes)
    values, twice = hyperparameters.decode(_read_object(paths.config_file("hyperparameters.json"), notes))
    if twice:
        notes.append("hyperparameters.json was JSON-encoded twice by the client: decoded twice")
    reserved = {key: value for key, value in values.items() if hyperparameters.is_reserved(key)}
    own = {key: value for key, value in values.items() if key not in reserved}

    hosts = _strings(resources, "hosts", resource_path)
    me = _get(resources, "current_host", str, hosts[0] if len(hosts) == 1 else "", resource_path)
    if not hosts:
        hosts = [me or "algo-1"]
    me = me or ("algo-1" if hosts == ["algo-1"] else "")
    if not me:
        raise UserError(f"{resource_path}: key current_host is missing, expected one of {', '.join(hosts)}")
    if me not in hosts:
        raise UserError(f"{resource_path}: key current_host is {me}, which is not among hosts")
    groups = _groups(resources, hosts, resource_path)
    group = _get(resources, "current_group_name", str, DEFAULT_GROUP, resource_path)
    requested = launcher_set or any(is_on(reserved.get(flag)) for flag in DISTRIBUTION_FLAGS)
    chosen = _distribution_groups(reserved, groups, group, requested)

    program = environ.get("SAGEMAKER_PROGRAM") or _text(reserved.get("sagemaker_program"))
    named = bool(arguments) and not arguments[0].startswith("-")
    return Job(
        name=_text(reserved.get("sagemaker_job_name")) or environ.get("TRAINING_JOB_NAME", ""),
        paths=paths,
        hosts=tuple(hosts),
        ranked=_ranked(groups, chosen, hosts, resource_path),
        me=me,
        groups=groups,
        group=group,
        distribution_groups=chosen,
        instance_type=_get(resources, "current_instance_type", str, "local", resource_path),
        interface=_get(resources, "network_interface_name", str, DEFAULT_INTERFACE, resource_path),
        topology=resources.get("topology"),
        hyperparameters=own,
        reserved=reserved,
        channels=_channels(inputs, paths, input_path),
        program="" if named else program,
        command=arguments if named else (),
        arguments=() if named else arguments,
        submit_directory=_text(reserved.get("sagemaker_submit_directory"))
        or environ.get("SAGEMAKER_SUBMIT_DIRECTORY", ""),
        region=environ.get("AWS_REGION")
        or environ.get("SAGEMAKER_REGION")
        or _text(reserved.get("sagemaker_region")),
        log_level=_log_level(reserved.get("sagemaker_container_log_level", 20)),
        resource_config=resources,
        input_config=inputs,
        notes=tuple(notes),
    )
