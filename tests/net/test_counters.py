"""Counters in which those of live connections can be seen."""

from __future__ import annotations

from twisted_msgproto.net.counters import Counters


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
