"""The optional JSON codec: methods by name, errors with types, a registry which documents itself.

UM-17: payloads are opaque to UMQ; the codec is one way to read them.
"""

import json

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import TestCase

from tests.umq.echo import pair
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.umq import (
    CallFailed,
    Hub,
    MethodRegistry,
    Remote,
    RemoteError,
    Reply,
    Request,
    UmqServer,
    call_method,
)

NO_JSON = [
    *("", "[", "[NaN]", "[Infinity]", "[-Infinity]", '{"a":1,"a":2}', '["\\ud800"]'),
    *("[" * 64 + "]" * 64, '{"a":' * 64 + "1" + "}" * 64, "9" * 4001, "1e999", "1] 2", "'a'"),
]
JSON = [
    ('"a",1,null,true,1.5,{"b":[]}', ["a", 1, None, True, 1.5, {"b": []}]),
    ("[" * 63 + "]" * 63, None),
    ('"' + "[{" * 100 + '"', ["[{" * 100]),
    ('"\\"' + "[" * 100 + '\\\\"', ['"' + "[" * 100 + "\\"]),
    (",".join(["[]"] * 101), [[]] * 101),
    ('"\\ud83e\\udd80"', ["\U0001f980"]),
    ("9" * 4000, None),
]


class Wrong(Exception):
    """An error which peers may know."""


class Methods(TestCase):
    def setUp(self):
        self.methods = MethodRegistry()

        @self.methods.register
        def add(a: int, b: int = 1) -> int:
            """The sum.

            More about it.
            """
            return a + b

        @self.methods.register(name="later.add")
        def later(a, b):
            return succeed(a + b)

        @self.methods.register
        async def coroutine(*words):
            return list(words)

        @self.methods.register(with_request=True)
        def whoami(request, greeting):
            """Who calls."""
            return f"{greeting} {request.session.peer}"

        @self.methods.register
        def wrong(text):
            raise Wrong(text)

        @self.methods.register
        async def bug():
            raise RuntimeError("a secret")

        @self.methods.register
        def odd():
            return object()

        @self.methods.register(with_request=True)
        def attach(request):
            return Reply({"got": len(request.attachments)}, [b"a"])

        @self.methods.register(streamed=True, with_request=True)
        def first(request):
            return request.stream.next().addCallback(bytes.decode)

        self.methods.error(Wrong, "Example.Wrong")
        self.both = pair(UmqServer, methods=self.methods)
        self.remote = Remote(self.both.client)
        self.addCleanup(self.both.close)

    def result(self, called):
        self.both.pump()
        return self.successResultOf(called)

    def failure(self, called, kind=CallFailed):
        self.both.pump()
        return self.failureResultOf(called, kind).value

    def test_what_nobody_should_accept_as_json_names_no_method(self):
        """UM-17; the common JSON limits."""
        for text in NO_JSON:
            refused = self.failure(self.both.client.call(f'["coroutine",{text}]'))
            self.assertEqual(refused.code, 6, text)

    def test_json_is_read_and_answered_in_json(self):
        """UM-17: brackets within texts do not nest."""
        for text, value in JSON:
            answer = self.result(self.both.client.call(f'["coroutine",{text}]')).payload
            if value is not None:
                self.assertEqual(json.loads(answer), value)
        reply = self.result(self.both.client.call('["coroutine", "é", 1]'))
        self.assertEqual(reply.payload, '["é",1]')
        self.methods.register(lambda: float("nan"), name="nan")
        self.assertEqual(self.failure(self.remote.nan()).payload, "internal error")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_a_remote_method_is_a_function_which_returns_a_deferred(self):
        """The issue: what makes the protocol pleasant."""
        self.assertEqual(self.result(self.remote.add(1, 2)), 3)
        self.assertEqual(self.result(self.remote.add(1)), 2)
        self.assertEqual(self.result(call_method(self.both.client, "later.add", "a", "b")), "ab")
        self.assertEqual(self.result(self.remote.coroutine("é", None)), ["é", None])
        self.assertEqual(self.result(self.remote.whoami("hi")), "hi 127.0.0.1:40000")
        self.assertEqual(self.remote.add.__name__, "add")
        self.assertRaises(AttributeError, getattr, self.remote, "_private")

    def test_attachments_both_ways(self):
        """UM-10: with the codec on."""
        reply = self.result(self.remote.attach(attachments=[b"1", b"2"]))
        self.assertEqual((reply.payload, reply.attachments), ({"got": 2}, [b"a"]))

    def test_a_method_may_have_its_attachments_one_by_one(self):
        """UM-19: the call comes before its attachments."""
        late = Deferred()
        called = self.remote.first(attachments=[late, Deferred()])
        self.both.pump()
        late.callback(b"here")
        self.assertEqual(self.result(called), "here")

    def test_errors_have_types_when_they_are_for_peers(self):
        """UM-09: typed errors; anything else stays inside."""
        error = self.failure(self.remote.wrong("too bad"), RemoteError)
        self.assertEqual((error.type, error.message), ("Example.Wrong", "too bad"))
        self.assertEqual(str(error), "Example.Wrong: too bad")
        self.assertEqual(json.loads(error.payload), {"type": "Example.Wrong", "message": "too bad"})
        for called in (self.remote.bug(), self.remote.odd()):
            error = self.failure(called)
            self.assertEqual((type(error), error.payload), (CallFailed, "internal error"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError, TypeError)), 2)

    def test_wrong_arguments_are_refused_before_the_call(self):
        for called in (self.remote.add(), self.remote.add(1, 2, 3)):
            error = self.failure(called)
            self.assertEqual(error.code, 3)
            self.assertIn("add", str(error))

    def test_what_is_no_known_method_goes_to_the_application(self):
        """UM-09: E 6 where there is none; UM-17: any payload is a payload."""
        for payload in ('["nobody"]', "[1]", "[]", "[", "plain", '{"a":1}', "[NaN]"):
            refused = self.failure(self.both.client.call(payload))
            self.assertEqual((refused.code, str(refused)), (6, "no such method"))
        request = Request(self.both.server, "1", '["nobody"]')
        self.assertRaises(Refused, self.methods.answer, request)

    def test_the_registry_documents_itself(self):
        """The issue, 3: a list of methods with signatures."""
        described = {entry["name"]: entry for entry in self.result(self.remote.methods())}
        self.assertEqual(
            described["add"],
            {"name": "add", "signature": "add(a: int, b: int = 1) -> int", "summary": "The sum."},
        )
        self.assertEqual(described["whoami"]["signature"], "whoami(greeting)")
        self.assertEqual(list(described), sorted(described))

    def test_names_are_taken_once(self):
        self.assertRaises(ValueError, self.methods.register, len, name="add")

    def test_an_error_which_is_json_but_not_ours_is_a_plain_one(self):
        other = pair()
        for payload in ("[1]", '{"type":1}'):

            def refuse(message, payload=payload):
                raise Refused(payload)

            other.server.requestReceived = refuse
            called = call_method(other.client, "x")
            other.pump()
            error = self.failureResultOf(called, CallFailed).value
            self.assertEqual((type(error), error.payload), (CallFailed, payload))
        other.close()

    def test_a_signature_with_names_known_to_type_checkers_alone(self):
        def typed(a: "Nowhere") -> None: ...  # noqa: F821

        self.methods.register(typed)
        self.assertIn("Nowhere", self.methods.methods["typed"].described()["signature"])


class HubOfTopics(TestCase):
    """The stock server's methods."""

    def setUp(self):
        self.hub = Hub()
        self.both = pair(UmqServer, methods=self.hub.methods, limits={"topics": 2})
        self.addCleanup(self.both.close)

    def subscribe(self, name, updates):
        subscription = self.both.client.subscribe(
            lambda id: json.dumps(["subscribe", name, id]),
            lambda update: updates.append(update.payload),
        )
        self.both.pump()
        return subscription

    def call(self, *words):
        called = call_method(self.both.client, *words)
        self.both.pump()
        return called

    def test_what_is_published_reaches_the_subscribers(self):
        """UM-12, UM-14."""
        news, more = [], []
        first, second = self.subscribe("news", news), self.subscribe("news", more)
        self.assertEqual(self.successResultOf(self.call("publish", "news", "a")), 2)
        self.assertEqual(self.successResultOf(self.call("publish", "other", "b")), 0)
        first.unsubscribe()
        self.assertEqual(self.successResultOf(self.call("publish", "news", "c")), 1)
        self.assertEqual((news, more), (["a"], ["a", "c"]))
        second.unsubscribe()
        self.assertEqual(self.successResultOf(self.call("publish", "news", "d")), 0)

    def test_floods_and_nonsense_are_refused(self):
        """UM-20."""
        for words in (
            ("subscribe", 1, "1"),
            ("subscribe", "a", 1),
            ("subscribe", "a", "x"),
            ("publish", "a", 1),
        ):
            self.assertEqual(self.failureResultOf(self.call(*words), CallFailed).value.code, 3)
        self.subscribe("a", [])
        self.subscribe("b", [])
        refused = self.subscribe("c", [])
        self.assertEqual(self.failureResultOf(refused.whenStarted(), CallFailed).value.code, 8)
