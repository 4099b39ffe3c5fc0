"""A session which a person types."""

from .pairs import Case, Echo, Transport
from .vectors import crlf


class ByHand(Case):
    """What a person types."""

    server_class = Echo

    def test_a_session_typed_with_bare_line_feeds(self):
        """SA-28."""
        self.server = self.serve(lenient=True)
        self.server.dataReceived(b"CONNECT\nclient-id::me\n\n\0\n")
        self.assertIn(b"CONNECTED\r\nsession-id::secret-1\r\n", self.server.transport.value())
        self.server.transport.clear()
        self.server.dataReceived(b"MESSAGE\nsession-id::secret-1\nmsg-id::1\n\nHola\n\n\0\n")
        self.assertEqual(
            self.server.transport.value(),
            crlf("MESSAGE\nsession-id::secret-1\nref-msg-id::1\n\nHola\n\n^@"),
        )
        self.server.transport.clear()
        self.server.dataReceived(b"DISCONNECT\nsession-id::secret-1\n\n")
        self.assertEqual(
            self.server.transport.value(), crlf("DISCONNECTING\nsession-id::secret-1\n\n^@")
        )
        self.assertTrue(self.server.transport.closing)

    def test_a_terminal_may_put_a_line_end_behind_the_nul(self):
        """HO-19, SA-26: the strict default can be typed, too."""
        self.server = self.serve()
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n^@") + b"\r\n")
        self.assertIn(b"CONNECTED\r\nsession-id::secret-1\r\n", self.server.transport.value())
        for number in (b"1", b"2"):
            self.server.transport.clear()
            head = b"MESSAGE\r\nsession-id::secret-1\r\nmsg-id::" + number
            self.server.dataReceived(head + b"\r\n\r\nHola\r\n\r\n\0\r\n")
            self.assertIn(b"ref-msg-id::" + number + b"\r\n", self.server.transport.value())
        self.assertFalse(self.server.transport.closing)

    def test_tcp_goes_without_delay_and_is_kept_alive(self):
        from twisted.internet.interfaces import ITCPTransport
        from zope.interface import directlyProvides

        calls = []
        self.serve()
        server = self.factory.buildProtocol(None)
        transport = Transport()
        directlyProvides(transport, ITCPTransport)
        transport.setTcpNoDelay = lambda on: calls.append(("no delay", on))
        transport.setTcpKeepAlive = lambda on: calls.append(("keep alive", on))
        server.makeConnection(transport)
        self.assertEqual(sorted(calls), [("keep alive", True), ("no delay", True)])
        self.lose(server)
        for connection in list(self.factory.liveConnections):
            self.lose(connection)
