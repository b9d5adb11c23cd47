"""The SM_* variables of the script, from Job and Machine (contract 4.1 and 4.5). Pure."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from trainbox.job import DISTRIBUTION_FLAGS, Job, is_on
from trainbox.machine import Machine
from trainbox.plan import EnvVar
from trainbox.values import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

WHY_ALIAS = "the same under a name that every shell can read"
WHY_V3 = "as version 3 of SageMaker's SDK has it"

# Reserved keys that the toolkit itself reads; all others are framework parameters (contract 4.4).
CORE_KEYS = frozenset(
    {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "sagemaker_s3_output",
        "default_user_module_name",
        "_tuning_objective_metric",
    }
)


def text(value: Any) -> str:
    """Text of a value in a variable: null is empty, text stays, the rest is compact JSON (contract 4.1)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def alias(name: str) -> str:
    """The name with every character that a shell does not allow made an underscore."""
    if name.isidentifier() and name.isascii() and name.isupper():
        return name
    return re.sub(r"[^A-Z0-9_]", "_", name)


def _groups(job: Job) -> dict[str, dict[str, Any]]:
    return {
        group.name: {
            "instance_group_name": group.name,
            "instance_type": group.instance_type,
            "hosts": list(group.hosts),
        }
        for group in job.groups
    }


def _module_name(job: Job) -> str:
    return job.program.removesuffix(".py") if job.program else "None"


def _distribution_hosts(job: Job) -> list[str]:
    asked = job.distribution_groups or any(is_on(job.reserved.get(flag)) for flag in DISTRIBUTION_FLAGS)
    return list(job.ranked) if asked else []


def _described(job: Job, machine: Machine, environ: Mapping[str, str]) -> dict[str, Any]:
    """Every fact of the job under the name it has in SM_TRAINING_ENV."""
    groups = _groups(job)
    mine = groups.get(job.group, {}).get("hosts", [])
    return {
        "channel_input_dirs": {channel.name: channel.path for channel in job.channels},
        "current_host": job.me,
        "current_instance_group": job.group,
        "current_instance_group_hosts": mine,
        "current_instance_type": job.instance_type,
        "distribution_hosts": _distribution_hosts(job),
        "distribution_instance_groups": list(job.distribution_groups),
        "framework_module": environ.get("SAGEMAKER_TRAINING_MODULE") or None,
        "hosts": list(job.hosts),
        "hyperparameters": dict(job.hyperparameters),
        "input_config_dir": job.paths.config,
        "input_data_config": dict(job.input_config),
        "input_dir": job.paths.input,
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "is_master": job.me == job.leader,
        "is_modelparallel_enabled": text(job.hyperparameters.get("mp_parameters")) or None,
        "is_smddpmprun_installed": _on_path("smddpmprun", environ),
        "is_smddprun_installed": _on_path("smddprun", environ),
        "job_name": job.name,
        "log_level": job.log_level,
        "master_hostname": job.leader,
        "model_dir": job.paths.model,
        "module_dir": job.submit_directory or job.paths.code,
        "module_name": _module_name(job),
        "network_interface_name": job.interface,
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus,
        "num_neurons": machine.neuron_cores,
        "output_data_dir": job.paths.output_data,
        "output_dir": job.paths.output,
        "output_intermediate_dir": job.paths.intermediate,
        "resource_config": dict(job.resource_config),
        "topology": job.topology,
        "user_entry_point": job.program or (job.command[0] if job.command else None),
        "additional_framework_parameters": {
            key: value
            for key, value in job.reserved.items()
            if key.startswith("sagemaker_") and key not in CORE_KEYS
        },
    }


def _on_path(program: str, environ: Mapping[str, str]) -> bool:
    return any(
        os.access(os.path.join(folder, program), os.X_OK)
        for folder in environ.get("PATH", "").split(":")
        if folder
    )


# Facts that have a variable of their own, in the order of contract 4.1, and what the variable tells.
_OWN_VARIABLE = {
    "SM_HOSTS": ("hosts", "all hosts of the job"),
    "SM_CURRENT_HOST": ("current_host", "this host"),
    "SM_CURRENT_INSTANCE_TYPE": ("current_instance_type", "this host's instance type"),
    "SM_CURRENT_INSTANCE_GROUP": ("current_instance_group", "this host's instance group"),
    "SM_CURRENT_INSTANCE_GROUP_HOSTS": ("current_instance_group_hosts", "hosts of this host's group"),
    "SM_INSTANCE_GROUPS": ("instance_groups", "names of the instance groups"),
    "SM_INSTANCE_GROUPS_DICT": ("instance_groups_dict", "type and hosts of each instance group"),
    "SM_DISTRIBUTION_INSTANCE_GROUPS": (
        "distribution_instance_groups",
        "groups that run the distributed job",
    ),
    "SM_IS_HETERO": ("is_hetero", "whether there are several instance groups"),
    "SM_NETWORK_INTERFACE_NAME": ("network_interface_name", "interface that the platform names"),
    "SM_RESOURCE_CONFIG": ("resource_config", "resourceconfig.json"),
    "SM_INPUT_DATA_CONFIG": ("input_data_config", "inputdataconfig.json"),
    "SM_INPUT_DIR": ("input_dir", "folder of data and configuration"),
    "SM_INPUT_CONFIG_DIR": ("input_config_dir", "folder of the configuration"),
    "SM_OUTPUT_DIR": ("output_dir", "folder of output and failure"),
    "SM_OUTPUT_DATA_DIR": ("output_data_dir", "what is written here is kept, beside the model"),
    "SM_OUTPUT_INTERMEDIATE_DIR": ("output_intermediate_dir", "what a platform keeps while the job runs"),
    "SM_MODEL_DIR": ("model_dir", "what is written here is the model"),
    "SM_MODULE_DIR": ("module_dir", "where the submitted code came from"),
    "SM_MODULE_NAME": ("module_name", "the program, without .py"),
    "SM_USER_ENTRY_POINT": ("user_entry_point", "the program"),
    "SM_FRAMEWORK_MODULE": ("framework_module", "SAGEMAKER_TRAINING_MODULE, which is not run"),
    "SM_HPS": ("hyperparameters", "all hyperparameters"),
    "SM_FRAMEWORK_PARAMS": ("additional_framework_parameters", "reserved hyperparameters, for frameworks"),
    "SM_LOG_LEVEL": ("log_level", "log level that the job asks for"),
    "SM_NUM_CPUS": ("num_cpus", "cores that the container may use"),
    "SM_NUM_GPUS": ("num_gpus", "visible GPUs"),
    "SM_NUM_NEURONS": ("num_neurons", "visible Neuron cores"),
}


def sm_variables(
    job: Job,
    machine: Machine,
    arguments: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    leader_address: str = "",
    port: int = 7777,
) -> tuple[EnvVar, ...]:
    """All SM_* variables of the script on this host.

    arguments: the script's arguments, for SM_USER_ARGS. leader_address, port: where ranks meet.
    """
    described = _described(job, machine, environ)
    rows = [EnvVar(name, text(described[fact]), why) for name, (fact, why) in _OWN_VARIABLE.items()]
    rows += [
        EnvVar("SM_CHANNELS", text([channel.name for channel in job.channels]), "names of the channels"),
        EnvVar("SM_USER_ARGS", text(list(arguments)), "the script's arguments"),
        EnvVar("SM_TRAINING_ENV", text(described), "all of the job in one object"),
    ]
    if job.topology:
        rows.append(EnvVar("SM_TOPOLOGY", text(job.topology), "how the platform's network lies"))
    for channel in job.channels:
        rows.append(EnvVar(f"SM_CHANNEL_{channel.name.upper()}", channel.path, "folder of a channel"))
    for key, value in job.hyperparameters.items():
        rows.append(EnvVar(f"SM_HP_{key.upper()}", text(value), "a hyperparameter"))
    found = {row.name: row for row in rows if _representable(row.name, row.value)}

    v3 = (
        EnvVar("SM_INPUT_DATA_DIR", job.paths.data, "folder of the channels"),
        EnvVar("SM_OUTPUT_FAILURE", job.paths.failure, "the failure file"),
        EnvVar("SM_MASTER_ADDR", leader_address or job.leader, "address of the leader"),
        EnvVar("SM_MASTER_PORT", str(port), "port at which ranks meet"),
        EnvVar("SM_HOST_COUNT", str(len(job.hosts)), "number of hosts"),
        EnvVar("SM_CURRENT_HOST_RANK", str(job.rank), "place of this host in rank order"),
        EnvVar("SM_SOURCE_DIR", job.paths.code, "the code directory"),
        EnvVar("SM_ENTRY_SCRIPT", job.program or (job.command[0] if job.command else ""), "the program"),
    )
    for row in v3:
        found.setdefault(row.name, row._replace(why=f"{row.why} ({WHY_V3})"))
    for name in list(found):
        if alias(name) != name:
            found.setdefault(alias(name), EnvVar(alias(name), found[name].value, WHY_ALIAS))
    return tuple(found.values())


def _representable(name: str, value: str) -> bool:
    """Whether the kernel can hold it: no NUL, and no `=` in a name."""
    return "\0" not in name + value and "=" not in name
