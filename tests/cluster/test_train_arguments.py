"""From the tree to the script: programs, arguments, variables, requirements."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from tests.trainkit import DUMP

pytestmark = pytest.mark.cluster

TORCHRUN = {"sagemaker_torch_distributed_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}

# Values that a shell would take apart or run, as JSON text of hyperparameters.json.
AWKWARD = {
    "a": "x y",
    "bb": "$HOME;touch pwned",
    "cc": "*.py (1)",
    "dd": {"k": [1, "two three"]},
    "ee": 'it\'s "q"',
    "ff": "",
    "gg": "new\nline",
    "hh": "ünï\\code",
}
EXPECTED = [
    *("-a", "x y", "--bb", "$HOME;touch pwned", "--cc", "*.py (1)", "--dd", '{"k": [1, "two three"]}'),
    *("--ee", 'it\'s "q"', "--ff", "", "--gg", "new\nline", "--hh", "ünï\\code"),
]


@pytest.mark.parametrize("program", ["train.py", "sub folder/train.py", "pkg.train", "run.sh"])
def test_known_failure_01_every_value_is_one_argument(tree, program):
    tree.program(DUMP, "train.py", **AWKWARD)
    tree.code("sub folder/train.py", DUMP)
    tree.code("pkg/train.py", DUMP)
    tree.code("run.sh", f'exec {shlex.quote(sys.executable)} train.py "$@"\n')
    ended = tree.run(SAGEMAKER_PROGRAM=program)
    assert ended.code == 0, ended.err
    seen = tree.seen()
    assert seen["argv"] == EXPECTED
    assert json.loads(seen["env"]["SM_USER_ARGS"]) == EXPECTED
    assert json.loads(seen["env"]["SM_HPS"]) == AWKWARD
    assert not list(tree.base.rglob("pwned"))


def test_known_failure_01_25_66_every_rank_gets_the_same(tree):
    tree.program(DUMP, "pkg/train.py", **AWKWARD, **TORCHRUN)
    given = {
        "SAGEMAKER_PROGRAM": "pkg.train",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/x",
        "A": "x y",
        "B": "l1\nl2",
        "C": "#%",
    }
    ended = tree.run(**given)
    assert ended.code == 0, ended.err
    for rank in (0, 1):
        seen = tree.seen(rank)
        assert seen["argv"] == EXPECTED
        assert {name: seen["env"][name] for name in given} == given
        assert seen["env"]["WORLD_SIZE"] == "2"


def test_known_failure_25_every_rank_has_the_containers_variables(tree):
    # The case above holds both; this one starts the same container a second time: nothing has grown.
    tree.program(DUMP, **TORCHRUN)
    first, second = tree.run(B="l1\nl2"), tree.run(B="l1\nl2")
    assert (first.code, second.code) == (0, 0), second.err
    assert {tree.seen(rank)["env"]["B"] for rank in (0, 1)} == {"l1\nl2"}
    assert len(second.err) == len(first.err)


ENCODINGS = {
    "raw": {"lr": "0.1", "name": "x", "l": '["a"]'},
    "json": {"lr": "0.1", "name": '"x"', "l": '["a"]'},
    "twice": {"lr": '"0.1"', "name": '"\\"x\\""', "l": '"[\\"a\\"]"'},
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_known_failure_06_however_hyperparameters_are_encoded(tree, encoding):
    reserved = {"sagemaker_program": "train.py", "sagemaker_container_log_level": "20"}
    if encoding != "raw":
        reserved = {key: json.dumps(value) for key, value in reserved.items()}
    if encoding == "twice":
        reserved = {key: json.dumps(value) for key, value in reserved.items()}
    tree.code("train.py", DUMP)
    tree.config("hyperparameters", {**ENCODINGS[encoding], **reserved})
    ended = tree.run()
    assert ended.code == 0, ended.err
    seen = tree.seen()
    assert seen["argv"] == ["-l", '["a"]', "--lr", "0.1", "--name", "x"]
    assert json.loads(seen["env"]["SM_HPS"]) == {"lr": 0.1, "name": "x", "l": ["a"]}
    assert seen["env"]["SM_LOG_LEVEL"] == "20"
    assert ended.err.count("JSON-encoded twice") == (encoding == "twice")


def test_known_failure_29_lists_and_objects_can_be_read_back(tree):
    tree.code("train.py", DUMP)
    raw = {
        "l": '["foo","bar"]',
        "d": '{"a":{"b":1}}',
        "n": "null",
        "t": "true",
        "sagemaker_program": "train.py",
    }
    tree.config("hyperparameters", raw)
    assert tree.run().code == 0
    argv = tree.seen()["argv"]
    values = dict(zip(argv[::2], argv[1::2], strict=True))
    assert json.loads(values["-l"]) == ["foo", "bar"]
    assert json.loads(values["-d"]) == {"a": {"b": 1}}
    assert (values["-n"], values["-t"]) == ("", "True")
    tree.run(TRAINBOX_ARGUMENT_STYLE="sagemaker")
    old = tree.seen()["argv"]
    assert old[old.index("-l") + 1] == "['foo', 'bar']"


@pytest.mark.parametrize(
    ("style", "parser"),
    [
        ("flag", "p.add_argument('--on', action='store_true'); p.add_argument('--off', action='store_true')"),
        ("boolean", "[p.add_argument(n, action=argparse.BooleanOptionalAction) for n in ('--on', '--off')]"),
        ("value", "[p.add_argument(n, type=lambda text: text == 'True') for n in ('--on', '--off')]"),
        ("equals", "[p.add_argument(n, type=lambda text: text == 'True') for n in ('--on', '--off')]"),
    ],
)
def test_known_failure_30_booleans_for_every_kind_of_parser(tree, style, parser):
    tree.program(
        f"import argparse\np = argparse.ArgumentParser()\n{parser}\np.add_argument('--lr', type=float)\n"
        "found = p.parse_args()\nprint(found.on, found.off, found.lr)\n",
        on=True, off=False, lr=0.5,
    )  # fmt: skip
    ended = tree.run(TRAINBOX_ARGUMENT_STYLE=style)
    assert ended.code == 0, ended.err
    assert ended.out == b"True False 0.5\n"


def test_known_failure_30_no_arguments_at_all(tree):
    tree.program(DUMP, lr=0.5)
    tree.run(TRAINBOX_ARGUMENT_STYLE="none")
    assert tree.seen()["argv"] == []
    assert tree.seen()["env"]["SM_HP_LR"] == "0.5"


@pytest.mark.parametrize(
    ("name", "text", "mode"),
    [
        ("train.sh", "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n", 0o755),
        ("no-exec-bit.sh", "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n", 0o644),
        ("no-shebang.sh", "printf '<%s>\\n' \"$@\"\n", 0o644),
        ("a b.sh", "#!/usr/bin/env sh\nprintf '<%s>\\n' \"$@\"\n", 0o755),
    ],
)
def test_known_failure_20_shell_scripts_get_their_arguments(tree, name, text, mode):
    tree.program("", lr="a b", path="$HOME 'x'")
    tree.code(name, text, mode)
    ended = tree.run(SAGEMAKER_PROGRAM=name)
    assert ended.code == 0, ended.err
    assert ended.out == b"<--lr>\n<a b>\n<--path>\n<$HOME 'x'>\n"


def test_known_failure_20_windows_line_endings_are_named(tree):
    tree.program("", name="train.py")
    tree.code("train.sh", "#!/bin/sh\r\necho hello\r\n", 0o755)
    ended = tree.run(SAGEMAKER_PROGRAM="train.sh")
    assert ended.code == 2
    assert ended.out == b""
    assert "line endings" in ended.failure


@pytest.mark.parametrize("program", ["x.sh; touch pwned", "../../bin/sh", "$(id).sh", "/bin/sh", "a\nb.py"])
def test_known_failure_44_a_name_is_never_more_than_a_name(tree, program):
    tree.code("x.sh", "echo ran", 0o755)
    tree.config("hyperparameters", {"sagemaker_program": json.dumps(program)})
    ended = tree.run()
    assert ended.code == 2, ended.err
    assert ended.out == b""
    assert ended.failure
    assert not list(tree.base.rglob("pwned"))


@pytest.mark.parametrize(
    "program", ["src/pkg/train.py", "./src/pkg/train.py", "pkg.train", "dash-ed/train-it.py"]
)
def test_known_failure_28_the_file_that_was_asked_for_runs(tree, program):
    for name in ("src/pkg/train.py", "pkg/train.py", "dash-ed/train-it.py"):
        tree.code(name, f"print({name!r})\n")
    tree.code("setup.py", "# nothing\n")
    ended = tree.run(SAGEMAKER_PROGRAM=program)
    assert ended.code == 0, ended.err
    expected = "pkg/train.py" if program == "pkg.train" else program.removeprefix("./")
    assert ended.out.decode() == f"{expected}\n"


def test_known_failure_28_what_is_on_the_import_path(tree):
    tree.program(DUMP, "sub/train.py")
    tree.run(PYTHONPATH="/somewhere")
    seen = tree.seen()
    assert seen["path"][:3] == [f"{tree.base}/code/sub", f"{tree.base}/code", "/somewhere"]
    assert seen["cwd"] == f"{tree.base}/code"


@pytest.mark.parametrize("arguments", [(), ("--foo",)])
def test_known_failure_32_three_ways_to_name_a_program(tree, arguments):
    ended = tree.run(*arguments)
    assert ended.code == 2
    assert ended.failure.count("\n") == 1
    for way in ("sagemaker_program", "SAGEMAKER_PROGRAM", "train SCRIPT"):
        assert way in ended.failure


def test_known_failure_32_options_alone_are_added_to_the_scripts(tree):
    tree.program(DUMP, lr=1)
    tree.run("--foo", "b r")
    assert tree.seen()["argv"] == ["--lr", "1", "--foo", "b r"]


def test_known_failure_67_hyperparameters_of_a_command(tree):
    tree.program(DUMP, "launcher.py", lr=1)
    tree.run("python", "launcher.py", "-e", "train.py", "{hyperparameters}", "--last")
    assert tree.seen()["argv"] == ["-e", "train.py", "--lr", "1", "--last"]
    tree.run("python", "launcher.py", "-e", "train.py")
    assert tree.seen()["argv"] == ["-e", "train.py", "--lr", "1"]
    assert json.loads(tree.seen()["env"]["SM_HPS"]) == {"lr": 1}


def test_known_failure_27_requirements_are_installed_before_the_launch(tree, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (package / "backend.py").write_text(
        "def build_wheel(*args, **more):\n    raise OSError('no compiler here')\n"
    )
    tree.program("print('never')", "sub/train.py")
    tree.code("requirements.txt", f"{package}\n")
    ended = tree.run()
    assert ended.code == 2
    assert b"never" not in ended.out
    assert "requirements.txt is installed with pip" in ended.err
    assert ended.failure.startswith("pip could not install the requirements: ")
    assert "no compiler here" in ended.failure


def test_known_failure_78_channels_are_told_once_and_missing_ones_flagged(tree):
    config = {name: {"TrainingInputMode": "File"} for name in ("training", "my-data", "a.b", "missing")}
    tree.config("inputdataconfig", {**config, "piped": {"TrainingInputMode": "Pipe"}})
    for name in ("training", "my-data", "a.b"):
        (tree.base / "input/data" / name).mkdir()
    tree.program(DUMP)
    ended = tree.run()
    assert ended.code == 0, ended.err
    env = tree.seen()["env"]
    assert env["SM_CHANNEL_MY-DATA"] == env["SM_CHANNEL_MY_DATA"] == f"{tree.base}/input/data/my-data"
    assert env["SM_CHANNEL_A.B"] == env["SM_CHANNEL_A_B"]
    lines = [line for line in ended.err.splitlines() if ": channel " in line or "channel missing" in line]
    assert len(lines) == 5
    assert [line for line in lines if "warning" in line and "missing does not exist" not in line] == []
    assert any("missing" in line and "does not exist" in line for line in lines)


def test_known_failure_17_the_model_dir_that_was_given(tree):
    tree.program("import sys; print(sys.argv[1:])", model_dir="s3://bucket/model")
    ended = tree.run()
    assert ended.code == 0
    assert "model is empty" in ended.err.replace(str(tree.base) + "/", "")
    assert "model_dir=s3://bucket/model" in ended.err
    ended = tree.run(TRAINBOX_REQUIRE_MODEL="1")
    assert ended.code == 2
    assert "leaves no model" in ended.failure


def test_known_failure_81_many_imports_at_once_leave_no_trace(tmp_path):
    base = tmp_path / "ml"
    environ = {"SAGEMAKER_BASE_DIR": str(base)}
    code = "import trainbox.train, trainbox.job, trainbox.source, trainbox.cluster.join"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) for _ in range(32)]
    assert [process.communicate(timeout=60)[1] for process in running] == [b""] * 32
    assert {process.returncode for process in running} == {0}
    assert not base.exists()
