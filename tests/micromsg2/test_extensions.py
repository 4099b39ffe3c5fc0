"""Extensions: vendors' own, properties, json with large bodies in slices (HO-15), dotnet."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from tests.doubles import due
from tests.micromsg2.cases import Case
from tests.micromsg2.streams import (
    BATCH,
    Error,
    ExtensionFrame,
    Session,
    ack,
    bodies,
    broken,
    client_with,
    cuts,
    encode_command,
    encode_extension,
    fields_of,
    flatten,
    message,
    messages,
    offers,
    pair,
    parts,
    proposal,
    pump,
    receive,
    safe,
    said,
    server_with,
    written,
)
from twisted_msgproto.micromsg2 import STANDARD, Extension, Proposal
from twisted_msgproto.micromsg2.machine import Client, Server
from twisted_msgproto.micromsg2.wire.texts import BadText
from twisted_msgproto.testing import SafeSink

# ── properties (MM-22) ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", [b"novalue", b"A:N1;", b"\xff:N1;", b":N1;", b"a b:N1;"])
@pytest.mark.parametrize("extension", ["", "json", BATCH + "9"])
def test_properties_which_do_not_parse_break_the_protocol(text: bytes, extension: str) -> None:
    """MM-01, MM-22: what came before is given out, for every split"""
    octets = message(1, b"1") + message(2, b"2", "a", b"k:N1;") + message(3, b"3", "a", text)
    for chunks in cuts(octets):
        server = server_with(extension)
        found = flatten(event for chunk in chunks for event in receive(server, chunk))
        assert [row[3] for row in found[:-1]] == [b"1", b"2"]
        assert found[-1][:2] == ("fault", "protocol-error")


# ── extension frames (MM-16, MM-33) ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("index", [0, 3, 255])
def test_an_extension_outside_the_list_is_a_protocol_error(index: int) -> None:
    """MM-16"""
    broken(server_with("json;xml"), encode_extension(index, b""))


@pytest.mark.parametrize("name", ["json", "xml", "protobuf", "pub-sub"])
def test_a_frame_of_an_extension_which_has_none_is_ignored_and_counted(name: str) -> None:
    """MM-33"""
    server = server_with(name)
    assert receive(server, encode_extension(1, b"abc")) == []
    assert server.counters.ignored_frames == 1


class Trace(Extension):
    """A vendor's: a frame before each message says who asked for it, another is for the app."""

    name = "x-trace"
    commands = frozenset({"x-mark"})
    has_frames = True
    annotates = True
    _mark = ""

    def frame_received(self, payload: bytes) -> str | None:
        if payload == b"bad":
            raise BadText("bad trace")
        if payload.startswith(b"app:"):
            return payload[4:].decode()
        self._mark = payload.decode()
        return None

    def command_received(self, name: str, parameters: object) -> None:
        if not parameters:
            raise BadText("nothing to mark")

    def frame_before(self, note: str | None) -> bytes | None:
        return None if note is None else note.encode()

    def fields(self) -> dict[str, str]:
        return {"x-trace": self._mark}


def traced() -> tuple[Client, Server]:
    known = STANDARD.plus(Trace)
    return pair(Proposal(required=offers("x-trace;batch-ack"), known=known), Proposal(known=known))


def test_a_vendors_extension_has_frames_fields_and_commands() -> None:
    """MM-10, MM-15, MM-16"""
    client, server = traced()
    client.send("a", b"1", notes={"x-trace": "me"})
    client.send("a", b"2")
    client.send_extension("x-trace", b"app:hello")
    client.send_command("x-mark", {"a": "b"})
    client.send_command("x-mark", {})
    client_events, server_events = pump(client, server)
    assert fields_of(server_events) == [{"x-trace": "me"}, {"x-trace": "me"}]
    assert flatten(server_events[1:]) == [
        ("ExtensionReceived", "x-trace", "hello"),
        ("CommandReceived", "x-mark", {"a": "b"}),
    ]
    assert [event.text for event in client_events] == ["bad-command: x-mark: nothing to mark"]
    broken(server, encode_extension(1, b"bad"))


class Once(Extension):
    """A vendor's: what its frame says holds for the next message only."""

    name = "x-once"
    has_frames = True
    annotates = True
    _said = ""

    def frame_received(self, payload: bytes) -> None:
        self._said = payload.decode()

    def fields(self) -> dict[str, str]:
        said, self._said = self._said, ""
        return {"x-once": said} if said else {}


def test_an_extension_is_asked_for_each_message() -> None:
    """MM-10: for every split of the stream"""
    octets = (
        encode_extension(1, b"a")
        + messages(1, 3)
        + encode_extension(1, b"b")
        + message(4, continued=True)
        + message(4)
        + message(5)
    )
    known = STANDARD.plus(Once)
    for chunks in cuts(octets):
        _, server = pair(
            Proposal(required=offers("x-once;batch-ack"), known=known), Proposal(known=known)
        )
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert fields_of(events) == [{"x-once": "a"}, {}, {}, {"x-once": "b"}, {}]


# ── json (MM-28) ────────────────────────────────────────────────────────────────────────────────

BAD_JSON = [b"", b"{", b"nope", b"\xff", b"[NaN]", b"[Infinity]", b'{"a":}', b"[" * 100_000]


@pytest.mark.parametrize("body", BAD_JSON)
def test_a_body_which_is_not_json_is_settled_by_refusal(body: bytes) -> None:
    """MM-28: the ERROR goes out before the ack which covers it; not delivered; counted"""
    server = server_with("json;" + BATCH + "3")
    octets = message(1, b"{}") + message(2, body) + message(3, b'[1,"\xc3\xa4"]')
    events = receive(server, octets)
    assert bodies(events) == [b"{}", b'[1,"\xc3\xa4"]']
    safe(server, events)
    error, found = written(server)
    assert isinstance(error, Error)
    assert error.text.startswith("bad-payload: 2: ")
    assert found == ExtensionFrame(2, b"\0\3")
    assert server.counters.bad_payloads == 1
    assert server.fault is None


def test_refused_bodies_are_settled_before_a_fault_closes() -> None:
    """MM-28, MM-33: their ack goes out, though a fault follows in the same read"""
    server = server_with("json;" + BATCH + "9")
    receive(server, message(1, b"no") + b"\xff")
    refused, acked, error = written(server)
    assert isinstance(refused, Error) and refused.code == "bad-payload"
    assert acked == ExtensionFrame(2, b"\0\1")
    assert isinstance(error, Error) and error.code == "protocol-error"


def test_a_payload_of_several_parts_is_judged_as_a_whole() -> None:
    """MM-28, MM-31"""
    server = server_with("json")
    assert bodies(receive(server, parts((1, b"[1"), (1, b",2]")))) == [b"[1,2]"]
    assert bodies(receive(server, parts((2, b"[1]"), (2, b",2]")))) == []
    assert said(server)[0].startswith("bad-payload: 2: ")


def test_json_is_checked_only_up_to_a_size() -> None:
    """HO-15, MM-28, MM-32: what is larger is carried as it is"""
    server = server_with("json", checked_json_bytes=10)
    assert bodies(receive(server, message(1, b'"12345678"'))) == [b'"12345678"']
    assert bodies(receive(server, message(2, b'"123456789"'))) == [b'"123456789"']
    assert bodies(receive(server, message(3, b"not json, too"))) == [b"not json, too"]
    assert receive(server, message(4, b"not json")) == []


@pytest.mark.parametrize(
    "body", [b"[" * 512 + b"]" * 512, b"9" * 4301, b"-1e999", b'{"a":1,"a":2}', b'["\\ud800"]']
)
def test_whatever_is_json_is_taken(body: bytes) -> None:
    """HO-15, MM-28"""
    assert bodies(receive(server_with("json"), message(1, body))) == [body]


# ── dotnet (MM-29) ──────────────────────────────────────────────────────────────────────────────


def test_a_type_holds_until_the_next_one() -> None:
    """MM-29: one batch all the same, and a type frame counts in no window"""
    server = server_with("dotnet;" + BATCH + "3")
    octets = (
        message(1)
        + encode_extension(1, b"A.B, C")
        + message(2)
        + message(3)
        + encode_extension(1, "Ä".encode())
        + message(4)
    )
    for chunks in cuts(octets):
        fresh = server_with("dotnet;" + BATCH + "3")
        events = [event for chunk in chunks for event in receive(fresh, chunk)]
        assert fields_of(events) == [
            {},
            {"dotnet-type": "A.B, C"},
            {"dotnet-type": "A.B, C"},
            {"dotnet-type": "Ä"},
        ]
    assert len(receive(server, octets)) == 1
    assert server.unacknowledged == 4


def test_an_empty_type_ends_the_one_before() -> None:
    """HO-29: a broker says so of a message which another sender left untyped"""
    client, server = pair(proposal("dotnet;" + BATCH + "9"))
    for note in ("", "A", "", "", "B"):
        client.send("a", b"", notes={"dotnet": note})
    _, events = pump(client, server)
    assert fields_of(events) == [
        {},
        {"dotnet-type": "A"},
        {},
        {},
        {"dotnet-type": "B"},
    ]
    (batch,) = events
    assert batch.notes == [{}, {"dotnet": "A"}, {}, {}, {"dotnet": "B"}]


@pytest.mark.parametrize("agreed", ["", "dotnet", "json"])
def test_a_property_is_no_annotation__RD_45(agreed: str) -> None:
    """HO-29: what a sender's properties say is not what an extension says, agreed or not"""
    server = server_with(agreed)
    forged = b"dotnet-type:Tforged;k:N1;"
    (batch,) = receive(server, message(1, b"{}", properties=forged) * 2)
    assert batch.fields == [{"property:dotnet-type": "forged", "k": "1"}] * 2
    assert not any(batch.notes)
    events = receive(server, message(3, b"{}"[:1], properties=forged, continued=True))
    (batch,) = [*events, *receive(server, message(3, b"{}"[1:]))]
    assert batch.fields == [{"property:dotnet-type": "forged", "k": "1"}]


def test_a_vendors_annotation_is_not_forged_by_a_property__RD_45() -> None:
    _, server = pair(Proposal(), Proposal(known=STANDARD.plus(Trace)))
    (batch,) = receive(server, message(1, properties=b"x-trace:T1;"))
    assert batch.fields == [{"property:x-trace": "1"}]


def test_a_type_is_sent_only_with_its_message() -> None:
    """MM-29: a message which the window refuses says nothing about types"""
    client = client_with("dotnet;" + BATCH + "1")
    client.send("a", b"", notes={"dotnet": "A"})
    with pytest.raises(ValueError, match="full"):
        client.send("a", b"", notes={"dotnet": "B"})
    client.outputs()
    receive(client, ack(1, index=2))
    client.send("a", b"", notes={"dotnet": "B"})
    assert isinstance(written(client)[0], ExtensionFrame)


@pytest.mark.parametrize("payload", [b"a" * 513, b"\xff"])
def test_a_type_has_at_most_512_bytes_of_utf_8(payload: bytes) -> None:
    """MM-29"""
    broken(server_with("dotnet"), encode_extension(1, payload))
    server = server_with("dotnet")
    assert receive(server, encode_extension(1, b"a" * 512)) == []
    client = client_with("dotnet")
    with pytest.raises(BadText):
        client.send("a", b"", notes={"dotnet": "a" * 513})


TOKENS = 70_000
LARGE = b"[" + b"[[[[]]]]," * (TOKENS // 9) + b"1]"
"""JSON of which nearly every byte is a token which has to be looked at by itself."""

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
    assert server.unfinished and not server.no_partial_input
    assert server.input_weight >= len(LARGE)
    calls = 1
    while server.unfinished:
        events += receive(server, b"")
        calls += 1
    assert calls > TOKENS / 25_000, "which take milliseconds each"
    assert bodies(events) == [b"1", LARGE, b"3"]
    assert server.no_partial_input
    assert server.input_weight == 0
    safe(server, events)
    server.drain(0.0)
    assert written(server) == [ExtensionFrame(2, b"\0\3")]


def test_however_it_is_cut_the_events_say_the_same_in_the_same_order() -> None:
    """MM-28: also when bytes come while a body is inspected"""
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
    assert [row[0] for row in expected] == [1, "CommandReceived", 4, 5, 6]
    assert [type(frame) for frame in answers] == [Error] * 3
    places = sorted(random.Random(3).sample(range(1, len(octets)), 12))
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
        assert server.input_weight == 0
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
    before = server.input_weight
    receive(server, message(2, b"x" * 200))
    assert server.input_weight >= before + 200


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


def test_a_large_body_is_counted_like_a_small_one__MM_22__NB_02() -> None:
    """MM-28: whether it is accepted or refused; its event has the bytes of its properties, too."""
    server = server_with("json;" + BATCH + "9")
    properties = b"a:jonas;b:N1;"
    receive(server, message(1, BAD, properties=properties))
    assert rest(server) == []
    assert (server.counters.untyped, server.counters.bad_payloads) == (1, 1)
    receive(server, message(2, LARGE, properties=properties))
    (event,) = rest(server)
    assert server.counters.untyped == 2
    assert event.nbytes == len(LARGE) + len(properties)
