"""The choice of a launcher, and its plans compared with those recorded in tests/golden.

After a change that is meant: `python -m tests.unit.test_launchers` writes them anew; read the difference.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.unit.conftest import Tree
from trainbox import job as jobs
from trainbox import launchers, settings
from trainbox.errors import UserError
from trainbox.launchers import Launch, Network
from trainbox.machine import Machine
from trainbox.plan import EnvVar
from trainbox.rank import PROGRAM

GOLDEN = Path(__file__).parent.parent / "golden"
TORCHRUN = "sagemaker_torch_distributed_enabled"
SMALL = Machine(cpus=4, interfaces=("eth0", "lo"), modules=("torch",))
GPUS = SMALL._replace(cpus=96, gpus=8)


def launch_of(tree, host="", machine=SMALL, machines=None, command=("python", "train.py"), **environ):
    """A launch of the tree's job, with two cores of everything known."""
    environ = {**tree.environ, **environ}
    values = settings.read(environ)
    job = jobs.read(environ, launcher_set=bool(values.launcher), host=host)
    network = Network(
        {name: (machines or {}).get(name, machine) for name in (*job.ranked, job.me)},
        "eth0",
        "leads to the peers",
        "10.0.0.1" if len(job.ranked) > 1 else "127.0.0.1",
    )
    env = (EnvVar("SM_CURRENT_HOST", job.me, "describes the job to the script"),)
    return Launch(job, network, values, command, "/opt/ml/code", env, environ, "/opt/venv/bin/python")


def plan_of(tree, host="", **more):
    launch = launch_of(tree, host, **more)
    return launchers.load(launchers.select(launch.job, launch.settings)).plan(launch)


def job(tree, *hosts, groups=None, **hyperparameters):
    more = {}
    if groups:
        more["instance_groups"] = [
            {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "hosts": list(names)}
            for name, names in groups.items()
        ]
        more["current_group_name"] = next(name for name, names in groups.items() if hosts[0] in names)
    tree.hosts(*hosts, **more)
    tree.config("hyperparameters", {"sagemaker_program": "train.py", **hyperparameters})
    return tree


TWO = ("algo-1", "algo-2")
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
CASES = {
    "script-1-host": lambda tree: plan_of(job(tree, "algo-1")),
    "script-copies-host-2": lambda tree: plan_of(job(tree, *TWO), "algo-2"),
    "torchrun-1-host": lambda tree: plan_of(job(tree, "algo-1", **{TORCHRUN: "true", PER_HOST: "2"})),
    "torchrun-2-hosts-host-1": lambda tree: plan_of(job(tree, *TWO, **{TORCHRUN: "true", PER_HOST: "2"})),
    "torchrun-2-hosts-host-2": lambda tree: plan_of(
        job(tree, *TWO, **{TORCHRUN: "true", PER_HOST: "2"}), "algo-2"
    ),
    "torchrun-gpus": lambda tree: plan_of(job(tree, *TWO, **{TORCHRUN: "true"}), "algo-2", machine=GPUS),
    "torchrun-restarts": lambda tree: plan_of(
        job(tree, "algo-1", **{TORCHRUN: "true"}), TRAINBOX_MAX_RESTARTS="3", TRAINBOX_GRACE_SECONDS="30"
    ),
    "torchrun-elastic": lambda tree: plan_of(
        job(tree, "algo-1", "algo-2", "algo-3", **{TORCHRUN: "true", "sagemaker_job_name": "elastic"}),
        "algo-2",
        TRAINBOX_NODES="2:4",
        TRAINBOX_PROCESSES_PER_HOST="2",
    ),
    "torchrun-module": lambda tree: plan_of(
        job(tree, "algo-1", **{TORCHRUN: "true"}), command=("python", "-m", "pkg.train", "--lr", "a b")
    ),
    "torchrun-group-of-many": lambda tree: plan_of(
        job(
            tree, "algo-3", "algo-1", "algo-4", "algo-2",
            groups={"prepare": ("algo-1", "algo-2"), "learn": ("algo-4", "algo-3")},
            **{TORCHRUN: "true", "sagemaker_distribution_instance_groups": '["learn"]'},
        ),
        "algo-4",
    ),
}  # fmt: skip


def recorded(plan):
    """As JSON, without what differs between installations."""
    return json.dumps(plan.to_json(), indent=2).replace(PROGRAM, "RANK_PROGRAM") + "\n"


@pytest.mark.parametrize("name", CASES)
def test_golden_plans(tree, name):
    assert recorded(CASES[name](tree)) == (GOLDEN / f"{name}.json").read_text()


def test_every_golden_plan_has_a_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)


def test_all_hosts_make_plans_of_one_job(tree):
    job(tree, "algo-1", "algo-2", "algo-3", **{TORCHRUN: "true"})
    machines = {"algo-1": GPUS, "algo-2": GPUS, "algo-3": SMALL}
    plans = [plan_of(tree, host, machines=machines) for host in machines]
    assert len({plan.digest for plan in plans}) == 1
    assert [plan.processes[0].ranks for plan in plans] == [tuple(range(8)), tuple(range(8, 16)), (16,)]
    assert {plan.world for plan in plans} == {17}


def test_known_failure_66_modules_under_torchrun(tree):
    argv = plan_of(
        job(tree, "algo-1", **{TORCHRUN: "true"}), command=("python", "-m", "mypkg.train")
    ).processes[0].argv  # fmt: skip
    assert argv[-3:] == ("python", "-m", "mypkg.train")


def test_known_failure_22_without_torch_nothing_is_started_instead(tree):
    with pytest.raises(UserError, match="this image has no PyTorch"):
        plan_of(job(tree, "algo-1", **{TORCHRUN: "true"}), machine=SMALL._replace(modules=()))


@pytest.mark.parametrize(
    "flag", [flag for flag, name in launchers.REQUESTS.items() if name not in launchers.NAMES]
)
def test_known_failure_22_a_launcher_that_is_not_here_is_refused(tree, flag):
    with pytest.raises(UserError, match="nothing was started"):
        plan_of(job(tree, "algo-1", **{flag: "true"}))


def test_two_launchers_contradict_each_other(tree):
    with pytest.raises(UserError, match="more than one launcher"):
        plan_of(job(tree, "algo-1", **{TORCHRUN: "true", "sagemaker_mpi_enabled": "true"}))
    with pytest.raises(UserError, match="by TRAINBOX_LAUNCHER"):
        plan_of(job(tree, "algo-1", **{TORCHRUN: "true"}), TRAINBOX_LAUNCHER="script")


def test_a_launcher_that_is_switched_off_is_not_asked_for(tree):
    off = {TORCHRUN: "true", "sagemaker_mpi_enabled": "false"}
    assert plan_of(job(tree, "algo-1", **off)).launcher == "torchrun"


def test_an_unknown_launcher_is_named(tree):
    with pytest.raises(UserError, match="'torchrn', there are script, torchrun"):
        plan_of(job(tree, "algo-1"), TRAINBOX_LAUNCHER="torchrn")


def test_known_failure_45_copies_are_said_or_refused(tree):
    plan = plan_of(job(tree, *TWO))
    assert "2 hosts and no launcher" in plan.notes[0]
    assert plan.world == 1
    with pytest.raises(UserError, match="independent copy"):
        plan_of(tree, TRAINBOX_STRICT="1")


@pytest.mark.parametrize(
    ("machine", "environ", "given", "count"),
    [
        (SMALL, {}, None, 1),
        (GPUS, {}, None, 8),
        (SMALL._replace(neuron_cores=2), {}, None, 2),
        (GPUS, {"TRAINBOX_PROCESSES_PER_HOST": "3"}, None, 3),
        (GPUS, {"TRAINBOX_PROCESSES_PER_HOST": "3"}, "4", 4),
        (GPUS, {}, "", 8),
    ],
)
def test_processes_per_host(tree, machine, environ, given, count):
    asked = {} if given is None else {PER_HOST: given}
    plan = plan_of(job(tree, "algo-1", **{TORCHRUN: "true", **asked}), machine=machine, **environ)
    assert plan.per_host == count


@pytest.mark.parametrize("given", ["-1", "many", "1.5", "true"])
def test_a_number_of_processes_that_is_none(tree, given):
    with pytest.raises(UserError, match=PER_HOST):
        plan_of(job(tree, "algo-1", **{TORCHRUN: "true", PER_HOST: given}))


@pytest.mark.parametrize(
    ("cpus", "processes", "number"), [(2, 1, "2"), (2, 2, "1"), (2, 4, "1"), (96, 8, "12")]
)
def test_known_failure_75_threads_from_the_cores_of_the_container(tree, cpus, processes, number):
    plan = plan_of(
        job(tree, "algo-1", **{TORCHRUN: "true", PER_HOST: str(processes)}), machine=SMALL._replace(cpus=cpus)
    )
    env = {variable.name: variable.value for variable in plan.processes[0].env}
    assert env["OMP_NUM_THREADS"] == number


def test_known_failure_75_a_number_of_threads_that_is_set_stays(tree):
    plan = plan_of(job(tree, "algo-1"), OMP_NUM_THREADS="7")
    assert "OMP_NUM_THREADS" not in {variable.name for variable in plan.processes[0].env}


def test_an_elastic_range_has_to_hold_the_hosts(tree):
    with pytest.raises(UserError, match="the job has 3 hosts"):
        plan_of(job(tree, "algo-1", "algo-2", "algo-3", **{TORCHRUN: "true"}), TRAINBOX_NODES="1:2")


def test_a_host_outside_the_distributed_groups_runs_on_its_own(tree):
    groups = {"prepare": ("algo-1",), "learn": ("algo-2", "algo-3")}
    flags = {TORCHRUN: "true", "sagemaker_distribution_instance_groups": '["learn"]'}
    plan = plan_of(job(tree, "algo-1", "algo-2", "algo-3", groups=groups, **flags))
    assert plan.launcher == "script"
    assert "on its own" in plan.notes[0]


def _write() -> None:
    for name, make in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / f"{name}.json").write_text(recorded(make(Tree(Path(folder) / "ml"))))
    sys.stdout.write(f"{len(CASES)} plans written to {GOLDEN.name}\n")


if __name__ == "__main__":
    _write()
