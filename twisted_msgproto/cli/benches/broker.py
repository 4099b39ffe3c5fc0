"""Measure the broker: what a message costs from publishing to its acknowledgement, and waiting.

* *publish to acknowledged*: letters are made, published, pushed to a consumer and acknowledged, in
  batches, beside a deque through which the same letters go: appended, removed, noted as in flight,
  and forgotten when they are acknowledged.
* *backlog*: the same with ten million letters waiting in another queue, beside the same without
  them.
* *memory*: what a waiting place costs whose body is on disk, of a million and of ten million.
* *restore*: CPU seconds until a million places wait again after a start; and until they are found
  in the log (:mod:`.broker_log`).
* *over sockets*: publish, consume and acknowledge beside CoilMQ, if that is installed
  (:mod:`.broker_beside`).
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from twisted_msgproto.core.broker import LIMITS, Broker, Letter, QueueName, weight
from twisted_msgproto.core.limits import Limits

from ..measuring import Comparison, Figures, Gauge, Reading, Row, timed
from . import broker_beside, broker_log

COST_MARK = 4.0
BACKLOG_MARK = 1.1
MEMORY_MARK = 16.0
RESTORE_MARK = 3.0

MESSAGES = 400_000
BATCHES = (1, 100)
"""A read brings this many messages: from a slow sender, and from one that sends in bulk."""
WINDOW = 1000
BODY = b"12345678"
MILLION = 1_000_000
LONGEST = 10 * MILLION

HERE = QueueName("bench", "here")
BESIDE = QueueName("bench", "beside")


class Consumer:
    """Accepts what it gets, and acknowledges it when it is told to."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def room(self) -> int:
        """Return how many letters it accepts now."""
        return WINDOW - len(self.held)

    def push(self, queue: QueueName, letters: Sequence[Letter]) -> bool:
        """Accept letters."""
        for letter in letters:
            self.held.append(letter.place)
        return True

    def failed(self, error: Exception) -> None:
        """Raise what went wrong."""
        raise error


def make(places: range) -> list[Letter]:
    """Return letters with these places; both sides of the comparison make them."""
    octets = weight(b"", BODY)
    return [Letter(place, octets, b"", BODY, 0.0) for place in places]


def batches(messages: int, batch: int, first: int = 0) -> Iterator[range]:
    """Yield the places of each batch."""
    for start in range(first, first + messages, batch):
        yield range(start, start + batch)


def through_broker(messages: int, batch: int, broker: Broker) -> Figures:
    """Publish, push and acknowledge letters."""
    consumer = Consumer()
    broker.subscribe(consumer, HERE, 0.0)
    broker.go_on()
    with timed(messages) as figures:
        for places in batches(messages, batch, LONGEST):
            broker.publish(HERE, make(places), 0.0)
            held, consumer.held = consumer.held, []
            broker.settle(consumer, held)
            broker.take_events()
    broker.gone(consumer, 0.0)
    return figures


def through_new_broker(messages: int, batch: int) -> Figures:
    """Publish, push and acknowledge letters in a broker that has nothing else."""
    return through_broker(messages, batch, made())


def through_deque(messages: int, batch: int) -> Figures:
    """Let the same letters go through a deque, and a dict of what is in flight."""
    waiting: deque[Letter] = deque()
    in_flight: dict[int, Letter] = {}
    with timed(messages) as figures:
        for places in batches(messages, batch):
            for letter in make(places):
                waiting.append(letter)
            held = []
            while waiting:
                letter = waiting.popleft()
                in_flight[letter.place] = letter
                held.append(letter.place)
            for place in held:
                del in_flight[place]
    return figures


def made(backlog: int = 0) -> Broker:
    """Return a broker with this many letters on disk that wait in another queue."""
    limits = Limits.of(LIMITS).replace({"queue-messages": 2 * LONGEST})
    broker = Broker(limits, durable=True)
    fill(broker, backlog)
    return broker


def fill(broker: Broker, count: int) -> None:
    """Restore a backlog, as a start does; its columns are gone when this returns."""
    octets = array("I", [weight(b"", BODY)])
    for start in range(0, count, MILLION):
        places = array("q", range(start, min(start + MILLION, count)))
        columns = octets * len(places), array("I", [0]) * len(places)
        broker.restore(BESIDE, places, *columns, 0.0)


def octets_a_place(count: int) -> Reading:
    """Return what a waiting place costs in memory, if there are ``count``."""
    broker = made()
    gc.collect()
    tracemalloc.start()
    try:
        fill(broker, count)
        gc.collect()
        octets = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return Reading(octets / count, {"MB_in_all": octets / 1e6})


def restore_seconds(count: int) -> Reading:
    """Return the CPU seconds until ``count`` places wait again."""
    broker = made()
    begun = time.process_time()
    fill(broker, count)
    return Reading(time.process_time() - begun)


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the broker; ``arguments`` are those of ``msgproto bench``."""
    for batch in BATCHES:
        messages = max(batch, int(MESSAGES * arguments.scale) // batch * batch)
        yield Comparison(
            f"broker, publish to acknowledged, {batch} at a time",
            "a deque",
            "cpu",
            partial(through_new_broker, messages, batch),
            partial(through_deque, messages, batch),
            mark=COST_MARK,
        )
    longest = max(1, int(LONGEST * arguments.scale))
    loaded, empty = made(longest), made()
    yield Comparison(
        "broker, publish to acknowledged, beside a backlog of 10 M",
        "the same without it",
        "cpu",
        partial(through_broker, messages, BATCHES[-1], loaded),
        partial(through_broker, messages, BATCHES[-1], empty),
        mark=BACKLOG_MARK,
    )
    del loaded, empty
    for millions in (1, 10):
        count = max(1, int(millions * MILLION * arguments.scale))
        yield Gauge(
            f"broker, memory of a waiting place, {millions} M",
            "octets",
            partial(octets_a_place, count),
            mark=MEMORY_MARK,
        )
    yield Gauge(
        "broker, 1 M places restored",
        "s",
        partial(restore_seconds, max(1, int(MILLION * arguments.scale))),
        mark=RESTORE_MARK,
    )
    yield from broker_log.rows(arguments)
    yield from broker_beside.rows(arguments)
