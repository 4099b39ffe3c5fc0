"""How long ``send`` waits for a silent server, and when ``recv`` ends; on a clock."""

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
from twisted_msgproto.cli.waiting import ALIVE_FACTOR, GOODBYE_SECONDS, LEAVE_SECONDS, Patience
from twisted_msgproto.core.errors import Refused, TimedOut
from twisted_msgproto.net.clients.command_types import RecvOptions

reactor: Any = installed
SECONDS = 10.0


class Input:
    def __init__(self) -> None:
        self.waiting: Deferred[list[bytes]] | None = None

    async def some(self, most: int) -> list[bytes]:
        self.waiting = Deferred()
        return await self.waiting

    def give(self, *messages: bytes) -> None:
        assert self.waiting is not None
        self.waiting.callback(list(messages))


class Waiting(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.input = Input()
        self.progress = Counted()
        self.patience = Patience(self.clock, SECONDS, self.input, self.progress)
        self.addCleanup(lambda: self.assertEqual(self.clock.getDelayedCalls(), []))

    def run_work(self, work: Any) -> Deferred[Any]:
        return Deferred.fromCoroutine(self.patience.run(work))

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.5] * int(seconds * 2))

    async def one_by_one(self) -> None:
        self.acks: list[Deferred[None]] = []
        while messages := await self.patience.some(10):
            self.patience.sent(len(messages))
            self.acks.append(Deferred())
            await self.acks[-1]
            self.patience.acknowledged(len(messages))

    def test_a_connection_which_does_not_come_about_has_a_deadline(self) -> None:
        async def connect() -> None:
            await Deferred()

        running = self.run_work(connect())
        self.wait(SECONDS - 1)
        self.assertNoResult(running)
        self.wait(1)
        error = self.failureResultOf(running, TimedOut).value
        self.assertEqual(
            str(error), "the server did not answer for 10 s (--timeout S waits longer)"
        )

    def test_an_input_which_does_not_come_has_none(self) -> None:
        running = self.run_work(self.one_by_one())
        self.wait(10 * SECONDS)
        self.assertNoResult(running)
        self.input.give(b"1")
        self.wait(SECONDS - 1)
        self.acks.pop().callback(None)
        self.wait(10 * SECONDS)
        self.assertNoResult(running)
        self.input.give()
        self.successResultOf(running)

    def test_a_message_which_is_not_acknowledged_has_a_deadline(self) -> None:
        running = self.run_work(self.one_by_one())
        self.wait(3 * SECONDS)
        self.input.give(b"1")
        self.wait(SECONDS - 1)
        self.assertNoResult(running)
        self.wait(1)
        self.failureResultOf(running, TimedOut)

    def test_what_is_outstanding_has_one_also_while_the_input_is_awaited(self) -> None:
        async def ahead() -> None:
            self.patience.sent(len(await self.patience.some(1)))
            await self.patience.some(1)

        running = self.run_work(ahead())
        self.input.give(b"1")
        self.wait(SECONDS)
        self.failureResultOf(running, TimedOut)

    def test_a_sign_of_life_prolongs_it_though_not_for_ever(self) -> None:
        running = self.run_work(self.one_by_one())
        self.input.give(b"1")
        seconds = 0.0
        while not running.called:
            self.patience.alive()
            self.wait(SECONDS / 2)
            seconds += SECONDS / 2
            self.assertLess(seconds, 2 * ALIVE_FACTOR * SECONDS)
        self.assertGreater(seconds, (ALIVE_FACTOR - 1) * SECONDS)
        self.failureResultOf(running, TimedOut)

    def test_a_protocol_which_knows_better_says_why(self) -> None:
        async def explaining() -> None:
            try:
                await Deferred()
            except Exception:
                raise Refused("because of that") from None

        running = self.run_work(explaining())
        self.wait(SECONDS)
        self.failureResultOf(running, Refused)

    def test_leaving_may_take_a_while_and_not_for_ever(self) -> None:
        left: list[str] = []

        async def slow() -> None:
            try:
                await Deferred()
            finally:
                for step in ("one", "two"):
                    left.append(step)
                    await Deferred()

        running = self.run_work(slow())
        self.wait(SECONDS + GOODBYE_SECONDS / 2)
        self.assertNoResult(running)
        self.assertEqual(left, ["one"])
        self.wait(1)
        self.failureResultOf(running, TimedOut)


class Receiving(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.shown: list[Message] = []
        self.addCleanup(lambda: self.assertEqual(self.clock.getDelayedCalls(), []))

    def receive(self, *, hangs: bool = False, count: int | None = None, **options: Any) -> Any:
        """A ``recv`` of a protocol which the test is; ``hangs``: it does not leave in peace."""
        self.left = False

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            self.show = show
            try:
                await Deferred()
            finally:
                self.left = True
                if hangs:
                    await Deferred()

        command: Any = SimpleNamespace(recv=recv)
        show = options.pop("show", self.shown.append)
        asked = RecvOptions(endpoint="x", count=count)
        return Deferred.fromCoroutine(receive(self.clock, command, asked, show, **options))

    def give(self, count: int = 1) -> None:
        for _ in range(count):
            self.show(Message("fake", "topic", 0))

    def test_it_ends_when_nothing_comes_for_a_while(self) -> None:
        receiving = self.receive(timeout=5.0)
        self.clock.advance(4)
        self.give()
        self.clock.advance(4)
        self.assertNoResult(receiving)
        self.clock.advance(1)
        self.clock.advance(0)
        self.successResultOf(receiving)
        self.assertEqual((len(self.shown), self.left), (1, True))

    def test_nothing_is_shown_beyond_the_count(self) -> None:
        """What comes beyond it is refused: it must not be acknowledged."""
        receiving = self.receive(count=2)
        self.give(2)
        self.assertRaises(Refused, self.give)
        self.clock.advance(0)
        self.successResultOf(receiving)
        self.assertEqual(len(self.shown), 2)

    def test_a_protocol_which_hears_of_it_itself_may_tidy_up(self) -> None:
        """It calls ``show`` from its coroutine, where the refusal ends it."""
        tidied: list[str] = []

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            try:
                for _ in range(3):
                    show(Message("fake", "topic", 0))
            finally:
                await deferLater(reactor, 1.0, tidied.append, "tidied up")

        command: Any = SimpleNamespace(recv=recv)
        asked = RecvOptions(endpoint="x", count=2)
        receiving = Deferred.fromCoroutine(
            receive(self.clock, command, asked, self.shown.append, 60.0)
        )
        self.clock.pump([0.5] * 3)
        self.successResultOf(receiving)
        self.assertEqual((len(self.shown), tidied), (2, ["tidied up"]))

    def test_a_protocol_which_does_not_leave_is_left(self) -> None:
        receiving = self.receive(count=1, hangs=True)
        self.give()
        self.clock.advance(0)
        self.assertNoResult(receiving)
        self.clock.advance(LEAVE_SECONDS)
        self.successResultOf(receiving)

    def test_output_which_nobody_reads_any_more_ends_it__HO_21(self) -> None:
        """What could not be shown is refused: it must not be acknowledged."""

        def show(message: Message) -> None:
            raise BrokenPipeError

        receiving = self.receive(show=show)
        self.assertRaises(Refused, self.give)
        self.assertRaises(Refused, self.give)
        self.clock.advance(0)
        self.failureResultOf(receiving, BrokenPipeError)
        self.assertTrue(self.left)


class Output(TestCase):
    async def test_a_pipe_without_a_reader_ends_it_although_nothing_comes__HO_21(self) -> None:
        out, into = os.pipe()
        self.addCleanup(os.close, into)

        async def recv(reactor: Any, options: Any, show: Any) -> None:
            reactor.callLater(0.01, os.close, out)
            await Deferred()

        command: Any = SimpleNamespace(recv=recv)
        with self.assertRaises(BrokenPipeError):
            await receive(reactor, command, RecvOptions(endpoint="x"), print, None, into)
        self.assertEqual([one for one in reactor.getReaders() if one.fileno() == into], [])

    async def test_a_file_is_not_watched(self) -> None:
        path = self.mktemp()
        with open(path, "w") as file:

            async def recv(reactor: Any, options: Any, show: Any) -> None:
                return

            command: Any = SimpleNamespace(recv=recv)
            await receive(reactor, command, RecvOptions(endpoint="x"), print, None, file.fileno())
