"""Sessions: numbers, windows, acks, parts, extensions, errors, time."""

from __future__ import annotations

import random
import struct

import pytest

from tests.micromsg2.streams import (
    ack,
    acks_written,
    bodies,
    client_with,
    cuts,
    fault,
    fields_of,
    flatten,
    handshake,
    limits,
    message,
    messages,
    offers,
    pair,
    proposal,
    pump,
    safe,
    said,
    server_with,
    written,
)
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.micromsg2.machine import (
    CLIENT,
    SERVER,
    STANDARD,
    Client,
    CommandReceived,
    ErrorReceived,
    Event,
    Extension,
    ExtensionReceived,
    MessagesAcknowledged,
    MessagesReceived,
    Proposal,
    Server,
    Session,
    Side,
)
from twisted_msgproto.micromsg2.wire import (
    BadText,
    Command,
    Decoder,
    Error,
    ExtensionFrame,
    Handshake,
    Messages,
    Part,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
)

BATCH = "batch-ack:max-count="


def receive(session: Session, octets: bytes, now: float = 0.0) -> list[Event]:
    return session.receive_data(octets, now)


def broken(session: Session, octets: bytes, code: str = "protocol-error") -> list[Event]:
    """The events of a read which breaks the protocol: an ERROR is written, then silence."""
    events = receive(session, octets)
    found = fault(events)
    assert found.reason == code, found
    assert session.fault is found
    assert session.state is Side.FAILED
    assert said(session)[-1] == found.text
    assert found.text.startswith(f"{code}: ")
    assert receive(session, message(1)) == []
    assert session.data_to_send() == b""
    return events


def at(session: Session, received: int) -> None:
    """Bring a session to where ``received`` messages have come, all safe and acknowledged."""
    step = 1000
    for first in range(0, received, step):
        numbers = range(first, min(first + step, received))
        octets = b"".join(message(number % 65535 + 1, b"") for number in numbers)
        safe(session, receive(session, octets))
    session.drain()
    session._draining = False
    session.data_to_send()


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


def test_a_read_gives_one_event() -> None:
    server = server_with(BATCH + "10")
    (event,) = receive(server, messages(1, 5))
    assert isinstance(event, MessagesReceived)
    assert event.place == 5


def test_each_direction_counts_from_1_on_its_own() -> None:
    """MM-13"""
    client, server = pair(proposal(BATCH + "3"))
    assert [client.send("a", b"") for _ in range(2)] == [1, 2]
    assert server.send("a", b"") == 1
    client_events, server_events = pump(client, server)
    assert [event.sequences for event in server_events] == [[1, 2]]  # type: ignore[attr-defined]
    assert [event.sequences for event in client_events] == [[1]]  # type: ignore[attr-defined]


def test_65535_is_followed_by_1() -> None:
    """MM-13: 0 is never used"""
    client = client_with()
    numbers = client.send_run(encode_address("a"), [b""] * 65537)
    assert numbers[:2] == [1, 2]
    assert numbers[65533:] == [65534, 65535, 1, 2]
    assert 0 not in numbers


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


def test_0_after_65535_is_a_protocol_error() -> None:
    """MM-13"""
    server = server_with(BATCH + "5")
    at(server, 65535)
    broken(server, message(0))


def test_an_ack_covers_messages_across_the_wrap() -> None:
    """MM-21: the source's example: one ack for 3 covers 65534, 65535, 1, 2 and 3"""
    client, server = pair(proposal(BATCH + "5"))
    for first in range(0, 65533, 5):
        client.send_run(encode_address("a"), [b""] * min(5, 65533 - first))
        octets = client.data_to_send()
        safe(server, receive(server, octets))
        server.drain()
        receive(client, server.data_to_send())
    assert client.in_flight == 0
    assert client.send_run(encode_address("a"), [b""] * 5) == [65534, 65535, 1, 2, 3]
    client.data_to_send()
    (event,) = receive(client, ack(3))
    assert event == MessagesAcknowledged([65534, 65535, 1, 2, 3])
    assert client.in_flight == 0


def test_without_acks_numbers_are_carried_and_not_looked_at() -> None:
    """MM-13: repeats are delivered"""
    server = server_with()
    events = receive(server, b"".join(message(number) for number in (5, 5, 0, 65535, 9)))
    assert [row[0] for row in flatten(events)] == [5, 5, 0, 65535, 9]  # type: ignore[index]
    safe(server, events)
    assert server.data_to_send() == b""
    assert server.unacknowledged == 0
    assert server.counters.repeats == 0


# ── repeats (MM-13) ─────────────────────────────────────────────────────────────────────────────


def test_a_repeat_is_not_delivered_and_is_answered_if_an_ack_covers_it() -> None:
    """MM-13: once a read, with the newest ack"""
    server = server_with(BATCH + "3")
    events = receive(server, messages(1, 4))
    safe(server, events)
    assert acks_written(server) == [4]
    assert receive(server, messages(2, 3)) == []
    assert acks_written(server) == [4]
    assert server.counters.repeats == 3
    assert bodies(receive(server, messages(3, 3))) == [b"x"]


def test_a_repeat_which_is_not_acknowledged_yet_gets_nothing() -> None:
    """MM-13: its ack follows once it is safe"""
    server = server_with(BATCH + "3")
    events = receive(server, messages(1, 2))
    assert receive(server, messages(1, 2)) == []
    assert server.data_to_send() == b""
    safe(server, events)
    assert server.data_to_send() == b""
    safe(server, receive(server, message(3)))
    assert acks_written(server) == [3]


@pytest.mark.parametrize(("count", "known"), [(3, 1024), (2000, 2000)])
def test_the_last_1024_or_n_numbers_are_known_as_repeats(count: int, known: int) -> None:
    """MM-13: max(N, 1024)"""
    for back, expected in ((known - 1, None), (known, "protocol-error")):
        server = server_with(f"{BATCH}{count}", ack_count=2000)
        at(server, 5000)
        events = receive(server, message(5000 - back))
        assert (server.fault is None) is (expected is None)
        assert bodies(events) == []


def test_only_what_came_can_be_a_repeat() -> None:
    """MM-13: 65535 was never received by a session which has seen 3 messages"""
    server = server_with(BATCH + "3")
    receive(server, messages(1, 3))
    broken(server, message(65535))


def test_repeats_are_known_across_the_wrap() -> None:
    """MM-13"""
    server = server_with(BATCH + "3")
    at(server, 65537)
    assert receive(server, message(65530) + message(65535) + message(1) + message(2)) == []
    assert server.counters.repeats == 4
    assert bodies(receive(server, message(3))) == [b"x"]


# ── acks which we write (MM-18, MM-19) ──────────────────────────────────────────────────────────


def test_n_safe_messages_are_acknowledged_at_once() -> None:
    """MM-19: not when they arrive, only when they are safe"""
    server = server_with(BATCH + "4")
    events = receive(server, messages(1, 3))
    last = receive(server, message(4))
    assert server.data_to_send() == b""
    safe(server, events)
    assert server.data_to_send() == b""
    safe(server, last)
    assert acks_written(server) == [4]
    assert server.unacknowledged == 0
    assert server.counters.acks == 1


def test_slices_may_become_safe_in_any_order() -> None:
    """MM-19, MM-21: an ack covers everything up to it, so it waits for all of that"""
    server = server_with(BATCH + "2")
    first, second, third = (receive(server, message(number)) for number in (1, 2, 3))
    safe(server, third)
    safe(server, second)
    assert server.data_to_send() == b""
    safe(server, first)
    assert acks_written(server) == [3]


def test_fewer_messages_are_acknowledged_after_the_idle_time() -> None:
    """MM-19: a sender with fewer messages must learn it too"""
    server = server_with(BATCH + "10")
    events = receive(server, messages(1, 3))
    assert server.tick(0.0) is None
    safe(server, events, 2.0)
    assert server.tick(2.0) == 2.5
    safe(server, receive(server, message(4)), 2.2)
    assert server.tick(2.4) == 2.5
    assert server.data_to_send() == b""
    assert server.tick(2.5) is None
    assert acks_written(server) == [4]


def test_the_idle_time_is_a_limit() -> None:
    """MM-19, MM-32"""
    server = server_with(BATCH + "10", idle_ack=3)
    safe(server, receive(server, message(1)), 1.0)
    assert server.tick(1.0) == 4.0


def test_an_ack_of_n_leaves_no_idle_ack_behind() -> None:
    """MM-19"""
    server = server_with(BATCH + "2")
    safe(server, receive(server, message(1)), 0.0)
    safe(server, receive(server, message(2)), 0.1)
    assert acks_written(server) == [2]
    assert server.tick(0.2) is None
    server.tick(9.0)
    assert server.data_to_send() == b""


def test_ack_acknowledges_each_message() -> None:
    """MM-18: the same frame, under its own index"""
    server = server_with("json;ack")
    events = receive(server, message(1, b"1"))
    assert server.data_to_send() == b""
    safe(server, events)
    assert server.data_to_send() == b"\2\2\2\0\1"


def test_ack_with_a_number_is_a_window_of_that_size() -> None:
    """MM-18: as the reference writes it"""
    client, server = pair(proposal("ack:MessagesPerAck=3"))
    assert client.room == server.room == 3
    client.send_run(encode_address("a"), [b""] * 3)
    assert client.room == 0
    safe(server, pump(client, server)[1])
    pump(client, server)
    assert client.room == 3


def test_with_both_extensions_acks_have_the_index_of_batch_ack() -> None:
    """MM-16, MM-20: a frame of the one which is not used is ignored and counted"""
    client, server = pair(proposal("ack;batch-ack:max-count=2"), proposal("ack;batch-ack"))
    client.send_run(encode_address("a"), [b"", b""])
    pump(client, server)
    assert receive(client, ack(2, index=1)) == []
    assert client.counters.ignored_frames == 1
    assert receive(client, ack(2, index=2)) == [MessagesAcknowledged([1, 2])]


def test_draining_acknowledges_whatever_is_safe() -> None:
    """MM-19: the end of a session needs no idle time"""
    server = server_with(BATCH + "10")
    safe(server, receive(server, messages(1, 2)))
    late = receive(server, message(3))
    server.drain()
    assert acks_written(server) == [2]
    safe(server, late)
    assert acks_written(server) == [3]
    assert server.unsafe == 0


def test_a_refused_message_counts_as_settled() -> None:
    """MM-19: ERROR ``refused: <sequence>`` before the ack which covers it"""
    server = server_with(BATCH + "2")
    events = receive(server, messages(1, 2))
    server.refuse(2, "not today")
    safe(server, events)
    assert written(server) == [Error("refused: 2: not today"), ExtensionFrame(1, b"\0\2")]
    assert server.counters.refused == 1
    server.refuse(1)
    assert said(server) == ["refused: 1"]


def test_a_failed_message_ends_the_session_without_its_ack() -> None:
    """MM-19: what was safe before it is acknowledged, then ERROR ``failed: <sequence>``"""
    server = server_with(BATCH + "10")
    events = receive(server, messages(1, 2))
    late = receive(server, messages(3, 2))
    safe(server, events)
    server.fail(3)
    assert written(server) == [ExtensionFrame(1, b"\0\2"), Error("failed: 3")]
    assert server.fault is not None
    assert server.fault.reason == "failed"
    assert server.state is Side.FAILED
    safe(server, late)
    server.refuse(4)
    server.drain()
    server.fail(4)
    assert server.data_to_send() == b""
    assert server.tick(9.0) is None


def test_a_place_is_made_safe_once() -> None:
    """The caller's fault"""
    server = server_with(BATCH + "10")
    events = receive(server, message(1))
    safe(server, events)
    with pytest.raises(ValueError, match="slice"):
        safe(server, events)


def test_a_peer_beyond_its_window_is_tolerated_and_counted() -> None:
    """MM-13: the reference uses its own number"""
    server = server_with(BATCH + "3")
    events = receive(server, messages(1, 5))
    assert server.counters.over_window == 2
    receive(server, messages(6, 2))
    assert server.counters.over_window == 4
    safe(server, events)
    assert acks_written(server) == [5]
    safe(server, receive(server, messages(8, 1)))
    assert server.counters.over_window == 4


# ── acks which we read (MM-19, MM-21) ───────────────────────────────────────────────────────────


def test_sending_never_exceeds_the_window() -> None:
    """MM-13, MM-19"""
    client = client_with(BATCH + "3")
    assert client.room == 3
    assert client.send_run(encode_address("a"), [b""] * 3) == [1, 2, 3]
    assert (client.room, client.in_flight) == (0, 3)
    client.data_to_send()
    with pytest.raises(ValueError, match="full"):
        client.send("a", b"")
    assert client.data_to_send() == b""
    assert receive(client, ack(2)) == [MessagesAcknowledged([1, 2])]
    assert client.room == 2
    assert client.send("a", b"") == 4


def test_one_message_in_flight_with_ack() -> None:
    """MM-18: the next is sent only after the previous was acknowledged, in each direction"""
    for side in pair(proposal("ack")):
        assert side.send("a", b"") == 1
        assert side.room == 0
        receive(side, ack(1))
        assert side.send("a", b"") == 2


def test_without_acks_there_is_no_window() -> None:
    """MM-13"""
    client = client_with()
    assert client.room is None
    client.send_run(encode_address("a"), [b""] * 5000)
    assert client.in_flight == 0
    assert client.connection_lost() == []


@pytest.mark.parametrize("sequence", [0, 1, 6, 65535])
def test_an_ack_for_what_is_not_in_flight_is_ignored_and_counted(sequence: int) -> None:
    """MM-21: acked already, never sent, or no number at all"""
    client = client_with(BATCH + "4")
    client.send_run(encode_address("a"), [b""] * 4)
    receive(client, ack(2))
    assert receive(client, ack(sequence)) == []
    assert client.counters.stray_acks == 1
    assert client.in_flight == 2
    assert client.fault is None


@pytest.mark.parametrize("payload", [b"", b"\1", b"\0\0\1"])
def test_an_ack_has_two_octets(payload: bytes) -> None:
    """MM-21"""
    client = client_with(BATCH + "4")
    client.send("a", b"")
    broken(client, encode_extension(1, payload))


def test_what_was_not_acknowledged_is_known_at_the_end() -> None:
    """MM-19: the sender redelivers it on its next connection"""
    client = client_with(BATCH + "4")
    client.send_run(encode_address("a"), [b""] * 4)
    receive(client, ack(1))
    assert client.connection_lost() == [2, 3, 4]
    assert client.connection_lost() == []
    assert client.state is Side.CLOSED
    assert client.data_to_send() == b""
    assert client.tick(0.0) is None


def test_acks_and_messages_keep_their_order_in_the_events() -> None:
    """The same sequence for every split of the stream"""
    octets = message(1) + ack(1) + message(2) + message(3) + ack(3)
    expected = None
    for chunks in cuts(octets):
        client = client_with(BATCH + "4")
        client.send_run(encode_address("a"), [b""] * 4)
        found = flatten(event for chunk in chunks for event in receive(client, chunk))
        expected = found if expected is None else expected
        assert found == expected
    assert [row[0] for row in expected or []] == [1, "acknowledged", 2, 3, *["acknowledged"] * 2]  # type: ignore[index]


# ── parts (MM-14, MM-31) ────────────────────────────────────────────────────────────────────────


def parts(*frames: tuple[int, bytes], final: bool = True) -> bytes:
    """Frames of one payload; the last is without CONTINUED if ``final``."""
    return b"".join(
        message(number, payload, continued=not final or row < len(frames) - 1)
        for row, (number, payload) in enumerate(frames)
    )


@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_parts_with_the_same_number_are_one_message(extension: str) -> None:
    """MM-31: what we write"""
    octets = parts((1, b"a"), (1, b"b"), (1, b"c")) + message(2, b"d")
    for chunks in cuts(octets):
        server = server_with(extension)
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert [row[0] for row in flatten(events)] == [1, 2]  # type: ignore[index]
        assert bodies(events) == [b"abc", b"d"]
        assert server.counters.received == 2
        safe(server, events)
        server.drain()
        assert acks_written(server)[-1:] == ([2] if extension else [])


@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_parts_with_numbers_of_their_own_each_count(extension: str) -> None:
    """MM-31: the second part's number fixes the mode"""
    octets = parts((1, b"a"), (2, b"b"), (3, b"c")) + message(4, b"d")
    for chunks in cuts(octets):
        server = server_with(extension)
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert [row[0] for row in flatten(events)] == [1, 4]  # type: ignore[index]
        assert bodies(events) == [b"abc", b"d"]
        assert server.counters.received == 2
        safe(server, events)
        server.drain()
        assert acks_written(server)[-1:] == ([4] if extension else [])


@pytest.mark.parametrize(
    "octets",
    [
        parts((1, b"a"), (3, b"b")),
        parts((1, b"a"), (1, b"b"), (2, b"c")),
        parts((1, b"a"), (2, b"b"), (2, b"c")),
        parts((1, b"a"), (2, b"b"), (4, b"c")),
        parts((1, b"a"), (0, b"b")),
    ],
)
@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_another_number_between_parts_is_a_protocol_error(octets: bytes, extension: str) -> None:
    """MM-31: the mode holds for the payload"""
    assert bodies(broken(server_with(extension), octets)) == []


def test_the_mode_is_fixed_for_one_payload_only() -> None:
    """MM-31"""
    server = server_with(BATCH + "10")
    octets = parts((1, b"a"), (1, b"b")) + parts((2, b"c"), (3, b"d")) + parts((4, b"e"), (4, b"f"))
    assert bodies(receive(server, octets)) == [b"ab", b"cd", b"ef"]
    assert server.unacknowledged == 4


def test_parts_wrap_too() -> None:
    """MM-13, MM-31"""
    server = server_with(BATCH + "10")
    at(server, 65533)
    octets = parts((65534, b"a"), (65535, b"b"), (1, b"c"), (2, b"d")) + message(3, b"e")
    events = receive(server, octets)
    assert bodies(events) == [b"abcd", b"e"]
    safe(server, events)
    server.drain()
    assert acks_written(server) == [3]


def test_commands_extensions_and_errors_may_stand_between_parts() -> None:
    """MM-31: and they are given out before the payload"""
    server = server_with("pub-sub;" + BATCH + "5")
    server.send("a", b"")
    between = encode_command("subscribe", {}) + ack(1, index=2) + encode_error("oops")
    octets = message(1, b"a", continued=True) + between + message(1, b"b")
    for chunks in cuts(octets):
        fresh = server_with("pub-sub;" + BATCH + "5")
        fresh.send("a", b"")
        found = flatten(event for chunk in chunks for event in receive(fresh, chunk))
        assert [type(event) for event in found] == [CommandReceived, tuple, ErrorReceived, tuple]
        assert found[3][3] == b"ab"  # type: ignore[index]


def test_destination_properties_and_type_are_those_of_the_first_part() -> None:
    """MM-29, MM-31"""
    server = server_with("dotnet")
    octets = (
        encode_extension(1, b"First")
        + message(1, b"a", "first", b"k:N1;", continued=True)
        + encode_extension(1, b"Second")
        + message(1, b"b", "second", b"k:N2;")
        + message(2, b"c", "third")
    )
    events = receive(server, octets)
    assert [row[1:4] for row in flatten(events)] == [  # type: ignore[index]
        ("first", {"k": "1", "dotnet-type": "First"}, b"ab"),
        ("third", {"dotnet-type": "Second"}, b"c"),
    ]


def test_a_repeated_payload_is_skipped_to_its_last_part() -> None:
    """MM-13, MM-31: in both modes; a repeat counts only at a payload's start"""
    for octets in (parts((1, b"a"), (1, b"b"), (1, b"c")), parts((1, b"a"), (2, b"b"), (3, b"c"))):
        server = server_with(BATCH + "10")
        events = receive(server, octets)
        assert bodies(events) == [b"abc"]
        expected = server.unacknowledged + 1
        assert receive(server, octets) == []
        assert server.counters.repeats == 1
        assert bodies(receive(server, message(expected, b"new"))) == [b"new"]


def test_a_repeat_within_a_payload_is_a_protocol_error() -> None:
    """MM-31"""
    server = server_with(BATCH + "10")
    receive(server, messages(1, 3))
    broken(server, parts((4, b"a"), (4, b"b"), final=False) + message(3))


def test_a_payload_has_at_most_64_parts() -> None:
    """MM-31, MM-32: CONTINUED for ever"""
    server = server_with()
    assert bodies(receive(server, parts(*[(1, b"a")] * 64))) == [b"a" * 64]
    events = broken(server, parts(*[(2, b"a")] * 65, final=False), "limit-exceeded")
    assert "payload-parts=64" in fault(list(events)).text
    broken(server_with(), parts(*[(2, b"")] * 65), "limit-exceeded")


def test_a_payload_has_at_most_16_mebibytes() -> None:
    """MM-31, MM-32"""
    server = server_with()
    mib = bytes(1 << 20)
    whole = parts(*[(1, mib)] * 16)
    assert len(bodies(receive(server, whole))[0]) == 16 << 20
    events = broken(server, parts(*[(2, mib)] * 16, (2, b"x")), "limit-exceeded")
    assert "payload-octets=16777216" in fault(list(events)).text
    small = server_with(payload_octets=5)
    broken(small, parts((1, b"abc"), (1, b"def")), "limit-exceeded")


def test_repeated_payloads_have_the_same_bounds() -> None:
    """MM-32: skipping is bounded too"""
    server = server_with(BATCH + "10", payload_parts=3)
    receive(server, message(1))
    broken(server, parts(*[(1, b"a")] * 4), "limit-exceeded")


def test_unfinished_parts_which_fill_the_window_are_refused() -> None:
    """MM-31: they could never be acknowledged"""
    server = server_with(BATCH + "3")
    assert bodies(receive(server, parts((1, b"a"), (2, b"b"), (3, b"c")))) == [b"abc"]
    broken(server, parts((4, b"a"), (5, b"b"), (6, b"c"), final=False), "limit-exceeded")
    # the same number for all parts: one place in the window
    server = server_with(BATCH + "3")
    octets = parts(*[(1, b"a")] * 9)
    assert bodies(receive(server, octets)) == [b"a" * 9]


def test_unfinished_parts_are_not_made_safe_with_what_came_before() -> None:
    """MM-19, MM-31"""
    server = server_with(BATCH + "2")
    events = receive(server, message(1) + parts((2, b"a"), (3, b"b"), final=False)[:12])
    receive(server, parts((2, b"a"), (3, b"b"), final=False)[12:13])
    safe(server, events)
    server.drain()
    assert acks_written(server) == [1]


def test_all_parts_are_written_before_an_ack_can_come() -> None:
    """MM-31: one number, one place in the window"""
    client = client_with(BATCH + "2")
    payload = bytes(3 << 20)
    assert client.send("a", payload) == 1
    assert client.in_flight == 1
    frames = written(client)
    assert [type(frame) for frame in frames] == [Part, Part, tuple]
    assert receive(client, ack(1)) == [MessagesAcknowledged([1])]


def test_a_payload_above_our_own_limit_is_not_sent() -> None:
    """MM-31: the caller's work is above a limit"""
    client = client_with(BATCH + "2", payload_octets=10)
    with pytest.raises(LimitExceeded):
        client.send("a", bytes(11))
    assert (client.in_flight, client.data_to_send()) == (0, b"")
    assert client.send("a", bytes(10)) == 1
    few = client_with(payload_parts=1)
    with pytest.raises(LimitExceeded):
        few.send("a", bytes((1 << 20) + 1))


def test_what_was_taken_in_may_be_passed_on() -> None:
    """MM-31: a broker's server may have taken larger payloads than it would send itself"""
    server = server_with(payload_parts=1)
    payload = bytes((1 << 20) + 1)
    assert server.send_run(encode_address("a"), [payload], limited=False) == [1]
    assert len(written(server)) == 2


def test_parts_travel_between_our_sides() -> None:
    """MM-14"""
    client, server = pair(proposal(BATCH + "2"))
    payload = random.Random(1).randbytes((2 << 20) + 12345)
    client.send("a", payload, {"k": 1})
    _, events = pump(client, server)
    assert bodies(events) == [payload]
    assert fields_of(events) == [{"k": "1"}]


# ── properties (MM-22) ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", [b"novalue", b"A:N1;", b"\xff:N1;"])
@pytest.mark.parametrize("extension", ["", "json", BATCH + "9"])
def test_properties_which_do_not_parse_break_the_protocol(text: bytes, extension: str) -> None:
    """MM-01, MM-22: what came before is given out, for every split"""
    octets = message(1, b"1") + message(2, b"2", "a", b"k:N1;") + message(3, b"3", "a", text)
    for chunks in cuts(octets):
        server = server_with(extension)
        found = flatten(event for chunk in chunks for event in receive(server, chunk))
        assert [row[3] for row in found[:-1]] == [b"1", b"2"]  # type: ignore[index]
        assert found[-1][:2] == ("fault", "protocol-error")  # type: ignore[index]


def test_untyped_values_are_counted_each_time() -> None:
    """MM-22"""
    server = server_with(BATCH + "9")
    receive(server, message(1, properties=b"a:jonas;b:N1;"))
    receive(server, message(2, properties=b"a:jonas;b:N1;") + message(4))
    assert server.counters.untyped == 2
    other = server_with()
    receive(other, message(1, properties=b"a:jonas;b:Nils;", continued=True) + message(1))
    assert other.counters.untyped == 2


def test_many_different_properties_are_not_remembered_for_ever() -> None:
    """MM-32"""
    server = server_with()
    for number in range(300):
        receive(server, message(1, properties=b"k:N%d;" % number))
    assert len(server._inbox._texts) == 64


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
    assert server_events[1:] == [
        ExtensionReceived("x-trace", "hello"),
        CommandReceived("x-mark", {"a": "b"}),
    ]
    assert client_events == [ErrorReceived("bad-command", "bad-command: x-mark: nothing to mark")]
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


def test_a_frame_is_sent_only_for_an_agreed_extension() -> None:
    client = client_with("json")
    with pytest.raises(ValueError, match="not agreed"):
        client.send_extension("dotnet", b"")


def test_the_base_extension_has_no_opinion() -> None:
    """MM-10: what a vendor does not override does nothing"""

    class Plain(Extension):
        name = "x-plain"

    plain = Plain({}, limits())
    assert plain.frame_received(b"a") == b"a"
    assert plain.frame_before("a") is None
    assert plain.fields() == {}
    assert plain.objection(b"") is None
    assert plain.encode("a") is None
    assert plain.decode(b"a") is None
    plain.command_received("a", {})
    Plain.check({}, limits())
    Plain.check_final({}, limits())
    assert Plain.answer({"a": "1"}, {"a": "2"}, limits()) == {"a": "2"}
    assert Plain.agree({"a": "1"}, {"a": "2"}, limits()) == {"a": "2"}
    assert Plain.agree({"a": "1"}, None, limits()) == {"a": "1"}


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


def test_refused_bodies_alone_are_settled_by_themselves() -> None:
    """MM-28: no ack at all would block the sender for ever"""
    server = server_with("json;" + BATCH + "2")
    assert receive(server, message(1, b"no") + message(2, b"no")) == []
    assert [type(frame) for frame in written(server)] == [Error, Error, ExtensionFrame]
    assert receive(server, message(3, b"no"), 5.0) == []
    assert server.tick(5.0) == 5.5
    server.tick(5.5)
    assert isinstance(written(server)[-1], ExtensionFrame)


def test_refused_bodies_are_settled_before_a_fault_closes() -> None:
    """MM-28, MM-33: their ack goes out, though a fault follows in the same read"""
    server = server_with("json;" + BATCH + "9")
    receive(server, message(1, b"no") + b"\xff")
    refused, acked, error = written(server)
    assert isinstance(refused, Error) and refused.code == "bad-payload"
    assert acked == ExtensionFrame(2, b"\0\1")
    assert isinstance(error, Error) and error.code == "protocol-error"


def test_a_refused_body_waits_for_those_before_it() -> None:
    """MM-28, MM-21: acks are cumulative"""
    server = server_with("json;" + BATCH + "2")
    events = receive(server, message(1, b"1"))
    assert receive(server, message(2, b"no")) == []
    assert [type(frame) for frame in written(server)] == [Error]
    safe(server, events)
    assert written(server) == [ExtensionFrame(2, b"\0\2")]


def test_a_payload_of_several_parts_is_judged_as_a_whole() -> None:
    """MM-28, MM-31"""
    server = server_with("json")
    assert bodies(receive(server, parts((1, b"[1"), (1, b",2]")))) == [b"[1,2]"]
    assert bodies(receive(server, parts((2, b"[1]"), (2, b",2]")))) == []
    assert said(server)[0].startswith("bad-payload: 2: ")


def test_json_is_parsed_only_up_to_a_size() -> None:
    """MM-32"""
    server = server_with("json", json_octets=10)
    assert bodies(receive(server, message(1, b'"12345678"'))) == [b'"12345678"']
    assert receive(server, message(2, b'"123456789"')) == []
    assert "json-octets allows 10" in said(server)[0]


def test_json_encodes_and_decodes() -> None:
    """MM-28"""
    extension = client_with("json").extension("json")
    assert extension is not None
    assert extension.encode({"a": ["ä", 1, None]}) == '{"a":["ä",1,null]}'.encode()
    assert extension.decode(b'{"a": 1}') == {"a": 1}
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range"):
            extension.encode(bad)


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


def test_a_type_is_sent_when_it_changes() -> None:
    """MM-29"""
    client, _ = pair(proposal("dotnet;" + BATCH + "9"))
    for note in ("A", "A", None, "B", "A"):
        client.send("a", b"", notes={} if note is None else {"dotnet": note})
    frames = written(client)
    assert [type(frame) is ExtensionFrame for frame in frames] == [
        True,
        False,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert client.in_flight == 5


def test_a_type_is_sent_only_with_its_message() -> None:
    """MM-29: a message which the window refuses says nothing about types"""
    client = client_with("dotnet;" + BATCH + "1")
    client.send("a", b"", notes={"dotnet": "A"})
    with pytest.raises(ValueError, match="full"):
        client.send("a", b"", notes={"dotnet": "B"})
    client.data_to_send()
    receive(client, ack(1, index=2))
    client.send("a", b"", notes={"dotnet": "B"})
    assert isinstance(written(client)[0], ExtensionFrame)


@pytest.mark.parametrize("payload", [b"a" * 513, b"\xff"])
def test_a_type_has_at_most_512_octets_of_utf_8(payload: bytes) -> None:
    """MM-29"""
    broken(server_with("dotnet"), encode_extension(1, payload))
    server = server_with("dotnet")
    assert receive(server, encode_extension(1, b"a" * 512)) == []
    client = client_with("dotnet")
    with pytest.raises(BadText):
        client.send("a", b"", notes={"dotnet": "a" * 513})


def test_a_type_belongs_to_its_connection() -> None:
    """MM-29: reset with the connection"""
    first, second = server_with("dotnet"), server_with("dotnet")
    receive(first, encode_extension(1, b"A"))
    assert fields_of(receive(second, message(1))) == [{}]


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
    assert server.data_to_send() == b""


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
    assert server.held_octets == 1
    assert server.tick(10.0) == 130.0
    server.paused(20.0)
    assert server.tick(200.0) is None
    server.resumed(200.0)
    assert server.tick(319.0) == 320.0
    assert server.tick(320.0) is None
    assert server.fault is not None
    assert server.fault.reason == "idle-timeout"
    assert said(server) == [server.fault.text]


def test_a_quiet_connection_may_stay() -> None:
    """MM-32: between frames there is no hurry"""
    server = server_with()
    receive(server, message(1), 10.0)
    assert server.tick(10.0) is None


def test_the_idle_limit_can_be_turned_off() -> None:
    server = server_with(idle_close=0)
    receive(server, b"\0", 10.0)
    assert server.tick(10.0) is None


def test_a_peer_which_never_acknowledges_is_left_if_the_limit_says_so() -> None:
    """MM-32"""
    patient = client_with(BATCH + "2")
    patient.send("a", b"")
    assert patient.tick(0.0) is None
    client = client_with(BATCH + "2", ack_wait=5)
    assert client.tick(0.0) is None
    client.send_run(encode_address("a"), [b"", b""])
    assert client.tick(10.0) == 15.0
    receive(client, ack(1), 12.0)
    assert client.tick(12.0) == 17.0
    client.paused(13.0)
    assert client.tick(30.0) is None
    client.resumed(31.0)
    assert client.tick(31.0) == 36.0
    client.data_to_send()
    client.tick(36.0)
    assert client.fault is not None
    assert client.fault.reason == "ack-timeout"


# ── the table, exhaustively ─────────────────────────────────────────────────────────────────────

FRAMES: dict[type, bytes] = {
    Handshake: handshake("batch-ack"),
    Messages: message(1),
    Part: message(1, continued=True),
    Command: encode_command("fly", {}),
    ExtensionFrame: encode_extension(1, b"\0\1"),
    Error: encode_error("oops"),
    Fault: b"\xff",
}


def side_in(role: str, state: Side) -> Session:
    """A client or a server which stands in ``state``."""
    client, server = Client(proposal("batch-ack")), Server()
    both: dict[str, Session] = {"client": client, "server": server}
    if state in (Side.ESTABLISHED, Side.FAILED, Side.CLOSED):
        client.open()
        pump(client, server)
        if state is Side.FAILED:
            both[role].break_off("test", "over")
        elif state is Side.CLOSED:
            both[role].connection_lost()
    elif state is Side.ANSWERED:
        server.receive_data(handshake("batch-ack"), 0.0)
    elif role == "client" and state is Side.OPENING:
        client.open()
    side = both[role]
    side.data_to_send()
    assert side.state is state
    return side


CASES = [
    (role, state, frame)
    for role, table in (("client", CLIENT), ("server", SERVER))
    for state, row in table.items()
    if row or state is Side.CLOSED
    for frame in FRAMES
]


@pytest.mark.parametrize(("role", "state", "frame"), CASES)
def test_every_frame_in_every_state_leads_where_the_table_says(
    role: str, state: Side, frame: type
) -> None:
    """MM-17, MM-33: state x frame, on both sides; what the table lacks breaks the protocol"""
    side = side_in(role, state)
    # What the decoder takes the octets for is another matter: here it yields what it is asked to.
    side.decoder = Decoder(limits(), 1 if frame is Handshake else 0)
    table = CLIENT if role == "client" else SERVER
    events = receive(side, FRAMES[frame])
    if state in (Side.IDLE, Side.FAILED, Side.CLOSED):
        assert (events, side.state) == ([], state)
    elif frame in table[state]:
        assert side.state is table[state][frame]
        assert bool(side.fault) == (side.state is Side.FAILED)
    else:
        assert fault(events).reason == "protocol-error"
        assert "not allowed in state" in fault(events).text
        assert side.state is Side.FAILED
    side.connection_lost()
    assert side.state is Side.CLOSED


def test_a_snapshot_says_where_a_side_stands() -> None:
    client, server = pair(proposal(BATCH + "4"))
    client.send("a", b"")
    safe(server, pump(client, server)[1])
    snapshot = server.snapshot()
    assert snapshot["state"] == "ESTABLISHED"
    assert snapshot["extensions"] == ["batch-ack"]
    assert (snapshot["received"], snapshot["safe"], snapshot["acknowledged"]) == (1, 1, 0)
    assert client.snapshot()["in_flight"] == 1
    assert Client().snapshot()["count"] is None


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
    server.data_to_send()
    events = [event for chunk in chunks for event in receive(server, chunk)]
    assert not any(isinstance(event, Fault) for event in events[:-1])
    output = written(server)
    safe(server, events)
    server.drain()
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


def test_random_octets_after_the_handshake_do_no_harm() -> None:
    """Only documented events, whatever comes"""
    rng = random.Random(5)
    for _ in range(1500):
        play([rng.randbytes(rng.randint(1, 60))])
