"""What a Confirm covers first is stored, whatever a writer sends (HO-22, MT-13, MT-19, MT-20)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mtl.broker import (
    CLIENT_LIMITS,
    SERVER_LIMITS,
    Broker,
    Channel,
    Confirm,
    Reject,
    contents,
)
from twisted_msgproto.mtl import ClientFlow, IngestProfile, QueueProfile, TestProfile
from twisted_msgproto.mtl.terms import events
from twisted_msgproto.mtl.wire import data


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
        "trailing octets": [header + b"x", body],
        "name no UTF-8": frames(sequence, b"\1\xff"),
        "control character": frames(sequence, b"\1\n"),
        "bad table": frames(sequence, table=b"\0\0\0\1x"),
    }


def settled_first(broker: Broker, writer: bytes, sent: list[int]) -> dict[int, bool]:
    """Sequence → whether the first command which covers it is a Confirm."""
    found: dict[int, bool] = {}
    for command in broker.got(writer):
        if isinstance(command, Confirm | Reject):
            covered = [
                number
                for number in sent
                if number == command.sequence or (command.multiple and number < command.sequence)
            ]
            for number in covered:
                found.setdefault(number, isinstance(command, Confirm))
    return found


@pytest.mark.parametrize("name", with_sequence(0))
@pytest.mark.parametrize("together", [True, False])
def test_what_cannot_be_read_is_rejected_before_a_later_confirm(name: str, together: bool) -> None:
    """HO-22, MT-13"""
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    bad = with_sequence(3)[name]
    stream = [frames(2), bad, frames(4)]
    if together:
        broker.receive(Channel.DATA, *([writer, *message] for message in stream))
    else:
        for message in stream:
            broker.receive(Channel.DATA, [writer, *message])
    for event in list(broker.events):
        if isinstance(event, events.ContentReceived):
            broker.safe(event)
    assert settled_first(broker, writer, [2, 3, 4]) == {2: True, 3: False, 4: True}
    assert sum(broker.dropped.values()) == 1


@pytest.mark.parametrize("octets", range(1, 9))
def test_without_a_sequence_the_flow_ends_and_nothing_later_is_confirmed(octets: int) -> None:
    """HO-22, MT-13: 403 from then on"""
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    broker.receive(Channel.DATA, [writer, *frames(2)])
    broker.receive(Channel.DATA, [writer, frames(3)[0][:octets], b""])
    broker.receive(Channel.DATA, [writer, *frames(4)])
    for event in list(broker.events):
        if isinstance(event, events.ContentReceived):
            broker.safe(event)
    got = broker.got(writer)
    assert not any(isinstance(command, Confirm) for command in got)
    assert data.Response(4, 403) in got


def test_an_unconfirmed_flow_drops_what_it_cannot_read() -> None:
    """MT-13"""
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest", confirm="none")
    broker.receive(Channel.DATA, [writer, b"\5", b""], [writer, *frames(2)])
    assert broker.got(writer) == []
    assert [
        event.bodies for event in broker.events if isinstance(event, events.ContentReceived)
    ] == [[b"2"]]


class Failing(IngestProfile):
    """Loses some contents, one way or another."""

    def accept(self, flow: Any, resource: str, contents: list[Any]) -> bool | None:
        if any(content.body == b"3" for content in contents):
            raise RuntimeError("a profile's fault")
        return not any(content.body == b"5" for content in contents)


def test_what_a_profile_loses_is_rejected_first() -> None:
    """HO-22, MT-19, MT-20: by an exception, or because it does not take it"""
    broker = Broker([Failing()])
    writer = broker.flow("Writer", profile="ingest")
    for number in range(2, 8):
        broker.command(writer, *contents(number))
    for event in list(broker.events):
        if isinstance(event, events.ContentReceived):
            broker.safe(event)
    found = settled_first(broker, writer, list(range(2, 8)))
    assert found == {2: True, 3: False, 4: True, 5: False, 6: True, 7: True}
    (error,) = broker.server.profile_errors
    assert isinstance(error, RuntimeError)


def test_the_first_sequence_may_be_0() -> None:
    """MT-18, MT-19"""
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    broker.command(writer, *contents(0))
    broker.safe(broker.events[-1])
    assert broker.got(writer) == [Confirm(0, True)]


def test_what_is_for_one_queue_too_many_is_rejected_before_the_sink_has_it__BK_05() -> None:
    """BK-05, HO-22, MT-27"""
    limits = SERVER_LIMITS.replace({"queues": 1})
    broker = Broker([QueueProfile(limits), TestProfile()])
    first = broker.flow("Writer", ["a"])
    second = broker.flow("Writer", ["b"])
    broker.command(first, *contents(2, resource="a"))
    assert broker.command(second, *contents(2, resource="b")) == [data.Reject(2)]
    (event,) = (event for event in broker.events if isinstance(event, events.ContentReceived))
    broker.safe(event)
    assert settled_first(broker, first, [2]) == {2: True}


MESSAGES = st.one_of(
    st.integers(2, 40).map(frames),
    st.builds(
        lambda number, name: with_sequence(number)[name],
        st.integers(2, 40),
        st.sampled_from(list(with_sequence(0))),
    ),
    st.lists(st.binary(max_size=20), max_size=4),
    st.binary(max_size=16).map(lambda octets: [b"\5" + octets, b""]),
)


@settings(max_examples=150)
@given(st.lists(MESSAGES, max_size=25), st.lists(st.booleans(), min_size=25, max_size=25))
def test_what_is_settled_by_a_confirm_first_is_stored(
    messages: list[list[bytes]], safe: list[bool]
) -> None:
    """HO-22: for arbitrary octets, and a sink which stores some of it"""
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    stored: set[int] = set()
    told: list[events.ContentReceived] = []
    confirmed: dict[int, bool] = {}
    for message in messages:
        broker.receive(Channel.DATA, [writer, *message])
    for event in broker.events:
        if isinstance(event, events.ContentReceived):
            told.append(event)
    for event, good in zip(told, safe, strict=False):
        if good:
            stored.update(event.sequences)
        broker.safe(event, good)
    confirmed = settled_first(broker, writer, list(range(41)))
    received = {number for event in told for number in event.sequences}
    assert {number for number, yes in confirmed.items() if yes and number in received} <= stored
    sent = {int.from_bytes(m[0][1:9], "big") for m in messages if m and m[0][:1] == b"\5"}
    wrongly = {n for n, yes in confirmed.items() if yes and n in sent and n not in stored}
    assert not wrongly


def test_a_reader_rejects_what_it_cannot_read_before_it_confirms() -> None:
    """HO-22, MT-13: the other direction"""
    for name, bad in with_sequence(2).items():
        flow = ClientFlow(reads=True, confirm=True, limits=CLIENT_LIMITS)
        flow.renew("0" * 40, 0.0)
        flow.outputs()
        flow.receive([data.encode(data.Response(1, 200))], 0.0)
        flow.receive([frames(1), bad, frames(3)], 0.0)
        flow.confirm(3, True, 0.0)
        sent = [data.decode(*message) for message in flow.outputs()]
        assert sent == [Reject(2), Confirm(3, True)], name
    flow.receive([[b"\5\0\0", b""]], 0.0)
    assert flow.state.name != "OPEN"
