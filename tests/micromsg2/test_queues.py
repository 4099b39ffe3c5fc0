"""Queues behind a server: who gets what, and what a full queue asks of its senders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles import HeldSink
from tests.micromsg2.cases import Peers, Remote, numbered
from tests.micromsg2.streams import ExtensionFrame, encode_extension, message
from tests.micromsg2.test_topics import MATCHING, STORM, SUBSCRIBERS
from twisted_msgproto.micromsg2 import STANDARD, Extension, Proposal

pytestmark = pytest.mark.usefixtures("short_turns")


class Fragile(Extension):
    """A vendor's extension that says a note about each message, and cannot say some."""

    name = "x-fragile"
    has_frames = True
    annotates = True

    __slots__ = ("_noted",)

    def frame_received(self, payload: bytes) -> None:
        self._noted = payload.decode()

    def fields(self) -> dict[str, str]:
        return {"x-fragile": getattr(self, "_noted", "")}

    def frame_before(self, note: str | None) -> bytes | None:
        if note == "bad":
            raise ZeroDivisionError("this note cannot be said")
        return None if note is None else note.encode()


class Queues(Peers):
    def test_a_destination_is_a_queue_once_it_was_named_or_had_a_subscriber(self) -> None:
        """MM-27: before that a message is no business of the broker; some names are no queue's"""
        for name in ("topic/q", "q.dead"):
            self.assertRaises(ValueError, self.server_factory, brokerQueues=[name])
        self.serve("named")
        sender = self.sender()
        for name, bodies in (("q", [b"2", b"3"]), ("named", [b"1", b"2", b"3"])):
            sender.send(name, b"1")
            first = self.counted(9, queue=name) if name == "q" else None
            sender.send(name, b"2")
            if first is not None:
                self.assertEqual(first.bodies, [b"2"])
                self.gone(first)
            sender.send(name, b"3")
            self.assertEqual(self.counted(9, queue=name).bodies, bodies)

    def test_what_no_filter_lets_pass_stays_and_holds_up_nothing(self) -> None:
        """MM-24, MM-27: a filter that replaces another counts from then on"""
        self.serve("q")
        sender, consumer = self.sender(), self.counted(9, "a=N1")
        for body, value in ((b"2", 2), (b"1", 1), (b"3", 2)):
            sender.send("q", body, properties=b"a:N%d;" % value)
        self.assertEqual(consumer.bodies, [b"1"])
        other = self.counted(9, "a=N2")
        self.assertEqual(other.bodies, [b"2", b"3"])
        sender.send("q", b"4", properties=b"a:N3;")
        consumer.subscribe("q", "a=N3")
        self.assertEqual(consumer.bodies, [b"1", b"4"])

    def test_a_full_consumer_with_the_right_filter_holds_up_what_is_behind(self) -> None:
        """MM-27: order matters"""
        self.serve("q")
        sender, full, idle = self.sender(), self.counted(1, "a=N1"), self.counted(9, "a=N2")
        for body, value in ((b"0", 1), (b"1", 1), (b"2", 2)):
            sender.send("q", body, properties=b"a:N%d;" % value)
        self.assertEqual((full.bodies, idle.bodies), ([b"0"], []))
        full.ack()
        self.assertEqual((full.bodies, idle.bodies), ([b"0", b"1"], [b"2"]))

    def test_a_consumer_that_acknowledges_nothing_is_left_and_its_messages_return(self) -> None:
        """MM-27, MM-32; a dead letter said the name of the queue it had been in"""
        self.serve("q", limits={"ack_wait": 7, "tries": 2})
        stuck = self.counted(1)
        self.sender().send("q", b"1")
        self.turns(6)
        self.assertFalse(stuck.closed)
        self.turns(1.5)
        self.assertTrue(stuck.errors[-1].startswith("ack-timeout: "))
        self.gone(stuck)
        self.assertEqual(self.waiting("q"), 1)
        self.gone(self.counted(1))
        dead = self.counted(1, queue="q.dead")
        self.assertEqual([row[1] for row in dead.frames if isinstance(row, tuple)], ["q.dead"])

    def test_a_consumer_without_acks_gets_all_that_waits_as_it_reads__BK_01(self) -> None:
        """BK-01: it got 256 of 1000, and the rest with the next message only"""
        self.serve("q")
        self.sender("").send("q", *numbered(1000))
        consumer = self.peer()
        consumer.stop_reading()
        consumer.subscribe("q")
        self.turns()
        self.assertEqual((consumer.bodies, consumer.is_read), ([], False))
        consumer.read_on()
        self.turns()
        self.assertEqual((consumer.bodies, consumer.is_read), (numbered(1000), True))

    def test_a_storm_of_filters_takes_many_turns(self) -> None:
        """NB-07: what nobody wanted is looked at again with each subscription"""
        self.serve("q")
        consumers = [
            self.consumer(filter=STORM.replace("p31=N1", "p31=N2")) for _ in range(SUBSCRIBERS)
        ]
        sender = self.sender()
        sender.send("q", *numbered(1000), properties=MATCHING)
        self.turns()
        self.assertEqual([consumer.bodies for consumer in consumers], [[]] * SUBSCRIBERS)
        last = self.consumer(filter=STORM)
        self.assertGreater(self.turns(), 4)
        self.assertEqual(last.bodies, numbered(1000))


class Full(Peers):
    """What a full queue asks of its senders."""

    def test_acks_are_withheld_until_there_is_room(self) -> None:
        """MM-19, MM-32: what came is kept"""
        for limits in ({"queue_messages": 3}, {"queue_bytes": 3 * 350}):
            self.serve("q", limits=limits)
            sender = self.sender("batch-ack:max-count=1")
            for body in numbered(5):
                sender.send("q", body)
            self.turns(5)
            self.assertEqual(sender.acknowledged, 3)
            self.assertGreater(self.factory.senderBackpressure.waiting, 2 * 20)
            consumer = self.counted(1)
            consumer.ack()
            self.assertEqual(sender.acknowledged, 3)
            consumer.ack()
            self.turns(1)
            self.assertEqual((sender.acknowledged, consumer.bodies), (5, numbered(3)))
            self.assertEqual(self.factory.senderBackpressure.waiting, 0)
        (told, _) = [line for line in self.lines if "is full" in line]
        self.assertIn("the queue 'q' is full and its senders wait; queue-messages is 3", told)
        self.lines.clear()
        self.serve("q", limits={"queue_messages": 5})  # --limit NAME=NUMBER changes them
        sender = self.sender("batch-ack:max-count=1")
        for body in numbered(5):
            sender.send("q", body)
        self.turns(5)
        self.assertEqual(sender.acknowledged, 5)
        self.assertNotIn("is full", "".join(self.lines))

    def test_a_server_that_stops_acknowledges_what_is_stored_however_long_the_queue(self) -> None:
        """MM-19: else it took 4 s, and all of it came again"""
        for limits in ({}, {"withheld_bytes": 10}):
            self.serve("q", limits={"queue_messages": 1, **limits})
            senders = [self.sender(), self.sender("batch-ack:max-count=2;pub-sub")]
            for sender in senders:
                sender.send("q", *numbered(5))
            stored, self.sink = self.sink, HeldSink()
            self.factory.sink = self.sink
            senders[0].send("q", b"5")
            self.turns()
            self.assertEqual([sender.acknowledged for sender in senders], [0, 0])
            self.factory.drain()
            self.turns()
            self.assertEqual([sender.acknowledged for sender in senders], [5, 5])
            self.assertEqual([sender.closed for sender in senders], [False, True])
            self.sink.safe()
            self.turns()
            self.assertEqual((senders[0].acknowledged, senders[0].closed), (6, True))
            self.assertEqual(self.factory.senderBackpressure.waiting, 0)
            self.sink = stored

    def test_what_is_in_a_queue_that_is_not_durable_is_not_acknowledged_at_the_end(self) -> None:
        """MM-19: its name could be lost with the power, and the message with it"""
        for late in (False, True):
            self.serve("q", limits={"queue_messages": 1})
            waiting: dict[Any, Any] = {}
            self.patch(self.factory.queues, "when_durable", waiting.__setitem__)
            sender = self.sender()
            sender.send("q", *numbered(3))
            self.turns()
            self.factory.drain()
            self.turns()
            self.assertEqual((sender.acknowledged, sender.closed), (0, False))
            if late:
                waiting.popitem()[1]()
            self.turns()
            self.assertEqual((sender.acknowledged, sender.closed), (3 * late, late))

    def test_senders_are_not_read_when_too_much_is_withheld(self) -> None:
        """MM-32: a sender without acks stops by this alone; others are read"""
        self.serve("q", limits={"queue_messages": 1, "withheld_bytes": 10})
        sender, other = self.sender(""), self.sender("")
        sender.send("q", b"12345", b"123456")
        self.assertEqual((sender.is_read, other.is_read), (False, True))
        self.assertEqual(self.consumer().bodies, [b"12345", b"123456"])
        self.assertTrue(sender.is_read)

    def test_a_senders_own_fields_are_no_annotation__BK_02(self) -> None:
        """BK-02: a field named dotnet-type above 512 bytes emptied the queue, a short one lied"""
        self.serve("q")
        sender = self.sender("")
        for kind in (b"T" + b"x" * 600, b"TForged", b"T"):
            sender.send("q", b"x", properties=b"dotnet-type:%s;" % kind)
        consumer = self.consumer("dotnet;pub-sub;batch-ack:max-count=20")
        self.turns()
        self.assertEqual([type(frame) for frame in consumer.frames], [tuple] * 3)

    def test_a_consumer_to_whom_a_message_cannot_be_said_ends_alone__BK_02(self) -> None:
        """BK-02: encode before anything leaves the queue; its messages go to the next"""
        self.serve("q", proposal=Proposal(known=STANDARD.plus(Fragile)))
        sender = self.sender("x-fragile;dotnet")
        for number, note in ((1, b"good"), (2, b"bad"), (3, b"good")):
            said = encode_extension(1, note) + encode_extension(2, b"T")
            sender.write(said + message(number, b"%d" % number, "q"))
        fragile = self.consumer("x-fragile;pub-sub;batch-ack:max-count=20")
        self.turns()
        self.assertTrue(fragile.closed)
        self.flushLoggedErrors(ZeroDivisionError)
        self.gone(fragile)
        self.assertTrue(sender.server.established)
        typed = self.consumer("dotnet;pub-sub;batch-ack:max-count=20")
        self.assertEqual(typed.bodies, [b"1", b"2", b"3"])
        self.assertIn(ExtensionFrame(1, b"T"), typed.frames)

    def both(self, count: int, queue: str = "q", **limits: Any) -> Remote:
        """Who consumes what it sends."""
        self.serve("q", "other", limits={"queue_bytes": 4 << 10, **limits})
        return self.counted(count, queue=queue)

    def test_who_consumes_the_queue_it_fills_is_still_read__BK_03(self) -> None:
        """BK-03: its own acks make room, so they are read"""
        both = self.both(36, withheld_bytes=16 << 10)
        for _ in range(36):
            both.send("q", b"x" * 1000)
            self.assertTrue(both.is_read)
        for _ in range(40):
            self.turns()
            both.ack()
        self.assertEqual(len(both.bodies), 36)
        self.assertEqual(self.factory.senderBackpressure.waiting, 0)

    def test_who_settles_nothing_is_told_and_closed_in_time__BK_03(self) -> None:
        """BK-03: what it may still send has a deadline, and the end has a word"""
        both = self.both(70, withheld_bytes=16 << 10, withheld_seconds=20)
        for _ in range(70):
            both.send("q", b"x" * 330)
        self.assertTrue(both.is_read)
        self.clock.advance(19)
        both.ack(1)  # who moves has time again
        self.clock.advance(19)
        self.assertFalse(both.closed)
        self.clock.advance(2)
        self.assertTrue(both.errors[-1].startswith("limit-exceeded: "))
        self.assertTrue(both.closed)
