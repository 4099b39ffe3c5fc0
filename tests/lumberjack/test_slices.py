"""NB-10: large compressed frames are checked to their end first, and handed on in slices second."""

import tracemalloc
from random import Random

import pytest

from tests.fuzz.targets import lumberjack_stream
from tests.lumberjack.frames import (
    V1,
    Session,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
    events_of,
)
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.testing import splits

MEBI = 1 << 20
SLICE = 4 * MEBI


def varied(nbytes, source, vocabulary=6000):
    """A line of words, which compresses about 3 : 1."""
    words = [b"%x" % source.getrandbits(28) for _ in range(vocabulary)]
    line = b" ".join(source.choices(words, k=nbytes // 7))
    return b'{"message":"' + line[: nbytes - 14] + b'"}'


def alike(nbytes):
    return b'{"message":"' + (b"the very same words " * (nbytes // 20))[: nbytes - 14] + b'"}'


def batch(bodies):
    """One window in one C frame, as filebeat sends it."""
    return encode_window(len(bodies)) + encode_compressed(
        encode_json(range(1, len(bodies) + 1), bodies)
    )


BATCHES = {
    "varied lines, and a tenth of the usual limits": (
        lambda: [varied(40_000, Random(number % 16)) for number in range(256)],
        {"slice_bytes": SLICE // 10, "inflated_bytes": 6 * MEBI},
    ),
    "2048 alike lines, as filebeat sends them": (lambda: [alike(40_000)] * 2048, {}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_large_batches_land_whole_with_the_memory_of_the_compressed_bytes_and_slices(name):
    """NB-10, LJ-17: they inflate to more than inflated-bytes; nothing else is held."""
    make, changes = BATCHES[name]
    bodies, slice_bytes = make(), changes.get("slice_bytes", SLICE)
    octets, count, total, first = batch(bodies), len(bodies), sum(map(len, bodies)), bodies[0]
    del bodies
    session = Session(**changes)
    reader = session.reader
    landed = landed_bytes = held = 0
    tracemalloc.start()
    try:
        pieces = [octets[at : at + MEBI] for at in range(0, len(octets), MEBI)]
        for events in (turn for piece in pieces for turn in session.turns(piece)):
            for event in events:
                assert not isinstance(event, Fault), event
                assert landed or event.bodies[0] == first
                landed += len(event.bodies)
                landed_bytes += sum(map(len, event.bodies))
                reader.made_safe(event.position, 0.0)
            held = max(held, reader.input_weight)
            events = event = None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (landed, landed_bytes) == (count, total)
    assert session.acks() == [(2, count)]
    assert len(octets) < held <= len(octets) + 2 * slice_bytes + len(first)
    assert peak <= 1.25 * len(octets) + 6 * slice_bytes + 2 * len(first)
    assert total > changes.get("inflated_bytes", 64 * MEBI)


def test_a_frame_may_inflate_to_inflated_bytes_or_so_many_times_its_own():
    """LJ-17: the ratio is an option."""
    octets = batch([alike(40_000)] * 50)
    assert Session(inflated_bytes=MEBI).receive(octets) == [(2, 50)]
    strict = Session(inflated_bytes=MEBI, inflated_ratio=1)
    strict.receive(octets)
    assert strict.events[-1].text.endswith(f"; inflated-bytes is {MEBI}")


def test_nothing_of_a_large_frame_with_a_bad_end_is_handed_on():
    """NB-10: it is checked to its end before its first event is seen."""
    good = encode_json(range(1, 3001), [b"x" * 3000] * 3000)
    for end in (b"2J\0", b"2X\0\0\0\1", encode_ack(1), encode_compressed(b"2W")):
        session = Session()
        session.receive(encode_window(3000) + encode_compressed(good + end))
        assert [type(event) for event in session.events] == [Fault]
    session = Session()
    spoiled = bytearray(encode_compressed(good))
    spoiled[-1] ^= 1
    session.receive(bytes(spoiled))
    assert [event.reason for event in session.events] == ["zlib"]


@pytest.mark.parametrize(
    ("inner", "windows"),
    [
        (encode_window(0) * 5, 5),
        (encode_window(3) * 5, 5),
        ((encode_window(1) + events_of(1)) * 5, 5),
        (encode_window(1) + events_of(*range(1, 6)), 5),
        (encode_window(1) + events_of(1, 2, 3) + encode_window(0) * 2, 5),
        ((encode_window(2) + events_of(1) + encode_window(0)) * 2, 4),
        (encode_window(2) + events_of(*range(5)) + encode_window(3) + events_of(6, 7, 8), 4),
        ((encode_window(1) + events_of(1)) * 400, 400),
    ],
)
def test_a_compressed_frame_may_end_as_many_windows_as_the_limit__LJ_17__NB_10(inner, windows):
    """Announced or ended, whichever are more; a short one ends with the next."""
    for limit, faults in ((windows, 0), (windows - 1, 1)):
        for slice_bytes in (1000, SLICE):
            session = Session(slice_bytes=slice_bytes, compressed_windows=limit)
            session.receive(encode_compressed(inner))
            found = [event for event in session.events if isinstance(event, Fault)]
            assert [fault.nbytes for fault in found] == [encode_compressed(inner)[:16]] * faults
            assert all(fault.text.endswith(f"compressed-windows is {limit}") for fault in found)
            assert not faults or len(session.events) == 1


def test_nested_frames_have_bounds_of_their_own():
    """LJ-17: a fourth of inflated-bytes compressed, and all of it inflated, within one C frame."""
    inner = encode_compressed(encode_json([1], [b"a" * 5000]))
    random = encode_compressed(encode_json([1], [Random(7).randbytes(2000)]))
    for frame, value in ((random, 16_800), (inner, 10_200)):
        for count, faults in ((2, 0), (3, 1)):
            session = Session(inflated_bytes=value)
            session.receive(encode_compressed(frame * count))
            found = [event.text for event in session.events if isinstance(event, Fault)]
            assert len(found) == faults
            assert all(text.endswith(f"; inflated-bytes is {value}") for text in found)


def test_acks_wait_for_the_good_end_of_a_large_frame():
    """LJ-08, NB-10: also those of windows which are complete and safe in the middle of it."""
    session = Session(slice_bytes=10_000)
    frames = encode_window(10) + encode_json(range(1, 101), [b"x" * 900] * 100)
    reader = session.reader
    acks = []
    for turn in session.turns(encode_compressed(frames)):
        assert not acks, "they come with the last turn"
        for event in turn:
            reader.made_safe(event.position, 0.0)
        acks = session.acks()
    assert acks == [(2, number) for number in range(10, 101, 10)]


# ── Keep-alives ───────────────────────────────────────────────────────────────────────────────────


def test_keep_alives_run_from_the_first_bytes_of_a_compressed_frame():
    """NB-10, LJ-14: while it arrives, and while the disk pauses us in the middle of it."""
    frame = encode_compressed(encode_json(range(1, 101), [b"x" * 900] * 100))
    session = Session(safe_at_once=False, slice_bytes=10_000, keepalive=3)
    session.receive(encode_window(100) + frame[:2])
    assert session.wait(7) == [(2, 0), (2, 0)]
    reader = session.reader
    events = reader.receive(frame[2:], session.now)
    while not events:
        events = reader.receive(b"", session.now)
    assert reader.unfinished
    reader.made_safe(events[-1].position, session.now)
    reader.paused(session.now)
    assert session.wait(6.5) == [(2, 0), (2, 0)]
    reader.resumed(session.now)
    session.receive(b"")
    assert session.safe()[-1] == (2, 100)
    assert session.wait(60) == []


def test_a_version_1_writer_gets_no_keep_alives_while_it_sends_a_compressed_frame():
    """LJ-14: it would take them for the ack of its batch."""
    frame = encode_compressed(encode_data(range(9), [{"a": "b" * 900}] * 9, V1))
    first = bytes([V1]) + frame[1:]
    session = Session(keepalive=3)
    session.receive(first[:20])
    assert session.wait(10) == []
    session.receive(first[20:])
    session.wait(2)
    session.receive(frame[:20])  # its bytes say version 2, its events said 1
    assert session.wait(10) == []


def test_a_compressed_frame_of_which_the_rest_is_to_come_gets_keep_alives__LJ_14__LJ_17():
    """Also where everything before it was acknowledged, and never where nothing is to come."""
    for rest, alive in ((2, True), (0, False)):
        session = Session(safe_at_once=False)
        behind = encode_compressed(encode_window(1) + events_of(1))
        session.receive(encode_window(1) + events_of(1) + behind[: len(behind) - rest])
        for place in session.waiting:
            session.reader.made_safe(place, 0.0)
        session.waiting.clear()
        assert session.acks()[:1] == [(2, 1)]
        assert bool(session.wait(60)) is alive


# ── However it is cut, and in whatever slices ─────────────────────────────────────────────────────


def read_with(pieces, **changes):
    session = Session(
        **{"compressed-bytes": 2000, "inflated-bytes": 5000, "inflated-ratio": 1},
        **{"json-bytes": 2000, "data-bytes": 2000},
        **changes,
    )
    return [ack for piece in pieces for ack in session.receive(piece)], session.flat


def is_fault(flat):
    return [item[0] for item in flat] == ["fault"]


@pytest.mark.parametrize("part", range(4))
def test_reading_twice_gives_what_reading_once_gives(part):
    """NB-10: the differential test; a fault may be another one of the same C frame, no more."""
    for seed in range(part * 60, part * 60 + 60):
        stream = lumberjack_stream(Random(seed))
        (acks, once), *others = [
            read_with([stream], slice_bytes=octets) for octets in (SLICE, 3000, 500, 60)
        ]
        for acks_twice, twice in others:
            if is_fault(once[-1:]):
                assert is_fault(twice[-1:]), seed
                assert twice[:-1] == once[:-1], seed
            else:
                assert (acks_twice, twice) == (acks, once), seed


def test_every_split_of_a_frame_read_twice_gives_the_same_events():
    """LJ-20, NB-10."""
    nested = encode_compressed(encode_json([4, 5], [b"n" * 300] * 2))
    inner = events_of(1, 2) + encode_window(2) + encode_data([3], [{"k": "v" * 400}]) + nested
    octets = encode_window(3) + encode_compressed(inner) + encode_json([1], [b""]) + nested
    whole = read_with([octets], slice_bytes=200)
    assert len(whole[1]) == 8
    for pieces in splits(octets):
        assert read_with(pieces, slice_bytes=200) == whole
