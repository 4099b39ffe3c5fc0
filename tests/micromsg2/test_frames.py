"""What a session reads and writes on the wire: every layout, every limit, every way to cut it.

``tests/fuzz`` spoils streams of its own, and cuts them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from tests.micromsg2.layouts import (
    Error,
    Handshake,
    Part,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
    encode_handshake,
)
from tests.micromsg2.streams import (
    client_with,
    cuts,
    decode,
    flatten,
    handshake,
    limits,
    message,
    messages,
    server_with,
)
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.micromsg2 import Offer, Server
from twisted_msgproto.micromsg2.machine import (
    CommandReceived,
    ErrorReceived,
    MessagesReceived,
    Session,
)


def read(chunks: Sequence[bytes], session: Session | None = None) -> list[object]:
    """What a session without extensions makes of them; of a fault its reason and text."""
    session = session or server_with()
    return flatten(event for chunk in chunks for event in session.receive(chunk, 0.0))


def rows(octets: bytes) -> list[tuple[object, ...]]:
    """Messages: (number, destination, octets of the properties, payload)."""
    (event,) = server_with().receive(octets, 0.0)
    assert isinstance(event, MessagesReceived)
    texts = [text for *_, text in flatten([event])]  # type: ignore[misc]
    columns = (event.sequences, event.destinations, texts, event.bodies)
    return list(zip(*columns, strict=True))


def greeted(*chunks: bytes, **changes: object) -> tuple[Server, list[object]]:
    """A server which has read this instead of a handshake, and what it has written."""
    server = Server(None, limits(**changes))
    for chunk in chunks:
        server.receive(chunk, 0.0)
    return server, decode([server.outputs()], 1)


# ── handshakes (MM-02) ──────────────────────────────────────────────────────────────────────────

HULK = b"\1\0\0\4hulk\0\x0bjson;dotnet\0\0"
"""The source's example, with the length which its text really has (``MM-02``)."""


def test_the_sources_handshake_is_read_in_any_pieces() -> None:
    """MM-02, MM-03, MM-17: octet by octet too"""
    for chunks in cuts(HULK):
        server, (answer,) = greeted(*chunks)
        assert isinstance(answer, Handshake)
        server.receive(HULK, 0.0)
        assert [one.name for one in server.extensions] == ["json", "dotnet"]


def test_handshakes_are_written_as_the_table_says() -> None:
    """MM-02"""
    _, (answer,) = greeted(HULK)
    assert isinstance(answer, Handshake)
    other, _ = greeted()
    other.receive(HULK, 0.0)
    assert other.outputs() == encode_handshake(answer)


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        # a length of 10 for 11 octets takes ``json;dotne``, and the next octet is a length
        (b"\1\0\0\4hulk\0\x0ajson;dotnet\0\0", "29696 octets of extensions"),
        (b"\1\0\0\2\xc3\xa4\0\0\0\0", "ASCII"),
        (b"\1\0\0\0\0\x09json;json\0\0", "json"),
        (handshake(";".join(f"x-{number}" for number in range(100))), "more than 64 extensions"),
        (b"\1\0\0\0\x10\x01", "4097 octets of extensions"),
        (b"\1\0\0\0\0\0\x10\x01", "4097 octets of extensions"),
        (b"\0\0\0\0\0\0\0\0", "0"),
    ],
)
def test_a_handshake_which_cannot_be_is_refused(octets: bytes, words: str) -> None:
    """MM-01, MM-02, MM-08, MM-32"""
    for chunks in cuts(octets):
        server, (error,) = greeted(*chunks)
        assert isinstance(error, Error)
        assert words in error.text
        assert server.finished


@pytest.mark.parametrize("octets", [encode_error("sorry"), b"\x0c\0\0\0\5sorry"])
def test_an_error_may_stand_where_a_handshake_is_expected(octets: bytes) -> None:
    """MM-05, MM-17: exactly 4 and 12; it is not answered"""
    for chunks in cuts(octets):
        server, said = greeted(*chunks)
        assert said == []
        assert server.finished


def test_any_other_octet_where_a_handshake_is_expected_is_a_major_version() -> None:
    """MM-17: HTTP and TLS too"""
    for octet in set(range(1, 256)) - {4, 12}:
        _, (answer,) = greeted(bytes((octet,)) + HULK[1:])
        assert isinstance(answer, Handshake)
        assert answer.major == 1


def test_what_a_handshake_cannot_carry_is_no_proposal() -> None:
    """MM-02: an identity of 255 octets, a list of 65535"""
    from twisted_msgproto.micromsg2 import STANDARD, Client, Extension, Proposal

    class Vendor(Extension):
        name = "x-vendor"

    before = len("x-vendor:a=;") - 1
    known = STANDARD.plus(Vendor)
    for size, identity, good in ((65535, 255, True), (65536, 9, False), (9, 256, False)):
        offer = Offer("x-vendor", {"a": "b" * (size - before)})
        if good:
            client = Client(Proposal("a" * identity, required=(offer,), known=known))
            client.open()
            (said,) = decode([client.outputs()], 1)
            assert isinstance(said, Handshake)
            assert said.required == (offer,)
            continue
        with pytest.raises(ValueError, match="at most"):
            Client(Proposal("a" * identity, required=(offer,), known=known)).open()


# ── messages (MM-12) ────────────────────────────────────────────────────────────────────────────


def test_a_message_is_written_as_the_table_says() -> None:
    """MM-01, MM-11, MM-12, MM-16, MM-17"""
    client = client_with("json;pub-sub")
    client.send("commands", b"hello", properties={"a": 1})
    client.send_command("subscribe", {"destination": "topic/a"})
    client.send_error("oops", "no")
    assert client.outputs() == (
        b"\0\0\1\x08commands\0\5a:N1;\5hello\1\x1fsubscribe;destination=topic%2Fa\4\x08oops: no"
    )


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65536])
def test_a_payload_above_255_octets_has_a_large_length(size: int) -> None:
    """MM-11, MM-12: LARGE_PAYLOAD"""
    client = client_with()
    client.send("commands", b"y" * size)
    assert client.outputs() == message(1, b"y" * size)
    assert rows(message(1, b"y" * size)) == [(1, "commands", b"", b"y" * size)]


def test_a_small_payload_may_have_a_large_length() -> None:
    """MM-11"""
    assert rows(b"\x08\0\1\0\0\0\0\0\0\2hi") == [(1, "", b"", b"hi")]


def test_a_destination_is_utf_8_and_replaced_where_it_is_not() -> None:
    """MM-12; the table's rule for text"""
    assert rows(message(1, b"", "topic/ä"))[0][1] == "topic/ä"
    server = server_with()
    assert read([b"\0\0\1\2a\xff\0\0\0", b"\4\2a\xff"], server) == [
        (1, "a\ufffd", {}, b"", b""),
        ErrorReceived("a\ufffd", "a\ufffd"),
    ]


def test_an_address_has_bounds() -> None:
    """MM-12: what its length fields can say"""
    client = client_with()
    client.send("ä" * 127 + "a", b"")
    with pytest.raises(ValueError, match="255"):
        client.send("ä" * 128, b"")


def test_an_address_which_only_begins_like_the_last_one_is_another() -> None:
    """MM-12: the decoder remembers the last address"""
    sent = [("ab", b""), ("a", b""), ("ab", b"k:N1;"), ("ab", b""), ("abc", b"")]
    octets = b"".join(message(n, b"x", *address) for n, address in enumerate(sent, 1))
    assert [row[1:3] for row in rows(octets)] == sent


@pytest.mark.parametrize("count", [2, 9, 10, 66, 400])
@pytest.mark.parametrize("odd", ["nothing", "size", "address", "flags", "type", "cut"])
def test_many_messages_of_one_size_are_read_like_any_others(count: int, odd: str) -> None:
    """MM-12: wherever the first odd one stands among them"""
    rng = random.Random(count)
    for place in {0, 1, min(2, count - 1), count // 2, count - 1, rng.randrange(count)}:
        frames = [message(n, b"%05d" % n) for n in range(1, count + 1)]
        number = place + 1
        if odd == "size":
            frames[place] = message(number, b"other size")
        elif odd == "address":
            frames[place] = message(number, b"%05d" % number, "commandS")
        elif odd == "flags":
            frames[place] = b"\x08" + frames[place][1:14] + b"\0\0\0\x05" + frames[place][15:]
        elif odd == "type":
            frames[place] = b"\xe0" + frames[place][1:]
        elif odd == "cut":
            frames[-1] = frames[-1][:-1]
        octets = b"".join(frames)
        found = read([octets])
        # Cut into pieces of less than a frame, nothing is ever unpacked together.
        assert found == read([octets[start : start + 5] for start in range(0, len(octets), 5)])
        assert len(found) == {"type": place + 1, "cut": count - 1}.get(odd, count)


# ── parts (MM-14) ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("octets", "parts"), [(1 << 20, 0), ((1 << 20) + 1, 1), (5 << 19, 2)])
def test_a_payload_above_one_mebibyte_is_split(octets: int, parts: int) -> None:
    """MM-14, MM-31: all but the last are CONTINUED, all carry the same number"""
    payload = random.Random(1).randbytes(octets)
    client = client_with()
    client.send("d", payload)
    stream = client.outputs()
    *first, _ = decode([stream])
    assert [type(frame) for frame in first] == [Part] * parts
    assert {part.sequence for part in first} <= {1}  # type: ignore[attr-defined]
    assert all(len(part.payload) == 1 << 20 for part in first)  # type: ignore[attr-defined]
    assert [row[3] for row in rows(stream)] == [payload]


# ── what is refused (MM-11, MM-32) ──────────────────────────────────────────────────────────────


def test_flags_are_one_type_and_known_bits() -> None:
    """MM-11: every octet there is"""
    for flags in range(256):
        found = read([bytes((flags,)) + b"\0\1" + bytes(40)])
        bad = flags & 0xE0 or bin(flags & 7).count("1") > 1 or (flags & 16 and flags & 7)
        if bad:
            assert [row[:2] for row in found] == [("fault", "protocol-error")]  # type: ignore[index]
        elif flags in (0, 8):
            assert found[0][0] == 1  # type: ignore[index]


LONG = struct.pack(">I", 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("octets", "limit"),
    [
        (b"\0\0\1\0\x20\x01", "properties-octets"),
        (b"\x08\0\1\0\0\0\0\x10\0\1", "frame-payload-octets"),
        (b"\x18\0\1\0\0\0\0\x10\0\1", "frame-payload-octets"),
        (b"\x08\0\1\0\0\0" + LONG, "frame-payload-octets"),
        (b"\x09\0\1\0\1", "command-octets"),
        (b"\x0a\1\0\1\0\1", "command-octets"),
        (b"\x0c\0\1\0\1", "command-octets"),
    ],
)
def test_every_length_is_checked_on_the_header(octets: bytes, limit: str) -> None:
    """MM-32: a fault as soon as the length is there, and not before"""
    for chunks in cuts(octets):
        ((kind, reason, text),) = read(chunks)  # type: ignore[misc]
        assert (kind, reason) == ("fault", "limit-exceeded")
        assert limit in text
    assert read([octets[:-1]]) == []


@pytest.mark.parametrize(
    "octets",
    [
        message(1, b"", "", b"a:T" + b"x" * 8189),
        message(1, bytes(1 << 20)),
        encode_error("a" * 65536),
        encode_command("subscribe", {"filter": "x" * 60_000}),
    ],
)
def test_what_is_just_within_a_limit_is_read(octets: bytes) -> None:
    """MM-32"""
    (event,) = server_with("pub-sub").receive(octets, 0.0)
    assert not isinstance(event, Fault)


def test_a_small_payload_is_limited_too() -> None:
    """MM-32"""
    for most, faults in ((2, 1), (3, 0)):
        events = server_with(frame_payload_octets=most).receive(message(1, b"abc"), 0.0)
        assert [type(event) for event in events].count(Fault) == faults


def test_what_came_before_a_fault_is_given_out_and_nothing_after_it__MM_17() -> None:
    server = server_with()
    first, fault = server.receive(message(1) + b"\xff" * 100, 0.0)
    assert isinstance(first, MessagesReceived)
    assert isinstance(fault, Fault)
    assert fault.octets == b"\xff" * 32
    assert server.receive(message(3), 0.0) == []
    assert server.held == 0


def test_a_large_frame_is_not_looked_at_again_for_each_piece() -> None:
    """MM-32: octet by octet, the buffer is one buffer and grows by one octet"""
    server = server_with()
    octets = message(1, bytes(50_000))
    for index in range(len(octets) - 1):
        assert server.receive(octets[index : index + 1], 0.0) == []
        assert server.held == index + 1
    (event,) = server.receive(octets[-1:], 0.0)
    assert isinstance(event, MessagesReceived)
    assert len(event.bodies[0]) == 50_000


def test_commands_and_errors_are_read_in_any_pieces() -> None:
    """MM-11, MM-15, MM-17"""
    octets = encode_command("subscribe", {"filter": "x" * 300, "destination": "a b,c"})
    octets += encode_error("ä" * 200) + messages(1, 2) + encode_extension(1, bytes(300))
    for chunks in cuts(octets):
        assert read(chunks, server_with("pub-sub")) == [
            CommandReceived("subscribe", {"filter": "x" * 300, "destination": "a b,c"}),
            ErrorReceived("ä" * 200, "ä" * 200),
            (1, "commands", {}, b"x", b""),
            (2, "commands", {}, b"x", b""),
        ]
    assert encode_address("a") == b"\1a\0\0"
