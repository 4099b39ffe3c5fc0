"""Extensions: vendors' own, properties, json, dotnet."""

from __future__ import annotations

import pytest

from tests.micromsg2.streams import (
    BATCH,
    Error,
    ExtensionFrame,
    ack,
    bodies,
    broken,
    client_with,
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
    send,
    server_with,
    written,
)
from twisted_msgproto.micromsg2 import STANDARD, Extension, Proposal
from twisted_msgproto.micromsg2.machine import Client, Server
from twisted_msgproto.micromsg2.wire.texts import BadText
from twisted_msgproto.testing import splits

# ── properties (MM-22) ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", [b"novalue", b"A:N1;", b"\xff:N1;", b":N1;", b"a b:N1;"])
@pytest.mark.parametrize("extension", ["", "json", BATCH + "9"])
def test_properties_which_do_not_parse_break_the_protocol(text: bytes, extension: str) -> None:
    """MM-01, MM-22: what came before is given out, for every split"""
    octets = message(1, b"1") + message(2, b"2", "a", b"k:N1;") + message(3, b"3", "a", text)
    for chunks in splits(octets, 12):
        server = server_with(extension)
        found = flatten(event for chunk in chunks for event in receive(server, chunk))
        assert [row[3] for row in found[:-1]] == [b"1", b"2"]
        assert found[-1][:2] == ("fault", "protocol-error")


# ── extension frames (MM-16, MM-33) ─────────────────────────────────────────────────────────────


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
    offered = offers("x-trace:level=3;batch-ack")
    return pair(Proposal(required=offered, known=known), Proposal(known=known))


def test_a_vendors_extension_has_frames_fields_and_commands() -> None:
    """MM-10, MM-15, MM-16"""
    client, server = traced()
    assert [side.extensions[0].properties for side in (client, server)] == [{"level": "3"}] * 2
    send(client, "a", b"1", notes={"x-trace": "me"})
    send(client, "a", b"2")
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
    for chunks in splits(octets, 12):
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


def test_an_extension_judges_whole_bodies_alone() -> None:
    """MM-28, MM-31: it is not asked about the last part of one"""
    asked: list[bytes] = []

    class Judge(Extension):
        name = "x-judge"

        def objection(self, body: bytes) -> str | None:
            asked.append(body)
            return None

    known = STANDARD.plus(Judge)
    offered = offers("x-judge")
    _, server = pair(Proposal(required=offered, known=known), Proposal(known=known))
    found = receive(server, parts((1, b"a"), (1, b"b")) + message(2, b"c"))
    assert bodies(found) == asked == [b"ab", b"c"]


def test_json_is_checked_only_up_to_a_size() -> None:
    """HO-15, MM-28, MM-32: what is larger is carried as it is"""
    server = server_with("json", checked_json_bytes=10)
    assert bodies(receive(server, message(1, b'"12345678"'))) == [b'"12345678"']
    assert bodies(receive(server, message(2, b'"123456789"'))) == [b'"123456789"']
    assert bodies(receive(server, message(3, b"not json, too"))) == [b"not json, too"]
    assert receive(server, message(4, b"not json")) == []


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
    for chunks in splits(octets, 12):
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
        send(client, "a", b"", notes={"dotnet": note})
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
    send(client, "a", b"", notes={"dotnet": "A"})
    with pytest.raises(ValueError, match="full"):
        send(client, "a", b"", notes={"dotnet": "B"})
    client.outputs()
    receive(client, ack(1, index=2))
    send(client, "a", b"", notes={"dotnet": "B"})
    assert isinstance(written(client)[0], ExtensionFrame)


def test_a_type_has_at_most_512_bytes() -> None:
    """MM-29: test_acks.py has those which break the protocol"""
    assert receive(server_with("dotnet"), encode_extension(1, b"a" * 512)) == []
    client = client_with("dotnet")
    send(client, "a", b"", notes={"dotnet": "a" * 512})
    with pytest.raises(BadText):
        send(client, "a", b"", notes={"dotnet": "a" * 513})
