"""The WebSocket room: bounds on both directions, origins, closing, and what never escapes.

Serves the transport rows UM-18, UM-20, UM-21 and the ecosystem notes on autobahn.
"""

from itertools import pairwise
from random import Random

import pytest
from OpenSSL.SSL import Error as TLSError
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel, capturedLogs, formatEvent
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
from twisted_msgproto.core.errors import ConfigurationError, ProtocolViolation
from twisted_msgproto.net import MsgprotoServerFactory, SessionFactory
from twisted_msgproto.net.turns import TURN_SECONDS
from twisted_msgproto.net.wires.websocket import (
    WEBSOCKET_LIMITS,
    OctetWire,
    WebSocketClientFactory,
    WebSocketServerFactory,
    factories,
    parse_address,
)

SPEAKS_TLS = "it speaks TLS, and this endpoint does not"
LONG_HEAD = "the HTTP head is too long"


"""A length of these stands in one octet or in three."""


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
    LIMITS = WEBSOCKET_LIMITS
    protocol = Notes


class Clients(SessionFactory, Factory):
    protocolName = "notes"
    LIMITS = WEBSOCKET_LIMITS
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


def frames(octets):
    """What a server sent: ``(opcode, payload)`` of each frame."""
    return list(received(octets))


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

    def test_who_pauses_within_a_read_holds_the_rest_of_it_until_it_resumes__NB_02(self):
        """NB-02: a pong alone is no message, and ends the count all the same."""
        connection, _, _ = server(alone=True)
        notes = connection.session
        notes.on_message = lambda notes: notes.wire.pauseProducing()
        pong = bytes([0x8A, 0xFD]) + bytes(4 + 125)
        connection.dataReceived(client_frame(b"first") + pong * 400)
        self.assertEqual(notes.wire.held, 400 * len(pong))
        notes.wire.resumeProducing()
        self.assertEqual(notes.wire.held, 0)
        self.assertEqual(notes.messages(), ["first"])
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
            connection.factory.first_octets = 100
            connection, transport = server_with(connection.factory)
            if stands:
                connection.session.wire.established()
            connection.dataReceived(client_frame(b"x" * 101))
            self.assertEqual(after_head(transport)[2:4], code)
            self.assertEqual(len(connection.session.messages()), stands)
            lose(connection)

    def test_octets_may_come_as_text_and_leave_as_text_where_they_are_utf_8(self):
        """SA-25"""
        connection, transport, _ = server(wire=OctetWire)
        connection.dataReceived(client_frame(b"\xc3\xa9") + client_frame(b"\xff", True))
        self.assertEqual(connection.session.messages(), [b"\xc3\xa9", b"\xff"])
        connection.session.wire.write([b"a", b"\xc3\xa9", b"\xff"])
        self.assertEqual(frames(after_head(transport)), [(1, b"a"), (1, b"\xc3\xa9"), (2, b"\xff")])

    def test_what_came_before_a_close_is_answered_before_ours(self):
        connection, transport, _ = server()
        connection.session.on_message = lambda notes: notes.wire.write(["answer"])
        connection.dataReceived(client_frame(b"a") + b"\x88\x82\0\0\0\0\x03\xe8")
        self.assertEqual([kind for kind, _ in frames(after_head(transport))], [1, 8])
        lose(connection)

    def turns(self, clock):
        """Let the reactor have its next turns; how many there were with something to do."""
        turns = 0
        while any(call.getTime() <= clock.seconds() for call in clock.getDelayedCalls()):
            clock.advance(0)
            turns += 1
            self.assertLess(turns, 10_000)
        return turns

    def test_a_turn_is_bounded_by_time_and_not_by_messages__NB_07(self):
        connection, transport, clock = server(clock=Clock())
        session = connection.session

        def work(session):
            clock.rightNow += took * (len(session.messages()) - done[-1])
            done.append(len(session.messages()))

        def stretches():
            return [after - before for before, after in pairwise(done)]

        done, took = [0], 0.000_001
        session.on_message = work
        connection.dataReceived(client_frame(b"quick") * 5000)
        self.assertEqual((done[-1], transport.producerState), (5000, "producing"))
        took = 0.001
        for _ in range(4):
            connection.dataReceived(client_frame(b"slow") * 150)
            self.turns(clock)
        self.assertEqual(done[-1], 5600)
        one_turn = TURN_SECONDS / took
        self.assertLessEqual(max(stretches()[-10:]), one_turn)
        took = 0.000_001
        connection.dataReceived(client_frame(b"quick") * 5000)
        self.turns(clock)
        self.assertEqual(done[-1], 10_600)
        self.assertEqual(max(stretches()[-10:]), 512)  # fewer writes, fewer batches
        lose(connection)

    def test_messages_behind_our_close_cost_next_to_nothing__NB_07(self):
        """Nor do they keep the reactor from others, and the peer's Close is seen behind them."""
        connection, _, _ = server()
        connection.closeWebSocket()
        looked = []
        connection.processData = lambda process=connection.processData: (
            looked.append(1) or process()
        )
        connection.dataReceived(client_frame(b"C0:x") * 5000)
        self.assertEqual((connection.session.messages(), looked), ([], []))
        connection.dataReceived(client_frame(b"x")[:3])
        connection.dataReceived(client_frame(b"x")[3:] + b"\x88\x82\0\0\0\0\x03\xe8")
        self.assertTrue(connection.wasClean)
        lose(connection)

    def test_fragments_behind_our_close_are_spread_over_turns__NB_07(self):
        connection, transport, clock = server(clock=Passing())
        connection.closeWebSocket()
        connection.dataReceived(b"\x02\x81\0\0\0\0a" + b"\0\x81\0\0\0\0b" * 2000)
        self.assertEqual(transport.producerState, "paused")
        self.assertTrue(self.turns(clock))
        self.assertEqual(transport.producerState, "producing")
        lose(connection)

    def test_tiny_fragments_of_one_read_are_spread_over_turns__NB_07(self):
        connection, transport, clock = server(clock=Passing())
        fragments = b"\x02\x81\0\0\0\0a" + b"\0\x81\0\0\0\0b" * 5000 + b"\x80\x81\0\0\0\0c"
        connection.dataReceived(fragments)
        self.assertEqual(transport.producerState, "paused")
        self.assertEqual(connection.session.messages(), [])
        self.assertTrue(self.turns(clock))
        self.assertEqual(connection.session.messages(), [b"a" + b"b" * 5000 + b"c"])
        lose(connection)

    def test_a_connection_that_is_lost_while_the_rest_of_a_read_waits_leaves_no_timer__NB_07(self):
        connection, _, clock = server(clock=Passing())
        connection.dataReceived(client_frame(b"x") * 3000)
        lose(connection)
        self.assertFalse(self.turns(clock))

    def test_a_message_above_the_limit_closes_with_1009(self):
        """UM-20: nothing of it is delivered, whatever its length field says."""
        for octets in (
            client_frame(b"x" * 101),
            b"\x81\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0",
            b"\x01\xe4\0\0\0\0" + b"x" * 100 + b"\x80\x81\0\0\0\0x",
        ):
            connection, transport, _ = server(websocket_message_octets=100)
            connection.dataReceived(octets)
            (opcode, payload), *_ = frames(after_head(transport))
            self.assertEqual((opcode, payload[:2]), (8, (1009).to_bytes(2, "big")))
            self.assertEqual(connection.session.messages(), [])
            lose(connection)

    def test_a_message_in_many_pieces_weighs_what_it_is(self):
        """UM-19, UM-20: autobahn alone keeps a list entry for each fragment, however small."""
        connection, _, _ = server()
        body = bytes(range(256)) * 40
        pieces = [client_frame(body[at : at + 2], True) for at in range(0, len(body), 2)]
        first, last = pieces[0], pieces[-1]
        middle = [b"\x00" + piece[1:] for piece in pieces[1:-1]]
        connection.dataReceived(b"\x02" + first[1:])
        for piece in middle:
            connection.dataReceived(piece + b"\x00\x80\0\0\0\0")
            self.assertLess(len(connection.message_data), 600)
        connection.dataReceived(b"\x80" + last[1:])
        self.assertEqual(connection.session.messages(), [body])
        self.assertEqual((connection.message_data, connection.frame_data), (None, None))
        lose(connection)

    def test_a_session_that_stands_hears_of_a_message_that_is_too_large_before_it_closes(self):
        fragments = b"\x01\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * 20
        for alone in (False, True):
            for octets in (client_frame(b"x" * 101), fragments):
                self.patch(factories, "FRAMES_MAX", 10)
                connection, transport, _ = server(alone=alone, websocket_message_octets=100)
                connection.dataReceived(octets)
                self.assertEqual(connection.session.seen.count("oversized"), not alone)
                self.assertEqual(frames(after_head(transport))[0][1][:2], b"\x03\xf1")
                self.assertTrue(connection.oversize)
                lose(connection)

    def test_octets_of_a_message_that_look_like_a_pong_belong_to_the_message__NB_11(self):
        pong = b"\x8a\x80\0\0\0\0"
        payload = b"1234" + pong + b"5678"
        whole = b"\x82\x8e" + bytes(4) + payload
        for pieces in (
            (whole[:10], pong, whole[16:]),  # in the middle of a payload
            (b"\x82", pong, bytes(9)),  # a length and a mask, behind the first octet
        ):
            connection, _, _ = server()
            for piece in pieces:
                connection.dataReceived(piece)
            [message] = connection.session.messages()
            self.assertEqual(len(message), 14 if pieces[0] != b"\x82" else 10)
            lose(connection)

    def test_a_pong_that_is_masked_by_a_server_is_a_fault_to_its_client(self):
        both = BothSides()
        client, peer, _ = both.connect()
        both.pump(client, peer)
        client.dataReceived(b"\x8a\x80\0\0\0\0")
        self.assertEqual(client.state, client.STATE_CLOSING)
        for side in (client, peer):
            lose(side)

    def test_fragments_without_end_are_1009(self):
        """UM-20: empty fragments are below every limit of octets."""
        self.patch(factories, "FRAMES_MAX", 100)
        connection, transport, _ = server()
        connection.dataReceived(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 99)
        self.assertEqual(after_head(transport), b"")
        connection.dataReceived(b"\x00\x80\0\0\0\0")
        self.assertEqual(len(frames(after_head(transport))), 1)
        connection.dataReceived(b"\x00\x80\0\0\0\0" * 10_000)
        self.assertEqual(frames(after_head(transport))[0][1][:2], (1009).to_bytes(2, "big"))
        self.assertEqual(connection.session.messages(), [])
        lose(connection)

    def test_what_comes_after_the_end_is_not_kept(self):
        connection, _, _ = server(upgrade=False)
        connection.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
        kept = len(connection.data)
        connection.dataReceived(b"x" * 1000)
        self.assertEqual(len(connection.data), kept)
        lose(connection)

    def test_an_endless_http_head_is_dropped(self):
        """UM-20: autobahn alone buffers it until its time-out."""
        connection, transport, _ = server(upgrade=False)
        connection.dataReceived(b"GET / HTTP/1.1\r\n")
        for _ in range(300):
            if transport.disconnected:
                break
            connection.dataReceived(b"X: " + b"y" * 100 + b"\r\n")
        self.assertTrue(transport.disconnected)
        self.assertLess(len(connection.data), 20_000)

    def test_a_head_may_have_as_many_octets_as_its_limit_and_what_follows_does_not_count(self):
        head = UPGRADE % (b"X: " + b"y" * 200 + b"\r\n")
        message = client_frame(b"x" * 100)
        self.patch(factories, "UPGRADE_OCTETS", len(head))
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

    def test_a_peer_which_never_upgrades_is_dropped_in_time(self):
        """UM-20: hello time-out, the WebSocket part of it."""
        connection, transport, clock = server(upgrade=False)
        clock.advance(9.9)
        self.assertFalse(transport.disconnected)
        clock.advance(0.2)
        self.assertTrue(transport.disconnected)
        lose(connection)
        self.assertEqual(clock.getDelayedCalls(), [])

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

    def test_an_error_of_autobahn_drops_the_connection_without_a_logged_error(self):
        connection, transport, _ = server()

        def odd():
            raise ValueError("odd input")

        connection.processData = odd
        connection.dataReceived(b"x")
        self.assertTrue(transport.disconnected)
        self.assertEqual(connection.wasNotCleanReason, "input which could not be parsed")


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
        connection, transport, clock = server(unread_octets=1000)
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
        self.assertEqual(connection.output.octets, 0)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_a_slow_reader_lives_as_long_as_it_reads(self):
        """UM-21: 30 s count from the last octets which were read."""
        connection, transport, clock = server(websocket_ping_seconds=0)
        producer = connection.output
        producer.pauseProducing()
        transport.clear()
        body = bytes(range(256)) * 2000

        def write(data, write=transport.write):
            write(data)
            producer.pauseProducing()

        transport.write = write
        connection.session.wire.write([body, "end"])
        while connection.output.octets:
            clock.advance(29)
            producer.resumeProducing()
        self.assertFalse(transport.disconnected)
        self.assertEqual(frames(transport.value()), [(2, body), (1, b"end")])

    def test_only_the_last_ping_of_a_peer_which_does_not_read_is_answered(self):
        """A flood of pings costs the memory of one."""
        connection, transport, _ = server()
        connection.output.pauseProducing()
        transport.clear()
        for number in range(1000):
            connection.dataReceived(b"\x89\x84\0\0\0\0%04d" % number)
        self.assertEqual(connection.output.octets, 0)
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


class Closing(TestCase):
    def test_any_code_of_the_rfc_may_be_sent_and_the_reason_is_cut_at_a_character(self):
        for text, octets in (
            ("é" * 100, "é".encode() * 61),
            ("x" * 123, b"x" * 123),
            ("x" * 124, b"x" * 123),
            ("x" + "é" * 62, b"x" + "é".encode() * 61),
            ("\ud800", b"?"),
        ):
            connection, transport, _ = server()
            connection.closeWebSocket(1002, text)
            self.assertEqual(frames(after_head(transport)), [(8, b"\x03\xea" + octets)])
            lose(connection)

    def test_a_connection_that_closes_is_not_paused__UM_21(self):
        connection, transport, _ = server()
        connection.session.wire.close()
        connection.session.wire.pauseProducing()
        self.assertEqual(transport.producerState, "producing")
        connection.dataReceived(b"\x88\x82\0\0\0\0\x03\xe8")
        self.assertTrue(connection.wasClean)
        lose(connection)

    def test_who_took_something_a_moment_ago_has_its_time_from_then__HO_04(self):
        for begin, seconds in ((lambda one: one.closeWebSocket(), 5), (lambda one: None, 85)):
            connection, transport, clock = server(unread_seconds=1000.0)
            begin(connection)
            connection.output.pauseProducing()
            clock.advance(seconds - 2)
            connection.output.resumeProducing()
            clock.pump([0.5] * 8)
            self.assertFalse(transport.disconnected)
            clock.pump([0.5] * 120)
            self.assertTrue(transport.disconnected)
            lose(connection)
            self.assertEqual(clock.getDelayedCalls(), [])

    def test_a_peer_which_does_not_answer_our_close_is_dropped(self):
        connection, transport, clock = server()
        connection.closeWebSocket()
        clock.advance(5.1)
        self.assertTrue(transport.disconnected)
        lose(connection)

    def test_a_peer_which_still_reads_what_stands_before_our_close_is_not_dropped(self):
        """HO-04: it can answer only when it has read all of it."""
        connection, transport, clock = server(websocket_ping_seconds=0)
        connection.output.pauseProducing()
        connection.session.wire.write([b"x" * 400_000])
        connection.session.wire.close()
        while connection.output.octets:
            clock.advance(20)
            connection.output.resumeProducing()
            if connection.output.octets:
                connection.output.pauseProducing()
        self.assertFalse(transport.disconnected)
        self.assertEqual([kind for kind, _ in frames(after_head(transport))], [2, 8])
        clock.pump([2] * 6)
        self.assertTrue(transport.disconnected)
        lose(connection)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_closing_while_paused_reads_the_answer(self):
        connection, transport, _ = server()
        connection.session.wire.pauseProducing()
        connection.session.wire.close()
        self.assertEqual(transport.producerState, "producing")
        connection.dataReceived(b"\x88\x82\0\0\0\0\x03\xe8")
        self.assertTrue(transport.disconnecting)
        lose(connection)
        self.assertEqual(connection.session.seen, ["opened", ("lost", "ConnectionDone")])

    def test_closing_before_the_upgrade_drops_the_connection(self):
        connection, transport, _ = server(upgrade=False)
        connection.closeWebSocket()
        self.assertTrue(transport.disconnected)
        lose(connection)

    def test_whoever_waits_for_a_connection_hears_why_it_was_lost(self):
        broken = ProtocolViolation
        for say, kind, text in (
            (lambda one: one.dataReceived(b"\x88\x82\0\0\0\0\x03\xe8"), ConnectionDone, "clean"),
            (lambda one: one.session.wire.abort(), ConnectionLost, "the session was given up"),
            (
                lambda one: one.closeWebSocket(),
                ConnectionLost,
                "without previous WebSocket closing",
            ),
            (
                lambda one: one.onCloseHandshakeTimeout(),
                ConnectionLost,
                "closing handshake timeout",
            ),
            (lambda one: one.dataReceived(b"\x83\x80\0\0\0\0"), broken, "reserved opcode"),
            (lambda one: one.dataReceived(client_frame(b"\xff")), broken, "UTF-8"),
        ):
            connection, _, _ = server()
            say(connection)
            lose(connection)
            why = connection.session.why
            self.assertIsInstance(why, kind)
            self.assertIn(text, str(why))

    def test_whoever_waits_for_an_upgrade_hears_why_there_was_none(self):
        for say, text in (
            (lambda one: one.closeWebSocket(), "no WebSocket: closed before the upgrade"),
            (lambda one: one.closeWebSocket(1000, "mine"), "no WebSocket: mine"),
            (lambda one: one.factory.abortUpgrades(), "no WebSocket: the server stops"),
            (
                lambda one: one.dataReceived(b"x" * 20_000),
                f"no WebSocket: {LONG_HEAD}",
            ),
            (
                lambda one: one.dataReceived(b"\x16\x03\x01" + bytes(9)),
                f"no WebSocket: {SPEAKS_TLS}",
            ),
        ):
            connection, _, _ = server(upgrade=False)
            say(connection)
            lose(connection)
            self.assertEqual(str(connection.session.why), text)

    def test_a_server_which_stops_closes_with_1001_and_a_client_with_1000__UM_21(self):
        both = BothSides()
        for stops, who, code in ((False, 0, 1000), (False, 1, 1000), (True, 1, 1001)):
            sides = client, peer, _ = both.connect()
            both.pump(client, peer)
            peer.factory.sessions.draining = stops
            sides[who].session.wire.close()
            both.pump(client, peer)
            self.assertEqual(sides[1 - who].remoteCloseCode, code)
            for side in (client, peer):
                lose(side)

    def test_only_a_client_waits_for_the_other_side_to_end_the_connection__UM_21(self):
        connection, transport, clock = server()
        connection.dataReceived(b"\x88\x82\0\0\0\0\x03\xe8")
        clock.advance(29)
        self.assertEqual((transport.disconnecting, transport.disconnected), (True, False))
        lose(connection)

    def test_a_second_close_of_the_server_leaves_no_timer_behind__UM_21(self):
        client, peer, clock = (both := BothSides()).connect()
        both.pump(client, peer)
        for _ in range(2):
            client.dataReceived(b"\x88\x02\x03\xe8")
        for side in (client, peer):
            lose(side)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_who_has_no_upgrade_because_of_tls_hears_that(self):
        client, peer, _ = BothSides().connect()
        client.connectionLost(Failure(TLSError([("", "", "unknown ca")])))
        self.assertEqual(str(client.session.why), "TLS: unknown ca")
        lose(peer)

    def test_what_comes_after_our_close_is_not_kept__NB_02(self):
        """A thousand connections that close made a gateway hold 957 MiB, outside every limit."""
        connection, _, clock = server()
        fragment = b"\x01" + client_frame(b"w" * 1000)[1:]
        begun = b"\x80" + client_frame(b"x" * 100_000)[1:]
        connection.dataReceived(fragment + begun[:60_000])
        connection.closeWebSocket()
        connection.dataReceived(begun[60_000:90_000])
        self.assertEqual((connection.frame_data, connection.message_data), ([], []))
        connection.dataReceived(begun[90_000:] + client_frame(b"y" * 70_000)[:-1])
        self.assertEqual((connection.frame_data, connection.message_data), ([], []))
        self.assertEqual(connection.data, b"")
        self.assertFalse([seen for seen in connection.session.seen if "x" in seen or "y" in seen])
        lose(connection)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_a_peer_without_pongs_is_dropped_unless_we_do_not_read(self):
        """UM-20: WebSocket ping."""
        connection, transport, clock = server()
        clock.advance(55.1)
        self.assertEqual(frames(after_head(transport))[0][0], 9)
        connection.session.wire.pauseProducing()
        clock.pump([10] * 12)
        self.assertFalse(transport.disconnected)
        connection.session.wire.resumeProducing()
        clock.pump([10] * 4)
        self.assertTrue(transport.disconnected)
        lose(connection)

    def test_octets_of_a_large_message_keep_the_connection(self):
        """HO-04: a peer which sends slowly has no room for a pong in the middle of a message."""
        connection, transport, clock = server()
        message = client_frame(b"x" * 1000)
        for octet in range(0, 1000, 100):
            clock.advance(25)
            connection.dataReceived(message[octet : octet + 100])
        self.assertFalse(transport.disconnected)
        clock.pump([10] * 9)
        self.assertTrue(transport.disconnected)
        lose(connection)

    def test_a_peer_which_takes_what_waits_lives_without_a_pong(self):
        """HO-04: our ping stands far behind in what it has not read."""
        connection, transport, clock = server(unread_seconds=1000.0)
        for _ in range(10):
            connection.output.pauseProducing()
            clock.advance(20)
            connection.output.resumeProducing()
        self.assertFalse(transport.disconnected)
        clock.pump([10] * 9)
        self.assertTrue(transport.disconnected)
        lose(connection)

    def test_pings_and_their_answers_may_take_any_time(self):
        """UM-20: the next ping waits for the time between two, or for the answer to the last."""
        for between, patience in ((10, 30), (30, 10), (20, 20)):
            self.patch(factories, "PONG_SECONDS", patience)
            connection, transport, clock = server(websocket_ping_seconds=float(between))
            transport.clear()
            pings = 0
            for _ in range(6 * between + 2):
                clock.advance(0.5)
                if transport.value():
                    self.assertEqual(transport.value(), b"\x89\x00")
                    pings += 1
                    transport.clear()
                    connection.dataReceived(b"\x8a\x80" + bytes(4))
            self.assertEqual(pings, 3)
            clock.pump([0.5] * (2 * (between + patience - 2)))
            self.assertFalse(transport.disconnected)
            clock.pump([0.5] * 6)
            self.assertTrue(transport.disconnected)
            lose(connection)


class Letting(TestCase):
    def status(self, headers, **options):
        connection, transport, _ = server(headers, **options)
        lose(connection)
        return transport.value().partition(b"\r\n")[0].split()[1]

    def test_a_foreign_origin_is_refused_with_403(self):
        """The issue: a browser page from a foreign origin; origins are explicit."""
        mine = {"origins": ["https://mine.example", "http://localhost:8000"]}
        self.assertEqual(self.status(b"Origin: https://mine.example\r\n", **mine), b"101")
        self.assertEqual(self.status(b"Origin: https://mine.example:443\r\n", **mine), b"101")
        self.assertEqual(self.status(b"Origin: http://localhost:8000\r\n", **mine), b"101")
        plain = {"origins": ["http://mine.example", "https://[2001:DB8::1]"]}
        self.assertEqual(self.status(b"Origin: https://[2001:db8::1]\r\n", **plain), b"101")
        self.assertEqual(self.status(b"Origin: http://mine.example:80\r\n", **plain), b"101")
        self.assertEqual(self.status(b"", **mine), b"101")
        for foreign in (
            b"http://mine.example",
            b"https://mine.example:8443",
            b"https://mine.example.evil.example",
            b"https://not-mine.example",
            b"null",
            b"file://",
        ):
            self.assertEqual(self.status(b"Origin: " + foreign + b"\r\n", **mine), b"403", foreign)

    def test_without_a_list_no_browser_page_is_let_in(self):
        self.assertEqual(self.status(b"Origin: http://localhost\r\n"), b"403")
        self.assertEqual(self.status(b"Origin: http://any\r\n", origins=["*"]), b"101")
        self.assertEqual(self.status(b"Origin: null\r\n", origins=["null"]), b"101")

    def test_a_refused_origin_is_a_line_with_the_option_that_allows_it__NB_13(self):
        with capturedLogs() as lines:
            connection, _, _ = server(b"Origin: http://evil\r\n")
        told = [formatEvent(line) for line in lines if line["log_level"] is LogLevel.warn]
        self.assertEqual(len(told), 1)
        self.assertIn("a web page from http://evil may not connect (--origin allows it)", told[0])
        self.assertEqual(connection.factory.refused_origins, 1)
        lose(connection)

    def test_no_page_and_no_old_version_is_served(self):
        connection, transport, _ = server(upgrade=False)
        connection.dataReceived(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 426"))
        lose(connection)
        connection, transport, _ = server(upgrade=False)
        connection.dataReceived((UPGRADE % b"").replace(b"Version: 13", b"Version: 8"))
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 400"))
        lose(connection)
        connection, transport, _ = server(upgrade=False)
        connection.dataReceived((UPGRADE % b"").replace(b"Sec-WebSocket-Key", b"Key"))
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 400"))
        lose(connection)

    def test_compression_is_never_agreed(self):
        """It would cost 100 KiB a connection."""
        _, transport, _ = server(b"Sec-WebSocket-Extensions: permessage-deflate\r\n")
        self.assertNotIn(b"deflate", transport.value())

    def test_the_first_known_sub_protocol_is_chosen(self):
        _, transport, _ = server(b"Sec-WebSocket-Protocol: other, umq\r\n", protocols=["umq"])
        self.assertIn(b"Sec-WebSocket-Protocol: umq\r\n", transport.value())
        _, transport, _ = server(b"Sec-WebSocket-Protocol: other\r\n", protocols=["umq"])
        self.assertNotIn(b"Sec-WebSocket-Protocol", transport.value())

    def test_a_connection_counts_before_its_upgrade(self):
        """UM-20: for all, and for its address."""
        for limits in ({"connections": 1}, {"connections_per_address": 1}):
            connection, _, clock = server(upgrade=False, **limits)
            address = connection.transport.getPeer()
            self.assertIsNone(connection.factory.buildProtocol(address))
            clock.advance(10.1)
            lose(connection)
            self.assertEqual(connection.session.seen[0][0], "never")
            self.assertIsNotNone(connection.factory.buildProtocol(address))

    def test_a_server_which_stops_lets_nobody_upgrade(self):
        connection, transport, _ = server(upgrade=False)
        connection.factory.sessions.drain()
        connection.dataReceived(UPGRADE % b"")
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 503"))
        lose(connection)
        connection, transport, _ = server(upgrade=False)
        connection.factory.abortUpgrades()
        self.assertTrue(transport.disconnected)
        lose(connection)


class BothSides(TestCase):
    """Our client against our server, over a pipe of our own."""

    def connect(self, url="ws://[::1]:5048/path?query"):
        clock = Clock()
        clients = Clients(clock=clock)
        factory = WebSocketClientFactory(
            clients, clients.buildProtocol, clients.limits, url, protocols=["umq"]
        )
        client = factory.buildProtocol(None)
        client.makeConnection(StringTransport(lenient=True))
        sessions = Sessions(clock=clock)
        server_factory = WebSocketServerFactory(
            sessions, sessions.buildProtocol, sessions.limits, protocols=["umq"]
        )
        peer = server_factory.buildProtocol(None)
        peer.makeConnection(StringTransport(lenient=True))
        return client, peer, clock

    def pump(self, client, peer):
        while True:
            ours, theirs = client.transport.value(), peer.transport.value()
            if not ours and not theirs:
                return
            client.transport.clear()
            peer.transport.clear()
            if ours:
                peer.dataReceived(ours)
            if theirs:
                client.dataReceived(theirs)

    def test_both_sides_talk_and_close_cleanly(self):
        client, peer, clock = self.connect()
        self.assertIn(b"Host: [::1]:5048\r\n", client.transport.value())
        self.assertIn(b"GET /path?query HTTP/1.1", client.transport.value())
        self.pump(client, peer)
        client.session.wire.write(["q" * 70000, b""])
        peer.session.wire.write([b"r"])
        self.pump(client, peer)
        self.assertEqual(peer.session.messages(), ["q" * 70000, b""])
        self.assertEqual(client.session.messages(), [b"r"])
        client.session.wire.close()
        self.pump(client, peer)
        lose(peer)
        lose(client)
        self.assertEqual(peer.session.seen[-1], ("lost", "ConnectionDone"))
        self.assertEqual(client.session.seen[-1], ("lost", "ConnectionDone"))
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_a_server_which_never_drops_the_connection_is_dropped(self):
        client, peer, clock = self.connect()
        self.pump(client, peer)
        client.session.wire.close()
        self.pump(client, peer)
        clock.advance(5.1)
        self.assertTrue(client.transport.disconnected)
        lose(client)
        lose(peer)


@pytest.mark.parametrize(
    "text, address",
    [
        ("ws://host", (False, "host", 80, "/")),
        ("wss://host/p?q=1", (True, "host", 443, "/p?q=1")),
        ("ws://[::1]:5048/", (False, "::1", 5048, "/")),
    ],
)
def test_addresses_are_parsed(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:1",
        "http://host",
        "ws://",
        "ws://host:0",
        "ws://host:x",
        "ws://h:99999",
        "ws://h/#f",
        "ws://u:p@h/",
        "ws://h/a b",
        "ws://h/\r\nX: y",
        "ws://[::1",
        "ws://h/é",
    ],
)
def test_what_is_no_address_is_one_line(text):
    with pytest.raises(ConfigurationError):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    ["", "host", "http://", "http://h/path", "http://h:x", "*.x", "http://h?q", "http://h#f"],
)
def test_what_is_no_origin_is_one_line(text):
    with pytest.raises(ConfigurationError):
        server(upgrade=False, origins=[text])
