"""Queues of the broker that outlive the gateway: a durable queue, real connections, restarts."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.tools.queues import rows
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    Offer,
    Proposal,
)
from twisted_msgproto.net import DurableSink

reactor: Any = installed
PUB_SUB = Offer("pub-sub")
ACK = Offer("batch-ack", {"max-count": "10"})


class Reading(MicroMsg2Client):
    """Notes what comes, and answers when it is told to."""

    def connectionMade(self) -> None:
        self.messages: list[Any] = []
        self.holds = False
        self.held: list[Deferred[None]] = []
        self._wanted: tuple[int, Deferred[None]] | None = None
        super().connectionMade()

    def until(self, count: int) -> Deferred[None]:
        """Fires when so many have come."""
        self._wanted = count, Deferred()
        waiting = self._wanted[1]
        self._look()
        return waiting

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def messageReceived(self, message: Any) -> Deferred[None] | None:
        self.messages.append(message)
        if self.holds:
            self.held.append(Deferred())
        self._look()
        return self.held[-1] if self.holds else None

    def _look(self) -> None:
        if self._wanted is not None and len(self.messages) >= self._wanted[0]:
            waiting, self._wanted = self._wanted[1], None
            waiting.callback(None)


class Gateway:
    """A server over a queue directory, from its start to its end."""

    def __init__(self, directory: str, protocol: type = MicroMsg2Server, **options: Any) -> None:
        self.sink = DurableSink(directory, reactor)
        limits = {k.replace("_", "-"): v for k, v in options.pop("limits", {}).items()}
        self.factory = MicroMsg2ServerFactory(self.sink, limits=limits, **options)
        self.factory.protocol = protocol
        self.clients: list[Any] = []
        self.stopped = False

    async def start(self) -> Gateway:
        endpoint = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        self.port = await endpoint.listen(self.factory)
        return self

    async def client(self, *offers: Offer) -> Any:
        factory = MicroMsg2ClientFactory(proposal=Proposal(required=offers))
        factory.protocol = Reading
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{self.port.getHost().port}")
        client: Any = await endpoint.connect(factory)
        self.clients.append(client)
        await client.whenEstablished()
        return client

    async def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        await self.port.stopListening()
        await gatherResults([client.leave() for client in self.clients])
        await self.factory.drain()
        await self.sink.close()

    def figures(self, name: str = "q") -> Any:
        found = [each for each in self.factory.queues.store.queues() if each.name.name == name]
        return found[0] if found else None


class Kept(TestCase):
    timeout = 120

    def setUp(self) -> None:
        self.directory = self.mktemp()
        self.gateways: list[Gateway] = []

    async def start(self, **options: Any) -> Gateway:
        gateway = await Gateway(self.directory, **options).start()
        self.addCleanup(lambda: Deferred.fromCoroutine(gateway.stop()))
        return gateway

    async def test_what_waits_in_a_queue_is_there_after_a_restart(self) -> None:
        """MM-27: with its properties and its type, in order, and its rows are in the queue once"""
        first = await self.start(brokerQueues=["q"])
        sender = await first.client(ACK, Offer("dotnet"))
        await sender.send("q", b"1", {"amount": 3, "market": "Teu"}, typeName="My.Type")
        await sender.send("elsewhere", b"2")
        await sender.sendMany("q", [b"3", b"4"], {"amount": 5}, typeName="")
        await first.stop()
        second = await self.start(brokerQueues=["q"])
        self.assertEqual(second.figures().waiting, 3)
        reader = await second.client(ACK, PUB_SUB, Offer("dotnet"))
        await reader.subscribe("q")
        await reader.until(3)
        self.assertEqual(reader.bodies, [b"1", b"3", b"4"])
        self.assertEqual(
            [dict(message.fields) for message in reader.messages],
            [
                {"amount": "3", "market": "Teu", "dotnet-type": "My.Type"},
                {"amount": "5"},
                {"amount": "5"},
            ],
        )
        await second.stop()
        self.assertEqual([row["body"] for row in rows(self.directory)], [b"1", b"2", b"3", b"4"])

    async def test_what_was_settled_does_not_come_again(self) -> None:
        """MM-27: and what was delivered and not acknowledged does"""
        first = await self.start(brokerQueues=["q"])
        sender = await first.client(ACK)
        await sender.sendMany("q", [b"%d" % number for number in range(10)])
        reader = await first.client(Offer("ack"), PUB_SUB)
        reader.holds = True
        await reader.subscribe("q")
        for number in range(2):
            await reader.until(number + 1)
            reader.held[number].callback(None)
        await reader.until(3)
        await first.stop()
        second = await self.start(brokerQueues=["q"])
        again = await second.client(ACK, PUB_SUB)
        await again.subscribe("q")
        await again.until(8)
        self.assertEqual(again.bodies, [b"%d" % number for number in range(2, 10)])

    async def test_a_queue_that_a_subscriber_made_is_there_after_a_restart(self) -> None:
        """MM-27: what came before it was made is Spark's only"""
        first = await self.start()
        sender = await first.client(ACK)
        await sender.send("q", b"before")
        reader = await first.client(ACK, PUB_SUB)
        reader.holds = True
        await reader.subscribe("q")
        while first.figures() is None:
            await deferLater(reactor, 0.01)
        await sender.send("q", b"behind")
        await reader.until(1)
        await first.stop()
        second = await self.start()
        again = await second.client(ACK, PUB_SUB)
        await again.subscribe("q")
        await again.until(1)
        self.assertEqual(again.bodies, [b"behind"])
