"""Which argument list the name of a program, or a command line, becomes."""

from __future__ import annotations

import os
import sys

import pytest

from trainbox import entry, job
from trainbox.errors import UserError

PYTHON = sys.executable
ELF = b"\x7fELF\x02\x01\x01" + bytes(64)


@pytest.fixture
def code(tmp_path):
    directory = tmp_path / "code"
    directory.mkdir()
    return directory


def put(code, name, content="", mode=0o644):
    path = code / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return str(path)


def resolve(code, program="", command=(), path="", python=PYTHON):
    asked = job.read({"SAGEMAKER_BASE_DIR": str(code.parent)})._replace(program=program, command=command)
    return entry.resolve(asked, str(code), python, path)


def refusal(code, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        resolve(code, *args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


TREE = (
    "train.py", "sub/dir/train.py", "pkg/__init__.py", "pkg/train.py", "pkg/sub/__main__.py",
    "my-pkg/__main__.py", "my-pkg/train-it.py", "pkg2.py/run.py",
    "pkg2.py/__main__.py", "solo/__main__.py", "-dash.py", "a b.py",
)  # fmt: skip


@pytest.mark.parametrize(
    ("program", "name", "kind", "words"),
    [
        ("train.py", "train.py", "python", ("train.py",)),
        ("./train.py", "train.py", "python", ("train.py",)),
        ("sub/dir/train.py", "sub/dir/train.py", "python", ("sub/dir/train.py",)),
        ("sub//dir/../dir/train.py", "sub/dir/train.py", "python", ("sub/dir/train.py",)),
        ("my-pkg/train-it.py", "my-pkg/train-it.py", "python", ("my-pkg/train-it.py",)),
        ("pkg2.py/run.py", "pkg2.py/run.py", "python", ("pkg2.py/run.py",)),
        ("a b.py", "a b.py", "python", ("a b.py",)),
        ("-dash.py", "-dash.py", "python", ("./-dash.py",)),
        ("pkg.train", "pkg.train", "module", ("-m", "pkg.train")),
        ("-m pkg.train", "pkg.train", "module", ("-m", "pkg.train")),
        ("-m  train", "train", "module", ("-m", "train")),
        ("-m torch.distributed.run", "torch.distributed.run", "module", ("-m", "torch.distributed.run")),
        ("pkg.sub", "pkg.sub", "package", ("-m", "pkg.sub")),
        ("solo", "solo", "package", ("-m", "solo")),
        ("pkg/sub", "pkg.sub", "package", ("-m", "pkg.sub")),
        ("my-pkg", "my-pkg", "python", ("my-pkg",)),
        ("pkg2.py", "pkg2.py", "python", ("pkg2.py",)),
    ],
)
def test_python_programs(code, program, name, kind, words):
    for file in TREE:
        put(code, file)
    assert resolve(code, program) == entry.Script(name, kind, (PYTHON, *words))


def test_absolute_path_below_the_code_directory(code):
    put(code, "sub/train.py")
    assert resolve(code, str(code / "sub" / "train.py")).argv == (PYTHON, "sub/train.py")


def test_a_file_of_that_very_name_comes_before_a_module(code):
    put(code, "pkg/train.py")
    path = put(code, "pkg.train", ELF, 0o755)
    assert resolve(code, "pkg.train") == entry.Script("pkg.train", "executable", (path,))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("src/pkg/train.py", ("src/pkg/train.py",)),
        ("./train.py", ("train.py",)),
        ("pkg.train", ("-m", "pkg.train")),  # `pip install .` makes it importable
        ("my-project/train.py", ("my-project/train.py",)),
    ],
)
def test_known_failure_28_a_setup_py_beside_does_not_change_what_runs(code, program, words):
    for file in ("setup.py", "train.py", "src/pkg/train.py", "my-project/train.py"):
        put(code, file)
    assert resolve(code, program).argv == (PYTHON, *words)


@pytest.mark.parametrize(
    "program",
    ["x.sh; touch /tmp/pwn", "$(id).sh", "`id`", "../../bin/sh", "..", "sub/../../x.sh", "/bin/sh", "a\0b"],
)
def test_known_failure_44_a_name_is_only_a_name(code, program):
    put(code, "x.sh", "#!/bin/sh\n")
    assert program.split("\0")[0].strip("`") in refusal(code, program)


def test_known_failure_44_names_with_metacharacters_run_as_they_are(code):
    path = put(code, "x.sh; touch pwn", "#!/bin/sh\n", 0o755)
    assert resolve(code, "x.sh; touch pwn").argv == ("/bin/sh", path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.sh", "#!/bin/sh\necho\n", ("/bin/sh",)),
        ("a b.sh", "#! /bin/sh -e\necho\n", ("/bin/sh", "-e")),
        ("c.sh", "#!/usr/bin/env -S sh -e -u\n", ("/usr/bin/env", "-S sh -e -u")),
        ("none.sh", "echo\n", ("/bin/sh",)),
        ("empty.sh", "", ("/bin/sh",)),
        ("one-crlf.sh", "#!/bin/sh\necho\n# odd\r\necho\n", ("/bin/sh",)),
        ("run", "#!/bin/sh\n", ("/bin/sh",)),
        ("sub/run", "echo\n", ("/bin/sh",)),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_known_failure_20_shell_scripts_need_no_permission_and_no_shell_string(
    code, name, content, words, mode
):
    path = put(code, name, content, mode)
    assert resolve(code, name) == entry.Script(name, "shell", (*words, path))


@pytest.mark.parametrize(
    "content", ["#!/bin/bash\r\necho\r\n", "#!/bin/sh\necho a\r\necho b\r\n", "echo a\r\n"]
)
def test_known_failure_20_crlf_is_said(code, content):
    put(code, "train.sh", content)
    text = refusal(code, "train.sh")
    assert "train.sh has Windows line endings (CRLF)" in text
    assert "dos2unix" in text


def test_interpreter_that_is_not_there(code):
    put(code, "train.sh", "#!/opt/no/bash\n")
    assert "'/opt/no/bash', which is not in this image" in refusal(code, "train.sh")
    put(code, "bare.sh", "#!\n")
    assert "names the interpreter ''" in refusal(code, "bare.sh")


def test_executables(code):
    script = f"#!{PYTHON} -u\r\n".replace("\r", "")
    direct = put(code, "direct", script, 0o755)
    indirect = put(code, "indirect", script, 0o644)
    program = put(code, "program", ELF, 0o755)
    put(code, "blob", ELF, 0o644)
    assert resolve(code, "direct") == entry.Script("direct", "executable", (direct,))
    assert resolve(code, "indirect") == entry.Script("indirect", "executable", (PYTHON, "-u", indirect))
    assert resolve(code, "./program") == entry.Script("program", "executable", (program,))
    assert "blob is a program without execute permission; set it before submitting: chmod +x blob" in refusal(
        code, "blob"
    )


def test_known_failure_32_no_program_named(code):
    text = refusal(code)
    for way in ("sagemaker_program", "SAGEMAKER_PROGRAM", "train SCRIPT [ARGUMENTS]"):
        assert way in text


def test_missing_program_says_what_there_is(code):
    assert "the directory is empty" in refusal(code, "train.py")
    put(code, "train.py")
    put(code, "sub/other.py")
    text = refusal(code, "train.yp")
    assert "did you mean train.py?" in text
    assert "there is: sub, train.py" in text
    assert "did you mean sub/other.py?" in refusal(code, "other.py")
    assert "is a folder without a __main__.py" in refusal(code, "sub")
    for number in range(20):
        put(code, f"file{number:02}.txt")
    assert "file09.txt and 12 more" in refusal(code, "zzz")


def test_missing_code_directory(tmp_path):
    assert "there is no such directory" in refusal(tmp_path / "code", "train.py")


@pytest.mark.parametrize("program", ["-m pkg-x.train", "-m pkg/train.py", "-m pkg..train", "-m pkg.missing"])
def test_module_names_are_checked(code, program):
    put(code, "pkg/__init__.py")
    refusal(code, program)


def test_a_misspelt_module_is_not_left_to_an_installation(code):
    put(code, "setup.py")
    put(code, "pkg/__init__.py")
    assert "'pkg.missing' is not in" in refusal(code, "pkg.missing")
    assert "'trian.py' is not in" in refusal(code, "trian.py")


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python", os.path.dirname(PYTHON)])
def test_interpreter_of_the_setting_must_exist(code, python):
    put(code, "train.py")
    assert "TRAINBOX_PYTHON" in refusal(code, "train.py", python=python, path="/usr/bin")


def test_interpreter_by_bare_name(code, tmp_path):
    put(code, "train.py")
    python = put(tmp_path, "bin/python9", "#!/bin/sh\n", 0o755)
    assert resolve(code, "train.py", python="python9", path=str(tmp_path / "bin")).argv == (
        python,
        "train.py",
    )


class TestCommands:
    @pytest.fixture(autouse=True)
    def bin(self, tmp_path):
        self.path = str(tmp_path / "bin")
        self.tool = put(tmp_path, "bin/tool", "#!/bin/sh\n", 0o755)
        put(tmp_path, "bin/plain", "not executable")

    def test_script_of_the_code_directory_with_words(self, code):
        put(code, "train.py")
        script = resolve(code, command=("train.py", "--epochs", "3"), path=self.path)
        assert script == entry.Script("train.py", "python", (PYTHON, "train.py", "--epochs", "3"))

    def test_program_on_path(self, code):
        put(code, "tool.py")
        script = resolve(code, command=("tool", "-x", "a b"), path=self.path)
        assert script == entry.Script("tool", "command", (self.tool, "-x", "a b"))

    def test_file_of_the_code_directory_comes_before_path(self, code):
        path = put(code, "tool", "#!/bin/sh\n")
        assert resolve(code, command=("tool",), path=self.path).argv == ("/bin/sh", path)

    def test_absolute_path_of_the_image(self, code, tmp_path):
        outside = put(tmp_path, "app/train.py")
        assert resolve(code, command=(outside, "-x"), path="").argv == (PYTHON, outside, "-x")

    def test_programs_beside_the_interpreter_need_not_be_on_path(self, code):
        assert resolve(code, command=(os.path.basename(PYTHON),)).argv == (PYTHON,)

    @pytest.mark.parametrize(
        "word", ["nothing", "plain", "../bin/tool", "bin/tool", "train.py", "/no/such/file"]
    )
    def test_not_found(self, code, word):
        assert word in refusal(code, command=(word,), path=self.path)

    def test_requirements_may_bring_the_command(self, code):
        put(code, "requirements.txt", "accelerate\n")
        script = resolve(code, command=("accelerate", "launch"), path=self.path)
        assert script == entry.Script("accelerate", "command", ("accelerate", "launch"))
        refusal(code, command=("train.yp",), path=self.path)


def test_known_failure_67_hyperparameters_reach_commands(code):
    put(code, "launcher.py")
    arguments = ("--lr", "0.1", "--name", "a b")
    appended = resolve(code, command=("launcher.py", "-e", "train.py"))
    assert entry.with_arguments(appended, arguments) == (PYTHON, "launcher.py", "-e", "train.py", *arguments)
    placed = resolve(code, command=("launcher.py", "{hyperparameters}", "-e", "x{hyperparameters}"))
    assert entry.with_arguments(placed, arguments) == (
        PYTHON, "launcher.py", *arguments, "-e", "x{hyperparameters}",
    )  # fmt: skip
    assert entry.with_arguments(placed, ()) == (PYTHON, "launcher.py", "-e", "x{hyperparameters}")
