"""Methods by name: the JSON codec, the default server's answers, what the commands call."""

import json

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from tests.contract.sending import Bodies
from tests.umq.pairs import Pair, Pairs
from twisted_msgproto import IAuthoriser
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.core.errors import ConfigurationError, PeerError, Refused
from twisted_msgproto.gateway import Configuration, make_gateway
from twisted_msgproto.net.clients.command_types import RecvOptions, SendOptions
from twisted_msgproto.testing import SafeSink
from twisted_msgproto.umq import (
    CallFailed,
    MethodRegistry,
    NoSuchMethod,
    Remote,
    RemoteError,
    Reply,
    Request,
    Stored,
    UmqClientFactory,
    UmqServer,
    UmqServerFactory,
    call_method,
    command,
    connect,
    serve,
)
from twisted_msgproto.umq.service import DefaultServerFactory

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


CUT = "\U0001f389".encode("utf-16-be", "surrogatepass")[:2].decode("utf-16-be", "surrogatepass")
"""Half of an emoji, as ``slice`` of JavaScript leaves it."""


class Wrong(Exception):
    """An error which peers may know."""


class Methods(Pairs):
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
        self.both = self.pair(UmqServer, methods=self.methods)
        self.remote = Remote(self.both.client)

    def result(self, called):
        self.both.pump()
        return self.successResultOf(called)

    def failure(self, called, kind=CallFailed):
        self.both.pump()
        return self.failureResultOf(called, kind).value

    def test_arguments_that_nobody_accepts_are_refused_as_such__RD_03(self):
        """UM-17; the common JSON limits."""
        for text in NO_JSON:
            refused = self.failure(self.both.client.call(f'["coroutine",{text}]'))
            self.assertEqual(refused.code, 3, text)
            self.assertIn("the arguments are not acceptable: ", str(refused))

    def test_arguments_have_bounds__NB_07(self):
        """UM-17: 1,048,576 characters, 10,000 objects and arrays, the whole call among them."""
        more = {"payload-characters": 1 << 21}
        both = self.pair(UmqServer, methods=self.methods, limits=more, client_limits=more)
        self.methods.register(lambda *values: len(values), name="count")
        head = '["count","'
        for more in (0, 1):
            for text in (
                f'["count"{",[]" * (9_999 + more)}]',
                f'{head}{"x" * ((1 << 20) - len(head) - 2 + more)}"]',
            ):
                answer = both.client.call(text)
                both.pump()
                if more:
                    self.assertEqual(self.failureResultOf(answer, CallFailed).value.code, 3)
                else:
                    self.successResultOf(answer)

    def test_what_no_peer_accepts_is_not_sent__RD_03(self):
        """UM-17"""
        deep = 1
        for _ in range(64):
            deep = [deep]
        for value in (CUT, {CUT: 1}, deep, {1: 2, "1": 2}, [[]] * 10_001, float("nan"), object()):
            asked = self.remote.coroutine(value)
            self.failureResultOf(asked, ValueError, TypeError)
        self.failureResultOf(call_method(self.both.client, 1), TypeError)
        self.failureResultOf(self.both.client.setAttribute("a", CUT), ValueError)
        self.failureResultOf(self.both.client.setAttribute(CUT, "a"), ValueError)
        self.failureResultOf(self.both.client.callback("1", CUT), ValueError)
        for hello in (CUT, 1):
            with self.assertRaises((ValueError, TypeError)):
                UmqClientFactory("ws://server/", hello=hello, clock=Clock())
        self.assertEqual(self.result(self.remote.coroutine("\U0001f389")), ["\U0001f389"])

    def test_a_result_that_no_peer_accepts_is_a_fault_of_the_method__RD_03(self):
        """RD-03"""
        self.methods.register(lambda: CUT, name="cut")
        self.methods.register(lambda: {1: 2, "1": 2}, name="twice")
        self.methods.register(lambda: float("nan"), name="nan")
        for name in ("cut", "twice", "nan"):
            self.assertEqual(self.failure(getattr(self.remote, name)()).payload, "internal error")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 3)

    def test_a_refusal_with_a_cut_emoji_reaches_the_peer__RD_03(self):
        self.methods.register(lambda: fail(Refused(CUT, 9)), name="cut")
        self.methods.register(lambda: fail(Refused("x" * (2 << 20), 9)), name="long")
        for name in ("cut", "long"):
            self.assertEqual(self.failure(getattr(self.remote, name)()).code, 9)
        refusal = Refused(CUT)
        self.methods.error(Refused, "Cut")
        self.methods.register(lambda: fail(refusal), name="refusal")
        self.assertEqual(self.failure(self.remote.refusal(), RemoteError).message, "?")

    def test_an_answer_without_text_is_none__RD_03(self):
        other = self.pair()
        other.server.requestReceived = lambda message: None
        called = call_method(other.client, "x")
        other.pump()
        self.assertIsNone(self.successResultOf(called))

    def test_json_is_read_and_answered_in_json(self):
        """UM-17: brackets within texts do not nest."""
        for text, value in JSON:
            answer = self.result(self.both.client.call(f'["coroutine",{text}]')).payload
            if value is not None:
                self.assertEqual(json.loads(answer), value)
        reply = self.result(self.both.client.call('["coroutine", "é", 1]'))
        self.assertEqual(reply.payload, '["é",1]')

    def test_a_remote_method_is_a_function_which_returns_a_deferred(self):
        """The issue: what makes the protocol pleasant."""
        self.assertEqual(self.result(self.remote.add(1, 2)), 3)
        self.assertEqual(self.result(self.remote.add(1)), 2)
        self.assertEqual(self.result(call_method(self.both.client, "later.add", "a", "b")), "ab")
        self.assertEqual(self.result(self.remote.coroutine("é", None)), ["é", None])
        self.assertEqual(self.result(self.remote.whoami("hi")), "hi 127.0.0.1:40000")
        self.assertEqual(self.remote.add.__name__, "add")
        self.assertRaises(AttributeError, getattr, self.remote, "_private")

    async def test_both_sides_have_the_methods_of_the_other_as_functions(self):
        """UM-09: a server calls its client as the client calls it."""
        ours, theirs = MethodRegistry(), MethodRegistry()
        theirs.register(lambda: "the page", name="title")

        @ours.register(with_request=True)
        async def ask(request):
            return f"{await request.session.remote.title()} says hello"

        async with (
            serve("tcp:0:interface=127.0.0.1", methods=ours) as server,
            connect(server.addresses[0], methods=theirs) as client,
        ):
            self.assertEqual(await client.remote.ask(), "the page says hello")

    def test_what_a_method_does_with_its_arguments_the_next_call_does_not_see(self):
        """UM-17: two calls with the same text came with one list of arguments."""
        self.methods.register(lambda order: order.pop("id"), name="take")
        for _ in range(2):
            self.assertEqual(self.result(self.remote.take({"id": 7})), 7)

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
        with self.assertRaisesRegex(TypeError, "function: a function .* is expected, not str"):
            self.methods.register("add")

    def test_an_action_that_there_is_not(self):
        """A call of the method would be refused, and end the session."""
        told = r"action 'publsh' \(did you mean 'publish'\?\)"
        with self.assertRaisesRegex(ConfigurationError, told):
            self.methods.register(len, action="publsh")

    def test_an_error_which_is_json_but_not_ours_is_a_plain_one(self):
        other = self.pair()
        for payload in ("[1]", '{"type":1}'):

            def refuse(message, payload=payload):
                raise Refused(payload)

            other.server.requestReceived = refuse
            called = call_method(other.client, "x")
            other.pump()
            error = self.failureResultOf(called, CallFailed).value
            self.assertEqual((type(error), error.payload), (CallFailed, payload))

    def test_a_signature_with_names_known_to_type_checkers_alone(self):
        def typed(a: "Nowhere") -> None: ...  # noqa: F821

        self.methods.register(typed)
        self.assertIn("Nowhere", self.methods.methods["typed"].described()["signature"])


pytestmark = pytest.mark.usefixtures("short_turns")


@implementer(IAuthoriser)
class Asked(list):
    """Allows everything, and keeps what it is asked."""

    def allows(self, access):
        self.append((access.action, access.name))
        return True


class Stock(SynchronousTestCase):
    def pair(self, sink=None, **options):
        clock = Clock()
        made = Pair(DefaultServerFactory(sink, clock=clock, **options), clock=clock)
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

    def test_a_call_with_too_many_objects_and_arrays_is_refused__NB_07(self):
        """Reading it as JSON would take the time of everybody else."""
        sink = SafeSink()
        both = self.pair(sink)
        for item in ("[]", "{}", '{"a":1}'):
            good, large = (f'["orders",{",".join([item] * count)}]' for count in (100, 100_000))
            answer = self.successResultOf(self.called(both, good))
            self.assertEqual(answer.payload, '{"stored":true}')
            error = self.failureResultOf(self.called(both, large), CallFailed).value
            self.assertIn("the arguments are not acceptable: more than 10000", str(error))
            self.assertEqual(sink.messages[-1].body, good.encode())
        self.assertEqual(len(sink.messages), 3)

    def test_what_cannot_be_accepted_is_not_stored__RD_03(self):
        """UM-17: a call of the form ["METHOD", …] alone; any other text is text."""
        for options in ({}, {"ingest": ["visited"]}):
            both = self.pair(sink := SafeSink(), **options)
            for text in ('"\\ud83c"', "[" * 64 + "]" * 64, '{"a":1,"a":2}', "1e999"):
                error = self.failureResultOf(self.called(both, f'["visited",{text}]'), CallFailed)
                self.assertRegex(str(error.value), "^the arguments are not acceptable: ")
                self.assertEqual(error.value.code, 3)
            error = self.failureResultOf(self.called(both, '["publish","a"]'), CallFailed).value
            self.assertIn("publish: missing a required argument", str(error))
            self.assertEqual(sink.messages, [])
        both = self.pair(sink := SafeSink())
        for text in ("[" * 70, '["cut', "[NaN]", '["\\'):
            self.assertEqual(self.successResultOf(self.called(both, text)).payload, "")
            self.assertEqual(sink.messages[-1].body, text.encode())

    def test_a_topic_whose_name_is_no_text_is_refused__NB_09(self):
        """NB-09: it is the caller's fault, and so no traceback."""
        both = self.pair()
        for name in ("[]", "{}", "1", "null"):
            for call in (f'["publish",{name},"b"]', f'["subscribe",{name},"1"]'):
                error = self.failureResultOf(self.called(both, call), CallFailed).value
                self.assertEqual(error.code, 3, call)
        self.assertEqual(self.flushLoggedErrors(), [])
        for length, code in ((1024, None), (1025, 3)):
            answer = self.called(both, json.dumps(["subscribe", "x" * length, "1"]))
            if code is None:
                self.successResultOf(answer)
            else:
                self.assertEqual(self.failureResultOf(answer, CallFailed).value.code, code)

    def test_wrong_ids_and_too_many_topics_are_refused(self):
        """UM-20; a method of one's own had a traceback for each."""

        def own(request, name, id):
            return request.session.openTopic(id).id

        for method in ("subscribe", "own"):
            both = self.pair(limits={"topics": 2})
            both.server_factory.methods.register(own, with_request=True)
            for id, code in (("1", 3), ('"x"', 3), ('"1"', None), ('"2"', None), ('"3"', 8)):
                answer = self.called(both, f'["{method}","news",{id}]')
                if code is None:
                    self.successResultOf(answer)
                else:
                    self.assertEqual(self.failureResultOf(answer, CallFailed).value.code, code)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_a_wrong_callback_id_is_as_one_that_nobody_has(self):
        """A method had a traceback for each; of a long one, a thousand lines."""

        def work(request, id):
            return request.session.callback(id, "x")

        both = self.pair()
        both.server_factory.methods.register(work, with_request=True)
        for id in ("5", "null", '"a b"', f'"{"Z" * 3000}"', '"ZZ"'):
            failure = self.failureResultOf(self.called(both, f'["work",{id}]'), CallFailed)
            self.assertEqual(failure.value.code, 2)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_what_an_authoriser_is_asked_about_a_call(self):
        """The method, or the name that its first argument is; none if that is missing or odd."""
        both = self.pair(authoriser=(asked := Asked()))
        calls = "[]", '["x","y"]', '["publish"]', '["subscribe",1,"b"]', '["publish","a"]'
        for call in calls:
            self.called(both, call).addErrback(lambda failure: failure.trap(CallFailed))
        names = [("publish", ""), ("subscribe", ""), ("publish", "a")]
        self.assertEqual(asked, [("call", ""), ("call", "x"), *names])
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

    def test_a_gateway_s_server_is_as_its_options_say(self):
        """origin, ingest, no-hub"""
        clock, origin = Clock(), "https://a.example"
        table = {"umq": {"origin": [origin], "ingest": ["orders"], "no-hub": True}}
        (factory,) = make_gateway(Configuration(table), clock).factories
        client = UmqClientFactory("ws://server:5048/", origin=origin, clock=clock)
        both = Pair(factory, client, clock=clock)
        answer = self.successResultOf(self.called(both, '["orders",1]'))
        self.assertEqual(answer.payload, '{"stored":false}')
        error = self.failureResultOf(self.called(both, '["publish","a","b"]'), CallFailed).value
        self.assertEqual(error.code, 6)
        both.cut()

    def test_servers_that_share_methods_take_what_is_named_for_each(self):
        """UM-17: --ingest is a server's own."""
        methods = MethodRegistry()
        one, other, all_of_them = (
            self.pair(SafeSink(), methods=methods, ingest=names) for names in (["a"], ["b"], [])
        )
        methods.register(lambda: "here", name="late")
        for both, taken in ((one, "a"), (other, "b"), (all_of_them, "ab")):
            for name in "ab":
                asked = self.called(both, f'["{name}"]')
                if name in taken:
                    self.assertEqual(self.successResultOf(asked).payload, '{"stored":true}')
                else:
                    self.assertEqual(self.failureResultOf(asked, CallFailed).value.code, 6)
            self.assertEqual(self.successResultOf(self.called(both, '["late"]')).payload, '"here"')

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

    def test_both_sides_send_them(self):
        welcomes = []
        clock = Clock()
        server = UmqServerFactory(clock=clock)
        server.protocol = Attached
        client = UmqClientFactory(
            "ws://server:5048/",
            hello="me",
            helloAttachments=iter([b"a", b"b" * 65536]),
            clock=clock,
        )
        welcomed = {"welcomed": lambda self, welcome: welcomes.append(welcome)}
        client.protocol = type("Welcomed", (client.protocol,), welcomed)
        both = Pair(server, client, clock=clock)
        self.addCleanup(both.close)
        self.successResultOf(both.client.whenEstablished())
        self.assertEqual(both.server.seen, ("me", [b"a", b"b" * 65536]))
        self.assertEqual([(w.payload, w.attachments) for w in welcomes], [("hello", [b"of ours"])])


class Commands(TestCase):
    def setUp(self):
        self.factory = DefaultServerFactory(sink=SafeSink())

    def serving(self):
        return serve("tcp:0:interface=127.0.0.1", factory=self.factory)

    async def test_a_destination_is_a_method(self):
        async with self.serving() as server:
            options = SendOptions(endpoint=server.addresses[0], destination="nothing.known")
            await command.send(reactor, options, Bodies([b"a"], 1), Counted())
            (batch,) = self.factory.sink.batches
            self.assertEqual(
                (batch.body, batch.destination), ([b'["nothing.known","a"]'], ["nothing.known"])
            )
            options = SendOptions(endpoint=server.addresses[0], destination="subscribe")
            with self.assertRaises(CallFailed):
                await command.send(reactor, options, Bodies([b"a"] * 3, 1), Counted())
            self.assertEqual(len(self.factory.liveConnections), 0)  # it has taken its leave

    async def test_one_method_is_called_with_json_or_text(self):
        """The issue, 3."""
        self.factory.methods.register(lambda: Reply("x", [b"abc"]), name="attach")
        self.factory.methods.register(lambda number: number + 1, name="next")
        async with self.serving() as server:
            options = SendOptions(endpoint=server.addresses[0])
            for name, arguments, result in (
                ("publish", ["news", "text"], "0"),
                ("attach", [], '{"result":"x","attachments":[3]}'),
                ("next", ["41"], "42"),
            ):
                told = await command.call(reactor, options, name, arguments)
                self.assertEqual(told, (result, True))
                self.assertEqual(len(self.factory.liveConnections), 0)

    async def test_an_argument_that_no_server_accepts_is_not_sent_as_text__RD_03(self):
        options = SendOptions(endpoint="ws://127.0.0.1:1/")
        for place in ("tcp:127.0.0.1:1", "tcp:[::1]:1", "tcp:host=localhost:port=1"):
            with self.assertRaises(ConnectError):  # it is an address, and nobody listens there
                await command.call(reactor, SendOptions(endpoint=place), "visited", [])
        for argument in ('"\\ud83c"', '{"a":1,"a":2}', "[" * 70 + "]" * 70):
            with self.assertRaises(ConfigurationError):
                await command.call(reactor, options, "visited", [argument])

    async def test_a_topic_which_the_server_ends_ends_recv_with_an_error__HO_08(self):
        async with self.serving() as server, connect(server.addresses[0]) as session:
            options = RecvOptions(endpoint=server.addresses[0], destination="news")
            shown = []
            receiving = Deferred.fromCoroutine(command.recv(reactor, options, shown.append))
            while not await session.remote.publish("news", "a"):
                pass
            for live in list(self.factory.liveConnections):
                live.setAttribute("place", "here")
                live.unsetAttribute("place")
                for topic in list(live.link.topics.published.values()):
                    topic.close()
            with self.assertRaises(PeerError):
                await receiving
            self.assertEqual(len(self.factory.liveConnections), 1)  # ours
            bodies = [message.body for message in shown if message.destination == "place"]
            self.assertEqual(bodies, [b"here", None])
