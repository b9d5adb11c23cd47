"""Where the ranks that a launcher starts report: output pipes, start and end (see rank.py)."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
from typing import TYPE_CHECKING

from trainbox import process

if TYPE_CHECKING:
    from trainbox.supervise import Supervisor, Worker

_LONGEST = 256


class RankServer:
    """An abstract Unix socket of this host; only processes of the same user (or root) are heard."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.name = f"trainbox-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + self.name)
        self._socket.listen(1024)
        self._socket.setblocking(False)
        self._reporters: list[_Reporter] = []
        supervisor.selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except OSError:
            return
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.getuid()):
            peer.close()
            return
        self._reporters.append(_Reporter(self.supervisor, peer))

    def signal(self, number: int) -> None:
        """Sends a signal to all living ranks."""
        for reporter in self._reporters:
            if reporter.worker and reporter.worker.code is None:
                process.signal_one(reporter.worker.pid, number)

    def last_generation(self) -> list[Worker]:
        """Ranks that were started last: those before a restart no longer count."""
        latest = max((reporter.generation for reporter in self._reporters), default=0)
        return [
            reporter.worker
            for reporter in self._reporters
            if reporter.worker and reporter.generation == latest
        ]

    def close(self) -> None:
        self._socket.close()
        for reporter in self._reporters:
            reporter.close()


class _Reporter:
    """One rank's connection. Until it says otherwise, a rank whose connection ends was killed."""

    def __init__(self, supervisor: Supervisor, peer: socket.socket) -> None:
        self.supervisor = supervisor
        self.generation = 0
        self.worker: Worker | None = None
        self._peer = peer
        self._text = b""
        self._open = True
        peer.setblocking(False)
        supervisor.selector.register(peer, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._peer, 1024, 2)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            self._hear(line.split(), fds)
        if not data or len(self._text) > _LONGEST:
            if self.worker and self.worker.code is None:
                self.worker.end(-signal.SIGKILL)
            self._stop_listening()

    def _hear(self, words: list[bytes], fds: list[int]) -> None:
        if words[0] == b"start" and len(fds) == 2 and not self.worker:
            rank, _, self.generation, _, pid = (int(word) for word in words[1:])
            self.worker = self.supervisor.attach("rank", rank, pid, *fds)
        elif words[0] == b"end" and self.worker:
            code, number = int(words[1]), int(words[2])
            self.worker.end(-number if number else code)
            if code or number:
                self.supervisor.hush_launchers()

    def _stop_listening(self) -> None:
        if self._open:
            self._open = False
            self.supervisor.selector.unregister(self._peer)
            self._peer.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._peer.close()
