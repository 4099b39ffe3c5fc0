"""The broker's machine: contents of writers, and what a Confirm covers (HO-22)."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mtl.broker import (
    CLIENT_LIMITS,
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
    settled,
    store,
)
from twisted_msgproto.mtl import IngestProfile, machine
from twisted_msgproto.mtl.machine import ClientFlow
from twisted_msgproto.mtl.wire import data


def ingest(broker: Broker, confirm: str = FULL, resources: tuple[str, ...] = ("a",)) -> bytes:
    return broker.flow("Writer", resources, confirm, profile="ingest")


def test_contents_of_one_read_are_one_event_with_columns__MT_18__MT_23() -> None:
    broker = Broker()
    one, two = ingest(broker), ingest(broker, resources=("a", "b"))
    table = data.encode_table({"k": "v", "n": 1})
    told = broker.receive(
        Channel.DATA,
        [one, *data.encode(Content(5, "", body=b"x"))],
        [two, *data.encode(Content(1, "b", table, b"y"))],
        [one, *data.encode(Content(6, "a", body=b"zz"))],
    )
    assert [(e.sequences, e.resources, e.texts, e.bodies, e.nbytes) for e in told] == [  # type: ignore[union-attr]
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
        told = [event for event in broker.events if isinstance(event, machine.ContentReceived)]
        assert [event.sequences for event in told] == [[10]]


def test_content_for_a_resource_which_the_profile_has_not_gets_404__MT_18() -> None:
    broker = Broker()
    writer = broker.flow("Writer", [], NONE, profile="test")
    assert broker.command(writer, Content(5, "other")) == [Response(5, 404)]


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


def frames(sequence: int, name: bytes = b"\1a", table: bytes = b"\0\0\0\0") -> list[bytes]:
    return [b"\5" + struct.pack(">Q", sequence) + name + table, b"%d" % sequence]


def with_sequence(sequence: int) -> dict[str, list[bytes]]:
    """Nine ways to get a Content wrong whose sequence can be read."""
    header, body = frames(sequence)
    return {
        "one frame": [header],
        "three frames": [header, body, b""],
        "cut after the sequence": [header[:9], body],
        "cut in the name": [header[:10], body],
        "cut in the table": [header[:-2], body],
        "trailing bytes": [header + b"x", body],
        "name no UTF-8": frames(sequence, b"\1\xff"),
        "control character": frames(sequence, b"\1\n"),
        "bad table": frames(sequence, table=b"\0\0\0\1x"),
    }


def test_an_unconfirmed_flow_drops_what_it_cannot_read__MT_13() -> None:
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest", confirm="none")
    broker.receive(Channel.DATA, [writer, b"\5", b""], [writer, *frames(2)])
    assert broker.got(writer) == []
    assert [
        event.bodies for event in broker.events if isinstance(event, machine.ContentReceived)
    ] == [[b"2"]]


class Failing(IngestProfile):
    """Loses what is for two of its resources, one way or another."""

    def accept(self, flow: Any, resource: str, contents: list[Any]) -> bool | None:
        if resource == "raises":
            raise RuntimeError("a profile's fault")
        return resource != "refused"


@pytest.mark.parametrize("together", [True, False])
def test_what_a_profile_loses_is_rejected_first(together: bool) -> None:
    """HO-22, MT-19, MT-20, MT-26: each run of one resource, beside what it takes of one read."""
    broker = Broker([Failing()])
    names = ["a", "raises", "a", "refused", "refused", "a"]
    writer = broker.flow("Writer", ["a", "raises", "refused"], profile="ingest")
    sent = [Content(number, name) for number, name in enumerate(names, 2)]
    for read in [sent] if together else [[one] for one in sent]:
        broker.command(writer, *read)
    store(broker)
    found = settled(broker.got(writer), range(2, 8))
    assert found == {2: Confirm, 3: Reject, 4: Confirm, 5: Reject, 6: Reject, 7: Confirm}
    assert broker.server.counters["contents_lost_by_profile"] == 3
    (error,) = broker.server.profile_errors
    assert isinstance(error, RuntimeError)


def test_the_first_sequence_may_be_0__MT_18__MT_19() -> None:
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    broker.command(writer, *contents(0))
    broker.safe(broker.events[-1])
    assert broker.got(writer) == [Confirm(0, True)]


MESSAGES = st.one_of(
    st.integers(2, 40).map(frames),
    st.builds(
        lambda number, name: with_sequence(number)[name],
        st.integers(2, 40),
        st.sampled_from(list(with_sequence(0))),
    ),
    st.lists(st.binary(max_size=20), max_size=4),
    st.binary(max_size=16).map(lambda nbytes: [b"\5" + nbytes, b""]),
)


def has_sequence(message: list[bytes]) -> bool:
    return not message or message[0][:1] != b"\5" or len(message[0]) >= 9


@settings(max_examples=150)
@given(st.lists(MESSAGES, max_size=25), st.lists(st.booleans(), min_size=25, max_size=25))
def test_what_is_settled_by_a_confirm_first_is_stored(
    messages: list[list[bytes]], safe: list[bool]
) -> None:
    """HO-22, MT-13: for arbitrary bytes, and a sink which stores some of it.

    A content without its sequence ends the flow; else each is settled unless it was lost.
    """
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    stored: set[int] = set()
    for message in messages:
        broker.receive(Channel.DATA, [writer, *message])
    told = [event for event in broker.events if isinstance(event, machine.ContentReceived)]
    for event, good in zip(told, safe, strict=False):
        if good:
            stored.update(event.sequences)
        broker.safe(event, good)
    first = settled(broker.got(writer), range(41))
    whole = list(itertools.takewhile(has_sequence, messages))
    sent = {int.from_bytes(m[0][1:9], "big") for m in whole if m and m[0][:1] == b"\5"}
    assert {number for number in sent if first.get(number) is Confirm} <= stored
    assert {number for event in told for number in event.sequences} <= sent
    if len(whole) < len(messages):
        assert broker.server.snapshot()["writers"] == 0
    else:
        assert sent & set(range(41)) <= set(first)


@pytest.mark.parametrize(("reads", "confirm"), [*itertools.product([True, False], repeat=2)])
def test_a_reader_rejects_what_it_cannot_read_before_it_confirms(
    reads: bool, confirm: bool
) -> None:
    """HO-22, MT-13: the other direction; who confirms nothing rejects nothing."""
    for name, bad in with_sequence(2).items():
        flow = ClientFlow(reads=reads, confirm=confirm, limits=CLIENT_LIMITS)
        flow.renew("0" * 40, 0.0)
        flow.outputs()
        flow.receive([data.encode(data.Response(1, 200))], 0.0)
        flow.receive([frames(1), bad, bad, frames(3)], 0.0)
        settles = reads and confirm
        if settles:
            flow.confirm(3, True, 0.0)
        sent = [data.decode(*message) for message in flow.outputs()]
        assert sent == ([Reject(2), Confirm(3, True)] if settles else []), name
    flow.receive([[b"\5\0\0", b""]], 0.0)
    assert (flow.state.name == "OPEN") is not settles
