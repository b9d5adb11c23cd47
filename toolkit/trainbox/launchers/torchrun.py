"""torchrun: one agent a host, which starts the ranks (contract 5.4, less what 6.4 calls harmful)."""

from __future__ import annotations

from trainbox import fabric
from trainbox.errors import UserError
from trainbox.launchers import Launch, processes_per_host, threads
from trainbox.plan import EnvVar, LaunchPlan, Process
from trainbox.rank import PROGRAM

PROBES = ("torch",)

GRACE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Seconds that torchrun gives its ranks between SIGTERM and SIGKILL."""

# torchrun kills its ranks itself when this time is over; it has to do so before we kill it.
_AHEAD_SECONDS = 2


def plan(launch: Launch) -> LaunchPlan:
    """The agent of this host, with explicit node rank and addresses, or with a rendezvous if elastic."""
    job, network, settings = launch.job, launch.network, launch.settings
    machine = network.machines[job.me]
    if "torch" not in machine.modules:
        raise UserError(
            "torchrun was asked for and this image has no PyTorch (module torch) for " + launch.python,
            "use an image with PyTorch; nothing else is started in its place",
        )
    mine, why = processes_per_host(job, settings, machine)
    each = [processes_per_host(job, settings, network.machines[host])[0] for host in job.ranked]
    before = sum(each[: job.rank])
    world = sum(each)
    if settings.nodes:
        least, most = settings.nodes
        if not least <= len(job.ranked) <= most:
            raise UserError(
                f"TRAINBOX_NODES is {least}:{most} and the job has {len(job.ranked)} hosts",
                "the range has to include them",
            )
        world = mine * least
    argv = (
        launch.python, "-m", "torch.distributed.run",
        *_rendezvous(launch),
        "--nproc_per_node", str(mine),
        *(("--max_restarts", str(settings.max_restarts)) if settings.max_restarts else ()),
        "--no_python", launch.python, "-I", "-S", PROGRAM,
        *launch.command,
    )  # fmt: skip
    env = (
        *launch.env,
        *threads(machine, mine, launch.environ),
        *fabric.variables(network.interface, network.why_interface, launch.environ),
        *_grace(launch),
    )
    # An elastic job's ranks are given out at the rendezvous, not by the order of hosts.
    ranks = () if settings.nodes else tuple(range(before, before + mine))
    process = Process("torchrun", argv, env, launch.cwd, ranks, launches=True)
    notes = (f"processes on this host: {mine} ({why})",)
    return LaunchPlan("torchrun", job.me, job.ranked, job.leader, world, mine, (process,), notes)


def _rendezvous(launch: Launch) -> tuple[str, ...]:
    job, settings, address = launch.job, launch.settings, launch.network.leader_address
    if settings.nodes:
        least, most = settings.nodes
        timeout = int(settings.start_timeout_seconds)
        return (
            "--nnodes", f"{least}:{most}",
            "--rdzv_backend", "c10d",
            "--rdzv_endpoint", f"{address}:{settings.port}",
            "--rdzv_id", job.name or "trainbox",
            "--rdzv_conf", f"is_host={int(job.me == job.leader)},join_timeout={timeout}",
        )  # fmt: skip
    if len(job.ranked) == 1:
        # No fixed port and no name to resolve, so that several jobs fit on one machine, without a network.
        return (
            "--nnodes", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:0",
            "--local_addr", "127.0.0.1",
        )  # fmt: skip
    return (
        "--nnodes", str(len(job.ranked)),
        "--node_rank", str(job.rank),
        "--master_addr", address,
        "--master_port", str(settings.port),
    )  # fmt: skip


def _grace(launch: Launch) -> tuple[EnvVar, ...]:
    if GRACE in launch.environ:
        return ()
    seconds = max(1, int(launch.settings.grace_seconds) - _AHEAD_SECONDS)
    return (EnvVar(GRACE, str(seconds), "torchrun gives the ranks as long as TRAINBOX_GRACE_SECONDS allows"),)
