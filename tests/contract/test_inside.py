"""Hooks which end things from inside: the session, the connection, the whole server."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent

from tests.contract.cases import CONNECTED
from tests.contract.test_storing import Boom
from tests.contract.world import only, over_all
from tests.doubles import HeldSink
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.testing import SafeSink


class BatchHook:
    def test_a_coroutine_function_is_awaited(self: Any) -> None:
        """``async def batchReceived`` means what it says: the acknowledgement follows its end."""
        waiting: list[Deferred[None]] = []

        async def slow(server: Any, batch: Any) -> None:
            waiting.append(Deferred())
            await waiting[-1]
            if len(waiting) == 2:
                raise Boom("after a while")

        world = self.world(SafeSink(), hooks={"batchReceived": slow})
        peer = world.join()
        first = peer.send(b"one")
        world.wait(1)
        self.assertNoResult(first)
        waiting[0].callback(None)
        world.wait(2)
        self.successResultOf(first)
        second = peer.send(b"two")
        world.wait(1)
        waiting[1].callback(None)
        world.wait(5)
        self.failureResultOf(second)
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)

    def test_the_log_names_the_hook_whose_deferred_has_failed(self: Any) -> None:
        returned: list[Deferred[None]] = []

        def later(server: Any, batch: Any) -> Deferred[None]:
            returned.append(Deferred())
            return returned[-1]

        world = self.world(SafeSink(), hooks={"batchReceived": later})
        sent = world.join().send(b"one")
        world.wait(1)
        returned[0].errback(Boom("late"))
        world.wait(5)
        self.failureResultOf(sent)
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)
        [told] = world.tracebacks
        self.assertIn("batchReceived", formatEvent(told))

    def test_one_that_drains_the_server_is_still_answered(self: Any) -> None:
        drained = []

        def drains(server: Any, batch: Any) -> Any:
            drained.append(server.factory.drain())

        world = self.world(SafeSink(), hooks={"batchReceived": drains})
        one, other = world.join(), world.join()
        self.soon(world, one.send(b"one"), 10)
        self.successResultOf(drained[0])
        if other.line is not None:
            self.assertTrue(one.gone and other.gone)
        self.assertEqual(world.tracebacks, [])

    def test_one_that_raises_after_draining_the_server(self: Any) -> None:
        drained = []

        def drains(server: Any, batch: Any) -> Any:
            drained.append(server.factory.drain())
            raise Boom("after that")

        world = self.world(SafeSink(), hooks={"batchReceived": drains})
        self.soonFails(world, world.join().send(b"one"), seconds=10)
        self.successResultOf(drained[0])
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)


class MessageHook:
    def test_one_that_drains_the_server(self: Any) -> None:
        def hook(server: Any, message: Any) -> None:
            server.factory.drain()

        world = self.world(SafeSink(), hooks={"message": hook})
        sent = world.join().send(b"one")
        world.wait(20)
        self.assertTrue(sent.called)
        self.ignore(sent)
        self.assertEqual(world.tracebacks, [])

    @only("sabc", "sabc-ws", "umq")
    def test_one_that_ends_the_session_and_answers(self: Any) -> None:
        umq = self.case.name == "umq"

        def hook(server: Any, message: Any) -> Any:
            server.closeSession() if umq else server.loseSession()
            return "late" if umq else b"late"

        world = self.world(SafeSink(), hooks={"message": hook})
        one = world.join()
        sent = [one.send(b"one"), one.send(b"two")]
        if not umq:
            one.client.sendOnly(b"three")
        world.wait(20)
        for each in sent:
            self.assertTrue(each.called)
            self.ignore(each)
        self.assertEqual(world.tracebacks, [])

    @only("sabc", "sabc-ws")
    def test_a_send_only_hook_that_ends_the_session(self: Any) -> None:
        def hook(server: Any, message: Any) -> None:
            server.loseSession()

        world = self.world(SafeSink(), hooks={"messageReceived": hook})
        one = world.join()
        one.client.sendOnly(b"three")
        one.client.sendOnly(b"three")
        world.wait(20)
        self.assertTrue(one.gone)
        self.assertEqual(world.tracebacks, [])


class SessionHooks:
    @only(*CONNECTED)
    def test_a_loss_hook_that_raises_leaves_nobody_waiting(self: Any) -> None:
        def sessionLost(session: Any, reason: Any) -> None:
            raise Boom("lost")

        hooks = {"sessionLost": sessionLost}
        world = self.world(HeldSink(), hooks=hooks)
        peer = world.join(hooks=hooks)
        sent = peer.send()
        world.pump()
        peer.line.server.deaf = True
        ended = peer.client.close()
        peer.cut()
        world.wait(1)
        self.failureResultOf(sent)
        self.successResultOf(ended)
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 2)
        self.assertEqual(len(world.factory.liveConnections), 0)

    @only(*CONNECTED)
    def test_a_loss_hook_may_drain_the_server(self: Any) -> None:
        drained = []

        def sessionLost(session: Any, reason: Any) -> None:
            drained.append(session.factory.drain())

        world = self.world(SafeSink(), hooks={"sessionLost": sessionLost})
        peer, _ = world.join(), world.join()
        peer.cut()
        world.wait(10)
        self.successResultOf(drained[0])
        self.assertEqual(world.tracebacks, [])

    @only(*CONNECTED)
    def test_a_session_hook_may_end_everything(self: Any) -> None:
        """The session stands for who asks in the hook."""
        stood: list[bool] = []
        for end in (
            lambda session: session.transport.loseConnection(),
            lambda session: session.transport.abortConnection(),
            lambda session: session.close(),
        ):
            for side in ("server", "client"):

                def sessionEstablished(session: Any, end: Any = end) -> None:
                    stood.append(bool(session.established and session.connected))
                    end(session)

                hooks = {"sessionEstablished": sessionEstablished}
                world = self.world(SafeSink(), hooks=hooks if side == "server" else {})
                peer = world.meet(hooks=hooks if side == "client" else {})
                world.wait(70)
                self.assertTrue(peer.gone)
                self.assertEqual(world.tracebacks, [])
        self.assertEqual(stood, [True] * 6)

    @only(*CONNECTED)
    def test_a_session_hook_that_raises_is_logged_and_harms_nobody(self: Any) -> None:
        def sessionEstablished(session: Any) -> None:
            raise Boom("established")

        hooks = {"sessionEstablished": sessionEstablished}
        for of_server in (True, False):
            world = self.world(SafeSink(), hooks=hooks if of_server else {})
            peer = world.meet(hooks={} if of_server else hooks)
            world.pump()
            self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)
            self.soon(world, peer.send(b"x"), 2)

    def test_a_session_hook_may_be_a_coroutine_function(self: Any) -> None:
        waiting: list[Deferred[None]] = []
        came = []

        async def sessionEstablished(session: Any) -> None:
            waiting.append(Deferred())
            came.append(await waiting[-1])

        world = self.world(SafeSink(), hooks={"sessionEstablished": sessionEstablished})
        peers = [world.join(), world.join()]
        for peer in peers:
            self.soon(world, peer.send(b"x"), 2)
        self.assertEqual(came, [])
        waiting[0].callback(None)
        self.assertEqual(came, [None])
        waiting[1].errback(Boom("established"))
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)

    def test_a_session_hook_without_inlineCallbacks_is_told(self: Any) -> None:
        def never(session: Any, *reason: Any) -> Any:
            yield Deferred()

        async def neither(session: Any, *reason: Any) -> Any:
            yield

        world = self.world(SafeSink(), hooks={"sessionEstablished": never, "sessionLost": neither})
        peer = world.join()
        self.soon(world, peer.send(b"x"), 2)
        peer.cut()
        world.wait(60)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 2)

    def test_a_deferred_of_a_session_hook_that_fails_is_logged(self: Any) -> None:
        returned: list[Deferred[None]] = []

        def later(session: Any, *reason: Any) -> Deferred[None]:
            returned.append(Deferred())
            return returned[-1]

        hooks = {"sessionEstablished": later, "sessionLost": later}
        world = self.world(SafeSink(), hooks=hooks)
        peer = world.join()
        self.soon(world, peer.send(b"x"), 2)
        peer.cut()
        world.wait(60)
        self.assertEqual(len(returned), 2)
        for deferred in returned:
            deferred.errback(Boom("late"))
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 2)


class LateSink:
    @only(*CONNECTED)
    def test_a_disk_that_fails_after_the_loss_is_one_line_and_nothing_more(self: Any) -> None:
        for fault in (True, False):
            sink = HeldSink()
            world = self.world(sink)
            peer = world.join()
            sent = peer.send()
            world.pump()
            peer.cut()
            self.ignore(sent)
            if fault:
                sink.fail(QueueError("no space left"))
                self.assertEqual(len([t for t in world.lines() if "no space" in t]), 1)
            else:
                sink.safe()
            world.wait(1)
            self.assertEqual(world.factory.shared.waiting, 0)
            self.assertEqual(world.factory.shared.held.held, 0)
            self.assertEqual(world.tracebacks, [])

    @only(*CONNECTED)
    def test_counters_after_the_loss_are_those_before_it(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink)
        world.case = self.case.wide()
        peer = world.join()
        sent = [peer.send(b"%d" % number) for number in range(3)]
        world.pump()
        sink.safe(1)
        world.pump()
        before = dict(world.factory.counters.items())
        peer.cut()
        after = dict(world.factory.counters.items())
        for one in sent:
            self.ignore(one)
        for name, count in before.items():
            self.assertEqual(after[name], count, name)
        sink.safe()
        world.wait(1)
        self.assertEqual(dict(world.factory.counters.items()), after)


class HalfClosed:
    @only("lumberjack", "micromsg2", "sabc")
    def test_who_shuts_its_sending_side_still_gets_its_answer(self: Any) -> None:
        """HO-06: and then the connection ends."""
        sink = HeldSink()
        world = self.world(sink)
        peer = world.join()
        sent = peer.send()
        peer.line.client.shut = True
        world.pump()
        peer.server.readConnectionLost()  # Twisted's, whenever reading goes on
        world.pump()
        sink.safe()
        world.wait(1)
        self.successResultOf(sent)
        world.wait(5)
        self.assertTrue(peer.line.server.gone)
        self.assertEqual(world.tracebacks, [])
        self.assertEqual(world.lines(), [])

    @only("lumberjack", "micromsg2", "sabc")
    def test_a_half_close_before_anything(self: Any) -> None:
        world = self.world(HeldSink())
        peer = world.meet()
        peer.line.client.buffer.clear()
        peer.line.client.shut = True
        world.wait(15)
        self.assertTrue(peer.line.server.gone)
        self.assertEqual(world.tracebacks, [])

    @only("lumberjack", "micromsg2", "sabc")
    def test_a_half_close_with_a_sink_that_fails(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink)
        peer = world.join()
        sent = peer.send()
        peer.line.client.shut = True
        world.pump()
        sink.fail(QueueError("no space left"))
        world.wait(5)
        self.failureResultOf(sent)
        self.assertTrue(peer.line.server.gone)
        self.assertEqual(world.tracebacks, [])


over_all(globals(), BatchHook, MessageHook, SessionHooks, LateSink, HalfClosed)
