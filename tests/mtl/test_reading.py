"""``async for`` over a reader: nothing is lost, and it says that and why it ended (HO-08)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, ensureDeferred

from tests.mtl.cases import HeldSink, MtlCase, run, until
from tests.mtl.false_server import FalseCase, content, response
from tests.mtl.plain import LEASE
from twisted_msgproto.core.errors import ConnectionClosed, TimedOut
from twisted_msgproto.mtl import MtlReader


class Reading(FalseCase):
    def reader(self, **options: Any) -> MtlReader:
        client = self.ready(**options)
        reader = self.got(client.reader(["a"]))
        self.got(reader.summon("a"))
        return reader  # type: ignore[no-any-return]

    def taking(self, reader: MtlReader, got: list[bytes]) -> Deferred[None]:
        async def take() -> None:
            async for one in reader:
                got.append(one.body)
                reader.confirm(one.sequence)

        return ensureDeferred(take())

    def arrive(self, *numbers: int) -> None:
        self.server.send(*(content(number, b"%d" % number) for number in numbers))
        self.pump()

    def test_iteration_ends_with_the_flow_after_what_had_come(self) -> None:
        """HO-08"""
        reader, got = self.reader(), list[bytes]()
        self.arrive(1, 2)
        ended = reader.whenEnded()
        reader.close()
        self.assertIsInstance(self.successResultOf(ended), ConnectionClosed)
        self.successResultOf(self.taking(reader, got))
        self.assertEqual(got, [b"1", b"2"])
        self.assertIsInstance(self.successResultOf(reader.whenEnded()), ConnectionClosed)

    def test_iteration_raises_what_has_ended_the_flow_early(self) -> None:
        """HO-08"""
        reader, got = self.reader(limits={"renewals": 1}), list[bytes]()
        taken, ended = self.taking(reader, got), reader.whenEnded()
        lost: list[Exception] = []
        reader.lost = lost.append
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 200 if kind == LEASE else 403)
        ]
        reader.summon("b").addErrback(lambda failure: None)
        self.pump()
        error = self.successResultOf(ended)
        self.assertIsInstance(error, TimedOut)
        self.assertIs(self.failureResultOf(taken, TimedOut).value, error)
        self.assertEqual(lost, [error])

    def test_a_time_out_loses_nothing(self) -> None:
        """HO-08: neither while it waits nor in the turn in which the content comes."""
        reader = self.reader()
        first = ensureDeferred(reader.__anext__()).addTimeout(1.0, self.clock)
        self.wait(2)
        self.failureResultOf(first, TimeoutError)
        second = ensureDeferred(reader.__anext__())
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.arrive(1)
        self.assertEqual(self.got(ensureDeferred(reader.__anext__())).body, b"1")

    def test_who_takes_nothing_is_sent_no_more_and_keeps_its_place(self) -> None:
        """HO-08, MT-21, MT-29: the socket is not read, and the flow pings as long as it takes."""
        reader, got = self.reader(limits={"backlog": 10}), list[bytes]()
        for number in range(1, 40):
            self.arrive(number)
        self.assertEqual(len(reader.wire.socket.inbox), 29)  # the others were read
        leases = self.server.leases
        self.wait(200)
        self.assertEqual(self.server.leases, leases)
        self.taking(reader, got)
        self.pump()
        self.assertEqual(got, [b"%d" % number for number in range(1, 40)])
        self.wait(60)  # the server is silent, and read again: now that means something
        self.assertGreater(self.server.leases, leases)

    def test_large_contents_that_nobody_takes_are_bounded_by_their_octets__NB_02(self) -> None:
        """1,000 contents of 8 MiB are 8 GB."""
        reader, got = self.reader(limits={"backlog-octets": 100_000}), list[bytes]()
        for number in range(1, 11):
            self.server.send(content(number, b"%d" % number * 30_000))
            self.pump()
        self.assertEqual(len(reader.wire.socket.inbox), 6)
        self.taking(reader, got)
        self.pump()
        self.assertEqual(len(got), 10)


class RealReading(MtlCase):
    @run
    async def test_async_for_over_a_queue(self) -> None:
        """HO-08, MT-27: more than the server sends ahead."""
        factory = self.server(HeldSink())
        client = await self.ready(factory, "queue", limits={"backlog": 20})
        writer, reader = await client.writer(["a"]), await client.reader(["a"])
        await reader.summon("a")
        await writer.sendMany("a", [b"%d" % number for number in range(500)])
        await until(lambda: factory.snapshot()["profiles"]["queue"]["broker_in_flight"] >= 20)
        got: list[bytes] = []
        async for one in reader:
            got.append(one.body)
            reader.confirm(one.sequence)
            if len(got) == 500:
                reader.flush()
                reader.drain()
        self.assertEqual(got, [b"%d" % number for number in range(500)])
        await until(lambda: factory.snapshot()["readers"] == 0)
        queue: Any = factory.machine.profiles["queue"]
        self.assertEqual(queue.counters["confirmed"], 500)
