"""The images as they are, and PyTorch jobs in them: one host, and two on networks of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from containers.build import read_images
from tests.images.dockerkit import Ended, wait_for

pytestmark = pytest.mark.container

TOP = Path(__file__).resolve().parents[2]
BUDGETS = {image.name: image.budget_mb for image in read_images(TOP / "containers" / "images.toml")}
TORCHRUN = {"sagemaker_torch_distributed_enabled": True}
ROOMY = ("--shm-size", "256m")  # Docker's 64 MiB are worth a note in the log

# torch is about to be imported, and a uid without an entry in /etc/passwd has no name but USER's.
WHO = "import getpass, torch; print(getpass.getuser(), float(torch.ones(3).sum()))"

ALL_REDUCE = """
import fcntl, json, os, socket, struct
import torch
import torch.distributed as dist

def address(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", interface.encode()))
    return socket.inet_ntoa(answer[20:24])

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
with open("/proc/1/maps") as file:
    maps = file.read()
facts = {
    "world": world,
    "sum": total.item(),
    "host": os.environ["SM_CURRENT_HOST"],
    "interface": interface,
    "address": address(interface) if interface else "",
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "nccl": os.environ.get("NCCL_SOCKET_IFNAME"),
    "threads": os.environ["OMP_NUM_THREADS"],
    "uid": os.getuid(),
    "launcher holds torch": "libtorch" in maps,
}
with open(f"/opt/ml/model/rank-{rank}.json", "w") as file:
    json.dump(facts, file)
print(f"rank {rank} of {world}: sum {total.item():g}", flush=True)
dist.destroy_process_group()
"""

TRAPS = """
import os, signal, sys

rank = os.environ["RANK"]

def save(number, frame):
    with open(f"/opt/ml/model/ckpt-{rank}", "w") as file:
        file.write("step 7")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
with open(f"/opt/ml/checkpoints/ready-{rank}", "w"):
    pass
while True:
    signal.pause()
"""


@pytest.fixture(params=["base_image", "pytorch_image"])
def image(request) -> str:
    return str(request.getfixturevalue(request.param))


# --- The images.


def test_the_configuration_of_an_image(docker, image):
    config = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", image))
    assert config["User"] not in ("", "root", "0")
    assert config["Entrypoint"] == ["/usr/local/bin/cpu.sh"]
    assert config["Cmd"] == ["train"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == image
    assert labels["com.amazonaws.ml.engines.sagemaker.dlc.job.training"] == "true"
    assert labels["com.amazonaws.ml.engines.sagemaker.dlc.device.cpu"] == "true"


def test_labels_name_the_versions_that_are_inside(docker, pytorch_image, lab):
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", pytorch_image))
    script = "import platform, torch; print(torch.__version__.partition('+')[0], platform.python_version())"
    version, python = lab.run(pytorch_image, "python", "-c", script).out.split()
    assert labels["framework_version"] == version
    assert f"com.amazonaws.ml.engines.sagemaker.dlc.framework.pytorch.{version.replace('.', '-')}" in labels
    short = "py" + "".join(python.split(".")[:2])
    assert f"com.amazonaws.ml.engines.sagemaker.dlc.python.{short}" in labels


def test_known_failure_88_size_and_what_is_not_inside(docker, image, lab):
    assert int(docker("image", "inspect", "--format", "{{.Size}}", image)) // 10**6 <= BUDGETS[image]
    unwanted = "gcc cc g++ c++ clang cmake make ld nvcc jq aws mlflow sshd tini"
    ended = lab.run(image, "bash", "-c", f"for name in {unwanted}; do command -v $name; done; true")
    assert (ended.code, ended.log) == (0, "")


def test_installed_python_is_compiled(image, lab):
    # A read-only root or another user could not compile it at the start, and each start would be slow.
    script = (
        "import importlib.util, pathlib, struct, trainbox\n"
        "def fresh(source):\n"
        "    compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))\n"
        "    flags, time, size = struct.unpack('<4xIII', compiled.read_bytes()[:16])\n"
        "    state = source.stat()\n"
        "    return flags & 1 or (time, size) == (int(state.st_mtime), state.st_size)\n"
        "sources = sorted(pathlib.Path(trainbox.__path__[0]).rglob('*.py'))\n"
        "print(len(sources), [source.name for source in sources if not fresh(source)])\n"
    )
    ended = lab.run(image, "python", "-c", script)
    assert ended.code == 0, ended.log
    assert re.fullmatch(r"[1-9]\d+ \[\]\n", ended.out)


def test_known_failure_38_packages_fit_together(image, lab):
    ended = lab.run(image, "pip", "check")
    assert ended.code == 0, ended.log


def test_known_failure_38_the_toolkit_brings_no_package(base_image, lab):
    listed = json.loads(lab.run(base_image, "pip", "list", "--format", "json").out)
    assert {package["name"] for package in listed} == {"pip", "trainbox"}


# --- What is run.


def no_program(ended: Ended) -> bool:
    """Whether it ended with the one line that says how a program is named."""
    (line,) = ended.log.splitlines()
    ways = ("sagemaker_program", "SAGEMAKER_PROGRAM", "train SCRIPT")
    return ended.code == 2 and "no program was named" in line and all(way in line for way in ways)


@pytest.mark.parametrize("command", [(), ("train",), ("--foo",), ("train", "--foo")], ids=" ".join)
def test_known_failure_32_without_a_program(image, lab, command):
    assert no_program(lab.run(image, *command))


def test_known_failure_32_the_command_of_an_environment_that_is_not_on_the_path(base_image, lab):
    options = ("--env", "PATH=/usr/bin:/bin", "--entrypoint", "/opt/venv/bin/train")
    assert no_program(lab.run(base_image, options=options))


def test_known_failure_32_options_alone_are_further_arguments(base_image, lab, tree):
    tree.program("import sys\nprint(sys.argv[1:])", epochs=2)
    ended = lab.run(base_image, "--foo", "a b", tree=tree)
    assert ended.out == "['--epochs', '2', '--foo', 'a b']\n"


def test_any_other_command_is_run_as_it_is(image, lab):
    ended = lab.run(image, "bash", "-c", "id -u; exit 7")
    assert (ended.code, ended.out, ended.err) == (7, "1000\n", "")


@pytest.mark.parametrize("user", ["0:0", "1000:1000", "54321:54321"])
def test_any_user_may_use_the_image(pytorch_image, lab, user):
    ended = lab.run(pytorch_image, "python", "-c", WHO, options=("--user", user))
    assert (ended.code, ended.out, ended.err) == (0, "trainbox 3.0\n", "")


# --- Jobs on one host.


def test_known_failure_35_small_shared_memory_is_noted(pytorch_image, lab, tree):
    tree.program("print('trained')")
    small = lab.run(pytorch_image, "train", tree=tree)
    assert "/dev/shm holds 64 MiB" in small.err
    assert "--shm-size" in small.err
    assert "/dev/shm" not in lab.run(pytorch_image, "train", tree=tree, options=ROOMY).err


def test_known_failure_72_torchrun_works_without_any_privilege(pytorch_image, lab, tree):
    tree.program(ALL_REDUCE, sagemaker_mpi_num_of_processes_per_host=2, **TORCHRUN)
    locked = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp")
    options = ("--user", "1234:1234", "--network", "none", *locked, *ROOMY)
    ended = lab.run(pytorch_image, "train", tree=tree, options=options)
    assert ended.code == 0, ended.log
    # c10d's own words where there is no network to ask for the name of a client on the loopback interface.
    assert ended.alarms("The hostname of the client socket cannot be retrieved") == []
    for rank in range(2):
        facts = tree.model(f"rank-{rank}.json")
        assert (facts["world"], facts["sum"], facts["uid"]) == (2, 3, 1234)
        assert not facts["launcher holds torch"]
        assert f"[algo-1 {rank}] rank {rank} of 2: sum 3\n" in ended.out


def test_known_failure_02_stop_reaches_every_rank(pytorch_image, lab, tree):
    tree.program(TRAPS, sagemaker_mpi_num_of_processes_per_host=2, **TORCHRUN)
    container = lab.start(pytorch_image, "train", tree=tree, options=ROOMY)
    wait_for(lambda: len(list((tree.folder / "checkpoints").iterdir())) == 2, "both ranks to be ready")
    container.stop(60)
    ended = container.wait()
    assert ended.code == 0, ended.log
    assert sorted(path.name for path in (tree.folder / "model").iterdir()) == ["ckpt-0", "ckpt-1"]
    assert tree.failure == ""
    assert "Traceback" not in ended.log


# --- Jobs on two hosts.

HOSTS = ("algo-1", "algo-2")


def test_two_hosts_of_two_processes(pytorch_image, lab, new_tree):
    network = lab.network()
    trees = [new_tree().hosts(me, *HOSTS) for me in HOSTS]
    running = []
    for me, tree in zip(HOSTS, trees, strict=True):
        tree.program(ALL_REDUCE, sagemaker_mpi_num_of_processes_per_host=2, **TORCHRUN)
        options = ("--network", network, "--network-alias", me, "--cpus", "1", "--memory", "1g", *ROOMY)
        running.append(lab.start(pytorch_image, "train", tree=tree, options=options))
    ends = [container.wait() for container in running]
    assert [ended.code for ended in ends] == [0, 0], "\n".join(ended.log for ended in ends)
    for me, tree, ended, ranks in zip(HOSTS, trees, ends, ((0, 1), (2, 3)), strict=True):
        assert ended.alarms() == []
        assert tree.failure == ""
        assert sorted(path.name for path in (tree.folder / "model").iterdir()) == [
            f"rank-{n}.json" for n in ranks
        ]
        for rank in ranks:
            facts = tree.model(f"rank-{rank}.json")
            assert (facts["world"], facts["sum"], facts["host"], facts["threads"]) == (4, 10, me, "1")
            assert not facts["launcher holds torch"]
            assert f"[{me} {rank}] rank {rank} of 4: sum 10\n" in ended.out


def test_known_failure_14_the_interface_is_that_of_the_shared_network_on_each_host(
    pytorch_image, lab, new_tree
):
    shared, *private = (lab.network() for _ in range(3))
    trees = [new_tree().hosts(me, *HOSTS).program(ALL_REDUCE, **TORCHRUN) for me in HOSTS]
    given = ("--env", "NCCL_SOCKET_IFNAME=eth9", *ROOMY)
    # A network joined while the container runs gives the next interface: the shared one has two names.
    running = [
        lab.start(
            pytorch_image, "train", tree=trees[0],
            options=("--network", shared, "--network-alias", HOSTS[0], *given),
        ).join(private[0]),
        lab.start(
            pytorch_image, "train", tree=trees[1], options=("--network", private[1], *given)
        ).join(shared, HOSTS[1]),
    ]  # fmt: skip
    addresses = [container.address(shared) for container in running]
    ends = [container.wait() for container in running]
    assert [ended.code for ended in ends] == [0, 0], "\n".join(ended.log for ended in ends)
    facts = [tree.model(f"rank-{rank}.json") for rank, tree in enumerate(trees)]
    assert [each["interfaces"] for each in facts] == [["eth0", "eth1", "lo"]] * 2
    assert facts[0]["interface"] != facts[1]["interface"], (
        "the test needs hosts whose interfaces have other names"
    )
    for each, ended, address in zip(facts, ends, addresses, strict=True):
        assert (each["world"], each["sum"]) == (2, 3)
        assert each["address"] == address
        assert each["nccl"] == "eth9", "what the user sets is left alone"
        assert ended.alarms() == []
