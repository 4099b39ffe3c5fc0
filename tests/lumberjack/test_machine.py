"""The reader's machine: every state and event, windows, acks, idle times, keep-alives, captures."""

import random
import struct
import tracemalloc
from itertools import product
from pathlib import Path

import pytest

from tests.doubles import due, unanswered
from tests.tools.events import flatten, splits
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import IllegalTransition, Machine, events
from twisted_msgproto.core.packed import PACKED_MIN
from twisted_msgproto.lumberjack.machine import Reader
from twisted_msgproto.lumberjack.terms import READER, READER_LIMITS, DataReceived, Reading
from twisted_msgproto.lumberjack.wire import (
    VERSION_1,
    VERSION_2,
    Ack,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
)

pytestmark = pytest.mark.usefixtures("form")

V1, V2 = VERSION_1, VERSION_2
CAPTURES = Path(__file__).parent.parent / "data" / "lumberjack"


def limits(**changes):
    return Limits.of(READER_LIMITS).replace(
        {name.replace("_", "-"): value for name, value in changes.items()}
    )


class Session:
    """A reader whose sink is safe when told to; a transcript of what went in and came out."""

    def __init__(self, safe_at_once=True, **changes):
        self.reader = Reader(limits(**changes))
        self.now = 0.0
        self.safe_at_once = safe_at_once
        self.events = []
        self.waiting = []

    def receive(self, octets):
        """Read ``octets``; the acks which that gave out, as (version, sequence)."""
        events = self.reader.receive(octets, self.now)
        while self.reader.unfinished:
            events += self.reader.receive(b"", self.now)
        self.events += events
        self.waiting += [event.place for event in events if not isinstance(event, Fault)]
        return self.safe() if self.safe_at_once else self.acks()

    def safe(self, count=None):
        """The sink has made the oldest ``count`` batches safe (None: all)."""
        count = len(self.waiting) if count is None else count
        for _ in range(count):
            self.reader.made_safe(self.waiting.pop(0), self.now)
        return self.acks()

    def acks(self):
        octets = self.reader.outputs()
        assert len(octets) % 6 == 0
        acks = []
        for at in range(0, len(octets), 6):
            version, kind, sequence = struct.unpack_from(">BBI", octets, at)
            assert kind == ord("A")
            acks.append((version - 0x30, sequence))
        return acks

    def wait(self, seconds):
        """Let time pass as a timer would: act at each deadline on the way."""
        end = self.now + seconds
        given = []
        _, deadline = due(self.reader, self.now)
        while deadline is not None and deadline <= end:
            self.now = max(self.now, deadline)
            _, deadline = due(self.reader, self.now)
            given += self.acks()
        self.now = end
        self.reader.advance(end)
        return given + self.acks()

    @property
    def flat(self):
        return flatten(self.events)


def events_of(*numbers, version=V2):
    return encode_json(numbers, [b"%d" % number for number in numbers], version)


# ── The table ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("state", "event"), list(product(Reading, [*events(READER), Ack])))
def test_every_state_and_event_is_decided(state, event):
    """LJ-05, LJ-16: what the table does not name is refused, an Ack everywhere."""
    machine = Machine(READER, state)
    if event in READER[state]:
        machine.step(event)
        assert machine.state is READER[state][event]
    else:
        with pytest.raises(IllegalTransition):
            machine.step(event)
        assert machine.state is state


def test_no_state_lets_a_writer_acknowledge():
    """LJ-05."""
    assert all(Ack not in row for row in READER.values())


def test_an_ack_from_a_writer_closes_without_ack():
    """LJ-05, LJ-16: the line in the log will tell an operator what it was."""
    session = Session()
    assert session.receive(encode_window(2) + events_of(1, 2) + encode_ack(2, V1)) == []
    assert session.flat[-1] == ("fault", "wrong-role")
    assert session.reader.state is Reading.FAILED
    fault = session.reader.fault
    assert fault.text == "a frame 'A' from a writer (Ack is not allowed in state EMPTY)"
    assert fault.octets == encode_ack(2, V1)


# ── Windows ─────────────────────────────────────────────────────────────────────────────────────


def test_before_any_window_each_event_is_a_window():
    """LJ-07."""
    session = Session()
    assert session.receive(events_of(8, 9)) == [(2, 8), (2, 9)]


def test_the_ack_names_the_last_frame_in_order_of_arrival():
    """LJ-06, LJ-11: never a count, never a maximum, never signed."""
    session = Session()
    assert session.receive(encode_window(3) + events_of(0xFFFFFFFE, 0xFFFFFFFF, 0)) == [(2, 0)]
    assert session.receive(events_of(7, 3, 0x80000000)) == [(2, 0x80000000)]
    assert session.receive(events_of(9, 5, 4)) == [(2, 4)]


@pytest.mark.parametrize("start", [0, 1, 17, 2**32 - 3])
def test_any_numbering_is_acknowledged(start):
    """LJ-11, LJ-12: restart at 1, start at 0, any start, roll-over."""
    session = Session()
    numbers = [(start + step) % 2**32 for step in range(6)]
    assert session.receive(encode_window(2) + events_of(*numbers)) == [
        (2, numbers[1]),
        (2, numbers[3]),
        (2, numbers[5]),
    ]


def test_one_window_frame_holds_for_ever():
    """LJ-07: windows follow each other; frames beyond the window belong to the next."""
    session = Session()
    assert session.receive(encode_window(4) + events_of(*range(1, 11))) == [(2, 4), (2, 8)]
    assert session.reader.unacknowledged == 2
    assert session.receive(events_of(11, 12)) == [(2, 12)]


def test_a_new_window_in_the_middle_closes_the_short_one_first():
    """LJ-07, LJ-13: its tail is acked on its own, then counting starts anew."""
    session = Session()
    session.receive(encode_window(5) + events_of(1, 2))
    assert session.receive(encode_window(3)) == [(2, 2)]
    assert session.receive(events_of(1, 2)) == []
    assert session.receive(events_of(3)) == [(2, 3)]


def test_the_tail_of_a_short_window_that_is_safe_does_not_wait_for_the_window_behind_it():
    """LJ-13: its ack leaves with the read that ends it, whatever came in that read as well."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(5) + events_of(1, 2))
    assert session.safe() == []
    assert session.receive(encode_window(1) + events_of(3)) == [(2, 2)]
    assert session.safe() == [(2, 3)]


def test_a_new_window_while_nothing_is_unacknowledged_just_replaces_the_old_one():
    """LJ-07: no ack."""
    session = Session()
    assert session.receive(encode_window(5) + encode_window(2)) == []
    assert session.receive(events_of(1, 2)) == [(2, 2)]


def test_an_empty_window_is_answered_on_version_2_alone_and_changes_nothing():
    """LJ-07."""
    session = Session()
    session.receive(encode_window(3) + events_of(1, 2))
    assert session.receive(encode_window(0, V1)) == []
    assert session.receive(encode_window(0, V2)) == [(2, 0)]
    assert session.reader.state is Reading.FILLING
    assert session.receive(events_of(3)) == [(2, 3)]


def test_the_answer_to_an_empty_window_stands_in_line():
    """LJ-07, LJ-13: acks leave in order."""
    session = Session(safe_at_once=False)
    assert session.receive(encode_window(1) + events_of(4) + encode_window(0)) == []
    assert session.safe() == [(2, 4), (2, 0)]


def test_a_window_above_the_limit_closes():
    """LJ-07, LJ-17."""
    session = Session(window=10)
    session.receive(encode_window(11))
    assert session.flat == [("fault", "window-limit")]


def test_the_ack_carries_the_version_of_the_windows_last_data_frame():
    """LJ-02: some shippers mix versions."""
    session = Session()
    assert session.receive(
        encode_window(2, V2) + events_of(1, version=V2) + events_of(2, version=V1)
    ) == [(1, 2)]
    assert session.receive(events_of(3, version=V1) + events_of(4, version=V2)) == [(2, 4)]


def test_json_is_read_in_both_versions_verbatim():
    """LJ-04: it is not parsed on the receive path."""
    session = Session()
    session.receive(encode_json([1], [b"\xff not json"], V1) + encode_json([2], [b"{}"], V2))
    assert session.flat == [("JsonReceived", 1, b"\xff not json"), ("JsonReceived", 2, b"{}")]


def test_json_and_data_keep_their_order_as_batches():
    """LJ-10: order is kept across kinds."""
    session = Session()
    acks = session.receive(
        encode_window(4) + events_of(1) + encode_data([2, 3], [{"a": "b"}, {}], V2) + events_of(4)
    )
    assert session.flat == [
        ("JsonReceived", 1, b"1"),
        ("DataReceived", 2, {"a": "b"}),
        ("DataReceived", 3, {}),
        ("JsonReceived", 4, b"4"),
    ]
    assert acks == [(2, 4)]


def test_one_read_gives_one_batch_whatever_windows_end_in_it():
    session = Session()
    octets = b"".join(encode_window(2) + events_of(1, 2) for _ in range(5))
    session.receive(octets + b"".join(encode_data([n], [{}]) for n in (1, 2)))
    assert [len(event.sequences) for event in session.events] == [10, 2]
    split = Session()
    split.receive(encode_data([1], [{}]) + encode_window(1) + encode_data([2], [{}]))
    assert [type(event) for event in split.events] == [DataReceived]


def test_windows_inside_of_compressed_frames_and_windows_over_several_of_them():
    """LJ-08: a shipper puts W inside; one window may span several C."""
    session = Session()
    assert session.receive(encode_compressed(encode_window(3) + events_of(1, 2))) == []
    assert session.receive(encode_compressed(events_of(3))) == [(2, 3)]


def test_a_compressed_frame_which_turns_out_partial_acknowledges_nothing_of_it():
    """LJ-08: close without ack, also for windows which were complete in it."""
    whole = encode_window(1) + events_of(1, 2, 3)
    session = Session(slice_octets=200)
    assert session.receive(encode_compressed(whole + b"2J\0")) == []
    assert session.flat[-1] == ("fault", "partial-frame")
    assert Session(slice_octets=200).receive(encode_compressed(whole)) == [(2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("sizes", [(2, 1), (2, 3)])
def test_windows_in_front_of_a_compressed_frame_do_not_wait_for_its_end(sizes):
    """LJ-08, LJ-20: though a turn of decoding which brings them ends in the middle of that frame.

    A short window's ack would come behind those of the windows after it.
    """
    first, second = sizes
    outside = encode_window(first) + events_of(1) + encode_window(second) + events_of(2)
    inside = encode_window(1) + events_of(*range(3, 63))
    octets = outside + encode_window(0) + encode_compressed(inside)
    session = Session(slice_octets=8000)
    events = session.reader.receive(octets, 0.0)
    assert session.reader.unfinished  # the rest of the compressed frame
    for event in events:
        session.reader.made_safe(event.place, 0.0)
    given = [(2, 1), (2, 2), (2, 0)] if second == 1 else [(2, 1), (2, 0)]
    assert session.acks() == given
    rest = session.receive(b"")
    assert rest[-60:] == [(2, sequence) for sequence in range(3, 63)]
    whole = Session()
    assert whole.receive(octets) == given + rest


@pytest.mark.parametrize("frame", [encode_json([7], [b""]), encode_window(0)])
@pytest.mark.parametrize("within", [encode_compressed, bytes])
def test_acks_which_wait_cost_little_more_than_their_octets(frame, within):
    """LJ-08, LJ-13, LJ-17: a small compressed frame may ask for an ack with every few octets."""
    count = 20_000
    octets = within(frame * count)
    session = Session(safe_at_once=False, slice_octets=100_000)
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
    session.waiting += [event.place for event in events]
    sequence = 0 if frame == encode_window(0) else 7
    assert session.safe() == [(2, 1)] + [(2, sequence)] * count
    assert session.reader.counters.acks == count + 1


def test_an_empty_window_inside_of_a_compressed_frame_waits_for_its_end():
    """LJ-07, LJ-08."""
    session = Session()
    assert session.receive(encode_compressed(encode_window(0) + b"2")) == []
    assert Session().receive(encode_compressed(encode_window(0))) == [(2, 0)]


# ── Safe and acknowledged ───────────────────────────────────────────────────────────────────────


def test_events_are_given_out_as_they_arrive_and_acked_when_all_are_safe():
    """LJ-13: not when the window is full; one ack for each completed window."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(4) + events_of(1, 2))
    assert session.flat == [("JsonReceived", 1, b"1"), ("JsonReceived", 2, b"2")]
    assert session.safe() == []
    session.receive(events_of(3, 4))
    assert session.acks() == []
    assert session.safe() == [(2, 4)]


def test_acks_which_fall_due_together_leave_together_in_order():
    """LJ-13."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(1) + events_of(5))
    session.receive(events_of(6))
    session.reader.made_safe(session.waiting[1], 0.0)
    assert session.acks() == []
    session.reader.made_safe(session.waiting[0], 0.0)
    assert session.acks() == [(2, 5), (2, 6)]


def test_nothing_is_acked_after_a_fault_or_after_the_connection_is_lost():
    """LJ-16: close without ack; what is safe stays safe."""
    for end in (lambda reader: reader.receive(b"x", 0.0), lambda r: unanswered(r)):
        session = Session(safe_at_once=False)
        session.receive(encode_window(1) + events_of(1))
        end(session.reader)
        assert session.safe() == []
        assert due(session.reader, 1000.0)[1] is None
        assert session.reader.receive(events_of(2), 0.0) == []


def test_losing_the_connection_twice_changes_nothing():
    session = Session()
    session.reader.lost(0.0)
    session.reader.lost(0.0)
    assert session.reader.state is Reading.CLOSED


# ── Time ────────────────────────────────────────────────────────────────────────────────────────


def test_a_window_which_stays_short_is_acked_after_the_idle_time_and_counting_goes_on():
    """LJ-13: the window's own ack follows when it fills; no frame is acked twice."""
    session = Session()
    session.receive(encode_window(5) + events_of(1, 2, 3))
    assert session.wait(0.99) == []
    assert session.wait(0.02) == [(2, 3)]
    assert session.wait(60) == []
    assert session.receive(events_of(4)) == []
    assert session.receive(events_of(5)) == [(2, 5)]


def test_the_idle_ack_covers_a_tail_once_even_if_a_new_window_follows():
    """LJ-07, LJ-13: a frame is never acked twice."""
    session = Session()
    session.receive(encode_window(5) + events_of(1, 2))
    assert session.wait(2) == [(2, 2)]
    assert session.receive(encode_window(2) + events_of(1, 2)) == [(2, 2)]


def test_each_octet_puts_the_idle_ack_off():
    """LJ-13."""
    session = Session()
    session.receive(encode_window(9) + events_of(1))
    session.wait(0.9)
    session.receive(events_of(2))
    assert session.wait(0.9) == []
    assert session.wait(0.2) == [(2, 2)]


def test_no_idle_ack_while_an_incomplete_frame_is_buffered():
    """LJ-13."""
    session = Session()
    session.receive(encode_window(5) + events_of(1) + events_of(2)[:-1])
    assert session.wait(100) == []
    assert session.receive(events_of(2)[-1:]) == []
    assert session.wait(1.1) == [(2, 2)]


def test_no_idle_ack_while_reading_is_paused():
    """LJ-13: silence of a writer whom nobody reads means nothing."""
    session = Session()
    session.receive(encode_window(5) + events_of(1))
    session.reader.paused(0.5)
    assert session.wait(500) == []
    session.reader.resumed(session.now)
    assert session.wait(0.9) == []
    assert session.wait(0.2) == [(2, 1)]


def test_the_idle_ack_waits_for_the_sink_too():
    """LJ-13."""
    session = Session(safe_at_once=False, keepalive=0)
    session.receive(encode_window(5) + events_of(1))
    assert session.wait(10) == []
    assert session.safe() == [(2, 1)]


def test_idle_zero_turns_the_idle_ack_off_and_a_window_that_stays_open_closes():
    """LJ-13, LJ-17: 120 s with unacknowledged frames and the idle ack off."""
    session = Session(idle_ack=0)
    session.receive(encode_window(5) + events_of(1))
    assert session.wait(119) == []
    assert session.reader.fault is None
    session.wait(2)
    assert session.reader.fault.reason == "idle"
    assert session.reader.state is Reading.FAILED


def test_an_incomplete_frame_may_be_silent_for_the_idle_time_only():
    """LJ-17: and not while we paused reading."""
    session = Session()
    session.receive(events_of(1)[:-1])
    session.reader.paused(0.0)
    session.wait(500)
    assert session.reader.fault is None
    session.reader.resumed(session.now)
    session.wait(119)
    assert session.reader.fault is None
    session.wait(2)
    assert session.reader.fault.reason == "idle"


def test_a_connection_with_nothing_open_may_stay_for_ever():
    """LJ-17: also when closing is off, also in mid-frame."""
    session = Session()
    session.receive(encode_window(2) + events_of(1, 2))
    session.wait(10_000)
    assert session.reader.fault is None
    assert due(session.reader, session.now)[1] is None
    patient = Session(idle_close=0)
    patient.receive(b"2")
    patient.wait(10_000)
    assert patient.reader.fault is None


def test_a_slow_sink_is_bridged_with_keepalives_on_version_2():
    """LJ-14: every 3 s while a window is being made safe, then its ack."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(1) + events_of(7))
    assert session.wait(2.9) == []
    assert session.wait(6.2) == [(2, 0)] * 3
    assert session.safe() == [(2, 7)]
    assert session.wait(60) == []


def test_a_keepalive_is_due_after_the_last_ack():
    """LJ-14."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(1) + events_of(1))
    session.receive(events_of(2))
    session.wait(2)
    assert session.safe(1) == [(2, 1)]
    assert session.wait(2) == []
    assert session.wait(1.1) == [(2, 0)]


@pytest.mark.parametrize("versions", [(V1, V1), (V1, V2), (V2, V1)])
def test_version_1_never_hears_a_keepalive(versions):
    """LJ-14: a v1 client takes it for the ack of its batch; nor does one that mixes."""
    session = Session(safe_at_once=False)
    for number, version in enumerate(versions):
        session.receive(encode_window(1, version) + events_of(number, version=version))
    assert session.wait(60) == []


def test_keepalive_zero_is_off():
    """LJ-14: one v2 client takes any six octets for its ack."""
    session = Session(safe_at_once=False, keepalive=0)
    session.receive(encode_window(1) + events_of(1))
    assert session.wait(60) == []


# ── Half-close ──────────────────────────────────────────────────────────────────────────────────


def test_a_half_closed_writer_gets_its_tail_acked_at_once():
    """LJ-19: no idle wait, also with idle 0; the incomplete frame is dropped."""
    session = Session(idle_ack=0, safe_at_once=False)
    session.receive(encode_window(5) + events_of(1, 2) + events_of(3)[:-1])
    session.reader.ended(0.0)
    assert session.reader.state is Reading.DRAINING
    assert not session.reader.finished
    assert session.safe() == [(2, 2)]
    assert session.reader.finished
    assert session.wait(1000) == []
    assert session.reader.fault is None


def test_a_half_close_with_nothing_owed_is_drained_at_once():
    """LJ-19."""
    session = Session()
    session.receive(encode_window(1) + events_of(1))
    session.reader.ended(0.0)
    assert session.reader.finished
    assert session.acks() == []
    session.reader.ended(0.0)
    assert session.receive(events_of(2)) == []


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_which_stops_acks_whole_windows_and_no_part_of_another():
    """LJ-13: two real shippers read exactly one ack a window and do not check it."""
    session = Session(safe_at_once=False)
    session.receive(encode_window(2) + events_of(1, 2, 3))
    session.reader.drain(0.0)
    assert session.reader.state is Reading.DRAINING
    assert not session.reader.finished
    assert session.receive(events_of(4)) == []
    assert session.safe() == [(2, 2)]
    assert session.reader.finished
    assert session.wait(1000) == []
    session.reader.drain(0.0)


def test_a_reader_which_stops_owes_nothing_for_a_compressed_frame_which_it_has_not_finished():
    """LJ-08."""
    reader = Reader(limits(slice_octets=500))
    windows = (encode_window(1) + events_of(1)) * 50
    events = reader.receive(encode_compressed(windows), 0.0)
    while not events:
        events = reader.receive(b"", 0.0)
    assert reader.unfinished
    reader.drain(0.0)
    assert reader.finished
    reader.made_safe(events[0].place, 0.0)
    assert reader.outputs() == b""


def test_the_snapshot_tells_where_the_reader_stands():
    session = Session(safe_at_once=False)
    session.receive(encode_window(5) + events_of(1, 2) + b"2")
    assert session.reader.snapshot() == {
        "state": "FILLING",
        "window": 5,
        "received": 2,
        "safe": 0,
        "acknowledged": 0,
        "held_octets": 1,
        "paused": False,
    }
    assert session.reader.counters.events == 2


# ── Splits and captures ─────────────────────────────────────────────────────────────────────────


def captured(name):
    return (CAPTURES / f"{name}.c2s.bin").read_bytes(), (CAPTURES / f"{name}.s2c.bin").read_bytes()


NAMES = sorted(path.name.removesuffix(".c2s.bin") for path in CAPTURES.glob("*.c2s.bin"))
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
    count = 40 if "w10x4" in name else 15
    assert len(whole.flat) == count
    for pieces in splits(sent, everywhere=150):
        session, acks = replay(pieces)
        assert acks == answered
        assert session.flat == whole.flat


def test_a_captured_version_1_shipper_sends_what_it_was_given():
    """LJ-03: the pairs of an old Ruby shipper."""
    session, _ = replay([captured("v1_D_zlib_ruby")[0]])
    assert session.flat[0] == (
        "DataReceived",
        1,
        {"line": "ruby event 0 caf\u00e9", "host": "h", "offset": "0"},
    ) or session.flat[0][2].keys() >= {"line", "host"}


def test_the_captured_slow_reader_is_matched_by_ours():
    """LJ-14: keep-alives, then the ack, octet for octet, when the sink is as slow."""
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


def test_the_same_octets_give_the_same_events_acks_and_fault_however_they_are_cut():
    """LJ-20: with windows, both versions, both kinds, compressed frames and a fault at the end."""
    stream = (
        events_of(1)
        + encode_window(3)
        + events_of(1, 2, 3)
        + encode_data([4], [{"a": "b"}], V1)
        + encode_compressed(encode_window(2) + events_of(5, 6, 7))
        + encode_window(0)
        + encode_window(1)
        + events_of(8, version=V1)
        + b"2X\0\0"
    )
    # Acks which were due before the octets of the fault were read are written, no others.
    whole, _ = replay([stream])
    for pieces in splits(stream):
        session, acks = replay(pieces)
        assert session.flat == whole.flat
        expected = b"".join(
            encode_ack(number, version)
            for number, version in [(1, V2), (3, V2), (4, V1), (6, V2), (0, V2), (7, V2), (8, V1)]
        )
        assert expected.startswith(acks)


def test_random_sessions_ack_every_window_once_and_only_what_is_safe():
    """LJ-07, LJ-13: against a slow and simple model which keeps a list of all frames."""
    for seed in range(300):
        source = random.Random(seed)
        session = Session(safe_at_once=False, idle_ack=0, keepalive=0)
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
        assert got == expected, seed


def test_short_windows_of_one_read_are_one_event_and_hold_nothing_else_of_it():
    """LJ-17: what an event holds is what it weighs, not the read or the C frame around it."""
    session = Session()
    session.receive((encode_window(2) + encode_json([1, 2], [b"a", b"bc"])) * 3)
    (event,) = session.events
    assert (event.sequences, event.bodies) == ([1, 2] * 3, [b"a", b"bc"] * 3)
    assert len(event.bodies.octets) == event.octets - 6 * 10 == 3 * 3


def test_a_short_run_does_not_keep_a_long_read_in_memory():
    """LJ-17."""
    session = Session()
    session.receive(encode_json([1], [b"short"]) + encode_data([2], [{"k": "v" * 5000}]))
    assert session.events[0].bodies == [b"short"]
    assert session.events[0].bodies.octets == b"short"


def test_long_runs_are_events_of_their_own():
    """LJ-13: they are not copied to be put together; those between them are."""
    bodies = [b"x"] * PACKED_MIN
    window = encode_window(PACKED_MIN) + encode_json(range(PACKED_MIN), bodies)
    short = encode_window(1) + encode_json([7], [b"y"])
    session = Session()
    # Empty batches stand between, because windows of documents alone are one run anyway.
    session.receive(encode_window(0).join([short, short, window, short, window]))
    assert [len(event.sequences) for event in session.events] == [2, PACKED_MIN, 1, PACKED_MIN]
    assert [event.place for event in session.events] == [2, 66, 67, 131]


def test_windows_which_follow_each_other_in_a_read_are_one_event():
    """LJ-07, LJ-13: each has its ack, the short one as well, and they share a batch."""
    session = Session()
    octets = encode_window(2) + encode_json([1, 2], [b"a", b"b"])
    octets += encode_window(5) + encode_json([1, 2], [b"c", b"d"])  # stays short
    octets += encode_window(1) + encode_json([9], [b"e"]) + encode_json([3], [b"f"])
    acks = session.receive(octets + encode_window(4))
    (event,) = session.events
    assert (event.sequences, event.place) == ([1, 2, 1, 2, 9, 3], 6)
    assert acks == [(2, number) for number in (2, 2, 9, 3)]
    assert session.reader.snapshot()["window"] == 4
    assert session.reader.counters.windows == 3


def test_a_deadline_is_never_later_than_what_is_due():
    """LJ-13, LJ-14: what whoever keeps the reader's timer relies on."""
    pieces = [
        encode_window(2),
        encode_window(0),
        encode_json([1], [b"{}"]),
        encode_json([1], [b"{}"], V1),
        encode_data([2], [{"a": "b"}]),
        encode_json([1], [b"{}"])[:7],
        encode_compressed(encode_json([1, 2, 3], [b""] * 3)),
    ]
    for seed in range(400):
        source = random.Random(seed)
        changes = {
            name: source.choice((0, 1, 2, 5)) for name in ("idle_ack", "keepalive", "idle_close")
        }
        session = Session(safe_at_once=False, **changes)
        reader = session.reader
        steps = [source.choice(("read", "safe", "pause", "resume", "eof")) for _ in range(30)]
        for step in steps:
            session.now += source.choice((0, 0.5, 0.75, 1, 4))
            reader.advance(session.now)
            if reader.fault is not None:
                break
            reader.outputs()
            if step == "read":
                session.receive(source.choice(pieces))
            elif step == "safe" and session.waiting:
                reader.made_safe(session.waiting.pop(0), session.now)
            elif step == "pause":
                reader.paused(session.now)
            elif step == "resume":
                reader.resumed(session.now)
            elif step == "eof" and source.random() < 0.1:
                reader.ended(session.now)
            if reader.fault is not None:
                break
            reader.outputs()
            promised = reader.deadline
            # Before that, a look would find nothing to do.
            reader.deadlines.set("look", session.now)
            early = session.now if promised is None else max(session.now, promised - 0.01)
            assert reader.advance(early) == [], seed
            assert (reader.outputs(), reader.fault) == (b"", None), seed
            deadline = reader.deadline
            assert deadline is None or promised is not None, seed
            assert deadline is None or early < deadline, seed
