"""Queues of the broker over real connections."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.tools.sinks import SafeSink
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ServerFactory,
    Offer,
    Proposal,
)

reactor: Any = installed
MIB = 1 << 20
PUB_SUB = Offer("pub-sub")


def batch_ack(count: int) -> Offer:
    return Offer("batch-ack", {"max-count": str(count)})


class Reading(MicroMsg2Client):
    """Notes the bodies that come, and says when there are enough.

    Attributes:
        seconds: this long it takes for each.
    """

    seconds = 0.0

    def connectionMade(self) -> None:
        self.bodies: list[bytes] = []
        self.enough: Deferred[None] = Deferred()
        self.wanted = 0
        super().connectionMade()

    def until(self, count: int) -> Deferred[None]:
        self.wanted = count
        self._look()
        return self.enough

    def messageReceived(self, message: Any) -> Deferred[None] | None:
        self.bodies.append(message.body)
        self._look()
        return deferLater(reactor, self.seconds) if self.seconds else None

    def _look(self) -> None:
        if 0 < self.wanted <= len(self.bodies) and not self.enough.called:
            self.enough.callback(None)


class Served(TestCase):
    timeout = 120

    async def serve(self, **limits: Any) -> Any:
        """A server with the queue ``q``, listening."""
        named = {name.replace("_", "-"): value for name, value in limits.items()}
        self.factory = MicroMsg2ServerFactory(SafeSink(), brokerQueues=["q"], limits=named)
        endpoint = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        port = await endpoint.listen(self.factory)
        self.port = port.getHost().port
        self.addCleanup(self.factory.drain)
        self.addCleanup(port.stopListening)
        return self.factory

    async def client(self, *offers: Offer) -> Any:
        factory = MicroMsg2ClientFactory(proposal=Proposal(required=offers))
        factory.protocol = Reading  # type: ignore[assignment]
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{self.port}")
        client: Any = await endpoint.connect(factory)
        await client.whenEstablished()
        self.addCleanup(client.leave)
        return client

    async def test_a_consumer_without_acks_gets_all_that_waits__BK_01(self) -> None:
        """BK-01: 256 came, and then nothing until the next message"""
        await self.serve()
        sender = await self.client(batch_ack(100))
        bodies = [b"%d" % number for number in range(1000)]
        await sender.sendMany("q", bodies)
        reader = await self.client(PUB_SUB)
        await reader.subscribe("q")
        await reader.until(1000)
        self.assertEqual(reader.bodies, bodies)

    async def test_much_that_waits_comes_to_a_consumer_without_acks__BK_01(self) -> None:
        """BK-01: more than a socket holds"""
        await self.serve()
        sender = await self.client(batch_ack(100))
        await sender.sendMany("q", [b"x" * 20_000] * 1000)
        reader = await self.client(PUB_SUB)
        await reader.subscribe("q")
        await reader.until(1000)
        self.assertEqual(sum(map(len, reader.bodies)), 20_000_000)

    async def test_a_connection_consumes_the_mebibytes_that_it_publishes__BK_03(self) -> None:
        """BK-03: it stood still for ever, without a word"""
        await self.serve(queue_octets=4 * MIB, withheld_octets=8 * MIB)
        both = await self.client(batch_ack(20), PUB_SUB)
        both.seconds = 0.1  # its acks come behind what it sends meanwhile
        await both.subscribe("q")
        sent = [both.send("q", b"x" * MIB) for _ in range(60)]
        await both.until(60)
        await gatherResults(sent)
        self.assertEqual(self.factory.withheld.waiting, 0)

    async def test_senders_to_other_queues_go_on_beside_a_full_one__BK_03(self) -> None:
        """BK-03, MM-32: back-pressure is for the senders to the full queue"""
        await self.serve(queue_messages=10, withheld_octets=10_000)
        stuck = await self.client()
        for _ in range(100):
            await stuck.send("q", b"x" * 1000)
        other = await self.client(batch_ack(10), PUB_SUB)
        await other.subscribe("other")
        await gatherResults([other.send("other", b"%d" % number) for number in range(200)])
        await other.until(200)
