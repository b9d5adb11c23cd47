"""`trainbox run --image`: hosts that are containers, beside the same job with hosts that are processes."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytestmark = pytest.mark.container

JOB_LABEL = "trainbox.job"

DDP = """\
import json, os, pathlib, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
torch.manual_seed(dist.get_rank())
for _ in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
            weight.grad = None
if dist.get_rank() == 0:
    weights = [round(weight, 5) for weight in model.module.weight.flatten().tolist()]
    facts = {"world": dist.get_world_size(), "weights": weights}
    pathlib.Path(os.environ["SM_MODEL_DIR"], "model.json").write_text(json.dumps(facts))
print("trained on", os.environ["SM_CURRENT_HOST"])
dist.destroy_process_group()
"""

ENVIRONMENT = """\
import json, os, pathlib
pathlib.Path(os.environ["SM_MODEL_DIR"], "env.json").write_text(json.dumps(dict(os.environ)))
"""

STOPPABLE = """\
import os, pathlib, signal, sys
def stop(number, frame):
    pathlib.Path(os.environ["SM_MODEL_DIR"], "checkpoint").write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def left_over(docker, project):
    """Containers and networks of the project's jobs that are still there."""

    def find():
        jobs = [path.name for path in (project.folder / "out").iterdir()]
        found = []
        for job in jobs:
            label = ("--filter", f"label={JOB_LABEL}={job}", "--quiet")
            found += docker("ps", "--all", *label).split() + docker("network", "ls", *label).split()
        return found

    return find


def test_two_hosts_of_two_processes_give_the_same_in_both_forms(project, pytorch_image, left_over):
    project.write("train.py", DDP)
    words = ("run", "train.py", "--hosts", "2", "--processes-per-host", "2", "--launcher", "torchrun")
    runs = {
        "processes": project.run(*words, "--output", "out/processes"),
        "containers": project.run(*words, "--output", "out/containers", "--image", pytorch_image),
    }
    models, digests = [], []
    for name, ran in runs.items():
        assert ran.code == 0, ran.err
        (folder,) = (project.folder / "out" / name).iterdir()
        ran = ran._replace(folder=folder)
        models.append(ran.archive("model"))
        plans = [
            json.loads(line.split("launch ", 1)[1]) for line in ran.err.splitlines() if ": launch {" in line
        ]
        digests += [plan["digest"] for plan in plans]
        assert {plan["world"] for plan in plans} == {4}
        for rank in range(4):
            host = f"algo-{1 + rank // 2}"
            assert f"[{host} {rank}] trained on {host}\n" in ran.out
    assert models[0] == models[1]
    assert json.loads(models[0]["model.json"])["world"] == 4
    assert len(digests) == 4
    assert len(set(digests)) == 1


def test_known_failure_71_the_environment_is_that_of_a_plain_container(project, base_image, lab):
    project.write("train.py", ENVIRONMENT)
    words = (
        "--image",
        base_image,
        "--keep",
        "--env",
        "GIVEN=x y",
        "-p",
        "lr=0.1",
        "--job-name",
        "seventy-one",
    )
    ran = project.run("run", "train.py", *words, AWS_REGION="eu-west-1")
    assert ran.code == 0, ran.err
    base = ran.folder / ".work/algo-1/opt/ml"
    ours = json.loads((base / "model/env.json").read_text())
    given = ("--env", "GIVEN=x y", "--env", "AWS_REGION=eu-west-1", "--env", "TRAINING_JOB_NAME=seventy-one")
    volume = (
        "--volume",
        f"{base}:/opt/ml",
        "--hostname",
        "algo-1",
        "--user",
        f"{os.geteuid()}:{os.getegid()}",
    )
    plain_run = lab.run(base_image, "train", options=(*given, *volume))
    assert plain_run.code == 0, plain_run.log
    plain = json.loads((base / "model/env.json").read_text())
    assert ours.pop("TRAINBOX_GRACE_SECONDS") == "30"
    assert ours == plain
    assert ours["SM_HP_LR"] == "0.1"


def test_known_failure_71_hosts_that_are_processes_see_the_same_job(project, base_image):
    project.write("train.py", ENVIRONMENT)
    words = ("run", "train.py", "--keep", "-p", "lr=0.1", "--job-name")
    seen = []
    for name, more in (("one", ()), ("two", ("--image", base_image))):
        ran = project.run(*words, name, *more)
        assert ran.code == 0, ran.err
        base = f"{project.folder}/out/{name}/.work/algo-1/opt/ml"
        text = (project.folder / "out" / name / ".work/algo-1/opt/ml/model/env.json").read_text()
        env = json.loads(text.replace(base, "/opt/ml"))
        seen.append({key: value for key, value in env.items() if key.startswith("SM_")})
    # What describes the machine, and the network that the platform names, may differ; the names may not.
    assert seen[0].keys() == seen[1].keys()
    differing = {key for key in seen[0] if seen[0][key] != seen[1][key]}
    assert differing <= {
        "SM_NETWORK_INTERFACE_NAME", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV", "SM_NUM_CPUS",
        "SM_FRAMEWORK_PARAMS", "SM_MASTER_PORT",
    }  # fmt: skip


def test_known_failure_86_a_failure_names_host_code_and_reason(project, base_image, left_over):
    project.write("train.py", "raise ValueError('bad lr')")
    ran = project.run("run", "train.py", "--image", base_image)
    assert ran.code == 1
    assert "trainbox: algo-1 failed with exit code 1" in ran.err
    assert "trainbox:   algo-1 rank 0: ValueError: bad lr" in ran.err
    assert ran.failure.startswith("algo-1 rank 0: ValueError: bad lr")
    assert not left_over()


def test_known_failure_86_out_of_memory_is_said(project, base_image, left_over):
    project.write("train.py", "data = []\nwhile True: data.append(b'x' * (1 << 24))")
    ran = project.run("run", "train.py", "--image", base_image, "--memory", "128m")
    assert ran.code == 137
    assert "ran out of memory (limit 128 MiB)" in ran.err
    assert not left_over()


def test_known_failure_90_the_network_of_the_machine(project, base_image, left_over):
    project.write(
        "train.py",
        "import os, pathlib\nnames = sorted(os.listdir('/sys/class/net'))\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], 'names').write_text(' '.join(names))",
    )
    ran = project.run("run", "train.py", "--image", base_image, "--network", "host")
    assert ran.code == 0, ran.err
    assert ran.archive("model")["names"].decode().split() == sorted(os.listdir("/sys/class/net"))
    assert not left_over()


def test_known_failure_70_networks_of_their_own_that_are_always_removed(
    docker, project, base_image, left_over
):
    try:
        docker("network", "create", "--label", "trainbox.test", "sagemaker-local")
        made = True
    except AssertionError:  # somebody else's is there, which is what the test is about
        made = False
    try:
        project.write("train.py", "import socket; print('peer at', socket.gethostbyname('algo-2'))")
        words = ("run", "train.py", "--image", base_image, "--hosts", "2")
        jobs = [project.start(*words, "--job-name", name) for name in ("one", "two")]
        for ran in [job.finish() for job in jobs]:
            assert ran.code == 0, ran.err
            assert ran.out.count("peer at") == 2
        assert not left_over()
    finally:
        if made:
            docker("network", "rm", "sagemaker-local")


def test_an_existing_network_is_used_and_stays(docker, project, base_image, lab, left_over):
    network = lab.network()
    name = docker("network", "inspect", "--format", "{{.Name}}", network)
    project.write("train.py", "import socket; print('peer at', socket.gethostbyname('algo-2'))")
    ran = project.run("run", "train.py", "--image", base_image, "--hosts", "2", "--network", name)
    assert ran.code == 0, ran.err
    assert not left_over()
    assert docker("network", "inspect", "--format", "{{len .Containers}}", network) == "0"


def test_known_failure_41_neither_docker_nor_compose_is_called(project, base_image, tmp_path):
    project.write("train.py", "print('trained')")
    empty = tmp_path / "empty"
    empty.mkdir()
    ran = project.run("run", "train.py", "--image", base_image, PATH=str(empty))
    assert ran.code == 0, ran.err
    assert "trained" in ran.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_reaches_the_script_and_everything_is_removed(project, base_image, number, left_over):
    project.write("train.py", STOPPABLE)
    running = project.start("run", "train.py", "--image", base_image, "--hosts", "2")
    running.wait_for("ready", 2)
    running.interrupt(number)
    ran = running.finish()
    assert ran.code == 128 + number
    assert ran.archive("model") == {"checkpoint": b"saved"}
    assert "Traceback" not in ran.err
    assert not left_over()


def test_known_failure_34_what_another_user_wrote_is_the_callers(project, base_image):
    project.write(
        "train.py", "import os, pathlib; pathlib.Path(os.environ['SM_MODEL_DIR'], 'm').write_text('x')"
    )
    ran = project.run("run", "train.py", "--image", base_image, "--user", "12345:12345")
    assert ran.code == 0, ran.err
    assert ran.archive("model") == {"m": b"x"}
    assert (ran.folder / "output/model.tar.gz").stat().st_uid == os.geteuid()
    assert sorted(path.name for path in ran.folder.iterdir()) == ["logs", "output"]


def test_known_failure_35_shared_memory_is_larger_than_an_engines_default(project, base_image):
    project.write("train.py", "import os; s = os.statvfs('/dev/shm'); print('shm', s.f_frsize * s.f_blocks)")
    for words, size in (((), 1 << 30), (("--shm-size", "200m"), 200 << 20)):
        ran = project.run("run", "train.py", "--image", base_image, *words)
        assert f"shm {size}" in ran.out, ran.err


@pytest.mark.parametrize(
    ("words", "environ", "code", "line"),
    [
        (("--image", "trainbox/nothing:here"), {}, 2, "there is no image trainbox/nothing:here on this"),
        (("--image", "x"), {"DOCKER_HOST": "unix:///nonexistent"}, 69, "answers at unix:///nonexistent"),
        (("--network", "nothing-of-this-name"), {}, 2, "there is no network nothing-of-this-name"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named_before_anything_is_made(project, base_image, words, environ, code, line):
    project.write("train.py", "")
    image = () if "--image" in words else ("--image", base_image)
    ran = project.run("run", "train.py", *image, *words, **environ)
    assert ran.code == code
    assert line in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (project.folder / "out").exists()
