"""Messages that are read back: which they are, and what stays open and in memory meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import FRAME_MARKER, SEGMENT_HEADER_OCTETS, encode, segment_name
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import Letter, weight
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.brokered import bodies as module
from twisted_msgproto.queue.brokered.bodies import Bodies
from twisted_msgproto.queue.columns import Encoded

OWN = head("mtl", NAMES[0])
COUNT = 3
"""Each frame has this many messages."""


def time_of(offset: int) -> int:
    """All messages of a frame come together."""
    return 1_700_000_000_000_000 + 1_500_000 * (offset // COUNT)


def a_frame(first: int, octets: int = 0) -> Encoded:
    """Messages whose bodies say their offsets; the last one is for no queue."""
    offsets = range(first, first + COUNT)
    return encode(
        [
            MessageBatch(
                "mtl",
                "content",
                time_of(first),
                count=COUNT,
                body=[(b"%d" % offset).ljust(octets, b".") for offset in offsets],
                envelope=[OWN, OWN + b"own", None],
            )
        ]
    )


def a_log(frames: int, *, segment_bytes: int = 1 << 30, octets: int = 0) -> SegmentLog:
    log = SegmentLog(DIRECTORY, disk=SimulatedDisk(), segment_bytes=segment_bytes)
    for _ in range(frames):
        log.append([a_frame(log.end, octets)])
    return log


def path_of(first: int) -> str:
    return f"{DIRECTORY}/{segment_name(first)}"


def places(letters: list[Letter]) -> list[int]:
    return [letter.place for letter in letters]


class Watched:
    """Knows how many octets of segments were read, how often one was measured, what was closed."""

    def __init__(self) -> None:
        self.octets = self.sizes = 0
        self.closed: list[str] = []

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    seen = Watched()
    read, size = SimulatedFile.read, SimulatedFile.size

    def watched_read(self: SimulatedFile, position: int, octets: int) -> bytes:
        found = read(self, position, octets)
        seen.octets += len(found)
        return found

    def watched_size(self: SimulatedFile) -> int:
        seen.sizes += 1
        return size(self)

    monkeypatch.setattr(SimulatedFile, "read", watched_read)
    monkeypatch.setattr(SimulatedFile, "size", watched_size)
    monkeypatch.setattr(SimulatedFile, "close", lambda self: seen.closed.append(self._path))
    yield seen


def test_a_letter_is_the_message_with_the_time_at_which_it_came() -> None:
    bodies = Bodies(a_log(2))
    (letter,) = bodies.read([4]).letters
    assert (letter.place, letter.envelope, letter.body) == (4, OWN + b"own", b"4")
    assert letter.octets == weight(letter.envelope, letter.body)
    assert letter.arrived == time_of(4) / 1_000_000


@pytest.mark.parametrize("damaged", range(3))
def test_for_a_damaged_frame_no_other_s_messages_are_read(damaged: int) -> None:
    log = a_log(3)
    octets = bytearray(log.disk.octets_of(path_of(0)))  # type: ignore[attr-defined]
    at = octets.find(FRAME_MARKER, SEGMENT_HEADER_OCTETS)  # that of the lineage
    for _ in range(damaged + 1):
        at = octets.find(FRAME_MARKER, at + 1)
    octets[at + 8] ^= 0xFF
    log.disk.spoil(path_of(0), bytes(octets))  # type: ignore[attr-defined]
    wanted = [offset for offset in range(9) if offset % COUNT != 2]
    loaded = Bodies(log).read(wanted)
    lost = [offset for offset in wanted if offset // COUNT == damaged]
    assert loaded.unreadable == lost
    assert [(letter.place, letter.body) for letter in loaded.letters] == [
        (offset, b"%d" % offset) for offset in wanted if offset not in lost
    ]


def test_what_is_trimmed_cannot_be_read() -> None:
    log = a_log(3, segment_bytes=1)
    QueueReader(DIRECTORY, disk=log.disk).commit("spark", 6)
    log.trim()
    bodies = Bodies(log)
    assert bodies.read([0, 4]).unreadable == [0, 4]
    assert not bodies._open  # another segment is not looked into for them


def test_as_many_frames_stay_in_memory_as_is_said__NB_02(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(6)
    for most in (1, 3):
        monkeypatch.setattr(module, "FRAMES_MAX", most)
        bodies = Bodies(log)
        assert places(bodies.read(range(0, 18, COUNT)).letters) == list(range(0, 18, COUNT))
        assert [frame.first for frame in bodies._frames.values() if frame is not None] == [
            *range(18 - most * COUNT, 18, COUNT)
        ]


def test_the_segments_that_were_used_last_stay_open_and_others_are_closed(
    monkeypatch: pytest.MonkeyPatch, watched: Watched
) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 2)
    monkeypatch.setattr(module, "FRAMES_MAX", 1)
    bodies = Bodies(a_log(4, segment_bytes=1))
    watched.forget()
    for offset in (0, 3, 1, 6):
        assert places(bodies.read([offset]).letters) == [offset]
    assert list(bodies._open) == [0, 6]
    assert watched.closed == [path_of(3)]


def test_what_is_closed_holds_no_file_and_no_message(watched: Watched) -> None:
    bodies = Bodies(a_log(2, segment_bytes=1))
    bodies.read([0, 3])
    watched.forget()
    bodies.close()
    assert sorted(watched.closed) == [path_of(0), path_of(3)]
    assert not bodies._open
    assert not bodies._frames
