"""Queues of the broker behind servers: who gets what, and what a full queue asks of its senders."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from tests.micromsg2.cases import Case
from tests.micromsg2.layouts import encode_command, encode_extension
from tests.micromsg2.streams import ack, message
from tests.tools.sinks import SafeSink
from twisted_msgproto.micromsg2 import STANDARD, Extension, Proposal


class Fragile(Extension):
    """A vendor's extension that says a note about each message, and cannot say some."""

    name = "x-fragile"
    has_frames = True
    annotates = True
    said = ""

    __slots__ = ("_noted",)

    def frame_received(self, payload: bytes) -> None:
        self._noted = payload.decode()

    def fields(self) -> dict[str, str]:
        return {"x-fragile": getattr(self, "_noted", "")}

    def frame_before(self, note: str | None) -> bytes | None:
        if note == "bad":
            raise ZeroDivisionError("this note cannot be said")
        return None if note is None else note.encode()


class Queues(Case):
    def setUp(self) -> None:
        super().setUp()
        self.sink = SafeSink()

    def subscribe(self, server: Any, destination: str) -> None:
        server.dataReceived(encode_command("subscribe", {"destination": destination}))

    def numbered(self, count: int, destination: str = "q", first: int = 1) -> bytes:
        numbers = range(first, first + count)
        return b"".join(message(n, b"%d" % n, destination) for n in numbers)

    def go_on(self) -> None:
        """Let the turns pass in which the broker goes on."""
        for _ in range(1000):
            self.clock.advance(0)

    def test_a_consumer_without_acks_gets_all_that_waits__BK_01(self) -> None:
        """BK-01: it got 256 of 1000, and the rest with the next message only"""
        factory = self.server_factory(brokerQueues=["q"])
        sender, _ = self.connect(factory, "")
        sender.dataReceived(self.numbered(1000))
        consumer, transport = self.connect(factory, "pub-sub")
        self.subscribe(consumer, "q")
        self.go_on()
        self.assertEqual(self.bodies(transport), [b"%d" % n for n in range(1, 1001)])
        self.lose(sender, consumer)

    def test_a_consumer_without_acks_waits_for_its_transport_and_goes_on__BK_01(self) -> None:
        """BK-01: the transport's pressure is its room"""
        factory = self.server_factory(brokerQueues=["q"])
        sender, _ = self.connect(factory, "")
        sender.dataReceived(self.numbered(1000))
        consumer, transport = self.connect(factory, "pub-sub")
        transport.producer.pauseProducing()
        self.subscribe(consumer, "q")
        self.go_on()
        self.assertEqual(self.bodies(transport), [])
        transport.producer.resumeProducing()
        self.go_on()
        self.assertEqual(len(self.bodies(transport)), 1000)
        self.lose(sender, consumer)

    def test_a_senders_own_fields_are_no_annotation__BK_02(self) -> None:
        """BK-02: a field named dotnet-type above 512 octets emptied the queue, a short one lied"""
        factory = self.server_factory(brokerQueues=["q"])
        sender, _ = self.connect(factory, "")
        for number, kind in enumerate((b"T" + b"x" * 600, b"TForged", b"T"), 1):
            sender.dataReceived(message(number, b"%d" % number, "q", b"dotnet-type:%s;" % kind))
        sender.dataReceived(self.numbered(8, first=4))
        consumer, transport = self.connect(factory, "dotnet;pub-sub;batch-ack:max-count=20")
        self.subscribe(consumer, "q")
        self.go_on()
        found = self.frames(transport)
        kinds = [frame for frame in found if not isinstance(frame, tuple)]
        self.assertEqual(kinds, [])
        self.assertEqual([frame[3] for frame in found], [b"%d" % n for n in range(1, 12)])
        consumer.dataReceived(ack(11, index=3))
        self.lose(sender, consumer)

    def test_a_consumer_to_whom_a_message_cannot_be_said_ends_alone__BK_02(self) -> None:
        """BK-02: encode before anything leaves the queue; its messages go to the next"""
        known = STANDARD.plus(Fragile)
        factory = self.server_factory(brokerQueues=["q"], proposal=Proposal(known=known))
        sender, _ = self.connect(factory, "x-fragile")
        sender.dataReceived(encode_extension(1, b"good") + message(1, b"1", "q"))
        sender.dataReceived(encode_extension(1, b"bad") + message(2, b"2", "q"))
        sender.dataReceived(encode_extension(1, b"good") + message(3, b"3", "q"))
        fragile, one = self.connect(factory, "x-fragile;pub-sub;batch-ack:max-count=20")
        self.subscribe(fragile, "q")
        self.go_on()
        self.assertTrue(one.disconnecting or one.disconnected)
        self.flushLoggedErrors(ZeroDivisionError)
        fragile.connectionLost(Failure(ConnectionDone()))
        self.assertTrue(sender.machine.established)
        plain, two = self.connect(factory, "pub-sub;batch-ack:max-count=20")
        self.subscribe(plain, "q")
        self.go_on()
        self.assertEqual(self.bodies(two), [b"1", b"2", b"3"])
        plain.dataReceived(ack(3, index=2))
        self.lose(sender, plain)

    def test_who_consumes_the_queue_it_fills_is_still_read__BK_03(self) -> None:
        """BK-03: its own acks make room, so they are read"""
        limits = {"queue_octets": 4 << 10, "withheld_octets": 16 << 10}
        factory = self.server_factory(brokerQueues=["q"], limits=limits)
        both, transport = self.connect(factory, "pub-sub;batch-ack:max-count=36")
        self.subscribe(both, "q")
        for number in range(1, 37):
            both.dataReceived(message(number, b"x" * 1000, "q"))
            self.assertEqual(transport.producerState, "producing")
        seen = 0
        for _ in range(40):
            self.go_on()
            seen += len(self.bodies(transport))
            if seen:
                both.dataReceived(ack(seen, index=2))
        self.assertEqual(seen, 36)
        self.assertEqual(factory.withheld.waiting, 0)
        self.lose(both)

    def test_who_fills_its_queue_and_settles_nothing_is_told_and_closed__BK_03(self) -> None:
        """BK-03: what it may still send has a bound and a deadline, and the end has a word"""
        limits = {"queue_octets": 4 << 10, "withheld_octets": 16 << 10, "withheld_seconds": 20}
        factory = self.server_factory(brokerQueues=["q"], limits=limits)
        both, transport = self.connect(factory, "pub-sub;batch-ack:max-count=70")
        self.subscribe(both, "q")
        for number in range(1, 71):
            both.dataReceived(message(number, b"x" * 330, "q"))
        self.assertEqual(transport.producerState, "producing")
        self.clock.advance(19)
        both.dataReceived(ack(1, index=2))  # who moves has time again
        self.clock.advance(19)
        self.assertFalse(transport.disconnecting)
        self.clock.advance(2)
        self.assertTrue(self.errors(transport)[-1].startswith("limit-exceeded: "))
        self.assertTrue(transport.disconnecting)
        self.lose(both)

    def test_who_fills_its_queue_without_end_is_told_and_closed_at_once__BK_03(self) -> None:
        """BK-03: four times the limit is the bound"""
        limits = {"queue_octets": 4 << 10, "withheld_octets": 16 << 10}
        factory = self.server_factory(brokerQueues=["q"], limits=limits)
        both, transport = self.connect(factory, "pub-sub;batch-ack:max-count=500")
        self.subscribe(both, "q")
        sent = 0
        while not transport.disconnecting and sent < 500:
            sent += 1
            both.dataReceived(message(sent, b"x" * 1000, "q"))
        self.assertTrue(self.errors(transport)[-1].startswith("limit-exceeded: "))
        self.assertLess(sent, 80)
        self.lose(both)

    def test_who_is_not_read_and_gets_something_to_acknowledge_is_read__BK_03(self) -> None:
        """BK-03: whatever came first"""
        limits = {"queue_octets": 4 << 10, "withheld_octets": 8 << 10, "withheld_seconds": 0}
        factory = self.server_factory(brokerQueues=["q", "other"], limits=limits)
        both, transport = self.connect(factory, "pub-sub;batch-ack:max-count=20")
        self.subscribe(both, "other")
        for number in range(1, 13):
            both.dataReceived(message(number, b"x" * 1000, "q"))
        self.assertEqual(transport.producerState, "paused")
        sender, _ = self.connect(factory, "")
        sender.dataReceived(message(1, b"other", "other"))
        self.assertEqual(self.bodies(transport), [b"other"])
        self.assertEqual(transport.producerState, "producing")
        self.lose(both, sender)

    def test_small_messages_weigh_what_they_cost__BK_04(self) -> None:
        """BK-04: octets were bounded and messages were not: 1.5 M of eight octets were 310 MiB"""
        limits = {"queue_octets": 64 << 10, "withheld_octets": 64 << 10}
        factory = self.server_factory(brokerQueues=["q"], limits=limits)
        sender, transport = self.connect(factory, "")
        sent = 0
        while transport.producerState == "producing" and sent < 20_000:
            sender.dataReceived(b"".join(message(1, b"12345678", "q") for _ in range(100)))
            sent += 100
        self.assertLessEqual(sent, (128 << 10) // 200 + 200)
        self.lose(sender)

    def test_messages_are_bounded_too__BK_04(self) -> None:
        """BK-04"""
        factory = self.server_factory(brokerQueues=["q"], limits={"queue_messages": 500})
        sender, transport = self.connect(factory, "batch-ack:max-count=1000")
        sender.dataReceived(self.numbered(501))
        self.clock.advance(5)
        self.assertEqual(transport.value(), b"")
        self.lose(sender)
