"""What a start finds in frames of all sizes, and what damage in one of them costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.queue.broker_files.world import DIRECTORY
from tests.queue.broker_files.world import NAMES as SHORT_NAMES
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import (
    FRAME_HEADER_BYTES,
    encode,
    frame_header,
    frames_of,
)
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.core.broker.envelopes import head, opened
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.broker_files import BrokerState

NAMES = [*SHORT_NAMES[:2], QueueName("mtl/v/p", "c" * 300)]


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
        self.nonsense = False
        names: list[QueueName | None] = []
        for number in range(frames):
            runs = source.choice([1, 1, 1, 2, 3])
            size = source.choice([1, 1, 1, 2, 5, 12, 30, 100])
            batches = [one(source, size, number, mixed) for _ in range(runs)]
            if alike:
                body, envelope = [b"body"], [head("mtl", NAMES[0])]
                batches = [MessageBatch("mtl", "one", 0, count=1, body=body, envelope=envelope)]
            log.append([encode(batches)])
            for batch in batches:
                names += [self._name(one) for one in batch.envelope or [None] * batch.count]
        queued = [message_id for message_id, name in enumerate(names) if name is not None]
        settled = [message_id for message_id in queued if source.random() < 0.2]
        kept.settle(settled)
        kept.tried({message_id: 2 for message_id in range(0, log.end, 7)})
        moved = range(3, log.end, 11)
        kept.move(list(moved), NAMES[0].dead, tries=True)
        self.waiting: dict[QueueName, list[int]] = {name: [] for name in NAMES}
        for message_id in sorted({*queued} - {*settled}):
            name = names[message_id]
            assert name is not None
            if message_id in moved:
                self.waiting.setdefault(NAMES[0].dead, []).append(message_id)
            elif message_id >= {NAMES[1]: 5}.get(name, 0):
                self.waiting[name].append(message_id)
        kept.tend()
        kept.close()
        log.close()
        self.files = {path: self.disk.bytes_of(path) for path in self.disk.paths()}

    def _name(self, envelope: bytes | None) -> QueueName | None:
        try:
            return opened(envelope).name if envelope else None
        except ValueError:
            self.nonsense = True
            return None

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


@pytest.mark.parametrize("seed", range(12))
def test_what_waits_is_found_whatever_frames_it_stands_in(seed: int) -> None:
    written = Written(seed)
    queues, lines = written.found()
    found = {name: waiting.message_ids.tolist() for name, waiting in queues.items()}
    assert found == written.waiting
    assert sum(map(len, found.values())) > 100
    assert ("make no sense" in " ".join(lines)) == written.nonsense
    tried = {message_id for waiting in queues.values() for message_id, _ in waiting.tries}
    assert tried == {one for some in found.values() for one in some if one % 7 == 0}


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
@pytest.mark.parametrize("copies", [1, 20])
def test_a_message_without_an_envelope_is_in_no_queue_whatever_its_neighbours_are(
    missing: int, copies: int
) -> None:
    """And wherever a clock was set to when it came."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    kept = BrokerState(log, report=lambda line: None)
    kept.restored()
    kept.declare({NAMES[0]: 0})
    envelopes: list[bytes | None] = [head("mtl", NAMES[0]) + b"own"] * (4 * copies)
    envelopes[missing] = None
    times = (-5_000_000, 2**33 * 10**6, 10**15)
    for time in times:
        batch = MessageBatch("mtl", "content", time, count=len(envelopes), envelope=envelopes)
        log.append([encode([batch])])
    kept.close()
    waiting = BrokerState(log, report=lambda line: None).restored()[NAMES[0]]
    lost = {missing + number * len(envelopes) for number in range(3)}
    assert waiting.message_ids.tolist() == [n for n in range(log.end) if n not in lost]
    assert sorted(set(waiting.arrived)) == [0, 10**9, 2**32 - 1]


@pytest.mark.parametrize("alike", [True, False])
def test_damage_in_a_frame_costs_that_frame_and_is_told(alike: bool) -> None:
    """Bytes anywhere in a segment are flipped: nothing else is lost, nothing else comes."""
    written = Written(1, frames=12, alike=alike)
    path = min(path for path in written.files if path.endswith(".segment"))
    whole = written.files[path]
    frames = frames_of(whole)
    positions = [*range(112, 900, 17), *range(900, len(whole), 397)]
    spoiled = [
        (at, whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]) for at in positions
    ]
    for one in frames:  # a checksum alone, and a frame that is gone
        begin, end = one.position, one.end_position
        spoiled.append((begin, whole[: begin + 4] + b"----" + whole[begin + 8 :]))
        spoiled.append((begin, whole[:begin] + whole[end:]))
    told = 0
    for at, octets in spoiled:
        written.files[path] = octets
        queues, lines = written.found()
        hit = [one for one in frames if one.position <= at < one.end_position]
        lost = {message_id for one in hit for message_id in range(one.first, one.end)}
        for name, some in written.waiting.items():
            wanted = [message_id for message_id in some if message_id not in lost]
            found = queues[name].message_ids.tolist() if name in queues else []
            assert found == wanted, at
        told += any("what they held is in no queue" in line for line in lines)
    assert told


@pytest.mark.parametrize("runs", [1, 2])
def test_16_a_frame_that_another_program_wrote_costs_its_neighbours_nothing(runs: int) -> None:
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
    outcomes = []
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


@pytest.mark.parametrize("size", range(9))
def test_what_an_envelope_says_of_itself_hides_no_neighbour(size: int) -> None:
    whole = head("mtl", NAMES[0])
    spoiled = whole[:2] + size.to_bytes(2, "little") + whole[4:]
    queues, lines = found_of([spoiled, whole, whole])
    assert queues[NAMES[0]].message_ids.tolist() == [1, 2]
    assert lines == ["broker: 1 messages have envelopes that make no sense; they are in no queue"]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_envelopes_that_are_missing_are_no_nonsense(count: int) -> None:
    assert found_of([None] * count) == ({}, [])


def found_of(envelopes: list[bytes | None]) -> tuple[Any, list[str]]:
    log = SegmentLog(DIRECTORY, disk=SimulatedDisk())
    batch = MessageBatch("mtl", "one", 10**15, count=len(envelopes), envelope=envelopes)
    log.append([encode([batch])])
    lines: list[str] = []
    kept = BrokerState(log, report=lines.append)
    queues = kept.restored()
    kept.close()
    log.close()
    return queues, lines
