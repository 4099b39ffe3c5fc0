"""A client's verbs on real sockets: each from open to close, refused, bounded, cancelled."""

from __future__ import annotations

from typing import Any

from tests.mtl.cases import LOOPBACK, HeldSink, MtlCase, run, until
from twisted_msgproto.core.errors import ConnectionClosed, Refused


class Verbs(MtlCase):
    @run
    async def test_all_verbs_from_open_to_close(self) -> None:
        """MT-05, MT-06, MT-09, MT-10, MT-16, MT-17, MT-18, MT-19, MT-23"""
        sink = HeldSink()
        factory = self.server(sink)
        client = self.client(factory.addresses[0])
        self.assertEqual(await client.open("host"), ["test", "queue", "ingest"])
        await client.profile("QUEUE")
        got: list[Any] = []
        reader = await client.reader(["a", "b"], "full", got.append)
        await reader.summon("a")
        writer = await client.writer(["a"])
        await writer.send("a", b"one", {"n": 1, "s": "x"})
        await writer.sendMany("a", [b"two", b"three"])
        await until(lambda: len(got) == 3)
        self.assertEqual([c.body for c in got], [b"one", b"two", b"three"])
        self.assertEqual(got[0].properties, {"n": 1, "s": "x"})
        self.assertEqual((got[0].resource, got[0].sequence), ("a", 1))
        reader.confirm(1)
        reader.reject(3, True, recycle=True)
        await until(lambda: len(got) == 5)
        self.assertEqual([c.body for c in got[3:]], [b"two", b"three"])
        self.assertEqual(got[3].properties, {"mtl-redeliveries": 1})
        reader.confirm(5, multiple=True)
        reader.flush()
        await reader.dismiss("a")
        with self.assertRaises(Refused) as caught:
            await reader.dismiss("a")
        self.assertEqual(caught.exception.code, 400)
        self.assertEqual(writer.room, 1000)
        batch = sink.batches[0]
        self.assertEqual((batch.protocol, batch.kind, batch.client_id), ("mtl", "content", None))
        message = next(iter(batch))
        self.assertEqual(
            message.fields,
            {"n": "1", "s": "x", "mtl-virtual-host": "host", "mtl-profile": "queue"},
        )
        self.assertEqual((message.destination, message.body), ("a", b"one"))
        self.assertTrue(str(message.session).startswith("mtl-"))
        self.assertEqual(factory.snapshot()["sessions"], 1)
        await client.close()
        await client.close()
        with self.assertRaises(ConnectionClosed):
            await client.open("host")
        with self.assertRaises(ConnectionClosed):
            await client.writer(["a"])

    @run
    async def test_refusals_reach_the_deferreds(self) -> None:
        """MT-03, MT-09, MT-10, MT-25"""
        factory = self.server(virtualHosts={"host"})
        client = self.client(factory.addresses[0])
        for deferred, code in (
            (lambda: client.open("elsewhere"), 404),
            (lambda: client.open("host"), None),
            (lambda: client.reader(["a"]), 409),
            (lambda: client.profile("nothing"), 400),
            (lambda: client.profile("test"), None),
            (lambda: client.reader(["resource"], "full"), 501),
            (lambda: client.writer(["other"], "none"), 404),
        ):
            if code is None:
                await deferred()
                continue
            with self.assertRaises(Refused) as caught:
                await deferred()
            self.assertEqual(caught.exception.code, code)
        self.assertEqual(client.flows, {})

    @run
    async def test_unconfirmed_contents_fan_out(self) -> None:
        """MT-25: to readers on sockets of their own, and on one socket with control (MT-12)."""
        for data in (LOOPBACK, None):
            factory = self.server(data=data)
            client = await self.ready(factory, "test")
            got: list[list[bytes]] = [[], []]
            for bodies in got:
                reader = await client.reader(
                    ["resource"], "none", lambda c, bodies=bodies: bodies.append(c.body)
                )
                await reader.summon("resource")
            writer = await client.writer(["resource"], "none")
            await writer.sendMany("resource", [b"%d" % n for n in range(300)])
            await writer.send("resource", b"last")
            await until(lambda got=got: all(len(bodies) == 301 for bodies in got))
            self.assertEqual(got[0], got[1])
            await client.close()

    @run
    async def test_a_long_queue_to_an_unconfirmed_reader_goes_out_in_bursts(self) -> None:
        """MT-27"""
        factory = self.server()
        client = await self.ready(factory, "queue")
        writer = await client.writer(["a"])
        await writer.sendMany("a", [b"%d" % n for n in range(1500)])
        got: list[bytes] = []
        reader = await client.reader(["a"], "none", lambda content: got.append(content.body))
        await reader.summon("a")
        await until(lambda: len(got) == 1500)
        self.assertEqual(got, [b"%d" % n for n in range(1500)])
