"""HO-08: subscriptions say that they ended, and why; nothing of them is lost by a time-out."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, ClassVar

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.micromsg2.cases import PEER, Case
from tests.micromsg2.streams import (
    Command,
    ack,
    encode_error,
    handshake,
    message,
    offers,
)
from tests.micromsg2.test_kept import grown
from twisted_msgproto.core.errors import ConnectionClosed, Refused
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    Proposal,
)

REFUSALS = {
    "bad-filter": "bad-filter: topic/a: no such type",
    "limit-exceeded": "limit-exceeded: topic/a: subscriptions allows 2",
    "unknown-command": "unknown-command: subscribe",
}


class Telling(MicroMsg2Client):
    """Notes what its hooks are told."""

    def connectionMade(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.hooked: list[bytes] = []
        super().connectionMade()

    def subscriptionEnded(self, subscription: Any, reason: str) -> None:
        self.told.append((subscription.destination, reason))

    def messageReceived(self, message: Any) -> None:
        self.hooked.append(message.body)

    def sessionLost(self, reason: Failure) -> None:
        self.why = reason.getErrorMessage()


def taking(subscription: Any) -> tuple[list[bytes], Deferred[None]]:
    """All messages of a subscription, as a list which grows, and the end of the iteration."""
    taken: list[bytes] = []

    async def take() -> None:
        async for one in subscription:
            taken.append(one.body)

    return taken, Deferred.fromCoroutine(take())


class Subscribed(Case):
    def subscribed(
        self, name: str = "topic/a", kind: type[MicroMsg2Client] = Telling, **options: Any
    ) -> tuple[Any, Any, Any]:
        client, transport = self.client(kind, extensions="ack;pub-sub", **options)
        subscription = self.successResultOf(client.subscribe(name))
        transport.clear()
        return client, transport, subscription

    def arrive(self, client: Any, first: int, *bodies: bytes, name: str = "topic/a") -> None:
        for number, body in enumerate(bodies, first):
            client.dataReceived(message(number, body, name))


class Ends(Subscribed):
    def check(self, client: Any, subscription: Any, ended: Any, reason: str) -> None:
        self.assertEqual(self.successResultOf(ended), reason)
        self.assertEqual(self.successResultOf(subscription.whenEnded()), reason)
        self.assertEqual(subscription.reason, reason)
        self.assertTrue(subscription.ended)
        self.assertEqual(client.told, [(subscription.destination, reason)])
        self.assertEqual(client.subscriptions, {})

    def test_we_end_it__HO_08(self) -> None:
        client, transport, subscription = self.subscribed()
        self.assertIs(self.successResultOf(client.subscribe("topic/a", "n>N1")), subscription)
        self.assertEqual(str(subscription.filter), "n>N1")
        transport.clear()
        ended = subscription.whenEnded()
        self.assertNoResult(ended)
        self.assertEqual(client.subscriptions, {"topic/a": subscription})
        self.successResultOf(subscription.unsubscribe())
        self.check(client, subscription, ended, "unsubscribed")
        self.assertIsNone(subscription.failure)
        self.assertEqual([frame.name for frame in self.frames(transport)], ["unsubscribe"])
        self.successResultOf(subscription.unsubscribe())
        self.assertEqual(transport.value(), b"")  # it has ended already

    def test_the_server_refuses_it__HO_08(self) -> None:
        for code, text in REFUSALS.items():
            client, _, subscription = self.subscribed()
            ended = subscription.whenEnded()
            client.dataReceived(encode_error(text))
            self.check(client, subscription, ended, "refused")
            self.assertIsInstance(subscription.failure, Refused)
            self.assertEqual(subscription.failure.code, code)
            self.lose(client)

    def test_an_error_about_something_else_ends_nothing__HO_08(self) -> None:
        client, _, subscription = self.subscribed()
        for text in ("bad-filter: topic/ab: no", "refused: topic/a: x", "unknown-command: mark"):
            client.dataReceived(encode_error(text))
        self.assertIsNone(subscription.reason)

    def test_the_connection_ends_and_the_failure_names_what_the_server_said__HO_08(self) -> None:
        client, _, subscription = self.subscribed()
        ended = subscription.whenEnded()
        client.dataReceived(encode_error("slow-consumer: too many messages wait"))
        self.lose(client)
        self.check(client, subscription, ended, "lost")
        self.assertIsInstance(subscription.failure, ConnectionClosed)
        self.assertIn("slow-consumer", str(subscription.failure))
        self.assertEqual(client.why, str(subscription.failure))

    def test_an_error_before_our_own_end_is_not_its_reason(self) -> None:
        client, _, _ = self.subscribed()
        client.dataReceived(encode_error("unknown-command: mark"))
        client.close()
        self.lose(client)
        self.assertEqual(client.why, "Connection was closed cleanly.")

    def test_our_server_refuses_so_that_a_client_knows_which__HO_08(self) -> None:
        server, one = self.connect(self.server_factory(limits={"subscriptions": 1}), "pub-sub")
        client, two = self.client(Telling, extensions="pub-sub")
        first = self.successResultOf(client.subscribe("topic/a"))
        second = self.successResultOf(client.subscribe("b" * 255))
        server.dataReceived(two.value())
        client.dataReceived(one.value())
        self.assertEqual((first.reason, second.reason), (None, "refused"))


class Iteration(Subscribed):
    def test_messages_come_to_the_hook_until_somebody_iterates__HO_08(self) -> None:
        client, _, subscription = self.subscribed()
        self.arrive(client, 1, b"a")
        taken, end = taking(subscription)
        self.arrive(client, 2, b"b")
        self.arrive(client, 3, b"c", name="topic/b")
        self.assertEqual((client.hooked, taken), ([b"a", b"c"], [b"b"]))
        subscription.unsubscribe()
        self.assertIsNone(self.successResultOf(end))

    def test_where_nobody_else_hears_messages_wait_for_the_iteration__HO_08(self) -> None:
        """They were acknowledged, and gone."""
        client, transport, subscription = self.subscribed("q", MicroMsg2Client)
        self.arrive(client, 1, b"a", b"b", name="q")
        self.assertEqual(transport.value(), b"")
        taken, end = taking(subscription)
        self.assertEqual(taken, [b"a", b"b"])
        self.assertIn(ack(2), transport.value())
        self.lose(client)
        self.failureResultOf(end, ConnectionClosed)

    def test_what_nobody_took_from_a_queue_stays_with_the_server__HO_08(self) -> None:
        client, transport, subscription = self.subscribed("q")
        _, end = taking(subscription)
        end.cancel()
        self.failureResultOf(end, CancelledError)
        self.arrive(client, 1, b"a", b"b", name="q")
        sent = client.send("elsewhere", b"x")
        client.dataReceived(ack(1))
        self.successResultOf(sent)
        self.assertFalse(transport.disconnecting)  # nobody has closed it
        subscription.unsubscribe()
        transport.clear()
        self.arrive(client, 3, b"c", name="q")  # was on its way
        closed = client.close()
        self.assertTrue(transport.disconnecting)
        self.assertEqual(transport.value(), b"")
        self.lose(client)
        self.successResultOf(closed)
        taken, end = taking(subscription)
        self.assertIsNone(self.successResultOf(end))
        self.assertEqual(taken, [b"a", b"b", b"c"])

    def test_what_nobody_took_from_a_topic_holds_up_no_acknowledgement__HO_08(self) -> None:
        client, transport, subscription = self.subscribed()
        _, end = taking(subscription)
        end.cancel()
        self.failureResultOf(end, CancelledError)
        self.arrive(client, 1, b"a")
        subscription.unsubscribe()
        self.arrive(client, 2, b"b")
        self.assertIn(ack(2), transport.value())
        self.assertEqual(client.hooked, [b"b"])
        again = self.successResultOf(client.subscribe("topic/a"))
        _, end = taking(again)
        end.cancel()
        self.failureResultOf(end, CancelledError)
        self.arrive(client, 3, b"c")
        taken, end = taking(subscription)
        self.assertEqual(taken, [b"a"])
        self.assertIsNone(self.successResultOf(end))
        self.assertNotIn(ack(3), transport.value())  # nobody has taken it
        taken, end = taking(again)
        self.assertEqual(taken, [b"c"])
        self.assertIn(ack(3), transport.value())
        self.lose(client)
        self.failureResultOf(end, ConnectionClosed)

    def test_a_client_keeps_little_of_topics_that_ended_long_ago__NB_02(self) -> None:
        """NB-02: 2.5 KB of each, as where each answer has a topic of its own."""
        client, transport, _ = self.subscribed()
        with grown() as kept:
            for number in range(1, 151):
                topic = f"topic/{number}"
                subscription = self.successResultOf(client.subscribe(topic))
                taken, end = taking(subscription)
                self.arrive(client, number, b"answer", name=topic)
                self.successResultOf(subscription.unsubscribe())
                self.successResultOf(end)
                self.assertEqual(taken, [b"answer"])
                transport.clear()
            client.told.clear()
            gc.collect()
            self.assertLess(kept(), 225_000)


class Renewing(Case):
    limits: Mapping[str, object] = {}

    def setUp(self) -> None:
        super().setUp()
        self.sessions: list[Any] = []
        test = self

        class Endpoint:
            def connect(self, factory: Any) -> Any:
                proxy = factory.buildProtocol(PEER)
                transport = StringTransport(peerAddress=PEER)
                proxy.makeConnection(transport)
                proxy.dataReceived(handshake())
                transport.clear()
                test.sessions.append((proxy, transport))
                return succeed(proxy)

        factory = MicroMsg2ClientFactory(
            proposal=Proposal(required=offers("ack;pub-sub")),
            limits=self.limits,
            clock=self.clock,
        )
        factory.protocol = Telling
        self.service: Any = MicroMsg2ClientService(
            Endpoint(), factory, retryPolicy=lambda attempt: 1.0
        )
        self.service.startService()
        self.renewed = self.successResultOf(self.service.subscribe("topic/a", "n>=N2"))

    def tearDown(self) -> None:
        stopped = self.service.stopService()
        self.lose(self.sessions[-1][0])
        self.successResultOf(stopped)

    def come_back(self) -> None:
        self.sessions[-1][0].connectionLost(Failure(ConnectionDone()))
        self.failureResultOf(self.service.subscribe("a", "n<=Tx"), ValueError)
        self.clock.advance(1.1)

    def arrive(self, number: int, body: bytes, properties: bytes = b"") -> None:
        self.sessions[-1][0].dataReceived(message(number, body, "topic/a", properties))

    def asked(self) -> list[tuple[str, str | None]]:
        frames = self.frames(self.sessions[-1][1])
        return [
            (frame.name, frame.parameters.get("filter"))
            for frame in frames
            if isinstance(frame, Command)
        ]


class Renewal(Renewing):
    def test_a_refusal_is_told_and_the_next_session_asks_anew__HO_08(self) -> None:
        ended, (taken, end) = self.renewed.whenEnded(), taking(self.renewed)
        self.sessions[-1][0].dataReceived(encode_error(REFUSALS["limit-exceeded"]))
        self.assertEqual(self.successResultOf(ended), "refused")
        self.failureResultOf(end, Refused)
        self.assertIsInstance(self.renewed.failure, Refused)
        self.come_back()
        self.assertIsNone(self.renewed.reason)
        taken, end = taking(self.renewed)
        self.arrive(1, b"a")
        self.assertEqual(taken, [b"a"])

    def test_it_may_be_asked_for_again_in_the_same_session__HO_08(self) -> None:
        self.asked()
        self.sessions[-1][0].dataReceived(encode_error(REFUSALS["bad-filter"]))
        again = self.successResultOf(self.service.subscribe("topic/a", "n>=N3"))
        self.assertIs(again, self.renewed)
        self.assertEqual(self.asked(), [("subscribe", "n>=N3")])
        self.assertIsNone(again.reason)
        again.renew()  # it lives: nothing happens
        self.assertEqual(self.asked(), [])

    def test_what_is_left_of_it_acknowledges_nothing_that_came_later__MM_19(self) -> None:
        _, end = taking(self.renewed)
        end.cancel()
        self.failureResultOf(end, CancelledError)
        self.arrive(1, b"a")
        self.successResultOf(self.renewed.end())
        self.renewed.renew()
        self.arrive(2, b"b")
        transport = self.sessions[-1][1]
        for body, written in ((b"a", b""), (b"b", ack(2))):
            transport.clear()
            step = Deferred.fromCoroutine(anext(self.renewed))
            self.assertEqual(self.successResultOf(step).body, body)
            self.clock.advance(0)
            self.assertEqual(transport.value(), written)


class Postponed(Renewing):
    limits: ClassVar = {"unsafe-bytes": 10_000}

    def test_sessions_bring_no_more_while_nobody_takes_what_came__NB_02(self) -> None:
        """A message of 16 MiB came with each of them, before reading was paused."""
        self.brings_two(bytes(9_000))

    def test_nor_of_messages_that_are_nothing_but_properties__NB_02(self) -> None:
        self.brings_two(b"", b"p:T%b;q:T%b;" % (b"x" * 4000, b"y" * 4000))

    def brings_two(self, body: bytes, properties: bytes = b"") -> None:
        taken, end = taking(self.renewed)
        end.cancel()
        self.failureResultOf(end, CancelledError)
        for _ in range(5):
            self.arrive(1, body, properties)
            self.come_back()
        self.assertEqual(self.asked(), [])
        self.assertIsNone(self.renewed.reason)
        taken, end = taking(self.renewed)
        self.assertEqual(len(taken), 2)
        self.assertEqual(self.asked(), [("subscribe", "n>=N2")])
        self.arrive(1, b"again")
        self.assertEqual(taken[-1], b"again")


class Many(Subscribed):
    def test_a_read_of_tiny_frames_is_followed_in_turns__NB_07(self) -> None:
        """87,000 ERRORs of three bytes kept the reactor for 1.6 s, on either side."""
        client, transport, _ = self.subscribed()
        heard: list[str] = []
        client.errorReceived = lambda code, text: heard.append(text)
        errors = [encode_error(f"{number}") for number in range(5000)]
        client.dataReceived(b"".join(errors) + message(1, b"last", "topic/b"))
        self.assertLessEqual(len(heard), 1024)
        self.assertEqual(transport.producerState, "paused")
        self.assertEqual(client.hooked, [])
        self.clock.advance(0)
        self.assertEqual(client.hooked, [b"last"])
        self.assertEqual(heard, [f"{number}" for number in range(5000)])
        self.assertEqual(transport.producerState, "producing")
