"""`--distribution`: every row of the SDK's mapping (contract 5.1)."""

from __future__ import annotations

import json

import pytest

from trainbox.errors import UserError
from trainbox.local.distribution import parse, reserved

TYPE = "ml.p4d.24xlarge"
INSTANCE = {"sagemaker_instance_type": TYPE}
TORCH = {"sagemaker_torch_distributed_enabled": True, **INSTANCE}
DDP = {"sagemaker_pytorch_ddp_enabled": True, **INSTANCE}
SMDDP = {
    "sagemaker_distributed_dataparallel_enabled": True,
    "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    **INSTANCE,
}
MPI = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": ""}
SMP = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}}
ON = {"enabled": True}

ROWS = [
    ({}, {}),
    ({"pytorchddp": ON}, DDP),
    ({"pytorchddp": ON, "torch_distributed": ON, "mpi": ON}, DDP),
    ({"pytorchddp": {"enabled": False}, "torch_distributed": ON}, {}),
    ({"pytorchddp": {"enabled": False}, "mpi": ON}, MPI),
    ({"torch_distributed": ON}, TORCH),
    ({"torch_distributed": {"enabled": False}}, {}),
    ({"torch_distributed": ON, "instance_groups": ["gpus"]}, TORCH),
    ({"torch_distributed": ON, "smdistributed": {"dataparallel": ON}}, {**SMDDP, **TORCH}),
    (
        {"torch_distributed": ON, **SMP},
        {"mp_parameters": {"partitions": 2}, "sagemaker_distributed_dataparallel_enabled": False, **TORCH},
    ),
    ({"smdistributed": {"dataparallel": ON}}, SMDDP),
    (
        {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-verbose"}}},
        {**SMDDP, "sagemaker_distributed_dataparallel_custom_mpi_options": "-verbose"},
    ),
    (
        {**SMP, "mpi": {"enabled": True, "processes_per_host": 8}},
        {
            **MPI,
            "sagemaker_mpi_num_of_processes_per_host": 8,
            "mp_parameters": {"partitions": 2},
            "sagemaker_distributed_dataparallel_enabled": False,
            **INSTANCE,
        },
    ),
    (
        {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "--x y"}},
        {
            "sagemaker_mpi_enabled": True,
            "sagemaker_mpi_num_of_processes_per_host": 8,
            "sagemaker_mpi_custom_mpi_options": "--x y",
        },
    ),
    ({"mpi": {"enabled": False}}, {**MPI, "sagemaker_mpi_enabled": False}),
    ({"parameter_server": ON}, {"sagemaker_parameter_server_enabled": True}),
    ({"parameter_server": {"enabled": False}}, {"sagemaker_parameter_server_enabled": False}),
    ({"multi_worker_mirrored_strategy": ON}, {"sagemaker_multi_worker_mirrored_strategy_enabled": True}),
    ({"pytorchxla": ON}, {"sagemaker_pytorch_xla_multi_worker_enabled": True}),
    (
        {"mpi": ON, "instance_groups": ["gpus"]},
        {**MPI, "sagemaker_distribution_instance_groups": ["gpus"]},
    ),
    (
        {"mpi": ON, "instance_groups": [{"instance_group_name": "gpus", "instance_count": 2}]},
        {**MPI, "sagemaker_distribution_instance_groups": ["gpus"]},
    ),
]


@pytest.mark.parametrize(("given", "sent"), ROWS, ids=lambda value: json.dumps(value)[:60])
def test_sends_what_the_sdk_sends(given, sent):
    assert reserved(parse(json.dumps(given)), TYPE) == sent


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{torch", ("not JSON",)),
        ('["mpi"]', ("expected an object",)),
        ('{"torchdistributed": {}}', ("torchdistributed", "torch_distributed", "mpi", "pytorchxla")),
        ('{"mpi": {"enable": true}}', ("mpi.enable", "processes_per_host")),
        ('{"mpi": true}', ("mpi is true", "an object")),
        ('{"mpi": {"enabled": "yes"}}', ("mpi.enabled", "true or false")),
        ('{"mpi": {"enabled": true, "processes_per_host": "2"}}', ("processes_per_host", "1 or more")),
        ('{"smdistributed": {"ddp": {}}}', ("smdistributed.ddp", "dataparallel")),
        ('{"smdistributed": {"dataparallel": {}, "modelparallel": {}}}', ("not both",)),
        ('{"instance_groups": "gpus", "mpi": {"enabled": true}}', ("instance_groups", "list")),
    ],
)
def test_says_what_is_wrong_with_it(text, words):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (SMP, "modelparallel needs mpi"),
        ({"parameter_server": ON, "instance_groups": ["gpus"]}, "instance_groups needs mpi"),
    ],
)
def test_refuses_what_the_sdk_refuses(given, word):
    with pytest.raises(UserError, match=word):
        reserved(given, TYPE)
