"""A start reads small frames without Arrow, and finds what it would find with Arrow (issue 16)."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import pytest

from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import FRAME_HEADER_OCTETS, SEGMENT_HEADER_OCTETS, encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.brokered import BrokerState, scan, small, state
from twisted_msgproto.queue.brokered.small import Layout, SmallFrames, layout_of
from twisted_msgproto.queue.columns import RUNS
from twisted_msgproto.queue.format import Identity, Record, Segment, pack_frame_header
from twisted_msgproto.queue.schema import ENVELOPE

IDENTITY = Identity("0" * 32, b"\0" * 8)


def one(source: random.Random, count: int, number: int, mixed: bool) -> MessageBatch:
    """Messages with columns of all kinds, most of them for a queue."""
    peer = source.choice([None, "tcp:127.0.0.1:1", "tcp:127.0.0.1:54321", "☃" * 9])
    batch = MessageBatch("mtl", "content", 10**15 + number, peer=peer, count=count)
    envelopes: list[bytes | None] = [
        head("mtl", source.choice(NAMES)) + bytes(source.randint(0, 30)) for _ in range(count)
    ]
    if mixed:
        spoiled = source.choice([None, b"", b"\1\2\3", head("mtl", NAMES[0])[:-1], b"\2" * 20])
        envelopes[source.randrange(count)] = spoiled
    batch.envelope = envelopes if source.random() < 0.9 else None
    values: dict[str, list[Any]] = {
        "body": [bytes(source.randint(0, 300)) for _ in range(count)],
        "message_id": [source.randint(0, 9) for _ in range(count)],
        "destination": [source.choice([None, "x", "yyy"]) for _ in range(count)],
        "fields": [{"a": "b" * source.randint(0, 9)} for _ in range(count)],
        "attachments": [[bytes(3)] * source.randint(0, 3) for _ in range(count)],
        "truncated": [source.random() < 0.5 for _ in range(count)],
    }
    if source.random() < 0.3:
        values["message_id"] = ["é" * source.randint(1, 9) for _ in range(count)]
    if source.random() < 0.2:
        values["body"][0] = None
    for name, column in values.items():
        if source.random() < 0.6:
            setattr(batch, name, column)
    return batch


class Written:
    """A log of frames of all sizes, with a broker's names."""

    def __init__(
        self, seed: int, *, frames: int = 60, mixed: bool = True, alike: bool = False
    ) -> None:
        source = random.Random(seed)
        self.disk = SimulatedDisk()
        log = SegmentLog(
            DIRECTORY, disk=self.disk, segment_bytes=20_000, make_identity=lambda: IDENTITY
        )
        kept = BrokerState(log, report=lambda line: None)
        kept.restored()
        kept.declare({NAMES[0]: 0, NAMES[1]: 5, NAMES[2]: 0})
        for number in range(frames):
            runs = source.choice([1, 1, 1, 2, 3])
            size = source.choice([1, 1, 1, 2, 5, 12, 30, 100])
            batches = [one(source, size, number, mixed) for _ in range(runs)]
            if alike:
                body, envelope = [b"body"], [head("mtl", NAMES[0])]
                batches = [MessageBatch("mtl", "one", 0, count=1, body=body, envelope=envelope)]
            log.append([encode(batches)])
        self.end = log.end
        settled = [place for place in range(log.end) if source.random() < 0.2]
        kept.settle(settled)
        kept.tried({place: 2 for place in range(0, log.end, 7)})
        kept.move(list(range(3, log.end, 11)), NAMES[0].dead, tries=True)
        kept.tend()
        kept.close()
        log.close()
        self.files = {path: self.disk.octets_of(path) for path in self.disk.paths()}

    def found(self) -> tuple[Any, list[str]]:
        """What a start finds in these files, and what it tells."""
        for path in self.disk.paths():
            if path not in self.files:
                self.disk.remove(path)
        for path, octets in self.files.items():
            self.disk.spoil(path, octets)
        lines: list[str] = []
        log = SegmentLog(DIRECTORY, disk=self.disk, segment_bytes=20_000)
        kept = BrokerState(log, report=lines.append)
        queues = kept.restored()
        counts = [segment.outstanding for segment in kept._marks]
        kept.close()
        log.close()
        return (queues, counts), lines


@pytest.fixture
def arrow_alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a start read no frame without Arrow."""

    @contextmanager
    def alone() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(scan, "SMALL_MESSAGES", 0)
            yield

    return alone


def frames_of(written: Written, path: str) -> list[Record]:
    """The frames of the log's first segment that have messages."""
    segment = Segment(written.disk.open(path), IDENTITY.frame_seed, 0)
    walk = segment.walk(SEGMENT_HEADER_OCTETS, 0)
    return [item for item in walk if isinstance(item, Record) and item.count]


@pytest.mark.parametrize("seed", range(12))
def test_16_what_is_found_without_arrow_is_what_is_found_with_it(
    seed: int, arrow_alone: Any
) -> None:
    written = Written(seed)
    found, lines = written.found()
    assert sum(len(queue.places) for queue in found[0].values()) > 100
    with arrow_alone():
        assert written.found() == (found, lines)


@pytest.mark.parametrize("alike", [True, False])
def test_16_damage_in_a_small_frame_costs_that_frame_and_is_told(
    alike: bool, arrow_alone: Any
) -> None:
    """Octets anywhere in a segment are flipped: nothing else is lost, nothing else comes."""
    written = Written(1, frames=12, alike=alike)
    path = min(path for path in written.files if path.endswith(".segment"))
    whole = written.files[path]
    places = [*range(112, 900, 17), *range(900, len(whole), 397)]
    spoiled = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in places]
    frames = [frame for frame in frames_of(written, path) if frame.count <= scan.SMALL_MESSAGES]
    spoiled += [  # a checksum alone, and a frame that is gone
        *(whole[:at] + b"----" + whole[at + 4 :] for at in [one.position + 4 for one in frames]),
        *(whole[: one.position] + whole[one.end_position :] for one in frames[:8]),
    ]
    answers = []
    for octets in spoiled:
        written.files[path] = octets
        answers.append(written.found())
    assert any(lines for _, lines in answers)
    with arrow_alone():
        for octets, answer in zip(spoiled, answers, strict=True):
            written.files[path] = octets
            assert written.found() == answer


def test_16_frames_of_one_message_need_no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are read at once, whatever columns they have."""
    written = Written(3, mixed=False)
    large = 0

    def read(segment: Any, record: Any, whole: Any = state.read_frame) -> Any:
        nonlocal large
        large += 1
        assert record.count > scan.SMALL_MESSAGES
        return whole(segment, record)

    monkeypatch.setattr(state, "read_frame", read)
    found, _ = written.found()
    assert large
    assert sum(len(queue.places) for queue in found[0].values()) > 100


def test_16_a_layout_that_a_frame_does_not_have_is_left_to_arrow() -> None:
    shortest = bytes(FRAME_HEADER_OCTETS) + RUNS.pack(ENVELOPE, *[0] * 3)
    assert layout_of(shortest) is None
    one_body = Layout(struct.Struct("<200s"), b"", b"", b"", 0, struct.Struct("<2i"), 1, ENVELOPE)
    assert not one_body.fits(bytes(100))
    few: Any = None  # nothing is added to it
    cut, beyond = b"", struct.pack("<2i", 0, 99)
    assert not one_body.add(few, cut, 0, 8, 0, b"", 0, 0, 0)
    assert not one_body.add(few, beyond, 0, 8, 0, b"", 0, 0, 0)


@pytest.mark.parametrize("place", [4, FRAME_HEADER_OCTETS - 1, FRAME_HEADER_OCTETS + 1])
def test_16_a_frame_with_a_wrong_checksum_ends_what_is_read_together(place: int) -> None:
    written = Written(1, frames=3, alike=True)
    path = min(path for path in written.files if path.endswith(".segment"))
    _, second, _ = frames_of(written, path)
    octets = bytearray(written.files[path])
    octets[second.position + place] ^= 1
    small = SmallFrames(Segment(written.disk.open(path), IDENTITY.frame_seed, 0))
    assert small._checked(bytes(written.files[path]), second.position) is not None
    assert small._checked(bytes(octets), second.position) is None


def test_16_a_frame_whose_bounds_are_nonsense_ends_what_is_read_together() -> None:
    """Its checksums are right: another program wrote it."""
    written = Written(1, frames=3, alike=True)
    path = min(path for path in written.files if path.endswith(".segment"))
    first, second, _ = frames_of(written, path)
    octets = bytearray(written.files[path])
    frame = bytes(octets[second.position : second.end_position])
    layout: Any = layout_of(frame)
    bounds_at = second.position + layout.columns_at + layout.frame.unpack_from(frame)[-2]
    assert struct.unpack_from("<2i", octets, bounds_at) == (0, len(head("mtl", NAMES[0])))
    struct.pack_into("<2i", octets, bounds_at, 0, 1 << 20)
    payload = octets[second.position + FRAME_HEADER_OCTETS : second.end_position]
    octets[second.position : second.position + FRAME_HEADER_OCTETS] = pack_frame_header(
        IDENTITY.frame_seed,
        payload_crc=crc32(payload),
        octets=len(payload),
        first=second.first,
        count=second.count,
        runs=second.runs,
    )
    written.disk.spoil(path, bytes(octets))
    assert [one.position for one in frames_of(written, path)][1] == second.position
    small = SmallFrames(Segment(written.disk.open(path), IDENTITY.frame_seed, 0))
    few, behind = small.read(first.position, first.first, 3)
    assert (few.count, behind) == (1, second.position)


@pytest.mark.parametrize("octets", [4, 255, 256, 700])
def test_16_the_head_of_an_envelope_may_be_longer_than_255_octets(octets: int) -> None:
    one = struct.pack("<HH", 0, octets) + bytes(octets - 4)
    assert small._head(b"?????" + one + b"behind", 5, 5 + octets + 6) == one


def test_16_what_stands_behind_a_damaged_frame_is_found() -> None:
    written = Written(1, frames=12, alike=True)
    path = min(path for path in written.files if path.endswith(".segment"))
    frames = frames_of(written, path)
    octets = bytearray(written.files[path])
    octets[frames[3].position + 4] ^= 1
    written.files[path] = bytes(octets)
    (queues, _), _ = written.found()
    places = {place for queue in queues.values() for place in queue.places}
    assert frames[3].first not in places
    assert max(places) > frames[3].end
