"""Decoding and encoding of hyperparameters (contract 3.1, 4.2, 4.5)."""

from __future__ import annotations

import argparse
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbox.hyperparameters import decode, encode, is_reserved

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("true", True),
        ("null", None),
        ("1e-3", 0.001),
        ("Infinity", math.inf),
        ("007", "007"),
        ('"5"', "5"),
        ("5", 5),
        ("[1, 2]", [1, 2]),
        ("yes", "yes"),
        ("hello", "hello"),
        ('"hello"', "hello"),
        ("", ""),
        (7, 7),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_or_itself(raw, value):
    assert decode({"x": raw}) == ({"x": value}, False)


PARAMETERS = {
    "sagemaker_program": "train.py",
    "sagemaker_container_log_level": 20,
    "epochs": 3,
    "name": "two words",
    "flag": True,
    "layers": [1, "two"],
}


def encodings():
    once = {key: json.dumps(value) for key, value in PARAMETERS.items()}
    raw = {key: value if isinstance(value, str) else once[key] for key, value in PARAMETERS.items()}
    return {"raw": raw, "json": once, "double": {key: json.dumps(value) for key, value in once.items()}}


@pytest.mark.parametrize("encoding", ["raw", "json", "double"])
def test_known_failure_06_three_encodings_give_the_same(encoding):
    assert decode(encodings()[encoding]) == (PARAMETERS, encoding == "double")


def test_known_failure_06_without_reserved_keys_a_quoted_number_stays_text():
    assert decode({"version": '"5"', "name": '"x"'}) == ({"version": "5", "name": "x"}, False)
    assert decode({"name": json.dumps(json.dumps("x"))}) == ({"name": "x"}, True)


VALUES = {
    "batch-size": 32,
    "e": 5,
    "flag": True,
    "off": False,
    "none": None,
    "lr": 1e-3,
    "big": math.inf,
    "s": "two words",
}


def test_scalars_are_as_in_the_contract():
    assert encode(VALUES) == (
        "--batch-size", "32", "--big", "inf", "-e", "5", "--flag", "True", "--lr", "0.001", "--none", "",
        "--off", "False", "-s", "two words",
    )  # fmt: skip


def test_the_sagemaker_style_keeps_python_repr():
    values = {"l": [1, "two", None, True], "d": {"b": [1, "x"], "a": {"k": True}}, "": "value"}
    assert encode(values, "sagemaker") == (
        "", "value", "-d", "a={'k': True},b=[1, 'x']", "-l", "[1, 'two', None, True]",
    )  # fmt: skip


def test_the_sdk3_style_keeps_order_and_json():
    values = {"z": True, "a": None, "dict": {"a": 1}, "s": "text"}
    assert encode(values, "sdk3") == ("--z", "true", "--a", "null", "--dict", '{"a": 1}', "--s", "text")


@given(
    st.dictionaries(
        st.text(min_size=2), st.lists(JSON, max_size=3) | st.dictionaries(st.text(), JSON, max_size=3)
    )
)
def test_known_failure_29_lists_and_dictionaries_come_back_from_one_argument(values):
    arguments = encode(values)
    assert len(arguments) == 2 * len(values)
    given_back = dict(zip(arguments[::2], map(json.loads, arguments[1::2]), strict=True))
    assert given_back == {f"--{key}": value for key, value in values.items()}


def parse(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=1)
    return vars(parser.parse_args(arguments))


def test_known_failure_30_styles_for_boolean_options():
    values = {"verbose": True, "cache": False, "epochs": 3}
    assert parse(encode(values, "boolean")) == values
    assert encode({"verbose": False, "epochs": 3}, "flag") == ("--epochs", "3")
    assert parse(encode({"verbose": True}, "flag"))["verbose"]
    assert encode(values, "equals") == ("--cache=False", "--epochs=3", "--verbose=True")
    assert encode(values, "none") == ()
    assert encode(values) == ("--cache", "False", "--epochs", "3", "--verbose", "True")


@pytest.mark.parametrize(
    ("key", "reserved"),
    [
        ("sagemaker_program", True),
        ("_tuning_objective_metric", True),
        ("default_user_module_name", True),
        ("lr", False),
    ],
)
def test_reserved_keys(key, reserved):
    assert is_reserved(key) is reserved
