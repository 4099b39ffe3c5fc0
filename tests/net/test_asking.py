"""What an authoriser has said is remembered for a session, within bounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from twisted_msgproto import Access
from twisted_msgproto.net import Counters
from twisted_msgproto.net.authorising.asking import ANSWERS_MAX, CALL, Permissions

WIDE = "\U0001f600"


class Factory:
    """Its authoriser allows names of an even length."""

    protocolName = "umq"

    def __init__(self) -> None:
        self.counters = Counters()
        self.authoriser = self
        self.asked: Counter[str] = Counter()

    def allows(self, access: Access) -> bool:
        self.asked[access.name] += 1
        return len(access.name) % 2 == 0

    def writeOf(self, *arguments: Any, **fields: Any) -> None:
        """Nobody reads the log here."""


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("", 1),
        ("x" * 255, 1),
        ("x" * 10_000, 3),
        ("x" * 10_001, 3),
        (WIDE * 50, 1),
        (WIDE * 254, 3),
    ],
)
def test_the_answer_about_a_long_name_is_the_same_but_not_remembered__NB_02(
    name: str, asked: int
) -> None:
    """NB-02: a thousand names of a mebi-character each took 4 GB of one session."""
    factory = Factory()
    permissions = Permissions(factory, "ada", "192.0.2.7", "peer")
    for _ in range(3):
        assert permissions.refuses(CALL, name) is (len(name) % 2 == 1)
    assert factory.asked == {name: asked}
    assert factory.counters["not_allowed"] == (3 if len(name) % 2 else 0)


def test_few_names_are_remembered__NB_02() -> None:
    """NB-02: 10,000 sessions with 1,024 names each took gigabytes."""
    factory = Factory()
    permissions = Permissions(factory, "ada", "192.0.2.7", "peer")
    names = [f"{number}x{'y' * (number % 100)}" for number in range(3 * ANSWERS_MAX)]
    for name in names * 2:
        assert permissions.refuses(CALL, name) is (len(name) % 2 == 1)
        assert ANSWERS_MAX <= 64
    assert set(factory.asked.values()) == {2}
