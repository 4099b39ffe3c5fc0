"""Where single rows of a queue stand: frames with messages, what proves a row, and its time."""

from __future__ import annotations

import pytest

from tests.sim.disk import SimulatedDisk
from tests.tools.queues import batch, frame
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.columns import encode
from twisted_msgproto.queue.format import EMPTY_SEGMENT_OCTETS, segment_name
from twisted_msgproto.queue.lineage import Landed, Lineage
from twisted_msgproto.queue.places import Places

DIRECTORY = "/queue"


class Queue:
    """Three segments, each with a frame of three messages behind its lineage."""

    def __init__(self) -> None:
        self.disk = disk = SimulatedDisk()
        log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=1)
        for first in (0, 3):
            log.append([frame(first, 3)])
        log.append([encode([batch(6), batch(7, 2)])])
        self.firsts, identity = list(log.firsts), log.identity
        log.close()
        published = QueueReader(DIRECTORY, disk=disk).published()
        assert published is not None
        self.published = published
        self.places = Places(disk, DIRECTORY, identity)


@pytest.mark.parametrize("first", [0, 3])
def test_a_head_that_is_damaged_proves_nothing__NB_12(first: int) -> None:
    """A table that stands there would be told that this is another queue."""
    queue = Queue()
    path = f"{DIRECTORY}/{segment_name(first)}"
    octets = bytearray(queue.disk.octets_of(path))
    sound = queue.places.before(first, queue.published, Lineage())
    octets[EMPTY_SEGMENT_OCTETS - 1] ^= 1
    queue.disk.spoil(path, bytes(octets))
    assert queue.places.before(first, queue.published, Lineage()) == Landed(first)
    assert (sound.witness > 0) == (first > 0)
