"""Logins: passcodes, attempts, what an application decides by itself."""

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.testing import MemoryReactor

from twisted_msgproto.core.errors import Refused
from twisted_msgproto.net.authentication import portal_over
from twisted_msgproto.sabc import SabcServer

from .pairs import PEER, Case, Transport
from .vectors import crlf


class Login(Case):
    def portal(self):
        return portal_over([InMemoryUsernamePasswordDatabaseDontUse(me=b"right")])

    def connect(self, passcode, **options):
        self.server = self.serve(portal=self.portal(), **options)
        self.client = self.join(passcode=passcode)
        standing = self.client.whenEstablished()
        self.pump()
        return standing

    def test_who_knows_the_passcode_gets_a_session(self):
        """SA-08."""
        self.assertIs(self.successResultOf(self.connect("right")), self.client)
        self.assertIs(self.successResultOf(self.client.whenEstablished()), self.client)
        self.assertEqual(self.server.clientId, "me")
        self.assertEqual(self.server.avatar.name, "me")
        self.assertNotIn("right", "\n".join(self.lines))

    def test_who_does_not_is_refused_after_a_second(self):
        """SA-08, SA-27."""
        standing = self.connect("wrong")
        self.clock.advance(0.9)
        self.pump()
        self.assertNoResult(standing)
        self.clock.advance(0.1)
        self.pump()
        error = self.failureResultOf(standing, Refused).value
        self.assertEqual(error.code, "403")
        self.assertEqual(self.factory.counters["rejected"], 1)
        self.failureResultOf(self.client.whenEstablished(), Refused)
        self.assertNotIn("wrong", "\n".join(self.lines))

    def test_behind_a_proxy_failures_count_for_the_address_it_tells(self):
        """NB-05: with ``haproxy:`` endpoints, whose clients would be one address otherwise."""
        self.serve(portal=self.portal())
        reactor = MemoryReactor()
        serverFromString(reactor, "haproxy:tcp:5046").listen(self.factory)
        proxied = reactor.tcpServers[0][1]
        for host in ("198.51.100.1", "2001:db8::1"):
            family = "TCP6" if ":" in host else "TCP4"
            server = proxied.buildProtocol(PEER)
            server.makeConnection(Transport(peerAddress=PEER))
            server.dataReceived(f"PROXY {family} {host} {host} 1 2\r\n".encode())
            server.dataReceived(crlf("CONNECT\nclient-id::me\nclient-passcode::x\n\n"))
            self.assertIn(f"{host}: login as 'me' refused", self.lines[-1])
            self.lose(server.wrappedProtocol)

    def test_five_attempts_are_enough(self):
        """SA-27."""
        self.server = self.serve(portal=self.portal())
        for attempt in range(5):
            self.assertFalse(self.server.transport.closing)
            self.server.dataReceived(crlf("CONNECT\nclient-id::me\nclient-passcode::x\n\n"))
            self.assertEqual(self.server.transport.value(), b"")
            self.clock.advance(1)
            self.assertEqual(
                self.server.transport.value(),
                crlf("ERROR\nerror-code::403\n\nAccess Forbidden\n\n^@"),
                attempt,
            )
            self.server.transport.clear()
        self.assertTrue(self.server.transport.closing)

    def test_a_client_id_is_needed(self):
        """SA-07."""
        self.server = self.serve(portal=self.portal())
        self.server.dataReceived(crlf("CONNECT\nx::y\n\n"))
        self.clock.advance(1)
        self.assertIn(b"403", self.server.transport.value())

    def test_a_second_connect_while_one_is_looked_at(self):
        """SA-27."""
        self.server = self.serve(portal=self.portal())
        octets = crlf("CONNECT\nclient-id::me\nclient-passcode::x\n\n")
        self.server.dataReceived(octets + octets)
        self.assertIn(b"error-code::400", self.server.transport.value())
        self.assertTrue(self.server.transport.closing)
        self.lose(self.server)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_avatar_is_logged_out(self):
        """SA-08."""
        out = []
        self.connect("right")
        self.server._logout = lambda: out.append("me")
        self.lose(self.server)
        self.assertEqual(out, ["me"])
        self.connect("right")

        def failing():
            raise RuntimeError

        self.server._logout = failing
        self.lose(self.server)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_an_application_decides_by_itself(self):
        """SA-08, SA-06: its own headers both ways."""

        class Strict(SabcServer):
            def authorise(self, request):
                if request.client_id != "me":
                    raise Refused("who are you?", 499)
                if request.headers.get("fail"):
                    raise RuntimeError("secret detail")
                return "somebody"

            def connectedHeaders(self):
                return {"motd": "hi"}

        self.pair(server_class=Strict)
        self.assertEqual(self.server.clientId, "somebody")
        self.assertEqual(self.client.connectedHeaders, {"motd": "hi"})
        self.client = self.join(clientId="eve")
        standing = self.client.whenEstablished()
        self.server = self.accept()
        self.pump()
        error = self.failureResultOf(standing, Refused).value
        self.assertEqual(
            (error.code, str(error)), ("499", "the server refused the session: who are you?")
        )
        self.server = self.accept()
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\nfail::1\n\n"))
        self.assertIn(b"403", self.server.transport.value())
        self.assertNotIn(b"secret detail", self.server.transport.value())
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_headers_which_cannot_be_sent_refuse_the_session(self):
        """SA-03."""

        class Bad(SabcServer):
            def connectedHeaders(self):
                return {"a": "b::c"}

        self.server = self.serve(server_class=Bad)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.assertIn(b"403", self.server.transport.value())
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_an_authorisation_which_comes_too_late(self):
        """SA-27."""

        class Slow(SabcServer):
            def authorise(self, request):
                self.asked = Deferred(lambda _: None)
                return self.asked

        self.server = self.serve(server_class=Slow)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.clock.advance(10)
        self.assertIn(b"408", self.server.transport.value())
        asked = self.server.asked
        asked.callback("me")
        self.assertFalse(self.server.established)
        self.server = self.serve(server_class=Slow)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.clock.advance(10)
        self.server.asked.errback(Refused("no"))
