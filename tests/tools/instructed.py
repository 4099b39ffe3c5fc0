"""The work of the bench's rows in one process: no sockets, no other process, no time that passes.

:mod:`.instructions` runs this file under valgrind, in this tree and in trees of earlier revisions.
So it imports nothing of ``tests``, and of the package only what both have; where a name has moved,
:func:`first_of` says so.

A row's load is made once and sent again and again, so encoding it is no part of a message's cost.
The network is a list of octets (:class:`Transport`), the clock is Twisted's for tests and stands
still, and the sink says at once that a batch is safe, except in rows *into the queue*: there a real
queue is written, group by group, and the reactor waits for it as a real one does.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any

SOCKET_OCTETS = 64 << 10
"""A read finds at most this much in its socket, where a row does not say more."""

FULL_OCTETS = 1 << 20
"""A socket that has been read for a while holds this much, and a read returns what it asks for."""

LARGE = 3
"""A row's load is sent a number of times, and this many times as often."""

YOUNG = (700, 10)
"""Python's collector looks at young objects as often as by default."""

NEEDED = ("twisted.internet.ssl", "autobahn.twisted.websocket", "txzmq", "pyarrow")
"""What many rows need of others is imported once, in both revisions alike."""

MOVED_NAMES = 211
"""So many texts move what is made after them, for each further layout."""

SWITCH_SECONDS = 3600.0
"""No thread takes the interpreter from another: it gets it when the other waits."""

NOW = 1_700_000_000.0

Work = Callable[[int], int]
"""This does a row's work so many times, and returns how many messages were acknowledged."""


class Missing(Exception):
    """This revision has nothing to measure in a row."""


@dataclass(frozen=True)
class Row:
    """One row: what is done, how many messages one time has, and how often it is done."""

    name: str
    title: str
    messages: int
    times: int
    modules: tuple[str, ...]
    begin: Callable[[Path], Work]


ROWS: dict[str, Row] = {}


def row(
    name: str, title: str, *, messages: int, times: int, modules: tuple[str, ...]
) -> Callable[[Callable[[Path], Work]], Callable[[Path], Work]]:
    """Make a row of a function that prepares the work below a directory."""

    def made(begin: Callable[[Path], Work]) -> Callable[[Path], Work]:
        ROWS[name] = Row(name, title, messages, times, modules, begin)
        return begin

    return made


def first_of(*names: str) -> Any:
    """The first of these modules or attributes (``module:name``) that this revision has."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found = import_module(module)
            return getattr(found, attribute) if attribute else found
        except (ImportError, AttributeError):
            continue
    raise Missing(names[0])


# ── The network, the clock and the sink ────────────────────────────────────────────────────────


class Transport:
    """One end of a connection: what is written is kept, and reading can be paused.

    It is its own socket, too: short answers go to that at once.
    """

    bufferSize = 64 << 10  # a link sets how much one read returns

    def __init__(self) -> None:
        from twisted.internet.address import IPv4Address

        self.address = IPv4Address("TCP", "127.0.0.1", 50000)
        self.written: list[bytes] = []
        self.reading = True
        self.open = True
        self.write = self.written.append

    def writeSequence(self, pieces: Any) -> None:
        self.written.extend(pieces)

    def getPeer(self) -> Any:
        return self.address

    getHost = getPeer

    def getHandle(self) -> Transport:
        return self

    def send(self, octets: bytes) -> int:
        self.written.append(octets)
        return len(octets)

    def setTcpNoDelay(self, on: bool) -> None:
        """There is no TCP."""

    def setTcpKeepAlive(self, on: bool) -> None:
        """There is no TCP."""

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """What is written never waits."""

    def unregisterProducer(self) -> None:
        """What is written never waits."""

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        self.reading = True

    def loseConnection(self) -> None:
        self.open = self.reading = False

    abortConnection = loseConnection


@cache
def cut(octets: bytes, start: int, end: int) -> bytes:
    """What one read returns; it is cut once, because a system's copy is not counted."""
    return octets[start:end]


class End:
    """A protocol and its end of a connection."""

    def __init__(self, factory: Any, clock: Any, octets: int = SOCKET_OCTETS) -> None:
        from twisted.internet.interfaces import IPushProducer, ITransport, IWriteDescriptor
        from zope.interface import directlyProvides

        self.clock = clock
        self.octets = octets
        self.transport = Transport()
        directlyProvides(self.transport, ITransport, IPushProducer, IWriteDescriptor)
        self.protocol = factory.buildProtocol(self.transport.address)
        self.protocol.makeConnection(self.transport)

    def receive(self, octets: bytes) -> None:
        """Let the protocol read these octets, as it wants to read."""
        transport, received, at = self.transport, self.protocol.dataReceived, 0
        while at < len(octets):
            if not transport.reading:
                if not (transport.open and due(self.clock)):
                    raise RuntimeError("it does not read")
                continue
            end = at + min(transport.bufferSize, self.octets)
            received(cut(octets, at, end))
            at = end
        due(self.clock)

    def answers(self) -> bytes:
        """What it has written since the last call."""
        written = self.transport.written
        octets = b"".join(written)
        written.clear()
        return octets


def due(clock: Any) -> bool:
    """Let the calls happen for which no time has to pass; whether there were any."""
    some = False
    while clock.calls and clock.calls[0].getTime() <= clock.seconds():
        clock.advance(0)
        some = True
    return some


def standing_clock() -> Any:
    """A clock of Twisted's that stands still; what a thread calls waits for :func:`awaited`."""
    from twisted.internet.task import Clock

    clock = Clock()
    clock.rightNow = NOW
    clock.seconds = repeat(NOW).__next__  # as a reactor's: no Python code
    clock.threadCalls = queue.SimpleQueue()
    clock.callFromThread = clock.threadCalls.put
    return clock


def awaited(clock: Any) -> None:
    """Wait for what the queue's thread has to say, and let it happen."""
    clock.threadCalls.get()()
    due(clock)


def wall() -> float:
    return NOW


def safe_sink() -> Any:
    """A sink that says at once that a batch is safe."""
    from twisted.internet.defer import succeed
    from zope.interface import directlyProvides

    sink_interface = import_module("twisted_msgproto.net.sink").IMessageSink

    class Sink:
        def put(self, batch: Any) -> Any:
            return succeed(None)

    sink = Sink()
    directlyProvides(sink, sink_interface)
    return sink


def durable_sink(directory: Path, clock: Any) -> Any:
    """A sink over a real queue."""
    made = import_module("twisted_msgproto.net.sink").DurableSink
    return made(directory / "queue", clock, max_bytes=1 << 40)


def held_back(writer: Any) -> Any:
    """Within this the queue's thread takes nothing, so a group has the same batches in each run."""
    return writer._changed


# ── Lumberjack ─────────────────────────────────────────────────────────────────────────────────

BODY_OCTETS = 300
LUMBERJACK = ("twisted_msgproto.lumberjack.protocol", "twisted_msgproto.lumberjack.wire")


def documents(count: int) -> list[bytes]:
    """Documents of 300 octets, as those of the bench."""
    source = random.Random(1)
    words = [source.randbytes(4).hex() for _ in range(500)]
    bodies = []
    for number in range(count):
        text = f'{{"n":{number},"message":"'
        while len(text) < BODY_OCTETS - 2:
            text += source.choice(words) + " "
        bodies.append((text[: BODY_OCTETS - 2] + '"}').encode())
    return bodies


def json_window(size: int) -> bytes:
    wire = import_module("twisted_msgproto.lumberjack.wire")
    return wire.encode_window(size) + wire.encode_json(range(1, size + 1), documents(size))


def zlib_window(size: int) -> bytes:
    wire = import_module("twisted_msgproto.lumberjack.wire")
    frames = wire.encode_json(range(1, size + 1), documents(size))
    return wire.encode_window(size) + wire.encode_compressed(frames, 3)


def data_window(size: int) -> bytes:
    wire = import_module("twisted_msgproto.lumberjack.wire")
    value = "v" * ((BODY_OCTETS - 5 * (4 + 6 + 4)) // 5)
    pairs = [{f"field{key}": value for key in range(5)}] * size
    return wire.encode_window(size, wire.VERSION_1) + wire.encode_data(range(1, size + 1), pairs)


def lumberjack(
    window: bytes, size: int, directory: Path | None = None, octets: int = FULL_OCTETS
) -> Work:
    """A reader of a socket with so many ``octets``; with a directory it stores in a queue there."""
    clock = standing_clock()
    sink = safe_sink() if directory is None else durable_sink(directory, clock)
    factory = import_module(LUMBERJACK[0]).LumberjackServerFactory(
        sink, clock=clock, wallClock=wall
    )
    end = End(factory, clock, octets)
    together = nullcontext() if directory is None else held_back(sink.writer)
    last = struct.pack(">I", size)

    def work(times: int) -> int:
        acknowledged = 0
        for _ in range(times):
            with together:
                end.receive(window)
            answers = end.answers()
            while not answers.endswith(last):
                awaited(clock)
                answers += end.answers()
            acknowledged += size
        return acknowledged

    return work


@row(
    "lumberjack-2048",
    "Lumberjack reader, J, window 2048",
    messages=2048,
    times=100,
    modules=LUMBERJACK,
)
def _(directory: Path) -> Work:
    return lumberjack(json_window(2048), 2048)


@row(
    "lumberjack-2048-64k",
    "Lumberjack reader, J, window 2048 in reads of 64 KiB",
    messages=2048,
    times=100,
    modules=LUMBERJACK,
)
def _(directory: Path) -> Work:
    return lumberjack(json_window(2048), 2048, octets=SOCKET_OCTETS)


@row(
    "lumberjack-50",
    "Lumberjack reader, J, window 50, one in flight",
    messages=50,
    times=800,
    modules=LUMBERJACK,
)
def _(directory: Path) -> Work:
    return lumberjack(json_window(50), 50)


@row(
    "lumberjack-zlib",
    "Lumberjack reader, zlib 3, window 2048",
    messages=2048,
    times=12,
    modules=LUMBERJACK,
)
def _(directory: Path) -> Work:
    return lumberjack(zlib_window(2048), 2048)


@row(
    "lumberjack-data",
    "Lumberjack reader, D with 5 pairs, window 2048",
    messages=2048,
    times=12,
    modules=LUMBERJACK,
)
def _(directory: Path) -> Work:
    return lumberjack(data_window(2048), 2048)


@row(
    "lumberjack-queue",
    "Lumberjack into the queue, J, window 2048",
    messages=2048,
    times=50,
    modules=(*LUMBERJACK, "twisted_msgproto.queue"),
)
def _(directory: Path) -> Work:
    return lumberjack(json_window(2048), 2048, directory)


@row(
    "lumberjack-queue-64k",
    "Lumberjack into the queue, window 2048 in reads of 64 KiB",
    messages=2048,
    times=50,
    modules=(*LUMBERJACK, "twisted_msgproto.queue"),
)
def _(directory: Path) -> Work:
    return lumberjack(json_window(2048), 2048, directory, SOCKET_OCTETS)


# ── MicroMsg2 ──────────────────────────────────────────────────────────────────────────────────

MICROMSG2 = (
    "twisted_msgproto.micromsg2.protocol",
    "twisted_msgproto.micromsg2.machine",
    "twisted_msgproto.micromsg2.wire",
)
WINDOW = 100
ANSWER_OCTETS = 5
WINDOWS_MAX = 650
"""So many windows before the numbers of a connection wrap."""


class Micromsg2:
    """A server, and sessions with it."""

    def __init__(self, sink: Any, clock: Any) -> None:
        self.wire = import_module(MICROMSG2[2])
        self.clock = clock
        self.factory = import_module(MICROMSG2[0]).MicroMsg2ServerFactory(
            sink, limits={"subscriber-messages": 1 << 30}, clock=clock, wallClock=wall
        )

    def session(self, *required: Any) -> End:
        proposal = import_module(MICROMSG2[1]).Proposal(required=required)
        opening = self.wire.encode_handshake(proposal.opening())
        end = End(self.factory, self.clock)
        end.receive(opening)
        end.receive(opening)
        if not end.answers():
            raise RuntimeError("the server refused the handshake")
        return end


def micromsg2_windows(wire: Any, count: int) -> list[bytes]:
    address, payload = wire.encode_address("orders"), b"x" * 100
    return [
        b"".join(
            wire.encode_message(number, address, payload)[0] for number in range(n, n + WINDOW)
        )
        for n in range(1, count * WINDOW + 1, WINDOW)
    ]


def micromsg2(directory: Path | None = None) -> Work:
    clock = standing_clock()
    sink = safe_sink() if directory is None else durable_sink(directory, clock)
    together = nullcontext() if directory is None else held_back(sink.writer)
    served = Micromsg2(sink, clock)
    end = served.session(served.wire.Offer("batch-ack", {"max-count": str(WINDOW)}))
    windows = iter(micromsg2_windows(served.wire, WINDOWS_MAX))

    def work(times: int) -> int:
        acknowledged = 0
        for _ in range(times):
            with together:
                end.receive(next(windows))
            answer = end.answers()
            while len(answer) < ANSWER_OCTETS:
                awaited(clock)
                answer += end.answers()
            acknowledged += WINDOW
        return acknowledged

    return work


@row(
    "micromsg2-ack",
    "MicroMsg2 server, 100 octets, batch-ack 100",
    messages=WINDOW,
    times=200,
    modules=MICROMSG2,
)
def _(directory: Path) -> Work:
    return micromsg2()


@row(
    "micromsg2-queue",
    "MicroMsg2 into the queue, batch-ack 100",
    messages=WINDOW,
    times=200,
    modules=(*MICROMSG2, "twisted_msgproto.queue"),
)
def _(directory: Path) -> Work:
    return micromsg2(directory)


def fan_out(width: int) -> Work:
    served = Micromsg2(safe_sink(), standing_clock())
    wire = served.wire
    subscribers = [served.session(wire.Offer("pub-sub")) for _ in range(width)]
    for one in subscribers:
        one.receive(wire.encode_command("subscribe", {"destination": "topic/prices"}))
    publisher = served.session()
    frame = wire.encode_message(1, wire.encode_address("topic/prices"), b"x" * 100)[0]
    window = frame * WINDOW

    def work(times: int) -> int:
        delivered = 0
        for _ in range(times):
            publisher.receive(window)
            publisher.answers()
            for one in subscribers:
                delivered += len(one.answers())
        return delivered // len(frame)

    return work


@row(
    "micromsg2-fan-10",
    "MicroMsg2 fan-out to 10 subscribers, a delivery",
    messages=10 * WINDOW,
    times=20,
    modules=MICROMSG2,
)
def _(directory: Path) -> Work:
    return fan_out(10)


@row(
    "micromsg2-fan-100",
    "MicroMsg2 fan-out to 100 subscribers, a delivery",
    messages=100 * WINDOW,
    times=3,
    modules=MICROMSG2,
)
def _(directory: Path) -> Work:
    return fan_out(100)


@row(
    "micromsg2-filter",
    "MicroMsg2, a filter check with two conditions",
    messages=1000,
    times=20,
    modules=MICROMSG2,
)
def _(directory: Path) -> Work:
    wire = import_module(MICROMSG2[2])
    chosen = wire.Filter.read("amount>=N100;market=Teu")
    properties = wire.read_properties(b"amount:N250;market:Teu;")

    def work(times: int) -> int:
        return sum(chosen.matches(properties) for _ in range(1000 * times))

    return work


# ── sABC ───────────────────────────────────────────────────────────────────────────────────────

SABC = ("twisted_msgproto.sabc.protocol", "twisted_msgproto.sabc.wire")
REQUESTS = 256
SESSION_ID = "a-session-id-of-the-usual-length-0123456789"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def framed(octets: bytes) -> bytes:
    """One binary message of a WebSocket client, with a mask of zeros."""
    length = len(octets)
    head = bytes((0x82, 0x80 | length)) if length <= 125 else struct.pack("!BBH", 0x82, 254, length)
    return head + bytes(4) + octets


def unframed(octets: bytes) -> bytes:
    """The messages of a WebSocket server behind one another, all of them short."""
    pieces, at = [], 0
    while at < len(octets):
        length, start = octets[at + 1], at + 2
        if length == 126:
            length, start = int.from_bytes(octets[start : start + 2], "big"), at + 4
        at = start + length
        pieces.append(octets[start:at])
    return b"".join(pieces)


def sabc(kind: str, directory: Path | None = None) -> Work:
    """``kind``: ``lengths``, ``marks`` (bodies end at a mark), ``hook`` or ``websocket``."""
    sides, wire = import_module(SABC[0]), import_module(SABC[1])
    clock = standing_clock()
    sink = safe_sink() if directory is None else durable_sink(directory, clock)
    factory = sides.SabcServerFactory(
        None if kind == "hook" else sink,
        newSessionId=lambda: SESSION_ID,
        clock=clock,
        wallClock=wall,
    )
    if kind == "hook":

        class Echo(sides.SabcServer):  # type: ignore[name-defined, misc]
            def requestReceived(self, message: Any) -> Any:
                return message.body

        factory.protocol = Echo
    websocket, lengths = kind == "websocket", kind in ("lengths", "hook")
    end = End(factory.webSocketFactory() if websocket else factory, clock)
    if websocket:
        end.receive(UPGRADE)
        end.answers()

    def sent(frame: Any) -> bytes:
        octets = wire.encode(frame, lengths=lengths)
        return framed(octets) if websocket else octets

    end.receive(
        sent(wire.Connect({"client-id": "bench", **({"framing": "length"} if lengths else {})}))
    )
    if SESSION_ID.encode() not in end.answers():
        raise RuntimeError("the session does not stand")
    together = nullcontext() if directory is None else held_back(sink.writer)
    body = b"x" * 200
    windows = [
        b"".join(
            sent(
                wire.Message({"session-id": SESSION_ID, "msg-id": str(number * REQUESTS + n)}, body)
            )
            for n in range(REQUESTS)
        )
        for number in range(2)
    ]

    def work(times: int) -> int:
        answered = 0
        for number in range(times):
            with together:
                end.receive(windows[number % 2])
            missing = REQUESTS
            while True:
                answers = end.answers()
                missing -= (unframed(answers) if websocket else answers).count(b"\0")
                if missing <= 0:
                    break
                awaited(clock)
            answered += REQUESTS - missing
        return answered

    return work


for kind, title in (
    ("lengths", "request and ack, 200 octets"),
    ("marks", "request and ack, 200 octets, without lengths"),
    ("hook", "request and answer of a hook, 200 octets"),
    ("websocket", "request and ack, 200 octets, WebSocket"),
):

    @row(f"sabc-{kind}", f"sABC {title}", messages=REQUESTS, times=10, modules=SABC)
    def _(directory: Path, kind: str = kind) -> Work:
        return sabc(kind)


@row(
    "sabc-queue",
    "sABC request and ack, 200 octets, into the queue",
    messages=REQUESTS,
    times=30,
    modules=(*SABC, "twisted_msgproto.queue"),
)
def _(directory: Path) -> Work:
    return sabc("lengths", directory)


# ── UMQ ────────────────────────────────────────────────────────────────────────────────────────

UMQ = ("twisted_msgproto.umq.protocol.sides",)
CALLS = 100


@row(
    "umq-echo",
    "UMQ echo call, 100 in flight, both sides",
    messages=CALLS,
    times=15,
    modules=UMQ,
)
def _(directory: Path) -> Work:
    sides = import_module(UMQ[0])
    clock = standing_clock()

    class Echo(sides.UmqServer):  # type: ignore[name-defined, misc]
        def callReceived(self, request: Any) -> str:
            return request.payload

    served = sides.UmqServerFactory(clock=clock, wallClock=wall)
    served.protocol = Echo
    calling = sides.UmqClientFactory("ws://127.0.0.1:5048/", clock=clock, wallClock=wall)
    server, client = End(served, clock), End(calling, clock)

    def moved() -> bool:
        asked = client.answers()
        if asked:
            server.receive(asked)
        answered = server.answers()
        if answered:
            client.receive(answered)
        return bool(asked or answered)

    while moved():
        pass
    session = client.protocol.session
    text = "x" * 100

    def work(times: int) -> int:
        total, made, answered = CALLS * times, 0, 0

        def call() -> None:
            nonlocal made
            made += 1
            session.call(text).addCallback(heard)

        def heard(reply: Any) -> None:
            nonlocal answered
            answered += reply.payload == text
            if made < total:
                call()

        for _ in range(CALLS):
            call()
        while moved():
            pass
        return answered

    return work


# ── MTL ────────────────────────────────────────────────────────────────────────────────────────

MTL = (
    "twisted_msgproto.mtl",
    "twisted_msgproto.mtl.machine.peers",
)
CONTENTS = 256
"""One read of a ROUTER socket brings this many messages."""
CONTROL, DATA = "tcp://127.0.0.1:5049", "tcp://127.0.0.1:5050"


class Router:
    """A ROUTER socket: what it is told to send is kept."""

    trouble = ""

    def __init__(self, received: Any) -> None:
        self.received = received
        self.sent: list[list[bytes]] = []
        self.sendAll = self.sent.extend

    def bind(self, address: str) -> str:
        self.address = address
        return address

    def pauseProducing(self) -> None:
        """The work reads only what was answered."""

    def resumeProducing(self) -> None:
        """See above."""

    def shutdown(self) -> None:
        """There is nothing to close."""


class Routers:
    """Makes the server's sockets."""

    def __init__(self) -> None:
        self.made: list[Router] = []

    def router(self, received: Any, *arguments: Any, **options: Any) -> Router:
        self.made.append(Router(received))
        return self.made[-1]

    def admit(self, *arguments: Any) -> None:
        """Whoever comes may connect."""

    def shutdown(self) -> None:
        """There is nothing to close."""


@row(
    "mtl-content",
    "MTL Content, confirm full, 100 octets",
    messages=CONTENTS,
    times=40,
    modules=MTL,
)
def _(directory: Path) -> Work:
    mtl, peers = import_module(MTL[0]), import_module(MTL[1])
    clock, sockets = standing_clock(), Routers()
    factory = mtl.MtlServerFactory(
        safe_sink(), clock=clock, wallClock=wall, sockets=lambda clock: sockets
    )
    factory.listen([CONTROL], DATA)
    routers = {router.address: router for router in sockets.made}

    def tell(address: str, number: int, *messages: list[bytes]) -> list[list[bytes]]:
        router, name = routers[address], peers.connection_name(b"\0" * 4 + bytes([number]), number)
        sent = [[name, *frames] for frames in messages]
        router.received(sent, {name: peers.Peer("192.0.2.1")})
        due(clock)
        answers = list(router.sent)
        router.sent.clear()
        return answers

    def ask(command: str, **body: Any) -> Any:
        text = json.dumps({key.replace("_", "-"): value for key, value in body.items()})
        command = f"Connection.{command}"
        return json.loads(tell(CONTROL, 1, [b"", command.encode(), text.encode()])[0][3])

    ask("Open", protocol={"name": "MTL", "version": 1}, virtual_host="bench")
    ask("Profile", profile="ingest")
    lease = ask("Writer", resources=["bench"], confirm="full")["lease"].encode()
    tell(DATA, 2, [b"\1" + bytes(8) + bytes([len(lease)]) + lease, b""])
    tail, content = b"\x05bench\0\0\0\0", b"x" * 100

    def frames(first: int) -> list[list[bytes]]:
        return [
            [b"\5" + number.to_bytes(8, "big") + tail, content]
            for number in range(first, first + CONTENTS)
        ]

    sequence = 1

    def work(times: int) -> int:
        nonlocal sequence
        confirmed = 0
        for _ in range(times):
            answers = tell(DATA, 2, *frames(sequence))
            sequence += CONTENTS
            last = int.from_bytes(answers[-1][1][1:9], "big")
            confirmed += CONTENTS if last == sequence - 1 and answers[-1][1][0] == 6 else 0
        return confirmed

    return work


# ── The queue ──────────────────────────────────────────────────────────────────────────────────

QUEUE = ("twisted_msgproto.queue", "twisted_msgproto.queue.columns")


def groups(group: int, count: int, batch: int) -> list[list[Any]]:
    """Groups of batches, as those of the bench."""
    made_batch = import_module("twisted_msgproto.core.message").MessageBatch
    source = random.Random(1)
    bodies = [source.randbytes(BODY_OCTETS // 2).hex().encode() for _ in range(group)]
    return [
        [
            made_batch(
                "lumberjack",
                "json",
                1_700_000_000_000_000 + number,
                peer="tcp:127.0.0.1:50000",
                session="lumberjack-20260101T000000-1",
                count=batch,
                octets=batch * BODY_OCTETS,
                message_id=list(range(number * group + at + 1, number * group + at + 1 + batch)),
                body=bodies[at : at + batch],
            )
            for at in range(0, group, batch)
        ]
        for number in range(count)
    ]


def written(directory: Path, group: int, batch: int) -> Work:
    """Groups through the writer, the next when the one before is on disk."""
    rooms = import_module(QUEUE[0])
    writer = rooms.QueueWriter(directory / "queue", max_bytes=1 << 40, group_messages=group)
    parts = groups(group, 1, batch)[0]
    done = threading.Semaphore(0)
    failed: list[Any] = []

    def stored(error: Any, *first: Any) -> None:
        if error is not None:
            failed.append(error)
        done.release()

    def work(times: int) -> int:
        for _ in range(times):
            with held_back(writer):
                for part in parts:
                    writer.submit(part, stored)
            for _ in parts:
                done.acquire()
        return 0 if failed else times * group

    return work


for group, batch, times in ((1000, 1000, 60), (1000, 50, 60), (16384, 2048, 6), (1, 1, 1500)):

    @row(
        f"queue-{group}" + (f"-of-{batch}" if batch != group else ""),
        f"queue append from columns, groups of {group}, batches of {batch}",
        messages=group,
        times=times,
        modules=QUEUE,
    )
    def _(directory: Path, group: int = group, batch: int = batch) -> Work:
        return written(directory, group, batch)


@row(
    "queue-encoded",
    "queue append, encoded groups of 1000",
    messages=1000,
    times=300,
    modules=QUEUE,
)
def _(directory: Path) -> Work:
    encode = import_module(QUEUE[1]).encode
    log = import_module(QUEUE[0]).SegmentLog(directory / "log", max_bytes=1 << 40)
    frame = encode(groups(1000, 1, 1000)[0])

    def work(times: int) -> int:
        before = log.end
        for _ in range(times):
            log.append([frame])
        return log.end - before

    return work


@row("queue-encode", "encoding groups of 1000", messages=1000, times=100, modules=QUEUE)
def _(directory: Path) -> Work:
    encode = import_module(QUEUE[1]).encode
    parts = groups(1000, 1, 1000)[0]

    def work(times: int) -> int:
        return sum(encode(parts).count for _ in range(times))

    return work


def filled(directory: Path, group: int, batch: int, count: int) -> Any:
    """A queue of so many groups, and a reader of it."""
    encode = import_module(QUEUE[1]).encode
    rooms = import_module(QUEUE[0])
    log = rooms.SegmentLog(directory / "queue", max_bytes=1 << 40)
    for parts in groups(group, count, batch):
        log.append([encode(parts)])
    log.close()
    return rooms.QueueReader(directory / "queue")


for group, batch, count in ((1000, 1000, 20), (1000, 50, 20), (1, 1, 400)):

    @row(
        f"queue-read-{group}" + (f"-of-{batch}" if batch != group else ""),
        f"queue read, groups of {group}, batches of {batch}",
        messages=group * count,
        times=5,
        modules=QUEUE,
    )
    def _(directory: Path, group: int = group, batch: int = batch, count: int = count) -> Work:
        reader = filled(directory, group, batch, count)

        def work(times: int) -> int:
            return sum(part.num_rows for _ in range(times) for part in reader.read(0, reader.end()))

        return work


# ── The broker ─────────────────────────────────────────────────────────────────────────────────


def through_broker(batch: int) -> Work:
    """Publish, push and settle so many letters at a time."""
    broker = first_of("twisted_msgproto.core.broker")
    limits = first_of("twisted_msgproto.core.limits:Limits").of(broker.LIMITS)
    made = broker.Broker(limits.replace({"queue-messages": 1 << 30}), durable=True)
    here = broker.QueueName("bench", "here")
    octets = broker.weight(b"", b"12345678")

    class Consumer:
        held: list[int]

        def __init__(self) -> None:
            self.held = []

        def room(self) -> int:
            return 1000 - len(self.held)

        def push(self, queue: Any, letters: Any) -> bool:
            self.held += [letter.place for letter in letters]
            return True

        def failed(self, error: Exception) -> None:
            raise error

    consumer = Consumer()
    made.subscribe(consumer, here, 0.0)
    made.go_on()
    place = 0

    def work(times: int) -> int:
        nonlocal place
        settled = 0
        for _ in range(times):
            letters = [
                broker.Letter(number, octets, b"", b"12345678", 0.0)
                for number in range(place, place + batch)
            ]
            place += batch
            made.publish(here, letters, 0.0)
            held, consumer.held = consumer.held, []
            made.settle(consumer, held)
            made.take_events()
            settled += len(held)
        return settled

    return work


for batch, times in ((1, 4000), (100, 150)):

    @row(
        f"broker-{batch}",
        f"broker, publish to acknowledged, {batch} at a time",
        messages=batch,
        times=times,
        modules=("twisted_msgproto.core.broker",),
    )
    def _(directory: Path, batch: int = batch) -> Work:
        return through_broker(batch)


# ── The table ──────────────────────────────────────────────────────────────────────────────────

TABLE = (
    "twisted_msgproto.table.landing",
    "twisted_msgproto.table.plan",
    "twisted_msgproto.queue",
    "twisted_msgproto.queue.lineage",
)


@row(
    "table-plan",
    "the plan of a batch over 1000 gateways, a gateway",
    messages=1000,
    times=10,
    modules=TABLE,
)
def _(directory: Path) -> Work:
    planning, lineage = import_module(TABLE[1]), import_module(TABLE[3])
    landed = lineage.Landed(20_000, 1, 1)
    waiting = [
        planning.Waiting(
            f"gateway-{number}",
            f"grpc://192.0.2.1:{number}",
            lineage.Landed(10, 1, 1),
            lineage.Description(
                f"gateway-{number}", 0, 0, 20_000, landed, 6_000_000, 1, 6_000_000, (), {}
            ),
        )
        for number in range(1000)
    ]

    def place(ends: Any) -> Any:
        return {gateway: lineage.Landed(offset, 1, 1) for gateway, offset in ends.items()}

    def work(times: int) -> int:
        planned = 0
        for _ in range(times):
            plan = planning.plan_batch(waiting, place, cores=4)
            planned += len(plan.landed)
        return planned

    return work


@row(
    "table-land",
    "a queue's rows into files of the table, 20000 rows",
    messages=20_000,
    times=1,
    modules=TABLE,
)
def _(directory: Path) -> Work:
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    landing = import_module(TABLE[0])
    reader = filled(directory, 1000, 1000, 20)
    described = reader.describe()
    target = landing.Target(str(directory / "table"))
    whole = landing.Range(reader.directory, reader.queue_id, 0, described.end, described.landed)

    def work(times: int) -> int:
        return sum(
            landing.land_ranges(target, [whole], lambda part: reader).rows[reader.queue_id]
            for _ in range(times)
        )

    return work


# ── Running them ───────────────────────────────────────────────────────────────────────────────


def done(name: str, times: int) -> int:
    """Do a row's work so many times; return its messages.

    Raises RuntimeError unless all of them are acknowledged, and :class:`Missing` where this
    revision has nothing to measure.
    """
    one = ROWS[name]
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(
        prefix="instructions-", dir=shared if os.path.isdir(shared) else None
    ) as made:
        work = one.begin(Path(made))
        # What imports and the beginning have made is hidden from the collector, and it never looks
        # at everything: when it would do that depends on what else has been imported.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*YOUNG, 1 << 30)
        acknowledged = work(times)
    messages = one.messages * times
    if acknowledged != messages:
        raise RuntimeError(f"{name}: {acknowledged} of {messages} messages were acknowledged")
    return messages


def frozen_time() -> None:
    """Let the clocks that the package asks by name stand still.

    Under valgrind all takes fifty times as long.  What the package decides by the time that
    something took would be decided otherwise there, and otherwise in each run.
    """
    for name in ("perf_counter", "monotonic", "thread_time", "process_time"):
        setattr(time, name, repeat(NOW).__next__)


def compiled() -> list[str]:
    """The compiled parts that are there in this tree."""
    found = []
    for name in ("twisted_msgproto.core._packed", "twisted_msgproto.lumberjack._scan"):
        try:
            found.append(str(import_module(name).__file__))
        except ImportError:
            continue
    return found


def both_times(one: Row, layout: int) -> None:
    """Import what a row needs, then do its work twice and print what came of it.

    Where things lie in memory moves a row by up to 2 %: Python's tables and caches find some of
    them by their addresses.  So a row is counted in several layouts.
    """
    moving = [f"moving {number}" for number in range(MOVED_NAMES * layout)]
    for module in one.modules:
        try:
            import_module(module)
        except ImportError:
            continue  # an earlier revision does not have it: the row says so
    for times in (one.times, LARGE * one.times):
        said = {"row": one.name, "layout": layout, "times": times, **in_child(one.name, times)}
        print(json.dumps(said), flush=True)
    moving.clear()


def in_child(name: str, times: int) -> dict[str, Any]:
    """Do a row's work in a child of this process, so both begin alike; return what it says."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(told)
            try:
                said: dict[str, Any] = {"messages": done(name, times)}
            except Missing as missing:
                said = {"missing": str(missing)}
            os.write(tell, json.dumps(said).encode())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        said = json.loads(pipe.read() or b'{"failed": true}')
    os.waitpid(child, 0)
    return {"process": child, **said}


def main() -> None:
    """Print what this tree is, then do each row's work twice, and say in which processes.

    Each line of stdin is a layout and a row: in the arguments they would move the addresses.
    """
    import twisted_msgproto

    for module in NEEDED:
        import_module(module)
    frozen_time()
    import_module("twisted_msgproto.net.memory").keep_freed_memory()  # as every gateway does
    sys.setswitchinterval(SWITCH_SECONDS)
    random.seed(1)
    print(
        json.dumps({"package": str(twisted_msgproto.__file__), "compiled": compiled()}), flush=True
    )
    for line in sys.stdin.read().splitlines():
        layout, name = line.split()
        between = os.fork()  # so that a row does not see which rows were measured before it
        if not between:
            both_times(ROWS[name], int(layout))
            os._exit(0)
        os.waitpid(between, 0)


if __name__ == "__main__":
    main()
