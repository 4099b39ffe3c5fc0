"""A server which does what it is told, a sink which waits, and a pair of our sides with both."""

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from zope.interface import implementer

from tests.umq.pair import Pair
from twisted_msgproto.core.errors import (
    Refused,
)
from twisted_msgproto.net import IMessageSink
from twisted_msgproto.umq import (
    Reply,
    UmqClient,
    UmqClientFactory,
    UmqServer,
    UmqServerFactory,
    refusal,
)


class Echo(UmqServer):
    """Answers what it is told to; keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.later = []

    def sessionEstablished(self):
        self.seen.append("established")

    def sessionLost(self, reason):
        self.seen.append("lost")

    def attributeChanged(self, name, value):
        self.seen.append((name, value))

    def callReceived(self, request):
        word, _, rest = request.payload.partition(" ")
        known = getattr(self, f"do_{word}", None)
        return super().callReceived(request) if known is None else known(request, rest)

    def requestReceived(self, message):
        self.seen.append(message)
        return message.body

    def do_none(self, request, rest):
        return None

    def do_later(self, request, rest):
        self.later.append(Deferred())
        return self.later[-1]

    async def do_coroutine(self, request, rest):
        return f"awaited {rest}"

    def do_raise(self, request, rest):
        raise RuntimeError("a secret")

    def do_refuse(self, request, rest):
        raise Refused("I'm teapot", 418)

    def do_fail(self, request, rest):
        return fail(refusal(7, "no route"))

    def do_attach(self, request, rest):
        return Reply("attached", [b"1", succeed(b"2"), fail(RuntimeError("x"))])

    def do_number(self, request, rest):
        return 42

    def do_huge(self, request, rest):
        return "x" * (2 << 20)

    def do_count(self, request, rest):
        return Reply(repr(request.attachments))

    def do_stream(self, request, rest):
        self.stream = request.stream
        return "streaming"

    def streams(self, message):
        return getattr(message, "payload", "").startswith("stream") or super().streams(message)

    def do_topic(self, request, rest):
        self.topic = self.openTopic(rest)
        self.reason = []
        self.topic.whenClosed().addCallback(self.reason.append)
        return "accepted"

    def do_badtopic(self, request, rest):
        self.openTopic(rest)


@implementer(IMessageSink)
class Sink:
    """Keeps batches; they are safe when the test says so."""

    def __init__(self, at_once=False):
        self.batches = []
        self.waiting = []
        self.at_once = at_once

    def put(self, batch):
        self.batches.append(batch)
        safe = Deferred()
        self.waiting.append(safe)
        if self.at_once:
            safe.callback(None)
        return safe


def pair(
    protocol=Echo,
    client=None,
    sink=None,
    full=65536,
    methods=None,
    portal=None,
    hello="",
    connect=True,
    limits=None,
    client_limits=None,
    client_methods=None,
    client_sink=None,
):
    clock = Clock()
    clock.advance(1000)
    server_factory = UmqServerFactory(
        sink, clock=clock, limits=limits, methods=methods, portal=portal, wallClock=clock.seconds
    )
    server_factory.protocol = protocol
    client_factory = UmqClientFactory(
        "ws://server:5048/",
        client_sink,
        clock=clock,
        limits=client_limits,
        hello=hello,
        methods=client_methods,
        wallClock=clock.seconds,
    )
    client_factory.protocol = client or UmqClient
    return Pair(server_factory, client_factory, clock=clock, connect=connect, full=full)
