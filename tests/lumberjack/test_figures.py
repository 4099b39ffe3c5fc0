"""What the machines of Lumberjack count and show after each step, and limits at n and one above."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from tests.tools.figures import Figures
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.lumberjack.machine import Reader, Writer
from twisted_msgproto.lumberjack.terms import READER_LIMITS, WRITER_LIMITS
from twisted_msgproto.lumberjack.wire import (
    LIMITS,
    VERSION_1,
    VERSION_2,
    Compressed,
    Decoder,
    Json,
    Window,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_data_around,
    encode_json,
    encode_window,
)


def test_a_reader_counts_and_shows_each_step__LJ_07__LJ_13__LJ_14() -> None:
    reader = Reader()

    def figures() -> dict[str, Any]:
        own = {name: getattr(reader, name) for name in ("unacknowledged", "finished", "whole")}
        return {**asdict(reader.counters), **reader.snapshot(), **own}

    counts = ("events", "windows", "acks", "keepalives", "received", "safe", "acknowledged")
    assert figures() == {
        **dict.fromkeys((*counts, "held_octets", "unacknowledged"), 0),
        **{"state": "EMPTY", "window": 1, "paused": False, "finished": False, "whole": True},
    }
    changed = Figures(figures)
    places: list[int] = []

    def receive(octets: bytes, now: float) -> None:
        places.extend(event.place for event in reader.receive(octets, now))  # type: ignore[union-attr]

    steps: list[tuple[Callable[[], object], dict[str, Any], bytes]] = [
        (lambda: receive(encode_window(3), 1.0), {"window": 3}, b""),
        (
            lambda: receive(encode_json([7, 8], [b"a", b"b"]), 2.0),
            {"events": 2, "received": 2, "unacknowledged": 2, "state": "FILLING"},
            b"",
        ),
        (
            lambda: receive(encode_json([9], [b"c"]) + b"2W", 3.0),
            {
                **{"events": 3, "received": 3, "windows": 1, "unacknowledged": 3},
                **{"state": "EMPTY", "held_octets": 2, "whole": False},
            },
            b"",
        ),
        (lambda: reader.made_safe(places[0], 4.0), {"safe": 2}, b""),
        (lambda: reader.advance(8.0), {"keepalives": 1}, encode_ack(0)),
        (lambda: reader.advance(13.0), {"keepalives": 2}, encode_ack(0)),
        (
            lambda: reader.made_safe(places[1], 24.0),
            {"acks": 1, "safe": 3, "acknowledged": 3, "unacknowledged": 0},
            encode_ack(9),
        ),
        (lambda: reader.paused(25.0), {"paused": True}, b""),
        (lambda: reader.resumed(26.0), {"paused": False}, b""),
        (
            lambda: receive(encode_window(0)[2:], 27.0),
            {"acks": 2, "held_octets": 0, "whole": True},
            encode_ack(0),
        ),
        (
            lambda: receive(encode_json([1], [b"d"]), 28.0),
            {"events": 4, "received": 4, "unacknowledged": 1, "state": "FILLING"},
            b"",
        ),
        (lambda: reader.made_safe(places[2], 28.0), {"safe": 4}, b""),
        (
            lambda: reader.advance(30.0),
            {"acks": 3, "acknowledged": 4, "unacknowledged": 0, "state": "EMPTY"},
            encode_ack(1),
        ),
        (lambda: reader.advance(99.0), {}, b""),
        (lambda: reader.drain(99.0), {"state": "DRAINING", "finished": True}, b""),
        (lambda: reader.lost(99.0), {"state": "CLOSED"}, b""),
    ]
    for number, (step, expected, octets) in enumerate(steps):
        assert (changed(step()), reader.outputs()) == (expected, octets), f"step {number}"


def test_windows_of_one_read_are_counted_each__LJ_07() -> None:
    """Whole ones, those behind each other without a W frame, and not the short one."""
    whole = encode_window(2) + encode_json([1, 2], [b"a", b"b"])
    for octets, windows, events in (
        (whole, 1, 2),
        (whole * 3, 3, 6),
        (whole + encode_json([3, 4, 5], [b"a"] * 3), 2, 5),
        (encode_window(3) + encode_json([1, 2], [b"a", b"b"]), 0, 2),
    ):
        reader = Reader()
        reader.receive(octets, 0.0)
        assert (reader.counters.windows, reader.counters.events) == (windows, events)


def test_a_writer_counts_and_shows_each_step__LJ_06__LJ_09__LJ_12() -> None:
    writer = Writer(window=2, compress=0, pipelining=2)

    def figures() -> dict[str, Any]:
        names = ("unacknowledged", "full", "wanted", "finished", "deadline")
        own = {name: getattr(writer, name) for name in names}
        return {**asdict(writer.counters), **writer.snapshot(), **own}

    counts = ("events", "windows", "acknowledged", "acks", "keepalives", "octets")
    assert figures() == {
        **dict.fromkeys((*counts, "octets_uncompressed", "windows_in_flight"), 0),
        **dict.fromkeys(("in_flight", "unsent", "unsent_octets", "unacknowledged"), 0),
        **{"state": "IDLE", "window": 2, "wanted": 2, "deadline": None},
        **{"full": False, "finished": False},
    }
    changed = Figures(figures)
    parcels: list[Any] = []

    def send(*events: bytes) -> None:
        parcels.append(writer.send(events))

    steps: list[tuple[Callable[[], object], dict[str, Any], int]] = [
        (
            lambda: send(b"1", b"22", b"333"),
            {"unsent": 3, "unsent_octets": 36, "unacknowledged": 3, "wanted": 0},
            0,
        ),
        (
            lambda: send(b"4444", b"5"),
            {"unsent": 5, "unsent_octets": 61, "unacknowledged": 5, "full": True},
            0,
        ),
        (lambda: send(b"6"), {"unsent": 6, "unsent_octets": 72, "unacknowledged": 6}, 0),
        (
            lambda: writer.withdraw(parcels[2]),
            {"unsent": 5, "unsent_octets": 61, "unacknowledged": 5},
            0,
        ),
        (
            lambda: writer.flush(1.0),
            {
                **{"events": 4, "windows": 2, "octets": 62, "octets_uncompressed": 62},
                **{"state": "BLOCKED", "windows_in_flight": 2, "in_flight": 4, "unsent": 1},
                **{"unsent_octets": 11, "deadline": 31.0},
            },
            62,
        ),
        (lambda: writer.flush(1.5), {}, 0),
        (lambda: writer.withdraw(parcels[1]), {}, 0),
        (lambda: writer.receive(encode_ack(0), 2.0), {"keepalives": 1}, 0),
        (
            lambda: writer.receive(encode_ack(1), 3.0),
            {"acknowledged": 1, "acks": 1, "in_flight": 3, "unacknowledged": 4},
            0,
        ),
        (lambda: writer.receive(encode_ack(1), 4.0), {"keepalives": 2}, 0),
        (
            lambda: writer.receive(encode_ack(2), 5.0),
            {
                **{"acknowledged": 2, "acks": 2, "windows_in_flight": 1, "in_flight": 2},
                **{"unacknowledged": 3, "state": "FLOWING", "full": False, "wanted": 1},
            },
            0,
        ),
        (
            lambda: writer.flush(6.0),
            {
                **{"events": 5, "windows": 3, "octets": 79, "octets_uncompressed": 79},
                **{"state": "BLOCKED", "windows_in_flight": 2, "in_flight": 3, "unsent": 0},
                **{"unsent_octets": 0, "wanted": 0},
            },
            17,
        ),
        (
            lambda: writer.receive(encode_ack(2), 7.0),
            {
                **{"acknowledged": 4, "acks": 3, "windows_in_flight": 1, "in_flight": 1},
                **{"unacknowledged": 1, "state": "FLOWING", "wanted": 2},
            },
            0,
        ),
        (lambda: writer.paused(8.0), {}, 0),
        (lambda: writer.resumed(9.0), {"deadline": 39.0}, 0),
        (lambda: writer.advance(38.9), {}, 0),
        (lambda: writer.drain(38.9), {"state": "DRAINING", "wanted": 0}, 0),
        (
            lambda: writer.receive(encode_ack(1), 38.9),
            {
                **{"acknowledged": 5, "acks": 4, "windows_in_flight": 0, "in_flight": 0},
                **{"unacknowledged": 0, "finished": True, "deadline": None},
            },
            0,
        ),
        (lambda: writer.lost(39.0), {"state": "CLOSED"}, 0),
    ]
    for number, (step, expected, octets) in enumerate(steps):
        assert (changed(step()), len(writer.outputs())) == (expected, octets), f"step {number}"


# ── limits ──────────────────────────────────────────────────────────────────────────────────────

DOCUMENTS = encode_json([1, 2], [b"a" * 500, b"b" * 3000])


COMPRESSED = {
    "compressed-octets": (len(encode_compressed(DOCUMENTS)) - 6, encode_compressed(DOCUMENTS)),
    "inflated-octets": (len(DOCUMENTS), encode_compressed(DOCUMENTS)),
    "json-octets": (3000, encode_compressed(DOCUMENTS)),
}
"""Limit → the least that reads these octets."""


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_is_at_a_limit_of_compressed_frames_is_read_and_one_more_is_not__LJ_17(
    name: str,
) -> None:
    most, octets = COMPRESSED[name]
    for limit, faults in ((most, 0), (most - 1, 1)):
        decoder = Decoder(Limits.of(LIMITS).replace({name: limit, "inflated-ratio": 1}))
        for _ in range(2):  # each C frame has all of it
            found = decoder.feed(octets)
            while decoder.unfinished:
                found += decoder.feed(b"")
            assert [type(one) for one in found].count(Fault) == faults
            if faults:
                break


@pytest.mark.parametrize(
    ("name", "most", "events"),
    [
        ("json-octets", 5, [b"12345", b"1"]),
        ("unsent-events", 3, [b"1", b"1", b"1"]),
        ("unsent-octets", 36, [b"1", b"22", b"333"]),
        ("data-octets", 23, [{"a": "äö"}]),
    ],
)
def test_what_is_at_a_limit_may_be_sent_and_one_more_may_not__LJ_17__LJ_18(
    name: str, most: int, events: list[Any]
) -> None:
    version = 2 if isinstance(events[0], bytes) else 1
    writer = Writer(Limits.of(WRITER_LIMITS).replace({name: most}), version=version, compress=0)
    writer.send(events)
    weight = writer.unsent_octets
    writer.flush(0.0)
    assert writer.unsent_octets == 0 < weight
    writer = Writer(Limits.of(WRITER_LIMITS).replace({name: most - 1}), version=version)
    with pytest.raises(LimitExceeded):
        writer.send(events)
    assert (writer.unsent, writer.unsent_octets) == (0, 0)


@pytest.mark.parametrize(
    ("octets", "sizes"), [(36, [3, 1]), (35, [2, 2]), (11, [1] * 4), (1, [1] * 4)]
)
def test_a_window_ends_before_it_has_too_many_octets__LJ_18(octets: int, sizes: list[int]) -> None:
    for cuts in ([4], [1, 1, 2], [3, 1], [1] * 4):
        writer = Writer(
            Limits.of(WRITER_LIMITS).replace({"window-octets": octets}), compress=0, pipelining=9
        )
        documents = [b"1", b"22", b"333", b"4444"]
        for cut in cuts:
            writer.send(documents[:cut])
            del documents[:cut]
        writer.flush(0.0)
        assert [flight.size for flight in writer._flights.messages()] == sizes
        assert (writer.unsent, writer.unsent_octets) == (0, 0)


def test_as_many_payloads_as_numbers_are_encoded() -> None:
    for encode in (encode_json, encode_data_around):
        assert encode([1], [b"1"])
        for numbers, payloads in (([1, 2], [b"1"]), ([1], [b"1", b"2"])):
            with pytest.raises(ValueError, match="zip"):
                encode(numbers, payloads)


def test_a_large_compressed_frame_is_not_copied_while_it_comes__NB_02() -> None:
    bodies = [Random(number).randbytes(10_000) for number in range(100)]
    octets = encode_compressed(encode_json(range(100), bodies), level=1)
    decoder = Decoder(Limits.of(LIMITS).replace({"slice-octets": 20_000}))
    last = octets[-100_000:] + encode_window(1)
    for start in range(0, len(octets) - 100_000, 100_000):
        piece = octets[start : min(start + 100_000, len(octets) - 100_000)]
        assert decoder.feed(piece) == []
    tracemalloc.start()
    try:
        found = decoder.feed(last)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 800_000, "a slice of what it inflates to, and not the frame"
    while decoder.unfinished:
        found += decoder.feed(b"")
    read = [body for one in found if isinstance(one, Json) for body in one.bodies]
    assert (read, [type(one) for one in found[-2:]]) == (bodies, [Compressed, Window])


def test_what_a_compressed_frame_inflates_to_counts_where_a_turn_ends__NB_10() -> None:
    """Also where a document is in the middle of it."""
    decoder = Decoder(Limits.of(LIMITS).replace({"slice-octets": 10_000}))
    octets = encode_compressed(encode_json([1], [b"a" * 200_000]))
    turns = [decoder.feed(octets)]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    assert [type(one) for turn in turns for one in turn] == [Json, Compressed]
    assert len(turns) >= 2 * 20, "it is checked, and read again"


@pytest.mark.parametrize(
    ("octets", "idle_ack", "reason"),
    [
        (b"2W", 5.0, "idle"),
        (encode_window(2) + encode_json([1], [b"1"]) + b"2", 5.0, "idle"),
        (encode_window(2) + encode_json([1], [b"1"]), 0.0, "idle"),
        (encode_window(2) + encode_json([1], [b"1"]), 5.0, None),
        (encode_window(2), 0.0, None),
    ],
)
def test_silence_is_told_as_the_last_event_where_something_is_open__LJ_17(
    octets: bytes, idle_ack: float, reason: str | None
) -> None:
    reader = Reader(Limits.of(READER_LIMITS).replace({"idle-ack": idle_ack, "idle-close": 60.0}))
    reader.receive(octets, 0.0)
    found: list[object] = []
    for now in (1.0, 4.9, 5.0, 59.9, 60.0, 120.0):
        assert reader.fault is None or now > 60.0
        found += reader.advance(now)
    assert found == ([] if reason is None else [reader.fault])
    assert (None if reader.fault is None else reader.fault.reason) == reason


@pytest.mark.parametrize("safe_before", [True, False])
def test_who_shuts_its_side_is_acknowledged_as_far_as_all_is_safe__LJ_19(
    safe_before: bool,
) -> None:
    """In the call after which both are true, and not after a time."""
    reader = Reader()
    (event,) = reader.receive(encode_window(5) + encode_json([1, 2], [b"a", b"b"]), 0.0)
    assert not isinstance(event, Fault)
    if safe_before:
        reader.made_safe(event.place, 0.0)
        assert reader.outputs() == b""
        reader.ended(0.0)
    else:
        reader.ended(0.0)
        assert (reader.outputs(), reader.finished) == (b"", False)
        reader.made_safe(event.place, 0.0)
    assert (reader.outputs(), reader.finished) == (encode_ack(2), True)


def test_a_decoder_keeps_nothing_of_a_compressed_frame_that_was_handed_on__NB_11() -> None:
    decoder = Decoder()
    for _ in range(2):
        assert len(decoder.feed(encode_compressed(DOCUMENTS))) == 2
        assert (decoder._kept, decoder.held_octets, decoder.clean) == ([], 0, True)
    found = decoder.feed(encode_compressed(DOCUMENTS + b"3"))
    assert [type(one) for one in found] == [Fault]
    assert (decoder._kept, decoder.held_octets, decoder.clean) == ([], 0, False)


# ── time ────────────────────────────────────────────────────────────────────────────────────────

V1 = VERSION_1


def numbered(*numbers: int, version: int = VERSION_2) -> bytes:
    return encode_json(numbers, [b"%d" % number for number in numbers], version)


TIMES = {"idle-ack": 5.0, "keepalive": 3.0, "idle-close": 60.0}
WINDOW = encode_window(3)
TAIL = WINDOW + numbered(1, 2)
CUT = encode_compressed(encode_window(2) + numbered(1, 2))[:-3]
ACK, FAULT, LONELY = "5 ack 2", "60 fault", "-"
ALIVE = "3 alive, 6 alive"

SILENCES: dict[str, tuple[list[bytes], bool, tuple[str, str, str, str, str]]] = {
    # reads, a second apart; whether all is safe; what happens as it is, while the connection is
    # not read, and without idle-ack, keepalive or idle-close
    "nothing": ([WINDOW], True, (LONELY,) * 5),
    "a short window": ([TAIL], True, (ACK, LONELY, FAULT, ACK, ACK)),
    "two reads": (
        [WINDOW + numbered(1), numbered(2)],
        True,
        ("6 ack 2", LONELY, "61 fault", "6 ack 2", "6 ack 2"),
    ),
    "not safe": (
        [TAIL],
        False,
        ("8 alive, 11 alive", LONELY, FAULT, LONELY, "8 alive, 11 alive"),
    ),
    "full and not safe": (
        [encode_window(2) + numbered(1, 2)],
        False,
        (ALIVE, ALIVE, ALIVE, LONELY, ALIVE),
    ),
    "full and not safe, version 1": (
        [encode_window(2, V1) + numbered(1, 2, version=V1)],
        False,
        (LONELY,) * 5,
    ),
    "full, then short": (
        [encode_window(2) + numbered(1, 2), encode_window(2) + numbered(3)],
        False,
        (ALIVE, ALIVE, ALIVE, LONELY, ALIVE),
    ),
    "version 1, then 2": (
        [encode_window(1, V1) + numbered(1, version=V1), encode_window(1) + numbered(2)],
        False,
        (LONELY,) * 5,
    ),
    "version 2, then 1": (
        [encode_window(1) + numbered(1), encode_window(1, V1) + numbered(2, version=V1)],
        False,
        (LONELY,) * 5,
    ),
    "a head": ([b"2W"], True, (FAULT, LONELY, FAULT, FAULT, LONELY)),
    "a short window and a head": (
        [WINDOW + numbered(1) + b"2J"],
        True,
        (FAULT, LONELY, FAULT, FAULT, LONELY),
    ),
    "a compressed frame": ([CUT], True, (ALIVE, ALIVE, ALIVE, FAULT, ALIVE)),
    "a compressed frame, version 1": (
        [b"1" + CUT[1:]],
        True,
        (FAULT, LONELY, FAULT, FAULT, LONELY),
    ),
}


@pytest.mark.parametrize("name", SILENCES)
def test_what_happens_in_silence_and_when__LJ_13__LJ_14__LJ_17__NB_10(name: str) -> None:
    reads, safe, expected = SILENCES[name]
    told: list[str] = []
    for without in (None, "paused", *TIMES):
        limits = {limit: 0.0 if limit == without else value for limit, value in TIMES.items()}
        reader = Reader(Limits.of(READER_LIMITS).replace(limits))
        now = 0.0
        for now, octets in enumerate(reads):
            for event in reader.receive(octets, now):
                if safe:
                    reader.made_safe(event.place, now)  # type: ignore[union-attr]
        if without == "paused":
            reader.paused(now)
        happened: list[str] = []
        while (at := reader.deadline) is not None and at < 70 and len(happened) < 2:
            reader.advance(at)
            out = reader.outputs()
            if reader.fault is not None:
                happened.append(f"{at:g} fault")
            elif out:
                happened.append(
                    f"{at:g} alive" if out == encode_ack(0) else f"{at:g} ack {out[-1]}"
                )
        told.append(", ".join(happened) or LONELY)
    assert tuple(told) == expected


@pytest.mark.parametrize(
    ("inner", "windows"),
    [
        (encode_window(0) * 5, 5),
        (encode_window(3) * 5, 5),
        ((encode_window(1) + numbered(1)) * 5, 5),
        (encode_window(1) + numbered(*range(1, 6)), 5),
        (encode_window(1) + numbered(1, 2, 3) + encode_window(0) * 2, 5),
        ((encode_window(2) + numbered(1) + encode_window(0)) * 2, 4),
    ],
)
def test_a_compressed_frame_may_end_as_many_windows_as_the_limit__LJ_17__NB_10(
    inner: bytes, windows: int
) -> None:
    """Announced or ended, whichever are more; a short one ends with the next."""
    for limit, faults in ((windows, 0), (windows - 1, 1)):
        limits = {"slice-octets": 1000, "compressed-windows": limit}
        reader = Reader(Limits.of(READER_LIMITS).replace(limits))
        events = reader.receive(encode_compressed(inner), 0.0)
        while reader.unfinished and not reader.fault:
            events += reader.receive(b"", 0.0)
        found = [event.octets for event in events if isinstance(event, Fault)]
        assert found == [encode_compressed(inner)[:16]] * faults


def test_what_inflates_to_as_much_as_may_be_is_compressed_and_more_is_not__LJ_18() -> None:
    frames = encode_json([1], [b"x" * 1000])
    for most, kind in ((len(frames), b"2C"), (len(frames) - 1, b"2J")):
        limits = Limits.of(WRITER_LIMITS).replace({"inflated-octets": most, "json-octets": 1000})
        writer = Writer(limits)
        writer.send([b"x" * 1000])
        writer.flush(0.0)
        assert writer.outputs()[6:8] == kind


def test_the_time_of_a_keep_alive_runs_from_when_an_ack_begins_to_wait__LJ_14() -> None:
    """Half a frame behind what is acknowledged waits for nobody."""
    reader = Reader(Limits.of(READER_LIMITS).replace(TIMES))
    (event,) = reader.receive(encode_window(1) + numbered(1) + b"2", 0.0)
    reader.made_safe(event.place, 0.0)  # type: ignore[union-attr]
    assert reader.outputs() == encode_ack(1)
    reader.receive(encode_window(1)[1:] + numbered(1), 10.0)
    told = []
    while (at := reader.deadline) is not None and at < 17.0:
        reader.advance(at)
        told += [at] if reader.outputs() else []
    assert told == [13.0, 16.0]


def test_octets_of_a_compressed_frame_that_trickle_in_do_not_put_a_keep_alive_off__NB_10() -> None:
    reader = Reader(Limits.of(READER_LIMITS).replace(TIMES))
    told = []
    for at, octet in enumerate(CUT[:12]):
        reader.receive(bytes([octet]), float(at))
        reader.advance(float(at))
        told += [at] if reader.outputs() else []
    assert told == [4, 7, 10]


def test_nothing_is_sent_in_the_moment_in_which_silence_ends_a_connection__LJ_14__LJ_17() -> None:
    """A keep-alive is due as well."""
    limits = {"idle-ack": 0.0, "keepalive": 3.0, "idle-close": 6.0}
    reader = Reader(Limits.of(READER_LIMITS).replace(limits))
    reader.receive(encode_window(1) + numbered(1) + b"2W", 0.0)
    told = []
    while (at := reader.deadline) is not None:
        events = reader.advance(at)
        told.append((at, len(events), reader.outputs()))
    assert told == [(3.0, 0, encode_ack(0)), (6.0, 1, b"")]


def test_a_compressed_frame_with_too_many_windows_is_shown_by_its_beginning__LJ_16() -> None:
    """Also where they are found in the middle of it."""
    octets = encode_compressed((encode_window(1) + numbered(1)) * 400)
    limits = {"slice-octets": 1000, "compressed-windows": 50}
    reader = Reader(Limits.of(READER_LIMITS).replace(limits))
    reader.receive(octets, 0.0)
    while reader.fault is None:
        reader.receive(b"", 0.0)
    assert (reader.fault.reason, reader.fault.octets) == ("compressed-windows-limit", octets[:16])


def test_a_data_frame_at_its_limit_is_read_in_pieces_as_at_once__LJ_17() -> None:
    octets = encode_data([1], [{"a": "x" * 40, "b": "y" * 40}])

    def fails(limit: int, step: int) -> bool:
        decoder = Decoder(Limits.of(LIMITS).replace({"data-octets": limit}))
        pieces = (octets[at : at + step] for at in range(0, len(octets), step))
        return any(type(frame) is Fault for piece in pieces for frame in decoder.feed(piece))

    least = next(limit for limit in range(1, 1000) if not fails(limit, len(octets)))
    for step in (1, 7, 50):
        assert (fails(least - 1, step), fails(least, step)) == (True, False)
