"""How long ``send`` waits for a server that says it is at work, and ``recv`` for one that stays.

What a silent server means to both is in ``tests/contract/test_send.py``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from twisted_msgproto import Message
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.cli.recv import receive
from twisted_msgproto.cli.waiting import LEAVE_SECONDS, Patience
from twisted_msgproto.core.errors import Refused, TimedOut
from twisted_msgproto.net.clients.command_types import RecvOptions

reactor: Any = installed
SECONDS = 10.0


class Waiting(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        input_: Any = None
        self.patience = Patience(self.clock, SECONDS, input_, Counted())
        self.addCleanup(lambda: self.assertEqual(self.clock.getDelayedCalls(), []))

    def run_work(self, work: Any) -> Deferred[Any]:
        return Deferred.fromCoroutine(self.patience.run(work))

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.5] * int(seconds * 2))

    def test_a_sign_of_life_prolongs_it_though_not_for_ever(self) -> None:
        async def unanswered() -> None:
            self.patience.sent(1)
            await Deferred()

        running = self.run_work(unanswered())
        for _ in range(39):
            self.patience.alive()
            self.wait(SECONDS / 2)
        self.assertNoResult(running)
        self.patience.alive()
        self.wait(SECONDS / 2)
        self.failureResultOf(running, TimedOut)

    def test_a_server_to_which_nothing_can_be_sent_is_left_too(self) -> None:
        async def some(most: int) -> list[bytes]:
            return [b"x"]

        input_: Any = SimpleNamespace(some=some)
        self.patience = Patience(self.clock, SECONDS, input_, Counted())

        async def stuck(connected: bool) -> None:
            if connected:
                await self.patience.some(1)
            await Deferred()

        for connected in (True, False):
            running = self.run_work(stuck(connected))
            self.wait(SECONDS - 1)
            self.assertNoResult(running)
            self.wait(1)
            self.failureResultOf(running, TimedOut)

    def test_a_protocol_which_knows_better_says_why(self) -> None:
        """And its time begins anew with each acknowledgement."""

        async def explaining() -> None:
            self.patience.sent(2)
            try:
                await Deferred()
            except Exception:
                raise Refused("because of that") from None

        running = self.run_work(explaining())
        self.wait(0.5)
        self.patience.acknowledged(1)
        self.wait(SECONDS - 0.5)
        self.assertNoResult(running)
        self.wait(0.5)
        self.failureResultOf(running, Refused)


def received(
    clock: Any, recv: Any, show: Any = print, *more: Any, count: int | None = None
) -> Deferred[None]:
    command: Any = SimpleNamespace(recv=recv)
    asked = RecvOptions(endpoint="x", count=count)
    return Deferred.fromCoroutine(receive(clock, command, asked, show, *more))


class Leaving(TestCase):
    def test_a_protocol_which_does_not_leave_is_left(self) -> None:
        clock = Clock()

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            try:
                await deferLater(reactor, 1.0, show, Message("fake", "topic", 0))
                await Deferred()
            finally:
                await Deferred()

        receiving = received(clock, recv, count=1)
        clock.pump([1.0, 0.0])
        self.assertNoResult(receiving)
        clock.advance(LEAVE_SECONDS)
        self.successResultOf(receiving)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_each_message_has_the_whole_time(self) -> None:
        clock, came = Clock(), list[Message]()

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            for _ in range(3):
                await deferLater(reactor, SECONDS - 1, show, Message("fake", "topic", 0))
            options.follow(lambda now: 3 * (SECONDS - 1) + 0.5)  # a part of a fourth
            await Deferred()

        receiving = received(clock, recv, came.append, SECONDS)
        clock.pump([*[SECONDS - 1] * 4, 1.0])
        self.assertNoResult(receiving)
        clock.pump([0.5, 0.0])
        self.successResultOf(receiving)
        self.assertEqual(len(came), 3)

    async def test_a_file_is_not_watched(self) -> None:
        path = self.mktemp()
        with open(path, "w") as file:

            async def recv(reactor: Any, options: Any, show: Any) -> None:
                return

            await received(reactor, recv, print, None, file.fileno())

    async def test_a_pipe_that_nobody_reads_any_more_ends_it(self) -> None:
        out, into = os.pipe()
        self.addCleanup(os.close, into)
        reactor.callLater(0, os.close, out)

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            await Deferred()

        with self.assertRaises(BrokenPipeError):
            await received(reactor, recv, print, None, into)
        self.assertNotIn(into, [one.fileno() for one in reactor.getReaders()])

    def test_a_protocol_which_is_refused_more_than_was_asked_for_may_tidy_up(self) -> None:
        clock, done = Clock(), list[str]()

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            try:
                for _ in range(2):
                    show(Message("fake", "topic", 0))
            finally:
                await deferLater(reactor, 1.0, done.append, "unsubscribed")

        receiving = received(clock, recv, count=1)
        clock.pump([0.0, 1.0])
        self.successResultOf(receiving)
        self.assertEqual(done, ["unsubscribed"])
