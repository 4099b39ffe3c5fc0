"""How sessions end, in order and by a fault, and sessions which a person types."""

from twisted_msgproto.core.errors import ConnectionClosed, ProtocolViolation, Refused

from .pairs import Case, Echo, Transport
from .vectors import crlf


class Ends(Case):
    server_class = Echo

    def test_a_session_expires(self):
        """SA-11."""
        self.pair(session_seconds=100)
        self.assertEqual(self.client.expires, 1_700_000_100)
        self.assertEqual(self.server.expires, 1_700_000_100)
        self.clock.advance(100)
        self.pump()
        self.assertFalse(self.client.established)
        self.assertEqual(self.factory.counters["ended:SessionExpired"], 1)

    def test_a_server_stops_and_answers_what_is_in_work(self):
        """SA-12."""
        self.pair()
        asked = self.client.request(b"later")
        self.pump()
        drained = self.factory.drain()
        self.pump()
        refused = self.client.request(b"x")
        self.pump()
        self.assertEqual(self.failureResultOf(refused, Refused).value.code, "503")
        self.assertNoResult(drained)
        self.server.later.callback(b"answered")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"answered")
        self.successResultOf(drained)
        self.assertIs(self.factory.buildProtocol(None), None)
        self.server.drain()

    def test_a_connection_which_comes_about_while_the_server_stops(self):
        """SA-12: a WebSocket upgrade takes its time."""
        self.serve()
        late = self.factory.buildProtocol(None)
        self.factory.drain()
        late.makeConnection(Transport())
        self.assertTrue(late.transport.closing)
        self.lose(late)

    def test_a_peer_which_breaks_the_protocol(self):
        """SA-05, SA-06: a line in the log, a counter, no secrets, and no more reading."""
        self.pair()
        asked = self.client.request(b"later")
        self.pump()
        self.server.dataReceived(b"HELLO secret-1\r\n")
        self.server.dataReceived(b"HELLO\r\n")
        self.assertIn(b"error-code::400", self.server.transport.value())
        self.assertEqual(self.factory.counters["fault:command"], 1)
        (line,) = [line for line in self.lines if "closed" in line]
        self.assertNotIn("secret-1", line)
        self.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.server = self.serve()
        self.client = self.join()
        standing = self.client.whenEstablished()
        self.client.dataReceived(b"HELLO\r\n")
        self.lose(self.client)
        self.failureResultOf(standing, ProtocolViolation)

    def test_small_faults_are_told_to_the_operator(self):
        """SA-06, SA-20, SA-27."""
        self.pair()
        head = b"MESSAGE\r\nsession-id::secret-1\r\ncontent-length::1\r\n"
        self.server.dataReceived(head + b"a::b\r\n\r\nx\r\n\r\n\0")
        self.server.dataReceived(
            head + b"msg-id::1\r\n\r\nx" + head + b"msg-id::2\r\nmsg-more::yes\r\n\r\ny"
        )
        self.clock.advance(60)
        text = "\n".join(self.lines)
        for words in ("a frame was refused", "was discarded", "was given up"):
            self.assertIn(words, text)
        self.assertNotIn("secret-1", text)

    def test_nothing_is_taken_in_after_the_end(self):
        """SA-13."""
        self.pair()
        self.server.loseSession()
        notes = list(self.server.notes)
        self.client.request(b"x").addErrback(lambda failure: None)
        self.server.dataReceived(self.client.transport.value())
        self.assertEqual(self.server.notes, notes)

    def test_a_snapshot_has_no_secrets(self):
        """SA-09, SA-10."""
        self.pair()
        (state,) = self.factory.sessions()
        self.assertEqual((state["client_id"], state["state"]), ("me", "OPEN"))
        self.assertNotIn("secret-1", repr(state))


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
