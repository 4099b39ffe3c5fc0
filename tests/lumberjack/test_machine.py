"""The reader's machine: windows, acks, what is safe, idle times, keep-alives, ends, captures."""

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.doubles import Figures, due, unanswered
from tests.lumberjack.frames import (
    NAMES,
    V1,
    V2,
    Session,
    captured,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
    events_of,
    inner_frames,
    limits,
)
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.lumberjack.machine import Reader
from twisted_msgproto.lumberjack.wire import frames
from twisted_msgproto.testing import splits

# ── Windows ─────────────────────────────────────────────────────────────────────────────────────

CONVERSATIONS = {
    "LJ-07: before any window each event is a window": [(events_of(8, 9), [(2, 8), (2, 9)])],
    "LJ-06: the last frame in order of arrival is named, never a count or a maximum": [
        (encode_window(3) + events_of(0xFFFFFFFE, 0xFFFFFFFF, 0), [(2, 0)]),
        (events_of(7, 3, 0x80000000), [(2, 0x80000000)]),
        (events_of(9, 5, 4), [(2, 4)]),
    ],
    **{
        f"LJ-11, LJ-12: numbers may start at {start}": [
            (encode_window(2) + events_of(*((start + n) % 2**32 for n in range(4))), acks)
        ]
        for start, acks in (
            (0, [(2, 1), (2, 3)]),
            (17, [(2, 18), (2, 20)]),
            (2**32 - 3, [(2, 2**32 - 2), (2, 0)]),
        )
    },
    "LJ-07: one window frame holds for ever": [
        (encode_window(4) + events_of(*range(1, 11)), [(2, 4), (2, 8)]),
        (events_of(11, 12), [(2, 12)]),
    ],
    "LJ-07, LJ-13: a new window closes the short one first, then counting starts anew": [
        (encode_window(5) + events_of(1, 2), []),
        (encode_window(3), [(2, 2)]),
        (events_of(1, 2), []),
        (events_of(3), [(2, 3)]),
    ],
    "LJ-07: a new window just replaces one of which nothing is unacknowledged": [
        (encode_window(5) + encode_window(2), []),
        (events_of(1, 2), [(2, 2)]),
    ],
    "LJ-07: an empty window is answered on version 2 alone and changes nothing": [
        (encode_window(3) + events_of(1, 2), []),
        (encode_window(0, V1), []),
        (encode_window(0, V2), [(2, 0)]),
        (events_of(3), [(2, 3)]),
    ],
    "LJ-02: the ack has the version of the window's last data frame": [
        (encode_window(2, V2) + events_of(1, version=V2) + events_of(2, version=V1), [(1, 2)]),
        (events_of(3, version=V1) + events_of(4, version=V2), [(2, 4)]),
    ],
    "LJ-08: a window may span compressed frames, and stand in them": [
        (encode_compressed(encode_window(3) + events_of(1, 2)), []),
        (encode_compressed(events_of(3)), [(2, 3)]),
    ],
    "LJ-07, LJ-08: an empty window in a compressed frame is answered in line": [
        (encode_compressed(encode_window(2) + events_of(1, 2) + encode_window(0)), [(2, 2), (2, 0)])
    ],
    "LJ-07, LJ-13: windows which share a read have an ack each, the short one as well": [
        (
            encode_window(2)
            + events_of(1, 2)
            + encode_window(5)
            + events_of(1, 2)
            + encode_window(1)
            + events_of(9, 3)
            + encode_window(4),
            [(2, 2), (2, 2), (2, 9), (2, 3)],
        )
    ],
}


@pytest.mark.parametrize("reads", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_each_window_gets_its_ack_however_its_bytes_are_cut(reads):
    """LJ-20."""
    session = Session()
    for octets, acks in reads:
        assert session.receive(octets) == acks
    stream = b"".join(octets for octets, _ in reads)
    for pieces in splits(stream):
        again = Session()
        given = [ack for piece in pieces for ack in again.receive(piece)]
        assert given == [ack for _, acks in reads for ack in acks]
        assert again.flat == session.flat


@pytest.mark.parametrize(
    "behind", [events_of(1), encode_window(1), encode_window(0), encode_ack(1)]
)
def test_nothing_behind_a_frame_of_the_wrong_role_is_read__LJ_16(behind):
    reader = Reader()
    (fault,) = reader.receive(encode_ack(1) + behind, 0.0)
    assert (fault.reason, fault.nbytes, reader.fault) == ("wrong-role", encode_ack(1), fault)
    assert (reader.counters.events, reader.outputs()) == (0, b"")
    assert reader.snapshot()["state"] == "FAILED"


def test_the_tail_of_a_short_window_that_is_safe_does_not_wait_for_the_window_behind_it():
    """LJ-13: its ack leaves with the read that ends it, whatever came in that read as well."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(5) + events_of(1, 2))
    assert session.safe() == []
    assert session.receive(encode_window(1) + events_of(3)) == [(2, 2)]
    assert session.safe() == [(2, 3)]


@pytest.mark.parametrize("sizes", [(2, 1), (2, 3)])
def test_windows_in_front_of_a_compressed_frame_do_not_wait_for_its_end(sizes):
    """LJ-08, LJ-20: though a turn of decoding which brings them ends in the middle of that frame.

    A short window's ack would come behind those of the windows after it.
    """
    first, second = sizes
    outside = encode_window(first) + events_of(1) + encode_window(second) + events_of(2)
    inside = encode_window(1) + events_of(*range(3, 63))
    octets = outside + encode_window(0) + encode_compressed(inside)
    session = Session(slice_bytes=8000)
    events = session.reader.receive(octets, 0.0)
    assert session.reader.unfinished  # the rest of the compressed frame
    for event in events:
        session.reader.made_safe(event.position, 0.0)
    given = [(2, 1), (2, 2), (2, 0)] if second == 1 else [(2, 1), (2, 0)]
    assert session.acks() == given
    rest = session.receive(b"")
    assert rest[-60:] == [(2, sequence) for sequence in range(3, 63)]
    whole = Session()
    assert whole.receive(octets) == given + rest


@pytest.mark.parametrize("frame", [encode_json([7], [b""]), encode_window(0)])
@pytest.mark.parametrize("within", [encode_compressed, bytes])
def test_acks_which_wait_cost_little_more_than_their_bytes(frame, within):
    """LJ-08, LJ-13, LJ-17: a small compressed frame may ask for an ack with every few bytes."""
    count = 5_000
    octets = within(frame * count)
    session = Session(safe_at_once=False, slice_bytes=50_000)
    session.receive(encode_window(1) + events_of(1))  # not safe before the end
    tracemalloc.start()
    try:
        events = session.reader.receive(octets, 0.0)
        while session.reader.unfinished:
            events += session.reader.receive(b"", 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < count * 80
    session.waiting += [event.position for event in events]
    sequence = 0 if frame == encode_window(0) else 7
    assert session.safe() == [(2, 1)] + [(2, sequence)] * count
    assert session.reader.counters.acks == count + 1


# ── Safe and acknowledged ─────────────────────────────────────────────────────────────────────────


def test_nothing_is_acked_after_a_fault_or_after_the_connection_is_lost():
    """LJ-16: close without ack; what is safe stays safe."""
    for end in (lambda reader: reader.receive(b"x", 0.0), lambda r: unanswered(r)):
        session = Session(safe_at_once=False)
        session.receive(encode_window(1) + events_of(1))
        end(session.reader)
        assert session.safe() == []
        assert due(session.reader, 1000.0)[1] is None
        assert session.reader.receive(events_of(2), 0.0) == []


def test_what_never_will_be_safe_is_not_acknowledged_nor_what_follows__LJ_13():
    session = Session(safe_at_once=False)
    session.receive(events_of(1, 2))
    (first,) = session.waiting
    session.reader.not_safe(first, 0.0)
    assert session.acks() == []
    assert session.state != "FAILED"
    assert session.reader.finished
    assert session.reader.receive(events_of(3), 1.0) == []


def test_a_reader_counts_and_shows_each_step__LJ_07__LJ_13__LJ_14() -> None:
    reader = Reader()

    def figures() -> dict[str, Any]:
        own = {
            name: getattr(reader, name)
            for name in ("unacknowledged", "finished", "no_partial_input")
        }
        return {**asdict(reader.counters), **reader.snapshot(), **own}

    counts = ("events", "windows", "acks", "keepalives", "received", "safe", "acknowledged")
    assert figures() == {
        **dict.fromkeys((*counts, "held_bytes", "unacknowledged"), 0),
        **{
            "state": "EMPTY",
            "window": 1,
            "paused": False,
            "finished": False,
            "no_partial_input": True,
        },
    }
    changed = Figures(figures)
    places: list[int] = []

    def receive(nbytes: bytes, now: float) -> None:
        places.extend(event.position for event in reader.receive(nbytes, now))  # type: ignore[union-attr]

    steps: list[tuple[Callable[[], object], str, bytes]] = [
        (lambda: receive(encode_window(3), 1.0), "window=3", b""),
        (
            lambda: receive(encode_json([7, 8], [b"a", b"b"]), 2.0),
            "events=2 received=2 unacknowledged=2 state=FILLING",
            b"",
        ),
        (
            lambda: receive(encode_json([9], [b"c"]) + b"2W", 3.0),
            "events=3 received=3 windows=1 unacknowledged=3"
            " state=EMPTY held_bytes=2 no_partial_input=False",
            b"",
        ),
        (lambda: reader.made_safe(places[0], 4.0), "safe=2", b""),
        (lambda: reader.advance(8.0), "keepalives=1", encode_ack(0)),
        (lambda: reader.advance(13.0), "keepalives=2", encode_ack(0)),
        (
            lambda: reader.made_safe(places[1], 24.0),
            "acks=1 safe=3 acknowledged=3 unacknowledged=0",
            encode_ack(9),
        ),
        (lambda: reader.paused(25.0), "paused=True", b""),
        (lambda: reader.resumed(26.0), "paused=False", b""),
        (
            lambda: receive(encode_window(0)[2:], 27.0),
            "acks=2 held_bytes=0 no_partial_input=True",
            encode_ack(0),
        ),
        (
            lambda: receive(encode_json([1], [b"d"]), 28.0),
            "events=4 received=4 unacknowledged=1 state=FILLING",
            b"",
        ),
        (lambda: reader.made_safe(places[2], 28.0), "safe=4", b""),
        (
            lambda: reader.advance(30.0),
            "acks=3 acknowledged=4 unacknowledged=0 state=EMPTY",
            encode_ack(1),
        ),
        (lambda: reader.advance(99.0), "", b""),
        (lambda: reader.drain(99.0), "state=DRAINING finished=True", b""),
        (lambda: reader.lost(99.0), "state=CLOSED", b""),
    ]
    for number, (step, expected, nbytes) in enumerate(steps):
        told = {f"{name}={value}" for name, value in changed(step()).items()}
        assert (told, reader.outputs()) == ({*expected.split()}, nbytes), f"step {number}"


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────


TIMES = {"idle-ack": 5.0, "keepalive": 3.0, "idle-close": 60.0}


WINDOW = encode_window(3)


TAIL = WINDOW + events_of(1, 2)


CUT = encode_compressed(encode_window(2) + events_of(1, 2))[:-3]


ACK, FAULT, LONELY = "5 ack 2", "60 fault", "-"


ALIVE = "3 alive, 6 alive"


SILENCES: dict[str, tuple[list[bytes], bool, tuple[str, str, str, str, str]]] = {
    # reads, a second apart; whether all is safe; what happens as it is, while the connection is
    # not read, and without idle-ack, keepalive or idle-close
    "nothing": ([WINDOW], True, (LONELY,) * 5),
    "a short window": ([TAIL], True, (ACK, LONELY, FAULT, ACK, ACK)),
    "two reads": (
        [WINDOW + events_of(1), events_of(2)],
        True,
        ("6 ack 2", LONELY, "61 fault", "6 ack 2", "6 ack 2"),
    ),
    "not safe": (
        [TAIL],
        False,
        ("8 alive, 11 alive", LONELY, FAULT, LONELY, "8 alive, 11 alive"),
    ),
    "full and not safe": (
        [encode_window(2) + events_of(1, 2)],
        False,
        (ALIVE, ALIVE, ALIVE, LONELY, ALIVE),
    ),
    "full and not safe, version 1": (
        [encode_window(2, V1) + events_of(1, 2, version=V1)],
        False,
        (LONELY,) * 5,
    ),
    "full, then short": (
        [encode_window(2) + events_of(1, 2), encode_window(2) + events_of(3)],
        False,
        (ALIVE, ALIVE, ALIVE, LONELY, ALIVE),
    ),
    "version 1, then 2": (
        [encode_window(1, V1) + events_of(1, version=V1), encode_window(1) + events_of(2)],
        False,
        (LONELY,) * 5,
    ),
    "version 2, then 1": (
        [encode_window(1) + events_of(1), encode_window(1, V1) + events_of(2, version=V1)],
        False,
        (LONELY,) * 5,
    ),
    "a head": ([b"2W"], True, (FAULT, LONELY, FAULT, FAULT, LONELY)),
    "a short window and a head": (
        [WINDOW + events_of(1) + b"2J"],
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
        changes = {limit: 0.0 if limit == without else value for limit, value in TIMES.items()}
        reader = Reader(limits(changes))
        now = 0.0
        for now, octets in enumerate(reads):
            for event in reader.receive(octets, now):
                if safe:
                    reader.made_safe(event.position, now)  # type: ignore[union-attr]
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


def test_a_window_which_stays_short_is_acked_after_the_idle_time_and_counting_goes_on():
    """LJ-07, LJ-13: the window's own ack follows when it fills; no frame is acked twice."""
    session = Session()
    session.receive(encode_window(5) + events_of(1, 2, 3))
    assert session.wait(1.01) == [(2, 3)]
    assert session.wait(60) == session.receive(events_of(4)) == []
    assert session.receive(events_of(5, 6)) == [(2, 5)]
    assert session.wait(2) == [(2, 6)]
    assert session.receive(encode_window(2) + events_of(1, 2)) == [(2, 2)]


def test_the_time_of_a_keep_alive_runs_from_when_an_ack_begins_to_wait__LJ_14() -> None:
    """Half a frame behind what is acknowledged waits for nobody."""
    reader = Reader(limits(TIMES))
    (event,) = reader.receive(encode_window(1) + events_of(1) + b"2", 0.0)
    reader.made_safe(event.position, 0.0)  # type: ignore[union-attr]
    assert reader.outputs() == encode_ack(1)
    reader.receive(encode_window(1)[1:] + events_of(1), 10.0)
    told = []
    while (at := reader.deadline) is not None and at < 17.0:
        reader.advance(at)
        told += [at] if reader.outputs() else []
    assert told == [13.0, 16.0]


def test_bytes_of_a_compressed_frame_that_trickle_in_do_not_put_a_keep_alive_off__NB_10() -> None:
    reader = Reader(limits(TIMES))
    told = []
    for at, byte in enumerate(CUT[:12]):
        reader.receive(bytes([byte]), float(at))
        reader.advance(float(at))
        told += [at] if reader.outputs() else []
    assert told == [4, 7, 10]


def test_nothing_is_sent_in_the_moment_in_which_silence_ends_a_connection__LJ_14__LJ_17() -> None:
    """A keep-alive is due as well."""
    changes = {"idle-ack": 0.0, "keepalive": 3.0, "idle-close": 6.0}
    reader = Reader(limits(changes))
    reader.receive(encode_window(1) + events_of(1) + b"2W", 0.0)
    told = []
    while (at := reader.deadline) is not None:
        events = reader.advance(at)
        told.append((at, len(events), reader.outputs()))
    assert told == [(3.0, 0, encode_ack(0)), (6.0, 1, b"")]


# ── Ends ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("safe_before", [True, False])
def test_who_shuts_its_side_is_acknowledged_as_far_as_all_is_safe__LJ_19(
    safe_before: bool,
) -> None:
    """In the call after which both are true, and not after a time."""
    reader = Reader()
    (event,) = reader.receive(encode_window(5) + encode_json([1, 2], [b"a", b"b"]), 0.0)
    assert not isinstance(event, Fault)
    if safe_before:
        reader.made_safe(event.position, 0.0)
        assert reader.outputs() == b""
        reader.ended(0.0)
    else:
        reader.ended(0.0)
        assert (reader.outputs(), reader.finished) == (b"", False)
        reader.made_safe(event.position, 0.0)
    assert (reader.outputs(), reader.finished) == (encode_ack(2), True)


def test_a_reader_which_stops_acks_whole_windows_and_no_part_of_another():
    """LJ-13: two real shippers read exactly one ack a window and do not check it."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(2) + events_of(1, 2, 3))
    session.reader.drain(0.0)
    assert session.state == "DRAINING"
    assert not session.reader.finished
    assert session.receive(events_of(4)) == []
    assert session.safe() == [(2, 2)]
    assert session.reader.finished
    assert session.wait(1000) == []
    session.reader.drain(0.0)


def test_a_reader_which_stops_owes_nothing_for_a_compressed_frame_which_it_has_not_finished():
    """LJ-08."""
    reader = Reader(limits({"slice_bytes": 500}))
    windows = (encode_window(1) + events_of(1)) * 50
    events = reader.receive(encode_compressed(windows), 0.0)
    while not events:
        events = reader.receive(b"", 0.0)
    assert reader.unfinished
    reader.drain(0.0)
    assert reader.finished
    reader.made_safe(events[0].position, 0.0)
    assert reader.outputs() == b""


# ── Captures, and what holds of any stream ────────────────────────────────────────────────────────


FLOWING = [name for name in NAMES if "keepalive" not in name]


def replay(pieces):
    session = Session()
    acks = []
    for piece in pieces:
        acks += session.receive(piece)
    return session, b"".join(encode_ack(number, 0x30 + version) for version, number in acks)


@pytest.mark.parametrize("name", FLOWING)
def test_a_captured_shipper_gets_exactly_the_acks_it_got(name):
    """LJ-02, LJ-03, LJ-04, LJ-06, LJ-08, LJ-11, LJ-13, LJ-20: whole and cut in every way."""
    sent, answered = captured(name)
    whole, acks = replay([sent])
    assert acks == answered
    assert whole.reader.unacknowledged == 0
    held = [frame[2:] for frame in inner_frames(sent) if frame[0] in "JD"]
    assert [event[1:] for event in whole.flat] == held
    assert len(held) == (40 if "w10x4" in name else 15)
    for pieces in splits(sent, everywhere=150):
        session, acks = replay(pieces)
        assert acks == answered
        assert session.flat == whole.flat


def test_the_captured_slow_reader_is_matched_by_ours():
    """LJ-14: keep-alives, then the ack, byte for byte, when the sink is as slow."""
    sent, answered = captured("v2_keepalive_golumber")
    windows = answered.split(encode_ack(5))
    assert windows[-1] == b""
    half = sent.index(encode_window(5), 1)
    session = Session(safe_at_once=False, keepalive=1)
    heard = b""
    for window, keepalives in zip((sent[:half], sent[half:]), windows, strict=False):
        acks = session.receive(window)
        acks += session.wait(len(keepalives) // 6 + 0.5)
        acks += session.safe()
        heard += b"".join(encode_ack(number, 0x30 + version) for version, number in acks)
    assert heard == answered


def test_random_sessions_ack_every_window_once_and_only_what_is_safe():
    """LJ-07, LJ-13: against a slow and simple model which keeps a list of all frames."""
    for seed in range(300):
        source = random.Random(seed)
        session = Session(safe_at_once=False, idle_ack=0, keepalive=0, idle_close=0)
        expected, size, count, tail, number = [], 1, 0, None, 0
        octets = b""
        for _ in range(source.randrange(1, 30)):
            if source.random() < 0.3:
                if tail is not None:
                    expected.append(tail)
                size, count, tail = source.randrange(1, 6), 0, None
                octets += encode_window(size)
            else:
                number = source.randrange(2**32)
                octets += events_of(number)
                count, tail = count + 1, (2, number)
                if count == size:
                    expected.append(tail)
                    count, tail = 0, None
        got = []
        while octets:
            step = source.randrange(1, 40)
            got += session.receive(octets[:step])
            octets = octets[step:]
            if source.random() < 0.5:
                got += session.safe(source.randrange(len(session.waiting) + 1))
        got += session.safe()
        assert (got, session.reader.deadline) == (expected, None), seed


# ── What is given out together, and what it holds ─────────────────────────────────────────────────


def test_short_windows_of_one_read_are_one_event_and_hold_nothing_else_of_it():
    """LJ-17: what an event holds is what it weighs, not the read or the C frame around it."""
    session = Session()
    session.receive((encode_window(2) + encode_json([1, 2], [b"a", b"bc"])) * 3)
    (event,) = session.events
    assert (event.sequences, event.bodies) == ([1, 2] * 3, [b"a", b"bc"] * 3)
    assert len(event.bodies.nbytes) == event.nbytes - 6 * 10 == 3 * 3


def test_long_runs_are_events_of_their_own():
    """LJ-13: they are not copied to be put together; those between them are."""
    count = 64
    window = encode_window(count) + encode_json(range(count), [b"x"] * count)
    short = encode_window(1) + encode_json([7], [b"y"])
    session = Session()
    # Empty batches stand between, because windows of documents alone are one run anyway.
    session.receive(encode_window(0).join([short, short, window, short, window]))
    assert [len(event.sequences) for event in session.events] == [2, count, 1, count]
    assert [event.position for event in session.events] == [2, 66, 67, 131]


def test_the_reader_uses_the_compiled_form_of_the_scan_where_there_is_one():
    (event,) = Reader().receive(encode_data([1], [{"a": "b"}]), 0.0)
    assert (type(event.pairs) is list) is not frames.COMPILED
