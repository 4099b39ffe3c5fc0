"""The WebSocket room: bounds on both directions, origins, closing, and what never escapes.

Serves the transport rows UM-18, UM-20, UM-21 and the ecosystem notes on autobahn.
"""

import tracemalloc
from itertools import pairwise
from random import Random

from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.net.test_websocket_cases import (
    BINARY,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    fragments,
    received,
    sent,
)
from twisted_msgproto.extend import MsgprotoServerFactory, SessionFactory
from twisted_msgproto.net.turns import TurnWatch
from twisted_msgproto.net.wires.websocket import (
    MESSAGE_LIMIT,
    WEBSOCKET_LIMITS,
    ByteWire,
    WebSocketServerFactory,
    factories,
)
from twisted_msgproto.net.wires.websocket.frames import FRAMES_MAX

SPEAKS_TLS = "it speaks TLS, and this endpoint does not"
TURN_SECONDS = 0.008
LONG_HEAD = "the HTTP head is too long"


"""A length of these stands in one byte or in three."""


class Notes:
    """A session which notes what happens; ``on_message`` may pause or fail."""

    alone = False  # the session never stands

    def __init__(self):
        self.seen = []
        self.held = []
        self.why = None
        self.on_message = None

    def makeConnection(self, wire):
        self.wire = wire
        self.seen.append("opened")
        self.factory.connectionOpened(self, wire.getPeer().host)
        if not self.alone:
            wire.established()

    def received(self, inputs):
        self.seen += inputs
        self.seen.append("read")
        if self.on_message is not None:
            self.on_message(self)

    @property
    def link(self):
        return self

    def oversized(self):
        self.seen.append("oversized")

    def heldChanged(self):
        self.held.append(self.wire.held)

    def unread(self):
        self.seen.append("unread")

    def connectionLost(self, reason):
        self.why = reason.value
        self.seen.append(("lost", reason.type.__name__))
        self.factory.connectionClosed(self, reason)

    def neverConnected(self, error):
        self.why = error
        self.seen.append(("never", str(error)))

    def outputChanged(self, paused):
        self.seen.append("output paused" if paused else "output resumed")

    def outputDrained(self):
        self.seen.append("drained")

    def messages(self):
        words = {
            "opened",
            "read",
            "oversized",
            "unread",
            "output paused",
            "output resumed",
            "drained",
        }
        return [
            entry for entry in self.seen if isinstance(entry, str | bytes) and entry not in words
        ]


class Passing(Clock):
    """Time passes between two looks at this clock, as if much was done meanwhile."""

    step = TURN_SECONDS / 2

    def seconds(self):
        self.rightNow += self.step
        return super().seconds()


class Line(StringTransport):
    """May say how much it holds while reading is paused, as TLS does."""

    def __init__(self):
        super().__init__(lenient=True)

    def tellRest(self, tell):
        self.tell = tell


class Sessions(MsgprotoServerFactory):
    """Builds them, and nothing else."""

    protocolName = "notes"
    LIMITS = (*WEBSOCKET_LIMITS, MESSAGE_LIMIT)
    protocol = Notes


class Clients(SessionFactory, Factory):
    protocolName = "notes"
    LIMITS = (*WEBSOCKET_LIMITS, MESSAGE_LIMIT)
    protocol = Notes


def server(
    headers=b"",
    upgrade=True,
    origins=(),
    protocols=(),
    alone=False,
    wire=None,
    clock=None,
    **limits,
):
    """A connection, its transport and its clock."""
    clock = clock or Clock()
    changes = {name.replace("_", "-"): value for name, value in limits.items()}
    sessions = Sessions(clock=clock, limits=changes)
    sessions.protocol = type("Notes", (Notes,), {"alone": alone})
    factory = WebSocketServerFactory(
        sessions, sessions.buildProtocol, sessions.limits, origins=origins, protocols=protocols
    )
    if wire is not None:
        factory.wire = wire
    connection = factory.buildProtocol(None)
    transport = Line()
    connection.makeConnection(transport)
    if upgrade:
        connection.dataReceived(UPGRADE % headers)
    return connection, transport, clock


def server_with(factory, headers=b""):
    """One more connection of ``factory``, and its transport."""
    connection = factory.buildProtocol(None)
    transport = Line()
    connection.makeConnection(transport)
    connection.dataReceived(UPGRADE % headers)
    return connection, transport


def client_frame(payload, binary=False):
    return sent(BINARY if binary else TEXT, payload)


def frames(nbytes):
    """What a server sent: ``(opcode, payload)`` of each frame."""
    return list(received(nbytes))


def after_head(transport):
    return transport.value().partition(b"\r\n\r\n")[2]


def lose(connection):
    connection.connectionLost(Failure(ConnectionDone()))


class Reading(TestCase):
    def test_whatever_comes_in_whatever_pieces_arrives_once_and_in_order(self):
        """UM-21, NB-07, NB-11: pauses, long turns and odd cuts lose and double nothing."""
        pong = sent(PONG, b"")
        for seed in range(60):
            source = Random(seed)
            stream, messages, pings = b"", [], []
            for number in range(source.randrange(1, 60)):
                body = (b"%d" % number).ljust(source.choice((1, 2, 125, 126, 127, 2000)), b"x")
                body = source.choice((body, b"", b"12" + pong + b"34"))
                step = source.choice((1, 50, 5000))
                match source.choice(("text", "binary", "binary", "fragments", "ping", "pong")):
                    case "text":
                        body = body.replace(pong, b"a pong")
                        stream += sent(TEXT, body)
                        messages.append(body.decode())
                    case "binary":
                        stream += sent(BINARY, body)
                        messages.append(body)
                    case "fragments":
                        stream += fragments(BINARY, body + b".", step)
                        messages.append(body + b".")
                    case "ping":
                        stream += sent(PING, body[:125])
                        pings.append((PONG, body[:125]))
                    case "pong":
                        stream += sent(PONG, body[:125])
            connection, transport, clock = server(
                alone=source.random() < 0.3, clock=source.choice((Clock, Passing))()
            )
            session, paused = connection.session, []

            def work(session, paused=paused, source=source):
                assert not paused, "it was told to pause"
                if source.random() < 0.3:
                    paused.append(True)
                    session.wire.pauseProducing()

            def resume(session=session, paused=paused):
                paused.clear()
                session.wire.resumeProducing()

            session.on_message = work
            while stream:
                cut = source.choice((1, 2, len(pong), 10, 100, 100, 5000, len(stream)))
                connection.dataReceived(stream[:cut])
                stream = stream[cut:]
                if source.random() < 0.4:
                    resume()
                if source.random() < 0.4:
                    self.turns(clock)
            while len(session.messages()) < len(messages):
                resume()
                self.turns(clock)
            session.on_message = None
            resume()
            self.turns(clock)
            self.assertEqual(session.messages(), messages, seed)
            self.assertEqual(frames(after_head(transport)), pings, seed)
            self.assertEqual((transport.producerState, session.wire.held), ("producing", 0), seed)
            lose(connection)
            self.assertEqual(self.turns(clock), 0)

    def test_what_waits_while_reading_is_paused_is_held__NB_02(self):
        """NB-02: 10,000 paused connections held up to 64 KiB each, and nobody counted that."""
        connection, transport, _ = server()
        notes = connection.session
        notes.wire.pauseProducing()
        whole = client_frame(b"x" * 30_000)
        connection.dataReceived(whole + whole[:20_000])
        self.assertEqual(notes.held, [len(whole) + 20_000])
        for _ in range(2):
            transport.tell(1000)  # as TLS says it
        self.assertEqual(notes.held, [len(whole) + 20_000, len(whole) + 21_000])
        transport.tell(0)
        notes.wire.resumeProducing()
        self.assertEqual(notes.messages(), ["x" * 30_000])
        self.assertTrue(19_000 < notes.wire.held < 20_000)  # now it is an unfinished message
        connection.dataReceived(whole[20_000:])
        self.assertEqual((notes.wire.held, transport.producerState), (0, "producing"))
        self.assertEqual(len(notes.held), 3)
        lose(connection)

    def test_before_the_session_stands_messages_come_one_by_one(self):
        """What follows may be larger, or not wanted at all."""
        connection, _, _ = server(alone=True)
        connection.session.on_message = lambda notes: notes.wire.established()
        connection.dataReceived(client_frame(b"a") + client_frame(b"b") + client_frame(b"c"))
        self.assertEqual(connection.session.seen[1:], ["a", "read", "b", "c", "read"])

    def test_the_first_messages_are_small_until_the_session_stands(self):
        for stands, code in ((False, b"\x03\xf1"), (True, b"")):
            connection, transport, _ = server(alone=True)
            connection.factory.first_bytes = 100
            connection, transport = server_with(connection.factory)
            if stands:
                connection.session.wire.established()
            connection.dataReceived(client_frame(b"x" * 101))
            self.assertEqual(after_head(transport)[2:4], code)
            self.assertEqual(len(connection.session.messages()), stands)
            lose(connection)

    def test_bytes_may_come_as_text_and_leave_as_text_where_they_are_utf_8(self):
        """SA-25"""
        connection, transport, _ = server(wire=ByteWire)
        connection.dataReceived(client_frame(b"\xc3\xa9") + client_frame(b"\xff", True))
        self.assertEqual(connection.session.messages(), [b"\xc3\xa9", b"\xff"])
        connection.session.wire.write([b"a", b"\xc3\xa9", b"\xff"])
        self.assertEqual(frames(after_head(transport)), [(1, b"a"), (1, b"\xc3\xa9"), (2, b"\xff")])

    def turns(self, clock):
        """Let the reactor have its next turns; how many there were with something to do."""
        turns = 0
        while any(call.getTime() <= clock.seconds() for call in clock.getDelayedCalls()):
            clock.advance(0)
            turns += 1
            self.assertLess(turns, 10_000)
        return turns

    def test_a_turn_is_bounded_by_time_and_not_by_messages__NB_07(self):
        """And measured."""
        watched = []
        self.patch(Sessions, "turnWatch", TurnWatch(-1.0, lambda *told: watched.append(told[:2])))
        connection, transport, clock = server(clock=Clock())
        session = connection.session

        def work(session):
            clock.rightNow += took * (len(session.messages()) - done[-1])
            done.append(len(session.messages()))

        def stretches():
            return [after - before for before, after in pairwise(done)]

        done, took = [0], 0.000_001
        session.on_message = work
        watched.clear()
        connection.dataReceived(client_frame(b"quick") * 5000)
        self.assertEqual(watched, [("192.168.1.1:54321", "192.168.1.1")])
        self.assertEqual((done[-1], transport.producerState), (5000, "producing"))
        took = 0.001
        for _ in range(4):
            connection.dataReceived(client_frame(b"slow") * 150)
            self.turns(clock)
        self.assertEqual(done[-1], 5600)
        one_turn = TURN_SECONDS / took
        self.assertLessEqual(max(stretches()[-55:]), one_turn)  # from the second read on
        took = 0.000_001
        connection.dataReceived(client_frame(b"quick") * 5000)
        self.turns(clock)
        self.assertEqual(done[-1], 10_600)
        self.assertEqual(max(stretches()[-10:]), 512)  # fewer writes, fewer batches
        lose(connection)

    def test_small_fragments_of_one_read_are_spread_over_turns__NB_07(self):
        """Also behind our close; a connection that is lost meanwhile leaves no timer."""
        begin, middle, end = b"\x02\x81\0\0\0\0a", b"\0\x81\0\0\0\0b", b"\x80\x81\0\0\0\0c"
        for closes, loses in ((False, False), (True, False), (False, True)):
            connection, transport, clock = server(clock=Passing())
            if closes:
                connection.closeWebSocket(1000)
            connection.dataReceived(begin + middle * 5000 + end)
            self.assertEqual(transport.producerState, "paused")
            self.assertEqual(connection.session.messages(), [])
            if loses:
                lose(connection)
                self.assertFalse(self.turns(clock))
                continue
            self.assertTrue(self.turns(clock))
            self.assertEqual(transport.producerState, "producing")
            whole = [] if closes else [b"a" + b"b" * 5000 + b"c"]
            self.assertEqual(connection.session.messages(), whole)
            lose(connection)

    def test_a_message_above_the_limit_closes_with_1009(self):
        """UM-20: nothing of it is delivered, whatever its length field says.

        The session hears of it before that.
        """
        for octets in (
            client_frame(b"x" * 101),
            b"\x81\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0",
            b"\x01\xe4\0\0\0\0" + b"x" * 100 + b"\x80\x81\0\0\0\0x",
        ):
            for alone in (False, True):
                connection, transport, _ = server(alone=alone, websocket_message_bytes=100)
                connection.dataReceived(octets)
                (opcode, payload), *_ = frames(after_head(transport))
                self.assertEqual((opcode, payload[:2]), (8, (1009).to_bytes(2, "big")))
                self.assertEqual(connection.session.messages(), [])
                self.assertEqual(connection.session.seen.count("oversized"), 1)
                lose(connection)

    def test_a_message_in_many_pieces_weighs_what_it_is(self):
        """UM-19, UM-20: there is no object for each fragment, however small."""
        connection, _, _ = server()
        body = bytes(range(256)) * 40
        pieces = [client_frame(body[at : at + 2], True) for at in range(0, len(body), 2)]
        first, last = pieces[0], pieces[-1]
        middle = [b"\x00" + piece[1:] for piece in pieces[1:-1]]
        connection.dataReceived(b"\x02" + first[1:])
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for piece in middle:
            connection.dataReceived(piece + b"\x00\x80\0\0\0\0")
        self.assertLess(tracemalloc.get_traced_memory()[0], 8 * len(body))
        self.assertEqual(connection.session.wire.held, len(body) - 2)
        connection.dataReceived(b"\x80" + last[1:])
        self.assertEqual(connection.session.messages(), [body])
        self.assertEqual(connection.session.wire.held, 0)
        lose(connection)

    def test_fragments_without_end_are_1009(self):
        """UM-20: empty fragments are below every limit of bytes."""
        connection, transport, _ = server()
        connection.dataReceived(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * (FRAMES_MAX - 1))
        self.assertEqual(after_head(transport), b"")
        connection.dataReceived(b"\x00\x80\0\0\0\0")
        self.assertEqual(len(frames(after_head(transport))), 1)
        connection.dataReceived(b"\x00\x80\0\0\0\0" * 10_000)
        self.assertEqual(frames(after_head(transport))[0][1][:2], (1009).to_bytes(2, "big"))
        self.assertEqual(connection.session.messages(), [])
        lose(connection)

    def test_a_head_may_have_as_many_bytes_as_its_limit_and_what_follows_does_not_count(self):
        head = UPGRADE % (b"X: " + b"y" * 200 + b"\r\n")
        message = client_frame(b"x" * 100)
        self.patch(factories, "UPGRADE_BYTES", len(head))
        for at in range(-5, 1):
            connection, transport, _ = server(upgrade=False)
            connection.dataReceived(head[: len(head) + at])
            connection.dataReceived(head[len(head) + at :] + message)
            self.assertEqual(connection.session.messages(), ["x" * 100], at)
            lose(connection)
        for octets, kept in ((len(head), True), (len(head) + 1, False)):
            connection, transport, _ = server(upgrade=False)
            connection.dataReceived(b"GET / HTTP/1.1\r\nX: ".ljust(octets, b"y"))
            self.assertEqual(transport.disconnected, not kept)
            lose(connection)

    def test_an_error_of_the_subclass_is_logged_and_closes_with_1011(self):
        connection, transport, _ = server()

        def fail(notes):
            raise RuntimeError("mine")

        connection.session.on_message = fail
        connection.dataReceived(client_frame(b"a") + client_frame(b"b"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(frames(after_head(transport))[0][1][:2], (1011).to_bytes(2, "big"))
        connection.dataReceived(client_frame(b"c"))
        self.assertEqual(connection.session.messages(), ["a", "b"])
        lose(connection)
        connection, transport, _ = server(upgrade=False)
        connection.session.makeConnection = fail
        connection.dataReceived(UPGRADE % b"")
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(frames(after_head(transport))[0][1][:2], (1011).to_bytes(2, "big"))
        lose(connection)


class Writing(TestCase):
    def test_many_messages_are_one_write_of_whole_frames(self):
        connection, transport, _ = server()
        bodies = [b"", b"a" * 125, b"b" * 126, b"c" * 65535, b"d" * 65536]
        writes = []
        transport.write = writes.append
        connection.session.wire.write(bodies)
        self.assertEqual([len(write) for write in writes[:2]], [65536, 65536])  # HO-04: slices
        self.assertEqual(frames(b"".join(writes)), [(2, body) for body in bodies])
        writes.clear()
        connection.session.wire.write(bodies[:3])
        self.assertEqual(len(writes), 1)

    def test_a_peer_which_does_not_read_meets_the_limit_and_is_dropped(self):
        """UM-21: the producer hears of it at the limit, the peer is aborted after 30 s."""
        connection, transport, clock = server(unread_bytes=1000)
        connection.output.pauseProducing()
        transport.clear()
        connection.session.wire.write(["x" * 900])
        self.assertEqual(connection.session.seen, ["opened"])
        connection.session.wire.write(["x" * 900])
        self.assertEqual(connection.session.seen, ["opened", "output paused"])
        self.assertEqual(transport.value(), b"")
        clock.advance(29.9)
        self.assertFalse(transport.disconnected)
        clock.advance(0.2)
        self.assertTrue(transport.disconnected)
        self.assertEqual(connection.session.seen[2:], ["unread"])
        lose(connection)
        self.assertEqual(connection.output.nbytes, 0)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_only_the_last_ping_of_a_peer_which_does_not_read_is_answered(self):
        """A flood of pings costs the memory of one."""
        connection, transport, _ = server()
        connection.output.pauseProducing()
        transport.clear()
        for number in range(1000):
            connection.dataReceived(b"\x89\x84\0\0\0\0%04d" % number)
        self.assertEqual(connection.output.nbytes, 0)
        connection.output.resumeProducing()
        self.assertEqual(frames(transport.value()), [(10, b"0999")])

    def test_what_waits_is_still_sent_before_the_connection_ends(self):
        connection, transport, _ = server()
        connection.output.pauseProducing()
        transport.clear()
        connection.session.wire.write(["last words"])
        connection.dataReceived(b"\x88\x80\0\0\0\0")
        self.assertFalse(transport.disconnecting)
        connection.output.resumeProducing()
        self.assertTrue(transport.disconnecting)
        self.assertFalse(transport.disconnected)
        self.assertEqual([opcode for opcode, _ in frames(transport.value())], [1, 8])
        lose(connection)

    def test_a_peer_which_does_not_read_the_last_words_is_dropped(self):
        for wait_in_queue in (True, False):
            connection, transport, clock = server()
            if wait_in_queue:
                connection.output.pauseProducing()
            connection.dataReceived(b"\x88\x80\0\0\0\0")
            clock.advance(30.1)
            self.assertTrue(transport.disconnected)
            self.assertNotIn("unread", connection.session.seen)  # it has ended already
            lose(connection)
            self.assertEqual(clock.getDelayedCalls(), [])

    def test_sending_on_a_closed_connection_does_nothing(self):
        connection, transport, _ = server()
        connection.session.wire.close()
        written = transport.value()
        connection.session.wire.write(["x"])
        connection.session.wire.close()
        self.assertEqual(transport.value(), written)
        lose(connection)
