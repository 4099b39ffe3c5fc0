"""What a reader makes of bytes: whole, cut anywhere, compressed, broken and too large.

Whatever is said here holds of the compiled loops and of those in Python.  ``tests/fuzz`` spoils
streams of its own and compares both, too.
"""

import gc
import mmap
import struct
import sys
import tracemalloc
import zlib
from random import Random

import pytest

from tests.lumberjack.frames import (
    V1,
    V2,
    Session,
    compressed,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
    events_of,
)
from tests.tools.byte_streams import deflated
from twisted_msgproto.lumberjack.machine import Reader
from twisted_msgproto.lumberjack.wire import frames
from twisted_msgproto.testing import splits

pytestmark = pytest.mark.usefixtures("form")

compiled_scan = frames.scan  # also where the fixture hides it


def read(nbytes, **limits):
    """A session which has read ``nbytes``."""
    session = Session(**limits)
    session.receive(nbytes)
    return session


def fault(nbytes, **limits):
    """The reason of the fault, which is the last event."""
    kind, reason = read(nbytes, **limits).flat[-1]
    assert kind == "fault"
    return reason


# ── Frames ──────────────────────────────────────────────────────────────────────────────────────

KEYS_CHANGE = [
    *({"a": "1", "b": "2"}, {"a": "3", "b": "4"}, {"b": "5", "a": "6"}, {"a": "7"}, {}),
    *({"a": "8", "bb": "9"}, {"a": "", "": "x"}, {str(n): "" for n in range(65)}),
    *({"k": "long before it\udce9"}, {"\udcff": "v"}, {"": ""}, {"é": "ü" * 9}),
]
"""The keys of the frame before are only a guess; text that is not UTF-8 keeps its bytes."""

PAIR = b"\0\0\0\x01k\0\0\0\x01"
STREAMS = {
    "LJ-04: documents, which nobody parses, in both versions": (
        encode_json([258, 2**32 - 1], [b"\xff not json", b""]) + encode_json([0], [b"{}"], V1),
        [(258, b"\xff not json"), (2**32 - 1, b""), (0, b"{}")],
    ),
    "LJ-04: a document that looks like frames": (
        encode_json([7], [encode_json([1], [b"{}"])]),
        [(7, encode_json([1], [b"{}"]))],
    ),
    "LJ-03: pairs": (
        encode_data(range(60), KEYS_CHANGE * 5)
        + encode_compressed(encode_data(range(60, 120), KEYS_CHANGE * 5)),
        list(enumerate(KEYS_CHANGE * 10)),
    ),
    "LJ-03: pairs in the frames of version 2": (
        encode_data([3, 4], [{"k": "v"}, {}], V2),
        [(3, {"k": "v"}), (4, {})],
    ),
    "LJ-03: a repeated key keeps its last value": (
        (b"1D\0\0\0\x09\0\0\0\x02" + PAIR + b"1" + PAIR + b"2") * 2,
        [(9, {"k": "2"})] * 2,
    ),
    "LJ-08: frames in frames, to depth three": (
        encode_compressed(
            events_of(1)
            + encode_compressed(encode_data([2], [{"k": "v"}]) + encode_compressed(events_of(3)))
            + events_of(4)
        )
        + events_of(5),
        [(1, b"1"), (2, {"k": "v"}), (3, b"3"), (4, b"4"), (5, b"5")],
    ),
    "LJ-08: compressed frames of nothing": (
        encode_compressed(b"") + encode_compressed(b"", version=V1) + events_of(1),
        [(1, b"1")],
    ),
    "LJ-08: bytes after the zlib stream": (
        compressed(zlib.compress(events_of(1)) + b"tail")
        + compressed(zlib.compress(events_of(2)) + bytes(70_000))
        + events_of(3),
        [(1, b"1"), (2, b"2"), (3, b"3")],
    ),
    "LJ-07: windows of any size among them": (
        encode_window(65_536)
        + events_of(1)
        + encode_window(2, V1)
        + encode_window(0) * 3
        + encode_data([2], [{}])
        + encode_window(7)
        + events_of(3),
        [(1, b"1"), (2, {}), (3, b"3")],
    ),
    "LJ-04: many documents of sizes which nobody could foretell": (
        encode_json(range(900), [b"x" * (n * 7 % 50) for n in range(900)]),
        [(n, b"x" * (n * 7 % 50)) for n in range(900)],
    ),
}

ODDITIES = {
    "LJ-03: pairs": (0, 20),
    "LJ-08: bytes after the zlib stream": (4 + 70_000, 0),
}
"""Stream → bytes behind zlib streams, texts that are not UTF-8."""


def counted(session):
    decoder = session.reader.decoder
    return decoder.trailing_bytes, decoder.invalid_texts


def bytes_on_wire(number, held):
    return len(
        encode_data([number], [held]) if type(held) is dict else encode_json([number], [held])
    )


@pytest.mark.parametrize("name", STREAMS)
def test_events_are_what_was_sent_however_it_is_cut_and_sliced(name):
    """LJ-20."""
    octets, events = STREAMS[name]
    whole = read(octets)
    assert [event[1:] for event in whole.flat] == events
    assert (whole.reader.input_weight, whole.reader.no_partial_input) == (0, True)
    repeated = 20 if "repeated" in name else 0
    least = sum(bytes_on_wire(*event) for event in events)
    assert sum(event.nbytes for event in whole.events) == least + repeated
    assert counted(whole) == ODDITIES.get(name, (0, 0))
    for slice_bytes in (1, 150, 3000):
        sliced = read(octets, slice_bytes=slice_bytes)
        assert (sliced.flat, counted(sliced)) == (whole.flat, counted(whole))
        assert sum(event.nbytes for event in sliced.events) == least + repeated
    for pieces in splits(octets, everywhere=60):
        session = Session()
        for piece in pieces:
            session.receive(piece)
        assert (session.flat, counted(session)) == (whole.flat, counted(whole))
        assert (session.reader.input_weight, session.reader.no_partial_input) == (0, True)


@pytest.mark.parametrize("wrapped", [bytes, encode_compressed], ids=["plain", "compressed"])
def test_what_was_decoded_is_not_held_until_the_next_read__NB_02(wrapped):
    reader = Reader()
    (event,) = reader.receive(wrapped(encode_data([1], [{"a": "b"}])), 0.0)
    pairs = event.pairs
    del event
    assert gc.get_referrers(pairs) == []


# ── Compressed frames ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "compressed-limit"),
        (b"not zlib at all", "zlib"),
        (zlib.compress(encode_window(1))[:-1], "zlib"),
        (zlib.compress(encode_window(1))[:-2] + b"xx", "zlib"),
        (zlib.compress(encode_window(1)[:-1]), "partial-frame"),
        (zlib.compress(encode_json([1], [b"{}"])[:-1]), "partial-frame"),
        (zlib.compress(encode_json([1], [b"{}"])[:9]), "partial-frame"),
        (zlib.compress(encode_data([1], [{"k": "v"}])[:-1]), "partial-frame"),
        (zlib.compress(b"2"), "partial-frame"),
        (zlib.compress(b"2C\0\0\0\x09xx"), "partial-frame"),
        (zlib.compress(b"x"), "version"),
        (zlib.compress(events_of(1) + encode_ack(1)), "wrong-role"),
        (
            zlib.compress(encode_compressed(encode_compressed(encode_compressed(b"")))),
            "compressed-depth",
        ),
    ],
)
def test_a_compressed_frame_which_is_not_whole_frames_is_a_fault(payload, reason):
    """LJ-08: partial frame at the end, bad or unfinished zlib, length 0; nothing of it is acked."""
    frame = compressed(payload)
    for pieces in splits(encode_window(1) + frame):
        session = Session()
        assert [ack for piece in pieces for ack in session.receive(piece)] == []
        assert session.flat[-1] == ("fault", reason)
        assert session.reader.input_weight == 0


def test_a_bomb_never_materialises():
    """LJ-08, LJ-17, NB-10: 610 KB which inflate to 400 MB of whole frames; none is read.

    Limits are lower than the usual ones: the end comes after 5 MB.
    """
    payload = deflated(encode_window(5) * 66_667, 1000)
    assert len(payload) < 620_000
    changes = {"inflated_bytes": 5_000_000, "inflated_ratio": 1, "compressed_windows": 1 << 30}
    session, largest, reasons = Session(**changes), 0, []
    for events in session.turns(compressed(payload)):
        largest = max(largest, session.reader.input_weight)
        reasons += [event.reason for event in events]
    assert reasons == ["inflated-limit"]
    assert largest <= len(payload) + (4 << 20) + 30_000
    assert session.reader.input_weight == 0


def test_the_bound_on_inflating_is_summed_over_nesting_and_begins_anew_with_the_next_frame():
    """LJ-08: each of two nested frames is below the limit, together they are above it."""
    inner = encode_compressed(encode_json([1], [b"a" * 600]))
    both = encode_compressed(encode_json([1], [b"b" * 600]) + inner, 1)
    assert fault(both, inflated_bytes=1200, inflated_ratio=1) == "inflated-limit"
    assert len(read(both * 3, inflated_bytes=2000, inflated_ratio=1).flat) == 6


DOCUMENTS = encode_json([1, 2], [b"a" * 500, b"b" * 3000])
LARGEST = encode_data([1], [{"k" * 10: "v" * 300, "é": "w" * 40}])

LEAST = {
    "compressed-bytes": (len(encode_compressed(DOCUMENTS)) - 6, encode_compressed(DOCUMENTS)),
    "inflated-bytes": (len(DOCUMENTS), encode_compressed(DOCUMENTS)),
    "json-bytes": (3000, encode_compressed(DOCUMENTS)),
    "json-bytes, plain": (3000, DOCUMENTS),
    "window": (4, encode_window(4) + events_of(1)),
    "data-bytes": (len(LARGEST), LARGEST),
}
"""Limit → the least that reads these bytes."""


@pytest.mark.parametrize("name", LEAST)
def test_what_is_at_a_limit_is_read_and_one_more_is_not__LJ_17(name):
    """At once, twice, and byte by byte; what is above it is not even held."""
    most, octets = LEAST[name]
    limit = name.partition(",")[0]
    for pieces in ([octets * 2], [octets[at : at + 1] for at in range(len(octets))]):
        for value, faults in ((most, []), (most - 1, [f"{limit.removesuffix('-bytes')}-limit"])):
            session = Session(**{limit: value, "inflated_ratio": 1})
            for piece in pieces:
                session.receive(piece)
            found = [event.reason for event in session.events if hasattr(event, "reason")]
            reasons = {"compressed", "inflated"}
            assert len(found) == len(faults)
            assert limit.removesuffix("-bytes") in reasons or found == faults


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────

HOSTILE = {
    "version": b"GET / HTTP/1.1\r\n",
    "version-tls": b"\x16\x03\x01\x02\x00\x01\x00\x01",
    "frame-type": b"2X\0\0\0\0",
    "window-limit": encode_window(65_537),
    "window-limit-all": encode_window(2**32 - 1),
    "json-limit": b"2J\0\0\0\x01\x01\0\0\x01",
    "json-limit-all": b"2J\0\0\0\x01\xff\xff\xff\xff",
    "compressed-limit": b"2C\x04\0\0\x01",
    "pairs-limit": b"1D\0\0\0\x01\0\0\x04\x01",
    "pairs-limit-all": b"1D\0\0\0\x01\xff\xff\xff\xff",
    "key-limit": b"1D\0\0\0\x01\0\0\0\x01\0\0\x04\x01",
    "key-limit-all": b"1D\0\0\0\x01\0\0\0\x01\xff\xff\xff\xff" + b"x" * 20,
    "value-limit": b"1D\0\0\0\x01\0\0\0\x01\0\0\0\x01k\x04\0\0\x01",
    "value-limit-all": b"1D\0\0\0\x01\0\0\0\x01\0\0\0\x01k\x80\0\0\0" + b"x" * 20,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_each_limit_is_checked_on_the_header(name):
    """LJ-07, LJ-16, LJ-17: before a single byte is held for what it announces."""
    reason = name.removesuffix("-tls").removesuffix("-all")
    for pieces in splits(events_of(1) + HOSTILE[name]):
        session = Session()
        for piece in pieces:
            session.receive(piece)
        assert session.flat == [("JsonReceived", 1, b"1"), ("fault", reason)]
        assert session.reader.input_weight == 0
        assert session.receive(events_of(2)) == []


def test_a_fault_shows_the_first_bytes_of_what_was_not_understood():
    """LJ-16: HTTP or TLS sent to the plain port is the usual cause; also within a C frame."""
    last = read(b"GET / HTTP/1.1\r\nHost: x\r\n").events[-1]
    assert last.nbytes == b"GET / HTTP/1.1\r\n"
    assert last.text == "version byte 0x47, not '1' or '2'"
    assert read(encode_compressed(events_of(1) + b"2Zabc")).events[-1].nbytes[:2] == b"2Z"


def test_a_document_above_its_limit_keeps_the_windows_before_it_and_no_other():
    """LJ-17, LJ-20: the limit is one document's, however many arrive in one read."""
    a, above, b = encode_json([1], [b"x"]), encode_json([2], [b"y" * 11]), encode_json([3], [b"z"])
    octets = encode_window(3) + a + encode_window(2) + above + encode_window(5) + b
    for pieces in splits(octets):
        session = Session(json_bytes=10)
        for piece in pieces:
            session.receive(piece)
        assert session.flat == [("JsonReceived", 1, b"x"), ("fault", "json-limit")]
        assert session.events[-1].text == "a document of 11 bytes; json-bytes is 10"
        assert session.reader.snapshot()["window"] == 2
        assert above.startswith(session.events[-1].nbytes)


# ── Turns ───────────────────────────────────────────────────────────────────────────────────────

MANY = {str(key): "" for key in range(1000)}
TURNS = {
    # bytes, bytes of a slice, the fewest turns
    "NB-10: documents of nothing": (encode_json(range(5000), [b""] * 5000), 10_000, 40),
    "LJ-13: mappings of nothing": (encode_data([7] * 500, [{}] * 500), 10_000, 5),
    "LJ-13: windows of one": ((encode_window(1) + encode_json([1], [b""])) * 500, 10_000, 45),
    "NB-10: windows of none": (encode_window(0) * 500, 10_000, 45),
    "LJ-13: long values": (encode_data(range(100), [{"key": "v" * 50}] * 100), 1000, 6),
    "NB-07: pairs of large frames": (encode_data([1], [MANY]) * 120, 4 << 20, 3),
    "NB-07: pairs of usual frames": (
        encode_data([1], [{str(key): "" for key in range(60)}]) * 2000,
        *(4 << 20, 3),
    ),
    "LJ-13: frames which make no runs": (
        encode_compressed((encode_data([1], [{}]) + encode_json([1], [b""])) * 10_000),
        *(4 << 20, 4),
    ),
    "NB-10: a document in the middle of a compressed frame": (
        encode_compressed(encode_json([1], [b"a" * 200_000])),
        *(10_000, 40),
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_a_turn_of_decoding_ends_in_time(name):
    """What makes work or objects weighs more than its bytes where a turn ends."""
    octets, slice_bytes, fewest = TURNS[name]
    session = Session(slice_bytes=slice_bytes)
    turns = [list(events) for events in session.turns(octets)]
    assert len(turns) >= fewest
    assert not any(hasattr(event, "reason") for events in turns for event in events)
    assert (session.reader.input_weight, session.reader.unfinished) == (0, False)


def test_a_slice_which_ends_with_the_start_of_a_frame_waits_for_bytes_only():
    """LJ-13, LJ-20: nothing more can be decoded then, so reading must go on."""
    octets = encode_json([1, 2, 3], [b"x" * 200, b"y" * 200, b"z" * 200])
    for slice_bytes in range(1, 700, 7):
        session = Session(slice_bytes=slice_bytes)
        for piece in (octets[:430], octets[430:]):
            assert len([None for _ in session.turns(piece)]) < 10
        assert session.reader.snapshot()["received"] == 3


# ── Memory ──────────────────────────────────────────────────────────────────────────────────────


def test_a_large_compressed_frame_is_not_copied_while_it_comes__NB_02():
    bodies = [Random(number).randbytes(10_000) for number in range(100)]
    octets = encode_compressed(encode_json(range(100), bodies), level=1)
    session = Session(slice_bytes=20_000)
    for start in range(0, len(octets) - 100_000, 100_000):
        session.receive(octets[start : min(start + 100_000, len(octets) - 100_000)])
    assert session.events == []
    tracemalloc.start()
    try:
        events = session.reader.receive(octets[-100_000:], 0.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 800_000, "a slice of what it inflates to, and not the frame"
    session.events += events
    session.receive(b"")
    assert [body for *_, body in session.flat] == bodies


PAIRS = {
    "short": [(b"%x" % number, b"ab") for number in range(1023)],
    "no text": [(b"%x" % number, b"") for number in range(1023)],
    "not UTF-8": [(b"%x\xff" % number, b"\xff\xff") for number in range(1023)],
    "wide": [(b"%x" % number, "\N{GRINNING FACE}".encode() + b"x" * 200) for number in range(1023)],
}


def without_end(pairs):
    """A D frame of these pairs, and of one more that never comes."""
    texts = b"".join(struct.pack(">I", len(text)) + text for pair in pairs for text in pair)
    return b"2D" + struct.pack(">II", 1, len(pairs) + 1) + texts


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_pairs_of_a_frame_that_is_not_whole_count_with_what_they_take__NB_02(pairs):
    """NB-02, LJ-17: ten times their bytes, which one byte a minute makes wait for hours."""
    reader, octets = Reader(), without_end(pairs)
    tracemalloc.start()
    try:
        Reader().receive(octets, 0.0)  # what stays after the first call is no part of the pairs
        before = tracemalloc.get_traced_memory()[0]
        reader.receive(octets, 0.0)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(octets) < grown < reader.input_weight + 4096


@pytest.mark.skipif(not frames.COMPILED, reason="the compiled scan was not built")
@pytest.mark.parametrize(("name", "arguments"), [("json_columns", 3), ("data_columns", 6)])
def test_places_that_cannot_be_are_a_programmer_s_fault(name, arguments):
    """Bounds are 31-bit numbers; one that had wrapped would make Arrow read anywhere."""
    columns, more = getattr(compiled_scan, name), (1,) * arguments
    for octets, position, stop in (
        *((b"2J", position, 2) for position in (-1, 1, 5, sys.maxsize, -sys.maxsize)),
        *((b"2J", 0, 3), (b"", 0, 0)),
    ):
        with pytest.raises(ValueError, match="outside"):
            columns(octets, position, stop, *more)
    with pytest.raises(TypeError):
        columns("text", 0, 0, *more)
    octets = mmap.mmap(-1, (1 << 31) + 12)  # none of it is touched
    with octets, pytest.raises(OverflowError, match="31"):
        columns(octets, 1 << 31, len(octets), *more)


def test_only_few_keys_are_held_for_the_next_frame__NB_02():
    """NB-02: a thousand keys of 1 KiB are 2 MB, of a connection that may be silent for hours."""
    frame = encode_data([1], [{f"{n:01000}": "v" for n in range(1000)}])
    Reader().receive(frame, 0.0)
    tracemalloc.start()
    try:
        readers = [Reader() for _ in range(5)]
        for reader in readers:
            assert reader.receive(frame, 0.0)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < len(readers) * 50_000
    finally:
        tracemalloc.stop()
