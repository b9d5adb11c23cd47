"""Reading the three JSON files in all their shapes (contract 3)."""

from __future__ import annotations

import os

import pytest

from trainbox import job
from trainbox.errors import UserError


def read(tree, arguments=(), **more):
    return job.read(tree.environ, arguments, **more)


def test_a_tree_without_files_is_a_single_host(tree):
    found = read(tree)
    assert (found.hosts, found.me, found.leader, found.rank) == (("algo-1",), "algo-1", "algo-1", 0)
    assert (found.instance_type, found.interface, found.log_level) == ("local", "eth0", 20)
    assert not (found.hyperparameters or found.channels or found.notes)


SHAPES = {
    "2020": {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"},
    "2022": {
        "current_host": "algo-2",
        "current_instance_type": "ml.c5.xlarge",
        "current_group_name": "homogeneousCluster",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.c5.xlarge",
                "hosts": ["algo-2", "algo-1"],
            }
        ],
        "network_interface_name": "eth0",
    },
    "local mode": {
        "current_host": "algo-2",
        "hosts": ["algo-1", "algo-2"],
        "network_interface_name": "ethwe",
        "current_instance_type": "local",
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_live_shapes_of_resourceconfig(tree, shape):
    tree.config("resourceconfig", SHAPES[shape])
    found = read(tree)
    assert (found.me, found.leader, found.rank, found.ranked) == ("algo-2", "algo-1", 1, ("algo-1", "algo-2"))
    assert found.interface == SHAPES[shape]["network_interface_name"]


def test_rank_order_is_natural_and_does_not_follow_the_group_list(tree):
    names = [f"algo-{number}" for number in range(1, 13)]
    tree.hosts(*sorted(names), me="algo-10")
    found = read(tree)
    assert found.ranked == tuple(names)
    assert found.rank == 9
    assert found.hosts == tuple(sorted(names))


HETERO = {
    "current_host": "algo-3",
    "current_instance_type": "ml.p4d.24xlarge",
    "current_group_name": "train_gpu",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": [
        {"instance_group_name": "data_cpu", "instance_type": "ml.c5n.18xlarge", "hosts": ["algo-2"]},
        {
            "instance_group_name": "train_gpu",
            "instance_type": "ml.p4d.24xlarge",
            "hosts": ["algo-3", "algo-1"],
        },
    ],
    "network_interface_name": "eth0",
    "topology": None,
}


def test_the_distribution_group_ranks_only_its_own_hosts(tree):
    tree.config("resourceconfig", HETERO)
    tree.config(
        "hyperparameters",
        {
            "sagemaker_torch_distributed_enabled": "true",
            "sagemaker_distribution_instance_groups": '["train_gpu"]',
        },
    )
    found = read(tree)
    assert (found.ranked, found.leader, found.rank, found.distributed) == (
        ("algo-1", "algo-3"),
        "algo-1",
        1,
        True,
    )
    outside = read(tree, host="algo-2")
    assert (outside.me, outside.group, outside.instance_type) == ("algo-2", "data_cpu", "ml.c5n.18xlarge")
    assert (outside.distributed, outside.rank, outside.leader) == (False, 0, "algo-1")


def test_with_a_launcher_and_no_groups_named_the_own_group_is_the_distribution_group(tree):
    tree.config("resourceconfig", HETERO)
    assert read(tree).ranked == ("algo-1", "algo-2", "algo-3")
    assert read(tree, launcher_set=True).ranked == ("algo-1", "algo-3")


@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "resourceconfig"])
class TestKnownFailure33:
    def test_known_failure_33_empty(self, tree, name):
        tree.config(name, b" \n")
        assert "is empty" in read(tree).notes[0]

    def test_known_failure_33_byte_order_mark(self, tree, name):
        tree.config(name, b"\xef\xbb\xbf{}")
        assert not read(tree).notes

    def test_known_failure_33_truncated(self, tree, name):
        path = tree.config(name, '{"ключ": "value", "b'.encode())
        with pytest.raises(UserError) as caught:
            read(tree)
        assert str(path) in str(caught.value)
        assert "byte 22 of 24" in str(caught.value)

    def test_known_failure_33_not_an_object(self, tree, name):
        tree.config(name, ["x"])
        with pytest.raises(UserError, match=r"holds a list, expected a JSON object"):
            read(tree)

    def test_known_failure_33_not_utf8(self, tree, name):
        tree.config(name, b'{"a": "\xff"}')
        with pytest.raises(UserError, match="not UTF-8 at byte 7"):
            read(tree)

    def test_known_failure_33_unreadable(self, tree, name):
        os.mkdir(tree.base / "input/config" / f"{name}.json")
        with pytest.raises(UserError, match=rf"cannot read .*{name}.json: Is a directory"):
            read(tree)

    def test_nested_without_end(self, tree, name):
        tree.config(name, b'{"a":' + b"[" * 200_000)
        with pytest.raises(UserError, match="nested too deeply"):
            read(tree)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": "algo-1"}, "key hosts is .* expected a list"),
        ({"hosts": [1]}, "key hosts holds"),
        ({"hosts": ["algo-1", "algo-1"]}, "names algo-1 more than once"),
        ({"current_host": "algo-9"}, "current_host is algo-9, which is not among hosts"),
        ({"current_host": 3}, "key current_host is 3, expected a string"),
        ({"current_host": None, "hosts": ["a", "b"]}, "current_host is missing, expected one of a, b"),
        ({"instance_groups": {"x": 1}}, "key instance_groups is .* expected a list"),
        ({"instance_groups": ["x"]}, "key instance_groups holds"),
        ({"instance_groups": [{"instance_group_name": "g", "hosts": ["z"]}]}, "group g names z"),
        ({"network_interface_name": 5}, "network_interface_name is 5"),
    ],
)
def test_bad_keys_are_named(tree, change, words):
    tree.config("resourceconfig", {"current_host": "algo-1", "hosts": ["algo-1"], **change})
    with pytest.raises(UserError, match=words):
        read(tree)


@pytest.mark.parametrize("value", ["20", '"20"', "INFO", "20.0"])
def test_known_failure_06_log_level(tree, value):
    tree.config("hyperparameters", {"sagemaker_container_log_level": value})
    assert read(tree).log_level == 20


def test_a_log_level_that_is_none(tree):
    tree.config("hyperparameters", {"sagemaker_container_log_level": "loud"})
    with pytest.raises(UserError, match="sagemaker_container_log_level is 'loud'"):
        read(tree)


def test_known_failure_78_channels_with_dots_and_dashes(tree):
    tree.config("inputdataconfig", {"my-data": {"TrainingInputMode": "FastFile"}, "a.b": {}, "training": {}})
    found = read(tree)
    assert [channel.name for channel in found.channels] == ["a.b", "my-data", "training"]
    assert found.channels[1] == job.Channel("my-data", f"{tree.base}/input/data/my-data", "FastFile", "")


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 65, "a b"])
def test_a_channel_name_that_is_none(tree, name):
    tree.config("inputdataconfig", {name: {}})
    with pytest.raises(UserError, match="not a channel's name"):
        read(tree)


def test_the_program_is_named_in_three_ways(tree):
    assert read(tree).program == ""
    tree.config("hyperparameters", {"sagemaker_program": '"a.py"'})
    assert read(tree).program == "a.py"
    tree.environ["SAGEMAKER_PROGRAM"] = "b.py"
    assert read(tree).program == "b.py"
    found = read(tree, ("c.py", "--x"))
    assert (found.program, found.command, found.arguments) == ("", ("c.py", "--x"), ())
    found = read(tree, ("--x", "1"))
    assert (found.program, found.command, found.arguments) == ("b.py", (), ("--x", "1"))


def test_a_job_may_be_called_by_a_number(tree):
    tree.config("hyperparameters", {"sagemaker_job_name": "123"})
    assert read(tree).name == "123"
    tree.config("hyperparameters", {})
    assert job.read({**tree.environ, "TRAINING_JOB_NAME": "Mixed-Case"}).name == "Mixed-Case"


@pytest.mark.parametrize(
    ("value", "on"),
    [*((value, True) for value in (True, "true", "True", 1, "1")),
     *((value, False) for value in (False, "false", None, ""))],
)  # fmt: skip
def test_flags(value, on):
    assert job.is_on(value) is on
