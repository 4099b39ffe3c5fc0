"""Frames and their octets: every layout, every limit, every way to cut a stream."""

from __future__ import annotations

import random
import struct

import pytest

from tests.micromsg2.streams import capture, cuts, decode, handshake, limits, message, offers
from twisted_msgproto.micromsg2 import wire
from twisted_msgproto.micromsg2.wire import (
    BadText,
    Command,
    Decoder,
    Error,
    ExtensionFrame,
    Handshake,
    Messages,
    Offer,
    Part,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
    encode_handshake,
    encode_message,
)

# ── handshakes (MM-02) ──────────────────────────────────────────────────────────────────────────

HULK = b"\1\0\0\4hulk\0\x0bjson;dotnet\0\0"
"""The source's example, with the length which its text really has (``MM-02``)."""

SERVER = b"\1\0\0\5srver\0\0\0\x09batch-ack"


def test_the_sources_handshakes_are_read() -> None:
    """MM-02, MM-03"""
    assert decode([HULK], 1) == [
        Handshake(1, 0, "hulk", (Offer("json"), Offer("dotnet")), ()),
    ]
    assert decode([SERVER], 1) == [Handshake(1, 0, "srver", (), (Offer("batch-ack"),))]


def test_handshakes_are_written_as_they_are_read() -> None:
    """MM-02: a round trip, byte for byte"""
    for octets in (HULK, SERVER):
        (frame,) = decode([octets], 1)
        assert isinstance(frame, Handshake)
        assert encode_handshake(frame) == octets
    assert Handshake(1, 0, "a", offers("x-a"), offers("x-b")).offers == offers("x-a;x-b")


def test_a_handshake_carries_its_flags_though_they_mean_nothing() -> None:
    """MM-33"""
    (frame,) = decode([b"\1\0\xff\0\0\0\0\0"], 1)
    assert frame == Handshake(1, 0, "", flags=0xFF)


def test_the_example_with_the_wrong_length_is_read_as_its_table_says() -> None:
    """MM-02: a length of 10 for 11 octets takes ``json;dotne``, and the next octet is a length"""
    found = decode([b"\1\0\0\4hulk\0\x0ajson;dotnet\0\0"], 1)
    assert found == [("limit-exceeded", "29696 octets of extensions")]


@pytest.mark.parametrize("octets", [HULK, SERVER, HULK + message(1), handshake("x-a:b=1", "x-c")])
def test_a_handshake_may_arrive_in_any_pieces(octets: bytes) -> None:
    """MM-17: octet by octet too"""
    whole = decode([octets], 1)
    for chunks in cuts(octets):
        assert decode(chunks, 1) == whole


def test_an_identity_which_is_not_ascii_is_refused() -> None:
    """MM-02"""
    ((reason, text),) = decode([b"\1\0\0\2\xc3\xa4\0\0\0\0"], 1)
    assert reason == "protocol-error"
    assert "ASCII" in text
    with pytest.raises(BadText):
        encode_handshake(Handshake(1, 0, "hülk"))


def test_an_extension_list_which_does_not_parse_is_refused() -> None:
    """MM-08, MM-32"""
    assert decode([b"\1\0\0\0\0\x09json;json\0\0"], 1)[0][0] == "protocol-error"
    names = b";".join(b"x-%d" % number for number in range(100))
    octets = b"\1\0\0\0" + struct.pack(">H", len(names)) + names + b"\0\0"
    assert decode([octets], 1) == [("protocol-error", "more than 64 extensions")]


def test_what_a_handshake_cannot_carry_is_not_written() -> None:
    long = tuple(Offer(f"x-{number:04}", {"a": "b" * 100}) for number in range(700))
    for bad in (Handshake(1, 0, "a" * 256), Handshake(1, 0, "a", long)):
        with pytest.raises(BadText):
            encode_handshake(bad)
    assert encode_handshake(Handshake(1, 0, "a" * 255))[3] == 255


def test_an_extension_list_of_a_handshake_has_at_most_65535_octets__MM_02() -> None:
    before = len("x-vendor:a=;") - 1
    longest, too_long = (Offer("x-vendor", {"a": "b" * (n - before)}) for n in (65535, 65536))
    written = encode_handshake(Handshake(1, 0, "a", (longest,)))
    assert written[5:7] == b"\xff\xff"
    with pytest.raises(BadText, match="at most 65535 octets"):
        encode_handshake(Handshake(1, 0, "a", (too_long,)))


@pytest.mark.parametrize("octet", [4, 12])
def test_an_error_may_stand_where_a_handshake_is_expected(octet: int) -> None:
    """MM-05, MM-17: exactly 4 and 12"""
    length = b"\5" if octet == 4 else b"\0\0\0\5"
    octets = bytes((octet,)) + length + b"sorry" + HULK
    for chunks in cuts(octets):
        assert decode(chunks, 1)[0] == Error("sorry")
        assert decode(chunks, 1)[1] == decode([HULK], 1)[0]


@pytest.mark.parametrize("octet", sorted(set(range(256)) - {4, 12}))
def test_any_other_octet_where_a_handshake_is_expected_is_a_major_version(octet: int) -> None:
    """MM-17"""
    (frame,) = decode([bytes((octet,)) + HULK[1:]], 1)
    assert isinstance(frame, Handshake)
    assert frame.major == octet


def test_http_and_tls_do_not_read_as_an_error() -> None:
    """MM-17: they are handshakes of a version which nobody speaks, or too long"""
    for octets in (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", b"\x16\x03\x01\x02\x00" * 200):
        assert not any(isinstance(frame, Error) for frame in decode([octets], 1))


# ── messages (MM-12) ────────────────────────────────────────────────────────────────────────────


def test_a_message_is_written_as_the_table_says() -> None:
    """MM-01, MM-11, MM-12"""
    address = encode_address("commands", b"a:N1;")
    (frame,) = encode_message(0x1234, address, b"hello")
    assert frame == b"\0\x12\x34\x08commands\0\5a:N1;\5hello"
    assert decode([frame]) == [(0x1234, "commands", b"a:N1;", b"hello")]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65536])
def test_a_payload_above_255_octets_has_a_large_length(size: int) -> None:
    """MM-11, MM-12: LARGE_PAYLOAD"""
    frame = message(1, b"y" * size)
    large = size > 255
    assert frame[0] == (8 if large else 0)
    header = 1 + 2 + 1 + 8 + 2 + (4 if large else 1)
    assert len(frame) == header + size
    assert decode([frame]) == [(1, "commands", b"", b"y" * size)]


def test_a_small_payload_may_have_a_large_length() -> None:
    """MM-11"""
    assert decode([b"\x08\0\1\0\0\0\0\0\0\2hi"]) == [(1, "", b"", b"hi")]


def test_a_destination_is_utf_8() -> None:
    """MM-12"""
    address = encode_address("topic/ä")
    assert address[0] == 8
    assert decode([encode_message(1, address, b"")[0]]) == [(1, "topic/ä", b"", b"")]


def test_a_destination_which_is_not_utf_8_is_replaced_and_counted() -> None:
    """MM-12; the table's rule for text"""
    decoder = Decoder(limits())
    (run,) = decoder.feed(b"\0\0\1\2a\xff\0\0\0")
    assert isinstance(run, Messages)
    assert run.destinations == ["a\ufffd"]
    assert decoder.replaced == 1


def test_an_address_has_bounds() -> None:
    """MM-12: what its length fields can say"""
    assert len(encode_address("ä" * 127 + "a", b"p" * 65535)) == 1 + 255 + 2 + 65535
    for destination, properties in (("ä" * 128, b""), ("a", b"p" * 65536)):
        with pytest.raises(BadText):
            encode_address(destination, properties)


def test_neighbouring_messages_come_as_one_run() -> None:
    decoder = Decoder(limits())
    octets = b"".join(
        [message(1, b"a"), message(2, b"b" * 300), message(3, b"c", "topic/x", b"k:N1;")]
    )
    (run,) = decoder.feed(octets)
    assert run == Messages(
        [1, 2, 3],
        ["commands", "commands", "topic/x"],
        [b"", b"", b"k:N1;"],
        [b"a", b"b" * 300, b"c"],
        len(octets),
    )
    assert len(run) == 3
    assert decoder.buffered == 0


def test_an_address_which_only_begins_like_the_last_one_is_another() -> None:
    """MM-12: the decoder remembers the last address"""
    frames = [
        message(1, b"a", "ab"),
        message(2, b"b", "a"),
        message(3, b"c", "ab", b"k:N1;"),
        message(4, b"d", "ab"),
        message(5, b"e", "abc"),
    ]
    assert [row[1:3] for row in decode([b"".join(frames)])] == [  # type: ignore[index]
        ("ab", b""),
        ("a", b""),
        ("ab", b"k:N1;"),
        ("ab", b""),
        ("abc", b""),
    ]


@pytest.mark.parametrize("count", [2, 9, 10, 64, 66, 67, 400, 2000])
@pytest.mark.parametrize("odd", ["nothing", "size", "address", "flags", "type", "cut"])
def test_many_messages_of_one_size_are_read_like_any_others(count: int, odd: str) -> None:
    """MM-12: wherever the first odd one stands among them"""
    rng = random.Random(count)
    for place in {0, 1, min(2, count - 1), count // 2, count - 1, rng.randrange(count)}:
        frames = [message(n % 65535, b"%05d" % n) for n in range(1, count + 1)]
        expected = [(n % 65535, "commands", b"", b"%05d" % n) for n in range(1, count + 1)]
        number = place + 1
        if odd == "size":
            frames[place] = message(number, b"other size")
            expected[place] = (number, "commands", b"", b"other size")
        elif odd == "address":
            frames[place] = message(number, b"%05d" % number, "commandS")
            expected[place] = (number, "commandS", b"", b"%05d" % number)
        elif odd == "flags":
            frames[place] = b"\x08" + frames[place][1:14] + b"\0\0\0\x05" + frames[place][15:]
        elif odd == "type":
            frames[place] = b"\xe0" + frames[place][1:]
            expected[place:] = [("protocol-error", "unknown flags 0xe0")]  # type: ignore[list-item]
        elif odd == "cut":
            frames[-1] = frames[-1][:-1]
            expected = expected[: count - 1]
        assert decode([b"".join(frames)]) == expected


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second", range(3))
def test_the_first_odd_one_among_messages_of_one_size_counts(first: int, second: int) -> None:
    """MM-12: whatever is odd about it, and whatever is odd about a later one"""

    def frame(number: int, kind: int) -> bytes:
        plain = message(number, b"12345")
        return (
            b"\x08" + plain[1:-6] + b"\0\0\0\2" + plain[-2:],
            message(number, b"12345", "commandS"),
            message(number, b"1234", "commands", b"") + b"\0",
        )[kind]

    plain = [message(number, b"12345") for number in range(1, 41)]
    for odd in ([20, 30], [30, 20]):
        frames = list(plain)
        for place, kind in zip(odd, (first, second), strict=True):
            frames[place] = frame(place + 1, kind)
        octets = b"".join(frames)
        # Cut into pieces of less than a frame, nothing is ever unpacked together.
        pieces = [octets[start : start + 5] for start in range(0, len(octets), 5)]
        assert decode([octets]) == decode(pieces)


def test_sizes_which_alternate_cost_no_more_than_others() -> None:
    """MM-32: what is tried in vain is bounded; this would take minutes if it were not"""
    pair = message(1, b"a") + message(1, b"b")
    frames = (pair + message(1, b"cc") + message(1, b"dd")) * 20_000
    assert len(decode([frames])) == 80_000
    eights = (message(1, b"a") * 70 + message(1, b"bb") * 70) * 600
    assert len(decode([eights])) == 84_000


# ── parts (MM-14) ───────────────────────────────────────────────────────────────────────────────


def test_a_payload_above_one_mebibyte_is_split() -> None:
    """MM-14, MM-31: all but the last are CONTINUED, all carry the same number"""
    mib = 1 << 20
    payload = bytes(range(256)) * (mib // 128) + b"end"
    frames = encode_message(7, encode_address("d"), payload)
    assert [frame[0] for frame in frames] == [24, 24, 0]
    found = decode([b"".join(frames)])
    assert [type(frame) for frame in found] == [Part, Part, tuple]
    assert {part.sequence for part in found[:2]} == {7}  # type: ignore[attr-defined]
    parts = [part.payload for part in found[:2]] + [found[2][3]]  # type: ignore[attr-defined, index]
    assert b"".join(parts) == payload
    assert len(parts[0]) == mib


def test_a_payload_of_exactly_one_mebibyte_is_not_split() -> None:
    """MM-14"""
    assert len(encode_message(1, b"\0\0\0", bytes(1 << 20))) == 1
    assert len(encode_message(1, b"\0\0\0", bytes((1 << 20) + 1))) == 2


def test_small_parts_can_be_asked_for() -> None:
    """MM-14"""
    frames = encode_message(1, b"\0\0\0", b"abcde", part_octets=2)
    assert [(frame[0], frame[-1:]) for frame in frames] == [(16, b"b"), (16, b"d"), (0, b"e")]


# ── commands, extensions, errors ────────────────────────────────────────────────────────────────


def test_a_command_is_written_and_read() -> None:
    """MM-11, MM-15"""
    frame = encode_command("subscribe", {"destination": "topic/a"})
    assert frame == b"\1\x1fsubscribe;destination=topic%2Fa"
    assert decode([frame]) == [Command("subscribe", {"destination": "topic/a"})]
    long = encode_command("subscribe", {"filter": "x" * 300})
    assert long[:5] == b"\x09\0\0\x01\x3d"
    assert decode([long]) == [Command("subscribe", {"filter": "x" * 300})]


def test_an_extension_frame_is_written_and_read() -> None:
    """MM-11, MM-16: the type is 2, though the examples show 4; the length counts the payload"""
    frame = encode_extension(2, b"\0\4")
    assert frame == b"\2\2\2\0\4"
    assert decode([frame]) == [ExtensionFrame(2, b"\0\4")]
    long = encode_extension(1, bytes(300))
    assert long[:6] == b"\x0a\1\0\0\1\x2c"
    assert decode([long]) == [ExtensionFrame(1, bytes(300))]


def test_an_error_frame_is_written_and_read() -> None:
    """MM-11, MM-17"""
    frame = encode_error("unsupported-extension: json")
    assert frame == b"\4\x1bunsupported-extension: json"
    (error,) = decode([frame])
    assert error == Error("unsupported-extension: json")
    assert error.code == "unsupported-extension"
    assert decode([encode_error("ä" * 200)]) == [Error("ä" * 200)]
    assert encode_error("ä" * 200)[0] == 12


def test_an_error_which_is_not_utf_8_is_replaced_and_counted() -> None:
    """MM-17"""
    decoder = Decoder(limits())
    assert decoder.feed(b"\4\2a\xff") == [Error("a\ufffd")]
    assert decoder.replaced == 1
    assert decoder.feed(encode_error("\ufffd")) == [Error("\ufffd")]
    assert decoder.replaced == 1


# ── what is refused (MM-11, MM-32) ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flags", range(256))
def test_flags_are_one_type_and_known_bits(flags: int) -> None:
    """MM-11: every octet there is"""
    found = decode([bytes((flags,)) + b"\1\0" + bytes(40)])
    bad = flags & 0xE0 or bin(flags & 7).count("1") > 1 or (flags & 16 and flags & 7)
    first = found[0] if found else None
    assert (isinstance(first, tuple) and first[0] == "protocol-error") == bool(bad) or (
        # \1\0 with COMMAND is a command whose name is an octet 0
        flags & 7 == 1
    )
    if bad:
        assert len(found) == 1


LONG = struct.pack(">I", 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("octets", "handshakes", "limit"),
    [
        (b"\1\0\0\0\x10\x01", 1, "4097 octets of extensions"),
        (b"\1\0\0\0\0\0\x10\x01", 1, "4097 octets of extensions"),
        (b"\0\0\1\0\x20\x01", 0, "properties-octets"),
        (b"\x08\0\1\0\0\0\0\x10\0\1", 0, "frame-payload-octets"),
        (b"\x18\0\1\0\0\0\0\x10\0\1", 0, "frame-payload-octets"),
        (b"\x08\0\1\0\0\0" + LONG, 0, "frame-payload-octets"),
        (b"\x09\0\1\0\1", 0, "command-octets"),
        (b"\x0a\1\0\1\0\1", 0, "command-octets"),
        (b"\x0c\0\1\0\1", 0, "command-octets"),
        (b"\x0c" + LONG, 1, "command-octets"),
    ],
)
def test_every_length_is_checked_on_the_header(octets: bytes, handshakes: int, limit: str) -> None:
    """MM-32: a fault as soon as the length is there, and not before"""
    for chunks in cuts(octets):
        ((reason, text),) = decode(chunks, handshakes)
        assert reason == "limit-exceeded"
        assert limit in text
    assert decode([octets[:-1]], handshakes) == []


@pytest.mark.parametrize(
    ("octets", "handshakes"),
    [
        (b"\1\0\0\xff" + b"a" * 255 + b"\0\0\0\0", 1),
        (b"\0\0\1\0\x20\0" + bytes(8192) + b"\0", 0),
        (b"\x08\0\1\0\0\0\0\x10\0\0" + bytes(1 << 20), 0),
        (b"\x0c\0\1\0\0" + b"a" * 65536, 0),
    ],
)
def test_what_is_just_within_a_limit_is_read(octets: bytes, handshakes: int) -> None:
    """MM-32"""
    (found,) = decode([octets], handshakes)
    assert not isinstance(found, tuple) or found[0] == 1


def test_a_small_payload_is_limited_too() -> None:
    """MM-32"""
    octets = message(1, b"abc")
    assert decode([octets], frame_payload_octets=2)[0][0] == "limit-exceeded"  # type: ignore[index]
    assert decode([octets], frame_payload_octets=3) == [(1, "commands", b"", b"abc")]


def test_what_came_before_a_fault_is_given_out_and_nothing_after_it() -> None:
    decoder = Decoder(limits())
    frames = decoder.feed(message(1) + b"\xff" + message(2))
    assert isinstance(frames[0], Messages)
    assert isinstance(frames[1], wire.frames.Fault)
    assert frames[1].octets.startswith(b"\xff\0\0\2")
    assert len(frames) == 2
    assert decoder.feed(message(3)) == []
    assert decoder.buffered == 0


def test_a_large_frame_is_not_looked_at_again_for_each_piece() -> None:
    """MM-32: octet by octet, the buffer is one buffer and grows by one octet"""
    decoder = Decoder(limits())
    octets = message(1, bytes(100_000))
    for index in range(len(octets) - 1):
        assert decoder.feed(octets[index : index + 1]) == []
        assert decoder.buffered == index + 1
    (run,) = decoder.feed(octets[-1:])
    assert isinstance(run, Messages)
    assert len(run.payloads[0]) == 100_000


# ── every split of every stream ─────────────────────────────────────────────────────────────────


def stream(seed: int) -> bytes:
    """A handshake and frames of all kinds, perhaps damaged."""
    rng = random.Random(seed)
    octets = handshake("json;x-a:b=1", "batch-ack", identity="a" * rng.randint(0, 20))
    for sequence in range(1, rng.randint(2, 12)):
        octets += rng.choice(
            [
                lambda n: message(n, rng.randbytes(rng.choice([0, 5, 255, 256, 700]))),
                lambda n: message(n, b"p", rng.choice(["a", "topic/b", ""]), b"k:Tv;"),
                lambda n: message(n, b"part", continued=True),
                lambda n: encode_command("ping", {"a": str(n)}),
                lambda n: encode_extension(n, rng.randbytes(rng.choice([0, 2, 300]))),
                lambda n: encode_error("e" * rng.choice([0, 10, 300])),
            ]
        )(sequence)
    for _ in range(rng.choice([0, 0, 1, 3])):
        place = rng.randrange(len(octets))
        octets = octets[:place] + rng.randbytes(1) + octets[place + rng.randint(0, 1) :]
    return octets


@pytest.mark.parametrize("seed", range(60))
def test_every_split_gives_the_same_frames(seed: int) -> None:
    """MM-11, MM-17: good and damaged streams"""
    octets = stream(seed)
    whole = decode([octets], 1)
    for chunks in cuts(octets, seed):
        assert decode(chunks, 1) == whole


@pytest.mark.parametrize("seed", range(40))
def test_random_octets_give_frames_or_one_fault(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        octets = rng.randbytes(rng.randint(1, 80))
        found = decode([octets], rng.choice([0, 1]))
        faults = [row for row in found if isinstance(row, tuple) and isinstance(row[0], str)]
        assert len(faults) <= 1
        assert not faults or found[-1] == faults[0]


@pytest.mark.parametrize("direction", ["C>S", "S>C"])
def test_the_capture_of_the_reference_is_read_in_any_pieces(direction: str) -> None:
    """MM-04, MM-12, MM-22: its version is 1.1, its third handshake is a full one"""
    octets = capture(direction)
    count = 2 if direction == "C>S" else 1
    whole = decode([octets], count)
    assert [row[0] for row in whole[count:]] == [1, 2, 3, 4]  # type: ignore[index]
    assert isinstance(whole[0], Handshake)
    assert whole[0].minor == 1
    for chunks in cuts(octets):
        assert decode(chunks, count) == whole
