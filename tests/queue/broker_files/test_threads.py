"""A broker's durable half beside a writer that writes, with threads and a real disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.tools.queues import Results
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import LETTER_OCTETS, QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import QueueReader, QueueWriter

HERE = QueueName("mtl/v/p", "here")
MESSAGES = 40
ROUNDS = 60


def a_batch(number: int) -> MessageBatch:
    """Messages for one queue; every third has no queue."""
    envelopes = [
        None if row % 3 == 2 else head("mtl", HERE) + b"%d" % (number + row)
        for row in range(MESSAGES)
    ]
    return MessageBatch(
        *("mtl", "content", 2_000_000 * number, "p", f"session {number % 5}"),
        count=MESSAGES,
        octets=100,
        message_id=list(range(number, number + MESSAGES)),
        body=[b"%d" % (number + row) * 20 for row in range(MESSAGES)],
        envelope=envelopes,
    )


def test_what_is_published_and_settled_from_several_threads_is_there_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer trims and the broker copies, settles and reads at the same time."""
    monkeypatch.setattr("twisted_msgproto.queue.writer.IDLE_S", 0.005)  # it trims as often
    lines: list[str] = []
    writer = QueueWriter(tmp_path, segment_bytes=20_000, report=lines.append)
    state = writer.broker(pin=30_000, kept_segment_bytes=20_000)
    assert state.restored() == {}
    state.declare({HERE: state.end})
    reader = QueueReader(tmp_path)
    results, over, errors = Results(), threading.Event(), []

    def tend() -> None:
        try:
            while not over.is_set():
                state.tend()
                over.wait(0.002)
        except BaseException as error:
            errors.append(error)

    def consume() -> None:
        try:
            while not over.wait(0.005):
                reader.commit("spark", reader.end())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for one in (tend, consume)]
    for one in threads:
        one.start()
    waiting: set[int] = set()
    try:
        for number in range(ROUNDS):
            results.submit(writer, a_batch(number * MESSAGES))
            results.wait(number + 1)
            first = results.firsts[number * MESSAGES]
            assert first is not None
            places = [first + row for row in range(MESSAGES) if row % 3 != 2]
            waiting.update(places[:3])
            state.settle(places[3:])
            some = sorted(waiting)[:: max(1, len(waiting) // 20)]
            loaded = state.load(some)
            assert [letter.place for letter in loaded.letters] == some
            for letter in loaded.letters:
                assert letter.envelope == head("mtl", HERE) + b"%d" % letter.place
                assert letter.body == b"%d" % letter.place * 20
    finally:
        over.set()
        for one in threads:
            one.join()
    assert not errors
    assert state.copied_messages
    state.close()
    writer.close()
    again = QueueWriter(tmp_path, segment_bytes=20_000, report=lines.append)
    other = again.broker()
    found = other.restored()[HERE]
    assert found.places.tolist() == sorted(waiting)
    for place, weight, second in zip(found.places, found.weights, found.arrived, strict=True):
        text = b"%d" % place
        assert weight == LETTER_OCTETS + len(head("mtl", HERE)) + 21 * len(text)
        assert second == place // MESSAGES * MESSAGES * 2
    assert lines == []
    other.close()
    again.close()
