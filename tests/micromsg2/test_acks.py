"""Repeats, acks in both directions, payloads in parts: windows, times, what is settled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.doubles import due
from tests.micromsg2.streams import (
    BATCH,
    Error,
    ExtensionFrame,
    ack,
    at,
    batches,
    bodies,
    broken,
    client_with,
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
    send,
    server_with,
    written,
)
from twisted_msgproto.micromsg2.machine import Server
from twisted_msgproto.testing import splits

COUNTED = "ack:MessagesPerAck="

# ── what a server says (MM-13, MM-18, MM-19) ────────────────────────────────────────────────────

SAME, EACH = parts((1, b"a"), (1, b"b"), (1, b"c")), parts((1, b"a"), (2, b"b"), (3, b"c"))

Step = tuple[bytes | int | float, list[int]]


def late(said: str, end: float) -> tuple[str, list[Step], list[int]]:
    steps: list[Step] = [(messages(1, 3), []), (2.0, []), (1, []), (2.1, []), (message(4), [])]
    return COUNTED + "10" + said, [*steps, (1, []), (end - 0.01, []), (end, [4])], [1, 2, 3, 4]


TALKS: dict[str, tuple[str, list[Step], Sequence[int]]] = {
    # The extensions; what is read, how many of the oldest events become safe, or what time it is,
    # each with the acks which that gives; the numbers which are delivered.
    "MM-13: a repeat is answered once a read if an ack covers it": (
        BATCH + "3",
        [(messages(1, 4), []), (1, [4]), (messages(2, 3), [4]), (messages(3, 3), [4]), (1, [5])],
        [1, 2, 3, 4, 5],
    ),
    "MM-13: a repeat which is not acknowledged yet gets nothing": (
        COUNTED + "3",
        [(messages(1, 2), []), (messages(1, 2), []), (1, []), (message(3), []), (1, [3])],
        [1, 2, 3],
    ),
    "MM-13: a peer beyond its window is tolerated": (
        BATCH + "3",
        [(messages(1, 5), []), (messages(6, 2), []), (1, [5]), (1, [7])],
        range(1, 8),
    ),
    "MM-19: the ack of a read that is cut waits for the rest": (
        BATCH + "100",
        [(messages(1, 3)[:-1], []), (1, []), (b"x", [2]), (1, [3])],
        [1, 2, 3],
    ),
    "MM-19: but not for ever": (
        BATCH + "100",
        [(3.0, []), (messages(1, 2)[:-1], []), (1, []), (3.4, []), (3.5, [1])],
        [1],
    ),
    "MM-19: nor above the agreed number": (
        *(BATCH + "2", [(messages(1, 3)[:-1], []), (1, [2])], [1, 2]),
    ),
    "MM-19: with ack fewer are acknowledged after a time": late("", 2.5),
    "MM-19: which the peer may say": late(",AckExpireTime=200", 2.2),
    "MM-19: if it is one": late(",AckExpireTime=soon", 2.5),
    "MM-31: numbers for all parts": (
        *(BATCH + "3", [(EACH, []), (1, [3]), (message(4), []), (1, [4])], [1, 4]),
    ),
    "MM-31: one number for all parts takes one place": (
        *(BATCH + "3", [(parts(*[(1, b"a")] * 9), []), (1, [1])], [1]),
    ),
    "MM-13, MM-31: a repeated payload is skipped to its last part": (
        *(BATCH + "10", [(SAME, []), (SAME, []), (message(2), []), (2, [2])], [1, 2]),
    ),
    "MM-13, MM-31: and has numbers of its own": (
        *(BATCH + "10", [(EACH, []), (EACH, []), (message(4), []), (2, [4])], [1, 4]),
    ),
}


def referred(extension: str) -> Server:
    """A server in a session with a client that says just this, as the reference does."""
    server = Server()
    for _ in range(2):
        receive(server, handshake(extension))
    server.outputs()
    return server


@pytest.mark.parametrize(("extension", "steps", "delivered"), TALKS.values(), ids=TALKS)
def test_each_message_is_delivered_once_and_acknowledged_when_it_is_safe(
    extension: str, steps: list[Step], delivered: Sequence[int]
) -> None:
    server, now = referred(extension), 0.0
    came, unsafe = list[Any](), list[Any]()
    for what, acks in steps:
        if isinstance(what, bytes):
            events = receive(server, what, now)
            came, unsafe = came + events, unsafe + events
        elif isinstance(what, int):
            safe(server, unsafe[:what], now)
            del unsafe[:what]
        else:
            now = what
            server.advance(now)
        assert [int.from_bytes(frame.payload) for frame in written(server)] == acks, what
    assert [row[0] for row in flatten(came)] == list(delivered)


@pytest.mark.parametrize(("count", "known"), [(3, 1024), (2000, 2000)])
def test_the_last_1024_or_n_numbers_are_known_as_repeats(count: int, known: int) -> None:
    """MM-13: max(N, 1024)"""
    for back, expected in ((known - 1, None), (known, "protocol-error")):
        server = server_with(f"{BATCH}{count}", ack_count=2000)
        at(server, 5000)
        events = receive(server, message(5000 - back))
        assert (server.fault is None) is (expected is None)
        assert bodies(events) == []


def test_0_is_no_number_behind_65535_either__MM_13() -> None:
    server = server_with(BATCH + "5")
    at(server, 65537)
    broken(server, message(0))


def test_with_batch_ack_one_ack_covers_all_that_became_safe__MM_19() -> None:
    """MM-19, RD-22: with the next outputs, behind the ERRORs of what it covers."""
    server = server_with(BATCH + "100")
    first, second = (receive(server, messages(number, 2)) for number in (1, 3))
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


def test_a_connection_that_is_lost_acknowledges_nothing__MM_19() -> None:
    server = server_with(BATCH + "9")
    safe(server, receive(server, message(1)))
    server.lost(0.0)
    assert server.outputs() == b""


@pytest.mark.parametrize("count", [10, 100, 1000])
@pytest.mark.parametrize("toward", ["server", "client"])
def test_a_thousand_messages_in_bulk_need_an_ack_for_each_window__MM_19__RD_22(
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
            number = int.from_bytes(frame.payload)
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
    came, unsafe = list[bytes](), list[Any]()
    while reference.sent < 200:
        events = receive(server, reference.fill())
        came += bodies(events)
        unsafe += batches(events)
        for batch in rng.sample(unsafe, rng.randint(0, len(unsafe))):
            unsafe.remove(batch)
            server.made_safe(batch.position, 0.0)
            assert not bodies(receive(server, reference.hear(server.outputs())))
    assert (reference.dropped, reference.again, server.counters.repeats) == (0, 0, 0)
    assert len(came) == reference.sent


# ── acks which we read (MM-19 … MM-21) ──────────────────────────────────────────────────────────


def test_with_both_extensions_acks_have_the_index_of_batch_ack() -> None:
    """MM-16, MM-20: a frame of the one which is not used is ignored and counted"""
    client, server = pair(proposal("ack;batch-ack:max-count=2"), proposal("ack;batch-ack"))
    client.send_run(encode_address("a"), [b"", b""])
    pump(client, server)
    assert receive(client, ack(2, index=1)) == []
    assert client.counters.ignored_frames == 1
    assert [event.sequences for event in receive(client, ack(2, index=2))] == [[1, 2]]


@pytest.mark.parametrize("sequence", [0, 1, 6, 65535])
def test_an_ack_for_what_is_not_in_flight_is_ignored_and_counted(sequence: int) -> None:
    """MM-21: acked already, never sent, or no number at all"""
    client = client_with(BATCH + "4")
    client.send_run(encode_address("a"), [b""] * 4)
    receive(client, ack(2))
    assert receive(client, ack(sequence)) == []
    assert (client.counters.stray_acks, client.in_flight, client.fault) == (1, 2, None)


# ── what breaks the protocol ────────────────────────────────────────────────────────────────────

BREAKS = {
    # the extensions; what is read, and how many messages of it are given out
    **{
        f"MM-13: a first number {number} with {extension}": (extension, message(number), 0)
        for extension in ("ack", "batch-ack")
        for number in (0, 2, 65535)
    },
    **{
        f"MM-13: {number} behind 5": (BATCH + "10", messages(1, 5) + message(number), 5)
        for number in (0, 7, 65535)
    },
    **{
        f"MM-31: numbers {numbers} of one payload with {extension}": (
            *(extension, parts(*((number, b"a") for number in numbers)), 0),
        )
        for extension in ("", BATCH + "10")
        for numbers in ((1, 3), (1, 1, 2), (1, 2, 2), (1, 2, 4), (1, 0), (1, 2, 1))
    },
    **{
        f"MM-21: an ack of {len(octets)} bytes": (BATCH + "4", encode_extension(1, octets), 0)
        for octets in (b"", b"\1", b"\0\0\1")
    },
    **{
        f"MM-16: extension {index} of 2": ("json;xml", encode_extension(index, b""), 0)
        for index in (0, 3, 255)
    },
    **{
        f"MM-29: {what}": ("dotnet", message(1) + encode_extension(1, octets), 1)
        for what, octets in (("a long type", b"a" * 513), ("a type that is no text", b"\xff"))
    },
    **{
        f"MM-22: properties {text!r} of a first part": (
            *("", message(1) + message(2, properties=text, continued=True), 1),
        )
        for text in (b"novalue", b"\xff:N1;")
    },
}


@pytest.mark.parametrize(("extension", "octets", "before"), BREAKS.values(), ids=BREAKS)
def test_what_breaks_the_protocol_ends_the_session_behind_what_came_before(
    extension: str, octets: bytes, before: int
) -> None:
    assert len(bodies(broken(server_with(extension), octets))) == before


# ── parts (MM-14, MM-31) ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("extension", ["", BATCH + "10"])
@pytest.mark.parametrize("step", [0, 1])
def test_the_second_part_fixes_the_mode_for_one_payload(extension: str, step: int) -> None:
    """MM-19, MM-31: the same number for all, as we write, or one for each, which then counts"""
    once, behind = (EACH, 4) if step else (SAME, 2)
    octets = once + parts((behind, b"d"), (behind, b"e")) + parts((behind + 1, b"f"), final=False)
    for chunks in splits(octets, 12):
        server = server_with(extension)
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert [row[0] for row in flatten(events)] == [1, behind]
        assert bodies(events) == [b"abc", b"de"]
        assert server.counters.received == 2


def test_commands_extensions_and_errors_may_stand_between_parts() -> None:
    """MM-31: and they are given out before the payload"""
    between = encode_command("subscribe", {}) + ack(1, index=2) + encode_error("oops")
    octets = message(1, b"a", continued=True) + between + message(1, b"b")
    for chunks in splits(octets, 12):
        fresh = server_with("pub-sub;" + BATCH + "5")
        send(fresh, "a", b"")
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
    assert [row[1:4] for row in flatten(receive(server, octets))] == [
        ("first", {"k": "1", "dotnet-type": "First"}, b"ab"),
        ("third", {"dotnet-type": "Second"}, b"c"),
    ]


MIB = bytes(1 << 20)
BOUNDS: dict[str, tuple[str, dict[str, int], bytes, bytes, str]] = {
    # the extensions and limits; a payload which may be, one which may not, what is said of it
    "64 parts": (
        *("", {}, parts(*[(1, b"a")] * 64)),
        *(parts(*[(2, b"a")] * 65, final=False), "more than 64 parts"),
    ),
    "64 parts with the last": (
        *("", {}, parts(*[(1, b"")] * 64), parts(*[(2, b"")] * 65), "more than 64 parts"),
    ),
    "16 MiB": (
        *("", {}, parts(*[(1, MIB)] * 16)),
        *(parts(*[(2, MIB)] * 16, (2, b"x")), "payload-bytes=16777216"),
    ),
    "another number of bytes": (
        *("", {"payload_bytes": 5}, parts((1, b"abc"), (1, b"de"))),
        *(parts((2, b"abc"), (2, b"def")), "payload-bytes=5"),
    ),
    "a window, for it could never be acknowledged": (
        *(BATCH + "3", {}, EACH),
        *(parts((4, b"a"), (5, b"b"), (6, b"c"), final=False), "fill the window"),
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_payload_in_parts_has_bounds__MM_31__MM_32(name: str) -> None:
    extension, changes, good, bad, words = BOUNDS[name]
    server = server_with(extension, **changes)
    assert len(bodies(receive(server, good))) == 1
    assert words in fault(broken(server, bad, "limit-exceeded")).text


def test_what_was_taken_in_may_be_passed_on() -> None:
    """MM-31: a broker's server may have taken larger payloads than it would send itself"""
    server = server_with(payload_bytes=1)
    assert server.send_run(encode_address("a"), [bytes((1 << 20) + 1)]) == [1]
    assert len(written(server)) == 2
