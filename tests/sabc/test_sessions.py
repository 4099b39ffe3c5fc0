"""How sessions begin and end, sessions that a person types, clients that come back."""

from types import SimpleNamespace
from typing import ClassVar

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, ProtocolViolation, Refused
from twisted_msgproto.sabc import SabcClientFactory, SabcClientService, SabcServer

from .pairs import PEER, Case, Echo, Transport
from .sides import crlf


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
                self.connectedHeaders = {"motd": "hi"}
                return "somebody"

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
            def authorise(self, request):
                self.connectedHeaders = {"a": "b::c"}

        self.server = self.serve(server_class=Bad)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.assertIn(b"403", self.server.transport.value())
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


class Ends(Case):
    server_class = Echo

    def test_a_connection_which_comes_about_while_the_server_stops(self):
        """SA-12: a WebSocket upgrade takes its time."""
        self.serve()
        late = self.factory.buildProtocol(None)
        self.factory.drain()
        late.makeConnection(Transport())
        self.assertTrue(late.transport.disconnecting)
        self.lose(late)

    def test_an_upgrade_that_is_under_way_ends_when_the_server_stops(self):
        """SA-12."""
        self.serve()
        listening = self.factory.webSocketFactory()
        upgrading = listening.buildProtocol(PEER)
        upgrading.makeConnection(Transport(peerAddress=PEER))
        listening.drain()
        self.assertTrue(upgrading.transport.disconnecting)
        self.lose(upgrading)

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


@implementer(IStreamClientEndpoint)
class Endpoint:
    """Connects to the case's server, or refuses while it is told to."""

    def __init__(self, case):
        self.case = case
        self.refusing = False

    def connect(self, factory):
        if self.refusing:
            deferred = Deferred()
            deferred.errback(ConnectionRefusedError())
            return deferred
        case = self.case
        client = factory.buildProtocol(PEER)
        case.client, case.server = client._protocol, case.accept()
        client.makeConnection(Transport(peerAddress=PEER))
        case._sides.append(client)
        case.client_side = client
        return succeed(client)


class Later(SabcServer):
    """Answers when it is told to."""

    def connectionMade(self):
        self.asked = []
        super().connectionMade()

    def requestReceived(self, message):
        self.asked.append((message.body, Deferred()))
        return self.asked[-1][1]


class Reconnecting(Case):
    server_class = Later

    def setUp(self):
        super().setUp()
        self.serve()
        self.lose(self._sides[0])
        self.endpoint = Endpoint(self)
        self.factory_of_clients = SabcClientFactory(
            "me", clock=self.clock, limits={"outstanding-requests": 3}
        )
        self.service = SabcClientService(
            self.endpoint, self.factory_of_clients, retryPolicy=lambda attempt: 1
        )
        self.addCleanup(self.stop)

    def stop(self):
        stopped = self.service.stopService()
        for side in self._sides:
            self.lose(side)
        self.clock.advance(0)
        self.assertEqual(stopped.called, True)

    def tearDown(self):
        self.stop()
        super().tearDown()

    def exchange(self):
        self.pump(self.server, self.client_side)

    def come_back(self):
        self.lose(self.server)
        self.lose(self.client_side)
        self.clock.advance(1)
        self.exchange()

    def start(self):
        self.service.startService()
        self.exchange()

    def test_a_request_on_its_way_fails_unless_it_is_safe(self):
        """SA-16."""
        self.start()
        once, again = self.service.request(b"once"), self.service.request(b"again", safe=True)
        self.exchange()
        self.assertEqual([body for body, _ in self.server.asked], [b"once", b"again"])
        self.come_back()
        self.failureResultOf(once, ConnectionClosed)
        self.assertEqual([body for body, _ in self.server.asked], [b"again"])
        self.server.asked[0][1].callback(b"y")
        self.exchange()
        self.assertEqual(self.successResultOf(again).body, b"y")

    def test_waiting_requests_are_bounded(self):
        """SA-27."""
        waiting = [self.service.request(b"x") for _ in range(3)]
        self.failureResultOf(self.service.request(b"x"), LimitExceeded)
        for asked in waiting:
            asked.cancel()
            self.failureResultOf(asked, CancelledError)
        self.start()
        self.assertEqual(self.server.asked, [])
