"""`trainbox run` with hosts that are processes."""

from __future__ import annotations

import json
import signal
import stat

import pytest

pytestmark = pytest.mark.cluster

SCRIPT = """\
import json, os, pathlib, sys
host = os.environ["SM_CURRENT_HOST"]
seen = {"argv": sys.argv[1:], "channel": sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])), "host": host,
        "token": os.environ.get("TRAINBOX_JOB_TOKEN"), "given": os.environ.get("GIVEN"),
        "cpus": len(os.sched_getaffinity(0)),
        "lib": __import__("lib").VALUE}
pathlib.Path(os.environ["SM_MODEL_DIR"], host + ".json").write_text(json.dumps(seen))
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text(host)
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "eval").write_text("done")
print("out of", host)
print("err of", host, file=sys.stderr)
"""

STOPPABLE = """\
import os, pathlib, signal, subprocess, sys
def stop(number, frame):
    pathlib.Path(os.environ["SM_MODEL_DIR"], "checkpoint").write_text("saved")
    sys.exit(int(os.environ.get("CODE", "0")))
signal.signal(signal.SIGTERM, stop)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_two_hosts_run_a_script_and_leave_a_model(project, left_behind):
    project.write("src/train.py", SCRIPT)
    project.write("src/lib.py", "VALUE = 7")
    project.write("data/rows.csv", "1")
    ran = project.run(
        *("run", "train.py", "--source-dir", "src", "--hosts", "2", "--channel", "train=data", "--cpus", "1"),
        *("-p", "epochs=3", "-p", "name=two words", "--env", "GIVEN"),
        GIVEN="x y",
    )
    assert ran.code == 0, ran.err
    model = ran.archive("model")
    assert set(model) == {"algo-1.json", "algo-2.json", "weights"}
    assert model["weights"] == b"algo-1"
    assert "algo-2:weights" in ran.err
    for host in ("algo-1", "algo-2"):
        seen = json.loads(model[f"{host}.json"])
        assert seen == {
            "argv": ["--epochs", "3", "--name", "two words"],
            "channel": ["rows.csv"],
            "host": host,
            "token": None,
            "given": "x y",
            "cpus": 1,
            "lib": 7,
        }
        assert f"out of {host}" in ran.out
        assert f"err of {host}" in ran.err
        assert f"out of {host}" in ran.log(host)
        assert f"err of {host}" in ran.log(host)
    assert ran.archive("output") == {"eval": b"done"}
    assert f"model in {ran.folder}/output/model.tar.gz" in ran.err
    assert sorted(path.name for path in ran.folder.iterdir()) == ["logs", "output"]
    assert not ran.failure
    assert not left_behind()


TORCH = """\
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
if dist.get_rank() == 0:
    text = f"{total.item()} {dist.get_world_size()} {os.environ['LOCAL_WORLD_SIZE']}"
    pathlib.Path(os.environ["SM_MODEL_DIR"], "sum").write_text(text)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "how",
    [("--launcher", "torchrun"), ("--distribution", '{"torch_distributed": {"enabled": true}}')],
    ids=["launcher", "distribution"],
)
def test_two_hosts_of_two_processes_are_one_torchrun_job(project, how, left_behind):
    project.write("train.py", TORCH)
    ran = project.run("run", "train.py", "--hosts", "2", "--processes-per-host", "2", *how)
    assert ran.code == 0, ran.err
    assert ran.archive("model") == {"sum": b"6.0 4 2"}
    assert not left_behind()


def test_known_failure_86_a_failure_names_host_code_and_reason(project, left_behind):
    project.write(
        "train.py",
        "import os, subprocess, time\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2': raise ValueError('bad lr')\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "time.sleep(600)\n",
    )
    ran = project.run("run", "train.py", "--hosts", "2")
    assert ran.code == 1
    assert "algo-2 failed with exit code 1" in ran.err
    assert "trainbox:   algo-2 rank 1: ValueError: bad lr" in ran.err
    assert str(ran.folder / "logs") in ran.err
    assert "ValueError: bad lr" in ran.failure
    assert not ran.archive("model")
    assert not left_behind()


@pytest.mark.parametrize("code", [3, 255])
def test_the_code_is_that_of_the_script(project, code):
    project.write("train.py", f"raise SystemExit({code})")
    assert project.run("run", "train.py").code == code


def test_known_failure_86_a_signal_is_named(project):
    project.write("train.py", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    ran = project.run("run", "train.py")
    assert ran.code == 139
    assert "algo-1 failed with exit code 139 (killed by SIGSEGV" in ran.err


def test_known_failure_86_a_host_that_dies_without_a_word(project, left_behind):
    project.write(
        "train.py",
        "import os, pathlib, signal, time\nprint('last words', flush=True)\n"
        "log = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR']).parents[3] / 'logs/algo-1.log'\n"
        "while 'last words' not in log.read_text(): time.sleep(0.01)\n"
        "os.kill(int(os.environ.get('LAUNCHER', os.getppid())), signal.SIGKILL)\nsignal.pause()\n",
    )
    ran = project.run("run", "train.py")
    assert ran.code == 137
    assert "killed by SIGKILL" in ran.err
    assert "trainbox:   last words" in ran.err
    assert not left_behind()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_reaches_the_script_which_saves_its_work(project, number, left_behind):
    project.write("train.py", STOPPABLE)
    running = project.start("run", "train.py", "--hosts", "2")
    running.wait_for("ready", 2)
    running.interrupt(number)
    ran = running.finish()
    assert ran.code == 128 + number
    assert ran.archive("model") == {"checkpoint": b"saved"}
    assert "Traceback" not in ran.err
    assert f"stopped by {number.name}" in ran.err
    assert not left_behind()


def test_a_second_interrupt_kills(project, left_behind):
    project.write(
        "train.py",
        "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()",
    )
    running = project.start("run", "train.py", TRAINBOX_GRACE_SECONDS="600")
    running.wait_for("ready")
    running.interrupt()
    running.interrupt(signal.SIGTERM)
    ran = running.finish()
    assert ran.code in (128 + signal.SIGINT, 128 + signal.SIGTERM)  # whichever Python saw first
    assert not left_behind()


def test_a_runner_that_is_killed_takes_its_hosts_with_it(project, left_behind):
    project.write("train.py", STOPPABLE)
    running = project.start("run", "train.py")
    running.wait_for("ready")
    hosts = left_behind()
    assert hosts
    running.process.kill()
    running.process.communicate(
        timeout=60
    )  # returns when nobody holds the pipes any more: the hosts have gone


@pytest.mark.parametrize(("code", "expected"), [("0", 124), ("9", 9)])
def test_a_job_that_takes_too_long_is_stopped(project, code, expected, left_behind):
    project.write("train.py", STOPPABLE)
    ran = project.run("run", "train.py", "--timeout", "2", "--env", f"CODE={code}")
    assert ran.code == expected
    assert "--timeout" in ran.err
    assert not left_behind()


def test_bytes_arrive_as_they_were_written(project):
    project.write(
        "train.py",
        "import sys\nfor _ in range(300): sys.stdout.buffer.write(b'x' * 10_000 + b'\\r')\n"
        "sys.stdout.buffer.write(b'\\x80\\xff no newline')",
    )
    ran = project.run("run", "train.py")
    assert ran.code == 0
    assert len(ran.out) == 300 * 10_001 + len("?? no newline")
    assert ran.out.endswith(" no newline")


def test_known_failure_34_folders_that_the_script_made_read_only(project):
    project.write(
        "train.py",
        "import os, pathlib\nfolder = pathlib.Path(os.environ['SM_MODEL_DIR'], 'a')\n"
        "folder.mkdir()\n(folder / 'f').write_text('x')\nfolder.chmod(0o500)\n",
    )
    ran = project.run("run", "train.py")
    assert ran.code == 0
    assert ran.archive("model") == {"a/f": b"x"}
    assert not (ran.folder / ".work").exists()
    status = (ran.folder / "output/model.tar.gz").stat()
    assert status.st_uid == project.folder.stat().st_uid
    assert stat.S_IMODE(status.st_mode) & 0o600 == 0o600


def test_known_failure_70_jobs_beside_each_other(project):
    project.write("train.py", TORCH)
    words = ("run", "train.py", "--hosts", "2", "--launcher", "torchrun")
    running = [project.start(*words) for _ in range(2)]
    assert [job.finish().code for job in running] == [0, 0]
    assert len(list((project.folder / "out").iterdir())) == 2


def test_the_trees_can_be_kept_and_planned(project):
    project.write("train.py", "print('trained')")
    ran = project.run("run", "train.py", "--hosts", "2", "--launcher", "torchrun", "--keep", "-p", "epochs=3")
    assert ran.code == 0, ran.err
    base = str(ran.folder / ".work/algo-2/opt/ml")
    planned = project.run("plan", "--base", base, "--json", "--all")
    assert planned.code == 0, planned.err
    plans = json.loads(planned.out)
    assert [plan["host"] for plan in plans] == ["algo-1", "algo-2"]
    assert {plan["world"] for plan in plans} == {2}
    assert len({plan["digest"] for plan in plans}) == 1
    assert "--epochs" in project.run("plan", "--base", base).out


def test_a_job_that_leaves_no_model_is_told_of(project):
    project.write("train.py", "")
    ran = project.run("run", "train.py")
    assert ran.code == 0
    assert "left no model" in ran.err
