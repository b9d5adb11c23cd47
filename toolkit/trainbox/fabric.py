"""Variables that tell communication libraries which network to use. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trainbox.plan import EnvVar

INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def variables(interface: str, why: str, environ: Mapping[str, str]) -> tuple[EnvVar, ...]:
    """The interface for NCCL, Gloo and TensorPipe; what the user has set is left alone (contract 6.3).

    interface: name on this host; hosts may differ. why: where the name comes from.
    """
    if not interface:
        return ()
    return tuple(EnvVar(name, interface, why) for name in INTERFACE_VARIABLES if name not in environ)
