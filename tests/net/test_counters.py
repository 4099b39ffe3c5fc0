"""Counters in which those of live connections can be seen."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from twisted_msgproto.net import Counters
from twisted_msgproto.net.counters import Places


def test_a_connections_figures_are_seen_while_it_lives_and_after_it():
    """FC-03"""
    counters, figures = Counters(), {"acks": 1}
    counters.join("a", lambda: figures)
    assert counters["acks"] == 1
    figures["acks"] = 3
    assert dict(counters) == {"acks": 3}
    counters.leave("a")
    figures["acks"] = 100
    assert counters["acks"] == 3
    counters.leave("a")
    assert counters["acks"] == 3


def test_connections_are_summed():
    counters = Counters()
    for name in "abc":
        counters.join(name, lambda: {"acks": 2, "events": 1})
    counters["events"] += 5
    assert dict(counters.items()) == {"acks": 6, "events": 8}
    assert len(counters) == 2
    for name in "abc":
        counters.leave(name)
    assert counters.as_dict() == {"acks": 6, "events": 8}


def test_a_name_which_was_never_counted_has_none():
    counters = Counters()
    assert counters["faults"] == 0
    assert "faults" not in dict(counters)
    counters["faults"] += 1
    assert counters == {"faults": 1}
    del counters["faults"]
    assert counters == {}
    assert repr(counters) == "Counters({})"


def test_to_count_does_not_ask_connections_for_what_they_do_not_count():
    """The cost of a refused connection must not grow with the others."""
    counters, asked = Counters(), []

    def figures() -> dict[str, int]:
        asked.append(1)
        return {"acks": 1}

    counters.join("a", figures)
    del asked[:]
    counters["turned_away"] += 1
    assert asked == []


@dataclass(slots=True)
class Counted:
    seen: int = 0
    lost: int = 0


class Connection:
    def __init__(self, seen: int) -> None:
        self.machine = SimpleNamespace(counters=Counted(seen, 2 * seen), state="OPEN")
        self.odd = SimpleNamespace(count=1)


def test_counters_are_read_from_their_places_as_from_functions__FC_03() -> None:
    places, counters = Places.of(Counted, odd="odd.count"), Counters()
    connections = [Connection(number) for number in range(10)]
    for number, connection in enumerate(connections):
        counters.join(connection, places)
        if number % 3 == 0:
            counters.join(number, lambda: {"seen": 1, "other": 3})
    expected = {"seen": 45 + 4, "lost": 90, "odd": 10, "other": 12}
    assert counters.as_dict() == expected
    assert {name: counters[name] for name in expected} == expected
    connections[5].machine.counters.seen += 7
    counters.leave(connections[5])
    assert counters["seen"] == expected["seen"] + 7
    with pytest.raises(ValueError, match="one counter"):
        Places({})


def test_only_connections_that_stirred_are_asked_again__FC_03() -> None:
    """10,000 idle sessions cost a scrape nothing."""
    places, counters, asked = Places.of(Counted), Counters(), []

    def read(connection: Connection) -> tuple[object, ...]:
        asked.append(connection)
        return plain(connection)

    plain, places.read = places.read, read
    first, second, third = connections = [Connection(number) for number in (1, 2, 3)]
    for connection in connections:
        counters.join(connection, places)
    assert counters.as_dict() == {"seen": 6, "lost": 12}
    assert counters.states == {"OPEN": 3}
    del asked[:]
    second.machine.counters.seen, second.machine.state = 5, "READY"
    counters.stirred.add(second)
    assert counters.as_dict() == {"seen": 9, "lost": 12}
    assert +counters.states == {"OPEN": 2, "READY": 1}
    assert asked == [second]
    third.machine.counters.seen = 4  # its last words
    counters.leave(third)
    counters.leave(first)
    assert counters.as_dict() == {"seen": 10, "lost": 12}
    assert +counters.states == {"READY": 1}
    assert counters.tracks(second) and not counters.tracks(third)
