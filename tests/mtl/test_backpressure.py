"""A full sink stops the reading; a server which stops confirms what arrived."""

from __future__ import annotations

from tests.mtl.cases import HeldSink, MtlCase, Recorded, later, run, until


class BackPressure(MtlCase):
    @run
    async def test_a_full_sink_stops_the_reading_and_nothing_is_lost(self) -> None:
        """MT-27, MT-29: neither is anybody taken for dead meanwhile."""
        sink = HeldSink(at_once=False)
        recorded = Recorded()
        factory = self.server(sink, limits={"unsafe-octets": 20_000}, sockets=recorded)
        client = await self.ready(factory, "ingest", limits={"window": 5000})
        writer = await client.writer(["a"])
        done = writer.sendMany("a", [b"%04d" % n + bytes(96) for n in range(4000)])
        await until(lambda: sink.held)
        await until(lambda: recorded.paused)
        before = factory.counters["contents"]
        self.assertLess(before, 1000)
        await later(0.6)  # longer than what a silent peer has
        self.assertEqual(factory.counters["contents"], before)
        self.assertEqual(factory.snapshot()["writers"], 1)
        sink.at_once = True
        while sink.held:
            sink.held.pop(0).callback(None)
        await done
        self.assertEqual(sink.bodies, [b"%04d" % n + bytes(96) for n in range(4000)])

    @run
    async def test_a_turn_reads_no_more_than_some_octets(self) -> None:
        """MT-24, MT-29: large contents come in small batches."""
        sink = HeldSink()
        factory = self.server(sink, limits={"peer-octets": 160 << 20})
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.sendMany("a", [bytes(1 << 20)] * 30)
        self.assertEqual(len(sink.bodies), 30)
        self.assertLessEqual(max(len(batch) for batch in sink.batches), 4)
