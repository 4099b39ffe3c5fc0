"""Limits as data."""

import pytest

from twisted_msgproto.core.errors import ConfigurationError, LimitExceeded
from twisted_msgproto.core.limits import Limit, Limits, amount

TABLE = (
    Limit("window", 10, "events", "because", 1),
    Limit("idle", 1.5, "s", "to be quick"),
)


def test_a_limit_has_its_default_until_it_is_changed():
    limits = Limits.of(TABLE)
    changed = limits.replace({"window": "20"})
    assert (limits["window"], changed["window"], changed["idle"]) == (10, 20, 1.5)
    assert changed.replace({"idle": 0})["window"] == 20


def test_an_integer_limit_stays_one():
    limits = Limits.of(TABLE)
    assert limits.replace({"window": 3}).integer("window") == 3
    with pytest.raises(ConfigurationError, match=r"window takes a number of events, not '1\.5'"):
        limits.replace({"window": "1.5"})


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "nan", "inf"])
def test_a_value_which_makes_no_sense_is_refused_with_one_line(value):
    name = "idle" if value in ("nan", "inf") else "window"
    with pytest.raises(ConfigurationError) as raised:
        Limits.of(TABLE).replace({name: value})
    assert "\n" not in str(raised.value)


def test_an_unknown_limit_is_refused_and_the_known_are_named():
    with pytest.raises(
        ConfigurationError, match=r"'windows' \(did you mean 'window'\?\); known: window, idle"
    ):
        Limits.of(TABLE).replace({"windows": 1})


def test_limits_are_a_mapping_of_what_is_in_force():
    limits = Limits.of(TABLE).replace({"idle": 2})
    assert dict(limits) == {"window": 10, "idle": 2.0}
    assert len(limits) == 2


def test_a_limit_above_its_maximum_is_refused_by_name() -> None:
    limits = Limits.of([Limit("size", 8, "octets", "because", 1, 16)])
    assert limits.replace({"size": "16"})["size"] == 16
    with pytest.raises(ConfigurationError, match="limit size is at most 16, not '17'"):
        limits.replace({"size": "17"})


def test_what_is_at_a_limit_may_be_sent_and_one_more_may_not() -> None:
    limits = Limits.of(TABLE)
    limits.check("window", 10)
    with pytest.raises(LimitExceeded, match=r"^11 events, window allows 10; nothing was sent$"):
        limits.check("window", 11)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (64 << 20, "octets", "64 MiB"),
        (3 << 30, "octets", "3 GiB"),
        (16 << 10, "octets/s", "16 KiB/s"),
        (1500, "octets", "1,500 octets"),
        (0, "octets", "0 octets"),
        (2048, "connections", "2,048 connections"),
        (0.5, "s", "0.5 s"),
    ],
)
def test_an_amount_as_people_write_it(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text
