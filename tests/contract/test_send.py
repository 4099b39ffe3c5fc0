"""``msgproto send`` against servers that break their word: it ends and says so (HO-02, HO-21).

The coroutine which the command line runs is run here, against servers of this package with hooks
and sinks which misbehave, and against peers which are no servers at all; in memory, on a clock.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import DNSLookupError
from twisted.internet.protocol import Protocol

from tests.contract.cases import BOTH_WAYS, CONNECTED, LOG_IN
from tests.contract.sending import ENDPOINTS, TIMEOUT_SECONDS, Peer, Sent, Typed, played
from tests.contract.test_log_in import RIGHT, Checker
from tests.contract.world import World, only, over_all
from tests.doubles import HeldSink
from twisted_msgproto import Message
from twisted_msgproto.cli.recv import receive
from twisted_msgproto.core.errors import Refused, TimedOut
from twisted_msgproto.micromsg2 import MessageRefused
from twisted_msgproto.net.clients.command_types import RecvOptions
from twisted_msgproto.testing import SafeSink


class Silent(Protocol):
    """Accepts a connection, and says nothing."""


class Closing(Protocol):
    def dataReceived(self, data: bytes) -> None:
        self.transport.loseConnection()


class Saying(Protocol):
    """Answers whatever comes with the same bytes."""

    def __init__(self, nbytes: bytes) -> None:
        self.nbytes = nbytes

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(self.nbytes)


class PartSink(SafeSink):
    """Stores a few messages, and of those behind gives ``rest()``: by default it says nothing."""

    def __init__(self, most: int, rest: Any = Deferred) -> None:
        super().__init__()
        self.most, self.rest = most, rest

    def put(self, batch: Any) -> Any:
        return self.rest() if len(self.messages) >= self.most else super().put(batch)


class SendTo:
    def test_an_honest_server_acknowledges_all(self: Any) -> None:
        sink = SafeSink()
        sent = Sent(self, self.world(sink)).settle()
        self.assertIsNone(sent.line)
        self.assertEqual(sent.acknowledged, 6)
        self.assertEqual(len(sink.messages), 6)

    def test_bytes_which_are_no_text_arrive_as_they_are__HO_02(self: Any) -> None:
        """On UMQ as an attachment; where they cannot, nothing is sent."""
        line = b"\xff\xfe caf\xe9"
        world = self.world(sink := SafeSink())
        if self.case.name == "lumberjack":
            with self.assertRaises(ValueError) as refused:
                Sent(self, world, lines=[line])
            self.assertIn("--replace-invalid", str(refused.exception))
            return
        self.assertIsNone(Sent(self, world, lines=[line]).settle().line)
        (message,) = sink.messages
        if self.case.name == "umq":
            self.assertEqual((message.body, message.attachments), (b"", [line]))
        else:
            self.assertEqual(message.body, line)

    @only("micromsg2", "mtl", "sabc", "sabc-ws")
    def test_every_message_has_the_properties_that_were_typed(self: Any) -> None:
        world = self.world(sink := SafeSink())
        typed = {"market": "Teu", "amount": "100"}
        self.assertIsNone(Sent(self, world, properties=typed).settle().line)
        for message in sink.messages:
            self.assertEqual({**typed, **message.fields}, message.fields)

    @only("mtl")
    def test_it_is_told_where_contents_went__RD_31(self: Any) -> None:
        """MT-26"""
        world = self.world(SafeSink())
        new = "the broker had no queue orders: it was made, and nobody consumes it"
        none = (
            "no queue got them: orders is a resource of the profile ingest;"
            " --destination queue/orders is a queue"
        )
        for destination, notes in (
            *((None, []), ("ingest/orders", []), ("orders", [none])),
            *(("queue/orders", [new]), ("queue/orders", [])),
        ):
            sent = Sent(self, world, destination=destination, count=1)
            self.assertIsNone(sent.settle().line)
            self.assertEqual(sent.progress.notes, notes)

    @only("micromsg2", "mtl", "sabc", "sabc-ws")
    def test_a_property_that_cannot_be_is_told_before_anything_is_sent(self: Any) -> None:
        world = self.world(sink := SafeSink())
        sent = Sent(self, world, properties={"a" * 70_000: "x"})
        self.assertRegex(str(sent.settle().error), "propert|header")
        self.assertEqual(sink.messages, [])

    @only("lumberjack", "umq")
    def test_bytes_which_are_no_text_are_replaced_for_those_who_ask__HO_02(self: Any) -> None:
        world = self.world(sink := SafeSink())
        sent = Sent(self, world, lines=[b"caf\xe9"], replace_invalid=True)
        self.assertIsNone(sent.settle().line)
        self.assertIn("caf\ufffd", sink.messages[0].body.decode())

    @only("sabc-ws")
    def test_a_body_which_websocket_cannot_carry_is_told_before_it_is_sent__HO_21(
        self: Any,
    ) -> None:
        with self.assertRaises(ValueError) as refused:
            Sent(self, self.world(), lines=[b"\0x"])
        self.assertIn("it begins with NUL", str(refused.exception))

    def test_one_which_answers_late_is_waited_for(self: Any) -> None:
        world = self.world(sink := HeldSink())
        sent = Sent(self, world)
        for _ in range(100):
            if sent.done.called:
                break
            world.wait(3)
            sink.safe()
        self.assertIsNone(sent.settle().line)
        self.assertEqual(sent.acknowledged, 6)

    def test_an_input_which_is_quiet_for_long_is_no_fault_of_the_server(self: Any) -> None:
        """``tail -F log | msgproto send …``: what was acknowledged is owed no more."""
        typed = Typed()
        sent = Sent(self, self.world(SafeSink()), source=typed)
        for number in range(3):
            sent.world.wait(3)
            typed.give(b'{"n":%d}' % number)
            sent.world.wait(2 * TIMEOUT_SECONDS)
            self.assertEqual(sent.acknowledged, number + 1)
            self.assertFalse(sent.done.called)
        typed.end()
        self.assertIsNone(sent.settle().line)
        self.assertEqual(sent.acknowledged, 3)

    @only(*CONNECTED)
    def test_one_that_takes_a_large_message_steadily_is_waited_for__RD_43(self: Any) -> None:
        """HO-04: it has its time from what it took last; it has none if it takes nothing."""
        for steady in (True, False):
            typed = Typed()
            sent = Sent(self, self.world(sink := SafeSink()), source=typed)
            sent.world.wait(3)
            end = sent.world.peers[-1].line.server
            end.deaf = True
            typed.give(b'{"m":"%s"}' % random.Random(43).randbytes(400_000).hex().encode())
            for _ in range(1000):
                if sink.messages or sent.done.called:
                    break
                sent.world.wait(TIMEOUT_SECONDS / 4)
                end.deaf = False
                if steady:
                    end.read(40_000)
                end.deaf = True
            if not steady:
                self.assertIsNotNone(sent.settle().line)
                self.assertEqual(sink.messages, [])
                continue
            self.assertEqual(len(sink.messages), 1, sent.error)
            end.deaf = False
            typed.end()
            self.assertIsNone(sent.settle().line)

    def test_one_which_never_acknowledges_is_left_soon__RD_43(self: Any) -> None:
        """The line says what waits longer; closing in order had taken five seconds more."""
        sent = Sent(self, self.world(HeldSink()))
        began = sent.world.clock.seconds()
        self.assertIn("--timeout", sent.missing(0))
        self.assertLessEqual(sent.world.clock.seconds() - began, TIMEOUT_SECONDS + 3)

    def test_one_which_acknowledges_a_part(self: Any) -> None:
        for closes in (False, True):
            world = self.world(PartSink(2))
            sent = Sent(self, world)
            if closes:
                world.wait(5)
                self.case.away(world)
            sent.missing(2)
            self.assertEqual(sent.acknowledged, 2)

    def test_one_whose_disk_fails(self: Any) -> None:
        full = OSError(28, "No space left on device")
        Sent(self, self.world(PartSink(2, lambda: fail(full)))).missing(2)
        self.flushLoggedErrors(OSError)

    @only("micromsg2", "sabc", "sabc-ws", "umq")
    def test_one_which_refuses_some_messages(self: Any) -> None:
        """The others are counted as acknowledged, and the line says why these are not."""

        def refuse(server: Any, message: Any) -> None:
            if b"3" in message.body:
                error = MessageRefused if self.case.name == "micromsg2" else Refused
                raise error("this one is not wanted")

        sent = Sent(self, self.world(SafeSink(), hooks={"message": refuse}), step=9, count=5)
        line = sent.missing(4)
        self.assertIn(" 4: this one is not wanted", line)
        self.assertEqual(sent.acknowledged, sent.progress.messages_sent - 1)

    @only("umq")
    def test_one_which_says_that_it_stored_nothing(self: Any) -> None:
        """UM-17: it passed for a queue."""
        world = self.world(hooks={"message": lambda session, message: '{"stored":false}'})
        sent = Sent(self, world, destination="orders").settle()
        self.assertEqual((sent.line, sent.acknowledged), (None, 6))
        self.assertEqual(sent.progress.notes, ["the server has no queue: it stored nothing"])

    @only(*LOG_IN)
    def test_one_which_wants_a_log_in(self: Any) -> None:
        world = self.world(SafeSink(), portal=self.case.portal([Checker()]))
        line = Sent(self, world, user="me", password="wrong").missing(0)
        self.assertIn("nothing was sent: the server refuses", line)
        self.assertIn("--user and --password-file", line)
        self.assertIsNone(Sent(self, world, user="me", password=RIGHT).settle().line)

    def test_nobody_there(self: Any) -> None:
        world = self.world(SafeSink())
        self.case.away(world)
        line = Sent(self, world).missing(0)
        self.assertIn("nothing was sent: ", line)

    @only(*CONNECTED)
    def test_a_host_which_has_no_address(self: Any) -> None:
        class Nowhere:
            def connect(self, factory: Any) -> Any:
                return fail(DNSLookupError("no results for hostname lookup: server"))

        line = Sent(self, self.world(), Nowhere()).missing(0)
        self.assertIn("there is no address for the host of", line)

    @only(*CONNECTED)
    def test_one_which_is_silent_or_closes_or_speaks_another_protocol(self: Any) -> None:
        web = Saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        for protocol in (Silent(), Closing(), web):
            world = self.world()
            Sent(self, world, Peer(world, lambda address, it=protocol: it)).missing(0)

    @only(*CONNECTED)
    def test_one_which_closes_at_each_step(self: Any) -> None:
        """After each number of bytes which it writes: what is acknowledged was stored."""
        whole = 0
        for step in range(200):
            world = self.world(sink := SafeSink())
            endpoint = Peer(world, self.case.listening(world).buildProtocol)
            sent = Sent(self, world, endpoint)
            for _ in range(step):
                if endpoint.lines and not sent.done.called:
                    endpoint.lines[-1].pump_once(16)
                    world.clock.advance(0)
            if sent.done.called:
                whole += 1
                break
            for line in endpoint.lines:
                line.cut()
            world.away = True
            endpoint.build = lambda address: None
            line = sent.settle().line
            self.assertLessEqual(sent.acknowledged, len(sink.messages))
            self.assertTrue(line is not None or sent.acknowledged == 6)
        self.assertEqual(whole, 1)

    @only(*CONNECTED)
    def test_one_which_says_everything_twice_or_gibberish_once_the_session_stands(
        self: Any,
    ) -> None:
        """An answer to nothing is passed over or ends it; it never counts as an acknowledgement."""
        for sink, change, counted in (
            (PartSink(4), lambda data: data + data, 4),
            (SafeSink(), lambda data: b"\xff" * len(data), 0),
        ):
            world = self.world(sink)
            Sent(self, world, Misspeaking(world, self.case, change)).missing(counted)

    @only("lumberjack")
    def test_one_which_acknowledges_more_than_was_sent(self: Any) -> None:
        world = self.world()
        sent = Sent(self, world, Peer(world, lambda address: Saying(b"2A\0\0\0\x63")))
        self.assertIn("is not this protocol", sent.missing(0))


class Misspeaking(Peer):
    """A server of ours whose bytes are changed on their way, once the session stands."""

    def __init__(self, world: World, case: Any, change: Any) -> None:
        super().__init__(world, case.listening(world).buildProtocol)
        self.case = case
        self.change = change

    def connect(self, factory: Any) -> Deferred[Any]:
        connected = super().connect(factory)
        end, client = self.lines[-1].server, self.lines[-1].client.protocol
        write = end.write

        def misspeak(data: bytes) -> None:
            session = self.case.session_in(client)
            stands = getattr(session, "_established", getattr(session, "established", False))
            write(self.change(data) if stands else data)

        end.write = misspeak
        return connected


over_all(globals(), SendTo)


# ── ``msgproto recv`` in memory: what it shows is acknowledged, and nothing else is ──


class Received:
    """One ``recv``; ``show`` is what it does with a message."""

    def __init__(
        self,
        test: Any,
        world: World,
        show: Any = None,
        endpoint: Any = None,
        timeout: float | None = None,
        until_empty: bool = False,
        **options: Any,
    ) -> None:
        module = played(test, world, endpoint, "192.0.2.8")
        self.shown: list[Message] = []
        asked = RecvOptions(endpoint=ENDPOINTS[test.case.name], **options)
        self.done = Deferred.fromCoroutine(
            receive(
                *(world.clock, module, asked, show or self.shown.append),
                timeout=timeout,
                until_empty=until_empty,
            )
        )
        world.pump()


class RecvFrom:
    @only(*BOTH_WAYS)
    def test_what_comes_behind_the_count_is_not_acknowledged(self: Any) -> None:
        world = self.world(SafeSink())
        received = Received(self, world, count=1)
        (peer,) = world.peers
        answers = [peer.push(b"1"), peer.push(b"2")]
        world.wait(20)
        self.successResultOf(received.done)
        self.assertEqual([message.body for message in received.shown], [b"1"])
        self.successResultOf(answers[0])
        self.failureResultOf(answers[1])

    @only(*BOTH_WAYS)
    def test_what_could_not_be_shown_is_not_acknowledged__HO_21(self: Any) -> None:
        def show(message: Message) -> None:
            raise BrokenPipeError

        world = self.world(SafeSink())
        received = Received(self, world, show)
        (peer,) = world.peers
        answer = peer.push(b"1")
        world.wait(20)
        self.failureResultOf(received.done, BrokenPipeError)
        self.failureResultOf(answer)
        self.flushLoggedErrors(Refused)

    @only("sabc", "sabc-ws")
    def test_an_error_of_the_server_is_told(self: Any) -> None:
        world = self.world(SafeSink())
        received = Received(self, world)
        (peer,) = world.peers
        peer.server.sendError(503, "the archive is away")
        world.wait(20)
        error = self.failureResultOf(received.done, Refused).value
        self.assertEqual(str(error), "the server reports an error: the archive is away")

    @only(*sorted({*BOTH_WAYS} & {*CONNECTED}))
    def test_a_large_message_that_comes_steadily_is_waited_for__RD_43(self: Any) -> None:
        """RD-43: however long the whole of it takes; one that stands still is given up."""
        for steady in (True, False):
            world = self.world(SafeSink())
            received = Received(self, world, timeout=TIMEOUT_SECONDS)
            (peer,) = world.peers[-1:]
            end = peer.line.client
            end.deaf = True
            body = random.Random(43).randbytes(400_000).hex().encode()
            answer = peer.push(body)
            answer.addErrback(lambda failed: None)
            for _ in range(1000):
                if received.shown or received.done.called:
                    break
                world.wait(TIMEOUT_SECONDS / 4)
                end.deaf = False
                if steady:
                    end.read(40_000)
                end.deaf = True
            self.assertEqual([one.body for one in received.shown], [body] if steady else [])
            end.deaf = False
            world.wait(3 * TIMEOUT_SECONDS)
            self.successResultOf(received.done)

    @only(*BOTH_WAYS)
    def test_a_server_which_goes_away_ends_it(self: Any) -> None:
        world = self.world(SafeSink())
        received = Received(self, world, count=1)
        self.case.away(world)
        world.wait(20)
        self.failureResultOf(received.done)

    @only("micromsg2", "mtl")
    def test_until_empty_it_shows_all_that_waits_and_ends_in_peace(self: Any) -> None:
        destination = {"mtl": "queue/messages"}.get(self.case.name)
        for count in (5, 0):
            world = self.world(SafeSink())
            received = Received(self, world, until_empty=True, timeout=9.0, destination=destination)
            if count:
                sent = Sent(self, world, destination=destination, count=count)
                self.assertIsNone(sent.settle().line)
            self.assertNoResult(received.done)
            world.wait(20)
            self.successResultOf(received.done)
            self.assertEqual(len(received.shown), count)

    @only("micromsg2")
    def test_until_empty_a_server_that_does_not_answer_is_no_empty_queue(self: Any) -> None:
        world = self.world(SafeSink())
        silent = Peer(world, lambda address: Silent())
        received = Received(self, world, until_empty=True, endpoint=silent)
        world.wait(60)
        self.failureResultOf(received.done, TimedOut)


over_all(globals(), RecvFrom)
