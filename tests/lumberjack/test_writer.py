"""The writer's machine: every state and event, windows, acks, limits, resending, time."""

import random
import zlib
from itertools import product

import pytest

from tests.doubles import due, unanswered
from tests.tools.events import splits
from tests.tools.frames import windows_apart
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import IllegalTransition, Machine, events
from twisted_msgproto.lumberjack.machine import Packer, Writer
from twisted_msgproto.lumberjack.terms import (
    WRITER,
    WRITER_LIMITS,
    KeptAlive,
    Parcel,
    PartAcknowledged,
    WindowAcknowledged,
    Writing,
)
from twisted_msgproto.lumberjack.wire import (
    VERSION_1,
    VERSION_2,
    Ack,
    AckDecoder,
    Compressed,
    Data,
    Decoder,
    Json,
    Window,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
)

V1, V2 = VERSION_1, VERSION_2


def limits(**changes):
    return Limits.of(WRITER_LIMITS).replace(
        {name.replace("_", "-"): value for name, value in changes.items()}
    )


def documents(count, start=1):
    return [b"%d" % number for number in range(start, start + count)]


def writer(changes=None, **settings):
    """A plain writer (no compression) unless the settings say otherwise."""
    return Writer(limits(**(changes or {})), **{"compress": 0, "window": 10, **settings})


def sent(machine, now=0.0):
    """Flush; the windows which went out, as (announced size, sequences, payloads)."""
    machine.flush(now)
    return windows(machine.outputs())


def windows(octets):
    found = []
    for frame in windows_apart(Decoder().feed(octets)):
        assert not isinstance(frame, Fault), frame
        if isinstance(frame, Window):
            found.append((frame.size, [], []))
        elif not isinstance(frame, Compressed):
            found[-1][1].extend(frame.sequences)
            found[-1][2].extend(frame.bodies if isinstance(frame, Json) else frame.pairs)
    return found


def flat(events_):
    """Events without the parcels' identity."""
    return [
        (type(event).__name__, event.reason)
        if isinstance(event, Fault)
        else (
            type(event).__name__,
            getattr(event, "count", 0),
            [parcel.token for parcel in getattr(event, "parcels", [])],
        )
        for event in events_
    ]


# ── The table ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "event"), list(product(Writing, [*events(WRITER), Window, Json, Data, Compressed]))
)
def test_every_state_and_event_is_decided(state, event):
    """LJ-05, LJ-09: what the table does not name is refused, a reader's data frames everywhere."""
    machine = Machine(WRITER, state)
    if event in WRITER[state]:
        machine.step(event)
        assert machine.state is WRITER[state][event]
    else:
        with pytest.raises(IllegalTransition):
            machine.step(event)
        assert machine.state is state


def test_every_state_can_be_reached_and_left_for_closed():
    """LJ-15: whatever happens, a lost connection gives everything back."""
    reached, waiting = set(), [Writing.IDLE]
    while waiting:
        state = waiting.pop()
        if state not in reached:
            reached.add(state)
            waiting += WRITER[state].values()
    assert reached == set(Writing)


# ── Windows ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_queued_when_the_writer_may_send_forms_the_window():
    """LJ-18: no waiting for a full window; W announces just what follows."""
    machine = writer()
    machine.send([b"{}"])
    machine.send(documents(2))
    assert sent(machine) == [(3, [1, 2, 3], [b"{}", b"1", b"2"])]


def test_nothing_is_written_while_the_window_is_unacknowledged():
    """LJ-09."""
    machine = writer()
    machine.send(documents(2))
    sent(machine)
    assert machine.state is Writing.BLOCKED
    machine.send(documents(3, 3))
    assert sent(machine) == []
    assert (machine.in_flight, machine.unsent, machine.unacknowledged) == (2, 3, 5)
    machine.receive(encode_ack(2), 1.0)
    assert machine.state is Writing.IDLE
    assert sent(machine) == [(3, [1, 2, 3], documents(3, 3))]


def test_a_window_has_at_most_so_many_events():
    """LJ-18, LJ-12: the rest is the next window, whose sequence begins at 1 again."""
    machine = writer(window=4)
    machine.send(documents(6))
    assert sent(machine) == [(4, [1, 2, 3, 4], documents(4))]
    machine.receive(encode_ack(4), 0.0)
    assert sent(machine) == [(2, [1, 2], documents(2, 5))]


def test_a_window_has_at_most_so_many_octets():
    """LJ-18: 4 MiB of frames by default, here 50; a larger event goes alone."""
    machine = writer({"window_octets": 50})
    machine.send([b"x" * 15, b"y" * 15])  # 25 octets each as frames: just enough
    machine.send([b"z" * 200, b"v" * 5])
    assert [w[2] for w in sent(machine)] == [[b"x" * 15, b"y" * 15]]
    machine.receive(encode_ack(2), 0.0)
    assert [w[2] for w in sent(machine)] == [[b"z" * 200]]
    machine.receive(encode_ack(1), 0.0)
    assert [w[2] for w in sent(machine)] == [[b"v" * 5]]
    assert machine.unsent_octets == 0


def test_a_parcel_is_cut_just_where_the_octets_end():
    """LJ-18: what is just enough still goes."""
    machine = writer({"window_octets": 50})
    machine.send([b"x" * 15, b"y" * 15, b"z" * 15])
    assert [w[2] for w in sent(machine)] == [[b"x" * 15, b"y" * 15]]
    machine.receive(encode_ack(2), 0.0)
    assert [w[2] for w in sent(machine)] == [[b"z" * 15]]


def test_a_parcel_is_cut_where_the_octets_end_even_behind_another():
    """LJ-18."""
    machine = writer({"window_octets": 50})
    machine.send([b"x" * 10])
    machine.send([b"y" * 15, b"z" * 15])
    machine.send([b"v"])
    assert [w[2] for w in sent(machine)] == [[b"x" * 10, b"y" * 15]]
    machine.receive(encode_ack(2), 0.0)
    assert [w[2] for w in sent(machine)] == [[b"z" * 15, b"v"]]


def test_a_parcel_which_does_not_fit_at_all_waits_for_the_next_window():
    """LJ-18."""
    machine = writer({"window_octets": 50})
    machine.send([b"x" * 30])
    machine.send([b"y" * 30])
    assert [w[2] for w in sent(machine)] == [[b"x" * 30]]
    machine.receive(encode_ack(1), 0.0)
    assert [w[2] for w in sent(machine)] == [[b"y" * 30]]


def test_the_default_bounds_of_a_window():
    """LJ-18: 2048 events and 4 MiB."""
    machine = Writer()
    machine.send([b"x"] * 5000)
    assert [w[0] for w in sent(machine)] == [2048]
    machine = Writer(compress=0)
    machine.send([b"x" * (1 << 20)] * 5)
    machine.flush(0.0)
    assert len(machine.outputs()) <= (4 << 20) + 6
    assert machine.in_flight == 3


@pytest.mark.parametrize("level", [1, 3, 9])
def test_a_window_is_one_compressed_frame(level):
    """LJ-18: W, then everything in one C frame of the level asked for."""
    machine = writer(compress=level)
    machine.send(documents(5))
    machine.flush(0.0)
    octets = machine.outputs()
    frames = encode_json(range(1, 6), documents(5))
    assert octets == encode_window(5) + encode_compressed(frames, level)
    assert machine.counters.octets == len(octets)
    assert machine.counters.octets_uncompressed == 6 + len(frames)


def test_level_0_writes_plain_frames():
    """LJ-18."""
    machine = writer(compress=0)
    machine.send(documents(2))
    machine.flush(0.0)
    assert machine.outputs() == encode_window(2) + encode_json([1, 2], documents(2))
    assert machine.counters.octets == machine.counters.octets_uncompressed


def test_what_would_be_above_the_readers_limits_when_compressed_is_written_plain():
    """LJ-17, LJ-18: neither the C frame nor what it inflates to may pass a limit."""
    noise = random.Random(1).randbytes(300)
    machine = writer({"compressed_octets": 300}, compress=3)
    machine.send([noise])
    machine.flush(0.0)
    assert machine.outputs() == encode_window(1) + encode_json([1], [noise])
    size = len(zlib.compress(encode_json([1], [noise]), 3))
    machine = writer({"compressed_octets": size}, compress=3)
    machine.send([noise])
    machine.flush(0.0)
    assert machine.outputs()[6:8] == b"2C"
    machine = writer({"inflated_octets": 109}, compress=3)
    machine.send([b"x" * 100])
    machine.flush(0.0)
    assert machine.outputs()[6:8] == b"2J"


def test_version_2_writes_json_frames_only():
    """LJ-21: the default; every version octet is 2."""
    machine = Writer(compress=0)
    machine.send([b'{"a": 1}'])
    machine.flush(0.0)
    assert machine.outputs() == b"2W\0\0\0\1" + b"2J\0\0\0\1\0\0\0\x08" + b'{"a": 1}'


def test_version_1_writes_data_frames_only():
    """LJ-21, LJ-03: pairs, also empty ones; surrogate escapes are octets again."""
    mappings = [{"a": "1", "schlüssel": "ü"}, {}, {"raw": "\udcff"}]
    machine = writer(version=1)
    machine.send(mappings)
    machine.flush(0.0)
    octets = machine.outputs()
    assert octets == encode_window(3, V1) + encode_data([1, 2, 3], mappings, V1)
    assert octets[6:8] == b"1D"
    assert b"\xff" in octets


def test_version_1_compresses_with_its_own_version_octet():
    """LJ-21: one version a connection."""
    machine = writer(version=1, compress=3)
    machine.send([{"a": "b"}])
    machine.flush(0.0)
    octets = machine.outputs()
    assert octets == encode_window(1, V1) + encode_compressed(
        encode_data([1], [{"a": "b"}], V1), 3, V1
    )


# ── Acks ────────────────────────────────────────────────────────────────────────────────────────


def in_flight(count, **settings):
    """A writer with one window of ``count`` single events in flight, tokens 1 …"""
    machine = writer(**settings)
    for number in range(1, count + 1):
        machine.send([b"%d" % number], number)
    sent(machine)
    return machine


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("written", [1, 2])
def test_an_ack_of_either_version_octet_is_read(version, written):
    """LJ-21, LJ-02."""
    machine = writer(version=written)
    machine.send([b"{}" if written == 2 else {}])
    sent(machine)
    assert flat(machine.receive(encode_ack(1, version), 0.0)) == [("WindowAcknowledged", 1, [None])]


def test_an_ack_covers_all_before_it():
    """LJ-06."""
    machine = in_flight(6)
    events_ = machine.receive(encode_ack(6), 0.0)
    assert flat(events_) == [("WindowAcknowledged", 6, [1, 2, 3, 4, 5, 6])]
    assert (machine.counters.acknowledged, machine.counters.acks) == (6, 1)
    assert machine.unacknowledged == 0


def test_a_partial_ack_is_progress_and_does_not_end_the_window():
    """LJ-15: the writer stays blocked until the rest is acknowledged."""
    machine = in_flight(5)
    machine.send([b"6"], 6)
    assert flat(machine.receive(encode_ack(2), 0.0)) == [("PartAcknowledged", 2, [1, 2])]
    assert machine.state is Writing.BLOCKED
    assert sent(machine) == []
    assert flat(machine.receive(encode_ack(3) + encode_ack(5), 0.0)) == [
        ("PartAcknowledged", 1, [3]),
        ("WindowAcknowledged", 2, [4, 5]),
    ]
    assert [w[2] for w in sent(machine)] == [[b"6"]]


def test_a_parcel_is_acknowledged_with_its_last_event():
    """LJ-09: also when it spans windows."""
    machine = writer(window=2)
    parcel = machine.send(documents(3), "all")
    sent(machine)
    assert flat(machine.receive(encode_ack(1), 0.0)) == [("PartAcknowledged", 1, [])]
    assert flat(machine.receive(encode_ack(2), 0.0)) == [("WindowAcknowledged", 1, [])]
    assert (parcel.acknowledged, parcel.missing) == (2, 1)
    sent(machine)
    assert flat(machine.receive(encode_ack(1), 0.0)) == [("WindowAcknowledged", 1, ["all"])]


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("written", [1, 2])
def test_ack_0_is_a_keep_alive_whatever_we_write(version, written):
    """LJ-15, LJ-14: in either version octet, also while nothing is in flight."""
    machine = writer(version=written)
    assert flat(machine.receive(encode_ack(0, version), 0.0)) == [("KeptAlive", 0, [])]
    machine.send([b"{}" if written == 2 else {}])
    sent(machine)
    assert flat(machine.receive(encode_ack(0, version) * 2, 0.0)) == [("KeptAlive", 0, [])] * 2
    assert machine.in_flight == 1
    assert machine.counters.keepalives == 3


def test_an_ack_which_is_repeated_covers_nothing_new():
    """LJ-15: readers which tell their progress again and again are alive, and no more."""
    machine = in_flight(5)
    events_ = machine.receive(encode_ack(3) + encode_ack(3) + encode_ack(1), 0.0)
    assert flat(events_) == [
        ("PartAcknowledged", 3, [1, 2, 3]),
        ("KeptAlive", 0, []),
        ("KeptAlive", 0, []),
    ]
    assert machine.in_flight == 2


@pytest.mark.parametrize("sequence", [6, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_an_ack_beyond_what_was_sent_is_a_protocol_error(sequence):
    """LJ-15: nothing of it counts, and everything is given back."""
    machine = in_flight(5)
    (fault,) = machine.receive(encode_ack(sequence), 0.0)
    assert (fault.reason, fault.octets) == ("ack", encode_ack(sequence))
    assert fault.text == f"an ack of {sequence} of a window of 5"
    assert machine.state is Writing.FAILED
    assert machine.fault is fault
    assert [parcel.token for parcel in unanswered(machine)] == [1, 2, 3, 4, 5]


def test_an_ack_while_nothing_is_in_flight_is_a_protocol_error():
    """LJ-15: it could only be taken for the ack of a later window."""
    machine = in_flight(1)
    events_ = machine.receive(encode_ack(1) * 2, 0.0)
    assert flat(events_) == [("WindowAcknowledged", 1, [1]), ("Fault", "ack")]
    assert events_[-1].text == "an ack of 1 and nothing is in flight"


@pytest.mark.parametrize("sequence", [0, 1, 5, 6])
def test_nothing_is_read_behind_an_ack_that_is_wrong(sequence):
    """LJ-15: neither in the same read nor later."""
    machine = in_flight(5)
    events_ = machine.receive(encode_ack(6) + encode_ack(sequence), 0.0)
    assert flat(events_) == [("Fault", "ack")]
    assert machine.receive(encode_ack(sequence), 0.0) == []
    assert [parcel.token for parcel in unanswered(machine)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"3A\0\0\0\1", "version"),
        (b"HTTP/1.1 400 Bad Request", "version"),
        (b"\x15\x03\x03\0\x02", "version"),
        (b"2X\0\0\0\1", "frame-type"),
        (encode_window(1), "wrong-role"),
        (encode_json([1], [b"{}"]), "wrong-role"),
        (encode_data([1], [{}]), "wrong-role"),
        (encode_compressed(encode_ack(1)), "wrong-role"),
    ],
)
def test_a_reader_sends_acks_and_nothing_else(octets, reason):
    """LJ-02, LJ-05: what came before it counts, nothing after it does."""
    machine = in_flight(3)
    octets = encode_ack(2) + octets + encode_ack(3)
    for pieces in splits(octets):
        machine = in_flight(3)
        events_ = [event for piece in pieces for event in machine.receive(piece, 0.0)]
        assert flat(events_) == [("PartAcknowledged", 2, [1, 2]), ("Fault", reason)]
        assert machine.state is Writing.FAILED


def test_a_wrong_octet_is_seen_as_soon_as_it_is_there():
    """LJ-17: a hostile reader makes a writer hold five octets at most."""
    decoder = AckDecoder()
    assert decoder.feed(b"2A\0\0\0") == []
    (ack, fault) = decoder.feed(b"\1" + b"J")
    assert ack == Ack(V2, 1)
    assert (fault.reason, fault.octets) == ("version", b"J")
    assert decoder.feed(encode_ack(1)) == []
    (fault,) = AckDecoder().feed(b"2J")
    assert (fault.reason, fault.text) == ("wrong-role", "a frame 'J' from a reader")


def test_a_writer_says_what_it_holds_of_an_ack_and_keeps_none_of_it__LJ_21__NB_02():
    writer = in_flight(4)
    for octets, held in ((b"2", 1), (b"A\0\0\0", 5), (b"\1", 0), (b"2A\0", 3)):
        writer.receive(octets, 0.0)
        assert (writer.held, writer.whole) == (held, not held)
    writer.lost(0.0)
    assert writer.held == 0
    for octets, now in ((b"J", 0.0), (b"", 1000.0)):  # it is no ack, or its end does not come
        writer = in_flight(4)
        writer.receive(b"2", 0.0)
        writer.receive(octets, 0.0)
        writer.advance(now)
        assert writer.fault is not None
        assert (writer.held, writer.whole) == (0, True)


def test_every_split_of_acks_gives_the_same_events():
    """LJ-20."""
    octets = b"".join(map(encode_ack, [0, 1, 3, 3, 0, 4]))
    expected = None
    for pieces in splits(octets):
        machine = in_flight(4)
        events_ = flat(event for piece in pieces for event in machine.receive(piece, 0.0))
        expected = expected or events_
        assert events_ == expected
    assert expected[-1] == ("WindowAcknowledged", 1, [4])


# ── Pipelining ──────────────────────────────────────────────────────────────────────────────────


def test_with_pipelining_more_windows_are_in_flight():
    """LJ-18: and no more than that."""
    machine = writer(window=2, pipelining=3)
    machine.send(documents(9))
    assert [w[2] for w in sent(machine)] == [documents(2), documents(2, 3), documents(2, 5)]
    assert machine.state is Writing.BLOCKED
    assert (machine.capacity, machine.in_flight, machine.full) == (6, 6, True)


def test_acks_belong_to_the_oldest_window_in_flight():
    """LJ-18."""
    machine = writer(window=2, pipelining=2)
    for number in range(1, 6):
        machine.send([b"%d" % number], number)
    sent(machine)
    assert flat(machine.receive(encode_ack(1), 0.0)) == [("PartAcknowledged", 1, [1])]
    assert flat(machine.receive(encode_ack(2), 0.0)) == [("WindowAcknowledged", 1, [2])]
    assert machine.state is Writing.FLOWING
    assert [w[2] for w in sent(machine)] == [[b"5"]]
    assert machine.state is Writing.BLOCKED
    assert flat(machine.receive(encode_ack(2) + encode_ack(1), 0.0)) == [
        ("WindowAcknowledged", 2, [3, 4]),
        ("WindowAcknowledged", 1, [5]),
    ]
    assert machine.state is Writing.IDLE


def test_a_window_may_follow_while_another_is_in_flight():
    """LJ-18: FLOWING is between idle and blocked."""
    machine = writer(window=5, pipelining=2)
    machine.send(documents(2))
    sent(machine)
    assert machine.state is Writing.FLOWING
    assert machine.wanted == 5
    machine.send([b"x"])
    assert machine.wanted == 4
    assert flat(machine.receive(encode_ack(1), 0.0)) == [("PartAcknowledged", 1, [])]
    assert [w[2] for w in sent(machine)] == [[b"x"]]
    assert machine.wanted == 0
    assert flat(machine.receive(encode_ack(0) + encode_ack(3), 0.0))[-1] == ("Fault", "ack")


# ── Limits ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "event", "text"),
    [
        (2, b"x" * 101, "a document of 101 octets, at most 100"),
        (1, {str(n): "" for n in range(1025)}, "1025 pairs, at most 1024"),
        (1, {"k" * 1025: ""}, "a key of 1025 octets, at most 1024"),
        (1, {"ü" * 513: ""}, "a key of 1026 octets, at most 1024"),
        (1, {"k": "v" * 20_001}, "a value of 20001 octets, at most 20000"),
        (1, {"k": "v" * 9000, "l": "v" * 10_990}, "pairs of 20012 octets, at most 20000"),
    ],
)
def test_an_event_above_a_limit_is_never_written(version, event, text):
    """LJ-18, LJ-17: nor is the rest of its parcel."""
    changes = {
        "json_octets": 100,
        "data_octets": 20_000,
    }
    machine = writer(changes, version=version)
    good = {"a": "b"} if version == 1 else b"{}"
    with pytest.raises(LimitExceeded, match=text):
        machine.send([good, event])
    assert sent(machine) == []
    assert machine.unsent == 0
    machine.send([good])
    assert machine.unsent == 1


@pytest.mark.parametrize(
    ("version", "event"),
    [
        (2, b"x" * 100),
        (1, {str(n): "" for n in range(1024)}),
        (1, {"k" * 1024: "v" * 30, "ü" * 512: ""}),
        (1, {"k": "v" * 9000, "l": "v" * 10_972}),
    ],
)
def test_an_event_at_its_limits_is_written_and_read(version, event):
    """LJ-17: both sides agree on what is just enough."""
    changes = {
        "json_octets": 100,
        "data_octets": 20_000,
    }
    machine = writer(changes, version=version)
    machine.send([event])
    machine.flush(0.0)
    frames = Decoder(limits(**changes)).feed(machine.outputs())
    run = frames[-1]
    assert (run.bodies if version == 2 else run.pairs) == [event]


def test_the_size_of_a_data_frame_is_counted_as_the_reader_counts_it():
    """LJ-17."""
    event = {"k": "v" * 20}
    size = len(encode_data([1], [event]))
    Packer(limits(data_octets=size), 1).pack([event])
    with pytest.raises(LimitExceeded):
        Packer(limits(data_octets=size - 1), 1).pack([event])


@pytest.mark.parametrize(
    ("version", "event"),
    [(2, {"a": "b"}), (2, "{}"), (2, bytearray(b"{}")), (1, b"{}"), (1, [("a", "b")])],
)
def test_an_event_of_the_wrong_type_is_the_callers_fault(version, event):
    """LJ-21: documents in version 2, mappings in version 1."""
    with pytest.raises(TypeError, match=f"version {version} sends"):
        writer(version=version).send([event])


@pytest.mark.parametrize("version", [1, 2])
def test_a_parcel_has_at_least_one_event(version):
    with pytest.raises(ValueError, match="no events"):
        writer(version=version).send([])


@pytest.mark.parametrize(
    "settings",
    [
        {"version": 3},
        {"window": 0},
        {"window": 65_537},
        {"compress": -1},
        {"compress": 10},
        {"pipelining": 0},
    ],
)
def test_settings_which_cannot_be_are_refused(settings):
    """LJ-17: no window above what readers take."""
    with pytest.raises(ValueError):
        Writer(**settings)
    Writer(window=16384, version=1, compress=9, pipelining=100)


def test_what_waits_is_bounded():
    """LJ-09: by events and by octets; nothing of the event above the bound is kept."""
    machine = writer({"unsent_events": 3})
    machine.send(documents(2))
    with pytest.raises(LimitExceeded, match="2 events wait"):
        machine.send(documents(2))
    machine.send([b"x"])
    sent(machine)  # what is in flight does not wait any more
    machine.send(documents(3))
    machine = writer({"unsent_octets": 24})
    machine.send([b"12"])
    with pytest.raises(LimitExceeded):
        machine.send([b"123"])
    machine.send([b"12"])
    assert machine.unsent_octets == 24


# ── Lost connections ────────────────────────────────────────────────────────────────────────────


def test_a_lost_connection_gives_back_everything_unacknowledged_in_order():
    """LJ-15: of two windows in flight and of the queue, each parcel once."""
    machine = writer(window=2, pipelining=2)
    machine.send([b"1"], "a")
    machine.send(documents(4, 2), "b")  # acknowledged, in flight twice, and queued
    machine.send([b"6"], "c")
    sent(machine)
    machine.receive(encode_ack(2), 0.0)
    sent(machine)
    machine.receive(encode_ack(1), 0.0)
    parcels = unanswered(machine)
    assert [(parcel.token, parcel.acknowledged) for parcel in parcels] == [("b", 2), ("c", 0)]
    assert (machine.unsent, machine.unsent_octets, machine.in_flight) == (0, 0, 0)
    assert machine.state is Writing.CLOSED
    assert unanswered(machine) == []
    assert machine.outputs() == b""

    other = writer()
    for parcel in parcels:
        other.submit(parcel)
    assert other.unsent == 3
    assert sent(other) == [(3, [1, 2, 3], [b"4", b"5", b"6"])]
    assert flat(other.receive(encode_ack(3), 0.0)) == [("WindowAcknowledged", 3, ["b", "c"])]
    assert (other.unsent_octets, other.unacknowledged) == (0, 0)


def test_what_is_formed_and_not_written_yet_is_given_back_too():
    """LJ-15."""
    machine = writer()
    machine.send([b"1"], "a")
    machine.flush(0.0)
    assert [parcel.token for parcel in unanswered(machine)] == ["a"]
    assert machine.outputs() == b""


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_lost_every_event_arrives_in_order_at_last(seed):
    """LJ-15: at least once; the first arrivals are in order, and no event is missing."""
    chance = random.Random(seed)
    arrived, done = [], []
    parcels = []
    number = 0
    for token in range(20):
        events_ = documents(chance.randint(1, 7), number)
        number += len(events_)
        parcels.append(Packer(limits(), 2).pack(events_, token))
    for _ in range(500):
        machine = writer(window=chance.randint(1, 6), pipelining=chance.randint(1, 3))
        for parcel in parcels:
            machine.submit(parcel)
        for _ in range(chance.randint(0, 4)):
            for size, _, payloads in sent(machine):
                kept = chance.randint(0, size)
                arrived += payloads[:kept]
                if chance.random() < 0.7 and kept:
                    for event in machine.receive(encode_ack(kept), 0.0):
                        done += [parcel.token for parcel in event.parcels]
                if kept < size:
                    break
            if machine.in_flight:
                break
        parcels = unanswered(machine)
        if not parcels:
            break
    assert not parcels
    assert done == list(range(20))
    assert list(dict.fromkeys(arrived)) == documents(number, 0)


def test_a_parcel_can_be_withdrawn_while_nothing_of_it_is_in_flight():
    """LJ-09: cancelled Deferreds write nothing; what is in flight stays."""
    machine = writer(window=2)
    parcels = [machine.send(documents(2), token) for token in "abc"]
    sent(machine)
    assert not machine.withdraw(parcels[0])
    assert machine.withdraw(parcels[1])
    assert not machine.withdraw(parcels[1])
    assert (machine.unsent, machine.unsent_octets) == (2, 22)
    machine.receive(encode_ack(2), 0.0)
    sent(machine)
    assert [parcel.token for parcel in unanswered(machine)] == ["c"]


def test_a_parcel_which_is_partly_in_flight_cannot_be_withdrawn():
    """LJ-09: but its rest can, once its start is acknowledged."""
    machine = writer(window=2)
    parcel = machine.send(documents(3))
    sent(machine)
    assert not machine.withdraw(parcel)
    machine.receive(encode_ack(2), 0.0)
    assert machine.withdraw(parcel)
    assert (machine.unsent, machine.unsent_octets) == (0, 0)
    assert sent(machine) == []


def test_a_failed_or_closed_writer_takes_and_reads_nothing():
    """LJ-15."""
    machine = in_flight(2)
    machine.receive(b"x", 0.0)
    assert machine.state is Writing.FAILED
    with pytest.raises(IllegalTransition):
        machine.send([b"3"])
    assert machine.receive(encode_ack(2), 0.0) == []
    assert machine.outputs() == b""
    assert due(machine, 1e9)[1] is None
    with pytest.raises(IllegalTransition):
        machine.drain(0.0)
    machine.lost(0.0)
    with pytest.raises(IllegalTransition):
        machine.submit(Parcel([b"3"], 11))


# ── Draining ────────────────────────────────────────────────────────────────────────────────────


def test_a_draining_writer_awaits_what_is_in_flight_and_sends_no_more():
    """LJ-15, ttl: what is queued goes to the next connection."""
    machine = writer(window=2)
    machine.send(documents(2), "a")
    machine.send([b"3"], "b")
    sent(machine)
    assert not machine.finished
    machine.drain(0.0)
    machine.drain(0.0)
    assert not machine.finished
    assert machine.wanted == 0
    machine.receive(encode_ack(0), 0.0)
    machine.receive(encode_ack(1), 0.0)
    machine.receive(encode_ack(2), 0.0)
    assert machine.finished
    assert sent(machine) == []
    with pytest.raises(IllegalTransition):
        machine.send([b"4"])
    assert [parcel.token for parcel in unanswered(machine)] == ["b"]


def test_an_idle_writer_is_drained_at_once():
    """LJ-15, ttl."""
    machine = writer()
    machine.drain(0.0)
    assert machine.finished


def test_a_draining_writer_with_several_windows_is_drained_after_the_last():
    """LJ-15, LJ-18."""
    machine = writer(window=1, pipelining=2)
    machine.send(documents(2))
    sent(machine)
    machine.drain(0.0)
    machine.receive(encode_ack(1), 0.0)
    assert not machine.finished
    machine.receive(encode_ack(1), 0.0)
    assert machine.finished


# ── Time ────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_which_stays_silent_is_left():
    """LJ-15: after the timeout, counted from the window; never while nothing is in flight."""
    machine = writer({"timeout": 30})
    assert due(machine, 1000.0)[1] is None
    machine.send([b"1"], "a")
    sent(machine, 1000.0)
    assert due(machine, 1000.0)[1] == 1030.0
    assert due(machine, 1029.9)[1] == 1030.0
    assert machine.fault is None
    assert due(machine, 1030.0)[1] is None
    assert machine.fault.reason == "timeout"
    assert machine.fault.text == "no ack for 30 s"
    assert machine.state is Writing.FAILED
    assert [parcel.token for parcel in unanswered(machine)] == ["a"]


@pytest.mark.parametrize("sequence", [0, 1])
def test_every_sign_of_life_gives_the_reader_its_time_again(sequence):
    """LJ-15, LJ-14: keep-alives and partial acks."""
    machine = writer({"timeout": 30})
    machine.send(documents(2))
    sent(machine, 0.0)
    machine.receive(encode_ack(sequence), 20.0)
    assert due(machine, 30.0)[1] == 50.0
    machine.receive(encode_ack(2), 40.0)
    assert due(machine, 50.0)[1] is None
    assert machine.fault is None


def test_a_further_window_does_not_prolong_the_wait_for_the_oldest():
    """LJ-15, LJ-18."""
    machine = writer({"timeout": 30}, pipelining=2)
    machine.send([b"1"])
    sent(machine, 0.0)
    machine.send([b"2"])
    sent(machine, 20.0)
    assert due(machine, 20.0)[1] == 30.0


def test_timeout_0_waits_for_ever():
    """LJ-15: an option."""
    machine = writer({"timeout": 0})
    machine.send([b"1"])
    sent(machine, 0.0)
    assert due(machine, 1e9)[1] is None
    assert machine.fault is None


def test_silence_means_nothing_while_our_octets_have_not_left():
    """LJ-15: a slow line is no slow reader."""
    machine = writer({"timeout": 30})
    machine.send([b"1"])
    sent(machine, 0.0)
    machine.paused(1.0)
    assert due(machine, 100.0)[1] is None
    machine.resumed(100.0)
    assert due(machine, 100.0)[1] == 130.0


# ── What it tells ───────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_is_plain_values():
    machine = writer(window=2)
    machine.send(documents(3))
    sent(machine)
    machine.receive(encode_ack(1), 0.0)
    assert machine.snapshot() == {
        "state": "BLOCKED",
        "window": 2,
        "windows_in_flight": 1,
        "in_flight": 1,
        "unsent": 1,
        "unsent_octets": 11,
        "acknowledged": 1,
    }


def test_the_counters_count_what_was_written_and_acknowledged():
    machine = writer(window=2)
    machine.send(documents(3))
    sent(machine)
    machine.receive(encode_ack(0) + encode_ack(1) + encode_ack(2), 0.0)
    sent(machine)
    counters = machine.counters
    assert (counters.events, counters.windows, counters.acks) == (3, 2, 2)
    assert (counters.acknowledged, counters.keepalives) == (2, 1)


def test_full_says_when_a_producer_must_wait():
    """LJ-09: in flight and queued count alike."""
    machine = writer(window=3)
    machine.send([b"1"])
    sent(machine)
    machine.send([b"2"])
    assert not machine.full
    machine.send([b"3"])
    assert machine.full
    machine.receive(encode_ack(1), 0.0)
    assert not machine.full


def test_flush_tells_how_many_windows_it_formed():
    machine = writer(window=1, pipelining=2)
    machine.send(documents(3))
    assert machine.flush(0.0) == 2
    assert machine.flush(0.0) == 0


def test_events_are_plain_and_comparable():
    assert PartAcknowledged(1, []) == PartAcknowledged(1, [])
    assert WindowAcknowledged(1, []) != WindowAcknowledged(2, [])
    assert KeptAlive() == KeptAlive()


def test_the_event_of_a_silent_reader_is_its_fault():
    """LJ-15: a connection closes for what the machine returns."""
    machine = writer({"timeout": 30})
    machine.send([b"1"])
    sent(machine, 0.0)
    assert machine.advance(29.0) == []
    assert machine.advance(30.0) == [machine.fault]
    assert machine.advance(31.0) == []
