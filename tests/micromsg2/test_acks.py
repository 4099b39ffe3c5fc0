"""Repeats, acks in both directions, payloads in parts: windows, times, what is settled."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.doubles import due, unanswered
from tests.micromsg2.streams import (
    BATCH,
    Error,
    ExtensionFrame,
    ack,
    acks_written,
    at,
    batches,
    bodies,
    broken,
    client_with,
    cuts,
    decode,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
    fault,
    flatten,
    handshake,
    limits,
    message,
    messages,
    pair,
    parts,
    proposal,
    pump,
    receive,
    safe,
    server_with,
    state,
    written,
)
from twisted_msgproto.micromsg2.machine import Server

COUNTED = "ack:MessagesPerAck="

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
    server = server_with(COUNTED + "3")
    events = receive(server, messages(1, 2))
    assert receive(server, messages(1, 2)) == []
    assert server.outputs() == b""
    safe(server, events)
    assert server.outputs() == b""
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


# ── acks which we write (MM-18, MM-19) ──────────────────────────────────────────────────────────


def test_n_safe_messages_are_acknowledged_at_once() -> None:
    """MM-19: not when they arrive, only when they are safe"""
    server = server_with(COUNTED + "4")
    events = receive(server, messages(1, 3))
    last = receive(server, message(4))
    assert server.outputs() == b""
    safe(server, events)
    assert server.outputs() == b""
    safe(server, last)
    assert acks_written(server) == [4]
    assert server.unacknowledged == 0
    assert server.counters.acks == 1


def test_with_batch_ack_one_ack_covers_all_that_became_safe__MM_19() -> None:
    """MM-19, RD-22: with the next outputs, behind the ERRORs of what it covers."""
    server = server_with(BATCH + "100")
    first, second, third = (receive(server, messages(number, 2)) for number in (1, 3, 5))
    safe(server, second)  # nothing of the unbroken run
    assert server.outputs() == b""
    server.refuse(2, "not today")
    safe(server, first)
    server.refuse(4)
    assert due(server, 0.0)[1] is None
    assert written(server) == [
        *(Error("refused: 2: not today"), Error("refused: 4")),
        ExtensionFrame(1, b"\0\4"),
    ]
    assert server.outputs() == b""
    safe(server, third)
    assert acks_written(server) == [6]
    assert server.counters.acks == 2


def test_the_ack_of_a_read_that_is_cut_waits_for_the_rest_but_not_for_ever__MM_19() -> None:
    """More of the window is on its way: a sender in bulk gets one ack for all of it."""
    server, octets = server_with(BATCH + "100"), messages(1, 3)
    safe(server, receive(server, octets[:-1], 2.0), 2.0)
    assert server.outputs() == b""
    assert due(server, 2.0)[1] == 2.5
    rest = receive(server, octets[-1:], 2.1)
    safe(server, rest, 2.1)
    assert acks_written(server) == [3]
    safe(server, receive(server, messages(4, 2)[:-1], 3.0), 3.0)
    assert server.outputs() == b""
    server.advance(3.5)
    assert acks_written(server) == [4]
    full = server_with(BATCH + "2")
    safe(full, receive(full, messages(1, 3)[:-1]))
    assert acks_written(full) == [2]


def test_a_connection_that_is_lost_acknowledges_nothing__MM_19() -> None:
    server = server_with(BATCH + "9")
    safe(server, receive(server, message(1)))
    server.lost(0.0)
    assert server.outputs() == b""


@pytest.mark.parametrize("count", [10, 100, 1000])
@pytest.mark.parametrize("toward", ["server", "client"])
def test_a_thousand_messages_in_bulk_need_an_ack_for_each_window__MM_19(
    count: int, toward: str
) -> None:
    client, server = pair(proposal(f"{BATCH}{count}"), None, limits(), limits())
    sender, receiver = (client, server) if toward == "server" else (server, client)
    for _ in range(0, 1000, count):
        sender.send_run(encode_address("a"), [b"x" * 100] * count)
        octets = sender.outputs()
        for start in range(0, len(octets), 16_001):
            safe(receiver, receive(receiver, octets[start : start + 16_001]))
            receive(sender, receiver.outputs())
    assert (sender.counters.acknowledged, sender.in_flight) == (1000, 0)
    assert receiver.counters.acks <= 1.2 * 1000 / count


def referred(extension: str) -> Server:
    """A server in a session with a client that says just this, as the reference does."""
    server = Server()
    for _ in range(2):
        receive(server, handshake(extension))
    server.outputs()
    return server


class Reference:
    """A client as the reference implementation is: whatever is not acknowledged is sent again on an
    ack of a part, and an ack of what is not in flight drops all of it.
    """

    def __init__(self, count: int) -> None:
        self.count, self.flying, self.sent = count, list[int](), 0
        self.dropped, self.again = 0, 0

    def fill(self) -> bytes:
        new = range(self.sent + 1, self.sent + 1 + self.count - len(self.flying))
        self.flying += new
        self.sent += len(new)
        return b"".join(map(message, new))

    def hear(self, nbytes: bytes) -> bytes:
        said = b""
        for frame in decode(nbytes):
            assert isinstance(frame, ExtensionFrame), frame
            number = int.from_bytes(frame.payload, "big")
            if number not in self.flying:
                self.dropped += len(self.flying)
                self.flying.clear()
            self.flying = [one for one in self.flying if one > number]
            self.again += len(self.flying)
            said += b"".join(map(message, self.flying))
        return said


@pytest.mark.parametrize("seed", range(20))
def test_the_reference_loses_nothing_and_sends_nothing_twice__MM_19__RD_22(seed: int) -> None:
    """MM-19, RD-22: however the disk makes its messages safe."""
    rng = random.Random(seed)
    reference = Reference(rng.choice([1, 3, 10]))
    server = referred(f"{COUNTED}{reference.count},AckExpireTime=700")
    came, open_, now = list[bytes](), list[Any](), 0.0
    while reference.sent < 200:
        events = receive(server, reference.fill(), now)
        came += bodies(events)
        open_ += batches(events)
        for batch in rng.sample(open_, rng.randint(0, len(open_))):
            open_.remove(batch)
            server.made_safe(batch.position, now)
            events = receive(server, reference.hear(server.outputs()), now)
            assert not bodies(events)
    assert (reference.dropped, reference.again, server.counters.repeats) == (0, 0, 0)
    assert len(came) == reference.sent
    safe(server, receive(server, message(reference.sent + 1), now), now)
    if reference.count > 1 and not open_:
        assert due(server, now)[1] in (None, now + 0.7)


@pytest.mark.parametrize(
    ("said", "seconds"), [("", 0.5), (",AckExpireTime=200", 0.2), (",AckExpireTime=soon", 0.5)]
)
def test_with_ack_fewer_are_acknowledged_after_the_peers_time(said: str, seconds: float) -> None:
    """MM-19: a sender with fewer messages must learn it too"""
    server = referred(COUNTED + "10" + said)
    events = receive(server, messages(1, 3))
    assert due(server, 0.0)[1] is None
    safe(server, events, 2.0)
    end = 2.0 + seconds
    assert due(server, 2.0)[1] == end
    safe(server, receive(server, message(4)), 2.1)
    assert due(server, 2.1)[1] == end
    assert server.outputs() == b""
    assert due(server, end)[1] is None
    assert acks_written(server) == [4]


def test_with_both_extensions_acks_have_the_index_of_batch_ack() -> None:
    """MM-16, MM-20: a frame of the one which is not used is ignored and counted"""
    client, server = pair(proposal("ack;batch-ack:max-count=2"), proposal("ack;batch-ack"))
    client.send_run(encode_address("a"), [b"", b""])
    pump(client, server)
    assert receive(client, ack(2, index=1)) == []
    assert client.counters.ignored_frames == 1
    assert [event.sequences for event in receive(client, ack(2, index=2))] == [[1, 2]]


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
    assert state(server) == "FAILED"
    safe(server, late)
    server.refuse(4)
    server.drain(0.0)
    server.fail(4)
    assert server.outputs() == b""
    assert due(server, 9.0)[1] is None


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
    client.outputs()
    with pytest.raises(ValueError, match="full"):
        client.send("a", b"")
    assert client.outputs() == b""
    assert [event.sequences for event in receive(client, ack(2))] == [[1, 2]]
    assert client.room == 2
    assert client.send("a", b"") == 4


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
def test_an_ack_has_two_bytes(payload: bytes) -> None:
    """MM-21"""
    client = client_with(BATCH + "4")
    client.send("a", b"")
    broken(client, encode_extension(1, payload))


def test_what_was_not_acknowledged_is_known_at_the_end() -> None:
    """MM-19: the sender redelivers it on its next connection"""
    client = client_with(BATCH + "4")
    client.send_run(encode_address("a"), [b""] * 4)
    receive(client, ack(1))
    assert unanswered(client) == [2, 3, 4]
    assert unanswered(client) == []
    assert state(client) == "CLOSED"
    assert client.outputs() == b""
    assert due(client, 0.0)[1] is None


# ── parts (MM-14, MM-31) ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("extension", ["", BATCH + "10"])
@pytest.mark.parametrize("step", [0, 1])
def test_parts_are_one_message_and_the_second_fixes_the_mode_for_one_payload(
    extension: str, step: int
) -> None:
    """MM-19, MM-31: the same number for all, as we write, or one for each, which then counts"""
    once = parts((1, b"a"), (1 + step, b"b"), (1 + 2 * step, b"c"))
    behind = 2 + 2 * step
    octets = once + parts((behind, b"d"), (behind, b"e")) + parts((behind + 1, b"f"), (9, b"g"))
    for chunks in cuts(octets[: -len(message(9, b"g"))]):
        server = server_with(extension)
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert [row[0] for row in flatten(events)] == [1, behind]
        assert bodies(events) == [b"abc", b"de"]
        assert server.counters.received == 2
        safe(server, events)
        server.drain(0.0)
        assert acks_written(server)[-1:] == ([behind] if extension else [])


@pytest.mark.parametrize(
    "octets",
    [
        parts((1, b"a"), (3, b"b")),
        parts((1, b"a"), (1, b"b"), (2, b"c")),
        parts((1, b"a"), (2, b"b"), (2, b"c")),
        parts((1, b"a"), (2, b"b"), (4, b"c")),
        parts((1, b"a"), (0, b"b")),
        parts((1, b"a"), (2, b"b"), (1, b"c")),
    ],
)
@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_another_number_between_parts_is_a_protocol_error(octets: bytes, extension: str) -> None:
    """MM-31: the mode holds for the payload"""
    assert bodies(broken(server_with(extension), octets)) == []


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
        names = [event[0] for event in found]
        assert names == ["CommandReceived", "MessagesAcknowledged", "ErrorReceived", 1]
        assert found[3][3] == b"ab"


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
    assert [row[1:4] for row in flatten(events)] == [
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


def test_a_payload_has_at_most_64_parts() -> None:
    """MM-31, MM-32: CONTINUED for ever"""
    server = server_with()
    assert bodies(receive(server, parts(*[(1, b"a")] * 64))) == [b"a" * 64]
    events = broken(server, parts(*[(2, b"a")] * 65, final=False), "limit-exceeded")
    assert "more than 64 parts" in fault(list(events)).text
    broken(server_with(), parts(*[(2, b"")] * 65), "limit-exceeded")


def test_a_payload_has_at_most_16_mebibytes() -> None:
    """MM-31, MM-32"""
    server = server_with()
    mib = bytes(1 << 20)
    whole = parts(*[(1, mib)] * 16)
    assert len(bodies(receive(server, whole))[0]) == 16 << 20
    events = broken(server, parts(*[(2, mib)] * 16, (2, b"x")), "limit-exceeded")
    assert "payload-bytes=16777216" in fault(list(events)).text
    small = server_with(payload_bytes=5)
    broken(small, parts((1, b"abc"), (1, b"def")), "limit-exceeded")


def test_unfinished_parts_which_fill_the_window_are_refused() -> None:
    """MM-31: they could never be acknowledged"""
    server = server_with(BATCH + "3")
    assert bodies(receive(server, parts((1, b"a"), (2, b"b"), (3, b"c")))) == [b"abc"]
    broken(server, parts((4, b"a"), (5, b"b"), (6, b"c"), final=False), "limit-exceeded")
    # the same number for all parts: one place in the window
    server = server_with(BATCH + "3")
    octets = parts(*[(1, b"a")] * 9)
    assert bodies(receive(server, octets)) == [b"a" * 9]


def test_what_was_taken_in_may_be_passed_on() -> None:
    """MM-31: a broker's server may have taken larger payloads than it would send itself"""
    server = server_with(payload_bytes=1)
    payload = bytes((1 << 20) + 1)
    assert server.send_run(encode_address("a"), [payload]) == [1]
    assert len(written(server)) == 2
