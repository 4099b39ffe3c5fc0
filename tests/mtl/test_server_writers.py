"""The broker's machine: contents of writers, and how they are confirmed or refused."""

from __future__ import annotations

import itertools

import pytest

from tests.mtl.broker import (
    FULL,
    NONE,
    Broker,
    Channel,
    Confirm,
    Content,
    Dismiss,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
    bodies,
    contents,
)
from twisted_msgproto.mtl.terms import events
from twisted_msgproto.mtl.wire import data, fields


def ingest(broker: Broker, confirm: str = FULL, resources: tuple[str, ...] = ("a",)) -> bytes:
    return broker.flow("Writer", resources, confirm, profile="ingest")


def test_contents_of_one_read_are_one_event_with_columns() -> None:
    """MT-18, MT-23"""
    broker = Broker()
    one, two = ingest(broker), ingest(broker, resources=("a", "b"))
    table = fields.encode_table({"k": "v", "n": 1})
    told = broker.receive(
        Channel.DATA,
        [one, *data.encode(Content(5, "", body=b"x"))],
        [two, *data.encode(Content(1, "b", table, b"y"))],
        [one, *data.encode(Content(6, "a", body=b"zz"))],
    )
    assert [(e.sequences, e.resources, e.texts, e.bodies, e.octets) for e in told] == [  # type: ignore[union-attr]
        ([5, 6], ["a", "a"], [None, None], [b"x", b"zz"], 3 + 2 * (4 + 14)),
        ([1], ["b"], [{"k": "v", "n": "1"}], [b"y"], 1 + len(table) + 14),
    ]
    broker.safe(told[1])
    assert broker.got(two) == [Confirm(1, True)]
    assert broker.got(one) == []


def test_confirm_follows_safety_in_the_order_of_arrival() -> None:
    """MT-19: slices may become safe in any order."""
    broker = Broker()
    writer = ingest(broker)
    for numbers in ((1, 2), (3,), (7, 9)):
        broker.command(writer, *contents(*numbers))
    first, second, third = broker.events[-3:]
    broker.safe(third)
    assert broker.got(writer) == []
    broker.safe(first)
    assert broker.got(writer) == [Confirm(2, True)]
    broker.safe(second)
    assert broker.got(writer) == [Confirm(9, True)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_what_never_will_be_safe_breaks_the_flow_in_its_turn(order: tuple[int, ...]) -> None:
    """MT-14, MT-19, MT-30: nothing before it is rejected with it, nothing behind it is taken."""
    broker = Broker()
    reader = broker.reader("a")
    writer = broker.flow("Writer")
    for numbers in ((1, 2), (3, 4), (5,), (6, 7)):
        broker.command(writer, *contents(*numbers))
    told = broker.events[-4:]
    for place in order:
        broker.safe(told[place], place not in (1, 3))
    assert broker.got(writer) == [Confirm(2, True), Reject(7, True)]
    assert bodies(broker.got(reader)) == [b"1", b"2"]
    assert broker.server.snapshot()["writers"] == 0
    assert broker.server.counters["flows_broken"] == 1
    # It is as if it had never shown a lease; another one of the session serves again.
    assert broker.command(writer, *contents(8), Summon(9, ""), Ping()) == [
        Response(8, 403), Response(9, 403), Pong(),
    ]  # fmt: skip
    again = broker.connect(broker.lease(broker.server.sessions()[1].peer, "Writer"))
    broker.command(again, *contents(3))
    broker.safe(broker.events[-1])
    assert broker.got(again) == [Confirm(3, True)]
    assert bodies(broker.got(reader)) == [b"3"]


@pytest.mark.parametrize("confirm", [FULL, NONE])
def test_a_broken_flow_takes_no_content_while_it_waits_for_its_end(confirm: str) -> None:
    """MT-18, MT-19: refused one by one, and nothing of it goes to the sink."""
    broker = Broker()
    writer = ingest(broker, confirm)
    broker.command(writer, *contents(1))
    broker.command(writer, *contents(2))
    first, second = broker.events[-2:]
    broker.safe(second, False)
    answers = broker.command(writer, *contents(5), Ping())
    assert answers == [Reject(5) if confirm == FULL else Response(5, 403), Pong()]
    assert broker.command(writer, data.Lease(6, "x")) == [Response(6, 403)]
    assert broker.events[-1] is second
    broker.safe(first)
    full = [Confirm(1, True), Reject(2, True)]
    assert broker.got(writer) == (full if confirm == FULL else [])
    assert broker.server.snapshot()["writers"] == 0


def test_what_is_lost_after_the_end_of_its_flow_is_no_trouble() -> None:
    """MT-19, MT-21: nobody hears of it, readers do not get what stood behind it."""
    broker = Broker()
    reader = broker.reader("a")
    writer = broker.flow("Writer")
    for number in (1, 2, 3):
        broker.command(writer, *contents(number))
    told = broker.events[-3:]
    broker.collect(broker.server.peer_lost(writer, broker.now))
    for event, safe in zip(told, (True, False, True), strict=True):
        broker.safe(event, safe)
    assert broker.got(writer) == []
    assert bodies(broker.got(reader)) == [b"1"]
    assert broker.server.counters["flows_broken"] == 0


def test_unconfirmed_writers_hear_nothing() -> None:
    """MT-19"""
    broker = Broker()
    writer = ingest(broker, NONE)
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    broker.command(writer, *contents(2))
    broker.safe(broker.events[-1], False)
    assert broker.got(writer) == []


INVALID: list[tuple[tuple[str, ...], Content, int]] = [
    (("a",), Content(10, "a"), 400),  # the sequence did not rise
    (("a",), Content(9, "a"), 400),
    (("a", "b"), Content(11, ""), 400),  # a resource is required
    ((), Content(11, ""), 400),
    (("a", "b"), Content(11, "c"), 403),  # not in the lease
]


@pytest.mark.parametrize(("resources", "content", "code"), INVALID)
def test_invalid_content_is_rejected_or_answered(
    resources: tuple[str, ...], content: Content, code: int
) -> None:
    """MT-18"""
    for confirm, answer in ((FULL, Reject(content.sequence)), (NONE, None)):
        broker = Broker()
        writer = ingest(broker, confirm, resources)
        broker.command(writer, Content(10, "a"))
        got = broker.command(writer, content)
        assert got == [answer or Response(content.sequence, code)]
        told = [event for event in broker.events if isinstance(event, events.ContentReceived)]
        assert [event.sequences for event in told] == [[10]]


def test_a_content_for_which_there_is_no_room_is_rejected_or_answered_with_403__MT_27() -> None:
    for confirm, answer in ((FULL, Reject(3)), (NONE, Response(3, 403))):
        broker = Broker(limits={"queue-contents": 1})
        writer = broker.flow("Writer", confirm=confirm)
        for number in (1, 2):
            broker.command(writer, *contents(number))
            broker.safe(broker.events[-1])
            broker.got(writer)
        assert broker.command(writer, *contents(3)) == [answer]


def test_content_for_a_resource_which_the_profile_has_not_gets_404() -> None:
    """MT-18"""
    broker = Broker()
    writer = broker.flow("Writer", [], NONE, profile="test")
    assert broker.command(writer, Content(5, "other")) == [Response(5, 404)]


def test_content_on_a_readers_flow_is_invalid() -> None:
    """MT-11, MT-18"""
    broker = Broker()
    assert broker.command(broker.flow("Reader"), Content(5, "a")) == [Reject(5)]
    assert broker.command(broker.flow("Reader", confirm=NONE), Content(5, "a")) == [
        Response(5, 403)
    ]


def test_a_response_is_never_ambiguous() -> None:
    """MT-18: a command of the same sequence may not have been answered, as its sender sees it."""
    broker = Broker()
    writer = ingest(broker, NONE, ("a", "b"))
    broker.command(writer, Summon(7, "a"))
    assert broker.command(writer, Content(1, "c"), Content(7, "c"), Content(8, "c")) == [
        Response(8, 403)
    ]
    assert broker.dropped == {"ambiguous-content": 2}


def test_a_response_to_a_reader_is_not_ambiguous_after_what_it_summoned_and_dismissed__MT_18() -> (
    None
):
    broker = Broker()
    reader = broker.flow("Reader", confirm=NONE)
    broker.command(reader, Summon(7, "b"), Dismiss(9, "b"), Dismiss(11, "nothing"))
    refused = broker.command(reader, *(Content(number, "a") for number in (7, 9, 11, 12)))
    assert refused == [Response(12, 403)]
    assert broker.dropped == {"ambiguous-content": 3}
