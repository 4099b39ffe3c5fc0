"""Measure what a start with waiting messages costs: they are found again in the log on disk.

* *found again*: CPU seconds until a million messages wait in their queues, from opening the
  broker's files to the last place, with the reading; of frames of 100 messages for one queue, of
  1000 for a hundred queues in turn, and of one message each, as they come slowly.
* *read back*: CPU milliseconds for a hundred neighbours of them, with their bodies; it informs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.message import MessageBatch

from ..measuring import Gauge, Reading, Row

MILLION = 1_000_000
SECONDS_MARK = 3.0
BODY = b"b" * 100
OWN = b"p" * 40
FRAMES_A_GROUP = 100
AT_ONCE = 100
READS = 100


@contextmanager
def waiting(directory: str | None, count: int, frame: int, queues: int) -> Iterator[str]:
    """A queue directory in which ``count`` messages wait, in frames of ``frame``."""
    from twisted_msgproto.queue.brokered import BrokerState
    from twisted_msgproto.queue.columns import encode
    from twisted_msgproto.queue.log import SegmentLog

    names = [QueueName("bench", f"queue {number}") for number in range(queues)]
    heads = [head("mtl", name) + OWN for name in names]
    with tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=directory) as made:
        log = SegmentLog(made)
        state = BrokerState(log, report=lambda line: None)
        state.restored()
        state.declare(dict.fromkeys(names, 0))
        bodies = [BODY] * frame
        for first in range(0, count, frame * FRAMES_A_GROUP):
            frames = []
            for start in range(first, min(first + frame * FRAMES_A_GROUP, count), frame):
                size = min(frame, count - start)
                envelopes = [heads[number % queues] for number in range(start, start + size)]
                one = MessageBatch("mtl", "content", start, count=size)
                one.body, one.envelope = bodies[:size], envelopes
                frames.append(encode([one]))
            log.append(frames)
        state.close()
        log.close()
        yield made


def found_again(directory: str | None, count: int, frame: int, queues: int) -> Reading:
    """Return the CPU seconds until all of them are found, and what it is to read them back."""
    from twisted_msgproto.queue.brokered import BrokerState
    from twisted_msgproto.queue.log import SegmentLog

    with waiting(directory, count, frame, queues) as made:
        log = SegmentLog(made)
        begun = time.process_time()
        state = BrokerState(log, report=lambda line: None)
        found = state.restored()
        seconds = time.process_time() - begun
        if sum(len(queue.places) for queue in found.values()) != count:
            raise RuntimeError("messages were lost")
        places = next(iter(found.values())).places[: READS * AT_ONCE].tolist()
        begun = time.process_time()
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            if len(state.load(some).letters) != len(some):
                raise RuntimeError("bodies were lost")
        reads = max(1, len(places) // AT_ONCE)
        milliseconds = (time.process_time() - begun) * 1000 / reads
        state.close()
        log.close()
    return Reading(seconds, {"ms_to_read_100_back": milliseconds})


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows; ``arguments`` are those of ``msgproto bench``."""
    count = max(1000, int(MILLION * arguments.scale))
    for frame, queues in ((100, 1), (1000, 100), (1, 100)):
        of_queues = "a queue" if queues == 1 else f"{queues} queues"
        yield Gauge(
            f"broker, 1 M messages of {of_queues} found again on disk, {frame:,} a frame",
            "s",
            partial(found_again, arguments.queue, count, frame, queues),
            mark=SECONDS_MARK,
        )
