"""Launchers by name, and the choice of exactly one for a job (contract 5.1, 5.2)."""

from __future__ import annotations

from trainbox.errors import UserError
from trainbox.job import Job, is_on
from trainbox.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from trainbox.machine import Machine
    from trainbox.plan import EnvVar, LaunchPlan
    from trainbox.settings import Settings

    class Launcher(Protocol):
        """A module of this package."""

        PROBES: tuple[str, ...]
        """Python modules whose presence the launcher needs to know."""

        def plan(self, launch: Launch) -> LaunchPlan:
            """The plan for this host; pure. Raises UserError when the job cannot be launched like this."""


NAMES = ("script", "torchrun")

# Which launcher a reserved hyperparameter asks for; one that is not here is refused, never replaced.
REQUESTS = {
    "sagemaker_torch_distributed_enabled": "torchrun",
    "sagemaker_mpi_enabled": "mpi",
    "sagemaker_pytorch_ddp_enabled": "pytorchddp",
    "sagemaker_distributed_dataparallel_enabled": "smddp",
    "sagemaker_pytorch_xla_multi_worker_enabled": "pytorchxla",
    "sagemaker_parameter_server_enabled": "parameter_server",
    "sagemaker_multi_worker_mirrored_strategy_enabled": "multi_worker_mirrored",
}


class Network(NamedTuple):
    """What the hosts found out about each other.

    machines: by host, in rank order. interface: the one on this host that leads to the peers, or empty;
    why_interface: where it comes from. leader_address: where all hosts reach the leader.
    """

    machines: Mapping[str, Machine]
    interface: str
    why_interface: str
    leader_address: str


class Launch(NamedTuple):
    """All that a launcher makes its plan from.

    command: interpreter, program and its arguments. cwd: the code directory. env: variables for every process
    of the script. environ: what is set already; a launcher overrides none of it.
    """

    job: Job
    network: Network
    settings: Settings
    command: tuple[str, ...]
    cwd: str
    env: tuple[EnvVar, ...]
    environ: Mapping[str, str]
    python: str


def select(job: Job, settings: Settings) -> str:
    """The name of the one launcher for this host.

    Raises UserError when two are asked for, or one that there is none of.
    """
    asked = {name: flag for flag, name in REQUESTS.items() if is_on(job.reserved.get(flag))}
    if settings.launcher:
        if settings.launcher not in NAMES:
            raise UserError(f"TRAINBOX_LAUNCHER is {settings.launcher!r}, there are {', '.join(NAMES)}")
        asked.setdefault(settings.launcher, "TRAINBOX_LAUNCHER")
    if len(asked) > 1:
        raise UserError(
            "the job asks for more than one launcher: "
            + ", ".join(f"{name} (by {source})" for name, source in asked.items()),
            "switch all but one off",
        )
    if not asked:
        return "script"
    ((name, source),) = asked.items()
    if name not in NAMES:
        raise UserError(
            f"{source} asks for the launcher {name}, this version of trainbox has {', '.join(NAMES)}",
            "nothing was started: no other launcher is taken in its place",
        )
    return name if job.distributed else "script"


def load(name: str) -> Launcher:
    """The launcher's module; imported here, so that a job pays only for its own."""
    # Not importlib, whose own import takes as long as all that is done here.
    module: Any = __import__(f"trainbox.launchers.{name}", fromlist=["plan"])
    launcher: Launcher = module
    return launcher


def processes_per_host(job: Job, settings: Settings, machine: Machine) -> tuple[int, str]:
    """How many ranks a host runs, and why: asked for, else GPUs, else Neuron cores, else 1 (contract 5.2)."""
    key = "sagemaker_mpi_num_of_processes_per_host"
    given: Any = job.reserved.get(key)
    if given not in (None, "", 0):
        try:
            number = int(given)
        except (TypeError, ValueError):
            number = 0
        if number < 1 or isinstance(given, (bool, float)):
            raise UserError(f"{key} is {given!r}, expected a number of processes")
        return number, key
    if settings.processes_per_host:
        return settings.processes_per_host, "TRAINBOX_PROCESSES_PER_HOST"
    if machine.gpus:
        return machine.gpus, "one a GPU"
    if machine.neuron_cores:
        return machine.neuron_cores, "one a Neuron core"
    return 1, "no GPU or Neuron core is visible"


def threads(machine: Machine, processes: int, environ: Mapping[str, str]) -> tuple[EnvVar, ...]:
    """OMP_NUM_THREADS from the cores that the container really has, unless the user has set it."""
    from trainbox.plan import EnvVar

    if "OMP_NUM_THREADS" in environ:
        return ()
    number = max(1, machine.cpus // processes)
    why = f"cores of the container ({machine.cpus}) over processes ({processes})"
    return (EnvVar("OMP_NUM_THREADS", str(number), why),)
