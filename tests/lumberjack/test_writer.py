"""The writer's machine: windows, acks, limits, time, what is given back; a foreign reader."""

import random
import tracemalloc
import weakref
import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.doubles import Figures, due, unanswered
from tests.lumberjack.frames import (
    V1,
    V2,
    Session,
    captured,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
    inner_frames,
    windows,
    writer,
)
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.lumberjack.machine import Writer
from twisted_msgproto.testing import splits


def documents(count, start=1):
    return [b"%d" % number for number in range(start, start + count)]


def sent(machine, now=0.0):
    """Flush; the windows which went out, as (announced size, sequences, payloads)."""
    machine.flush(now)
    return windows(machine.outputs())


def flat(events_):
    """Events without the batches' identity."""
    return [
        (type(event).__name__, event.reason)
        if isinstance(event, Fault)
        else (
            type(event).__name__,
            getattr(event, "count", 0),
            [batch.token for batch in getattr(event, "batches", [])],
        )
        for event in events_
    ]


def in_flight(count, **settings):
    """A writer with one window of ``count`` single events in flight, tokens 1 …"""
    machine = writer(**settings)
    for number in range(1, count + 1):
        machine.send([b"%d" % number], number)
    sent(machine)
    return machine


# ── Windows ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "sizes"), [(36, [3, 1]), (35, [2, 2]), (11, [1] * 4), (1, [1] * 4)]
)
def test_a_window_ends_before_it_has_too_many_bytes__LJ_18(octets, sizes):
    """However the events were handed in; one which is larger goes alone."""
    for cuts in ([4], [1, 1, 2], [3, 1], [1] * 4):
        machine = writer({"window_bytes": octets}, pipelining=9)
        documents = [b"1", b"22", b"333", b"4444"]
        for cut in cuts:
            machine.send(documents[:cut])
            del documents[:cut]
        assert [window[0] for window in sent(machine)] == sizes
        assert (machine.unsent, machine.unsent_bytes) == (0, 0)


def test_a_window_is_one_compressed_frame(level=9):
    """LJ-18: W, then everything in one C frame of the level asked for."""
    machine = writer(compress=level)
    machine.send(documents(5))
    machine.flush(0.0)
    octets = machine.outputs()
    frames = encode_json(range(1, 6), documents(5))
    assert octets == encode_window(5) + encode_compressed(frames, level)


def test_what_would_be_above_the_readers_limits_when_compressed_is_written_plain():
    """LJ-17, LJ-18: neither the C frame nor what it inflates to may pass a limit."""
    noise = random.Random(1).randbytes(300)
    machine = writer({"compressed_bytes": 300}, compress=3)
    machine.send([noise])
    machine.flush(0.0)
    assert machine.outputs() == encode_window(1) + encode_json([1], [noise])
    size = len(zlib.compress(encode_json([1], [noise]), 3))
    machine = writer({"compressed_bytes": size}, compress=3)
    machine.send([noise])
    machine.flush(0.0)
    assert machine.outputs()[6:8] == b"2C"
    machine = writer({"inflated_bytes": 109}, compress=3)
    machine.send([b"x" * 100])
    machine.flush(0.0)
    assert machine.outputs()[6:8] == b"2J"


def test_version_1_writes_data_frames_only():
    """LJ-21, LJ-03: pairs, also empty ones; surrogate escapes are bytes again."""
    mappings = [{"a": "1", "schlüssel": "ü"}, {}, {"raw": "\udcff"}]
    machine = writer(version=1)
    machine.send(mappings)
    machine.flush(0.0)
    octets = machine.outputs()
    assert octets == encode_window(3, V1) + encode_data([1, 2, 3], mappings, V1)
    assert octets[6:8] == b"1D"
    assert b"\xff" in octets


# ── Acks ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("written", [1, 2])
def test_acks_of_either_version_byte_are_read_and_0_is_a_keep_alive(version, written):
    """LJ-02, LJ-14, LJ-15, LJ-21: whatever we write, also while nothing is in flight."""
    machine = writer(version=written)
    assert flat(machine.receive(encode_ack(0, version), 0.0)) == [("KeptAlive", 0, [])]
    machine.send([b"{}" if written == 2 else {}])
    sent(machine)
    assert flat(machine.receive(encode_ack(0, version) * 2, 0.0)) == [("KeptAlive", 0, [])] * 2
    assert machine.in_flight == 1
    acked = machine.receive(encode_ack(1, version) * 2, 0.0)  # twice: it could be a later window's
    assert flat(acked) == [("WindowAcknowledged", 1, [None]), ("Fault", "ack")]
    assert acked[-1].text == "an ack of 1 and nothing is in flight"


@pytest.mark.parametrize("sequence", [6, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_an_ack_beyond_what_was_sent_is_a_protocol_error(sequence):
    """LJ-15: nothing of it counts, and everything is given back."""
    machine = in_flight(5)
    (fault,) = machine.receive(encode_ack(sequence), 0.0)
    assert (fault.reason, fault.nbytes) == ("ack", encode_ack(sequence))
    assert fault.text == f"an ack of {sequence} of a window of 5"
    assert machine.snapshot()["state"] == "FAILED"
    assert machine.fault is fault
    assert [batch.token for batch in unanswered(machine)] == [1, 2, 3, 4, 5]


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
        assert machine.snapshot()["state"] == "FAILED"


def test_a_writer_says_what_it_holds_of_an_ack_and_keeps_none_of_it__LJ_21__NB_02():
    writer = in_flight(4)
    for octets, held in ((b"2", 1), (b"A\0\0\0", 5), (b"\1", 0), (b"2A\0", 3)):
        writer.receive(octets, 0.0)
        assert (writer.input_weight, writer.no_partial_input) == (held, not held)
    writer.lost(0.0)
    assert writer.input_weight == 0
    for octets, now in ((b"J", 0.0), (b"", 1000.0)):  # it is no ack, or its end does not come
        writer = in_flight(4)
        writer.receive(b"2", 0.0)
        writer.receive(octets, 0.0)
        writer.advance(now)
        assert writer.fault is not None
        assert (writer.input_weight, writer.no_partial_input) == (0, True)


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "most", "events"),
    [
        ("json-bytes", 5, [b"12345", b"1"]),
        ("unsent-events", 3, [b"1", b"1", b"1"]),
        ("unsent-bytes", 36, [b"1", b"22", b"333"]),
        ("data-bytes", 23, [{"a": "äö"}]),
    ],
)
def test_what_is_at_a_limit_may_be_sent_and_one_more_may_not__LJ_17__LJ_18(name, most, events):
    version = 2 if isinstance(events[0], bytes) else 1
    machine = writer({name: most}, version=version)
    machine.send(events)
    assert [window[2] for window in sent(machine)] == [events]
    assert machine.unsent_bytes == 0
    machine = writer({name: most - 1}, version=version)
    with pytest.raises(LimitExceeded):
        machine.send(events)
    assert (machine.unsent, machine.unsent_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("event", "above"),
    [
        ({str(n): "" for n in range(1024)}, {"more": ""}),
        ({"ü" * 512: "", "k" * 1024: ""}, {"ü" * 512 + "k": ""}),
    ],
)
def test_keys_have_bounds_which_no_option_changes__LJ_17__LJ_18(event, above):
    """What a writer sends at most is what a reader takes."""
    machine = writer(version=1)
    machine.send([event])
    machine.flush(0.0)
    assert Session().receive(machine.outputs()) == [(1, 1)]
    with pytest.raises(LimitExceeded):
        machine.send([event | above])


@pytest.mark.parametrize(
    ("version", "event"),
    [(2, {"a": "b"}), (2, "{}"), (2, bytearray(b"{}")), (1, b"{}"), (1, [("a", "b")])],
)
def test_an_event_of_the_wrong_type_is_the_callers_fault(version, event):
    """LJ-21: documents in version 2, mappings in version 1."""
    with pytest.raises(TypeError, match=f"version {version} sends"):
        writer(version=version).send([event])


# ── Lost connections ──────────────────────────────────────────────────────────────────────────────


def test_a_writer_that_is_lost_keeps_nothing_of_what_it_had_not_sent__NB_02():
    class Token:
        pass

    machine, token = writer(), Token()
    alive = weakref.ref(token)
    machine.send(documents(3), token)
    assert len(unanswered(machine)) == 1
    del token
    assert alive() is None


def test_a_batch_which_is_partly_in_flight_cannot_be_withdrawn():
    """LJ-09: but its rest can, once its start is acknowledged."""
    machine = writer(window=2)
    batch = machine.send(documents(3))
    sent(machine)
    assert not machine.withdraw(batch)
    machine.receive(encode_ack(2), 0.0)
    assert machine.withdraw(batch)
    assert (machine.unsent, machine.unsent_bytes) == (0, 0)
    assert sent(machine) == []


def test_a_failed_or_closed_writer_takes_and_reads_nothing():
    """LJ-15."""
    machine = in_flight(2)
    machine.receive(b"x", 0.0)
    assert machine.snapshot()["state"] == "FAILED"
    with pytest.raises(IllegalTransition):
        machine.send([b"3"])
    assert machine.receive(encode_ack(2), 0.0) == []
    assert machine.outputs() == b""
    assert due(machine, 1e9)[1] is None
    with pytest.raises(IllegalTransition):
        machine.drain(0.0)
    (batch, *_) = unanswered(machine)
    with pytest.raises(IllegalTransition):
        machine.submit(batch)


# ── Draining ──────────────────────────────────────────────────────────────────────────────────────


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
    assert [batch.token for batch in unanswered(machine)] == ["b"]


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────


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


def test_a_writer_that_waits_for_nothing_has_no_time_when_the_transport_goes_on__LJ_15():
    machine = writer()
    machine.paused(1.0)
    machine.resumed(2.0)
    assert machine.deadline is None
    machine.send(documents(1))
    sent(machine, 2.0)
    assert machine.deadline == 32.0
    machine.paused(3.0)
    machine.resumed(4.0)
    machine.advance(32.0)
    assert (machine.deadline, machine.fault) == (34.0, None)
    machine.advance(34.0)
    assert machine.fault is not None


# ── What it counts and shows ──────────────────────────────────────────────────────────────────────


def test_a_writer_counts_and_shows_each_step__LJ_06__LJ_09__LJ_12() -> None:
    writer = Writer(window=2, compress=0, pipelining=2)

    def figures() -> dict[str, Any]:
        names = ("unacknowledged", "wanted", "finished", "deadline")
        own = {name: getattr(writer, name) for name in names}
        return {**asdict(writer.counters), **writer.snapshot(), **own}

    counts = ("windows", "acknowledged", "windows_in_flight", "in_flight")
    assert figures() == {
        **dict.fromkeys((*counts, "unsent", "unsent_bytes", "unacknowledged"), 0),
        **{"state": "IDLE", "window": 2, "wanted": 2, "deadline": None},
        "finished": False,
    }
    changed = Figures(figures)
    batches: list[Any] = []

    def send(*events: bytes) -> None:
        batches.append(writer.send(events))

    steps: list[tuple[Callable[[], object], str, int]] = [
        (
            lambda: send(b"1", b"22", b"333"),
            "unsent=3 unsent_bytes=36 unacknowledged=3 wanted=0",
            0,
        ),
        (lambda: send(b"4444", b"5"), "unsent=5 unsent_bytes=61 unacknowledged=5", 0),
        (lambda: send(b"6"), "unsent=6 unsent_bytes=72 unacknowledged=6", 0),
        (lambda: writer.withdraw(batches[2]), "unsent=5 unsent_bytes=61 unacknowledged=5", 0),
        (
            lambda: writer.flush(1.0),
            "state=BLOCKED windows_in_flight=2 in_flight=4 unsent=1"
            " windows=2 unsent_bytes=11 deadline=31.0",
            62,
        ),
        (lambda: writer.flush(1.5), "", 0),
        (lambda: writer.withdraw(batches[1]), "", 0),
        (lambda: writer.receive(encode_ack(0), 2.0), "", 0),
        (
            lambda: writer.receive(encode_ack(1), 3.0),
            "acknowledged=1 in_flight=3 unacknowledged=4",
            0,
        ),
        (lambda: writer.receive(encode_ack(1), 4.0), "", 0),
        (
            lambda: writer.receive(encode_ack(2), 5.0),
            "acknowledged=2 windows_in_flight=1 in_flight=2 unacknowledged=3"
            " state=FLOWING wanted=1",
            0,
        ),
        (
            lambda: writer.flush(6.0),
            "state=BLOCKED windows_in_flight=2 in_flight=3 unsent=0"
            " windows=3 unsent_bytes=0 wanted=0",
            17,
        ),
        (
            lambda: writer.receive(encode_ack(2), 7.0),
            "acknowledged=4 windows_in_flight=1 in_flight=1"
            " unacknowledged=1 state=FLOWING wanted=2",
            0,
        ),
        (lambda: writer.paused(8.0), "", 0),
        (lambda: writer.resumed(9.0), "deadline=39.0", 0),
        (lambda: writer.advance(38.9), "", 0),
        (lambda: writer.drain(38.9), "state=DRAINING wanted=0", 0),
        (
            lambda: writer.receive(encode_ack(1), 38.9),
            "acknowledged=5 windows_in_flight=0 in_flight=0"
            " unacknowledged=0 finished=True deadline=None",
            0,
        ),
        (lambda: writer.lost(39.0), "state=CLOSED", 0),
    ]
    for number, (step, expected, octets) in enumerate(steps):
        told = {f"{name}={value}" for name, value in changed(step()).items()}
        assert (told, len(writer.outputs())) == ({*expected.split()}, octets), f"step {number}"


def test_an_ack_costs_the_same_however_many_windows_are_in_flight__NB_07():
    """Each copied all of them: with 10,922 windows in flight 64 KiB of acks needed 3.6 s."""
    machine = writer(window=1, pipelining=20_000)
    machine.send([b"{}"] * 20_000)
    sent(machine)
    machine.receive(encode_ack(1), 0.0)
    tracemalloc.start()
    try:
        machine.receive(encode_ack(1), 0.0)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


# ── The recorded answers of Beats' own library ────────────────────────────────────────────────────

# No package with a Lumberjack server could be had from npm, PyPI or Debian, so no foreign reader
# runs live.  What the foreign writer of a recording sent, ours has to send, and what the foreign
# reader answered, ours has to take for just these windows.

RECORDED = {
    "v2_J_plain_golumber_w5": (5, 0, 1),
    "v2_J_zlib_golumber_w5": (5, 3, 1),
    "v2_J_zlib_pipelined_golumber_w10x4": (10, 3, 4),
    "v2_keepalive_golumber": (5, 0, 1),
}
"""Recording → window, compression, pipelining of the foreign writer."""


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_foreign_readers_answers_are_understood(name):
    """LJ-06, LJ-14, LJ-15, LJ-18, LJ-21: plain, compressed, pipelined, and with keep-alives."""
    window, compress, pipelining = RECORDED[name]
    recorded, answers = captured(name)
    bodies = [body for kind, *_, body in inner_frames(recorded) if kind == "J"]
    writer = Writer(window=window, compress=compress, pipelining=pipelining)
    writer.send(bodies)
    writer.flush(0.0)
    sent = writer.outputs()
    acknowledged = kept_alive = 0
    for at in range(0, len(answers), 6):
        for event in writer.receive(answers[at : at + 6], 1.0):
            said = type(event).__name__
            assert said in ("WindowAcknowledged", "KeptAlive"), event
            acknowledged += said == "WindowAcknowledged"
            kept_alive += said == "KeptAlive"
        writer.flush(1.0)
        sent += writer.outputs()
        if not writer.unacknowledged:
            break  # what the recorded reader said to an idle writer is not for this one
    assert writer.unacknowledged == 0
    assert acknowledged == len(bodies) / window
    assert (kept_alive > 0) == ("keepalive" in name)
    # The same windows with the same numbers; plain even the same bytes.
    assert inner_frames(sent) == inner_frames(recorded)
    assert compress or sent == recorded
