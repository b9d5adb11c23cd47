"""The plain launcher: the script once on every host."""

from __future__ import annotations

from trainbox import fabric
from trainbox.errors import UserError
from trainbox.launchers import Launch, threads
from trainbox.plan import LaunchPlan, Process

PROBES: tuple[str, ...] = ()


def plan(launch: Launch) -> LaunchPlan:
    """One process. Several hosts without a launcher are independent copies: said, or refused if strict."""
    job, network, settings = launch.job, launch.network, launch.settings
    notes: tuple[str, ...] = ()
    hosts = job.ranked if job.distributed and not job.distribution_groups else (job.me,)
    if job.distribution_groups and not job.distributed:
        notes = (
            f"{job.me} is in none of the groups {', '.join(job.distribution_groups)} of the distributed job: "
            "it runs the script once, on its own",
        )
    elif len(hosts) > 1:
        warning = (
            f"{len(hosts)} hosts and no launcher asked for: each host runs an independent copy of the script "
            "(world size 1); choose one by distribution or TRAINBOX_LAUNCHER, for example torchrun"
        )
        if settings.strict:
            raise UserError(warning)
        notes = (warning,)
    env = launch.env + threads(network.machines[job.me], 1, launch.environ)
    if len(hosts) > 1:
        env += fabric.variables(network.interface, network.why_interface, launch.environ)
    index = hosts.index(job.me)
    process = Process("script", launch.command, env, launch.cwd, (index,))
    return LaunchPlan("script", job.me, hosts, hosts[0], 1, 1, (process,), notes)
