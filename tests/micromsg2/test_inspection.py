"""Large JSON bodies are checked in slices, and nothing overtakes them (``MM-28``, HO-15)."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from tests.doubles import due
from tests.micromsg2.cases import Case
from tests.micromsg2.layouts import Error, ExtensionFrame, encode_command
from tests.micromsg2.sessions import BATCH, broken, parts, receive
from tests.micromsg2.streams import (
    ack,
    bodies,
    flatten,
    message,
    pair,
    proposal,
    safe,
    server_with,
    written,
)
from tests.tools.sinks import SafeSink
from twisted_msgproto.micromsg2 import STANDARD, Extension, Proposal
from twisted_msgproto.micromsg2.machine import MessagesReceived, Session

TOKENS = 70_000
LARGE = b"[" + b"[[[[]]]]," * (TOKENS // 9) + b"1]"
"""JSON of which nearly every octet is a token which has to be looked at by itself."""

BAD = LARGE[:-1]


def rest(session: Session) -> list[Any]:
    """What comes of a session while it has something unfinished."""
    events = []
    while session.unfinished:
        events += receive(session, b"")
    return events


def test_a_large_body_takes_several_calls() -> None:
    """MM-28, HO-15"""
    server = server_with("json;" + BATCH + "9")
    events = receive(server, message(1, b"1") + message(2, LARGE) + message(3, b"3"))
    assert bodies(events) == [b"1"]
    assert server.unfinished and not server.whole
    assert server.held >= len(LARGE)
    calls = 1
    while server.unfinished:
        events += receive(server, b"")
        calls += 1
    assert calls > TOKENS / 25_000, "which take milliseconds each"
    assert bodies(events) == [b"1", LARGE, b"3"]
    assert server.whole
    assert server.held == 0
    safe(server, events)
    server.drain(0.0)
    assert written(server) == [ExtensionFrame(2, b"\0\3")]


def test_what_is_safe_is_acknowledged_up_to_the_body_which_is_inspected() -> None:
    """MM-19, MM-28: nothing without a verdict is acknowledged"""
    server = server_with("json;" + BATCH + "9")
    events = receive(server, message(1, b"1") + message(2, LARGE))
    safe(server, events)
    server.drain(0.0)
    assert written(server) == [ExtensionFrame(2, b"\0\1")]
    assert server.finished, "the peer keeps what has no verdict, and sends it again"


def test_many_small_bodies_of_one_read_take_several_calls__NB_07() -> None:
    """MM-28: each is checked at once, and all of them would take too long."""
    server = server_with("json;" + BATCH + "999")
    body = b'"' + bytes(1000).replace(b"\0", b"x") + b'"'
    count = 400
    events = receive(server, b"".join(message(1 + number, body) for number in range(count)))
    assert server.unfinished
    assert bodies(events + rest(server)) == [body] * count


@pytest.mark.parametrize("json_octets", [len(LARGE) - 1, len(LARGE)])
def test_above_the_limit_a_body_is_carried_unchecked(json_octets: int) -> None:
    """MM-28, MM-32"""
    server = server_with("json;" + BATCH + "9", json_octets=json_octets)
    spoilt = BAD + b"}"
    events = receive(server, message(1, spoilt)) + rest(server)
    assert bodies(events) == ([spoilt] if json_octets < len(spoilt) else [])


def test_however_it_is_cut_the_events_say_the_same_in_the_same_order() -> None:
    """MM-28: also when octets come while a body is inspected"""
    many = 300_000 // 9
    in_parts = b"[" + b"[[[[]]]]," * many + b"1]"
    octets = b"".join(
        (
            message(1, LARGE),
            message(2, b"no"),
            message(3, BAD),
            encode_command("subscribe", {"destination": "a"}),
            message(4, b"4", properties=b"k:N1;"),
            parts((5, in_parts[:100_000]), (5, in_parts[100_000:])),
            message(3, b"a repeat"),
            ack(9, 2),
            encode_command("nonsense", {}),
            message(6, LARGE),
        )
    )

    def said(chunks: list[bytes], eager: bool) -> tuple[list[Any], list[Any]]:
        server = server_with("json;" + BATCH + "9;pub-sub")
        events = []
        for chunk in chunks:
            events += receive(server, chunk)
            if eager:
                events += rest(server)
        events += rest(server)
        answered = written(server)
        assert server.counters.bad_payloads == 2
        return flatten(events), answered

    expected, answers = said([octets], eager=True)
    assert [row[0] for row in expected if isinstance(row, tuple)] == [1, 4, 5, 6]
    assert [type(frame) for frame in answers] == [Error] * 3
    rng = random.Random(3)
    for _ in range(4):
        places = sorted(rng.sample(range(1, len(octets)), 12))
        chunks = [octets[a:b] for a, b in pairwise([0, *places, len(octets)])]
        for eager in (True, False):
            assert said(chunks, eager) == (expected, answers)


def test_what_breaks_the_protocol_behind_a_body_comes_after_its_verdict() -> None:
    """MM-28, MM-33"""
    server = server_with("json;" + BATCH + "9")
    assert receive(server, message(1, LARGE) + b"\xff") == []
    events = rest(server)
    assert bodies(events[:1]) == [LARGE]
    assert server.fault is events[-1]
    assert not server.unfinished


def test_a_session_which_is_over_inspects_nothing() -> None:
    """MM-28: a peer's fault is not the only end"""
    for end in ("fail", "lost"):
        server = server_with("json;" + BATCH + "9")
        receive(server, message(1, LARGE) + message(2, b"2"))
        receive(server, message(3, b"3"))
        assert server.unfinished
        if end == "fail":
            server.fail(1)
        else:
            server.lost(0.0)
        assert not server.unfinished
        assert server.finished
        assert server.held == 0
        assert receive(server, b"") == []


def test_an_ack_which_waits_behind_a_body_is_not_late() -> None:
    """MM-28, MM-32"""
    server = server_with("json;" + BATCH + "9", ack_wait=10)
    server.send("a", b"x")
    receive(server, message(1, LARGE) + ack(1, 2))
    server.advance(11.0)
    assert server.fault is None
    while server.unfinished:
        server.receive(b"", 11.0)
    assert server.in_flight == 0
    server.send("a", b"x")
    server.advance(31.0)
    assert server.fault is not None


def test_a_body_which_waits_behind_another_s_inspection_is_not_idle__MM_32() -> None:
    server = server_with("json;" + BATCH + "9", idle_close=10)
    receive(server, message(1, LARGE) + message(2)[:-1], 5.0)
    server.advance(15.0)
    assert (server.fault, due(server, 15.0)[1]) == (None, 25.0)
    while server.unfinished:
        server.receive(b"", 16.0)
    server.advance(26.0)
    assert server.fault is not None
    assert server.fault.reason == "idle-timeout"


def test_what_comes_while_a_body_is_inspected_counts_as_held__NB_02() -> None:
    server = server_with("json;" + BATCH + "9")
    receive(server, message(1, LARGE))
    assert server.unfinished
    before = server.held
    receive(server, message(2, b"x" * 200))
    assert server.held >= before + 200


def test_a_vendors_extension_may_inspect_in_slices_too() -> None:
    """MM-10, MM-28"""

    class Counting:
        done = False
        left = 3

        def go_on(self, steps: int) -> int:
            self.left -= 1
            if self.left < 0:
                raise ValueError("one too many")
            self.done = self.left == 1
            return 0

    class Slow(Extension):
        name = "x-slow"
        inspections = 0

        def inspection(self, body: bytes) -> Any:
            return Counting()

    known = STANDARD.plus(Slow)
    offered = proposal("x-slow;json;" + BATCH + "9", known=known)
    _, server = pair(offered, Proposal(known=known))
    events = receive(server, message(1, b"1") + message(2, b"no"))
    assert server.unfinished
    events += rest(server)
    assert bodies(events) == [b"1"]
    assert server.counters.bad_payloads == 1
    broken(server, b"\xff")


class Turns(Case):
    """On Twisted: each slice is a turn of its own, and others are served between them."""

    def turns(self) -> None:
        """All turns of the reactor which are asked for now."""
        self.clock.advance(0)

    def test_others_are_served_while_a_body_is_checked(self) -> None:
        """HO-15"""
        factory = self.server_factory(sink=SafeSink())
        server, transport = self.connect(factory, "json;ack")
        other, beside = self.connect(factory, "json;ack")
        server.dataReceived(message(1, LARGE))
        self.assertEqual(transport.producerState, "paused")
        other.dataReceived(message(1, b"1"))
        self.assertEqual(beside.value(), ack(1, 2))
        self.assertEqual(transport.value(), b"")
        self.turns()
        self.assertEqual(transport.value(), ack(1, 2))
        self.assertEqual(transport.producerState, "producing")
        self.lose(server, other)

    def test_a_half_closed_peer_gets_the_ack_of_a_large_body(self) -> None:
        """HO-06, HO-15"""
        server, transport = self.connect(self.server_factory(sink=SafeSink()), "json;ack")
        server.dataReceived(message(1, LARGE) + message(2, b"2"))
        server.readConnectionLost()
        self.assertFalse(transport.disconnecting)
        self.turns()
        self.assertEqual(transport.value(), ack(2, 2))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_a_stopping_server_waits_for_no_verdict(self) -> None:
        """HO-15: the peer keeps what is not acknowledged"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "json;batch-ack")
        server.dataReceived(message(1, b"1") + message(2, LARGE))
        factory.drain()
        self.turns()
        self.assertFalse(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), ack(1, 2))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_a_lost_connection_leaves_nothing_on_the_clock(self) -> None:
        """HO-15"""
        server, _ = self.connect(self.server_factory(), "json;ack")
        server.dataReceived(message(1, LARGE))
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])


def test_events_of_one_call_are_one_batch() -> None:
    """The messages behind a body come in one event, as they came in one read"""
    server = server_with("json;" + BATCH + "9")
    events = receive(server, message(1, LARGE) + message(2, b"2") + message(3, b"3"))
    events += rest(server)
    assert [type(event) for event in events] == [MessagesReceived]


def test_a_large_body_is_counted_like_a_small_one__MM_22__NB_02() -> None:
    """MM-28: whether it is accepted or refused; its event has the octets of its properties, too."""
    server = server_with("json;" + BATCH + "9")
    properties = b"a:jonas;b:N1;"
    receive(server, message(1, BAD, properties=properties))
    assert rest(server) == []
    assert (server.counters.untyped, server.counters.bad_payloads) == (1, 1)
    receive(server, message(2, LARGE, properties=properties))
    (event,) = rest(server)
    assert server.counters.untyped == 2
    assert event.octets == len(LARGE) + len(properties)
