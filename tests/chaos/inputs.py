"""What hostile peers send (NB-07 and others), and a process that goes on sending it.

``python -m tests.chaos.inputs NAME PORT`` attacks until its standard input ends: it connects,
sends, throws away what comes back, and connects again when it is cut off.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import zmq

from tests.micromsg2.streams import message
from tests.mtl.cases import until_cut_off
from tests.tools.processes import PROJECT, begun
from twisted_msgproto.lumberjack import encode_json, encode_window
from twisted_msgproto.micromsg2 import Offer, Proposal
from twisted_msgproto.micromsg2.wire.frames import (
    encode_command,
    encode_handshake,
)
from twisted_msgproto.net.wires.websocket.frames import BINARY, TEXT, frame

MEBI = 1 << 20
ROUND_BYTES = 24 * MEBI
"""One connection sends this much, unless it is closed before."""

HUB_CONNECTIONS, HUB_TOPICS = 10, 1_000
"""So many connections subscribe so many topics each to one name, and all publish to it."""

CONDITIONS = 32
SUBSCRIPTIONS = 200

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HELLO = encode_handshake(
    Proposal(required=(Offer("batch-ack", {"max-count": "1024"}), Offer("pub-sub"))).opening()
)

Stream = Iterable[bytes]


def text(payload: str) -> bytes:
    return b"".join(frame(TEXT, payload.encode(), True))


def umq(*frames: bytes, then: Stream = ()) -> Stream:
    return itertools.chain([UPGRADE, text("H1:"), *frames], then)


def calls(argument: str) -> Stream:
    return umq(then=(text(f"C{number}:{argument}") for number in itertools.count(1)))


def deep(opened: str, closed: str, nbytes: int = 1_000_000) -> str:
    return "[" + ",".join([opened + closed] * (nbytes // (len(opened + closed) + 1))) + "]"


def objects(nbytes: int = 1_000_000) -> str:
    pairs = (f'"{number}":{{}}' for number in range(nbytes // 11))
    return "{" + ",".join(pairs) + "}"


def filter_storm() -> Stream:
    """One connection with many filters of many conditions on a topic, and messages to it."""
    yield HELLO + HELLO
    storm = ";".join(f"p{number}=N1" for number in range(CONDITIONS))
    for number in range(SUBSCRIPTIONS):
        name = {"destination": f"topic/a{number % 10}", "filter": storm}
        yield encode_command("subscribe", name)
    matching = ";".join(f"p{number}:N1" for number in range(CONDITIONS)).encode()
    for number in itertools.count(1):
        yield message((number - 1) % 65535 + 1, b"x", f"topic/a{number % 10}", matching)


def compressed(payload: bytes) -> bytes:
    return b"2C" + struct.pack(">I", len(payload)) + payload


def bomb() -> bytes:
    deflating = zlib.compressobj(9)
    piece = encode_json([1], [bytes(MEBI)])
    octets = b"".join(deflating.compress(piece) for _ in range(400)) + deflating.flush()
    return encode_window(5) + compressed(octets)


def many_pairs() -> bytes:
    pair = struct.pack(">I", 1) + b"k" + struct.pack(">I", 1) + b"v"
    return b"2D" + struct.pack(">II", 1, 1024) + pair * 1024


ENDLESS = 10
"""So many clients at a time send messages that never end."""


class Input(NamedTuple):
    """One hostile input.

    Attributes:
        protocol: to which it is sent.
        stream: what is sent.
        zeromq: instead of that, one message of so many ZeroMQ frames.
        hub: or updates to as many connections, of one of them.
        endless: or ten messages without an end, of ZeroMQ frames of so many bytes.
        peak_mib: what the gateway may hold beside it; 0: that is not judged.
    """

    protocol: str
    stream: Callable[[], Stream]
    zeromq: int = 0
    hub: int = 0
    endless: int = 0
    peak_mib: int = 0


INPUTS: dict[str, Input] = {
    # NB-07
    "a call with 1 MB of `[[],[],…`": Input("umq", lambda: calls(deep("[", "]"))),
    'a call with 1 MB of `{"0":{},…`': Input("umq", lambda: calls(objects())),
    "messages of 3 M ZeroMQ frames": Input("mtl", lambda: (), 3_000_000),
    "a storm of filters": Input("micromsg2", filter_storm),
    "D frames of 1,024 pairs": Input(
        "lumberjack",
        lambda: itertools.chain([encode_window(65_536)], itertools.repeat(many_pairs())),
    ),
    "empty fragments of a message": Input(
        "umq", lambda: umq(b"\x01\x80\0\0\0\0", then=itertools.repeat(b"\x00\x80\0\0\0\0" * 4096))
    ),
    "tiny fragments of a message": Input(
        "umq", lambda: umq(b"\x02\x82\0\0\0\0ab", then=itertools.repeat(b"\0\x82\0\0\0\0ab" * 4096))
    ),
    "calls with invalid ids": Input(
        "umq", lambda: umq(then=itertools.repeat(text("C0:x") + text("B99999999999:1:x")))
    ),
    "updates to 10,000 subscribers": Input("umq", lambda: (), hub=HUB_CONNECTIONS),
    # LJ-17, NB-02, NB-09, FAULTS
    "a bomb of 400 MB": Input("lumberjack", lambda: [bomb()]),
    "windows of nothing": Input("lumberjack", lambda: itertools.repeat(encode_window(0) * 10_000)),
    "junk, and again": Input("lumberjack", lambda: [b"\0" * 100]),
    "parts without end": Input(
        "micromsg2",
        lambda: itertools.chain(
            [HELLO, HELLO],
            itertools.repeat(message(1, b"x" * 60_000, "orders", continued=True)),
        ),
    ),
    "headers without end": Input(
        "sabc",
        lambda: itertools.chain(
            [b"CONNECT\r\n"],
            (b"".join(b"%d-%d::b\r\n" % (a, b) for b in range(999)) for a in itertools.count()),
        ),
    ),
    "logins that fail": Input(
        "sabc", lambda: itertools.repeat(b"CONNECT\r\nclient-id::\xc3\xa9\r\nbad\r\n\r\n\0" * 500)
    ),
    "attachments that are announced and do not come": Input(
        "umq", lambda: umq(then=(text(f"AW:C{n}:") for n in itertools.count()))
    ),
    "attachments of 64 KiB": Input(
        "umq",
        lambda: umq(
            text("A320:C1:x"), then=itertools.repeat(b"".join(frame(BINARY, bytes(65_536), True)))
        ),
    ),
    "ten messages that never end, frames of 1 byte": Input(
        "mtl", lambda: (), endless=1, peak_mib=600
    ),
    "ten messages that never end, frames of 64 KiB": Input(
        "mtl", lambda: (), endless=65_536, peak_mib=600
    ),
}
"""What is sent → to whom."""


def attack(port: int, stream: Stream, going: Callable[[], bool]) -> None:
    """One connection: send until it is closed, or enough was sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        print("begun", flush=True)
        line.setblocking(False)
        sent = 0
        for octets in stream:
            waiting = memoryview(octets)
            while waiting:
                readable, writable, _ = select.select([line], [line], [], 0.5)
                if not going() or (readable and not line.recv(1 << 20)):
                    return
                if writable:
                    count = line.send(waiting)
                    waiting = waiting[count:]
                    sent += count
            if sent > ROUND_BYTES:
                break
        while going():  # what was sent may be answered or not; the connection stays
            readable, _, _ = select.select([line], [], [], 0.1)
            if readable and not line.recv(1 << 20):
                return
            if sent > ROUND_BYTES:
                return


def attack_hub(port: int, connections: int, going: Callable[[], bool]) -> None:
    """Subscribe many topics to one name on each connection, then publish to it and read it all."""
    topics = range(1, HUB_TOPICS + 1)
    subscribing = [text(f'C{number}:["subscribe","news","{number}"]') for number in topics]
    with ExitStack() as stack:
        lines = {}
        for _ in range(connections):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            line.sendall(b"".join(umq(*subscribing)))
            heard = b""
            while f"R{HUB_TOPICS}:".encode() not in heard:
                octets = line.recv(1 << 16)
                if not octets:
                    return
                heard = heard[-100:] + octets
            lines[line] = memoryview(b"")
        print("begun", flush=True)
        for number in itertools.count(HUB_TOPICS + 1):
            for line in lines:
                lines[line] = lines[line] or memoryview(text(f'C{number}:["publish","news","x"]'))
            while all(lines.values()):
                readable, writable, _ = select.select(list(lines), list(lines), [], 0.5)
                if not going() or not all([line.recv(1 << 20) for line in readable]):
                    return
                for line in writable:
                    lines[line] = lines[line][line.send(lines[line]) :]


def attack_zeromq(port: int, frames: int, going: Callable[[], bool]) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        print("begun", flush=True)
        left = frames
        while left:
            try:
                dealer.send(b"x", zmq.SNDMORE | zmq.NOBLOCK)
                left -= 1
            except zmq.Again:  # asked only then: to ask before each frame costs more than to send
                while not dealer.poll(100, zmq.POLLOUT):
                    if not going():
                        return
        dealer.send(b"x")


def attack_endless(port: int, nbytes: int, going: Callable[[], bool]) -> None:
    """Clients whose messages never end, and which connect again when they are cut off."""

    def again() -> None:
        while going():
            try:
                until_cut_off("127.0.0.1", port, nbytes, going)
            except (AssertionError, OSError):  # also while it connects
                time.sleep(0.01)

    threads = [threading.Thread(target=again) for _ in range(ENDLESS)]
    for thread in threads:
        thread.start()
    print("begun", flush=True)
    for thread in threads:
        thread.join()


def main(name: str, port: int) -> None:
    """Attack until the standard input ends; print a line for each connection."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    hostile = INPUTS[name]
    going = lambda: not ended.is_set()  # noqa: E731
    while going():
        try:
            if hostile.endless:
                attack_endless(port, hostile.endless, going)
            elif hostile.zeromq:
                attack_zeromq(port, hostile.zeromq, going)
            elif hostile.hub:
                attack_hub(port, hostile.hub, going)
            else:
                attack(port, hostile.stream(), going)
        except OSError:
            ended.wait(0.01)


@contextmanager
def attacking(name: str, port: int) -> Iterator[None]:
    """Have a process attack meanwhile; at the end of the block it has at least begun."""
    command = [sys.executable, "-m", "tests.chaos.inputs", name, str(port)]
    process = begun(command, cwd=PROJECT, env=None, stdin=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "begun\n"
        # What it says further is read, so that it never waits for us.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield
        assert process.poll() is None, f"{name}: the attacker ended with {process.returncode}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
