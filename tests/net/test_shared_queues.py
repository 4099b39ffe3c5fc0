"""MicroMsg2 and MTL in one gateway: queues of one namespace, and what an operator sees of them."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from twisted.python import usage
from twisted.trial.unittest import TestCase

from tests.contract.sending import Bodies
from twisted_msgproto import Message
from twisted_msgproto.cli.broker import StoppedBroker
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.cli.recv import receive
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.micromsg2 import MicroMsg2ServerFactory
from twisted_msgproto.micromsg2 import command as micromsg2
from twisted_msgproto.micromsg2 import queued_messages as micromsg2_messages
from twisted_msgproto.mtl import IngestProfile, MtlServerFactory
from twisted_msgproto.mtl import command as mtl
from twisted_msgproto.mtl import queued_messages as mtl_messages
from twisted_msgproto.net import DurableSink
from twisted_msgproto.net import gateway as net_gateway
from twisted_msgproto.net.clients.command_types import RecvOptions, SendOptions
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.net.site.client import GatewayBroker
from twisted_msgproto.net.site.queue_view import NoSuchQueue
from twisted_msgproto.registry import load
from twisted_msgproto.testing import SafeSink

reactor: Any = installed
SERVERS = {
    "micromsg2": ("tcp:0:interface=127.0.0.1", micromsg2),
    "mtl": ("tcp://127.0.0.1:*", mtl),
}
NAMESPACE = ("--broker-namespace", "shop")


def another(gateway: Gateway) -> SafeSink:
    return SafeSink()


class Shared(TestCase):
    timeout = 120

    def setUp(self) -> None:
        self.addresses: dict[str, str] = {}
        self.patch(net_gateway, "announce", lambda *_: None)

    def serve(self, queue: str | None = None, **words: tuple[str, ...]) -> Gateway:
        """A gateway of the servers that are named, with these options."""
        gateway = Gateway(reactor, queue)
        for name, (endpoint, _) in SERVERS.items():
            if name in words:
                service = load(name, "service")
                read: Any = service.Options()
                read.read(["-e", endpoint, *words[name]])
                service.serve(read, gateway).setServiceParent(gateway)
        self.addCleanup(gateway.stopService)
        gateway.startService()
        for service in gateway.services:
            if getattr(service, "ports", None):
                self.addresses["micromsg2"] = f"tcp:127.0.0.1:{service.ports[0].getHost().port}"
        for factory in gateway.factories:
            if factory.protocolName == "mtl":
                self.addresses["mtl"] = factory.addresses[0]
        return gateway

    async def send(self, name: str, destination: str, *bodies: bytes, **properties: str) -> None:
        progress = Counted()
        options = SendOptions(
            endpoint=self.addresses[name], destination=destination, properties=properties
        )
        await SERVERS[name][1].send(reactor, options, Bodies(list(bodies), 2), progress)
        self.assertEqual(progress.messages_acknowledged, len(bodies))

    async def recv(self, name: str, destination: str, **options: Any) -> list[Message]:
        shown: list[Message] = []
        asked = RecvOptions(endpoint=self.addresses[name], destination=destination, **options)
        command = SERVERS[name][1]
        await receive(reactor, command, asked, shown.append)  # type: ignore[arg-type]
        return shown

    async def left(self, gateway: Gateway, **expected: int) -> None:
        """Wait until the queues hold this much: an acknowledgement may still be on its way."""
        while True:
            shown = gateway.broker().queues()  # type: ignore[union-attr]
            found = {queue.name: queue.waiting + queue.in_flight for queue in shown}
            if {name: found.get(name) for name in expected} == expected:
                return
            await deferLater(reactor, 0.01)

    async def test_what_micromsg2_publishes_a_reader_of_mtl_gets(self) -> None:
        self.serve(micromsg2=(*NAMESPACE, "--broker-queue", "orders"), mtl=NAMESPACE)
        await self.send("micromsg2", "orders", b"1", b"\xff", b"3", market="Teu", amount="100")
        got = await self.recv("mtl", "queue/orders", count=3)
        self.assertEqual([message.body for message in got], [b"1", b"\xff", b"3"])
        for message in got:
            self.assertEqual(message.destination, "orders")
            self.assertEqual(message.fields, {"market": "Teu", "amount": "100"})

    async def test_what_mtl_writes_a_consumer_of_micromsg2_gets_by_its_filter(self) -> None:
        self.serve(micromsg2=NAMESPACE, mtl=NAMESPACE)
        for amount in ("99", "100", "101"):
            await self.send("mtl", "queue/bills", amount.encode(), amount=amount, Market_Place="Ä")
        got = await self.recv("micromsg2", "bills", count=2, filter="amount>=N100")
        self.assertEqual([message.body for message in got], [b"100", b"101"])
        for message in got:
            self.assertEqual(message.fields["market-place"], "Ä")  # type: ignore[index]
        rest = await self.recv("mtl", "queue/bills", count=1)
        self.assertEqual([message.body for message in rest], [b"99"])

    async def test_without_a_namespace_each_has_queues_of_its_own(self) -> None:
        self.serve(micromsg2=("--broker-queue", "orders"), mtl=())
        await self.send("micromsg2", "orders", b"1")
        await self.send("mtl", "queue/orders", b"2")
        self.assertEqual([m.body for m in await self.recv("mtl", "queue/orders", count=1)], [b"2"])
        self.assertEqual([m.body for m in await self.recv("micromsg2", "orders", count=1)], [b"1"])

    async def test_each_says_that_a_queue_is_full_and_its_senders_wait(self) -> None:
        least = ("--limit", "queue-messages=1")
        gateway = self.serve(micromsg2=("--broker-queue", "bills", *least), mtl=least)
        for name, queue in (("micromsg2", "bills"), ("mtl", "queue/orders")):
            with capturedLogs() as told:
                sending = ensureDeferred(self.send(name, queue, b"1", b"2"))
                await self.left(gateway, **{queue.rpartition("/")[2]: 2})
            (line,) = [text for one in told if "is full" in (text := formatEvent(one))]
            self.assertRegex(line, f"^{name}: the queue .* is full and its senders wait; ")
            [factory] = [one for one in gateway.factories if one.protocolName == name]
            self.assertEqual(factory.counters["limit:queue-messages"], 1)  # LIMITS MET
            await self.recv(name, queue, count=2)
            await sending

    async def test_an_operator_sees_and_changes_the_queues_of_both(self) -> None:
        directory = self.mktemp()
        self.serve(directory, micromsg2=("--broker-queue", "orders"), mtl=())
        await self.send("micromsg2", "orders", b"1", b"2", market="Teu")
        await self.send("mtl", "queue/bills", b"3")
        broker = GatewayBroker(directory)
        found = await deferToThread(broker.queues)
        self.assertEqual(
            [(queue.space, queue.name, queue.waiting) for queue in found],
            [("micromsg2", "orders", 2), ("mtl/msgproto/queue", "bills", 1)],
        )
        shown = await deferToThread(broker.peek, "micromsg2", "orders", 5)
        self.assertEqual([message.body for message in shown], [b"1", b"2"])
        self.assertEqual(shown[0].fields, {"market": "Teu"})
        with self.assertRaisesRegex(NoSuchQueue, "'x.dead' is for dead letters"):
            await deferToThread(broker.requeue, "micromsg2", "orders", "x.dead")
        self.assertEqual(await deferToThread(broker.requeue, "micromsg2", "orders", "later"), 2)
        self.assertEqual(await deferToThread(broker.purge, "mtl/msgproto/queue", "bills"), 1)
        found = await deferToThread(broker.queues)
        self.assertEqual([queue.waiting for queue in found], [2, 0, 0])
        got = await self.recv("micromsg2", "later", count=2)
        self.assertEqual([message.body for message in got], [b"1", b"2"])

    async def test_queues_outlive_the_gateway_and_what_was_settled_stays_so(self) -> None:
        """Also while it is down, an operator sees and changes them."""
        directory = self.mktemp()
        both = {"micromsg2": ("--broker-queue", "orders"), "mtl": ()}
        gateway = self.serve(directory, **both)
        await self.send("micromsg2", "orders", b"1", b"2", b"3", market="Teu")
        await self.send("mtl", "queue/bills", b"4", b"5", b"6", amount="7")
        self.assertEqual([m.body for m in await self.recv("mtl", "queue/bills", count=1)], [b"4"])
        await self.left(gateway, orders=3, bills=2)
        await gateway.stopService()
        shown = await deferToThread(self.stopped, directory)
        self.assertEqual(
            [(queue.space, queue.name, queue.waiting) for queue, _ in shown],
            [("micromsg2", "orders", 3), ("mtl/msgproto/queue", "bills", 2)],
        )
        self.assertEqual([m.body for _, messages in shown for m in messages], [
            b"1", b"2", b"3", b"5", b"6"])  # fmt: skip
        self.assertEqual(shown[1][1][0].fields, {"amount": "7"})
        gateway = self.serve(directory, **both)
        got = await self.recv("mtl", "queue/bills", count=2)
        self.assertEqual([message.body for message in got], [b"5", b"6"])
        self.assertEqual(got[1].fields, {"amount": "7"})
        got = await self.recv("micromsg2", "orders", count=2)
        self.assertEqual([message.body for message in got], [b"1", b"2"])
        self.assertEqual(got[0].fields, {"market": "Teu"})
        await self.left(gateway, orders=1, bills=0)
        await gateway.stopService()
        await deferToThread(self.move, directory, "micromsg2", "orders", "later")
        gateway = self.serve(directory, **both)
        self.assertEqual([m.body for m in await self.recv("micromsg2", "later", count=1)], [b"3"])
        await self.left(gateway, orders=0, bills=0, later=0)

    @staticmethod
    def stopped(directory: str) -> list[Any]:
        with closing(StoppedBroker(directory)) as broker:
            return [(queue, broker.peek(queue.space, queue.name, 9)) for queue in broker.queues()]

    @staticmethod
    def move(directory: str, space: str, name: str, to: str) -> None:
        with closing(StoppedBroker(directory)) as broker:
            broker.requeue(space, name, to)

    def test_a_broker_which_cannot_open_ends_the_start_with_a_line(self) -> None:
        directory = Path(self.mktemp())
        (directory / "broker").mkdir(parents=True)
        (directory / "broker" / "log").touch()
        with self.assertRaisesRegex(SystemExit, "^gateway: mtl: cannot open .*is no directory$"):
            self.serve(str(directory), mtl=())

    def test_servers_of_one_namespace_have_its_limits_alike(self) -> None:
        for words, says in (
            (("--limit", "queue-messages=7"), "queue-messages=10000, and it is 7 here"),
            (("--queue-full", "dead-letter"), "has queue-full='wait', and not 'dead-letter'"),
            (("--sink", f"{__name__}:another"), "stores its messages in another sink"),
        ):
            with self.assertRaisesRegex(ConfigurationError, says):
                self.serve(micromsg2=NAMESPACE, mtl=(*NAMESPACE, *words))
        alike = ("--limit", "queue-idle=7")
        self.serve(micromsg2=(*NAMESPACE, *alike), mtl=(*NAMESPACE, *alike))

    async def test_a_space_has_one_broker_in_a_program(self) -> None:
        """The later server had all messages, and consumers of the earlier one got none."""
        sink = DurableSink(self.mktemp(), reactor)
        self.addCleanup(sink.close)
        ingest = {"micromsg2": {"broker": False}, "mtl": {"profiles": [IngestProfile()]}}
        for name, without in ingest.items():
            factory: Any = {"micromsg2": MicroMsg2ServerFactory, "mtl": MtlServerFactory}[name]
            first = factory(sink)
            with self.assertRaisesRegex(ConfigurationError, r"queues=other\.queues"):
                factory(sink)
            self.assertIs(factory(sink, queues=first.queues).queues, first.queues)
            factory(sink, **without)


@pytest.mark.parametrize("name", ["", "a/b", "micromsg2", "mtl/x", "x" * 65, "-a"])
@pytest.mark.parametrize("protocol", ["micromsg2", "mtl"])
def test_a_namespace_is_named_like_no_space_of_a_server(protocol: str, name: str) -> None:
    with pytest.raises(usage.UsageError, match="broker-namespace"):
        load(protocol, "service").Options().read([f"--broker-namespace={name}"])


@pytest.mark.parametrize("protocol", ["micromsg2", "mtl"])
def test_what_a_full_queue_does_is_one_of_two(protocol: str) -> None:
    with pytest.raises(usage.UsageError, match="wait or dead-letter, not 'drop'"):
        load(protocol, "service").Options().read(["--queue-full=drop"])


# ── the table of docs/broker.md ─────────────────────────────────────────────────────────────────

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"text": "käse; brot"}, {"text": "käse; brot"}),
        ({"whole": 7, "large": 1 << 40}, {"whole": 7, "large": 1 << 40}),
        ({"part": Decimal("2.5")}, {"part": Decimal("2.5")}),
        ({"huge": 1 << 70}, {"huge": str(1 << 70)}),
        ({"when": MOMENT}, {"when": MOMENT}),
        ({"when": MOMENT.replace(microsecond=500_000)}, {"when": MOMENT}),
    ],
)
def test_properties_from_micromsg2_to_mtl(sent: Any, got: Any) -> None:
    read = micromsg2_messages.fields_of(micromsg2_messages.own_of(sent))
    assert mtl_messages.fields_of(mtl_messages.own_of(read)) == got


@pytest.mark.parametrize("protocol", [micromsg2_messages, mtl_messages])
def test_properties_that_are_cut_are_refused(protocol: Any) -> None:
    own = protocol.own_of({"a": 1, "b": "x"})
    for end in range(len(own)):
        with pytest.raises(ValueError):
            protocol.fields_of(own[:end])


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"text": "x", "whole": -7, "part": 2.5}, {"text": "x", "whole": -7, "part": 2.5}),
        ({"yes": True, "none": None}, {"yes": "true", "none": "null"}),
        ({"bytes": b"\0\xff"}, {"bytes": "AP8="}),
        ({"list": [1, "a"], "table": {"b": 1}}, {"list": '[1, "a"]', "table": '{"b": 1}'}),
        ({"Content_Type": "x", "größe": 1}, {"content-type": "x", "gr--e": 1}),
        ({"when": MOMENT}, {"when": MOMENT}),
        ({"exact": Decimal("0.10")}, {"exact": Decimal("0.1")}),
        ({"nan": float("nan")}, {"nan": "NaN"}),
        ({"long": "x" * 70_000}, {}),
    ],
)
def test_properties_from_mtl_to_micromsg2(sent: Any, got: Any) -> None:
    read = mtl_messages.fields_of(mtl_messages.own_of(sent))
    assert micromsg2_messages.fields_of(micromsg2_messages.own_of(read)) == got
