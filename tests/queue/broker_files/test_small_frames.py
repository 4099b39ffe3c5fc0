"""A start reads small frames without Arrow, and finds what it would find with Arrow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.queue.broker_files.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import (
    FRAME_HEADER_BYTES,
    encode,
    frame_header,
    frames_of,
)
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.broker_files import BrokerState, queue_scan, state


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
        log = SegmentLog(DIRECTORY, disk=self.disk, segment_bytes=20_000)
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
        settled = [message_id for message_id in range(log.end) if source.random() < 0.2]
        kept.settle(settled)
        kept.tried({message_id: 2 for message_id in range(0, log.end, 7)})
        kept.move(list(range(3, log.end, 11)), NAMES[0].dead, tries=True)
        kept.tend()
        kept.close()
        log.close()
        self.files = {path: self.disk.bytes_of(path) for path in self.disk.paths()}

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
        kept.close()
        log.close()
        return queues, lines


@pytest.fixture
def arrow_alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a start read no frame without Arrow."""

    @contextmanager
    def alone() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(queue_scan, "SMALL_MESSAGES", 0)
            yield

    return alone


@pytest.mark.parametrize("seed", range(12))
def test_16_what_is_found_without_arrow_is_what_is_found_with_it(
    seed: int, arrow_alone: Any
) -> None:
    written = Written(seed)
    found, lines = written.found()
    assert sum(len(queue.message_ids) for queue in found.values()) > 100
    with arrow_alone():
        assert written.found() == (found, lines)


@pytest.mark.parametrize("alike", [True, False])
def test_16_damage_in_a_small_frame_costs_that_frame_and_is_told(
    alike: bool, arrow_alone: Any
) -> None:
    """Bytes anywhere in a segment are flipped: nothing else is lost, nothing else comes."""
    written = Written(1, frames=12, alike=alike)
    path = min(path for path in written.files if path.endswith(".segment"))
    whole = written.files[path]
    positions = [*range(112, 900, 17), *range(900, len(whole), 397)]
    spoiled = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in positions]
    frames = [
        frame
        for frame in frames_of(written.files[path])
        if frame.count <= queue_scan.SMALL_MESSAGES
    ]
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
        assert record.count > queue_scan.SMALL_MESSAGES
        return whole(segment, record)

    monkeypatch.setattr(state, "read_frame", read)
    found, _ = written.found()
    assert large
    assert sum(len(queue.message_ids) for queue in found.values()) > 100


def test_16_what_stands_behind_a_damaged_frame_is_found() -> None:
    written = Written(1, frames=12, alike=True)
    path = min(path for path in written.files if path.endswith(".segment"))
    frames = frames_of(written.files[path])
    octets = bytearray(written.files[path])
    octets[frames[3].position + 4] ^= 1
    written.files[path] = bytes(octets)
    queues, _ = written.found()
    ids = {message_id for queue in queues.values() for message_id in queue.message_ids}
    assert frames[3].first not in ids
    assert max(ids) > frames[3].end


@pytest.mark.parametrize("runs", [1, 2])
def test_16_a_frame_that_another_program_wrote_costs_its_neighbours_nothing(
    runs: int, arrow_alone: Any
) -> None:
    """Bytes that describe it are spoiled, with right checksums."""
    written = Written(1, frames=0)
    log = SegmentLog(DIRECTORY, disk=written.disk)
    envelope = [head("mtl", NAMES[0])] * 2
    bodies = [b"one", b"other"]
    times = range(10**15, 10**15 + runs * 10**6, 10**6)
    batches = [
        MessageBatch("mtl", "one", time, count=2, body=bodies, envelope=envelope) for time in times
    ]
    for _ in range(3):
        log.append([encode(batches)])
    log.close()
    written.files = {path: written.disk.bytes_of(path) for path in written.disk.paths()}
    path = min(path for path in written.files if path.endswith(".segment"))
    whole = written.files[path]
    _, second, _ = frames_of(whole)
    begin = second.position + FRAME_HEADER_BYTES
    count = 2 * runs
    usual, outcomes = written.found(), []
    for at in range(begin, second.end_position):
        for bit in (0, 7) if at - begin < 16 or whole[at] else (6,):  # a large number of a small
            payload = bytearray(whole[begin : second.end_position])
            payload[at - begin] ^= 1 << bit
            header = frame_header(whole[32:40], payload, second.first, second.count, second.runs)
            spoiled = whole[: second.position] + header + payload + whole[second.end_position :]
            written.files[path] = spoiled
            queues, _ = written.found()
            found = [message_id for queue in queues.values() for message_id in queue.message_ids]
            own = [message_id for message_id in found if count <= message_id < 2 * count]
            assert {*found} >= {*range(count), *range(2 * count, 3 * count)}, (at - begin, bit)
            outcomes.append(len(own))
    assert {0, count} <= {*outcomes}
    written.files[path] = whole
    with arrow_alone():
        assert written.found() == usual
