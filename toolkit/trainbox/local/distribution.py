"""`distribution=` of SageMaker's Python SDK, and what it sends to the container (contract 5.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainbox.errors import UserError

KNOWN: Mapping[str, tuple[str, ...]] = {
    "torch_distributed": ("enabled",),
    "pytorchddp": ("enabled", "custom_mpi_options"),
    "smdistributed": ("dataparallel", "modelparallel"),
    "mpi": ("enabled", "processes_per_host", "custom_mpi_options"),
    "parameter_server": ("enabled",),
    "multi_worker_mirrored_strategy": ("enabled",),
    "pytorchxla": ("enabled",),
    "instance_groups": (),
}
"""Each key with the keys that its object may hold; instance_groups is a list."""

_SMDISTRIBUTED: Mapping[str, tuple[str, ...]] = {
    "dataparallel": ("enabled", "custom_mpi_options"),
    "modelparallel": ("enabled", "parameters"),
}

_SWITCHES = {
    "pytorchxla": "sagemaker_pytorch_xla_multi_worker_enabled",
    "parameter_server": "sagemaker_parameter_server_enabled",
    "multi_worker_mirrored_strategy": "sagemaker_multi_worker_mirrored_strategy_enabled",
}


def parse(text: str) -> dict[str, Any]:
    """The object of `--distribution`. Raises UserError that names the key and lists those there are."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(
            f"--distribution is not JSON: {error}",
            """write it like '{"torch_distributed": {"enabled": true}}'""",
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"--distribution is {json.dumps(value)}, expected an object")
    _check(value, KNOWN, "")
    return value


def _check(value: Mapping[str, Any], known: Mapping[str, tuple[str, ...]], above: str) -> None:
    for key, entry in value.items():
        where = f"{above}{key}"
        if key not in known:
            raise UserError(f"--distribution: unknown key {where}, there are {', '.join(known)}")
        if key == "instance_groups":
            _group_names(entry)
            continue
        if not isinstance(entry, dict):
            raise UserError(f"--distribution: {where} is {json.dumps(entry)}, expected an object")
        if key == "smdistributed":
            _check(entry, _SMDISTRIBUTED, "smdistributed.")
            if len(entry) > 1:
                raise UserError("--distribution: smdistributed takes dataparallel or modelparallel, not both")
            continue
        for name in entry:
            if name not in known[key]:
                there = ", ".join(known[key])
                raise UserError(f"--distribution: unknown key {where}.{name}, there are {there}")
        _check_values(where, entry)


def _check_values(where: str, entry: Mapping[str, Any]) -> None:
    expected = {
        "enabled": (bool, "true or false"),
        "custom_mpi_options": (str, "a string"),
        "parameters": (dict, "an object"),
    }
    for name, (kind, words) in expected.items():
        if name in entry and not isinstance(entry[name], kind):
            raise UserError(f"--distribution: {where}.{name} is {json.dumps(entry[name])}, expected {words}")
    count = entry.get("processes_per_host")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        shown = json.dumps(count)
        raise UserError(f"--distribution: {where}.processes_per_host is {shown}, expected 1 or more")


def _group_names(value: Any) -> list[str]:
    """Names of groups, given as such or as the SDK's objects."""
    names = []
    for item in value if isinstance(value, list) else [None]:
        name = item.get("instance_group_name") if isinstance(item, dict) else item
        if not isinstance(name, str) or not name:
            raise UserError("--distribution: instance_groups is expected to be a list of groups' names")
        names.append(name)
    return names


def _on(value: Mapping[str, Any], *keys: str) -> bool:
    entry: Any = value
    for key in keys:
        entry = entry.get(key, {})
    return bool(entry.get("enabled", False))


def reserved(value: Mapping[str, Any], instance_type: str) -> dict[str, Any]:
    """The hyperparameters that the SDK's framework classes send for a distribution, before their encoding.

    Raises UserError for combinations that the SDK refuses.
    """
    if _on(value, "pytorchddp"):  # hides everything beside it
        return {"sagemaker_pytorch_ddp_enabled": True, "sagemaker_instance_type": instance_type}
    if "pytorchddp" not in value and _on(value, "torch_distributed"):
        sent = _common(value, instance_type, torchrun=True) if "smdistributed" in value else {}
        return {
            **sent,
            "sagemaker_torch_distributed_enabled": True,
            "sagemaker_instance_type": instance_type,
        }
    return _common(value, instance_type, torchrun=False)


def _common(value: Mapping[str, Any], instance_type: str, *, torchrun: bool) -> dict[str, Any]:
    sent: dict[str, Any] = {}
    if "instance_groups" in value:
        sent["sagemaker_distribution_instance_groups"] = _group_names(value["instance_groups"])
    for key, name in _SWITCHES.items():
        if key in value:
            sent[name] = _on(value, key)
    mpi = value.get("mpi")
    if mpi is not None:
        sent["sagemaker_mpi_enabled"] = _on(value, "mpi")
        if mpi.get("processes_per_host"):
            sent["sagemaker_mpi_num_of_processes_per_host"] = mpi["processes_per_host"]
        sent["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options", "")
    if "smdistributed" in value:
        model = value["smdistributed"].get("modelparallel")
        if model is not None and mpi is None and not torchrun:
            raise UserError(
                "--distribution: smdistributed.modelparallel needs mpi or torch_distributed beside it"
            )
        if model is not None and model.get("enabled") and model.get("parameters"):
            sent["mp_parameters"] = model["parameters"]
        data = _on(value, "smdistributed", "dataparallel")
        sent["sagemaker_distributed_dataparallel_enabled"] = data
        sent["sagemaker_instance_type"] = instance_type
        if data:
            options = value["smdistributed"]["dataparallel"].get("custom_mpi_options", "")
            sent["sagemaker_distributed_dataparallel_custom_mpi_options"] = options
    launched = sent.get("sagemaker_mpi_enabled") or sent.get("sagemaker_distributed_dataparallel_enabled")
    if "instance_groups" in value and not launched:
        raise UserError("--distribution: instance_groups needs mpi or smdistributed.dataparallel enabled")
    return sent
