"""What the runner needs of hosts, whether they are processes or containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from trainbox.local.request import RunRequest
from trainbox.local.tree import Folder


class End(NamedTuple):
    """How a host ended: 0 to 255, where 128 + n stands for signal n."""

    exit_code: int
    out_of_memory: bool = False


class Host(Protocol):
    """A host that has been started."""

    name: str
    fds: tuple[int, ...]
    """To be watched: readable when there is output, or when the host has ended."""

    def read(self, fd: int) -> list[tuple[int, bytes]] | None:
        """Output as (1 or 2, bytes); None when nothing will come from this fd any more."""

    def ended(self) -> End | None:
        """How the host ended, or None while it runs."""

    def signal(self, number: int) -> None:
        """Sends a signal to the host's `train`; SIGKILL to all that runs on the host."""

    def close(self) -> None:
        """Frees what belongs to the host. Whatever still runs is killed."""


class Backend(Protocol):
    """One way to have hosts."""

    kind: str
    """In words, for a line: `processes`, or the image."""

    interface: str
    """Name of the network interface that leads to the peers."""

    def check(self) -> None:
        """Finds out whether hosts can be had at all, before anything is written. Raises TrainboxError."""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables of the caller that hosts get, and those that hosts of this kind need."""

    def open(self, folder: Folder) -> None:
        """Makes what the hosts share."""

    def start(self, folder: Folder, host: str, environ: Mapping[str, str]) -> Host:
        """Starts one host. Raises TrainboxError."""

    def close(self) -> None:
        """Removes all that `open` made, even after a failure in between."""

    def settle(self, folder: Folder) -> None:
        """Gives the hosts' files to the caller, as far as they are not."""


Maker = Callable[[RunRequest], Backend]
