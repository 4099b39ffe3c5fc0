"""Logins: passcodes, attempts, what an application decides by itself."""

from types import SimpleNamespace
from typing import ClassVar

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.portal import IRealm, Portal
from twisted.internet.endpoints import serverFromString
from twisted.internet.testing import MemoryReactor
from zope.interface import implementer

from twisted_msgproto.core.errors import Refused
from twisted_msgproto.sabc import SabcServer

from .pairs import PEER, Case, Transport
from .vectors import crlf


@implementer(IRealm)
class Realm:
    """Logs in and out; the latter may fail."""

    out: ClassVar[list[bytes]] = []
    fails = False

    def requestAvatar(self, avatarId, mind, *interfaces):
        avatar = SimpleNamespace(name=avatarId.decode())
        return interfaces[0], avatar, lambda: self.logout(avatarId)

    def logout(self, name):
        self.out.append(name)
        if self.fails:
            raise RuntimeError


class Login(Case):
    def portal(self):
        return Portal(Realm(), [InMemoryUsernamePasswordDatabaseDontUse(me=b"right")])

    def test_who_knows_the_passcode_gets_a_session_and_is_logged_out_when_it_ends(self):
        """SA-08: a log-out that fails is logged."""
        for fails in (False, True):
            Realm.out, Realm.fails = [], fails
            self.server = self.serve(portal=self.portal())
            self.client = self.join(passcode="right")
            standing = self.client.whenEstablished()
            self.pump()
            self.assertIs(self.successResultOf(standing), self.client)
            self.assertEqual((self.server.clientId, self.server.avatar.name), ("me", "me"))
            self.assertNotIn("right", "\n".join(self.lines))
            self.lose(self.server)
            self.assertEqual(Realm.out, [b"me"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

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
