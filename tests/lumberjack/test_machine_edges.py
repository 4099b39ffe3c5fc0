"""What seldom happens to the machines of Lumberjack."""

import struct
import tracemalloc
import weakref
from dataclasses import astuple

import pytest

from tests.doubles import unanswered
from tests.lumberjack.test_machine import Session, events_of
from tests.lumberjack.test_writer import documents, sent, writer
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.lumberjack.machine import Reader, Writer
from twisted_msgproto.lumberjack.terms import (
    READER_LIMITS,
    WRITER_LIMITS,
    KeptAlive,
    ReaderCounters,
    Reading,
    WriterCounters,
)
from twisted_msgproto.lumberjack.wire import (
    LIMITS,
    VERSION_1,
    Decoder,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_window,
)


def test_everything_is_counted_from_0():
    assert not any(astuple(ReaderCounters()))
    assert not any(astuple(WriterCounters()))


def test_an_ack_that_comes_again_is_a_sign_of_life__LJ_15():
    machine = writer()
    machine.send(documents(3))
    sent(machine)
    machine.receive(encode_ack(2), 1.0)
    assert machine.receive(encode_ack(2) + encode_ack(1), 2.0) == [KeptAlive(), KeptAlive()]
    assert machine.counters.keepalives == 2


def test_an_ack_of_what_was_never_sent_is_told_with_the_window_it_is_for__LJ_15():
    machine = writer(window=3, pipelining=2)
    machine.send(documents(5))
    sent(machine)
    (fault,) = machine.receive(encode_ack(4), 1.0)
    assert (fault.reason, fault.text) == ("ack", "an ack of 4 of a window of 3")
    assert fault.octets == encode_ack(4)
    idle = writer()
    (fault,) = idle.receive(encode_ack(1), 1.0)
    assert fault.text == "an ack of 1 and nothing is in flight"


def test_acks_of_a_connection_that_is_lost_are_not_written__LJ_16():
    session = Session(safe_at_once=False)
    session.receive(encode_window(1) + events_of(1))
    session.reader.made_safe(session.waiting[0], 0.0)
    session.reader.lost(0.0)
    assert (session.reader.outputs(), session.reader.deadline) == (b"", None)


def test_octets_of_a_frame_that_is_not_whole_are_held__NB_02():
    reader = Reader()
    octets = events_of(1)
    assert (reader.held, reader.whole) == (0, True)
    reader.receive(octets[:-1], 0.0)
    assert (reader.held, reader.whole) == (len(octets) - 1, False)
    reader.receive(octets[-1:], 0.0)
    assert (reader.held, reader.whole) == (0, True)


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
    """NB-02, LJ-17: ten times their octets, which one octet a minute makes wait for hours."""
    reader, octets = Reader(), without_end(pairs)
    tracemalloc.start()
    try:
        Reader().receive(octets, 0.0)  # what stays after the first call is no part of the pairs
        before = tracemalloc.get_traced_memory()[0]
        reader.receive(octets, 0.0)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(octets) < grown < reader.held + 4096


def test_what_never_will_be_safe_is_not_acknowledged_nor_what_follows__LJ_13():
    session = Session(safe_at_once=False)
    session.receive(events_of(1, 2))
    (first,) = session.waiting
    session.reader.not_safe(first, 0.0)
    assert session.acks() == []
    assert session.reader.state is not Reading.FAILED
    assert session.reader.finished
    assert session.reader.receive(events_of(3), 1.0) == []


def test_a_writer_of_version_1_gets_no_keep_alive_between_its_windows__LJ_14():
    session = Session(safe_at_once=False)
    window = encode_window(1, VERSION_1) + events_of(1, version=VERSION_1)
    session.receive(window)
    assert session.wait(60) == []


def test_a_compressed_frame_that_is_read_in_slices_is_named_by_its_beginning_and_held():
    inner = b"".join(encode_data([number], [{"key": "v" * 50}]) for number in range(40))
    outer = encode_compressed(inner)
    decoder = Decoder(Limits.of(LIMITS).replace({"slice-octets": 1000}))
    decoder.feed(outer)
    assert decoder.unfinished
    assert decoder.first_octets == outer[: len(decoder.first_octets)] != b""
    assert decoder.held_octets >= len(outer) - 6


def test_a_fault_within_a_compressed_frame_shows_the_octets_that_are_wrong():
    (fault,) = [
        event
        for event in Decoder().feed(encode_compressed(events_of(1) + b"2Zabc"))
        if isinstance(event, Fault)
    ]
    assert fault.octets[:2] == b"2Z"


def test_a_text_at_its_limit_is_read_although_it_comes_in_parts():
    changes = Limits.of(LIMITS).replace({"data-octets": 2000})
    key, value = "k" * 1024, "v" * 900
    octets = encode_data([1], [{key: value}])
    decoder = Decoder(changes)
    assert decoder.feed(octets[:-1]) == []
    (frame,) = decoder.feed(octets[-1:])
    assert list(frame.pairs) == [{key: value}]
    for pairs in ({key + "k": "v"}, {"abc": "v" * 2001}):
        (fault,) = Decoder(changes).feed(encode_data([1], [pairs])[:-1])
        assert isinstance(fault, Fault)


def test_a_window_as_large_as_the_limit_may_be_asked_for():
    limit = Limits.of(WRITER_LIMITS).replace({"window": 10})
    assert Writer(limit, window=10)
    with pytest.raises(ValueError, match="a window of 1 to 10 events, not 11"):
        Writer(limit, window=11)
    with pytest.raises(ValueError, match="a window of 1 to 10 events, not 0"):
        Writer(limit, window=0)


@pytest.mark.parametrize("frame", [encode_window(0), encode_ack(1)])
def test_short_frames_count_with_their_octets_for_a_turn__NB_10(frame):
    decoder = Decoder(Limits.of(LIMITS).replace({"slice-octets": 10 * (1000 + len(frame))}))
    assert len(decoder.feed(frame * 50)) == 10
    assert decoder.unfinished


def test_an_empty_window_within_a_compressed_frame_is_answered_in_line__LJ_07__LJ_08():
    whole = encode_window(2) + events_of(1, 2)
    octets = encode_compressed(whole + encode_window(0))
    assert Session().receive(octets) == [(2, 2), (2, 0)]


def test_a_decoder_between_two_frames_reads_no_compressed_one():
    decoder = Decoder()
    assert decoder.compressed_version == 0
    decoder.feed(encode_compressed(events_of(1))[:-1])
    assert decoder.compressed_version == b"2"[0]


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


def in_slices(*inner):
    """A reader that has begun with a C frame of these frames, which needs several turns."""
    reader = Reader(Limits.of(READER_LIMITS).replace({"slice-octets": 1000}))
    reader.receive(encode_compressed(b"".join(inner)), 0.0)
    for _ in range(5):
        reader.receive(b"", 1.0)
    assert reader.unfinished
    return reader


def test_an_ack_within_a_compressed_frame_of_a_writer_is_a_fault__LJ_17():
    reader = Reader(Limits.of(READER_LIMITS).replace({"slice-octets": 1000}))
    reader.receive(encode_compressed((events_of(1) + encode_ack(1)) * 80), 0.0)
    while reader.unfinished:
        reader.receive(b"", 1.0)
    assert reader.fault is not None


def test_a_compressed_frame_of_version_1_gets_no_keep_alive_while_it_is_read__LJ_14():
    for version, alive in ((VERSION_1, False), (b"2"[0], True)):
        windows = [encode_window(1, version) + events_of(1, version=version)] * 80
        reader = in_slices(*windows)
        reader.advance(60.0)
        assert bool(reader.outputs()) is alive


@pytest.mark.parametrize(
    "behind", [events_of(1), encode_window(1), encode_window(0), encode_ack(1)]
)
def test_nothing_behind_a_frame_of_the_wrong_role_is_read__LJ_16(behind):
    reader = Reader()
    (fault,) = reader.receive(encode_ack(1) + behind, 0.0)
    assert (fault.reason, fault.octets, reader.fault) == ("wrong-role", encode_ack(1), fault)
    assert (reader.counters.events, reader.outputs(), reader.state) == (0, b"", Reading.FAILED)


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_windows_of_a_compressed_frame_count_full_or_cut_short__NB_10(limit):
    """A window that is cut short is one, and those that are full without a frame of their own."""
    inner = b"".join(
        (encode_window(2), events_of(1, 2, 3, 4, 5), encode_window(3), events_of(6, 7, 8))
    )
    limits = {"slice-octets": 1000, "compressed-windows": limit}
    reader = Reader(Limits.of(READER_LIMITS).replace(limits))
    reader.receive(encode_compressed(inner), 0.0)
    while reader.unfinished and reader.fault is None:
        reader.receive(b"", 1.0)
    assert (reader.fault is None) == (limit == 4)


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


def test_a_writer_that_is_lost_keeps_nothing_of_what_it_had_not_sent__NB_02():
    class Token:
        pass

    machine, token = writer(), Token()
    alive = weakref.ref(token)
    machine.send(documents(3), token)
    assert len(unanswered(machine)) == 1
    del token
    assert alive() is None
