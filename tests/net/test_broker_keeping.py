"""A broker's durable half on the reactor: names, what is settled, the end.

Who is not read while queues are full, and who is read because its acks make room (BK-03).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from twisted.trial.unittest import TestCase

from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import LIMITS, QueuedMessage, QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.net import DurableSink
from twisted_msgproto.net.broker import SenderBackpressure, ServedQueues, broker_of, persistence
from twisted_msgproto.queue import OS_DISK, broker_files
from twisted_msgproto.testing import BrokenDisk

reactor: Any = installed
SPACE = "tests"
ORDERS = QueueName(SPACE, "orders")


class Reader:
    """Takes everything, and acknowledges when it is told to."""

    def __init__(self) -> None:
        self.messages: list[QueuedMessage] = []

    def room(self) -> int:
        return 1000

    def push(self, queue: QueueName, messages: Any) -> bool:
        self.messages += messages
        return True

    def failed(self, error: Exception) -> None:
        raise error


def batch(*bodies: bytes, name: QueueName = ORDERS) -> MessageBatch:
    return MessageBatch(
        "tests",
        "message",
        1_700_000_000_000_000,
        count=len(bodies),
        body=list(bodies),
        envelope=[head("tests", name)] * len(bodies),
    )


class Keeps(TestCase):
    timeout = 60

    def setUp(self) -> None:
        self.directory = self.mktemp()

    def start(
        self, disk: Any = OS_DISK, report: Any = None, **limits: Any
    ) -> tuple[DurableSink, Any]:
        sink = DurableSink(self.directory, reactor, disk=disk, report=report)
        named = {name.replace("_", "-"): value for name, value in limits.items()}
        broker: Any = broker_of(sink, reactor, Limits.of(LIMITS).replace(named), [SPACE])
        broker.join()
        broker.open()

        def end() -> Any:
            if not broker.ended:
                broker.ended = True
                broker.left()
                return sink.close()
            return None

        broker.ended, broker.end = False, end
        self.addCleanup(end)
        return sink, broker

    async def filled(
        self, reader: Reader | None = None, **options: Any
    ) -> tuple[DurableSink, Any, list[bytes]]:
        """A broker with room for a few of 40 messages, which wait, or are ``reader``'s."""
        sink, broker = self.start(broker_memory_bytes=5000, **options)
        broker.store.declare(ORDERS, broker.now(), kept=True)
        if reader is not None:
            broker.machine.subscribe(reader, ORDERS, broker.now())
        sent = [b"%d" % number + bytes(1000) for number in range(40)]
        await sink.put(batch(*sent))
        return sink, broker, sent

    def accepted(self, broker: Any) -> Deferred[None]:
        """Fires when senders to the queue are answered."""
        accepted: Deferred[None] = Deferred()
        broker.when_accepted([ORDERS], lambda: accepted.callback(None))
        return accepted

    async def test_what_is_settled_is_written_though_a_thread_could_not_be_started(self) -> None:
        sink, broker = self.start()
        broker.store.declare(ORDERS, broker.now(), kept=True)
        reader, refused = Reader(), Deferred[None]()
        broker.machine.subscribe(reader, ORDERS, broker.now())
        await sink.put(batch(b"1", b"2"))
        run = persistence.deferToThreadPool

        def none(*arguments: Any) -> Any:
            self.patch(persistence, "deferToThreadPool", run)
            refused.callback(None)
            raise RuntimeError("can't start new thread")

        self.patch(persistence, "deferToThreadPool", none)
        await refused
        file = Path(self.directory) / "broker" / "settled"
        before = file.read_bytes() if file.exists() else b""
        broker.machine.settle(reader, [0, 1])
        while not file.exists() or file.read_bytes() == before:
            await deferLater(reactor, 0.01)
        await broker.end()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    async def test_a_purge_is_answered_when_it_is_on_disk_or_with_why_it_is_not(self) -> None:
        """RD-57: it was answered before, and a kill undid it."""
        sink, broker = self.start()
        broker.store.declare(ORDERS, broker.now(), kept=True)
        view = ServedQueues([broker], reactor)
        state: Any = sink.brokerPersistence.state  # type: ignore[union-attr]
        file = Path(self.directory) / "broker" / "settled"
        before = file.read_bytes() if file.exists() else b""
        await sink.put(batch(b"1", b"2"))
        self.assertEqual(await view.purge(*ORDERS), 2)
        self.assertNotEqual(file.read_bytes(), before)
        await sink.put(batch(b"3"))

        def broken() -> None:
            raise OSError("the disk is away")

        self.patch(state, "flush", broken)
        with self.assertRaisesRegex(QueueError, "1 messages are changed, .* on disk yet: the disk"):
            await view.requeue(*ORDERS, "others")

    async def test_what_left_the_memory_in_flight_comes_back_from_the_disk__NB_02(self) -> None:
        """NB-02: a consumer has read everything, has acknowledged nothing, and goes."""
        first, second = Reader(), Reader()
        _, broker, sent = await self.filled(first)
        self.assertEqual([message.body for message in first.messages], sent)
        self.assertLess(broker.store.snapshot()["broker_memory_bytes"], 5000)
        broker.machine.settle(first, [0])
        broker.machine.subscribe(second, ORDERS, broker.now())
        broker.machine.gone(first, broker.now(), orderly=True)
        while len(second.messages) < 39:
            await deferLater(reactor, 0.01)
        self.assertEqual([message.body for message in second.messages], sent[1:])
        self.assertTrue(all(message.again for message in second.messages))
        self.assertLess(broker.store.snapshot()["broker_memory_bytes"], 5000)

    async def test_an_operator_is_shown_what_left_the_memory(self) -> None:
        _, broker, sent = await self.filled()
        shown = await ServedQueues([broker], reactor).peek(*ORDERS, 40)
        self.assertEqual([message.body for message in shown], sent)

    async def test_what_the_disk_cannot_read_now_is_delivered_later__RD_50(self) -> None:
        """RD-50: it was dropped and settled for good; one line tells it, and the page."""
        self.patch(persistence, "AGAIN_SECONDS", 0.01)
        lines = list[str]()
        disk = BrokenDisk()
        sink, broker, sent = await self.filled(disk=disk, report=lines.append)
        disk.fail("read", times=None, name=".segment")
        reader = Reader()
        broker.machine.subscribe(reader, ORDERS, broker.now())
        tries = disk.counts["read"] + 100
        while disk.counts["read"] < tries:
            await deferLater(reactor, 0.01)
        with self.assertRaises(OSError):
            await broker.read([39])
        self.assertEqual(broker.store.snapshot()["broker_unreadable"], 0)
        self.assertEqual(len([line for line in lines if "cannot be read now" in line]), 1)
        self.assertIn("cannot read", sink.writer.unreadable)
        load, failures = broker_files.BrokerState.load, [MemoryError()]

        def once_more(state: Any, message_ids: Any) -> Any:
            if failures:
                raise failures.pop()
            return load(state, message_ids)

        self.patch(broker_files.BrokerState, "load", once_more)
        disk.heal()
        while len(reader.messages) < 40:
            await deferLater(reactor, 0.01)
        self.assertEqual([message.body for message in reader.messages], sent)
        broker.machine.settle(reader, [message.message_id for message in reader.messages])
        await broker.end()
        _, broker = self.start()
        self.assertEqual([figures.waiting for figures in broker.store.queues()], [0])

    async def test_what_somebody_took_away_is_delivered_when_it_is_put_back(self) -> None:
        """RD-54: it was dropped and settled for good, though a line asks to put it back."""
        self.patch(persistence, "AGAIN_SECONDS", 0.01)
        for cut in (False, True):
            lines = list[str]()
            _, broker, sent = await self.filled(report=lines.append)
            (segment,) = Path(self.directory).glob("*.segment")
            octets = segment.read_bytes()
            segment.write_bytes(b"") if cut else segment.rename(f"{self.directory}.away")
            reader = Reader()
            broker.machine.subscribe(reader, ORDERS, broker.now())
            while not any("messages of queues cannot be read now" in line for line in lines):
                await deferLater(reactor, 0.01)
            self.assertEqual(broker.store.snapshot()["broker_unreadable"], 0)
            segment.write_bytes(octets) if cut else Path(f"{self.directory}.away").rename(segment)
            while len(reader.messages) < 40:
                await deferLater(reactor, 0.01)
            self.assertEqual([message.body for message in reader.messages], sent)
            self.assertFalse(any("dropped" in line for line in lines))
            await broker.end()
            self.directory = self.mktemp()

    async def test_a_start_that_cannot_read_is_tried_again_and_has_all__RD_50(self) -> None:
        """RD-50: a gateway that began without what it could not read had lost it."""
        for part in ("00.segment", "broker/names", "broker/log/identity"):
            disk = BrokenDisk()
            sink, broker = self.start()
            broker.store.declare(ORDERS, broker.now(), kept=True)
            await sink.put(batch(b"1", b"2"))
            await broker.end()
            sink = DurableSink(self.directory, reactor, disk=disk)
            broker = broker_of(sink, reactor, Limits.of(LIMITS), [SPACE])
            broker.join()
            disk.fail("read", times=None, name=part)
            for _ in range(2):
                with self.assertRaisesRegex(QueueError, part):
                    broker.open()
            disk.heal()
            broker.open()
            (figures,) = broker.store.queues()
            broker.store.purge(ORDERS, figures.waiting)
            broker.left()
            await sink.close()
            self.assertEqual((figures.name, figures.waiting), (ORDERS, 2))

    async def test_accepted_means_that_the_name_is_on_disk(self) -> None:
        """BK: the name is synced before the first ack"""
        sink, broker = self.start()
        state, going = sink.brokerPersistence.state, threading.Event()  # type: ignore[union-attr]
        declare = state.declare

        def late(names: Any) -> None:
            going.wait(30)
            declare(names)

        self.patch(state, "declare", late)
        broker.store.declare(ORDERS, broker.now())
        await sink.put(batch(b"1"))
        accepted = self.accepted(broker)
        await deferLater(reactor, 0)
        self.assertFalse(accepted.called)
        going.set()
        await accepted
        self.assertIn(b"orders", (Path(self.directory) / "broker" / "names").read_bytes())

    async def test_a_name_that_cannot_be_written_is_tried_again(self) -> None:
        sink, broker = self.start()
        state, failures = sink.brokerPersistence.state, [OSError("no"), OSError("no")]  # type: ignore[union-attr]
        declare = state.declare

        def failing(names: Any) -> None:
            if failures:
                raise failures.pop()
            declare(names)

        self.patch(state, "declare", failing)
        self.patch(
            type(sink.brokerPersistence), "log", type("Log", (), {"warn": lambda *_, **__: None})()
        )
        broker.store.declare(ORDERS, broker.now())
        await self.accepted(broker)
        self.assertEqual(failures, [])

    async def test_a_queue_forgotten_while_a_message_is_written_has_it_after_a_restart(
        self,
    ) -> None:
        """BK: it begins with that message, though the message came before its name did"""
        sink, broker = self.start()
        broker.store.declare(ORDERS, broker.now())
        stored = sink.put(batch(b"1"))
        self.assertTrue(broker.store.forget(ORDERS))
        broker._look()
        await stored
        self.assertTrue(broker.store.knows(ORDERS))
        await self.accepted(broker)
        await broker.end()
        _, again = self.start()
        reader = Reader()
        again.machine.subscribe(reader, ORDERS, again.now())
        while not reader.messages:
            await deferLater(reactor, 0.01)
        self.assertEqual(reader.messages[0].body, b"1")

    async def test_a_queue_that_is_made_again_before_its_name_is_told_durable_stays(self) -> None:
        """Its name was written, and then forgotten for good with what was sent to it since."""
        sink, broker = self.start()
        state, written, going = sink.brokerPersistence.state, Deferred[None](), threading.Event()  # type: ignore[union-attr]
        declare = state.declare

        def late(names: Any) -> None:
            declare(names)
            if not going.is_set():
                reactor.callFromThread(written.callback, None)
            going.wait(30)

        self.patch(state, "declare", late)
        broker.store.declare(ORDERS, broker.now())
        await written
        self.assertTrue(broker.store.forget(ORDERS))
        broker.store.declare(ORDERS, broker.now())
        going.set()
        await sink.put(batch(b"1"))
        await self.accepted(broker)
        await broker.end()
        _, again = self.start()
        self.assertEqual([(one.name, one.waiting) for one in again.store.queues()], [(ORDERS, 1)])

    async def test_accepted_means_that_the_name_of_the_queue_that_stands_is_on_disk(self) -> None:
        """What was written before it was forgotten says nothing of it."""
        sink, broker = self.start()
        keeps: Any = sink.brokerPersistence
        declare, told = keeps.declare, list[Deferred[None]]()

        def noted(names: Any) -> Deferred[None]:
            told.append(Deferred() if told else declare(names))
            return told[-1]

        self.patch(keeps, "declare", noted)
        broker.store.declare(ORDERS, broker.now())
        self.assertTrue(broker.store.forget(ORDERS))
        broker.store.declare(ORDERS, broker.now())
        accepted = self.accepted(broker)
        await told[0]
        self.assertFalse(accepted.called)
        told[1].callback(None)
        await accepted

    async def test_queues_of_a_space_without_a_server_are_said_and_kept(self) -> None:
        sink, broker = self.start()
        broker.store.declare(ORDERS, broker.now())
        await sink.put(batch(b"1"))
        await self.accepted(broker)
        await broker.end()
        other = DurableSink(self.directory, reactor)
        stranger: Any = broker_of(other, reactor, None, ["elsewhere"])
        said: list[dict[str, Any]] = []

        class Log:
            def warn(self, text: str, **fields: Any) -> None:
                said.append(fields)

        keeping: Any = other.brokerPersistence
        keeping.log = Log()
        stranger.join()
        stranger.open()
        self.assertEqual(said, [{"count": 1, "space": SPACE}])
        stranger.left()
        await other.close()
        _, again = self.start()
        self.assertEqual([queue.waiting for queue in again.store.queues()], [1])


def test_what_is_due_is_done_though_nothing_else_happens() -> None:
    clock, reader, bills = Clock(), Reader(), QueueName(SPACE, "bills")
    limits = Limits.of(LIMITS).replace({"queue-idle": 10, "queue-age": 3})
    broker = broker_of(None, clock, limits, [SPACE])
    broker.open()
    broker.machine.subscribe(reader, ORDERS, broker.now())
    broker.machine.unsubscribe(reader, ORDERS, broker.now())
    clock.advance(1)
    for count in (5000, 1):
        broker.publish([(QueueName(SPACE, "much"), head("tests", ORDERS), b"")] * count)
    assert 2600 in {queue.waiting for queue in broker.store.queues()}, "what one turn may do"
    broker.publish([(bills, head("tests", bills), b"1")])
    clock.advance(1)
    assert {queue.name.name: queue.waiting for queue in broker.store.queues()}["bills"] == 1
    clock.advance(4)
    assert {queue.name.name: queue.waiting for queue in broker.store.queues()}["bills.dead"] == 1
    assert ORDERS.name in broker.names(SPACE)
    clock.advance(5)
    assert ORDERS.name not in broker.names(SPACE)
    broker.join()
    broker.left()
    assert clock.getDelayedCalls() == []


LIMIT = 100


class Sender:
    def __init__(self, *, owing: bool = False) -> None:
        self.unread_for: set[str] = set()
        self.owes_settlements = owing
        self.ended = False

    @property
    def paused(self) -> bool:
        return bool(self.unread_for)

    def pauseReading(self, reason: str) -> None:
        self.unread_for.add(reason)

    def resumeReading(self, reason: str) -> None:
        self.unread_for.discard(reason)

    def withheld_too_long(self) -> None:
        self.ended = True


def test_senders_above_the_limit_are_not_read_until_half_of_it_is_gone() -> None:
    withheld = SenderBackpressure(LIMIT, 30, Clock())
    first, second = Sender(), Sender()
    withheld.add(first, LIMIT)
    assert not first.paused
    withheld.add(second, 1)
    assert (first.paused, second.paused) == (False, True)
    withheld.remove(first, LIMIT // 2 - 1)
    assert second.paused
    withheld.remove(first, 2)
    assert not second.paused
    assert not withheld.pressing


def test_a_sender_of_which_nothing_waits_is_read_though_others_wait() -> None:
    withheld = SenderBackpressure(LIMIT, 30, Clock())
    first, second = Sender(), Sender()
    withheld.add(first, LIMIT)
    withheld.add(second, 10)
    withheld.remove(second, 10)
    assert not second.paused
    assert withheld.waiting == LIMIT


def test_a_sender_that_owes_acks_is_read_and_has_a_deadline() -> None:
    clock = Clock()
    withheld = SenderBackpressure(LIMIT, 30, clock)
    sender = Sender(owing=True)
    withheld.add(sender, LIMIT + 1)
    assert not sender.paused
    clock.advance(29)
    withheld.settled(sender)
    clock.advance(29)
    assert not sender.ended
    clock.advance(2)
    assert sender.ended
    assert clock.getDelayedCalls() == []


def test_who_has_settled_all_waits_like_others() -> None:
    clock = Clock()
    withheld = SenderBackpressure(LIMIT, 30, clock)
    sender = Sender(owing=True)
    withheld.add(sender, LIMIT + 1)
    sender.owes_settlements = False
    withheld.settled(sender)
    assert sender.paused
    sender.owes_settlements = True
    withheld.owing(sender)
    assert not sender.paused
    withheld.forget(sender)
    assert clock.getDelayedCalls() == []


def test_four_times_the_limit_ends_who_brings_it() -> None:
    withheld = SenderBackpressure(LIMIT, 0, Clock())
    sender, other = Sender(owing=True), Sender(owing=True)
    withheld.add(sender, 4 * LIMIT)
    withheld.add(other, 1)
    assert (sender.ended, other.ended) == (False, True)
