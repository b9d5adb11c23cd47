"""What `trainbox run` is asked for."""

from __future__ import annotations

import json

import pytest

from trainbox.errors import UserError
from trainbox.local import request


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs=3", 3),
        ("lr=1e-3", 0.001),
        ("flag=true", True),
        ("n=null", None),
        ("name=adam", "adam"),
        ('quoted="5"', "5"),
        ("zeros=007", "007"),
        ('list=[1, "two words"]', [1, "two words"]),
        ("text=a=b", "a=b"),
        ("empty=", ""),
    ],
)
def test_a_parameter_is_json_or_text(text, expected):
    (value,) = request.hyperparameters("", [text]).values()
    assert value == expected
    assert type(value) is type(expected)


def test_parameters_come_over_those_of_the_file(tmp_path):
    file = tmp_path / "hp.json"
    file.write_text('{"epochs": 1, "opt": {"name": "adam"}}')
    assert request.hyperparameters(str(file), ["epochs=3"]) == {"epochs": 3, "opt": {"name": "adam"}}


@pytest.mark.parametrize(
    ("content", "word"), [("[1]", "no object"), ("{", "not JSON"), (None, "No such file")]
)
def test_a_file_of_parameters_that_is_none(tmp_path, content, word):
    file = tmp_path / "hp.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=word):
        request.hyperparameters(str(file), [])


@pytest.mark.parametrize("item", ["epochs", "=3", "sagemaker_program=x.py"])
def test_a_parameter_that_is_none(item):
    with pytest.raises(UserError):
        request.hyperparameters("", [item])


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("train.py", "src/train.py", "src/pkg/main.py", "src/pkg/__main__.py", "src/a b.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("script", "source", "program", "folder"),
    [
        ("src/train.py", "", "train.py", "src"),
        ("train.py", "src", "train.py", "src"),
        ("src/train.py", "src", "train.py", "src"),
        ("src/pkg/main.py", "src", "pkg/main.py", "src"),
        ("./train.py", "src", "train.py", "src"),
        ("src/train.py", ".", "src/train.py", ""),
        ("pkg.main", "src", "pkg.main", "src"),
        ("pkg", "src", "pkg", "src"),
        ("a b.sh", "src", "a b.sh", "src"),
    ],
)
def test_the_program_relative_to_the_source(project, script, source, program, folder):
    assert request.program(script, source) == (program, str(project / folder))


@pytest.mark.parametrize(
    ("script", "source", "word"),
    [
        ("nothing.py", "", "no such file"),
        ("src", "", "is a folder"),
        ("train.py", "nowhere", "nowhere"),
        ("nothing.py", "src", "here or in src"),
        ("train.py", "src/pkg", "not inside"),
        ("../x", "src", "no such file"),
    ],
)
def test_a_program_that_is_not_there(project, script, source, word):
    with pytest.raises(UserError, match=word):
        request.program(script, source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2g", 2 << 30), ("512m", 512 << 20), ("1.5G", 3 << 29), ("4gib", 4 << 30), ("64", 64)],
)
def test_sizes(text, expected):
    assert request.size("--memory", text) == expected


@pytest.mark.parametrize("text", ["", "much", "-1g", "0", "2x"])
def test_sizes_that_are_none(text):
    with pytest.raises(UserError, match="--memory"):
        request.size("--memory", text)


def test_variables_are_given_or_taken_from_the_caller():
    given = request.environment(["A=1", "B", "C=x=y", "D="], {"B": "secret"})
    assert given == {"A": "1", "B": "secret", "C": "x=y", "D": ""}


@pytest.mark.parametrize("item", ["B", "a-b=1", "=1", "SAGEMAKER_BASE_DIR=/x", "TRAINBOX_JOB_TOKEN=1"])
def test_variables_that_are_none(item):
    with pytest.raises(UserError, match="--env"):
        request.environment([item], {})


def test_channels(project):
    assert request.channels(["train=src", "a.b-c=src/pkg"]) == {
        "train": str(project / "src"),
        "a.b-c": str(project / "src/pkg"),
    }


@pytest.mark.parametrize(
    ("item", "word"),
    [
        ("train=nowhere", "no such folder"),
        ("train=train.py", "is a file"),
        ("code=src", "choose another"),
        ("a/b=src", "not a channel's name"),
        ("src", "NAME=VALUE"),
    ],
)
def test_channels_that_are_none(project, item, word):
    with pytest.raises(UserError, match=word):
        request.channels([item])


@pytest.mark.parametrize("name", ["a b", "-a", "a-", "a_b", "x" * 64, "../x"])
def test_names_that_are_none(name):
    with pytest.raises(UserError):
        request.check_name(name)


TORCHRUN = {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": "local"}
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"


@pytest.mark.parametrize(
    ("launcher", "distribution", "per_host", "environ", "sent"),
    [
        ("", {}, 0, {}, {}),
        ("script", {}, 0, {}, {}),
        ("torchrun", {}, 0, {}, TORCHRUN),
        ("torchrun", {}, 2, {}, {**TORCHRUN, PER_HOST: 2}),
        ("", {"torch_distributed": {"enabled": True}}, 2, {}, {**TORCHRUN, PER_HOST: 2}),
        ("", {}, 2, {"TRAINBOX_LAUNCHER": "torchrun"}, {PER_HOST: 2}),
    ],
)
def test_launchers(launcher, distribution, per_host, environ, sent):
    given = json.dumps(distribution) if distribution else ""
    assert request.reserved(launcher, given, per_host, "local", environ) == sent


@pytest.mark.parametrize(
    ("launcher", "distribution", "per_host", "word"),
    [
        ("torchrun", '{"mpi": {"enabled": true}}', 0, "both choose"),
        ("", "", 2, "needs a launcher"),
        ("script", "", 2, "needs a launcher"),
        ("", '{"mpi": {"enabled": true, "processes_per_host": 4}}', 2, "--distribution says 4"),
    ],
)
def test_launchers_that_contradict(launcher, distribution, per_host, word):
    with pytest.raises(UserError, match=word):
        request.reserved(launcher, distribution, per_host, "local", {"TRAINBOX_LAUNCHER": "script"})
