"""How WebSocket connections end, who keeps them alive, and whom a server lets in."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from OpenSSL.SSL import Error as TLSError
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.doubles import Tcp
from tests.net.test_websocket import (
    LONG_HEAD,
    SPEAKS_TLS,
    UPGRADE,
    Clients,
    Sessions,
    after_head,
    client_frame,
    frames,
    lose,
    server,
    server_with,
)
from twisted_msgproto.core.errors import ConfigurationError, ProtocolViolation
from twisted_msgproto.net.clients.client_endpoints import parse_address
from twisted_msgproto.net.wires.websocket import WebSocketClientFactory, WebSocketServerFactory
from twisted_msgproto.net.wires.websocket import frames as websocket_frames


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
        """Whichever comes first: it reads the answer."""
        for verbs in (("close", "pauseProducing"), ("pauseProducing", "close")):
            connection, transport, _ = server()
            for verb in verbs:
                getattr(connection.session.wire, verb)()
            self.assertEqual(transport.producerState, "producing")
            connection.dataReceived(b"\x88\x82\0\0\0\0\x03\xe8")
            self.assertTrue(connection.wasClean)
            self.assertTrue(transport.disconnecting)
            lose(connection)
            self.assertEqual(connection.session.seen, ["opened", ("lost", "ConnectionDone")])

    def test_a_peer_which_still_reads_what_stands_before_our_close_is_not_dropped(self):
        """HO-04: it can answer only when it has read all of it."""
        connection, transport, clock = server(websocket_ping_seconds=0)
        connection.output.pauseProducing()
        connection.session.wire.write([b"x" * 400_000])
        connection.session.wire.close()
        while connection.output.nbytes:
            clock.advance(20)
            connection.output.resumeProducing()
            if connection.output.nbytes:
                connection.output.pauseProducing()
        self.assertFalse(transport.disconnected)
        self.assertEqual([kind for kind, _ in frames(after_head(transport))], [2, 8])
        clock.pump([2] * 6)
        self.assertTrue(transport.disconnected)
        lose(connection)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_whoever_waits_for_a_connection_hears_why_it_was_lost(self):
        broken = ProtocolViolation
        for say, kind, text in (
            (lambda one: one.dataReceived(b"\x88\x82\0\0\0\0\x03\xe8"), ConnectionDone, "clean"),
            (lambda one: one.session.wire.abort(), ConnectionLost, "the session was given up"),
            (lambda one: one.closeWebSocket(1000), ConnectionLost, "previous WebSocket closing"),
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
            (lambda one: one.closeWebSocket(1000), "no WebSocket: closed before the upgrade"),
            (lambda one: one.closeWebSocket(1000, "mine"), "no WebSocket: mine"),
            (lambda one: one.factory.abortUpgrades(), "no WebSocket: the server stops"),
            (lambda one: one.dataReceived(b"x" * 20_000), f"no WebSocket: {LONG_HEAD}"),
            (lambda one: one.dataReceived(b"\x16\x03\x01" + b"x"), f"no WebSocket: {SPEAKS_TLS}"),
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
            codes = sides[who].localCloseCode, sides[1 - who].remoteCloseCode
            self.assertEqual(codes, (code, code))
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
        connection.closeWebSocket(1000)
        connection.dataReceived(begun[60_000:90_000])
        self.assertEqual(connection.session.wire.held, 0)
        last = client_frame(b"y" * 70_000)
        connection.dataReceived(begun[90_000:] + last[:-1])
        self.assertEqual(connection.session.wire.held, 0)
        connection.dataReceived(last[-1:] + b"\x88\x82\0\0\0\0\x03\xe8")
        self.assertTrue(connection.wasClean, "the peer's Close is seen behind it")
        self.assertEqual(connection.session.messages(), [])
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
        clock.pump([10] * 6)
        self.assertTrue(transport.disconnected)
        lose(connection)

    def test_who_is_read_again_has_time_to_be_heard(self):
        """Its pong waited with all else; many are read again at once, and their looks are due."""
        connection, transport, clock = server()
        for _ in range(480):
            connection.session.wire.pauseProducing()
            clock.advance(0.25)
            connection.session.wire.resumeProducing()
            clock.advance(0.25)
        self.assertFalse(transport.disconnected)
        lose(connection)

    def test_bytes_of_a_large_message_keep_the_connection(self):
        """HO-04: a peer which sends slowly has no room for a pong in the middle of a message."""
        connection, transport, clock = server()
        message = client_frame(b"x" * 1000)
        for byte in range(0, 1000, 100):
            clock.advance(25)
            connection.dataReceived(message[byte : byte + 100])
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

    def test_who_is_not_let_in_and_does_not_end_is_dropped(self):
        """On TLS its own end is waited for."""
        connection, transport, clock = server(b"Origin: http://any\r\n", unread_seconds=20.0)
        self.assertTrue(transport.disconnecting)
        clock.advance(19.9)
        self.assertFalse(transport.disconnected)
        clock.advance(0.1)
        self.assertTrue(transport.disconnected)
        lose(connection)
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_without_a_list_no_browser_page_is_let_in(self):
        self.assertEqual(self.status(b"Origin: http://localhost\r\n"), b"403")
        self.assertEqual(self.status(b"Origin: http://any\r\n", origins=["*"]), b"101")
        self.assertEqual(self.status(b"Origin: null\r\n", origins=["null"]), b"101")

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
            refused = connection.factory.buildProtocol(address)
            refused.makeConnection(StringTransport())
            self.assertTrue(refused.transport.disconnecting)
            clock.advance(10.1)
            lose(connection)
            self.assertEqual(connection.session.seen[0][0], "never")
            self.assertIsInstance(connection.factory.buildProtocol(address), type(connection))

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

    def test_a_client_names_the_host_with_brackets_round_ipv6_alone(self):
        for url, host in (("ws://[::1]:5048/", b"[::1]:5048"), ("ws://h:5048/", b"h:5048")):
            client, _, _ = self.connect(url)
            self.assertIn(b"\r\nHost: " + host + b"\r\n", client.transport.value())
            lose(client)

    def test_a_pong_that_is_masked_by_a_server_is_a_fault_to_its_client(self):
        client, peer, _ = self.connect()
        self.pump(client, peer)
        client.dataReceived(b"\x8a\x80\0\0\0\0")
        self.assertEqual(client.state, client.STATE_CLOSING)
        for side in (client, peer):
            lose(side)

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


class Edges(SynchronousTestCase):
    def test_a_client_that_never_upgrades_is_a_fault_and_cannot_fill_the_log__NB_09(self) -> None:
        """NB-09: autobahn writes two lines for each of them, however many come."""
        lines: dict[str, list[str]] = {}
        for name, octets in (
            ("status", b"\x1b[31m\r\n\r\n"),
            ("version", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"),
            ("bytes", b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000),
            ("seconds", b"GET / HTTP/1.1\r\n"),
        ):
            first, _, clock = server(upgrade=False)
            lose(first)
            sessions = first.factory.sessions
            with capturedLogs() as logged:
                nine = [first.factory.buildProtocol(None) for _ in range(9)]
                for connection in nine:
                    connection.makeConnection(StringTransport(lenient=True))
                    connection.dataReceived(octets)
                if name == "seconds":
                    clock.advance(sessions.limits["websocket-upgrade-seconds"])
                for connection in nine:
                    lose(connection)
            self.assertEqual(sessions.counters["fault:upgrade"], 9, name)
            met = sessions.counters[f"limit:websocket-upgrade-{name}"]
            self.assertEqual(met, 9 if name == "seconds" else 0)
            lines[name] = [formatEvent(event) or "" for event in logged]
            self.assertEqual(len(lines[name]), 5, lines[name])
            self.assertTrue(all(map(str.isprintable, lines[name])))
            self.assertTrue(lines[name][0].startswith("192.168.1.1:54321: closed before it spoke"))

    def test_what_the_log_says_of_a_peer_is_one_line_with_its_address__NB_09(self) -> None:
        begun = "closed before it spoke WebSocket: "
        foreign = UPGRADE % b"Origin: http://evil.example\r\n"
        for octets, upgraded, reason, text in (
            (b"\x9b\r\n\r\n", False, "upgrade", f'{begun}Bad HTTP request status line "\\x9b"'),
            (b"x" * 20_000, False, "upgrade", f"{begun}the HTTP head is too long"),
            (b"\x16\x03\x01" + bytes(9), False, "tls", f"closed: {SPEAKS_TLS}"),
            (foreign, False, "origin", "refused: a web page from http://evil.example may not "
             "connect (--origin allows it)"),
            (b"x", True, "websocket", "dropped, autobahn failed: 'odd \\x1b'"),
        ):  # fmt: skip
            connection, transport, _ = server(upgrade=upgraded)
            transport.peerAddr = IPv4Address("TCP", "192.0.2.7", 7)

            def odd() -> None:
                raise ValueError("odd \x1b")

            if upgraded:
                connection.peer, connection.consumeData = "192.0.2.7:7", odd
            with capturedLogs() as logged:
                connection.dataReceived(octets)
            self.assertEqual([formatEvent(event) for event in logged], [f"192.0.2.7:7: {text}"])
            [worst] = connection.factory.sessions.shared.offenders.worst(9)
            self.assertEqual((worst.address, worst.reason), ("192.0.2.7", reason))
            lose(connection)
        connection, transport, _ = server(upgrade=False, origins=["http://evil.example"])
        connection.dataReceived(foreign)  # --origin allows it
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 101"))
        lose(connection)

    def test_a_server_notices_that_a_silent_peer_is_gone__HO_04(self) -> None:
        connection, _, _ = server()
        transport = Tcp()
        connection.transport = transport
        connection.factory.connectionBegun(connection)
        self.assertTrue(transport.told["KeepAlive"])
        lose(connection)


class ClientEdges(SynchronousTestCase):
    def test_a_client_that_gives_up_while_its_server_does_not_end_cuts_it_off__UM_21(self) -> None:
        """Both close frames were sent: without the cut the server could keep it for ever."""
        both = BothSides()
        for given_up in (False, True):
            client, peer, clock = both.connect()
            both.pump(client, peer)
            client.session.wire.close(False)
            both.pump(client, peer)
            self.assertEqual(client.transport.disconnected, False)
            self.assertIsNone(client.serverConnectionDropTimeoutCall)  # ours takes its place
            if given_up:
                client.abort("no longer wanted")
            self.assertEqual(client.transport.disconnected, given_up)
            lose(client)
            lose(peer)
            lost = "ConnectionLost" if given_up else "ConnectionDone"
            self.assertEqual(client.session.seen[-1], ("lost", lost))
            self.assertEqual(clock.getDelayedCalls(), [])


# ── pings ───────────────────────────────────────────────────────────────────────────────────────


def pinged(chance: float, interval: float, seconds: float, answers: bool) -> tuple[list[int], bool]:
    """When a peer is pinged in so many seconds, and whether it is dropped by then."""
    with patch.object(websocket_frames, "random", lambda: chance):
        connection, transport, clock = server(websocket_ping_seconds=interval)
    transport.clear()
    pings = []
    for second in range(1, int(seconds) + 1):
        clock.advance(1)
        if transport.value():
            assert transport.value() == b"\x89\0"
            transport.clear()
            pings.append(second)
            if answers:
                connection.dataReceived(b"\x8a\x80" + bytes(4))
    dropped = transport.disconnected
    lose(connection)
    assert clock.getDelayedCalls() == []
    return pings, dropped


def test_a_living_peer_is_pinged_in_time_and_a_dead_one_is_dropped() -> None:
    """UM-20"""
    assert pinged(0.0, 50, 200, answers=True) == ([50, 100, 150, 200], False)
    assert pinged(0.0, 0, 200, answers=False) == ([], False)
    for interval, gone in ((50, 100), (10, 40), (12, 48)):  # it has 30 s, and the time between two
        assert pinged(0.0, interval, gone - 1, answers=False) == ([interval], False)
        assert pinged(0.0, interval, gone, answers=False) == ([interval], True)


def test_those_who_connected_together_are_not_pinged_together__NB_07() -> None:
    """NB-07: after a restart ten thousand peers connect at once; their pings were one turn."""
    firsts = [pinged(chance, 50, 60, answers=True)[0][0] for chance in (0.0, 0.5, 0.9)]
    assert firsts == [50, 38, 28]


def test_what_is_due_within_half_a_second_is_one_turn__NB_11() -> None:
    """Else a server of ten thousand idle peers would need more than a hundredth of a processor."""
    with patch.object(websocket_frames, "random", lambda: 0.0):
        first, _, clock = server(websocket_ping_seconds=10)
        clock.advance(0.3)
        second, _ = server_with(first.factory)
        assert [call.getTime() for call in clock.getDelayedCalls()] == [10.0, 10.0]
        for connection in (first, second):
            lose(connection)


def test_a_peer_that_cannot_be_pinged_is_dropped_all_the_same__NB_07() -> None:
    connection, transport, clock = server(websocket_ping_seconds=10)

    def fails(data: bytes) -> None:
        raise ValueError("not now")

    connection.send = fails
    with pytest.raises(ValueError, match="not now"):  # a reactor logs it
        clock.advance(10)
    clock.pump([10] * 5)
    assert transport.disconnected
    lose(connection)
