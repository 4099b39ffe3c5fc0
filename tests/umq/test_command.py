"""What ``msgproto send|recv umq`` run, over real sockets of this process."""

from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import serverFromString
from twisted.trial.unittest import TestCase

from tests.umq.echo import Sink
from twisted_msgproto.core.errors import ConfigurationError, PeerError
from twisted_msgproto.net.clients.shapes import RecvOptions, SendOptions
from twisted_msgproto.umq import (
    CallFailed,
    Reply,
    UmqClientFactory,
    call_method,
    command,
    connect,
)
from twisted_msgproto.umq.service import StockServerFactory


class Progress:
    def __init__(self):
        self.sent_count = self.acknowledged_count = 0

    def sent(self, count):
        self.sent_count += count

    def acknowledged(self, count):
        self.acknowledged_count += count


class Messages:
    def __init__(self, bodies):
        self.bodies = list(bodies)

    async def some(self, most):
        assert most >= 1
        taken, self.bodies = self.bodies[:most], self.bodies[most:]
        return taken


def start(coroutine):
    return Deferred.fromCoroutine(coroutine)


class Commands(TestCase):
    @inlineCallbacks
    def setUp(self):
        self.factory = StockServerFactory(sink=Sink(at_once=True))
        endpoint = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        self.port = yield endpoint.listen(self.factory)
        self.where = f"127.0.0.1:{self.port.getHost().port}"

    @inlineCallbacks
    def tearDown(self):
        yield self.port.stopListening()
        yield self.factory.drain()

    @inlineCallbacks
    def test_a_destination_is_a_method(self):
        progress = Progress()
        options = SendOptions(endpoint=f"ws://{self.where}/", destination="nothing.known")
        yield start(command.send(reactor, options, Messages([b"a"]), progress))
        (batch,) = self.factory.sink.batches
        self.assertEqual(
            (batch.body, batch.destination), ([b'["nothing.known","a"]'], ["nothing.known"])
        )
        options = SendOptions(endpoint=f"ws://{self.where}/", destination="subscribe")
        sending = start(command.send(reactor, options, Messages([b"a"] * 3), Progress()))
        yield self.assertFailure(sending, CallFailed)

    @inlineCallbacks
    def test_one_method_is_called_with_json_or_text(self):
        """The issue, 3."""
        options = SendOptions(endpoint=f"ws://{self.where}/")
        result = yield start(command.call(reactor, options, "publish", ["news", "text"]))
        self.assertEqual(result, ("0", True))
        self.factory.methods.register(lambda: Reply("x", [b"abc"]), name="attach")
        result = yield start(command.call(reactor, options, "attach", []))
        self.assertEqual(result, ('{"result":"x","attachments":[3]}', True))
        self.factory.methods.register(lambda number: number + 1, name="next")
        result = yield start(command.call(reactor, options, "next", ["41"]))
        self.assertEqual(result, ("42", True))

    @inlineCallbacks
    def test_a_method_which_the_server_has_not_was_stored_and_that_is_said(self):
        """HO-09, UM-17."""
        options = SendOptions(endpoint=f"ws://{self.where}/")
        result = yield start(command.call(reactor, options, "mispelt", ["1"]))
        self.assertEqual(result, ("the server has no such method, it stored the call", False))
        self.factory.sink = None
        result = yield start(command.call(reactor, options, "mispelt", ["1"]))
        self.assertEqual(
            result,
            ("the server has no such method, it gave the call to its application", False),
        )

    @inlineCallbacks
    def test_updates_of_a_destination_are_shown(self):
        """The issue, 6: recv."""
        shown = []
        two = Deferred()

        def show(message):
            shown.append((message.kind, message.destination, message.body))
            if len(shown) == 2:
                two.callback(None)

        options = RecvOptions(endpoint=f"ws://{self.where}/", destination="news")
        receiving = start(command.recv(reactor, options, show))
        session = yield start(connect(reactor, f"ws://{self.where}/"))
        while not (yield call_method(session, "publish", "news", "a")):
            pass
        yield call_method(session, "publish", "news", "b")
        yield two
        self.assertEqual(shown, [("topic", "news", b"a"), ("topic", "news", b"b")])
        for live in list(self.factory.liveConnections):
            live.closeSession()
        yield receiving  # the server ends in peace
        empty = RecvOptions(endpoint="ws://x/", destination="")
        yield self.assertFailure(start(command.recv(reactor, empty, show)), ConfigurationError)

    @inlineCallbacks
    def test_a_topic_which_the_server_ends_ends_recv_with_an_error__HO_08(self):
        options = RecvOptions(endpoint=f"ws://{self.where}/", destination="news")
        receiving = start(command.recv(reactor, options, lambda message: None))
        session = yield start(connect(reactor, f"ws://{self.where}/"))
        while not (yield call_method(session, "publish", "news", "a")):
            pass
        for live in list(self.factory.liveConnections):
            for topic in list(live.topics.values()):
                topic.close()
        yield self.assertFailure(receiving, PeerError)
        session.closeSession()

    @inlineCallbacks
    def test_connect_takes_a_factory_and_an_endpoint(self):
        url = f"ws://{self.where}/"
        factory = UmqClientFactory(url)
        session = yield start(connect(reactor, url, factory=factory))
        self.assertIs(session.factory, factory)
        factory.countFault("test")
        self.assertEqual(factory.counters["fault:test"], 1)
        session.closeSession()
