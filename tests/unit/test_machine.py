"""What the computer is, from recorded trees of /proc, /sys and /dev."""

from __future__ import annotations

import os

import pytest

from trainbox import machine
from trainbox.machine import Machine


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Writes files below a root; sixteen cores may be used, as far as affinity goes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))

    class Recorded:
        root = str(tmp_path)

        def file(self, path, text=""):
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

        def cgroup2(self, path, **files):
            self.file("proc/self/cgroup", f"0::{path}\n")
            for name, text in files.items():
                self.file(f"sys/fs/cgroup{path}/{name.replace('_', '.')}", text)

        def detect(self, **environ):
            return machine.detect(environ, root=self.root)

    return Recorded()


def test_nothing_to_be_read_is_a_machine_all_the_same(recorded):
    found = recorded.detect()
    assert found == Machine(cpus=16)


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("nonsense", 16)],
)
def test_known_failure_75_cpus_are_those_of_the_cgroup(recorded, limit, cpus):
    recorded.cgroup2("/", cpu_max=limit)
    assert recorded.detect().cpus == cpus


def test_the_narrowest_group_counts(recorded):
    recorded.cgroup2("/job/host", cpu_max="max 100000")
    recorded.file("sys/fs/cgroup/job/cpu.max", "300000 100000")
    recorded.file("sys/fs/cgroup/cpu.max", "800000 100000")
    assert recorded.detect().cpus == 3


def test_cgroup_version_1(recorded):
    recorded.file("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    recorded.file("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "400000\n")
    recorded.file("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n")
    recorded.file("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", str(512 << 20))
    recorded.file("sys/fs/cgroup/memory/docker/abc/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n")
    recorded.file("proc/meminfo", "MemTotal:  16000000 kB\n")
    found = recorded.detect()
    assert (found.cpus, found.memory) == (4, 512 << 20)
    assert machine.oom_kills(recorded.root) == 2


def test_memory_is_the_smaller_of_limit_and_machine(recorded):
    recorded.file("proc/meminfo", "MemTotal:  1024 kB\nMemFree: 1 kB\n")
    recorded.cgroup2("/", memory_max="max")
    assert recorded.detect().memory == 1024 * 1024


def test_oom_kills_of_cgroup_version_2(recorded):
    assert machine.oom_kills(recorded.root) == 0
    recorded.cgroup2("/", memory_events="low 0\noom 1\noom_kill 1\n")
    assert machine.oom_kills(recorded.root) == 1


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 4),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 4),
    ],
)
def test_gpus_are_the_visible_devices(recorded, environ, gpus):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        recorded.file(f"dev/{name}")
    assert recorded.detect(**environ).gpus == gpus


def test_a_variable_alone_makes_no_gpu(recorded):
    assert recorded.detect(CUDA_VISIBLE_DEVICES="0,1").gpus == 0


@pytest.mark.parametrize(
    ("environ", "cores"),
    [
        ({}, 4),
        ({"NEURON_RT_VISIBLE_CORES": "0-2"}, 3),
        ({"NEURON_RT_VISIBLE_CORES": "0,3"}, 2),
        ({"NEURON_RT_NUM_CORES": "2"}, 2),
        ({"NEURON_RT_NUM_CORES": "many"}, 0),
        ({"NEURON_LOGICAL_NC_CONFIG": "2"}, 2),
    ],
)
def test_neuron_cores(recorded, environ, cores):
    for device in ("neuron0", "neuron1"):
        recorded.file(f"sys/devices/virtual/neuron_device/{device}/core_count", "2\n")
    assert recorded.detect(**environ).neuron_cores == cores


def test_neuron_cores_of_a_driver_that_lists_them(recorded):
    for core in range(8):
        recorded.file(f"sys/devices/virtual/neuron_device/neuron0/neuron_core{core}/info")
    recorded.file("sys/devices/virtual/neuron_device/neuron0/info/architecture/arch_type", "NCv3\n")
    assert recorded.detect().neuron_cores == 4


def test_interfaces(recorded):
    for name in ("lo", "eth1", "eth0"):
        recorded.file(f"sys/class/net/{name}/mtu", "1500")
    assert recorded.detect().interfaces == ("eth0", "eth1", "lo")


def test_modules_are_found_and_not_imported(tmp_path):
    (tmp_path / "a_framework.py").write_text("raise RuntimeError('imported')")
    found = machine.detect({}, ("a_framework", "no_such_framework"), (str(tmp_path),))
    assert found.modules == ("a_framework",)
    assert machine.detect({}, ("a_framework",)).modules == ()


def test_a_machine_survives_the_way_to_a_peer():
    before = Machine(cpus=2, memory=3, gpus=1, interfaces=("lo", "eth0"), modules=("torch",))
    assert Machine.from_json(before._asdict()) == before
    assert Machine.from_json({"cpus": 2, "added_later": 1}) == Machine(cpus=2)
