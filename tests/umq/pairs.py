"""A client and a server of ours in one process, an application, a sink that waits.

Both machines in any state, what they are sent, and how they refuse it.
"""

from __future__ import annotations

from functools import cache

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.doubles import due
from twisted_msgproto.core.errors import (
    Refused,
)
from twisted_msgproto.testing import Pair as Line
from twisted_msgproto.testing.pairs import FULL_BYTES
from twisted_msgproto.umq import (
    Code,
    MethodRegistry,
    Reply,
    UmqClient,
    UmqClientFactory,
    UmqClientService,
    UmqServer,
    UmqServerFactory,
)
from twisted_msgproto.umq import machine as told  # noqa: F401
from twisted_msgproto.umq.machine import Client, Server


def masked(message):
    """A message as a client sends it, with a mask of zeros."""
    octets = message.encode() if isinstance(message, str) else message
    size = len(octets)
    if size < 126:
        head = bytes([0x80 | size])
    else:
        head = b"\xfe" + size.to_bytes(2) if size < 65536 else b"\xff" + size.to_bytes(8)
    return (b"\x81" if isinstance(message, str) else b"\x82") + head + bytes(4) + octets


class Pair:
    """Both ends, by name, and their sessions."""

    def __init__(
        self,
        server=None,
        client=None,
        *,
        clock=None,
        connect=True,
        full=FULL_BYTES,
        url="ws://server:5048/",
    ):
        self.clock = clock or Clock()
        self.server_factory = server or UmqServerFactory(clock=self.clock)
        self.client_factory = client or UmqClientFactory(url, clock=self.clock)
        build = self.server_factory.buildProtocol, self.client_factory.buildProtocol
        self.line = Line(*build, full=full)
        self.ends = {"server": self.line.server, "client": self.line.client}
        self.server, self.client = (end.protocol.session for end in self.line.ends)
        self.pump = self.line.pump
        self.cut = self.line.cut
        if connect:
            self.pump()

    def mute(self):
        """Upgrade, and have the client not read that: it says nothing by itself."""
        self.deafen()
        self.pump()

    def deafen(self, name="client"):
        self.ends[name].deaf = True

    def listen(self):
        for end in self.line.ends:
            end.deaf = False

    def raw(self, *messages):
        """Have the client say what our own machine would not."""
        self.ends["server"].protocol.dataReceived(b"".join(map(masked, messages)))
        self.pump()

    def advance(self, seconds):
        """Let time pass, and everything move."""
        self.clock.advance(seconds)
        self.pump()

    def close(self):
        """End it; nothing of it may be left over."""
        self.listen()
        for end in self.line.ends:
            end.abortConnection()
        for end in self.line.ends:
            end.lost(ConnectionDone())
        assert self.clock.getDelayedCalls() == [], self.clock.getDelayedCalls()


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
        return fail(Refused("no route", Code.NO_ROUTE))

    def do_attach(self, request, rest):
        return Reply("attached", [b"1", succeed(b"2"), fail(RuntimeError("x"))])

    def do_number(self, request, rest):
        return 42

    def do_huge(self, request, rest):
        return "x" * (2 << 20)

    def do_count(self, request, rest):
        return Reply(repr(request.attachments))

    def do_topic(self, request, rest):
        self.topic = self.openTopic(rest)
        self.reason = []
        self.topic.whenClosed().addCallback(self.reason.append)
        return "accepted"

    def do_badtopic(self, request, rest):
        self.openTopic(rest)


def streaming():
    """A method that has its attachments one by one; the session keeps them as ``stream``."""
    methods = MethodRegistry()

    @methods.register(streamed=True, with_request=True)
    def stream(request):
        request.session.stream = request.stream
        return "streaming"

    return methods


def coming_back(clock, pairs, **limits):
    """A service whose sessions are with one server of ``clock``; each stands in ``pairs``."""
    server = UmqServerFactory(clock=clock)
    server.protocol = Echo

    class Endpoint:
        def connect(self, factory):
            both = Pair(server, factory, clock=clock, connect=False)
            pairs.append(both)
            return succeed(both.ends["client"].protocol)

    client = UmqClientFactory("ws://server/", limits=limits, clock=clock)
    return server, UmqClientService(Endpoint(), client, retryPolicy=lambda attempt: 1.0)


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


class Pairs(TestCase):
    """Its pairs end with the test, and leave nothing over."""

    def pair(self, *args, **options):
        both = pair(*args, **options)
        self.addCleanup(both.close)
        return both


DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def base36(number):
    """An id as it is written (UM-02)."""
    return (base36(number // 36) if number >= 36 else "") + DIGITS[number % 36]


def names(events):
    return [type(event).__name__ for event in events]


@cache
def limits(**changes):
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return UmqServerFactory(limits=named).limits


def server(**changes):
    """A server whose session is open, with nothing left to send."""
    machine = Server(limits(**changes), 0.0)
    machine.receive(["H1:"], 0.0)
    machine.welcome()
    machine.outputs()
    return machine


def client(**changes):
    """A client whose session is open, with nothing left to send."""
    machine = Client(limits(**changes), 0.0)
    machine.hello()
    feed(machine, "W1:")
    machine.outputs()
    return machine


def feed(machine, *messages, now=0.0, grouped=False):
    """All events of ``messages`` but the announcements of attachments; ``grouped``: of reads.

    A server is accepted as soon as it has said ``W``.
    """
    found = []
    for read in messages if grouped else [[message] for message in messages]:
        found += (events := machine.receive(read, now))
        if "WelcomeReceived" in names(events):
            found += machine.accept(now)
    return [event for event in found if names([event]) != ["AttachmentsAnnounced"]]


def refused(machine, *messages, code=3, reason=None):
    """The last of ``messages`` is answered with ``F``, which is the last word of the machine."""
    found = feed(machine, *messages)
    assert names(found)[-1] == "UmqFault", found
    assert found[-1].code == code
    assert reason is None or found[-1].reason == reason
    assert len(found[-1].text) <= 200 and len(found[-1].nbytes) <= 256
    assert machine.closed and machine.deadline is None
    assert machine.outputs()[-1].startswith(f"F0:{code} ")
    assert feed(machine, "C9:x", b"x", "H1:") == []
    assert machine.outputs() == []
    assert due(machine, 1e9) == ([], None)
    return found[:-1]


CLIENT = ("START", "AWAITING_WELCOME", "OPEN", "CLOSED")
SERVER = ("AWAITING_HELLO", "RECEIVING_HELLO", "AUTHORISING", "OPEN", "CLOSED")
STATES = [("client", state) for state in CLIENT] + [("server", state) for state in SERVER]
"""The states of both, as their snapshots name them."""


def at(side, state):
    """A machine in a state."""
    if side == "server":
        machine = Server(limits(), 0.0)
        if state == "RECEIVING_HELLO":
            feed(machine, "A1:H1:")
        elif state in ("AUTHORISING", "OPEN"):
            feed(machine, "H1:")
            if state == "OPEN":
                machine.welcome()
    else:
        machine = Client(limits(), 0.0)
        if state in ("AWAITING_WELCOME", "OPEN"):
            machine.hello()
        if state == "OPEN":
            feed(machine, "W1:")
    if state == "CLOSED":
        machine.lost(0.0)
    machine.outputs()
    assert machine.snapshot()["state"] == state
    return machine


EXAMPLES = {
    "H": "H1:",
    "W": "W1:",
    "F": "F0:1 no",
    "C": "C1:x",
    "B": "B1:1:x",
    "R": "R1:x",
    "E": "E1:x",
    "T": "T1:x",
    "D": "D1:",
    "U": "U1:",
    "S": "S:a=b",
    "X": "X:a",
    "-": "-:x",
    "attachment": b"x",
}
