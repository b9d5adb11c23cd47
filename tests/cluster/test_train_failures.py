"""How jobs of one host end: exit codes, reasons, signals, what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trainbox
from tests.cluster.conftest import processes_with

pytestmark = pytest.mark.cluster

TORCHRUN = {"sagemaker_torch_distributed_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}

SAVES = """\
import os, pathlib, signal, subprocess, sys
def stop(number, frame):
    rank = os.environ.get("RANK", "0")
    pathlib.Path(os.environ["SM_MODEL_DIR"], f"checkpoint-{rank}").write_text(signal.Signals(number).name)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("ready", flush=True)
while True:
    signal.pause()
"""


def left_behind(tree):
    return processes_with(f"SAGEMAKER_BASE_DIR={tree.base}")


@pytest.mark.parametrize("code", [0, 1, 2, 3, 69, 70, 124, 126, 127, 128, 137, 255])
def test_the_exit_code_is_the_scripts(tree, code):
    tree.program(f"raise SystemExit({code})")
    ended = tree.run()
    assert ended.code == code
    assert bool(ended.failure) == bool(code)


def test_known_failure_05_an_exception(tree):
    tree.program("print('epoch 1')\nraise ValueError('bad lr')")
    ended = tree.run()
    assert ended.code == 1
    assert ended.failure == "algo-1 rank 0: ValueError: bad lr\nexit code 1\n"
    assert "trainbox: error: algo-1 rank 0: ValueError: bad lr" in ended.err


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", 139, "killed by SIGSEGV: segmentation fault"),
        ("import os; os.abort()", 134, "killed by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", 135, "/dev/shm"),
    ],
)
def test_known_failure_05_signals_are_said_in_words(tree, text, code, words):
    tree.program(text)
    ended = tree.run()
    assert ended.code == code
    assert ended.failure.startswith("algo-1 rank 0: ")
    assert words in ended.failure[:1024]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "raise ValueError('bad lr') if rank == 1 else wait()",
            1,
            "algo-1 rank 1: ValueError: bad lr\nexit code 1",
        ),
        ("sys.exit(3) if rank == 1 else wait()", 3, "algo-1 rank 1: ended with exit code 3"),
        ("os.kill(os.getpid(), 9) if rank == 1 else wait()", 137, "algo-1 rank 1: killed by SIGKILL"),
    ],
)
def test_known_failure_05_the_rank_that_failed_first_is_the_cause(tree, text, code, words):
    head = "import os, signal, sys\nrank = int(os.environ['RANK'])\nwait = signal.pause\n"
    failing = text.replace("raise ValueError('bad lr') if", "(_ for _ in ()).throw(ValueError('bad lr')) if")
    tree.program(head + failing, **TORCHRUN)
    ended = tree.run()
    assert ended.code == code
    assert ended.failure.startswith(words)
    assert "ChildFailedError" not in ended.err  # the launcher's own words about it are left out
    assert not left_behind(tree)


def test_a_reason_that_the_script_wrote_stays(tree):
    tree.program(
        "import os, sys\nopen(os.environ['SM_OUTPUT_FAILURE'], 'w').write('my own words')\nsys.exit(5)"
    )
    ended = tree.run()
    assert (ended.code, ended.failure) == (5, "my own words")
    assert "stays as it is" in ended.err


def test_a_reason_of_an_earlier_start_does_not(tree):
    (tree.base / "output/failure").write_text("long ago")
    tree.program("print('fine')")
    ended = tree.run()
    assert (ended.code, ended.failure) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["python", "shell", "torchrun"])
def test_known_failure_02_every_process_gets_the_signal_and_can_save(tree, how, number):
    tree.program(SAVES, **(TORCHRUN if how == "torchrun" else {}))
    tree.code("train.sh", "#!/bin/sh\npython train.py\nexit $?\n")
    ranks = 2 if how == "torchrun" else 1
    running = tree.start(**({"SAGEMAKER_PROGRAM": "train.sh"} if how == "shell" else {}))
    running.wait_for(b"ready")
    deadline = time.monotonic() + 60
    while ranks == 2 and running._seen.count(b"ready") < 2 and time.monotonic() < deadline:
        running.wait_for(b"ready\n[")
    running.signal(number)
    ended = running.end()
    saved = {path.name for path in (tree.base / "model").iterdir()}
    assert saved == {f"checkpoint-{rank}" for rank in range(ranks)}, ended.err
    # A shell that gets the signal itself ends by it once its child has ended.
    assert ended.code == (128 + number if how == "shell" else 0), ended.err
    assert not left_behind(tree)


def test_known_failure_02_a_script_that_does_not_end_is_killed_after_the_grace(tree):
    tree.program(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    running = tree.start(TRAINBOX_GRACE_SECONDS="0.3")
    running.wait_for(b"ready")
    running.signal()
    ended = running.end()
    assert ended.code == 137
    assert "did not end within 0.3 s" in ended.failure
    assert not left_behind(tree)


def test_a_signal_that_asks_for_no_end_is_passed_on(tree):
    tree.program(
        "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()\n"
    )
    running = tree.start()
    running.wait_for(b"ready")
    running.signal(signal.SIGUSR1)
    assert running.end().code == 7


def test_what_the_script_leaves_running_is_ended_and_named(tree):
    tree.program(
        "import os, subprocess, sys\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '601'])\n"
    )
    ended = tree.run()
    assert ended.code == 0
    assert "left behind: sleep" in ended.err
    assert not left_behind(tree)


def test_a_stop_before_the_script_has_started(hosts):
    (tree, *_), environ = hosts(2)
    tree.program("print('never')", sagemaker_torch_distributed_enabled=True)
    running = tree.start(**environ)
    while "join" not in (line := running.process.stderr.readline().decode()):
        assert line
    running.signal()
    ended = running.end()
    assert ended.code == 143
    assert ended.out == b""
    assert "stopped before the script was started" in ended.failure


def test_a_program_for_another_machine_is_named(tree):
    tree.program("", name="train.py")
    (tree.base / "code/program").write_bytes(b"\x7fELF\0 of another kind")
    (tree.base / "code/program").chmod(0o755)
    ended = tree.run(SAGEMAKER_PROGRAM="program")
    assert ended.code == 2
    assert ended.failure == f"cannot run {tree.base}/code/program: Exec format error\n"


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed_are_no_obstacle(tree, closed):
    tree.program("import os, pathlib; pathlib.Path(os.environ['SM_MODEL_DIR'], 'm').write_text('x')")
    redirections = " ".join(f"{fd}>&-" for fd in closed)
    command = f"exec {sys.executable} -m trainbox.train {redirections}"
    done = subprocess.run(["sh", "-c", command], env=tree.environ(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tree.base / "model/m").read_text() == "x"


NAMES = ("hyperparameters", "resourceconfig", "inputdataconfig")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xef\xbb\xbf{}"])
def test_known_failure_33_files_that_are_absent_empty_or_marked(tree, name, content):
    tree.code("train.py", "print('trained')")
    if content is not None:
        tree.config(name, content)
    ended = tree.run(SAGEMAKER_PROGRAM="train.py")
    assert ended.code == 0, ended.err
    assert ended.out == b"trained\n"


@pytest.mark.parametrize("name", NAMES)
def test_known_failure_33_a_file_that_is_cut_off_is_named_with_the_byte(tree, name):
    path = tree.config(name, b'{"key": "val')
    ended = tree.run(SAGEMAKER_PROGRAM="train.py")
    assert ended.code == 2
    assert str(path) in ended.failure
    assert "at byte" in ended.failure
    assert "cut off" in ended.failure


def test_known_failure_22_torchrun_without_torch_is_an_error(tree, tmp_path):
    # An interpreter without packages but the toolkit's: what a slim image has.
    python = tmp_path / "python"
    only = tmp_path / "only"
    only.mkdir()
    (only / "trainbox").symlink_to(Path(trainbox.__file__).parent)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={only} exec {os.path.realpath("/proc/self/exe")} -S "$@"\n')
    python.chmod(0o755)
    tree.program("print('never')", **TORCHRUN)
    done = subprocess.run(
        [python, "-m", "trainbox.train"], env=tree.environ(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
    assert "this image has no PyTorch" in tree.failure


def test_known_failure_45_copies_on_several_hosts(hosts):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program("print('trained')")
    running = [tree.start(**environ) for tree in trees]
    for ended in [each.end() for each in running]:
        assert ended.code == 0, ended.err
        assert "warning: 2 hosts and no launcher asked for" in ended.err
    running = [tree.start(**environ, TRAINBOX_STRICT="1") for tree in trees]
    for ended in [each.end() for each in running]:
        assert ended.code == 2
        assert "independent copy" in ended.failure
