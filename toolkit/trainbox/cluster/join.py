"""Brings the hosts together before the launch: all names resolve, all hosts have met the leader.

The leader listens on one port, every other host connects out to it and says who it is and what machine it is;
when all have come, the leader sends the machines of all to all. Hosts start in any order.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from trainbox import __version__
from trainbox.cluster.addresses import interface_of, resolve
from trainbox.cluster.frames import Frames, proof, proves
from trainbox.errors import PlatformError, UserError
from trainbox.job import Job
from trainbox.launchers import Network
from trainbox.machine import Machine
from trainbox.process import Signals
from trainbox.settings import Settings

SAY_SECONDS = 5.0
"""While hosts are missing, one line this often says which."""

RETRY_SECONDS = 0.2
CONNECT_SECONDS = 3.0


class Gathering:
    """What leader and members share: one selector, one deadline, one line every few seconds."""

    def __init__(
        self, job: Job, machine: Machine, settings: Settings, signals: Signals, log: Callable[[str], None]
    ):
        self.job = job
        self.machine = machine
        self.settings = settings
        self.signals = signals
        self.log = log
        self.known = dict(settings.addresses)
        self.started = time.monotonic()
        self.deadline = self.started + settings.start_timeout_seconds
        self.say_at = self.started + SAY_SECONDS
        self.selector = selectors.DefaultSelector()
        self.selector.register(signals.fd, selectors.EVENT_READ, None)

    def wait(self, seconds: float, waiting_for: str) -> list[Any]:
        """One bounded wait; returns what is ready. Raises Stopped, and PlatformError at the deadline."""
        now = time.monotonic()
        if now >= self.deadline:
            raise PlatformError(
                f"{self.job.me}: gave up after {self.settings.start_timeout_seconds:g} s: {waiting_for}",
                "TRAINBOX_START_TIMEOUT_SECONDS sets how long hosts wait for each other",
            )
        if now >= self.say_at:
            self.say_at = now + SAY_SECONDS
            self.log(f"waiting since {now - self.started:.0f} s: {waiting_for}")
        until = max(0.0, min(seconds, self.deadline - now, self.say_at - now))
        events = self.selector.select(until)
        self.signals.check()
        return [key.data for key, _ in events if key.data is not None]

    def hello(self, nonce: str) -> dict[str, Any]:
        """Who this host is. Hosts of one job have to agree on the job and on the toolkit's version."""
        return {
            "host": self.job.me,
            "job": self.job.name,
            "version": __version__,
            "machine": self.machine._asdict(),
            "proof": proof(self.settings.job_token, nonce, self.job.me) if self.settings.job_token else "",
        }

    def network(self, machines: dict[str, Machine], local: str, leader_address: str) -> Network:
        """The interface is the user's, else the one by which this host really talks to its peers."""
        chosen = self.settings.interface
        if chosen:
            if self.machine.interfaces and chosen not in self.machine.interfaces:
                raise UserError(
                    f"TRAINBOX_INTERFACE is {chosen}, {self.job.me} has {', '.join(self.machine.interfaces)}"
                )
            why = "TRAINBOX_INTERFACE"
        else:
            chosen = interface_of(local)
            same = (
                "as the platform says"
                if chosen == self.job.interface
                else f"the platform says {self.job.interface}"
            )
            why = f"the interface that leads to the peers; {same}"
        ordered = {host: machines[host] for host in self.job.ranked}
        return Network(ordered, chosen, why, leader_address)


def join(
    job: Job, machine: Machine, settings: Settings, signals: Signals, log: Callable[[str], None]
) -> Network:
    """Gathers the ranked hosts; for a single host there is no network at all.

    Raises PlatformError when hosts are missing at the deadline, UserError when they do not fit together,
    Stopped on a signal.
    """
    gathering = Gathering(job, machine, settings, signals, log)
    try:
        network = _lead(gathering) if job.me == job.leader else _meet_leader(gathering)
    finally:
        gathering.selector.close()
    seconds = time.monotonic() - gathering.started
    log(
        f"joined: {len(job.ranked)} hosts, leader {job.leader} ({network.leader_address}), "
        f"interface {network.interface or 'unknown'}, {seconds:.1f} s"
    )
    return network


# -- the leader --------------------------------------------------------------------------------------------


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    except (OSError, ValueError):
        pass  # no IPv6 here; a port that is taken shows again below
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise PlatformError(
            f"port {port}, at which the hosts join, cannot be opened: {error.strerror}",
            "TRAINBOX_CHANNEL_PORT chooses another, the same on all hosts",
        ) from None


def _lead(gathering: Gathering) -> Network:
    job = gathering.job
    members: dict[str, Frames] = {}
    machines = {job.me: gathering.machine}
    nonces: dict[Frames, str] = {}
    server = _listen(gathering.settings.channel_port)
    server.setblocking(False)
    gathering.selector.register(server, selectors.EVENT_READ, server)
    try:
        while len(members) < len(job.ranked) - 1:
            missing = [host for host in job.ranked if host != job.me and host not in members]
            for ready in gathering.wait(SAY_SECONDS, f"for {_list(missing)} to join"):
                if ready is server:
                    _welcome_stranger(gathering, server, nonces)
                else:
                    _hear_hello(gathering, ready, nonces, members, machines)
        answer = {"machines": {host: machine._asdict() for host, machine in machines.items()}}
        for host, connection in members.items():
            try:
                connection.send(answer)
            except OSError as error:
                raise PlatformError(
                    f"{host} went away while hosts joined: {error.strerror or error}"
                ) from None
        local = next(iter(members.values())).local
        return gathering.network(machines, local, gathering.known.get(job.me, local))
    finally:
        server.close()
        for connection in (*nonces, *members.values()):
            connection.close()


def _welcome_stranger(gathering: Gathering, server: socket.socket, nonces: dict[Frames, str]) -> None:
    try:
        connection = Frames(server.accept()[0])
        nonces[connection] = os.urandom(16).hex()
        connection.send({"nonce": nonces[connection]})
    except OSError:
        return
    gathering.selector.register(connection, selectors.EVENT_READ, connection)


def _hear_hello(
    gathering: Gathering,
    connection: Frames,
    nonces: dict[Frames, str],
    members: dict[str, Frames],
    machines: dict[str, Machine],
) -> None:
    try:
        messages = connection.receive()
    except OSError as error:
        gathering.selector.unregister(connection)
        lost = [host for host, known in members.items() if known is connection]
        for host in lost:
            del members[host]  # it may come again
        if not lost:
            gathering.log(f"refused a connection from {connection.peer}: {error}")
        nonces.pop(connection, None)
        connection.close()
        return
    for message in messages:
        reason = _objection(gathering, message, connection, nonces.get(connection, ""), members)
        if reason:
            gathering.log(f"refused a host at {connection.peer}: {reason}")
            gathering.selector.unregister(connection)
            nonces.pop(connection, None)
            try:
                connection.send({"refused": reason})
            except OSError:
                pass
            connection.close()
            return
        nonces.pop(connection)
        members[message["host"]] = connection
        machines[message["host"]] = Machine.from_json(message["machine"])


def _objection(
    gathering: Gathering, message: dict[str, Any], connection: Frames, nonce: str, members: dict[str, Frames]
) -> str:
    """Why a host may not join, or an empty string."""
    job, token = gathering.job, gathering.settings.job_token
    host = message.get("host")
    if not nonce or not isinstance(host, str) or not isinstance(message.get("machine"), dict):
        return "it did not say hello"
    if host not in job.ranked or host == job.me:
        return f"{host[:80]} is not a host of this job"
    if token:
        if not proves(token, nonce, host, message.get("proof")):
            return f"{host} does not know the job's token"
    elif connection.peer not in resolve(host, gathering.known):
        return f"{connection.peer} is not an address of {host}"
    if host in members:
        return f"{host} has joined already"
    if message.get("job") != job.name:
        return f"{host} runs job {str(message.get('job'))[:80]!r}, {job.me} runs {job.name!r}"
    if message.get("version") != __version__:
        return f"{host} has trainbox {str(message.get('version'))[:20]}, {job.me} has {__version__}"
    return ""


# -- a member ----------------------------------------------------------------------------------------------


def _meet_leader(gathering: Gathering) -> Network:
    job = gathering.job
    state = f"for leader {job.leader}"
    while True:
        gathering.wait(0, state)
        addresses = resolve(job.leader, gathering.known)
        if not addresses:
            state = f"name {job.leader} does not resolve"
        for address in addresses:
            where = f"leader {job.leader} ({address}:{gathering.settings.channel_port})"
            try:
                connection = _connect(address, gathering.settings.channel_port)
            except OSError as error:
                state = f"{where} does not answer: {error.strerror or error}"
                continue
            try:
                machines = _greet(gathering, connection, where)
                return gathering.network(machines, connection.local, address)
            except OSError as error:
                state = f"{where} broke off: {error.strerror or error}"
            finally:
                connection.close()
        gathering.wait(RETRY_SECONDS, state)


def _connect(address: str, port: int) -> Frames:
    return Frames(socket.create_connection((address, port), timeout=CONNECT_SECONDS))


def _greet(gathering: Gathering, connection: Frames, where: str) -> dict[str, Machine]:
    gathering.selector.register(connection, selectors.EVENT_READ, connection)
    try:
        while True:
            if not gathering.wait(SAY_SECONDS, f"{where} answers, other hosts have not come yet"):
                continue
            for message in connection.receive():
                if "nonce" in message:
                    connection.send(gathering.hello(str(message["nonce"])))
                elif "refused" in message:
                    raise UserError(f"{where} refused {gathering.job.me}: {message['refused']}")
                elif isinstance(message.get("machines"), dict):
                    return {host: Machine.from_json(each) for host, each in message["machines"].items()}
    finally:
        gathering.selector.unregister(connection)


def _list(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
