"""What this computer is, from files that every container can see. Starts no process, fails no job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainbox.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any


class Machine(NamedTuple):
    """One computer, as far as its container may use it.

    cpus: whole cores within affinity and cgroup limits, at least 1. memory, shm: bytes, 0 when unknown.
    gpus, neuron_cores: visible ones. interfaces: names, loopback included. modules: which of the Python
    modules asked for can be imported.
    """

    cpus: int
    memory: int = 0
    shm: int = 0
    gpus: int = 0
    neuron_cores: int = 0
    interfaces: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Machine:
        """Reads what a peer of the same version sent of `_asdict()`."""
        known = {key: values[key] for key in cls._fields if key in values}
        known["interfaces"] = tuple(known.get("interfaces", ()))
        known["modules"] = tuple(known.get("modules", ()))
        return cls(**known)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


class Cgroups:
    """The control groups that this process is in, version 1 and 2."""

    def __init__(self, root: str) -> None:
        self._top = os.path.join(root, "sys/fs/cgroup")
        self._paths: list[tuple[list[str], list[str]]] = []
        for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            parts = [part for part in path.split("/") if part and part != ".."]
            above = ["/".join(["", *parts[:depth]]) for depth in range(len(parts) + 1)]
            self._paths.append((controllers.split(",") if controllers else [], above))

    def read_v2(self, name: str) -> list[str]:
        """Contents of a file of this name in the group and all groups above it, from the top down."""
        paths = [path for controllers, above in self._paths if not controllers for path in above]
        return [text for path in paths if (text := _read(f"{self._top}{path}/{name}"))]

    def read_v1(self, controller: str, name: str) -> list[str]:
        """The same for a controller of version 1."""
        paths = [path for controllers, above in self._paths if controller in controllers for path in above]
        return [text for path in paths if (text := _read(f"{self._top}/{controller}{path}/{name}"))]


def _cpus(cgroups: Cgroups) -> int:
    limits = [float(len(os.sched_getaffinity(0)))]
    for text in cgroups.read_v2("cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    periods = cgroups.read_v1("cpu", "cpu.cfs_period_us")
    for quota, period in zip(cgroups.read_v1("cpu", "cpu.cfs_quota_us"), periods, strict=False):
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return max(1, int(min(limits)))


def _memory(root: str, cgroups: Cgroups) -> int:
    limits = []
    for line in _read(os.path.join(root, "proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    texts = cgroups.read_v2("memory.max") + cgroups.read_v1("memory", "memory.limit_in_bytes")
    limits += [int(text) for text in texts if text.isdigit()]
    return min(limits, default=0)


def oom_kills(root: str = "/") -> int:
    """How many processes of this container the kernel has killed for want of memory."""
    cgroups = Cgroups(root)
    counts = [0]
    for text in cgroups.read_v2("memory.events") + cgroups.read_v1("memory", "memory.oom_control"):
        counts += [int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")]
    return max(counts)


def _listed(value: str, present: int) -> int:
    """How many of `present` devices a variable such as CUDA_VISIBLE_DEVICES leaves visible."""
    if value in ("", "all"):
        return present
    if value in ("void", "none", "NoDevFiles", "-1"):
        return 0
    return min(present, len([part for part in value.split(",") if part.strip()]))


def _gpus(root: str, environ: Mapping[str, str]) -> int:
    devices = [
        name for name in _names(os.path.join(root, "dev")) if name[:6] == "nvidia" and name[6:].isdigit()
    ]
    present = len(devices) or len(_names(os.path.join(root, "proc/driver/nvidia/gpus")))
    if environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        present = 0
    if "CUDA_VISIBLE_DEVICES" in environ:
        return _listed(environ["CUDA_VISIBLE_DEVICES"] or "none", present)
    return present


def _core_range(text: str) -> int:
    """Number of cores in `0-3`, `0,2` or `4`."""
    count = 0
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _neuron_cores(root: str, environ: Mapping[str, str]) -> int:
    """Visible logical cores (contract 7.3): the variables first, then the driver's tree in sysfs."""
    try:
        if environ.get("NEURON_RT_VISIBLE_CORES"):
            return _core_range(environ["NEURON_RT_VISIBLE_CORES"])
        if environ.get("NEURON_RT_NUM_CORES"):
            return int(environ["NEURON_RT_NUM_CORES"])
    except ValueError:
        return 0
    top = os.path.join(root, "sys/devices/virtual/neuron_device")
    cores = 0
    for device in _names(top):
        folder = os.path.join(top, device)
        count = _read(os.path.join(folder, "core_count"))
        physical = (
            int(count)
            if count.isdigit()
            else sum(name.startswith("neuron_core") and name[11:].isdigit() for name in _names(folder))
        )
        architecture = _read(os.path.join(folder, "info/architecture/arch_type"))
        grouped = environ.get("NEURON_LOGICAL_NC_CONFIG") or ("2" if architecture == "NCv3" else "1")
        cores += physical // (int(grouped) if grouped in ("1", "2") else 1)
    return cores


def _shm(root: str) -> int:
    try:
        stat = os.statvfs(os.path.join(root, "dev/shm"))
    except OSError:
        return 0
    return stat.f_frsize * stat.f_blocks


def _can_import(name: str, import_path: tuple[str, ...]) -> bool:
    import sys  # these two only for launchers that need a framework
    from importlib.machinery import PathFinder

    PathFinder.invalidate_caches()
    return PathFinder.find_spec(name, [*import_path, *sys.path]) is not None


def detect(
    environ: Mapping[str, str],
    modules: tuple[str, ...] = (),
    import_path: tuple[str, ...] = (),
    root: str = "/",
) -> Machine:
    """Looks at this computer.

    modules: names of top-level Python modules whose presence matters to the launcher; none is imported.
    import_path: folders to look in before those of this interpreter.
    root: where /proc, /sys and /dev lie, for recorded trees.
    """
    cgroups = Cgroups(root)
    return Machine(
        cpus=_cpus(cgroups),
        memory=_memory(root, cgroups),
        shm=_shm(root),
        gpus=_gpus(root, environ),
        neuron_cores=_neuron_cores(root, environ),
        interfaces=tuple(_names(os.path.join(root, "sys/class/net"))),
        modules=tuple(name for name in modules if _can_import(name, import_path)),
    )
