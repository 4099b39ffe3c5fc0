"""Sessions: numbers, commands, errors, time, the table, every split."""

from __future__ import annotations

import random
import struct

import pytest

from tests.doubles import due
from tests.micromsg2.layouts import (
    Error,
    ExtensionFrame,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
)
from tests.micromsg2.sessions import BATCH, at, broken, parts, receive
from tests.micromsg2.streams import (
    ack,
    acks_written,
    bodies,
    client_with,
    cuts,
    flatten,
    message,
    messages,
    pair,
    proposal,
    pump,
    safe,
    said,
    server_with,
    written,
)
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.micromsg2.machine import (
    CommandReceived,
    ErrorReceived,
    MessagesAcknowledged,
    MessagesReceived,
)

# ── numbers (MM-12, MM-13) ──────────────────────────────────────────────────────────────────────


def test_a_message_has_its_columns() -> None:
    """MM-12, MM-22, MM-23"""
    server = server_with()
    (event,) = receive(server, message(9, b"hello", "topic/a", b"k:N1;who:Tme%20too;"))
    assert isinstance(event, MessagesReceived)
    assert event.sequences == [9]
    assert event.destinations == ["topic/a"]
    assert event.bodies == [b"hello"]
    assert event.fields == [{"k": "1", "who": "me too"}]
    assert event.texts == [b"k:N1;who:Tme%20too;"]
    assert event.properties[0]["k"].content == 1
    assert event.octets == len(message(9, b"hello", "topic/a", b"k:N1;who:Tme%20too;"))
    assert server.counters.received == 1


def test_each_direction_counts_from_1_on_its_own() -> None:
    """MM-13"""
    client, server = pair(proposal(BATCH + "3"))
    assert [client.send("a", b"") for _ in range(2)] == [1, 2]
    assert server.send("a", b"") == 1
    client_events, server_events = pump(client, server)
    assert [event.sequences for event in server_events] == [[1, 2]]  # type: ignore[attr-defined]
    assert [event.sequences for event in client_events] == [[1]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("extension", ["ack", "batch-ack"])
@pytest.mark.parametrize("sequence", [0, 2, 3, 65535])
def test_the_first_number_is_1(extension: str, sequence: int) -> None:
    """MM-13: anything else is neither new nor a repeat"""
    broken(server_with(extension), message(sequence))


@pytest.mark.parametrize("sequence", [0, 7, 65535])
def test_a_number_out_of_order_is_a_protocol_error(sequence: int) -> None:
    """MM-13: what came before it is given out"""
    server = server_with(BATCH + "10")
    events = broken(server, messages(1, 5) + message(sequence))
    assert bodies(events) == [b"x"] * 5


def test_numbers_wrap_when_they_are_read() -> None:
    """MM-13, MM-21: the source's example, with 65535 where it repeats 65534"""
    server = server_with(BATCH + "5")
    at(server, 65533)
    octets = b"".join(message(number) for number in (65534, 65535, 1, 2, 3))
    for chunks in ([octets], [octets[i : i + 1] for i in range(len(octets))]):
        fresh = server_with(BATCH + "5")
        at(fresh, 65533)
        events = [event for chunk in chunks for event in receive(fresh, chunk)]
        assert [row[0] for row in flatten(events)] == [65534, 65535, 1, 2, 3]  # type: ignore[index]
        safe(fresh, events)
        assert acks_written(fresh) == [3]
    receive(server, octets)
    broken(server, message(0))


def test_an_ack_covers_messages_across_the_wrap() -> None:
    """MM-21: the source's example: one ack for 3 covers 65534, 65535, 1, 2 and 3"""
    client, server = pair(proposal(BATCH + "5"))
    for first in range(0, 65533, 5):
        client.send_run(encode_address("a"), [b""] * min(5, 65533 - first))
        octets = client.outputs()
        safe(server, receive(server, octets))
        server.drain(0.0)
        receive(client, server.outputs())
    assert client.in_flight == 0
    assert client.send_run(encode_address("a"), [b""] * 5) == [65534, 65535, 1, 2, 3]
    client.outputs()
    (event,) = receive(client, ack(3))
    assert event == MessagesAcknowledged([65534, 65535, 1, 2, 3])
    assert client.in_flight == 0


def test_without_acks_numbers_are_carried_and_not_looked_at() -> None:
    """MM-13: repeats are delivered"""
    server = server_with()
    events = receive(server, b"".join(message(number) for number in (5, 5, 0, 65535, 9)))
    assert [row[0] for row in flatten(events)] == [5, 5, 0, 65535, 9]  # type: ignore[index]
    safe(server, events)
    assert server.outputs() == b""
    assert server.unacknowledged == 0
    assert server.counters.repeats == 0


# ── commands (MM-15) ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("extension", "name"), [("", "subscribe"), ("pub-sub", "fly")])
def test_an_unknown_command_is_answered_and_the_connection_stays(extension: str, name: str) -> None:
    """MM-15, MM-25"""
    server = server_with(extension)
    assert receive(server, encode_command(name, {"a": "b"})) == []
    assert said(server) == [f"unknown-command: {name}"]
    assert server.counters.unknown_commands == 1
    assert bodies(receive(server, message(1))) == [b"x"]


def test_a_known_command_is_given_out() -> None:
    """MM-15, MM-25: in any case"""
    server = server_with("pub-sub")
    octets = b"\1\x17SUBSCRIBE;Destination=a"
    assert receive(server, octets) == [CommandReceived("subscribe", {"destination": "a"})]


@pytest.mark.parametrize("payload", [b"", b"a b", b"subscribe;x", b"\xff"])
def test_a_command_which_does_not_parse_breaks_the_protocol(payload: bytes) -> None:
    """MM-01, MM-15"""
    broken(server_with("pub-sub"), bytes((1, len(payload))) + payload)


# ── errors (MM-17, MM-33) ───────────────────────────────────────────────────────────────────────


def test_a_received_error_goes_to_the_application_and_closes_nothing() -> None:
    """MM-33"""
    server = server_with()
    events = receive(server, message(1) + encode_error("oops: dear") + message(2))
    assert [type(event) for event in events] == [
        MessagesReceived,
        ErrorReceived,
        MessagesReceived,
    ]
    assert events[1] == ErrorReceived("oops", "oops: dear")
    assert server.established
    assert server.counters.errors == 1


def test_an_error_of_ours_begins_with_a_code_and_is_bounded() -> None:
    """MM-17"""
    server = server_with()
    server.send_error("my-code", "x" * 500)
    (text,) = said(server)
    assert text.startswith("my-code: xxx")
    assert len(text) == 200
    assert server.established
    server.break_off("shutdown", "bye")
    assert said(server) == ["shutdown: bye"]
    server.break_off("shutdown", "again")
    assert server.outputs() == b""


@pytest.mark.parametrize(("more", "end"), [(-1, "x"), (0, "x"), (1, "…")])
def test_only_an_error_above_the_bound_is_cut(more: int, end: str) -> None:
    """MM-17"""
    server = server_with()
    server.send_error("code", "x" * (200 - len("code: ") + more))
    (text,) = said(server)
    assert (len(text), text[-1]) == (min(200 + more, 200), end)


@pytest.mark.parametrize("flags", [3, 5, 6, 7, 32, 64, 128, 17, 18, 20])
def test_bad_flags_break_the_protocol(flags: int) -> None:
    """MM-11, MM-33: the ERROR is written, what came before is given out"""
    server = server_with()
    assert bodies(broken(server, message(1) + bytes((flags,)) + bytes(20))) == [b"x"]


def test_what_is_safe_is_acknowledged_before_a_fault_closes() -> None:
    """MM-19, MM-33: fewer messages to send again"""
    server = server_with(BATCH + "9")
    safe(server, receive(server, messages(1, 3)))
    receive(server, b"\xff")
    frames = written(server)
    assert frames[0] == ExtensionFrame(1, b"\0\3")
    assert isinstance(frames[1], Error)


# ── time (MM-32) ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("octets", [b"\0", message(1, continued=True)])
def test_a_payload_which_stays_unfinished_is_given_up(octets: bytes) -> None:
    """MM-32: mid-frame and mid-payload"""
    server = server_with()
    receive(server, octets, 10.0)
    assert server.held == 1
    assert due(server, 10.0)[1] == 130.0
    server.paused(20.0)
    assert due(server, 200.0)[1] is None
    server.resumed(200.0)
    assert due(server, 319.0)[1] == 320.0
    assert due(server, 320.0)[1] is None
    assert server.fault is not None
    assert server.fault.reason == "idle-timeout"
    assert said(server) == [server.fault.text]


def test_a_quiet_connection_may_stay() -> None:
    """MM-32: between frames there is no hurry"""
    server = server_with()
    receive(server, message(1), 10.0)
    assert due(server, 10.0)[1] is None
    server.paused(20.0)
    server.resumed(30.0)
    assert "idle" not in server.deadlines


def test_a_peer_which_never_acknowledges_is_left_if_the_limit_says_so() -> None:
    """MM-32"""
    patient = client_with(BATCH + "2")
    patient.send("a", b"")
    assert due(patient, 0.0)[1] is None
    client = client_with(BATCH + "2", ack_wait=5)
    assert due(client, 0.0)[1] is None
    client.send_run(encode_address("a"), [b"", b""], now=10.0)
    assert due(client, 10.0)[1] == 15.0
    receive(client, ack(1), 12.0)
    assert due(client, 15.0)[1] == 17.0
    client.paused(16.0)
    assert due(client, 30.0)[1] is None
    client.resumed(31.0)
    assert due(client, 31.0)[1] == 36.0
    client.outputs()
    client.advance(36.0)
    assert client.fault is not None
    assert client.fault.reason == "ack-timeout"


# ── the table, exhaustively ─────────────────────────────────────────────────────────────────────


# ── every split, and fuzz ───────────────────────────────────────────────────────────────────────


def session_stream(seed: int) -> bytes:
    """Frames which make sense, mostly, after a handshake with json, dotnet, pub-sub, batch-ack."""
    rng = random.Random(seed)
    octets, number = b"", 0

    def plain() -> bytes:
        nonlocal number
        number += 1
        text = rng.choice([b"", b"", b"k:N1;", b"a:jonas;b:D1.5;"])
        return message(number, rng.choice([b"1", b"{}", b"no", b'"%s"' % (b"x" * 300)]), "q", text)

    def in_parts() -> bytes:
        nonlocal number
        number += 1
        frames = [(number, b"[1"), (number, b",2"), (number, b"]")]
        if rng.random() < 0.5:
            frames = [(number + row, frame[1]) for row, frame in enumerate(frames)]
            number += 2
        return parts(*frames)

    choices = [
        plain,
        plain,
        plain,
        in_parts,
        lambda: message(max(1, number), b"1"),
        lambda: encode_extension(2, b"T%d" % number),
        lambda: ack(rng.choice([1, 2, 3, 9]), index=4),
        lambda: encode_command(rng.choice(["subscribe", "fly"]), {"destination": "a"}),
        lambda: encode_error("e"),
    ]
    for _ in range(rng.randint(1, 30)):
        octets += rng.choice(choices)()
    for _ in range(rng.choice([0, 0, 1, 2])):
        place = rng.randrange(len(octets))
        kind = rng.random()
        if kind < 0.4:
            octets = octets[:place] + rng.randbytes(1) + octets[place + 1 :]
        elif kind < 0.7:
            octets = octets[:place] + octets[place + rng.randint(1, 9) :]
        else:
            octets = octets[:place] + struct.pack(">I", 0xFFFFFFFF) + octets[place:]
    return octets


def play(chunks: list[bytes]) -> tuple[list[object], list[str], int]:
    """Events, the ERRORs which were written, and the last ack, when all becomes safe at the end."""
    server = server_with("json;dotnet;pub-sub;" + BATCH + "50")
    server.send_run(encode_address("a"), [b"1"] * 4)
    server.outputs()
    events = [event for chunk in chunks for event in receive(server, chunk)]
    assert not any(isinstance(event, Fault) for event in events[:-1])
    output = written(server)
    safe(server, events)
    server.drain(0.0)
    output += written(server)
    errors = [frame.text for frame in output if isinstance(frame, Error)]
    acks = [frame.payload for frame in output if isinstance(frame, ExtensionFrame)]
    # After a fault nothing is acknowledged any more, so there it matters what was safe in time.
    last = int.from_bytes(acks[-1], "big") if acks and server.fault is None else 0
    return flatten(events), errors, last


@pytest.mark.parametrize("seed", range(80))
def test_every_split_of_a_session_gives_the_same(seed: int) -> None:
    """MM-11 … MM-33: good and damaged streams, and what is written in answer"""
    octets = session_stream(seed)
    whole = play([octets])
    for chunks in cuts(octets, seed, 3):
        assert play(chunks) == whole


def test_what_never_will_be_safe_ends_the_session_without_an_ack() -> None:
    """MM-19"""
    _, server = pair(proposal(BATCH + "10"))
    places = []
    for number in (1, 2, 3):
        (event,) = receive(server, message(number))
        assert isinstance(event, MessagesReceived)
        places.append(event.place)
    server.made_safe(places[0], 0.0)
    server.not_safe(places[1], 0.0)
    assert server.finished
    assert said(server) == ["failed: 2"]
    with pytest.raises(ValueError, match="no event had the place"):
        server.not_safe(places[1], 0.0)
