"""How sessions end: in order, at once, in time, by a fault."""

from twisted_msgproto.core.errors import ConnectionClosed, ProtocolViolation, Refused, TimedOut

from .pairs import Case, Echo, Transport


class Ends(Case):
    server_class = Echo

    def test_a_client_leaves_in_order(self):
        """SA-12."""
        self.pair()
        asked = self.client.request(b"later")
        left = self.client.disconnect()
        again = self.client.disconnect()
        self.pump()
        self.assertNoResult(left)
        self.server.later.callback(b"answered")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"answered")
        self.successResultOf(left)
        self.successResultOf(again)
        self.successResultOf(self.client.disconnect())
        self.assertEqual(self.server.notes[-1], "lost")

    def test_the_drain_is_bounded(self):
        """SA-12."""
        self.pair()
        asked = self.client.request(b"later")
        self.client.disconnect()
        self.pump()
        self.clock.advance(30)
        self.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(self.factory.counters["ended:DrainTimedOut"], 1)

    def test_a_server_which_ignores_disconnect_is_left_in_time(self):
        """HO-05: every end has a deadline, the client's too."""
        self.pair()
        asked = self.client.request(b"later")
        left = self.client.disconnect()
        self.clock.advance(29)  # nothing reaches the server, and nothing comes back
        self.assertNoResult(left)
        self.clock.advance(1)
        self.assertTrue(self.client.machine.finished)
        self.pump()
        self.successResultOf(left)
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(self.client.factory.counters["ended:DrainTimedOut"], 1)

    def test_a_server_which_owes_nothing_has_less_time_to_close(self):
        """HO-05: whoever has all its answers does not wait for them."""
        self.pair()
        left = self.client.disconnect()
        self.clock.advance(3)
        self.assertNoResult(left)
        self.clock.advance(1)
        self.pump()
        self.successResultOf(left)

    def test_leaving_before_the_session_stands(self):
        self.server = self.serve()
        self.client = self.join()
        left = self.client.disconnect()
        self.pump()
        self.successResultOf(left)

    def test_a_client_leaves_at_once(self):
        """SA-13."""
        self.pair()
        asked = self.client.request(b"later")
        self.client.loseSession()
        self.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(self.server.notes[-1], "lost")
        self.assertEqual(self.factory.counters["ended:DisconnectingReceived"], 1)
        self.client.loseSession()

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

    def test_no_connect_in_time(self):
        """SA-27."""
        self.server = self.serve()
        self.clock.advance(10)
        self.assertIn(b"error-code::408", self.server.transport.value())
        self.assertTrue(self.server.transport.closing)
        self.assertEqual(self.factory.counters["fault:connect-seconds"], 1)

    def test_no_answer_to_connect_in_time(self):
        """SA-27."""
        self.client = self.join()
        standing = self.client.whenEstablished()
        self.clock.advance(10)
        self.assertTrue(self.client.transport.closing)
        self.lose(self.client)
        self.failureResultOf(standing, TimedOut)
        self.assertEqual(self.client.factory.counters["faults"], 1)

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
        self.server.received([self.client.transport.value()])
        self.assertEqual(self.server.notes, notes)

    def test_a_snapshot_has_no_secrets(self):
        """SA-09, SA-10."""
        self.pair()
        (state,) = self.factory.sessions()
        self.assertEqual((state["client_id"], state["state"]), ("me", "OPEN"))
        self.assertNotIn("secret-1", repr(state))
