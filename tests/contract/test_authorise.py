"""An ``authorise`` of one's own which ends things from inside, or answers when nobody waits."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from tests.contract.test_storing import Boom
from tests.contract.world import only, over_all
from tests.tools.sinks import SafeSink

WITH_LOG_IN = ("sabc", "sabc-ws", "umq")


class Authorising:
    def met(self: Any, authorise: Any) -> tuple[Any, Any]:
        world = self.world(SafeSink(), hooks={"authorise": authorise})
        peer = world.meet()
        self.ignore(peer.client.whenEstablished())
        world.pump()
        return world, peer

    @only(*WITH_LOG_IN)
    def test_one_may_close_the_connection_and_say_yes(self: Any) -> None:
        for end in (
            lambda server: server.transport.loseConnection(),
            lambda server: server.transport.abortConnection(),
            lambda server: server.factory.drain(),
            lambda server: server.close(),
        ):

            def authorise(server: Any, request: Any, end: Any = end) -> str:
                end(server)
                return "me"

            world, peer = Authorising.met(self, authorise)
            world.wait(70)
            self.assertTrue(peer.gone)
            self.assertEqual(world.tracebacks, [])

    @only(*WITH_LOG_IN)
    def test_one_that_answers_after_the_loss_is_not_heard(self: Any) -> None:
        for answer in ("me", Boom("late")):
            asked: list[Deferred[Any]] = []

            def authorise(server: Any, request: Any, asked: Any = asked) -> Deferred[Any]:
                asked.append(Deferred(lambda deferred: None))
                return asked[-1]

            world, peer = Authorising.met(self, authorise)
            peer.cut()
            world.wait(1)
            if not asked[0].called:
                asked[0].callback(answer) if answer == "me" else asked[0].errback(answer)
            self.assertEqual(world.tracebacks, [])
            self.assertFalse(peer.server.established)
            self.assertEqual(world.factory.counters["rejected"], 0)

    @only(*WITH_LOG_IN)
    def test_one_that_never_answers_ends_in_time(self: Any) -> None:
        world, peer = Authorising.met(self, lambda server, request: Deferred())
        world.wait(70)
        self.assertTrue(peer.gone)
        self.assertEqual(world.tracebacks, [])

    @only(*WITH_LOG_IN)
    def test_one_that_raises_is_a_refusal_with_a_traceback(self: Any) -> None:
        def authorise(server: Any, request: Any) -> str:
            raise Boom("asked")

        world, peer = Authorising.met(self, authorise)
        world.wait(70)
        self.assertTrue(peer.gone)
        self.assertEqual(len(self.flushLoggedErrors(Boom)), 1)
        self.assertEqual(world.factory.counters["rejected"], 1)

    @only(*WITH_LOG_IN)
    def test_one_of_the_wrong_type_harms_nobody_else(self: Any) -> None:
        answers: list[Any] = [7, b"octets", "me"]
        world = self.world(SafeSink(), hooks={"authorise": lambda server, request: answers.pop(0)})
        for _ in range(3):
            peer = world.meet()
            self.ignore(peer.client.whenEstablished())
            world.pump()
            if peer.stands:
                sent = peer.send(b"x")
                world.wait(1)
                self.successResultOf(sent)
        self.assertTrue(peer.stands)
        self.flushLoggedErrors(TypeError)

    @only(*WITH_LOG_IN)
    def test_a_server_that_stops_meanwhile_is_gone_in_time(self: Any) -> None:
        asked: list[Deferred[Any]] = []

        def authorise(server: Any, request: Any) -> Deferred[Any]:
            asked.append(Deferred())
            return asked[-1]

        world, peer = Authorising.met(self, authorise)
        drained = world.factory.drain()
        world.pump()
        if not asked[0].called:
            asked[0].callback("me")
        world.wait(6)
        self.successResultOf(drained)
        self.assertTrue(peer.gone)
        self.assertEqual(world.tracebacks, [])


over_all(globals(), Authorising)
