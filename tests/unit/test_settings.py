"""The table of settings."""

from __future__ import annotations

import pytest

from trainbox import settings
from trainbox.errors import UserError


def test_defaults_of_all_settings_can_be_read():
    found = settings.read({})
    assert found.grace_seconds == 110
    assert {setting.field for setting in settings.TABLE} == set(settings.Settings.__annotations__) - {
        "unknown"
    }
    assert all(setting.help and setting.expects for setting in settings.TABLE)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TRAINBOX_GRACE_SECONDS", "soon", "expected a number of seconds"),
        ("TRAINBOX_GRACE_SECONDS", "nan", "expected a number of seconds"),
        ("TRAINBOX_PORT", "70000", "expected a port"),
        ("TRAINBOX_STRICT", "maybe", "expected 0 or 1"),
        ("TRAINBOX_ARGUMENT_STYLE", "json", "expected one of value, flag"),
        ("TRAINBOX_NODES", "4:2", "min:max"),
        ("TRAINBOX_RANKS", "first", "all, or ranks"),
        ("TRAINBOX_ADDRESSES", "algo-1", "name=address pairs"),
        ("TRAINBOX_MAX_RESTARTS", "-1", "whole number"),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(name, value, words):
    with pytest.raises(UserError, match=rf"{name} is '{value}', .*{words}"):
        settings.read({name: value})


def test_values():
    found = settings.read(
        {"TRAINBOX_RANKS": "0,4-7", "TRAINBOX_NODES": "2:4", "TRAINBOX_ADDRESSES": "a=1.2.3.4,b=::1",
         "TRAINBOX_STRICT": "yes"}
    )  # fmt: skip
    assert found.ranks == (range(1), range(4, 8))
    assert found.nodes == (2, 4)
    assert found.addresses == (("a", "1.2.3.4"), ("b", "::1"))
    assert found.strict


def test_a_typing_error_is_noticed_and_the_right_name_suggested():
    assert settings.read({"TRAINBOX_ARGUMENTS_STYLE": "flag"}).unknown == ("TRAINBOX_ARGUMENTS_STYLE",)
    assert settings.suggest("TRAINBOX_ARGUMENTS_STYLE") == "TRAINBOX_ARGUMENT_STYLE"


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        settings.read({}).port = 1
