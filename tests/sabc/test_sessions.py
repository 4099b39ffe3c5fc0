"""How sessions begin and end, sessions that a person types, clients that come back."""

import json
from types import SimpleNamespace
from typing import ClassVar

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import CancelledError, Deferred
from zope.interface import implementer

from tests.contract.cases import Endpoint, Sabc, no_chance
from tests.contract.sending import ENDPOINTS, played
from tests.contract.test_send import Received
from tests.contract.world import ContractCase
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    Refused,
)
from twisted_msgproto.net.clients.command_types import SendOptions
from twisted_msgproto.sabc import Response, SabcClientFactory, SabcClientService, SabcServer

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
        """SA-03: who was let in twice is logged out twice."""

        class Bad(SabcServer):
            def authorise(self, request):
                self.connectedHeaders = {"a": "b::c"}
                return super().authorise(request)

        Realm.out, Realm.fails = [], False
        self.server = self.serve(server_class=Bad, portal=self.portal())
        for _ in range(2):
            self.server.dataReceived(crlf("CONNECT\nclient-id::me\nclient-passcode::right\n\n"))
        self.assertEqual(self.server.transport.value().count(b"403"), 2)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        self.lose(self.server)
        self.assertEqual(Realm.out, [b"me", b"me"])


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


class Reconnecting(ContractCase):
    case = Sabc()

    def coming_back(self, hook):
        """A world whose server has this hook, and a client of it that comes back."""
        world = self.world(hooks={"message": hook})
        factory = SabcClientFactory("me", clock=world.clock, limits={"outstanding-requests": 3})
        service = SabcClientService(Endpoint(self.case, world), factory, random=no_chance)
        self.addCleanup(lambda: self.soon(world, service.stopService(), 5))
        return world, service

    def test_a_request_on_its_way_fails_unless_it_is_safe(self):
        """SA-16."""
        asked = []

        def later(session, message):
            asked.append((message.body, Deferred()))
            return asked[-1][1]

        world, service = self.coming_back(later)
        service.startService()
        world.wait(1)
        once, again = service.request(b"once"), service.request(b"again", safe=True)
        self.failureResultOf(service.request(iter([b"x"]), safe=True), ValueError)
        world.pump()
        self.case.away(world)
        self.failureResultOf(once, ConnectionClosed)
        self.case.back(world)
        world.wait(5)
        self.assertEqual([body for body, _ in asked], [b"once", b"again", b"again"])
        asked[-1][1].callback(b"y")
        world.pump()
        self.assertEqual(self.successResultOf(again).body, b"y")

    def test_waiting_requests_are_bounded(self):
        """SA-27."""
        asked = []
        world, service = self.coming_back(lambda session, message: asked.append(message))
        waiting = [service.request(b"x") for _ in range(3)]
        self.failureResultOf(service.request(b"x"), LimitExceeded)
        for one in waiting:
            one.cancel()
            self.failureResultOf(one, CancelledError)
        service.startService()
        world.wait(1)
        self.assertEqual(asked, [])

    def test_a_call_shows_its_answer_as_json_where_it_is_some(self):
        answers = {
            b"binary": (
                Response(b"\xff\x00", {"a": "b"}),
                {"fields": {"a": "b"}, "body_base64": "/wA="},
            ),
            b"text": ("grüße", {"fields": {}, "body": "grüße"}),
            b"JSON": (b"[1]", {"fields": {}, "body": [1]}),
            b"twice": (b'{"a":1,"a":2}', {"fields": {}, "body": '{"a":1,"a":2}'}),
        }
        world = self.world(hooks={"message": lambda session, message: answers[message.body][0]})
        module = played(self, world, None, "192.0.2.7")

        def called(*words):
            options = SendOptions(endpoint=ENDPOINTS["sabc"])
            done = Deferred.fromCoroutine(module.call(world.clock, options, words[0], words[1:]))
            world.wait(5)
            return done

        for body, (_, shown) in answers.items():
            text, done = self.successResultOf(called(body.decode()))
            self.assertEqual((text, done), (json.dumps(shown, ensure_ascii=False), True))
        self.failureResultOf(called("text", "more"), ConfigurationError)

    def test_recv_shows_requests_and_messages_alike_until_the_server_ends_it(self):
        """SA-13, SA-17."""
        world = self.world()
        received = Received(self, world)
        (peer,) = world.peers
        self.successResultOf(peer.server.sendOnly(b"quiet"))
        asked = peer.server.request(b"asked")
        world.wait(1)
        self.successResultOf(asked)
        self.assertEqual([message.body for message in received.shown], [b"quiet", b"asked"])
        peer.server.loseSession()
        world.wait(1)
        self.successResultOf(received.done)
