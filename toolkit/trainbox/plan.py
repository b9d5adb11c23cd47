"""What a host is going to do, as a value: made by a launcher, shown by `trainbox plan`, run by supervise."""

from __future__ import annotations

import json
from binascii import crc32

from trainbox.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any


class EnvVar(NamedTuple):
    """A variable added to a process, and why."""

    name: str
    value: str
    why: str


class Process(NamedTuple):
    """One process to start on this host.

    ranks: global ranks of the script that it carries, as far as they are known before the start.
    essential: whether its end is the end of the job.
    launches: it starts the ranks itself, through `trainbox.rank`, and forwards signals to them.
    """

    role: str
    argv: tuple[str, ...]
    env: tuple[EnvVar, ...]
    cwd: str
    ranks: tuple[int, ...]
    essential: bool = True
    launches: bool = False


class LaunchPlan(NamedTuple):
    """The launch of one job on one host.

    world: number of ranks of the whole job (the least number, when it is elastic).
    notes: warnings about the plan, a sentence each.
    """

    launcher: str
    host: str
    hosts: tuple[str, ...]
    leader: str
    world: int
    per_host: int
    processes: tuple[Process, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries, for `json.dumps`."""
        return {
            "launcher": self.launcher,
            "host": self.host,
            "hosts": list(self.hosts),
            "leader": self.leader,
            "world": self.world,
            "per_host": self.per_host,
            "processes": [
                {
                    "role": process.role,
                    "argv": list(process.argv),
                    "env": [variable._asdict() for variable in process.env],
                    "cwd": process.cwd,
                    "ranks": list(process.ranks),
                    "essential": process.essential,
                    "launches": process.launches,
                }
                for process in self.processes
            ],
            "notes": list(self.notes),
            "digest": self.digest,
        }

    @property
    def digest(self) -> str:
        """Eight hex digits, the same on all hosts of a job: a host with others plans another job."""
        common = [self.launcher, self.hosts, self.leader, self.world]
        return f"{crc32(json.dumps(common).encode()):08x}"


class Failure(NamedTuple):
    """How a process failed.

    rank: global rank, or None for a process that carries none (a launcher, pip).
    exit_code: 0 to 255, or 128 + n for signal n. signal: n, or 0.
    message: the uncaught exception when there was one (`raised`), else the last words.
    at: seconds since the epoch.
    """

    host: str
    rank: int | None
    exit_code: int
    signal: int
    message: str
    at: float
    raised: bool = False


class Outcome(NamedTuple):
    """How a job ended: the exit code of `train`, the first failure, and the others by time.

    stopped_by: the signal that asked the job to stop, or 0.
    """

    exit_code: int
    first: Failure | None = None
    others: tuple[Failure, ...] = ()
    stopped_by: int = 0
