"""The WebSocket room at its edges: calls that change nothing, hooks that fail, addresses."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from tests.doubles import Tcp
from tests.net import test_websocket
from tests.net.test_websocket import (
    SPEAKS_TLS,
    UPGRADE,
    after_head,
    frames,
    lose,
    server,
)
from tests.net.test_websocket_cases import PONG, sent
from twisted_msgproto.net.wires.websocket import OctetWire


class Edges(SynchronousTestCase):
    def test_a_client_that_never_upgrades_is_a_fault_and_cannot_fill_the_log__NB_09(self) -> None:
        """NB-09: autobahn writes two lines for each of them, however many come."""
        lines: dict[str, list[str]] = {}
        for name, octets in (
            ("status", b"\x1b[31m\r\n\r\n"),
            ("version", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"),
            ("octets", b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000),
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
            (b"\x1b\r\n\r\n", False, "upgrade", f'{begun}Bad HTTP request status line "\\x1b"'),
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
                connection.peer, connection.processData = "192.0.2.7:7", odd
            with capturedLogs() as logged:
                connection.dataReceived(octets)
            self.assertEqual([formatEvent(event) for event in logged], [f"192.0.2.7:7: {text}"])
            [worst] = connection.factory.sessions.budget.offenders.worst(9)
            self.assertEqual((worst.address, worst.reason), ("192.0.2.7", reason))
            lose(connection)

    def test_what_a_proxy_says_of_a_web_page_cannot_write_on_the_terminal__NB_09(self) -> None:
        """NB-09: PROXY headers carry any text in place of an address."""
        for address, told in (
            (IPv4Address("TCP", "\x1b[31mA\u202e", 1), r"^\\x1b\[31mA\\u202e:1: refused"),
            (UNIXAddress(b"/a\n\x1b[31m"), r"^/a\\n\\x1b\[31m: refused"),
        ):
            connection, transport, _ = server(upgrade=False)
            transport.peerAddr = address
            with capturedLogs() as logged:
                connection.dataReceived(UPGRADE % b"Origin: https://evil.example\r\n")
            [line] = [formatEvent(event) for event in logged if event.get("reason") == "origin"]
            self.assertRegex(line, told)
            [worst] = connection.factory.sessions.budget.offenders.worst(9)
            self.assertTrue(worst.address.isprintable())
            lose(connection)

    def test_a_session_which_fails_at_its_beginning_closes_its_connection(self) -> None:
        connection, transport, _ = server(upgrade=False)

        def makeConnection(wire: Any) -> None:
            raise ZeroDivisionError

        connection.session.makeConnection = makeConnection
        with capturedLogs() as logged:
            connection.dataReceived(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertTrue(any("makeConnection" in str(formatEvent(event)) for event in logged))
        self.assertTrue(transport.disconnecting or transport.disconnected or connection.state != 3)
        lose(connection)

    def test_over_tls_a_ping_is_written_at_once_unless_something_waits_in_front__NB_11(
        self,
    ) -> None:
        connection, transport, clock = server()
        wire, at_once = connection.session.wire, []
        transport.writeNow = at_once.append
        transport.clear()
        clock.advance(55)
        self.assertEqual((at_once, transport.value()), ([b"\x89\x00"], b""))
        connection.dataReceived(sent(PONG))
        # The peer does not read, and something waits.
        connection.output.pauseProducing()
        wire.write(["a"])
        clock.advance(55)
        self.assertEqual((len(at_once), transport.value()), (1, b""))
        connection.output.resumeProducing()
        clock.advance(0)
        self.assertEqual((len(at_once), transport.value()), (1, b"\x81\x01a\x89\x00"))
        lose(connection)

    def test_a_server_notices_that_a_silent_peer_is_gone__HO_04(self) -> None:
        connection, _, _ = server()
        transport = Tcp()
        connection.transport = transport
        connection.factory.connectionBegun(connection)
        self.assertTrue(transport.told["KeepAlive"])
        lose(connection)

    def test_octets_are_not_sent_once_the_connection_closes__SA_25(self) -> None:
        connection, transport, _ = server(wire=OctetWire)
        connection.session.wire.close(False)
        before = transport.value()
        connection.session.wire.write([b"late"])
        self.assertEqual(transport.value(), before)
        lose(connection)

    def test_a_wire_says_what_its_transport_is_and_what_waits_for_it(self) -> None:
        connection, transport, clock = server()
        wire = connection.session.wire
        self.assertEqual(wire.getHost(), transport.getHost())
        self.assertEqual((wire.full, wire.unread, wire.waiting), (False, False, 0))
        clock.advance(3)
        connection.output.pauseProducing()
        wire.write(["x" * 10])
        self.assertEqual((wire.full, wire.unread, wire.waiting > 10), (True, True, True))
        self.assertEqual(wire.movedAt, connection.output.movedAt)
        self.assertFalse(wire.disconnecting)
        wire.abortConnection()
        self.assertTrue(transport.disconnected)
        self.assertTrue(wire.disconnecting)
        lose(connection)

    def test_a_length_is_written_as_short_as_can_be__UM_21(self) -> None:
        """RFC 6455, 5.2: 125 stands in one octet, 126 in three, and each may come alone."""
        for length, spelled, good in (
            (125, b"\xfd", True),
            (125, b"\xfe\0\x7d", False),
            (126, b"\xfe\0\x7e", True),
            (0, b"\xfe\0\0", False),
            (65535, b"\xfe\xff\xff", True),
            (65535, b"\xff\0\0\0\0\0\0\xff\xff", False),
            (65536, b"\xff\0\0\0\0\0\1\0\0", True),
        ):
            connection, transport, _ = server()
            connection.dataReceived(b"\x81" + spelled + bytes(4) + b"x" * length)
            self.assertEqual(connection.session.messages(), ["x" * length] if good else [])
            self.assertEqual(bool(frames(after_head(transport))), not good)
            lose(connection)


class ClientEdges(SynchronousTestCase):
    def test_a_client_that_gives_up_while_its_server_does_not_end_cuts_it_off__UM_21(self) -> None:
        """Both close frames were sent: without the cut the server could keep it for ever."""
        both = test_websocket.BothSides()
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
