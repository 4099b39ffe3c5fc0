"""Hooks of the server: their order, and what happens when they or the sink fail."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from tests.mtl.cases import HeldSink, MtlCase, Recorded, reactor, run, until
from twisted_msgproto.core.errors import ConnectionClosed, Refused
from twisted_msgproto.core.message import Message, MessageBatch
from twisted_msgproto.mtl import MtlServer, Profile, QueueProfile


class Hooks(MtlCase):
    @run
    async def test_hooks_of_a_session_in_order(self) -> None:
        """MT-05, MT-18"""
        called: list[str] = []

        class Telling(MtlServer):
            def connectionMade(self) -> None:
                called.append(f"made {self.virtualHost} {self.peer}")

            def sessionEstablished(self) -> None:
                called.append(f"established {self.clientId}")

            def messageReceived(self, message: Message) -> None:
                called.append(f"message {message.body!r}")

            def sessionLost(self, reason: Any) -> None:
                called.append(f"lost {reason.getErrorMessage()}")

        factory = self.server(protocol=Telling)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        await client.open("other")
        self.assertEqual(
            called,
            ["made host 127.0.0.1", "established None", "message b'x'",
             "lost the session ended: reopened", "made other 127.0.0.1", "established None"],
        )  # fmt: skip
        self.assertEqual(len(factory.liveConnections), 1)

    @run
    async def test_a_hook_which_raises_harms_nobody_else(self) -> None:
        """MT-05, MT-24: the sockets which all clients share are read on, on both sides."""

        class Raising(MtlServer):
            def connectionMade(self) -> None:
                raise ValueError("made")

            def sessionEstablished(self) -> None:
                raise ValueError("established")

            def sessionLost(self, reason: Any) -> None:
                raise ValueError("lost")

        factory = self.server(protocol=Raising)
        client = await self.ready(factory, "queue")
        await client.open("again")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 5)
        other = await self.ready(factory, "queue")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        got: list[bytes] = []

        def received(content: Any) -> None:
            got.append(content.body)
            raise ValueError("received")

        def lost(error: Exception) -> None:
            raise ValueError("lost")

        reader = await other.reader(["a"], "full", received)
        reader.lost = lost
        await reader.summon("a")
        writer = await other.writer(["a"])
        await writer.sendMany("a", [b"1", b"2"])
        await until(lambda: len(got) == 2)
        await writer.send("a", b"3")
        await until(lambda: len(got) == 3)
        self.assertEqual(got, [b"1", b"2", b"3"])
        reader.fail(ConnectionClosed("test"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 4)
        await writer.send("a", b"4")
        await factory.drain()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)

    @run
    async def test_a_profile_which_raises_does_not_make_the_server_deaf(self) -> None:
        """MT-25: what it was given is not confirmed, and the next client is served."""

        class Raising(Profile):
            name = "raising"

            def summon(self, flow: Any, resource: str) -> bool:
                raise ValueError("summon")

        recorded = Recorded()
        factory = self.server(profiles=[Raising(), QueueProfile()], sockets=recorded)
        client = await self.ready(factory, "raising")
        reader = await client.reader(["a", "b", "c"])
        raised: list[Any] = []
        for resource in "abc":  # the later ones find the socket at rest, and wake the reactor
            asked = reader.summon(resource)
            asked.addErrback(lambda failure: None)  # nobody answers
            await until(lambda: raised.extend(self.flushLoggedErrors(ValueError)) or raised)
            raised.clear()
            self.assertIn(recorded.routers[1], reactor.getReaders())
        other = await self.ready(factory, "queue")
        writer = await other.writer(["a"])
        await writer.send("a", b"served")

    @run
    async def test_what_is_not_safe_is_refused(self) -> None:
        """MT-19: hooks which raise, hooks which fail, sinks which fail."""

        class Failing(MtlServer):
            def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
                body = next(iter(batch)).body
                if body == b"raise":
                    raise ValueError("no")
                return super().batchReceived(batch)

        sink = HeldSink(at_once=False)
        factory = self.server(sink, protocol=Failing)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        good = writer.send("a", b"good")
        await until(lambda: sink.held)
        bad = writer.send("a", b"bad")
        await until(lambda: len(sink.held) == 2)
        raised = writer.send("a", b"raise")
        await until(lambda: factory.counters["contents"] == 3)
        sink.held[1].errback(OSError("disk"))
        self.assertNoResult(bad)
        sink.held[0].callback(None)
        await good
        for deferred in (bad, raised):
            await self.assertFailure(deferred, Refused)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(factory.counters["unsafe_batches"], 2)
