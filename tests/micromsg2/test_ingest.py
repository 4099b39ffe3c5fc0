"""A server's messages on their way to hooks and the sink: acks, refusals, back-pressure, faults."""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from tests.doubles import HeldSink
from tests.micromsg2.cases import Case, Noting
from tests.micromsg2.streams import (
    BATCH,
    Error,
    ExtensionFrame,
    ack,
    encode_command,
    encode_error,
    encode_extension,
    message,
    messages,
)
from twisted_msgproto import MessageBatch
from twisted_msgproto.micromsg2 import (
    STANDARD,
    Extension,
    MessageRefused,
    MicroMsg2Server,
    Proposal,
)
from twisted_msgproto.net import DurableSink, IAuthoriser


class Ingest(Case):
    def test_messages_reach_the_sink_as_columns_and_are_acked_when_it_says_safe(self) -> None:
        """MM-12, MM-19: one batch a read, the table's columns"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "batch-ack:max-count=2")
        server.dataReceived(message(1, b"a", "q", b"k:N1;") + message(2, b"b", "topic/x"))
        (batch,) = self.sink.batches
        self.assertEqual(
            (batch.protocol, batch.kind, batch.peer, batch.client_id, batch.count),
            ("micromsg2", "message", "192.0.2.7:54321", "hulk", 2),
        )
        self.assertEqual(batch.received_at, 1_700_000_000_250_000)
        self.assertEqual(batch.session, "micromsg2-20231114T221320.250000Z-1")
        self.assertEqual(list(batch.message_id), [1, 2])
        self.assertEqual(list(batch.destination), ["q", "topic/x"])
        self.assertEqual(list(batch.fields), [{"k": "1"}, {}])
        self.assertEqual(list(batch.body), [b"a", b"b"])
        self.assertEqual(transport.value(), b"")
        self.sink.safe()
        self.assertEqual(transport.value(), ack(2))
        self.assertEqual(factory.counters["events"], 2)

    def test_a_batch_which_will_never_be_safe_ends_the_session_without_its_ack(self) -> None:
        """MM-19: ERROR ``failed: <sequence>``, after the ack of what was safe before it"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "batch-ack")
        server.dataReceived(message(1))
        server.dataReceived(messages(2, 2))
        server.dataReceived(message(4))
        self.sink.safe(1)
        self.sink.fail(OSError(5, "input/output error"))
        self.assertEqual(self.frames(transport), [ExtensionFrame(1, b"\0\1"), Error("failed: 2")])
        self.assertTrue(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), b"")
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(factory.counters["unsafe_batches"], 1)
        self.assertEqual(factory.counters["faults"], 0)  # not the peer's

    def test_where_numbers_mean_nothing_a_refusal_is_of_one_row__MM_13(self) -> None:
        """All three messages have the same number; one may not be published."""

        @implementer(IAuthoriser)
        class Ruled:
            def allows(self, access: Any) -> bool:
                return bool(access.name != "b")

        server, _ = self.connect(self.server_factory(authoriser=Ruled()), "")
        server.dataReceived(b"".join(message(5, name.encode(), name) for name in "abc"))
        self.assertEqual(
            [(m.destination, m.body) for m in self.sink.messages], [("a", b"a"), ("c", b"c")]
        )
        self.assertEqual(self.sink.batches[0].nbytes, 2)
        self.sink.safe()

    def test_ten_awaited_sends_take_ten_syncs_and_no_time__MM_19__RD_22(self) -> None:
        """MM-19, RD-22: each took half a second."""
        client, one = self.client(extensions=BATCH + "100")
        server, two = self.connect(self.server_factory(), BATCH + "100")
        for number in range(10):
            sent = client.send("jobs", b"%d" % number)
            server.dataReceived(one.value())
            one.clear()
            self.sink.safe()
            client.dataReceived(two.value())
            two.clear()
            self.successResultOf(sent)
        self.assertEqual((len(self.sink.batches), self.clock.seconds()), (10, 0.0))

    def test_one_group_of_the_disk_is_one_ack_for_each_connection__MM_19__RD_22(self) -> None:
        class Writer:
            batches: ClassVar[list[list[Any]]] = [[]]

            def submit(self, batch: Any, callback: Any) -> None:
                self.batches[-1].append(callback)

        class Reactor:
            calls: ClassVar[list[Any]] = []

            def callFromThread(self, call: Any) -> None:
                self.calls.append(call)

        writer, reactor = Writer(), Reactor()
        factory = self.server_factory(sink=DurableSink.over(writer, reactor))
        (one, first), (two, second) = (self.connect(factory, BATCH + "100") for _ in range(2))
        for number in range(1, 4):
            one.dataReceived(message(number))
            two.dataReceived(message(number))
        for callback in writer.batches[0]:
            callback(None, None)
        (fire,) = reactor.calls
        fire()
        self.assertEqual((first.value(), second.value()), (ack(3), ack(3)))


class Vendor(Extension):
    """A vendor's extension with frames and a command (MM-10)."""

    name = "x-vendor"
    has_frames = True
    commands = frozenset({"x-go"})


class Hooks(Case):
    def test_every_hook_is_called(self) -> None:
        """MM-10, MM-15, MM-16, MM-33"""
        known = STANDARD.plus(Vendor)
        factory = self.server_factory(Noting, proposal=Proposal(known=known))
        server, _ = self.connect(factory, "x-vendor")
        server.dataReceived(
            message(1, b"m")
            + encode_command("x-go", {"a": "b"})
            + encode_extension(1, b"frame")
            + encode_error("code: text")
        )
        self.sink.safe()
        self.lose(server)
        self.assertEqual(
            server.seen,
            [
                "established",
                b"m",
                ("x-go", {"a": "b"}),
                ("x-vendor", b"frame"),
                ("code", "code: text"),
                "ConnectionClosed",
            ],
        )
        self.assertEqual(factory.counters["errors_received"], 1)

    def test_a_message_which_is_refused_is_settled_and_goes_nowhere(self) -> None:
        """MM-19: raised at once, or later"""
        for late in (False, True):
            self.sink = HeldSink()
            factory = self.server_factory(Noting)
            server, transport = self.connect(factory, "pub-sub;batch-ack:max-count=3")
            watcher, watching = self.connect(factory, "pub-sub")
            watcher.dataReceived(encode_command("subscribe", {"destination": "commands"}))
            waiting: Deferred[None] = Deferred()
            server.answers[b"2"] = waiting if late else MessageRefused("not today")
            octets = message(1, b"1") + message(2, b"2") + message(3, b"3")
            server.dataReceived(octets)
            if late:
                self.assertEqual(self.sink.batches, [])
                waiting.errback(MessageRefused("not today"))
            (batch,) = self.sink.batches
            self.assertEqual((list(batch.body), batch.count), ([b"1", b"3"], 2))
            self.assertEqual(list(batch.message_id), [1, 3])
            self.sink.safe()
            self.assertEqual(
                self.frames(transport),
                [Error("refused: 2: not today"), ExtensionFrame(2, b"\0\3")],
            )
            server.answers[b"2"] = MessageRefused("nor now")
            server.dataReceived(message(4, b"2"))  # nothing of this read goes on
            self.assertEqual(
                self.frames(transport), [Error("refused: 4: nor now"), ExtensionFrame(2, b"\0\4")]
            )
            self.assertEqual(self.bodies(watching), [b"1", b"3"])
            self.lose(server, watcher)

    def test_where_numbers_mean_nothing_a_refusal_is_of_its_own_read__MM_13(self) -> None:
        factory = self.server_factory(Noting)
        server, _ = self.connect(factory, "")
        watcher, watching = self.connect(factory, "pub-sub")
        watcher.dataReceived(encode_command("subscribe", {"destination": "topic/a"}))
        server.answers[b"2"] = MessageRefused("not today")
        for body in (b"1", b"2", b"3"):
            server.dataReceived(message(5, body, "topic/a"))
        self.sink.safe()
        self.assertEqual(self.bodies(watching), [b"1", b"3"])

    def test_a_refused_batch_is_settled_message_by_message(self) -> None:
        """MM-19: from batchReceived, at once or later"""
        for result in (None, fail(MessageRefused("no"))):

            class Refusing(MicroMsg2Server):
                def batchReceived(self, batch: Any, result: Any = result) -> Any:
                    if result is None:
                        raise MessageRefused("no")
                    return result

            server, transport = self.connect(self.server_factory(Refusing), "batch-ack:max-count=2")
            server.dataReceived(messages(1, 2))
            self.assertEqual(
                self.frames(transport),
                [Error("refused: 1: no"), Error("refused: 2: no"), ExtensionFrame(1, b"\0\2")],
            )
            self.lose(server)

    def test_a_batch_may_be_handed_on_later(self) -> None:
        """A subclass which waits before it calls what it overrides"""

        class Late(Noting):
            def batchReceived(self, batch: Any) -> Any:
                self.gates = [*getattr(self, "gates", []), Deferred()]
                above = super().batchReceived
                return self.gates[-1].addCallback(lambda _: above(batch))

        server, transport = self.connect(self.server_factory(Late), "ack:max-count=2")
        server.dataReceived(message(1, b"1"))
        server.dataReceived(message(2, b"2"))
        for gate in server.gates:
            gate.callback(None)
        self.sink.safe()
        self.assertEqual(transport.value(), ack(2))

    def test_a_hook_may_pass_on_a_batch_of_its_own(self) -> None:
        """MM-19: what it leaves out is settled, what it refuses goes to nobody"""

        class Choosing(Noting):
            def batchReceived(self, batch: Any) -> Any:
                left = dict.fromkeys(batch.COLUMNS) | {
                    name: getattr(batch, name)[1:]
                    for name in ("message_id", "destination", "fields", "body")
                }
                head = (batch.protocol, batch.kind, batch.received_at, batch.peer, batch.session)
                return super().batchReceived(
                    MessageBatch(*head, batch.client_id, batch.count - 1, batch.nbytes, **left)
                )

        factory = self.server_factory(Choosing)
        server, transport = self.connect(factory, "batch-ack")
        watcher, watching = self.connect(factory, "pub-sub")
        watcher.dataReceived(encode_command("subscribe", {"destination": "commands"}))
        server.answers[b"2"] = MessageRefused("no")
        server.dataReceived(b"".join(message(n, b"%d" % n) for n in (1, 2, 3)))
        self.assertEqual([m.body for m in self.sink.messages], [b"3"])
        self.sink.safe()
        self.assertEqual(
            self.frames(transport), [Error("refused: 2: no"), ExtensionFrame(1, b"\0\3")]
        )
        self.assertNotIn(b"2", self.bodies(watching))
