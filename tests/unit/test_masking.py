"""Secrets of a job in what trainbox writes."""

import pytest

from trainbox.masking import STARS, Mask


@pytest.mark.parametrize(
    "name", ["hf_token", "DB_PASSWORD", "apiKey", "aws_secret_access_key", "Credentials"]
)
def test_known_failure_74_secrets_by_name(name):
    mask = Mask({name: "abc12345", "lr": "0.1"})
    assert mask.text(f"x abc12345 y {name}=abc12345") == f"x {STARS} y {name}={STARS}"
    assert mask.value(name, "anything") == STARS
    assert mask.value("lr", "0.1") == "0.1"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("see https://u:p@host/x", f"see https://{STARS}@host/x"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("https://host/a@b", "https://host/a@b"),
        ("two http://a:b@c and http://d:e@f", f"two http://{STARS}@c and http://{STARS}@f"),
    ],
)
def test_known_failure_74_credentials_in_urls(text, masked):
    assert Mask().text(text) == masked


def test_known_failure_74_the_list_can_be_extended():
    assert Mask({"pin": "998877"}).text("998877") == "998877"
    assert Mask({"pin": "998877"}, words=("pin",)).text("998877") == STARS


def test_nested_values_are_secret_too():
    mask = Mask(
        {
            "tracker": {"api_key": "nested-value", "others": ["kept"]},
            "tokens": ["first-one", {"a": "second-one"}],
        }
    )
    assert mask.text("nested-value kept first-one second-one") == f"{STARS} kept {STARS} {STARS}"


def test_the_longest_value_is_masked_whole():
    assert Mask({"token": "abcd"}, {"token": "abcdef"}).text("abcdef abcd") == f"{STARS} {STARS}"


def test_short_values_do_not_turn_the_log_into_stars():
    assert Mask({"key": "a"}).text("banana") == "banana"


def test_values_are_no_patterns():
    assert Mask({"token": "a.*z("}).text("abcz( a.*z(") == f"abcz( {STARS}"
