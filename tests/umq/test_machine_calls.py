"""UMQ's machines: calls, callbacks, topics, attributes; what they count and show."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.doubles import Figures
from tests.umq.pairs import base36, client, feed, refused, server, told
from twisted_msgproto.core.errors import LimitExceeded

# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


def test_a_second_answer_is_ignored_while_the_firsts_attachments_are_on_their_way():
    """UM-09, UM-10"""
    machine = client()
    machine.call("x", waiter="me")
    assert feed(machine, "A1:R1:x", "R1:again", "E1:again", b"a") == [
        told.ResultReceived(1, "me", "x", [b"a"])
    ]
    assert machine.counters.unknown_answers == 2


def test_what_is_not_pending_cannot_be_answered_nor_an_unknown_topic_published():
    machine = server()
    feed(machine, "C1:x")
    machine.result("1", "y")
    for verb in (machine.result, machine.error):
        with pytest.raises(ValueError):
            verb("1", "again")
    with pytest.raises(ValueError):
        machine.publish(1, "x")


def test_calls_are_limited_by_their_weight_too():
    """UM-20."""
    served = server(calls_bytes=256 + 50 + 2 * 48 + 60), server(calls_bytes=256 + 50 + 2 * 48 + 59)
    for machine, count in zip(served, (1, 0), strict=True):
        feed(machine, "A2:C1:" + "x" * 50, b"x" * 60, b"")
        assert len(feed(machine, "C2:x")) == count
    assert machine.outputs() == ["E2:8 too many calls are pending"]
    machine.error("1", "done")
    assert len(feed(machine, "C3:x")) == 1


OWN = {
    "call": lambda machine: machine.call("x"),
    "callback": lambda machine: machine.call("x", (), 1),
    "register_callback": lambda machine: machine.register_callback(),
    "subscribe": lambda machine: machine.subscribe(),
}


@pytest.mark.parametrize("verb", OWN)
def test_what_is_ours_is_limited_and_nothing_is_sent(verb):
    """UM-20."""
    machine = client(own_calls=1, callbacks=1, own_subscriptions=1)
    OWN[verb](machine)
    machine.outputs()
    with pytest.raises(LimitExceeded):
        OWN[verb](machine)
    assert machine.outputs() == []


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_call_may_end_while_its_answers_attachments_are_on_their_way(how):
    """UM-04, UM-20: its slots stay, its bytes are discarded."""
    machine = client()
    machine.call("a", waiter="a", deadline=20.0)
    machine.call("b", waiter="b")
    feed(machine, "A2:R1:x", b"1", "A1:R2:y", now=1.0)
    if how == "cancel":
        assert machine.cancel(1)
        assert not machine.cancel(1)
    else:
        assert machine.advance(20.0) == [told.CallExpired(1, "a")]
    assert feed(machine, b"2", b"3") == [told.ResultReceived(2, "b", "y", [b"3"])]
    assert (machine.input_weight, machine.no_partial_input) == (0, True)


# ── Topics and attributes ───────────────────────────────────────────────────────────────────────


def test_topics_are_limited_and_their_ids_checked():
    """UM-20: a flood of subscriptions."""
    machine = server(topics=2)
    for id in ("", "a", "1" * 14, "1 "):
        with pytest.raises(ValueError):
            machine.open_topic(id)
    machine.open_topic("1")
    with pytest.raises(ValueError):
        machine.open_topic("01")
    machine.open_topic("2")
    with pytest.raises(LimitExceeded):
        machine.open_topic("3")


def test_attributes_are_limited_by_their_bytes():
    """UM-20: with those of attachments; what is replaced counts no more."""
    machine = server(attributes_bytes=10)
    feed(machine, "S:a=12345678", "S:a=123", "S:b=12345")
    refused(machine, "A1:S:b=", b"12345678", code=1, reason="attributes")


def test_nothing_follows_a_fault_which_an_attachment_set_free():
    """UM-18: the fault is the last event, whatever waited behind it."""
    machine = server(attributes=1)
    assert feed(machine, "S:a=1", "A1:S:b=1", "X:b", "S:b=2") == [told.AttributeSet("a", "1")]
    assert refused(machine, b"1", code=1, reason="attributes") == []


def test_few_topics_that_were_never_ours_are_remembered__NB_02():
    """NB-02, UM-14: a peer could have 1,024 remembered; further ones are answered each time."""
    machine = server()
    ids = [f"{number}X" for number in range(1, 1000)]
    feed(machine, *(f"T{id}:x" for id in ids))
    assert machine.outputs() == [f"U{id}:" for id in ids]
    assert machine.snapshot()["closing"] == 64
    feed(machine, *(f"T{id}:x" for id in ids))
    assert machine.outputs() == [f"U{id}:" for id in ids[64:]]
    # Topics that were ours end as ever, however many they are.
    numbers = [machine.subscribe() for _ in range(200)]
    for number in numbers:
        machine.unsubscribe(number)
    machine.outputs()
    feed(machine, *(f"T{base36(number)}:late" for number in numbers))
    assert machine.outputs() == []
    machine = client()
    for _ in range(1025):
        machine.unsubscribe(machine.subscribe())
    machine.outputs()
    feed(machine, "T2:late", "T1:late")
    assert machine.outputs() == ["U1:"]


def test_a_machine_counts_shows_and_says_each_step__UM_04__UM_09__UM_11__UM_14() -> None:
    machine = server(calls=3, callbacks=2)

    def figures() -> dict[str, Any]:
        counted = {f"n_{name}": count for name, count in asdict(machine.counters).items()}
        own = {"no_partial_input": machine.no_partial_input, "deadline": machine.deadline}
        shown = machine.snapshot()
        assert machine.input_weight == shown["held_bytes"]
        return {**counted, **shown, **own, "kept": machine.memory.nbytes}

    assert {name: value for name, value in figures().items() if value} == {
        "state": "OPEN", "no_partial_input": True
    }  # fmt: skip
    changed = Figures(figures)

    def read(now: float, *messages: str | bytes) -> None:
        for message in messages:
            machine.receive([message], now)

    steps: list[tuple[Callable[[], object], str, list[str]]] = [
        (lambda: read(1.0, "C1:x", "C2:y"), "n_calls=2 calls=2 kept=514", []),
        (
            lambda: read(2.0, "A2:C3:x"),
            "n_calls=3 calls=3 announcements=1 no_partial_input=False deadline=62.0 held_bytes=385"
            " kept=771",
            [],
        ),
        (lambda: read(3.0, b"abc"), "n_attachments=1 held_bytes=388", []),
        (
            lambda: read(3.0, b"d"),
            "n_attachments=2 announcements=0 no_partial_input=True held_bytes=0 kept=871",
            [],
        ),
        (
            lambda: read(3.5, "C4:x"),
            "n_calls=4 n_calls_refused=1",
            ["E4:8 too many calls are pending"],
        ),
        (lambda: machine.result("1", "ok"), "calls=2 kept=614", ["R1:ok"]),
        (lambda: machine.error("2", "no"), "calls=1 kept=357", ["E2:no"]),
        (
            lambda: read(4.0, "A1:S:a=b"),
            "announcements=1 no_partial_input=False held_bytes=1154",
            [],
        ),
        (
            lambda: read(4.0, b"x"),
            "n_attachments=3 announcements=0 no_partial_input=True held_bytes=0 attributes=1"
            " kept=664",
            [],
        ),
        (lambda: read(4.0, "X:a"), "attributes=0 kept=357", []),
        (lambda: machine.call("p", deadline=30.0), "own_calls=1 deadline=30.0", ["C1:p"]),
        (lambda: machine.call("q"), "own_calls=2", ["C2:q"]),
        (lambda: read(5.0, "R1:ok"), "n_results=1 own_calls=1", []),
        (lambda: read(5.0, "R9:ok"), "n_unknown_answers=1", []),
        (lambda: read(5.0, "E2:no"), "n_errors=1 own_calls=0", []),
        (lambda: read(5.0, "E2:no"), "n_unknown_answers=2", []),
        (machine.register_callback, "callbacks=1", []),
        (lambda: read(6.0, "B5:1:x"), "n_calls=5 calls=2 kept=616", []),
        (lambda: machine.later("5"), "kept=1640", []),
        (lambda: read(6.0, "B6:9:x"), "n_calls=6", ["E6:2 callback not found"]),
        (lambda: machine.unregister_callback(1), "callbacks=0", []),
        (machine.subscribe, "subscriptions=1", []),
        (lambda: read(7.0, "T1:u"), "n_updates=1", []),
        (lambda: read(7.0, "T5:u"), "closing=1", ["U5:"]),
        (lambda: machine.unsubscribe(1), "subscriptions=0 closing=2", ["U1:"]),
        (lambda: read(7.0, "T1:u"), "", []),
        (lambda: read(7.0, "D1:"), "closing=1", []),
        (lambda: read(7.0, "D1:"), "", []),
        (machine.subscribe, "subscriptions=1", []),
        (lambda: read(7.0, "D2:"), "subscriptions=0", []),
        (lambda: machine.open_topic("K"), "topics=1 kept=3688", []),
        (lambda: machine.publish(20, "u"), "", ["TK:u"]),
        (lambda: read(8.0, "UK:"), "topics=0 kept=1640", ["DK:"]),
        (lambda: read(8.0, "UK:"), "", []),
        (lambda: machine.open_topic("M"), "topics=1 kept=3688", []),
        (lambda: machine.close_topic(22), "topics=0 kept=1640", ["DM:"]),
        (
            lambda: read(9.0, "A1:C7:x"),
            "n_calls=7 calls=3 announcements=1 no_partial_input=False held_bytes=385 kept=1897",
            [],
        ),
        (
            lambda: read(9.0, "-:lost"),
            "n_attachments=4 n_attachments_failed=1 announcements=0 no_partial_input=True"
            " held_bytes=0 kept=1949",
            [],
        ),
        (
            lambda: read(10.0, "A2:C8:x"),
            "n_calls=8 n_calls_refused=2 announcements=1 no_partial_input=False held_bytes=128",
            ["E8:8 too many calls are pending"],
        ),
        (lambda: machine.paused(11.0), "", []),
        (lambda: machine.resumed(12.0), "", []),
        (lambda: machine.advance(13.0), "", []),
        (lambda: machine.advance(71.0), "closing=0 deadline=72.0", []),
        (
            lambda: machine.advance(72.0),
            "state=CLOSED deadline=None announcements=0 no_partial_input=True held_bytes=0",
            ["F0:3 no attachment for 60 s"],
        ),
    ]
    for number, (step, expected, said) in enumerate(steps):
        told = {f"{name}={value}" for name, value in changed(step()).items()}
        assert (told, machine.outputs()) == ({*expected.split()}, said), f"step {number}"
