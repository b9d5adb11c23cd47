"""The only reader of TRAINBOX_*: one table of names, types, defaults and help."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainbox.errors import UserError
from trainbox.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

PREFIX = "TRAINBOX_"

ARGUMENT_STYLES = ("value", "flag", "boolean", "equals", "none", "sagemaker", "sdk3")


def _text(value: str) -> str:
    return value


def _seconds(value: str) -> float:
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number


def _count(value: str) -> int:
    number = int(value)
    if number < 0:
        raise ValueError
    return number


def _port(value: str) -> int:
    number = int(value)
    if not 0 < number < 65536:
        raise ValueError
    return number


def _switch(value: str) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False,
            "off": False, "": False}[value.strip().lower()]  # fmt: skip


def _owner(value: str) -> str:
    user, colon, group = value.partition(":")
    if value and not (user.isdecimal() and (group.isdecimal() or not colon)):
        raise ValueError
    return value


def _style(value: str) -> str:
    if value not in ARGUMENT_STYLES:
        raise ValueError
    return value


def _prefix(value: str) -> str:
    if value not in ("auto", "on", "off"):
        raise ValueError
    return value


def _ranks(value: str) -> tuple[range, ...]:
    """``all``, or ranks and ranges: ``0,4-7``. The empty tuple stands for all."""
    if value == "all":
        return ()
    spans = []
    for part in value.split(","):
        first, _, last = part.strip().partition("-")
        spans.append(range(int(first), int(last or first) + 1))
    return tuple(spans)


def _nodes(value: str) -> tuple[int, int] | None:
    if not value:
        return None
    low, _, high = value.partition(":")
    pair = (int(low), int(high or low))
    if not 1 <= pair[0] <= pair[1]:
        raise ValueError
    return pair


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _addresses(value: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in _words(value):
        host, sign, address = word.partition("=")
        if not (host and sign and address):
            raise ValueError
        pairs.append((host, address))
    return tuple(pairs)


class Setting(NamedTuple):
    """One TRAINBOX_* variable. `default` is text, read by the same parser as a given value."""

    field: str
    parse: Callable[[str], Any]
    default: str
    expects: str
    help: str

    @property
    def name(self) -> str:
        return PREFIX + self.field.upper()


# fmt: off
TABLE: tuple[Setting, ...] = (
    Setting("launcher", _text, "", "a launcher's name",
            "Launcher to use when no hyperparameter asks for one: script or torchrun"),
    Setting("argument_style", _style, "value", "one of " + ", ".join(ARGUMENT_STYLES),
            "How hyperparameters become arguments of the script"),
    Setting("processes_per_host", _count, "0", "a whole number",
            "Processes a host; 0 means the job's own value, else GPUs, else Neuron cores, else 1"),
    Setting("max_restarts", _count, "0", "a whole number",
            "How often torchrun starts the ranks again after a failure"),
    Setting("nodes", _nodes, "", "a number of hosts, or min:max",
            "Elastic range of hosts for torchrun, for example 2:4; empty: all hosts, fixed"),
    Setting("strict", _switch, "0", "0 or 1",
            "1 makes an error of what is otherwise a warning, such as several hosts without a launcher"),
    Setting("python", _text, "", "a path",
            "Interpreter of the script; empty: the one train itself runs on"),
    Setting("grace_seconds", _seconds, "110", "a number of seconds",
            "Time between SIGTERM and SIGKILL for the script, to write a last checkpoint"),
    Setting("start_timeout_seconds", _seconds, "600", "a number of seconds",
            "How long hosts wait for each other's names and for the leader"),
    Setting("port", _port, "7777", "a port, 1 to 65535",
            "MASTER_PORT: the port on the leader at which the ranks meet"),
    Setting("channel_port", _port, "7776", "a port, 1 to 65535",
            "Port on the leader at which the hosts join"),
    Setting("interface", _text, "", "an interface's name",
            "Network interface for the ranks; empty: the one that leads to the peers"),
    Setting("addresses", _addresses, "", "name=address pairs, separated by commas",
            "Addresses of hosts, instead of resolving their names"),
    Setting("job_token", _text, "", "any text",
            "Secret that hosts of one job share; hosts without it may not join"),
    Setting("prefix", _prefix, "auto", "auto, on or off",
            "Whether output lines begin with [host rank]; auto: when the job has more than one rank"),
    Setting("ranks", _ranks, "all", "all, or ranks such as 0,4-7",
            "Which ranks' output is shown; the others' is read and not shown"),
    Setting("wheelhouse", _text, "", "a folder",
            "Folder of wheels from which alone requirements are installed, without an index"),
    Setting("constraints", _text, "", "a file",
            "Constraints file for the installation of requirements"),
    Setting("install_timeout_seconds", _seconds, "1800", "a number of seconds",
            "How long the installation of requirements may take"),
    Setting("require_model", _switch, "0", "0 or 1",
            "1 makes a job that leaves no model fail"),
    Setting("secrets", _words, "", "words, separated by commas",
            "Further words that mark a hyperparameter or variable as secret when its name holds one"),
    Setting("owner", _owner, "", "UID or UID:GID",
            "User and group that own model and output at the end"),
)
# fmt: on

_VALUES = {setting.field: setting for setting in TABLE}


class Settings:
    """Values of all settings as attributes, for example ``settings.grace_seconds``. Read only."""

    launcher: str
    argument_style: str
    processes_per_host: int
    max_restarts: int
    nodes: tuple[int, int] | None
    strict: bool
    python: str
    grace_seconds: float
    start_timeout_seconds: float
    port: int
    channel_port: int
    interface: str
    addresses: tuple[tuple[str, str], ...]
    job_token: str
    prefix: str
    ranks: tuple[range, ...]
    wheelhouse: str
    constraints: str
    install_timeout_seconds: float
    require_model: bool
    secrets: tuple[str, ...]
    owner: str

    unknown: tuple[str, ...]
    """Names that begin with TRAINBOX_ and are no setting: mostly typing errors."""

    def __init__(self, values: Mapping[str, Any], unknown: tuple[str, ...] = ()) -> None:
        self.__dict__.update(values, unknown=unknown)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("settings are read only")


def read(environ: Mapping[str, str]) -> Settings:
    """Reads all settings from `environ`.

    Raises UserError naming the variable and what it should hold.
    """
    values = {}
    for setting in TABLE:
        text = environ.get(setting.name, setting.default)
        try:
            values[setting.field] = setting.parse(text)
        except (ValueError, KeyError):
            shown = "a value that does not fit" if setting.field == "job_token" else repr(text)
            raise UserError(f"{setting.name} is {shown}, expected {setting.expects}") from None
    known = {setting.name for setting in TABLE} | INTERNAL
    unknown = tuple(sorted(name for name in environ if name.startswith(PREFIX) and name not in known))
    return Settings(values, unknown)


# Written by trainbox for its own processes and for tests, never set by users.
RANK_SOCKET = "TRAINBOX_RANK_SOCKET"
"""Name of the socket at which a launcher's ranks report themselves."""

INSTALL_LOCK = "TRAINBOX_INSTALL_LOCK"
"""Path that hosts lock while they install, where they share one interpreter's packages."""

INTERNAL = frozenset({RANK_SOCKET, INSTALL_LOCK, "TRAINBOX_REQUIRE_DOCKER"})


def suggest(name: str) -> str:
    """The setting most like `name`, or an empty string."""
    from difflib import get_close_matches  # only for a typing error

    return "".join(get_close_matches(name, [setting.name for setting in TABLE], 1))
