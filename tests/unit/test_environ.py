"""The SM_* variables (contract 4.1, 4.5)."""

from __future__ import annotations

import json
import math

import pytest

from trainbox import environ, job
from trainbox.machine import Machine

NAMES = """
SM_HOSTS SM_CURRENT_HOST SM_CURRENT_INSTANCE_TYPE SM_CURRENT_INSTANCE_GROUP
SM_CURRENT_INSTANCE_GROUP_HOSTS SM_INSTANCE_GROUPS SM_INSTANCE_GROUPS_DICT SM_DISTRIBUTION_INSTANCE_GROUPS
SM_IS_HETERO SM_NETWORK_INTERFACE_NAME SM_RESOURCE_CONFIG SM_INPUT_DATA_CONFIG SM_CHANNELS SM_INPUT_DIR
SM_INPUT_CONFIG_DIR SM_OUTPUT_DIR SM_OUTPUT_DATA_DIR SM_OUTPUT_INTERMEDIATE_DIR SM_MODEL_DIR SM_MODULE_DIR
SM_MODULE_NAME SM_USER_ENTRY_POINT SM_FRAMEWORK_MODULE SM_HPS SM_USER_ARGS SM_FRAMEWORK_PARAMS
SM_LOG_LEVEL SM_NUM_CPUS SM_NUM_GPUS SM_NUM_NEURONS SM_TRAINING_ENV SM_INPUT_DATA_DIR SM_OUTPUT_FAILURE
SM_MASTER_ADDR SM_MASTER_PORT SM_HOST_COUNT SM_CURRENT_HOST_RANK SM_SOURCE_DIR SM_ENTRY_SCRIPT
""".split()

TRAINING_ENV = """
additional_framework_parameters channel_input_dirs current_host current_instance_group
current_instance_group_hosts current_instance_type distribution_hosts distribution_instance_groups
framework_module hosts hyperparameters input_config_dir input_data_config input_dir instance_groups
instance_groups_dict is_hetero is_master is_modelparallel_enabled is_smddpmprun_installed
is_smddprun_installed job_name log_level master_hostname model_dir module_dir module_name
network_interface_name num_cpus num_gpus num_neurons output_data_dir output_dir output_intermediate_dir
resource_config topology user_entry_point
""".split()


@pytest.fixture
def variables(tree):
    def make(hyperparameters=(), channels=(), **more):
        tree.hosts("algo-1", "algo-2", me="algo-2", **more)
        tree.config(
            "hyperparameters", {key: json.dumps(value) for key, value in dict(hyperparameters).items()}
        )
        tree.config("inputdataconfig", {name: {"TrainingInputMode": "File"} for name in channels})
        found = job.read(tree.environ)
        rows = environ.sm_variables(found, Machine(cpus=4, gpus=2), ("--lr", "1"), tree.environ)
        assert all(row.why for row in rows)
        assert len({row.name for row in rows}) == len(rows)
        return {row.name: row.value for row in rows}

    return make


def test_all_names_of_the_contract_are_there(variables):
    assert set(NAMES) <= set(variables())
    assert set(json.loads(variables()["SM_TRAINING_ENV"])) == set(TRAINING_ENV)


def test_values_of_a_two_host_job(variables, tree):
    found = variables(
        {"sagemaker_program": "train.py", "batch-size": 32, "flag": True, "none": None,
         "d": {"a": {"k": True}},
         "sagemaker_torch_distributed_enabled": True}
    )  # fmt: skip
    assert found["SM_HOSTS"] == '["algo-1","algo-2"]'
    assert found["SM_CURRENT_INSTANCE_GROUP_HOSTS"] == '["algo-2","algo-1"]'
    assert found["SM_DISTRIBUTION_INSTANCE_GROUPS"] == '["homogeneousCluster"]'
    assert found["SM_MODULE_NAME"] == "train"
    assert found["SM_USER_ENTRY_POINT"] == "train.py"
    assert found["SM_HPS"] == '{"batch-size":32,"d":{"a":{"k":true}},"flag":true,"none":null}'
    assert found["SM_FRAMEWORK_PARAMS"] == '{"sagemaker_torch_distributed_enabled":true}'
    assert found["SM_USER_ARGS"] == '["--lr","1"]'
    assert found["SM_NUM_CPUS"] == "4"
    assert found["SM_NUM_GPUS"] == "2"
    assert found["SM_HP_BATCH-SIZE"] == found["SM_HP_BATCH_SIZE"] == "32"
    assert (found["SM_HP_FLAG"], found["SM_HP_NONE"], found["SM_HP_D"]) == ("true", "", '{"a":{"k":true}}')
    assert found["SM_MODEL_DIR"] == f"{tree.base}/model"
    assert found["SM_CURRENT_HOST_RANK"] == "1"
    assert found["SM_MASTER_ADDR"] == "algo-1"
    assert "SM_TOPOLOGY" not in found


def test_defaults_as_the_contract_has_them(variables):
    found = variables()
    assert found["SM_MODULE_NAME"] == "None"
    assert found["SM_FRAMEWORK_MODULE"] == ""
    assert found["SM_DISTRIBUTION_INSTANCE_GROUPS"] == "[]"
    assert found["SM_IS_HETERO"] == "false"


def test_known_failure_78_every_channel_has_a_name_that_a_shell_can_read(variables, tree):
    found = variables(channels=["my-data", "a.b", "training"])
    for name in ("SM_CHANNEL_MY-DATA", "SM_CHANNEL_MY_DATA"):
        assert found[name] == f"{tree.base}/input/data/my-data"
    assert found["SM_CHANNEL_A.B"] == found["SM_CHANNEL_A_B"] == f"{tree.base}/input/data/a.b"
    assert found["SM_CHANNELS"] == '["a.b","my-data","training"]'


def test_an_alias_never_hides_a_name_of_its_own(variables):
    found = variables({"a-b": 1, "a_b": 2})
    assert (found["SM_HP_A-B"], found["SM_HP_A_B"]) == ("1", "2")


def test_a_value_that_the_kernel_cannot_hold_is_left_out(variables):
    found = variables({"zero": "a\0b", "e=q": 1})
    assert "SM_HP_ZERO" not in found
    assert json.loads(found["SM_HPS"])["zero"] == "a\0b"
    assert not [name for name in found if "=" in name]


def test_topology(variables):
    topology = [{"hostName": "algo-1", "capacityUnitId": "x"}]
    assert json.loads(variables(topology=topology)["SM_TOPOLOGY"]) == topology


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), ("é", "é"), (math.inf, "Infinity"), ({"b": 1, "a": "é"}, '{"a":"\\u00e9","b":1}')],
)
def test_text_of_a_value(value, text):
    assert environ.text(value) == text
