"""Hyperparameters: from the three encodings that clients send, to values, to arguments of the script."""

from __future__ import annotations

import json
from collections.abc import Mapping

from trainbox.values import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

ALSO_RESERVED = ("_tuning_objective_metric", "default_user_module_name")

# Their values are words, so one that still has quotes after decoding shows that the client encoded twice.
_ALWAYS_TEXT = (
    "sagemaker_program",
    "sagemaker_submit_directory",
    "sagemaker_job_name",
    "sagemaker_region",
    "sagemaker_s3_output",
)


def is_reserved(key: str) -> bool:
    """Whether a key belongs to the platform and not to the script (contract 4.4)."""
    return key.startswith("sagemaker_") or key in ALSO_RESERVED


def _decode_once(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _still_encoded(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) > 1
        and value[0] == '"' == value[-1]
        and _decode_once(value) != value
    )


def decode(raw: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Python values of a hyperparameters.json, and whether it was encoded twice.

    A value is decoded as JSON, or kept as it is when it is none (contract 3.1), so raw and encoded text give
    the same. A second layer cannot be seen in one value ("5" in quotes is the string 5); it shows in the keys
    that are always text, or, without any of those, when all values are JSON strings that hold JSON strings.
    """
    once = {key: _decode_once(value) for key, value in raw.items()}
    text_keys = [key for key in _ALWAYS_TEXT if isinstance(once.get(key), str)]
    if text_keys:
        twice = any(_still_encoded(once[key]) for key in text_keys)
    else:
        twice = all(isinstance(value, str) for value in once.values()) and any(
            _still_encoded(value) for value in once.values()
        )
    if not twice:
        return once, False
    return {key: _decode_once(value) for key, value in once.items()}, True


def _scalar(value: Any) -> str:
    return "" if value is None else str(value)


def _compatible(value: Any) -> str:
    """The text of the older toolkit: Python's repr in lists, k=v pairs for dictionaries (contract 4.2)."""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return _scalar(value)


def _json_containers(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else _scalar(value)


def _all_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _option(key: str) -> str:
    """`--key`; one letter gets one dash; the empty key stays empty (contract 4.2)."""
    return f"-{key}" if len(key) == 1 else f"--{key}" if key else ""


def encode(values: Mapping[str, Any], style: str = "value") -> tuple[str, ...]:
    """Arguments for the script, each value one element whatever it holds.

    Styles: `value` (contract 4.2 for scalars, JSON for lists and dictionaries), `sagemaker` (4.2 to the
    letter), `sdk3` (4.5: file order, JSON, always two dashes), `flag` (true is `--x`, false and null are left
    out), `boolean` (as flag, but false is `--no-x`), `equals` (`--x=value`), `none` (no arguments).
    """
    if style == "none":
        return ()
    if style == "sdk3":
        return tuple(text for key, value in values.items() for text in (f"--{key}", _all_json(value)))
    to_text = _compatible if style == "sagemaker" else _json_containers
    arguments: list[str] = []
    for key in sorted(values):
        value = values[key]
        if style in ("flag", "boolean") and (isinstance(value, bool) or value is None):
            if value:
                arguments.append(_option(key))
            elif style == "boolean" and value is False:
                arguments.append(f"--no-{key}")
        elif style == "equals":
            arguments.append(f"--{key}={to_text(value)}")
        else:
            arguments += [_option(key), to_text(value)]
    return tuple(arguments)
