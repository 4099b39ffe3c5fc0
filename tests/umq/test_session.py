"""A session's beginning and end on Twisted: authorisation, faults, coming back."""

from types import SimpleNamespace

from twisted.cred.checkers import (
    ANONYMOUS,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent, globalLogPublisher
from zope.interface import implementer

from tests.umq.pairs import Echo, Pairs, coming_back, streaming
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    Refused,
)
from twisted_msgproto.umq import Reply, SessionRefused, UmqClient


@implementer(IRealm)
class Realm:
    """Whoever is accepted has the name that the checker returned."""

    def requestAvatar(self, avatarId, mind, *interfaces):
        name = None if avatarId is ANONYMOUS else avatarId.decode()
        return interfaces[0], SimpleNamespace(name=name), lambda: None


class HandShake(Pairs):
    def established(self, both):
        return both.client.whenEstablished()

    def test_the_avatar_is_logged_out(self):
        """UM-06."""
        out = []

        class Leaving(Realm):
            def requestAvatar(self, *arguments):
                interface, avatar, _ = super().requestAvatar(*arguments)
                return interface, avatar, lambda: out.append(avatar.name) or 1 / 0

        checker = InMemoryUsernamePasswordDatabaseDontUse(alice=b"secret")
        both = self.pair(portal=Portal(Leaving(), [checker]), hello="alice:secret")
        self.successResultOf(self.established(both))
        self.assertEqual((both.server.avatar.name, out), ("alice", []))
        both.close()
        self.assertEqual(out, ["alice"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_authorisation_may_take_its_time_and_nothing_comes_before_it(self):
        """UM-07; the lesson of frames before authentication."""

        class Slow(Echo):
            def authorise(self, hello):
                self.decision = Deferred()
                return self.decision

            def welcome(self, hello):
                return f"welcome, {hello.payload}"

        class Eager(UmqClient):
            def welcomed(self, welcome):
                self.heard = welcome.payload

        both = self.pair(Slow, client=Eager, hello="me")
        self.failureResultOf(both.client.call("early"), ConnectionClosed)
        self.assertNoResult(self.established(both))
        both.server.decision.callback("me myself")
        both.pump()
        self.successResultOf(self.established(both))
        self.assertEqual((both.client.heard, both.server.clientId), ("welcome, me", "me myself"))
        both = self.pair(Slow, client_limits={"hello-seconds": 20})
        both.advance(10)
        self.assertEqual(self.failureResultOf(self.established(both), SessionRefused).value.code, 8)
        self.assertTrue(both.server.decision.called, "nobody decides any more")
        counters = both.server_factory.counters
        self.assertEqual((counters["authorisations_timed_out"], counters["faults"]), (1, 0))

    def test_refusals_carry_their_code_and_errors_say_nothing(self):
        """UM-08."""
        for error, code, text in (
            (Refused("try later", 8), 8, "8 try later"),
            (Refused("no"), 1, "1 no"),
            (RuntimeError("a secret"), 8, "8 temporarily unavailable"),
        ):

            def authorise(self, hello, error=error):
                raise error

            both = self.pair(type("Refusing", (Echo,), {"authorise": authorise}))
            failure = self.failureResultOf(self.established(both), SessionRefused)
            self.assertEqual((failure.value.code, str(failure.value)), (code, text))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_welcome_which_fails_is_said_to_the_client(self):
        """UM-08: a bug of ours leaves nobody waiting."""

        def welcome(self, hello):
            raise RuntimeError("a bug")

        both = self.pair(type("Broken", (Echo,), {"welcome": welcome}))
        failure = self.failureResultOf(self.established(both), SessionRefused)
        self.assertEqual(failure.value.code, 8)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_what_stands_before_the_session_is_not_logged(self):
        """A mistyped hello may hold a password."""
        lines = []
        globalLogPublisher.addObserver(lines.append)
        self.addCleanup(globalLogPublisher.removeObserver, lines.append)

        both = self.pair(connect=False)
        both.mute()
        both.raw("h1:alice:secret")
        both.listen()
        both.pump()
        self.failureResultOf(self.established(both), SessionRefused)
        told = [formatEvent(line) for line in lines if line["log_level"] >= LogLevel.warn]
        self.assertIn("closed with F 3: ", told[0])
        self.assertNotIn("secret", " ".join(told))
        self.assertNotIn("73 65 63 72 65 74", " ".join(told))

    def test_the_client_may_refuse_the_server(self):
        """UM-07: authorisation of W; nothing of the server counts before."""

        class Wary(UmqClient):
            answered = 0

            def welcomed(self, welcome):
                self.decision = Deferred()
                return self.decision

            def requestReceived(self, message):
                self.answered += 1

        class Calling(Echo):
            def sessionEstablished(self):
                self.answer = self.call("who are you?")

        both = self.pair(Calling, client=Wary)
        self.assertNoResult(self.established(both))
        self.assertEqual(both.client.answered, 0)
        both.client.decision.callback(None)
        both.pump()
        self.successResultOf(self.established(both))
        self.successResultOf(both.server.answer)
        for error, logged in ((Refused("not you"), 0), (RuntimeError("a bug"), 1)):
            both = self.pair(Calling, client=Wary)
            both.client.decision.errback(error)
            both.pump()
            self.failureResultOf(self.established(both), Refused)
            self.failureResultOf(both.server.answer, SessionRefused)
            self.assertEqual(both.client.answered, 0)
            self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), logged)
        for no in (False, succeed(False)):
            said = {"welcomed": lambda client, welcome, no=no: no}
            both = self.pair(Calling, client=type("No", (UmqClient,), said))
            self.failureResultOf(self.established(both), Refused)
            self.failureResultOf(both.server.answer, SessionRefused)
            self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        both = self.pair(Calling, client=Wary)
        both.server.answer.addErrback(lambda failure: None)
        both.cut()
        both.client.decision.callback(None)
        self.failureResultOf(self.established(both), ConnectionClosed)

    def test_before_hello_a_message_is_as_large_as_hello_may_be__RD_45(self):
        """UM-08: an H of 64 KiB; more is not even buffered, and answered with ``F``."""
        for characters in (65_540, 70_000, 1_000_000):
            both = self.pair(connect=False, hello="x" * characters)
            both.pump()
            error = self.failureResultOf(self.established(both), SessionRefused).value
            self.assertEqual(error.code, 3)
            self.assertRegex(str(error), "^3 H.* is too long$")
            self.assertEqual(both.server.seen, [])

    def test_a_hello_that_cannot_be_sent_is_told_at_once__RD_03(self):
        for name, value in (("hello", "\ud83c"), ("hello", 1), ("helloAttachments", ["text"])):
            kind = type("Odd", (UmqClient,), {name: lambda self, value=value: value})
            both = self.pair(client=kind)
            self.failureResultOf(self.established(both), ValueError, TypeError)
            self.assertEqual(len(self.flushLoggedErrors(ValueError, TypeError)), 1)

    def test_the_last_word_can_always_be_said__RD_03(self):
        for text, heard in (("\ud83c", "?"), ("x" * (2 << 20), "x" * 100 + "…")):
            both = self.pair()
            asked = both.client.call("later")
            both.pump()
            both.server.closeSession(8, text)
            both.pump()
            said = str(self.failureResultOf(asked, SessionRefused).value)
            self.assertTrue(said.endswith(heard), said)
        both = self.pair(hello="x" * 60_000)
        self.successResultOf(self.established(both))
        both.client.call("x" * 100_000)
        both.pump()
        self.assertEqual(len(both.server.seen[-1].body), 100_000)


class Faults(Pairs):
    def test_a_fault_fails_everything_on_both_sides_and_closes(self):
        """UM-08, UM-18, UM-19: F with its code, close 1002, and all that was pending fails."""
        both = self.pair(methods=streaming())
        ours = both.client.call("later")
        theirs = both.server.call("x", [Deferred()])
        topic = both.client.subscribe(lambda id: f"topic {id}")
        both.pump()
        stream = both.client.call('["stream"]', [Deferred()])
        both.pump()
        waiting = both.server.stream.next()
        self.successResultOf(stream)
        both.raw("nonsense")
        self.assertEqual(self.failureResultOf(ours, SessionRefused).value.code, 3)
        self.failureResultOf(theirs, ProtocolViolation)
        self.failureResultOf(waiting, ConnectionClosed)
        self.assertTrue(topic.ended)
        self.assertEqual(both.server.reason, ["lost"])
        self.assertTrue(both.ends["server"].gone and both.ends["client"].gone)
        self.assertEqual(both.ends["client"].protocol.remoteCloseCode, 1002)
        self.assertEqual(both.server.seen[-1], "lost")
        self.assertEqual(both.server_factory.counters["fault:id"], 1)
        self.assertEqual(both.client_factory.counters["fatals"], 1)
        both.server.later[0].callback("too late")

    def test_a_message_above_its_limit_is_told_and_closes_with_1009(self):
        """UM-19, UM-20"""
        both = self.pair(limits={"websocket-message-bytes": 1000})
        pending = both.client.call("later")
        both.pump()
        both.raw("S:a=b", "C9:" + "x" * 1000, "C10:y")
        self.assertEqual(self.failureResultOf(pending, SessionRefused).value.code, 3)
        self.assertEqual(both.ends["client"].protocol.remoteCloseCode, 1009)
        self.assertEqual(both.server_factory.counters["fault:websocket-message-bytes"], 1)
        self.assertEqual(both.server.seen, ["established", ("a", "b"), "lost"])


class Reconnecting(Pairs):
    def build(self, **limits):
        clock, pairs = Clock(), []
        return clock, pairs, coming_back(clock, pairs, **limits)[1]

    def test_a_service_has_the_limits_of_its_client(self):
        """UM-20: for what waits for a session, and for callbacks."""
        service = self.build(**{"own-calls": 2, "callbacks": 2})[2]
        waiting = [service.call("x") for _ in range(2)]
        for _ in range(2):
            service.registerCallback(lambda request: "")
        self.failureResultOf(service.call("x"), LimitExceeded)
        self.assertRaises(LimitExceeded, service.registerCallback, lambda request: "")
        self.assertRaises(TypeError, service.registerCallback, "no function")
        service.abort()
        for call in waiting:
            self.failureResultOf(call, ConnectionClosed)

    def test_a_service_has_the_verbs_of_its_client__RD_25(self):
        """UM-11, UM-15, UM-17: callbacks have one id in all sessions."""
        clock, pairs, service = self.build()
        first = service.registerCallback(lambda request: "first")
        second = service.registerCallback(lambda request: f"second {request.payload}")
        self.assertEqual(dict(service.attributes), {})
        service.unregisterCallback(first)
        service.startService()
        third = service.registerCallback(lambda request: Reply("third", [b"3"]))
        self.assertEqual([first, second, third], ["1", "2", "3"])
        for number in range(2):
            both = pairs[number]
            both.pump()
            asked = [both.server.callback(id, "x") for id in (first, second, third)]
            own = service.session.registerCallback(lambda request: "own")
            self.assertNotIn(own, (second, third))
            told = both.server.registerCallback(lambda request: request.payload)
            heard = service.callback(told, "heard")
            both.server.setAttribute("a", "1")
            both.pump()
            self.assertEqual(self.failureResultOf(asked[0]).value.code, 2)
            answers = [self.successResultOf(one) for one in asked[1:]]
            self.assertEqual([one.payload for one in answers], ["second x", "third"])
            self.assertEqual([[*one.attachments] for one in answers], [[], [b"3"]])
            self.assertEqual(self.successResultOf(heard).payload, "heard")
            self.assertEqual(dict(service.attributes), {"a": "1"})
            called, counted = service.remote.hi(), service.call("count", iter([b"1"]))
            both.pump()
            self.assertEqual(self.successResultOf(called), ["hi"])
            self.assertEqual(self.successResultOf(counted).payload, "[b'1']")
            if not number:
                both.cut()
                clock.advance(2)
        service.unregisterCallback(third)
        refused = both.server.callback(third, "x")
        both.pump()
        self.assertEqual(self.failureResultOf(refused).value.code, 2)
        service.abort()
        pairs[-1].pump()
        self.assertIsNone(service.session)
        self.failureResultOf(service.call("x"), ConnectionClosed)

    def test_what_no_session_could_set_is_refused_at_once_and_spoils_no_session(self):
        """UM-15: also where none stands yet; the others are renewed as ever."""
        _, pairs, service = self.build()
        service.setAttribute("good", "1")
        for wrong in ("x" * (2 << 20), "\ud83c"):
            self.failureResultOf(service.setAttribute("bad", wrong), ValueError)
        for wrong in (5, None, b"x"):
            self.assertRaises(TypeError, service.setAttribute, "bad", wrong)
            self.assertRaises(TypeError, service.setAttribute, "bad", "x", ["text"])
        service.setAttribute("last", "2")
        service.startService()
        pairs[0].pump()
        self.assertEqual(dict(pairs[0].server.attributes), {"good": "1", "last": "2"})
        service.abort()
        pairs[0].close()

    def test_what_may_be_repeated_has_its_attachments_at_once(self):
        """UM-09: a Deferred is sent once only."""
        service = self.build()[2]
        self.failureResultOf(service.call("hi", [succeed(b"x")], safe=True), ValueError)

    def test_subscriptions_and_attributes_come_back(self):
        """The issue, 4."""
        clock, pairs, service = self.build()
        service.startService()
        updates = []
        renewed = service.subscribe(lambda id: f"topic {id}", lambda u: updates.append(u.payload))
        refused = service.subscribe(lambda id: "refuse", updates.append)
        service.setAttribute("a", "1")
        service.setAttribute("b", "2")
        self.failureResultOf(service.setAttribute("x=", ""), ValueError)
        pairs[0].pump()
        service.unsetAttribute("b")
        service.setAttribute("c", "3")
        pairs[0].pump()
        self.assertEqual(dict(pairs[0].server.attributes), {"a": "1", "c": "3"})
        pairs[0].server.topic.publish("first")
        pairs[0].pump()
        pairs[0].cut()
        clock.advance(1.1)
        pairs[1].pump()
        self.assertEqual(dict(pairs[1].server.attributes), {"a": "1", "c": "3"})
        pairs[1].server.topic.publish("second")
        pairs[1].pump()
        self.assertEqual(updates, ["first", "second"])
        renewed.end()
        refused.end()
        pairs[1].pump()
        self.assertEqual(pairs[1].server.reason, ["unsubscribed"])
        stopped = service.stopService()
        pairs[1].pump()
        self.successResultOf(stopped)
        pairs[1].close()
