"""Many connections: idle ones of each kind, short ones, and a thousand that hold all they may."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.chaos.clients import GoodClients
from tests.chaos.gateways import Five, most_resident, resident, served
from tests.chaos.inputs import HELLO, UPGRADE, text
from tests.chaos.report import Found, Row
from tests.micromsg2.streams import message
from tests.mtl.cases import join
from tests.tools.certificates import Authority
from tests.tools.measures import SPARE_FILES, TICKS, accepted, need_files, of_process
from tests.tools.processes import PATIENCE_SECONDS, Launched, launching
from twisted_msgproto.lumberjack import encode_window
from twisted_msgproto.net.wires.websocket.frames import BINARY, frame

MEBI = 1 << 20
IDLE, SHORT, GREEDY = 10_000, 100_000, 1_000
IDLE_SECONDS = 60.0
SETTLED_SECONDS = 12.0
"""The timers of a log-in are over then: they are the price of a connection that begins."""
OPENED_AT_ONCE = 200
"""After so many more connections the pings of those that stand are answered."""
HELD_MIB = 256
KEPT_MIB = 64
SPARE_MIB = 64
FEW_MB = 20
TICKS_SECONDS = 0.03
"""The system counts CPU time in hundredths of a second."""


# ── Idle ────────────────────────────────────────────────────────────────────────────────────────

ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


LIMITS_MB = {"TCP": 60, "WebSocket": 150, "TLS": 350, "WebSocket over TLS": 350 + 150 - 60}
"""What 10,000 idle connections may cost.

WebSocket over TLS is both: TLS's figure, and what WebSocket may cost above TCP.
"""

ZEROMQ_MB = 380
"""What they may cost MTL: the sizes of libzmq's queues are compiled into it, and a ROUTER of pyzmq
alone that asks for ZAP needs 343 MB."""


class Kind(NamedTuple):
    """One kind of idle connection: how it begins, and what the answer holds."""

    protocol: str
    wire: str
    hello: bytes
    answer: bytes

    @property
    def most_mb(self) -> int:
        return ZEROMQ_MB if self.protocol == "mtl" else LIMITS_MB[self.wire]

    @property
    def goal(self) -> str:
        most = f"≤ {self.most_mb} MB above start"
        if self.protocol == "mtl":
            most += " (a ROUTER of pyzmq alone: 343)"
        if self.wire == "WebSocket over TLS":
            most += " (TLS 350, WebSocket 90 more than TCP)"
        return f"{most}, CPU < 1 %"


SABC_HELLO = b"CONNECT\r\nclient-id::idle\r\n\r\n\0"
UMQ_HELLO = UPGRADE + text("H1:")
ZMTP_HELLO = ZMTP + b"\x04" + bytes([len(READY)]) + READY
PONG, MASKED = 0x8A, 0x80
HELLOS = {
    "lumberjack": (encode_window(0), b"2A"),
    "micromsg2": (HELLO + HELLO, b"\1"),
    "sabc": (SABC_HELLO, b"\0"),
    "mtl": (ZMTP_HELLO, b"ROUTER"),
    "umq": (UMQ_HELLO, b"W1:"),
}
SABC_ON_WEBSOCKET = (UPGRADE + text(SABC_HELLO.decode()), b"CONNECTED")
KINDS = tuple(
    Kind(
        protocol,
        wire,
        *(
            SABC_ON_WEBSOCKET
            if protocol == "sabc" and wire.startswith("WebSocket")
            else HELLOS[protocol]
        ),
    )
    for protocol, wires in {
        "lumberjack": ("TCP", "TLS"),
        "micromsg2": ("TCP", "TLS"),
        "sabc": ("TCP", "TLS", "WebSocket", "WebSocket over TLS"),
        "mtl": ("TCP",),
        "umq": ("WebSocket", "WebSocket over TLS"),
    }.items()
    for wire in wires
)

SMALL = {
    ("lumberjack", "TLS"),
    ("mtl", "TCP"),
    ("sabc", "WebSocket over TLS"),
    ("umq", "WebSocket"),
}
"""Of each way of connecting one; these are tested in every run."""


def opened(port: int, kind: Kind, context: ssl.SSLContext | None) -> socket.socket:
    """A connection whose session stands as far as its first answer."""
    line: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    if context is not None:
        line = context.wrap_socket(line, server_hostname="localhost")
    line.sendall(kind.hello)
    heard = b""
    while kind.answer not in heard:
        octets = line.recv(4096)
        assert octets, f"closed after {heard!r}"
        heard += octets
    return line


class Silent:
    """Holds connections that say nothing, except that they answer pings.

    They do so while others are still being opened as well: on a busy machine that takes longer
    than a server waits for an answer.
    """

    def __init__(self, port: int, kind: Kind, context: ssl.SSLContext | None) -> None:
        self._port, self._kind, self._context = port, kind, context
        self._pongs = "WebSocket" in kind.wire
        self._lines: dict[int, socket.socket] = {}
        self._poll = select.epoll()

    def open(self, count: int) -> None:
        for number in range(count):
            line = opened(self._port, self._kind, self._context)
            self._lines[line.fileno()] = line
            self._poll.register(line.fileno(), select.EPOLLIN)
            if number % OPENED_AT_ONCE == 0:
                self._answer(0.0)

    def stay(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._answer(left)

    def close(self) -> None:
        self._poll.close()
        for line in self._lines.values():
            line.close()

    def _answer(self, seconds: float) -> None:
        for number, _ in self._poll.poll(seconds):
            ping = self._lines[number].recv(4096)
            assert ping, "an idle connection was closed"
            if self._pongs:
                payload = ping[2 : 2 + ping[1]]
                pong = bytes([PONG, MASKED | len(payload)]) + bytes(4) + payload
                self._lines[number].sendall(pong)


def weighed(
    server: Launched, kind: Kind, context: ssl.SSLContext | None, count: int
) -> tuple[Silent, float]:
    """So many connections, and the MB by which they made the server grow."""
    silent = Silent(server.port(kind.protocol), kind, context)
    silent.open(1)
    before = resident(server)
    silent.open(count - 1)
    silent.stay(1.0)
    return silent, (resident(server) - before) / 1e6


def idle_seconds(scale: float) -> float:
    return max(1.0, IDLE_SECONDS * scale)


def cpu_share(server: Launched, silent: Silent, scale: float) -> float:
    """Return which share of one processor a server needs while these are silent."""
    silent.stay(SETTLED_SECONDS * min(scale, 1.0))
    began = of_process(server.pid)
    silent.stay(idle_seconds(scale))
    return (of_process(server.pid) - began) / TICKS / idle_seconds(scale)


def idle(kind: Kind, scale: float) -> Found:
    """So many connections that say nothing more: memory above start, and CPU."""
    count = max(10, int(IDLE * scale))
    need_files(count + SPARE_FILES)
    with tempfile.TemporaryDirectory() as directory, launching(Path(directory)) as launch:
        where, context = "tcp:0:interface=127.0.0.1", None
        if "TLS" in kind.wire:
            authority = Authority(Path(directory))
            ours = authority.server()
            where = f"ssl:0:interface=127.0.0.1:privateKey={ours.key}:certKey={ours.cert}"
            context = ssl.create_default_context(cafile=str(authority.cert))
        if kind.protocol == "mtl":
            where = "tcp://127.0.0.1:*"
        listen = "--websocket" if kind.protocol == "sabc" and "WebSocket" in kind.wire else "-e"
        words = [listen, where, "--limit", f"connections={count + 10}"]
        if kind.protocol == "mtl":
            words += ["--one-socket"]
        server = launch(kind.protocol, *words, module="twisted")
        silent, added = weighed(server, kind, context, count)
        spent = cpu_share(server, silent, scale)
        standing = accepted(server.port(kind.protocol))
        silent.close()
    # With few of them what every process needs once counts as well.
    limit = kind.most_mb * min(scale, 1.0) + (FEW_MB if scale < 1 else 0)
    most = max(0.01, TICKS_SECONDS / idle_seconds(scale))
    return Found(
        f"{count:,} connections: {added:.0f} MB above start, CPU {spent:.1%}",
        added <= limit and spent <= most and standing >= count,
    )


# ── Short ───────────────────────────────────────────────────────────────────────────────────────


def short(scale: float) -> Found:
    """Connections with one event each, one after another, which is acknowledged."""
    count = max(20, int(SHORT * scale))
    with tempfile.TemporaryDirectory() as directory, launching(Path(directory)) as launch:
        words = ["-e", "tcp:0:interface=127.0.0.1", "--queue", "queue"]
        server = launch("lumberjack", *words, module="twisted")
        port = server.port("lumberjack")
        for _ in range(min(count, 1000) // 10):
            served(port)
        before = resident(server)
        began = time.monotonic()
        for _ in range(count):
            served(port)
        seconds = time.monotonic() - began
        grown = (resident(server) - before) / MEBI
    return Found(
        f"{count:,} in {seconds:.0f} s ({count / seconds:,.0f} a second), each event acknowledged;"
        f" memory grew by {grown:.1f} MiB",
        grown <= 16,
    )


# ── At their limits ─────────────────────────────────────────────────────────────────────────────


def _never_ending(head: bytes, piece: bytes) -> Iterator[bytes]:
    return itertools.chain([head], itertools.repeat(piece))


PIECE = bytes(64 << 10)
MESSAGE = message(1, b"x" * 300, "orders")

GREEDY_INPUTS: dict[str, Callable[[], Iterator[bytes]]] = {
    "lumberjack": lambda: _never_ending(
        encode_window(5) + b"2J" + struct.pack(">II", 1, (16 << 20) - 1), PIECE
    ),
    "micromsg2": lambda: _never_ending(
        HELLO + HELLO + MESSAGE[:-304] + struct.pack(">I", MEBI - 1), PIECE
    ),
    "sabc": lambda: _never_ending(SABC_HELLO + b"MESSAGE\r\nmsg-id::1\r\n\r\n", PIECE),
    "umq": lambda: _never_ending(
        UMQ_HELLO + text("AW:C1:x"), b"".join(frame(BINARY, bytes(MEBI), True))
    ),
}
"""A message that never ends, or attachments whose call never comes."""


class Greedy:
    def __init__(self, line: socket.socket, stream: Iterator[bytes]) -> None:
        self.line = line
        self.line.setblocking(False)
        self._stream = stream
        self._waiting = memoryview(b"")
        self.sent = 0

    def fileno(self) -> int:
        return self.line.fileno()

    def send(self) -> bool:
        """Send a little; False if the connection is closed, or it sent what it may."""
        try:
            self._waiting = self._waiting or memoryview(next(self._stream, b""))
            if not self._waiting:
                return False
            count = self.line.send(self._waiting)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._waiting = self._waiting[count:]
        self.sent += count
        return self.sent < 15 * MEBI


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def fill(lines: list[Greedy], seconds: float) -> int:
    """Have all send until nothing was taken for so long; the bytes that were sent."""
    poll = select.epoll()
    by_number = {line.fileno(): line for line in lines}
    for number in by_number:
        poll.register(number, select.EPOLLOUT)
    end = time.monotonic() + 20 * seconds
    while by_number and time.monotonic() < end:
        ready = poll.poll(seconds)
        if not ready:
            break
        for number, _ in ready:
            if not by_number[number].send():
                poll.unregister(number)
                del by_number[number]
    poll.close()
    return sum(line.sent for line in lines)


class Crowd(NamedTuple):
    """What a crowd has done to a gateway beside a good client.

    Attributes:
        sent: MiB that were sent.
        rose: MiB by which the gateway's memory rose at most.
        served: the good client was acknowledged, and nothing of it is missing.
        heard: what each of the crowd heard at the end.
    """

    sent: float
    rose: float
    served: bool
    heard: list[bytes]


def crowd_beside(
    good: str,
    limit: str,
    lines_of: Callable[[Five], Iterator[Greedy]],
    heard: Callable[[socket.socket], bytes] = lambda line: b"",
) -> Crowd:
    """Have all these lines send what is taken, at a gateway with this limit (``NAME=NUMBER``)."""
    with (
        tempfile.TemporaryDirectory() as directory,
        launching(Path(directory)) as launch,
        contextlib.closing(GoodClients(Path(directory))) as clients,
    ):
        five = Five(launch, options=["--limit", limit])
        clients.stand(good, five.ports[good])
        before = resident(five.server)
        lines = list(lines_of(five))
        sent = fill(lines, 3.0)
        ends = [heard(line.line) for line in lines]
        clients.send(good, 20)
        rose = most_resident(five.server) - before
        lost = five.lost(clients.told())
        for line in lines:
            line.line.close()
    return Crowd(sent / MEBI, rose / MEBI, not lost, ends)


def at_their_limits(scale: float) -> Found:
    """Connections of four protocols that hold all they may, beside one that wants an ack."""
    count = max(40, int(GREEDY * scale))
    held_mib = max(16, int(HELD_MIB * scale))
    need_files(count + SPARE_FILES)

    def lines(five: Five) -> Iterator[Greedy]:
        for name in itertools.islice(itertools.cycle(GREEDY_INPUTS), count):
            yield Greedy(connected(five.ports[name]), GREEDY_INPUTS[name]())

    crowd = crowd_beside("mtl", f"process-held-bytes={held_mib << 20}", lines)
    return Found(
        f"{count:,} connections sent {crowd.sent:,.0f} MiB; memory rose by {crowd.rose:.0f} MiB,"
        f" process-held-bytes is {held_mib} MiB; a good client was acknowledged",
        crowd.rose <= held_mib + SPARE_MIB and crowd.served,
    )


ATTRIBUTES = b"".join(text(f"S:{number}=" + "x" * 64_000) for number in range(15))
"""What a session of UMQ may set by default, nearly all of it."""

CALL = text('C1:["publish","nothing","x"]')
ANSWER, REFUSAL = b"R1:0", b"F0:8 too many attributes: process-session"


def ending(line: socket.socket) -> bytes:
    """What came up to the answer of our call, or up to the refusal, or to the end."""
    line.settimeout(PATIENCE_SECONDS)
    heard = b""
    with contextlib.suppress(ConnectionError):
        while ANSWER not in heard and REFUSAL not in heard and (octets := line.recv(4096)):
            heard += octets
    return heard


def sessions_at_their_limits(scale: float) -> Found:
    """Sessions of UMQ that keep all they may, beside a client of Lumberjack that wants an ack."""
    count = max(150, int(GREEDY * scale))
    kept_mib = max(16, int(KEPT_MIB * scale))
    need_files(count + SPARE_FILES)

    def lines(five: Five) -> Iterator[Greedy]:
        for _ in range(count):
            yield Greedy(connected(five.ports["umq"]), iter((UMQ_HELLO, ATTRIBUTES, CALL)))

    crowd = crowd_beside("lumberjack", f"process-session-bytes={kept_mib << 20}", lines, ending)
    standing = sum(ANSWER in end for end in crowd.heard)
    refused = sum(REFUSAL in end for end in crowd.heard)
    return Found(
        f"{count:,} sessions sent {crowd.sent:,.0f} MiB, {standing} stand and {refused} were told"
        f" why not; memory rose by {crowd.rose:.0f} MiB, process-session-bytes is {kept_mib} MiB; a"
        " good client was acknowledged",
        crowd.rose <= 2 * kept_mib + SPARE_MIB
        and standing * len(ATTRIBUTES) <= (kept_mib + 1) * MEBI
        and refused > 0
        and crowd.served,
    )


FRAME_BYTES = 8 << 20
"""What a frame of MTL may have, by default."""

BETWEEN_LOOKS_MIB = 256
"""libzmq's queues of a thousand connections, and what it reads before anybody looks at them."""


def endless_frame() -> Iterator[bytes]:
    """Open a session, then send a frame as large as it may be, whose last byte never comes."""
    opened = b'{"protocol": {"name": "MTL", "version": 1}, "virtual-host": "test-env"}'
    parts = b"\1\0", b"\1\x0fConnection.Open", b"\0" + bytes([len(opened)]) + opened
    yield b"".join(parts)
    yield b"\x02" + struct.pack(">Q", FRAME_BYTES)
    yield bytes(FRAME_BYTES - 1)


def zeromq_at_its_limits(scale: float) -> Found:
    """Connections of MTL whose first messages never end, beside one that wants an ack."""
    count = max(20, int(GREEDY * scale))
    held_mib = max(64, int(HELD_MIB * scale))
    need_files(count + SPARE_FILES)

    def lines(five: Five) -> Iterator[Greedy]:
        for _ in range(count):
            yield Greedy(join("127.0.0.1", five.ports["mtl"]), endless_frame())

    crowd = crowd_beside("lumberjack", f"process-held-bytes={held_mib << 20}", lines)
    return Found(
        f"{count:,} connections sent {crowd.sent:,.0f} MiB; memory rose by {crowd.rose:.0f} MiB,"
        f" process-held-bytes is {held_mib} MiB; a good client was acknowledged",
        crowd.rose <= 2 * held_mib + BETWEEN_LOOKS_MIB and crowd.served,
    )


ROWS = (
    *(
        Row(
            "idle",
            f"10,000 idle connections: {kind.protocol}, {kind.wire}",
            kind.goal,
            partial(idle, kind),
        )
        for kind in KINDS
    ),
    Row(
        "short",
        "100,000 short connections",
        "each event acknowledged; memory grows by ≤ 16 MiB",
        short,
    ),
    Row(
        "limits",
        "1,000 connections that hold all they may, of four protocols",
        "memory ≤ process-held-bytes + 64 MiB; a good client is served",
        at_their_limits,
    ),
    Row(
        "limits",
        "1,000 connections of MTL that hold all they may",
        "memory ≤ 2 × process-held-bytes + 256 MiB; a good client is served",
        zeromq_at_its_limits,
    ),
    Row(
        "limits",
        "1,000 sessions of UMQ that keep all they may",
        "memory ≤ 2 × process-session-bytes + 64 MiB; a good client is served",
        sessions_at_their_limits,
    ),
)
