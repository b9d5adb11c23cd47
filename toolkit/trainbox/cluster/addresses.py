"""Names to addresses, and addresses to interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def resolve(name: str, known: dict[str, str]) -> tuple[str, ...]:
    """Addresses of a host, those given by TRAINBOX_ADDRESSES before any others; empty when there are none."""
    if name in known:
        return (known[name],)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def interface_of(address: str) -> str:
    """The interface of this host that has an address; empty when none is found."""
    if address.startswith("127.") or address == "::1":
        return "lo"
    if ":" in address:
        return _interface_of_v6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address on it
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _interface_of_v6(address: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    return next((row[-1] for row in rows if row and row[0] == wanted), "")
