"""The command line: what is understood, and the one line for what is not."""

from __future__ import annotations

import json

import pytest

from trainbox import __version__, cli, train
from trainbox.plan import EnvVar, LaunchPlan, Process


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, environ=None):
    return cli.main(list(words), environ or {})


def test_without_arguments_it_helps(capsys):
    assert run() == 0
    out = capsys.readouterr().out
    assert "trainbox run train.py" in out
    assert "plan" in out


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("plan", "--help"), ("--version",)])
def test_help_and_version(capsys, words):
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 0
    assert __version__ in capsys.readouterr().out or words != ("--version",)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("rum", "train.py"), ("rum", "run")),
        (("run",), ("SCRIPT",)),
        (("run", "train.py", "--chanel", "a=b"), ("--chanel", "did you mean --channel?")),
        (("run", "train.py", "--epochs=3"), ("--epochs",)),
        (("run", "train.py", "more.py"), ("more.py",)),
        (("run", "train.py", "--hosts", "0"), ("--hosts", "'0'", "whole number")),
        (("run", "train.py", "--hosts", "two"), ("--hosts", "'two'")),
        (("run", "train.py", "--host", "2"), ("--host", "did you mean --hosts?")),
        (("run", "train.py", "--launcher", "mpirun"), ("mpirun", "torchrun")),
        (("run", "train.py", "--timeout", "-1"), ("--timeout",)),
        (("run", "train.py", "--cpus", "nan"), ("--cpus",)),
        (("run", "train.py", "--user", "me"), ("--user", "numbers")),
        (("run", "nothing.py"), ("nothing.py",)),
        (("run", "train.py", "--source-dir", "nowhere"), ("nowhere",)),
        (("run", "train.py", "--channel", "train=nowhere"), ("train=nowhere",)),
        (("run", "train.py", "--memory", "2g"), ("--memory needs --image",)),
        (("run", "train.py", "--distribution", "{}", "--launcher", "torchrun"), ("--distribution",)),
        (("plan", "--base", "nowhere"), ("nowhere", "--base")),
        (("plan", "--all", "--host", "algo-1"), ("--all",)),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(project, capsys, words, expected):
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in expected), printed.err
    assert [path.name for path in project.iterdir()].count("out") == 0


def test_a_setting_that_is_wrong_stops_the_job_before_it_starts(project, capsys):
    environ = {"TRAINBOX_GRACE_SECONDS": "soon", "TRAINBOX_PORT": "1", "TRAINBOX_CHANNEL_PORT": "2"}
    assert run("run", "train.py", environ=environ) == 2
    assert "TRAINBOX_GRACE_SECONDS" in capsys.readouterr().err
    assert not (project / "out").exists()


def parse(*words, environ=None):
    parser, _ = cli._parsers()
    return cli.request_of(parser.parse_args(["run", *words]), environ or {})


def test_all_options_reach_the_request(project):
    (project / "hp.json").write_text('{"lr": 0.1, "epochs": 1}')
    request = parse(
        *("train.py", "--hosts", "3", "--processes-per-host", "2", "--launcher", "torchrun"),
        *("-p", "epochs=3", "--hyperparameters", "hp.json", "--channel", "train=data", "--output", "results"),
        *(
            "--image",
            "img",
            "--env",
            "A=1",
            "--env",
            "B",
            "--instance-type",
            "ml.c5.xlarge",
            "--shm-size",
            "2g",
        ),
        *(
            "--cpus",
            "1.5",
            "--memory",
            "512m",
            "--user",
            "1000:1000",
            "--network",
            "net",
            "--job-name",
            "mine",
        ),
        *("--timeout", "60", "--keep"),
        environ={"B": "2"},
    )
    assert request._asdict() == {
        "program": "train.py",
        "source_dir": str(project),
        "hosts": ("algo-1", "algo-2", "algo-3"),
        "launcher": "torchrun",
        "hyperparameters": {"lr": 0.1, "epochs": 3},
        "reserved": {
            "sagemaker_torch_distributed_enabled": True,
            "sagemaker_instance_type": "ml.c5.xlarge",
            "sagemaker_mpi_num_of_processes_per_host": 2,
        },
        "channels": {"train": str(project / "data")},
        "output": str(project / "results"),
        "image": "img",
        "env": {"A": "1", "B": "2"},
        "instance_type": "ml.c5.xlarge",
        "shm": 2 << 30,
        "cpus": 1.5,
        "memory": 512 << 20,
        "user": "1000:1000",
        "network": "net",
        "name": "mine",
        "timeout": 60.0,
        "keep": True,
    }


def test_little_is_needed(project):
    request = parse("train.py")
    assert (request.hosts, request.output, request.instance_type) == (
        ("algo-1",),
        str(project / "out"),
        "local",
    )
    assert (request.reserved, request.shm, request.timeout, request.keep) == ({}, 0, 0, False)


@pytest.fixture
def planned(tree, monkeypatch):
    tree.hosts("algo-2", "algo-10", "algo-1", me="algo-2")
    tree.config("hyperparameters", {"epochs": "3", "hf_token": '"hush-hush"'})

    def dry_run(environ, host=""):
        assert environ["SAGEMAKER_BASE_DIR"] == str(tree.base)
        env = (EnvVar("RANK", "0 1", "the first"), EnvVar("SM_HP_HF_TOKEN", "hush-hush", "a hyperparameter"))
        argv = ("python", "train.py", "--hf_token", "hush-hush")
        process = Process("script", argv, env, "/opt/ml/code", (0, 1))
        return LaunchPlan(
            "torchrun", host or "algo-2", ("algo-1", "algo-2"), "algo-1", 4, 2, (process,), ("a note",)
        )

    monkeypatch.setattr(train, "dry_run", dry_run)
    return tree


def test_known_failure_79_a_plan_for_people(planned, capsys):
    assert run("plan", "--base", str(planned.base)) == 0
    out = capsys.readouterr().out
    for words in ("algo-2", "torchrun", "4 processes", "--hf_token", "RANK='0 1'",
                  "# the first", "a note", "/opt/ml/code"):  # fmt: skip
        assert words in out
    assert "hush-hush" not in out


def test_a_plan_as_json(planned, capsys):
    assert run("plan", "--base", str(planned.base), "--json", "--host", "algo-10") == 0
    out = capsys.readouterr().out
    plan = json.loads(out)
    assert (plan["host"], plan["world"], plan["launcher"]) == ("algo-10", 4, "torchrun")
    assert plan["processes"][0]["argv"][:2] == ["python", "train.py"]
    assert plan["processes"][0]["env"][0] == {"name": "RANK", "value": "0 1", "why": "the first"}
    assert "hush-hush" not in out


def test_plans_of_all_hosts_in_natural_order(planned, capsys):
    assert run("plan", "--json", "--all", environ={"SAGEMAKER_BASE_DIR": str(planned.base)}) == 0
    assert [plan["host"] for plan in json.loads(capsys.readouterr().out)] == ["algo-1", "algo-2", "algo-10"]


def test_a_host_that_the_job_has_not(planned, capsys):
    assert run("plan", "--base", str(planned.base), "--host", "algo-3") == 2
    assert "algo-1" in capsys.readouterr().err
