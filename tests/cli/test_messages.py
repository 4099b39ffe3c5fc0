"""Where ``msgproto send`` takes its messages from: lines as they come, or made-up documents.

How far a send is: a bar on a terminal, plain lines elsewhere, nothing with ``--json``.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from twisted_msgproto.cli import messages, progress
from twisted_msgproto.cli.messages import Lines, MadeUp
from twisted_msgproto.cli.progress import Counted, Line


class FromAPipe(TestCase):
    def setUp(self) -> None:
        self.out, self.into = os.pipe()
        self.addCleanup(os.close, self.out)
        self.lines = Lines(reactor, self.out)

    def close(self) -> None:
        if self.into >= 0:
            os.close(self.into)
            self.into = -1

    def tearDown(self) -> None:
        self.close()

    async def test_a_line_is_there_as_soon_as_it_is_complete(self) -> None:
        os.write(self.into, b"one\ntw")
        self.assertEqual(await self.lines.some(10), [b"one"])
        os.write(self.into, b"o\r\nthree\n\nfour")
        self.assertEqual(await self.lines.some(10), [b"two", b"three"])
        self.close()
        self.assertEqual(await self.lines.some(10), [b"four"])
        self.assertEqual(await self.lines.some(10), [])
        self.assertEqual(await self.lines.some(10), [])

    async def test_never_more_than_asked_for(self) -> None:
        os.write(self.into, b"1\n2\n3\n")
        self.assertEqual(await self.lines.some(2), [b"1", b"2"])
        self.assertEqual(await self.lines.some(2), [b"3"])

    async def test_an_empty_input_ends_at_once(self) -> None:
        self.close()
        self.assertEqual(await self.lines.some(1), [])

    async def test_the_reactor_does_other_work_while_nothing_comes(self) -> None:
        waiting = Deferred.fromCoroutine(self.lines.some(1))
        reactor.callLater(0, os.write, self.into, b"late\n")
        self.assertEqual(await waiting, [b"late"])

    def test_waiting_can_be_cancelled_and_leaves_no_reader(self) -> None:
        waiting = Deferred.fromCoroutine(self.lines.some(1))
        waiting.cancel()
        self.failureResultOf(waiting)
        self.assertNotIn(self.lines, reactor.getReaders())

    async def test_an_input_that_another_program_made_non_blocking_is_waited_for(self) -> None:
        os.set_blocking(self.out, False)
        self.lines.doRead()
        os.write(self.into, b"1\n")
        self.assertEqual(await self.lines.some(1), [b"1"])

    async def test_an_endless_line_is_refused(self) -> None:
        """What stands before it is given out; the operator is told its number."""
        self.patch(messages, "LINE_BYTES_MAX", 1000)
        os.write(self.into, b"x" * 1000)
        self.lines.doRead()
        os.write(self.into, b"\n\n3\n" + b"x" * 1001)
        self.assertEqual(await self.lines.some(1), [b"x" * 1000])
        self.assertEqual(await self.lines.some(9), [b"3"])
        self.assertEqual(await self.lines.some(1), [])
        self.assertEqual(str(self.lines.refused), "line 4 is longer than 1000 bytes")

    async def test_a_line_which_cannot_be_sent_ends_it_with_its_number__HO_02(self) -> None:
        """Those before it are given out, those behind it are not; empty lines count as lines."""

        def encode(line: bytes) -> bytes:
            if line == b"bad":
                raise ValueError("it is bad")
            return line.upper()

        lines = Lines(reactor, self.out, encode)
        os.write(self.into, b"a\n\nb\nbad\nc\n")
        self.assertEqual(await lines.some(10), [b"A", b"B"])
        self.assertEqual(await lines.some(10), [])
        self.assertEqual(await lines.some(10), [])
        self.assertEqual(str(lines.refused), "line 4 cannot be sent: it is bad")

    async def test_an_input_which_cannot_be_read_is_told(self) -> None:
        directory = os.open(".", os.O_RDONLY)
        self.addCleanup(os.close, directory)
        lines = Lines(reactor, directory)
        self.assertEqual(await lines.some(1), [])
        self.assertEqual(str(lines.refused), "the input cannot be read: Is a directory")


class FromAFile(TestCase):
    async def test_a_regular_file_works_too(self) -> None:
        # epoll refuses regular files; the reactor has another way for them.
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(b"%d\n" % n for n in range(50_000)))
            file.seek(0)
            lines = Lines(reactor, file.fileno())
            came: list[bytes] = []
            while batch := await lines.some(1000):
                came += batch
        self.assertEqual(came, [b"%d" % n for n in range(50_000)])


@given(st.integers(1, 500), st.integers(1, 400), st.integers(1, 120))
def test_made_up_messages_are_all_different_and_of_the_size(
    count: int, size: int, most: int
) -> None:
    made_up = MadeUp(count, size)
    came: list[bytes] = []
    while True:
        some = made_up.some(most)
        with pytest.raises(StopIteration) as stopped:
            some.send(None)
        batch = stopped.value.value
        if not batch:
            break
        assert len(batch) <= most
        came += batch
    assert [json.loads(document)["number"] for document in came] == list(range(count))
    shortest = len(json.dumps({"number": count, "text": ""}))
    assert {len(document) for document in came} == {max(size, shortest)}


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("kind", "seconds", "shown"),
    [(io.TextIOWrapper, 2.0, "{0}3{1}\n{0}4{1}\n"), (Terminal, 0.2, "\r{0}3{1}\r{0}4{1}\n")],
)
def test_progress_is_told_now_and_then(
    clock: list[float], kind: Any, seconds: float, shown: str
) -> None:
    """Lines, or one that is written over on a terminal."""
    counted = Counted(Line(out := kind(io.BytesIO())))
    counted.sent(5)
    counted.acknowledged(3)
    assert out.buffer.getvalue() == b""  # work which ends at once says nothing on the way
    clock[0] += seconds
    counted.sent(2)
    clock[0] += seconds
    counted.acknowledged(1)
    counted.end()
    counted.end()  # the line has ended
    assert out.buffer.getvalue().decode() == shown.format("sent 7, acknowledged ", " so far")
    assert (counted.messages_sent, counted.messages_acknowledged) == (7, 4)
