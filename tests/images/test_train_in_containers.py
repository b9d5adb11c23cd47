"""`train` in one container of the image without a framework, as a platform runs it."""

from __future__ import annotations

import json
import os

import pytest

from tests.images.dockerkit import Engine, Tree, wait_for

pytestmark = pytest.mark.container

# A user whom neither the image nor the machine knows.
STRANGER = 1234 if os.getuid() != 1234 else 1235
AS_STRANGER = ("--user", f"{STRANGER}:{STRANGER}")
LOCKED_DOWN = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp")

LEAVES_MODEL = """
import json, os, sys
facts = {"argv": sys.argv[1:], "environ": dict(os.environ), "uid": os.getuid()}
with open("/opt/ml/model/facts.json", "w") as file:
    json.dump(facts, file)
with open("/opt/ml/output/data/curve.csv", "w") as file:
    file.write("0.5\\n")
print("trained")
"""

TRAPS = """
import os, signal, sys

def save(number, frame):
    with open("/opt/ml/model/ckpt", "w") as file:
        file.write("step 7")
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
with open("/proc/1/cmdline", "rb") as file:
    first = file.read().split(b"\\0")
with open("/opt/ml/output/data/first", "w") as file:
    file.write(" ".join(word.decode() for word in first))
os.rename("/opt/ml/output/data/first", "/opt/ml/output/data/ready")
while True:
    signal.pause()
"""


def test_known_failure_01_arguments_arrive_as_they_were_given(base_image, lab, tree):
    values = {
        "a": "x y",
        "b": "$HOME;touch /tmp/pwn",
        "c": "*.py (1)",
        "d": {"k": [1, "two three"]},
        "e": 'it\'s "q"',
    }
    script = (
        "import json, os, sys\n"
        "json.dump([sys.argv[1:], os.path.exists('/tmp/pwn')], open('/opt/ml/model/x', 'w'))\n"
    )
    tree.program(script, **values)
    assert lab.run(base_image, "train", tree=tree).code == 0
    arguments, pwned = tree.model("x")
    found = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert json.loads(found.pop("-d")) == values.pop("d")
    assert found == {f"-{name}": value for name, value in values.items()}
    assert not pwned


@pytest.mark.parametrize(
    "command", [("train",), (), ("bash", "-c", "exec train")], ids=["train", "none", "bash"]
)
def test_known_failure_02_stop_reaches_the_script(base_image, lab, tree, command):
    tree.program(TRAPS)
    container = lab.start(base_image, *command, tree=tree)
    ready = tree.folder / "output" / "data" / "ready"
    wait_for(ready.exists, "the script to be ready")
    assert "/train" in ready.read_text(encoding="utf-8"), "process 1 is not train"
    container.stop(60)
    ended = container.wait()
    # Not 137: the engine did not have to kill it.
    assert ended.code == 0, ended.log
    assert (tree.folder / "model" / "ckpt").read_text(encoding="utf-8") == "step 7"
    assert "saved" in ended.out
    assert tree.failure == ""


def test_known_failure_02_a_script_without_a_handler_ends_with_143(base_image, lab, tree):
    tree.program(TRAPS.replace("signal.signal(", "(lambda *_: None)("))
    container = lab.start(base_image, "train", tree=tree)
    wait_for((tree.folder / "output" / "data" / "ready").exists, "the script to be ready")
    container.stop(60)
    assert container.wait().code == 143
    assert tree.failure == "algo-1 rank 0: stopped by SIGTERM\nexit code 143\n"


def test_process_1_reaps_orphans(base_image, lab, tree):
    tree.program(
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os._exit(0 if os.fork() else 7)\n"
        "    os.wait()\n"
        "def count():\n"
        "    return sum(entry.isdigit() for entry in os.listdir('/proc'))\n"
        "deadline = time.monotonic() + 60\n"
        "while count() > 2 and time.monotonic() < deadline:\n"
        "    time.sleep(0.05)\n"
        "print(count(), 'processes')\n"
    )
    ended = lab.run(base_image, "train", tree=tree)
    assert ended.code == 0, ended.log
    assert ended.out == "2 processes\n"


def test_known_failure_05_the_reason_of_a_job_that_ran_out_of_memory(base_image, lab, tree):
    tree.program("kept = []\nwhile True:\n    kept.append(b'x' * (1 << 24))\n")
    ended = lab.run(base_image, "train", tree=tree, options=("--memory", "256m", "--memory-swap", "256m"))
    assert ended.code == 137
    assert "SIGKILL" in tree.failure[:1024]
    assert "ran out of memory (limit 256 MiB)" in tree.failure[:1024]
    assert tree.failure.startswith("algo-1 rank 0: ")


FILES = {
    "hyperparameters": {"lr": '"0.1"'},
    "resourceconfig": {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"},
    "inputdataconfig": {"train": {"TrainingInputMode": "File"}},
}


@pytest.fixture(params=FILES)
def name(request, tree):
    """The JSON file that is changed; the tree has all three, and the program comes from the environment."""
    tree.program(LEAVES_MODEL)
    (tree.folder / "input" / "data" / "train").mkdir()
    for each, content in FILES.items():
        tree.config(each, content)
    return request.param


def run_named(lab, image, tree):
    return lab.run(image, "train", tree=tree, options=("--env", "SAGEMAKER_PROGRAM=train.py", *AS_STRANGER))


@pytest.mark.parametrize("state", ["absent", "empty", "with a byte order mark"])
def test_known_failure_33_a_file_that_is_no_obstacle(base_image, lab, tree, name, state):
    if state == "absent":
        (tree.folder / "input" / "config" / f"{name}.json").unlink()
    else:
        tree.config(name, b"" if state == "empty" else b"\xef\xbb\xbf" + json.dumps(FILES[name]).encode())
    ended = run_named(lab, base_image, tree)
    assert ended.code == 0, ended.log
    facts = tree.model("facts.json")
    assert facts["environ"]["SM_CURRENT_HOST"] == "algo-1"
    assert json.loads(facts["environ"]["SM_HOSTS"]) == ["algo-1"]
    if state == "with a byte order mark":
        assert facts["argv"] == ["--lr", "0.1"]
        assert facts["environ"]["SM_CHANNEL_TRAIN"] == "/opt/ml/input/data/train"
    expected = (f"{name}.json is empty",) if state == "empty" else ()
    assert ended.alarms(*expected) == []


def test_known_failure_33_a_file_that_is_cut_off(base_image, lab, tree, name):
    whole = json.dumps(FILES[name]).encode()
    tree.config(name, whole[: len(whole) // 2])
    ended = run_named(lab, base_image, tree)
    assert ended.code == 2
    assert f"/opt/ml/input/config/{name}.json is not JSON at byte " in tree.failure
    assert f"of {len(whole) // 2}" in tree.failure
    assert "Traceback" not in ended.log
    assert len(ended.log.splitlines()) == 1


def test_known_failure_33_a_file_of_another_user(base_image, lab, tree, name):
    tree.config(name, FILES[name]).chmod(0o600)
    ended = run_named(lab, base_image, tree)
    assert ended.code == 2
    assert (
        f"cannot read /opt/ml/input/config/{name}.json: Permission denied (as user {STRANGER})"
        in tree.failure
    )
    assert len(ended.log.splitlines()) == 1


def owners(tree: Tree) -> dict[str, int]:
    """Files that the job left, and the users they belong to."""
    left = [path for top in ("model", "output") for path in (tree.folder / top).rglob("*") if path.is_file()]
    return {str(path.relative_to(tree.folder)): path.stat().st_uid for path in left}


def test_known_failure_34_what_a_job_leaves_belongs_to_its_user(base_image, lab, tree):
    tree.program(LEAVES_MODEL)
    assert lab.run(base_image, "train", tree=tree, options=AS_STRANGER).code == 0
    assert owners(tree) == {"model/facts.json": STRANGER, "output/data/curve.csv": STRANGER}


@pytest.mark.parametrize("end", [0, 3])
def test_known_failure_34_root_hands_over_what_the_job_leaves(base_image, lab, tree, end):
    tree.program(f"{LEAVES_MODEL}\nsys.exit({end})")
    options = ("--user", "0:0", "--env", f"TRAINBOX_OWNER={STRANGER}:{STRANGER}")
    assert lab.run(base_image, "train", tree=tree, options=options).code == end
    expected = {"model/facts.json": STRANGER, "output/data/curve.csv": STRANGER}
    if end:
        expected["output/failure"] = STRANGER
    assert owners(tree) == expected


def test_known_failure_34_root_hands_over_the_reason_of_a_job_that_did_not_start(base_image, lab, tree):
    tree.config("hyperparameters", b"{")
    options = ("--user", "0:0", "--env", f"TRAINBOX_OWNER={STRANGER}:{STRANGER}")
    assert lab.run(base_image, "train", tree=tree, options=options).code == 2
    assert owners(tree) == {"output/failure": STRANGER}


def test_known_failure_35_a_bus_error_is_put_down_to_shared_memory(base_image, lab, tree):
    tree.program(
        "import mmap, os\n"
        "fd = os.open('/dev/shm/batch', os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(fd, 128 << 20)\n"
        "room = mmap.mmap(fd, 128 << 20)\n"
        "for at in range(0, 128 << 20, mmap.PAGESIZE):\n"
        "    room[at] = 1\n"
    )
    assert lab.run(base_image, "train", tree=tree, options=("--shm-size", "64m")).code == 135
    assert "SIGBUS" in tree.failure
    assert "/dev/shm holds 64 MiB" in tree.failure
    assert "--shm-size" in tree.failure


def test_known_failure_50_starts_without_compiler_network_and_writable_root(base_image, lab, tree):
    tree.program(LEAVES_MODEL)
    options = ("--network", "none", "--read-only", "--tmpfs", "/tmp")
    ended = lab.run(base_image, "train", tree=tree, options=options)
    assert ended.code == 0, ended.log
    assert ended.out == "trained\n"
    assert ended.alarms() == []
    assert "LD_PRELOAD" not in tree.model("facts.json")["environ"]


def test_known_failure_52_one_host_needs_no_name_to_resolve(base_image, lab, tree):
    tree.program(LEAVES_MODEL).hosts("algo-1")
    ended = lab.run(base_image, "train", tree=tree, options=("--network", "none"))
    assert ended.code == 0, ended.log
    assert ended.alarms() == []


def test_known_failure_52_of_several_hosts_the_missing_ones_are_named(base_image, lab, tree):
    tree.program(LEAVES_MODEL).hosts("algo-2", "algo-1")
    options = ("--network", "none", "--env", "TRAINBOX_START_TIMEOUT_SECONDS=1")
    ended = lab.run(base_image, "train", tree=tree, options=options)
    assert ended.code == 69
    assert "name algo-1 does not resolve" in tree.failure
    assert "trained" not in ended.log


def test_known_failure_72_works_without_any_privilege(base_image, lab, tree):
    tree.program(LEAVES_MODEL, epochs=3)
    ended = lab.run(base_image, "train", tree=tree, options=(*AS_STRANGER, *LOCKED_DOWN))
    assert ended.code == 0, ended.log
    assert ended.alarms() == []
    facts = tree.model("facts.json")
    assert facts["uid"] == STRANGER
    assert facts["argv"] == ["--epochs", "3"]
    assert facts["environ"]["HOME"] == "/tmp"


def test_known_failure_73_no_framework_and_no_hook_is_imported_by_the_launcher(
    base_image, lab, tree, tmp_path
):
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for module in ("smdebug", "torch", "tensorflow", "mxnet", "horovod", "boto3", "sitecustomize"):
        # Python imports sitecustomize by itself: it shows that imports are looked for where the stubs are.
        recorded = f"import os, sys\nopen('/opt/ml/checkpoints/{module}-by-' + str(os.getpid()), 'w')\n"
        end = "raise ImportError('a hook that breaks')\n" if module == "smdebug" else ""
        (stubs / f"{module}.py").write_text(recorded + end, encoding="utf-8")
    tree.program(LEAVES_MODEL)
    options = ("--volume", f"{stubs}:/stubs:ro", "--env", "PYTHONPATH=/stubs")
    ended = lab.run(base_image, "train", tree=tree, options=options)
    assert ended.code == 0, ended.log
    seen = sorted(path.name for path in (tree.folder / "checkpoints").iterdir())
    assert "sitecustomize-by-1" in seen
    assert [name for name in seen if not name.startswith("sitecustomize-")] == []


def test_known_failure_75_threads_follow_the_cpus_of_the_container(base_image, lab, new_tree, docker: Engine):
    present = int(docker("info", "--format", "{{.NCPU}}"))
    script = "import json, os\njson.dump(os.environ['OMP_NUM_THREADS'], open('/opt/ml/model/threads', 'w'))"
    cases = [("1", (), "1"), ("0.5", (), "1"), ("1", ("--env", "OMP_NUM_THREADS=7"), "7")]
    if present > 1:
        cases.append(("2", (), "2"))
    for cpus, options, expected in cases:
        tree = new_tree().program(script)
        assert lab.run(base_image, "train", tree=tree, options=("--cpus", cpus, *options)).code == 0
        assert tree.model("threads") == expected, f"--cpus {cpus}"


@pytest.mark.parametrize("end", [0, 5])
def test_known_failure_81_a_tree_that_cannot_be_written(base_image, lab, tree, end):
    tree.program(f"import sys\nprint('ran')\nsys.exit({end})")
    ended = lab.run(base_image, "train", tree=tree, mode="ro")
    assert ended.code == end, ended.log
    assert ended.out == "ran\n"
    assert "Traceback" not in ended.log
    assert ("cannot write /opt/ml/output/failure: Read-only file system" in ended.err) == bool(end)


def test_known_failure_81_import_leaves_no_trace(base_image, lab, tree):
    script = (
        "import importlib, pkgutil, trainbox\n"
        "for module in pkgutil.walk_packages(trainbox.__path__, 'trainbox.'):\n"
        "    importlib.import_module(module.name)\n"
        "print('imported')\n"
    )
    many = (
        'for n in $(seq 32); do python -c "$0" & all="$all $!"; done; for n in $all; do wait $n || exit; done'
    )
    before = sorted(tree.folder.rglob("*"))
    ended = lab.run(
        base_image, "bash", "-c", many, script, tree=tree, mode="ro", options=("--network", "none")
    )
    assert ended.code == 0, ended.err
    assert ended.out.count("imported") == 32
    assert ended.err == ""
    assert sorted(tree.folder.rglob("*")) == before


def test_known_failure_82_each_launcher_in_an_image_that_has_only_the_toolkit(base_image, lab, new_tree):
    plain = new_tree().program(LEAVES_MODEL)
    assert lab.run(base_image, "train", tree=plain).code == 0
    torchrun = new_tree().program(LEAVES_MODEL, sagemaker_torch_distributed_enabled=True)
    ended = lab.run(base_image, "train", tree=torchrun)
    assert ended.code == 2
    assert "this image has no PyTorch" in torchrun.failure
    assert len(ended.log.splitlines()) == 1
    assert owners(torchrun) == {"output/failure": 1000}
