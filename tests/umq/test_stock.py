"""The stock server's answers: what was stored is told from what was done (UM-17)."""

import pytest
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.tools.sinks import SafeSink
from tests.umq.pair import Pair
from twisted_msgproto.umq import (
    CallFailed,
    NoSuchMethod,
    Reply,
    Stored,
    UmqClientFactory,
    UmqServer,
    UmqServerFactory,
    call_method,
)
from twisted_msgproto.umq.service import StockServerFactory

pytestmark = pytest.mark.usefixtures("short_turns")


class Stock(SynchronousTestCase):
    def pair(self, sink=None, **options):
        clock = Clock()
        made = Pair(StockServerFactory(sink, clock=clock, **options), clock=clock)
        self.addCleanup(made.close)
        return made

    def called(self, both, payload):
        answer = both.client.call(payload)
        both.pump()
        return answer

    def test_a_call_which_names_no_method_of_the_server_is_answered_as_stored(self):
        """HO-09, UM-17"""
        sink = SafeSink()
        both = self.pair(sink)
        answer = self.successResultOf(self.called(both, '["orders",1]'))
        self.assertEqual(answer.payload, '{"stored":true}')
        self.assertEqual(self.successResultOf(self.called(both, "any text")).payload, "")
        self.assertEqual(
            self.successResultOf(self.called(both, '["publish","a","b"]')).payload, "0"
        )
        self.assertEqual(len(sink.messages), 3)
        both = self.pair()
        answer = self.successResultOf(self.called(both, '["orders",1]'))
        self.assertEqual(answer.payload, '{"stored":false}')

    def test_a_call_with_too_many_objects_and_arrays_is_text__NB_07(self):
        """Reading it as JSON would take the time of everybody else."""
        sink = SafeSink()
        both = self.pair(sink)
        for item in ("[]", "{}", '{"a":1}'):
            calls = [f'["orders",{",".join([item] * count)}]' for count in (100, 100_000)]
            read, text = [self.successResultOf(self.called(both, call)) for call in calls]
            self.assertEqual((read.payload, text.payload), ('{"stored":true}', ""))
            stored = [(m.destination, m.body) for m in sink.messages[-2:]]
            bodies = [call.encode() for call in calls]
            self.assertEqual(stored, list(zip(["orders", None], bodies, strict=True)))

    def test_a_topic_whose_name_is_no_text_is_refused__NB_09(self):
        """NB-09: it is the caller's fault, and so no traceback."""
        both = self.pair()
        for name in ("[]", "{}", "1", "null"):
            for call in (f'["publish",{name},"b"]', f'["subscribe",{name},"1"]'):
                error = self.failureResultOf(self.called(both, call), CallFailed).value
                self.assertEqual(error.code, 3, call)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_only_what_is_named_is_taken(self):
        """HO-09, UM-17: --ingest"""
        sink = SafeSink()
        both = self.pair(sink, ingest=["orders"])
        for refused in ('["mispelt",1]', "text", "[1]"):
            error = self.failureResultOf(self.called(both, refused), CallFailed).value
            self.assertEqual(error.code, 6)
        self.assertEqual(sink.messages, [])
        self.successResultOf(self.called(both, '["orders",1]'))
        self.assertEqual(
            self.successResultOf(self.called(both, '["publish","a","b"]')).payload, "0"
        )
        self.assertEqual([m.destination for m in sink.messages], ["orders", "publish"])

    def test_our_clients_know_it_for_what_it_is(self):
        """HO-09"""
        both = self.pair(SafeSink())
        asked = call_method(both.client, "mispelt", 1)
        both.pump()
        self.assertEqual(self.successResultOf(asked), Stored(True))
        subscription = both.client.subscribe(lambda id: f'["subscrbe","news","{id}"]')
        started = subscription.whenStarted()
        both.pump()
        error = self.failureResultOf(started, NoSuchMethod).value
        self.assertIn("stored the call", str(error))
        self.assertTrue(subscription.ended)
        good = both.client.subscribe(lambda id: f'["subscribe","news","{id}"]')
        both.pump()
        self.successResultOf(good.whenStarted())


class Attached(UmqServer):
    """Keeps what H brought, and answers with an attachment."""

    def authorise(self, hello):
        self.seen = (hello.payload, hello.attachments)

    def welcome(self, hello):
        return Reply("hello", [b"of ours"])


class HandShake(SynchronousTestCase):
    """HO-10, UM-06, UM-07: H and W have attachments."""

    def pair(self, **client):
        clock = Clock()
        server = UmqServerFactory(clock=clock)
        server.protocol = Attached
        made = Pair(
            server, UmqClientFactory("ws://server:5048/", clock=clock, **client), clock=clock
        )
        self.addCleanup(made.close)
        return made

    def test_both_sides_send_them(self):
        welcomes = []
        clock = Clock()
        server = UmqServerFactory(clock=clock)
        server.protocol = Attached
        client = UmqClientFactory(
            "ws://server:5048/", hello="me", helloAttachments=[b"a", b"b" * 65536], clock=clock
        )
        welcomed = {"welcomed": lambda self, welcome: welcomes.append(welcome)}
        client.protocol = type("Welcomed", (client.protocol,), welcomed)
        both = Pair(server, client, clock=clock)
        self.addCleanup(both.close)
        self.successResultOf(both.client.whenEstablished())
        self.assertEqual(both.server.seen, ("me", [b"a", b"b" * 65536]))
        self.assertEqual([(w.payload, w.attachments) for w in welcomes], [("hello", [b"of ours"])])

    def test_few_and_small_ones_before_anybody_is_authorised(self):
        for attachments in ([b"x"] * 5, [b"x" * 70_000]):
            both = self.pair(helloAttachments=attachments)
            self.failureResultOf(both.client.whenEstablished())
        self.successResultOf(self.pair(helloAttachments=[b"x"] * 4).client.whenEstablished())
