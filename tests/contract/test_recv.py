"""``msgproto recv`` in memory: what it shows is acknowledged, and nothing else is."""

from __future__ import annotations

import functools
from typing import Any

from twisted.internet.defer import Deferred

from tests.contract.cases import BOTH_WAYS, Endpoint
from tests.contract.sending import ENDPOINTS, Peer, Sent
from tests.contract.test_send import Silent
from tests.contract.world import World, only, over_all
from tests.tools.sinks import SafeSink
from twisted_msgproto.cli.recv import receive
from twisted_msgproto.core.errors import Refused, TimedOut
from twisted_msgproto.core.message import Message
from twisted_msgproto.mtl import MtlClient
from twisted_msgproto.net.clients.shapes import RecvOptions
from twisted_msgproto.registry import load


class Received:
    """One ``recv``; ``show`` is what it does with a message."""

    def __init__(
        self,
        test: Any,
        world: World,
        show: Any = None,
        endpoint: Any = None,
        timeout: float | None = None,
        until_empty: bool = False,
        **options: Any,
    ) -> None:
        name = test.case.name
        module = load(name.partition("-")[0], "command")
        at = Endpoint(test.case, world) if endpoint is None else endpoint
        for attribute in ("client_endpoint", "websocket_endpoint"):
            if hasattr(module, attribute):
                test.patch(module, attribute, lambda reactor, options: at)
        if name == "mtl":
            sockets = world.network.sockets("192.0.2.8")
            test.patch(module, "MtlClient", functools.partial(MtlClient, sockets=sockets))
        self.shown: list[Message] = []
        asked = RecvOptions(endpoint=ENDPOINTS[name], **options)
        self.done = Deferred.fromCoroutine(
            receive(
                *(world.clock, module, asked, show or self.shown.append),
                timeout=timeout,
                until_empty=until_empty,
            )
        )
        world.pump()


class RecvFrom:
    @only(*BOTH_WAYS)
    def test_what_comes_behind_the_count_is_not_acknowledged(self: Any) -> None:
        world = self.world(SafeSink())
        received = Received(self, world, count=1)
        (peer,) = world.peers
        answers = [peer.push(b"1"), peer.push(b"2")]
        world.wait(20)
        self.successResultOf(received.done)
        self.assertEqual([message.body for message in received.shown], [b"1"])
        self.successResultOf(answers[0])
        self.failureResultOf(answers[1])

    @only(*BOTH_WAYS)
    def test_what_could_not_be_shown_is_not_acknowledged__HO_21(self: Any) -> None:
        def show(message: Message) -> None:
            raise BrokenPipeError

        world = self.world(SafeSink())
        received = Received(self, world, show)
        (peer,) = world.peers
        answer = peer.push(b"1")
        world.wait(20)
        self.failureResultOf(received.done, BrokenPipeError)
        self.failureResultOf(answer)
        self.flushLoggedErrors(Refused)

    @only("sabc", "sabc-ws")
    def test_an_error_of_the_server_is_told(self: Any) -> None:
        world = self.world(SafeSink())
        received = Received(self, world)
        (peer,) = world.peers
        peer.server.sendError(503, "the archive is away")
        world.wait(20)
        error = self.failureResultOf(received.done, Refused).value
        self.assertEqual(str(error), "the server reports an error: the archive is away")

    @only(*BOTH_WAYS)
    def test_a_server_which_goes_away_ends_it(self: Any) -> None:
        world = self.world(SafeSink())
        received = Received(self, world, count=1)
        self.case.away(world)
        world.wait(20)
        self.failureResultOf(received.done)

    @only("micromsg2", "mtl")
    def test_until_empty_it_shows_all_that_waits_and_ends_in_peace(self: Any) -> None:
        world = self.world(SafeSink())
        destination = {"mtl": "queue/messages"}.get(self.case.name)
        received = Received(self, world, until_empty=True, timeout=9.0, destination=destination)
        sent = Sent(self, world, destination=destination, count=5)
        self.assertIsNone(sent.settle().line)
        self.assertNoResult(received.done)
        self.assertEqual(len(received.shown), 5)
        world.wait(20)
        self.successResultOf(received.done)

    @only("micromsg2", "mtl")
    def test_until_empty_an_empty_queue_is_the_end(self: Any) -> None:
        world = self.world(SafeSink())
        destination = {"mtl": "queue/messages"}.get(self.case.name)
        received = Received(self, world, until_empty=True, destination=destination)
        self.assertNoResult(received.done)
        world.wait(20)
        self.successResultOf(received.done)
        self.assertEqual(received.shown, [])

    @only("micromsg2")
    def test_until_empty_a_server_that_does_not_answer_is_no_empty_queue(self: Any) -> None:
        world = self.world(SafeSink())
        silent = Peer(world, lambda address: Silent())
        received = Received(self, world, until_empty=True, endpoint=silent)
        world.wait(60)
        self.failureResultOf(received.done, TimedOut)


over_all(globals(), RecvFrom)
