"""Messages between hosts: JSON objects, one a line, of bounded length, over TCP."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from typing import Any

LONGEST = 1 << 20
"""Bytes of a message; the machines of 3,000 hosts fit."""


class Frames:
    """One connection, non-blocking. `peer` is the other side's address."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.peer: str = connection.getpeername()[0].removeprefix("::ffff:")
        self.local: str = connection.getsockname()[0].removeprefix("::ffff:")
        self._received = b""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message that fits into the socket's buffer or within five seconds. Raises OSError."""
        self.socket.settimeout(5)
        try:
            self.socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        finally:
            self.socket.setblocking(False)

    def receive(self) -> list[dict[str, Any]]:
        """Messages that have come. Raises ConnectionError at the connection's end and for anything else."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("the other side closed the connection")
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > LONGEST:
            raise ConnectionError("sent something that is no message of trainbox")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise ConnectionError("sent something that is no message of trainbox") from None
        if not all(isinstance(message, dict) for message in messages):
            raise ConnectionError("sent something that is no message of trainbox")
        return messages

    def close(self) -> None:
        self.socket.close()


def proof(token: str, nonce: str, host: str) -> str:
    """Shows knowledge of the job's token without sending it."""
    return hmac.new(token.encode(), f"{nonce} {host}".encode(), hashlib.sha256).hexdigest()


def proves(token: str, nonce: str, host: str, shown: object) -> bool:
    """Whether `shown` is the proof for this nonce and host."""
    return isinstance(shown, str) and hmac.compare_digest(proof(token, nonce, host), shown)
