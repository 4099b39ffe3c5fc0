"""Requests and their answers: hooks, Deferreds, errors, and the server asking too."""

from tests.tools.sinks import SafeSink
from twisted_msgproto.core.errors import ConnectionClosed, Refused
from twisted_msgproto.sabc import Response, SabcClient, SabcServer

from .pairs import Case, Echo


class Answers(Case):
    server_class = Echo

    def ask(self, body, **options):
        asked = self.client.request(body, **options)
        self.pump()
        return asked

    def test_a_request_is_answered_with_what_the_hook_returns(self):
        """SA-16."""
        self.pair()
        for body, expected in (
            (b"Hola", b"Hola"),
            (b"none", b""),
            (b"text", "täxt".encode()),
            (b"done", b"done"),
            (b"coroutine", b"from a coroutine"),
            ("ünicode", "ünicode".encode()),
            (b"", b""),
            (bytearray(b"array"), b"array"),
        ):
            self.assertEqual(self.successResultOf(self.ask(body)).body, expected)
        response = self.successResultOf(self.ask(b"response", headers={"x": "y"}))
        self.assertEqual(response, Response(b"body", {"colour": "red"}))
        self.assertEqual(response.text, "body")
        self.assertEqual(self.server.notes[-1].fields, {"x": "y"})

    def test_what_a_hook_sees_of_a_request(self):
        """SA-06, SA-09: public names, no session id."""
        self.pair()
        self.ask(b"Hola", headers={"x": "y"})
        message = self.server.notes[-1]
        self.assertEqual(
            (message.protocol, message.kind, message.client_id, message.message_id, message.peer),
            ("sabc", "request", "me", "1", "192.0.2.7:54321"),
        )
        self.assertEqual(message.session, "sabc-20231114T221320.250000Z-1")
        self.assertEqual((message.fields, message.truncated), ({"x": "y"}, False))
        self.assertEqual(message.received_at, 1_700_000_000_250_000)

    def test_a_failure_is_answered_with_an_error_which_tells_nothing(self):
        """SA-16, SA-23."""
        self.pair()
        for body in (b"raise", b"odd", b"inject", b"odd refusal"):
            error = self.failureResultOf(self.ask(body), Refused).value
            self.assertEqual((str(error), error.code), ("request failed", "500"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        asked = self.ask(b"later")
        self.server.later.errback(RuntimeError("secret detail"))
        self.pump()
        self.failureResultOf(asked, Refused)
        self.flushLoggedErrors(RuntimeError)

    def test_a_hook_may_refuse_with_a_code(self):
        """SA-23."""
        self.pair()
        error = self.failureResultOf(self.ask(b"refuse"), Refused).value
        self.assertEqual((str(error), error.code), ("not today", "409"))

    def test_what_cannot_be_sent_fails_at_once(self):
        """SA-03, SA-06, SA-27."""
        self.pair()
        self.failureResultOf(self.client.request(b"", headers={"a": "b::c"}), ValueError)
        self.failureResultOf(self.client.sendOnly(b"", headers={"msg-id": "1"}), ValueError)
        self.failureResultOf(self.client.request(iter([]), headers={"a": "\n"}), ValueError)
        self.failureResultOf(self.client.sendError(1, "", headers={"a": "\0"}), ValueError)
        self.assertEqual(self.client.transport.value(), b"")
        self.assertRaises(TypeError, self.client.request, 5)

    def test_send_only_messages_reach_their_hook(self):
        """SA-17."""
        self.pair()
        self.successResultOf(self.client.sendOnly("Hola", headers={"x": "y"}))
        self.successResultOf(self.client.sendOnly(b"raise"))
        self.pump()
        self.assertEqual([note.kind for note in self.server.notes[1:]], ["send-only"] * 2)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.client.sendOnly(b"later")
        self.pump()
        self.server.later.errback(RuntimeError("no"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_errors_reach_their_hook(self):
        """SA-24."""
        self.pair()
        self.client.sendError("E1", "it rains", headers={"x": "y"})
        self.pump()
        error = self.server.notes[-1]
        self.assertNotIn("session-id", error.headers)
        self.assertEqual((error.code, error.body, error.headers["x"]), ("E1", b"it rains", "y"))
        self.assertTrue(self.server.established)

    def test_a_failing_error_hook_harms_nobody(self):
        """SA-24."""

        class Failing(SabcServer):
            def errorReceived(self, error):
                raise RuntimeError

        self.pair(server_class=Failing)
        self.client.sendError(1)
        self.pump()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertTrue(self.server.established)

    def test_the_server_asks_too(self):
        """SA-16: a hook which asks back before it answers."""

        class Asking(SabcServer):
            async def requestReceived(self, message):
                answer = await self.request(b"who?")
                return b"hello " + answer.body

        class Named(SabcClient):
            def requestReceived(self, message):
                return b"Bob"

        self.server = self.serve(server_class=Asking)
        self.client = self.join(client_class=Named)
        self.pump()
        self.assertEqual(self.successResultOf(self.ask(b"x")).body, b"hello Bob")
        # also while the session drains
        asked = self.client.request(b"x")
        left = self.client.disconnect()
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"hello Bob")
        self.successResultOf(left)


class Push(Case):
    """The server's side speaks first."""

    def test_the_application_sends_to_a_client_by_its_id(self):
        """SA-16: to the newest of its sessions."""

        class Listening(SabcClient):
            def requestReceived(self, message):
                return b"got " + message.body

        self.client_class = Listening
        self.pair()
        pushed = self.factory.push("me", b"news")
        self.pump()
        self.assertEqual(self.successResultOf(pushed).body, b"got news")
        first = self.server
        second, client = self.accept(), self.join()
        self.pump(second, client)
        self.assertEqual(self.factory.sessionsOf("me"), [first, second])
        self.factory.push("me", b"more", timeout=5).addErrback(lambda failure: None)
        self.assertEqual(first.transport.value(), b"")
        self.assertIn(b"more", second.transport.value())
        self.lose(second)
        self.lose(client)
        self.failureResultOf(self.factory.push("nobody"), ConnectionClosed)

    def test_a_client_puts_what_comes_into_its_own_sink(self):
        """SA-16."""
        self.pair()
        self.client.factory.sink = SafeSink()
        pushed = self.factory.push("me", b"news")
        self.pump()
        self.assertEqual(self.successResultOf(pushed).body, b"")
        self.assertEqual(self.client.factory.sink.messages[0].body, b"news")
