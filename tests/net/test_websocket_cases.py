"""RFC 6455 case by case, in memory: UMQ's and sABC's WebSocket beside bare autobahn.

The cases follow the sections of the public conformance cases (autobahntestsuite).  Each has one
right answer; bare autobahn gives it, and so do ours.  sABC's frames are bytes, which leave as text
where they are UTF-8 (``SA-25``), so the kind of an echoed message is not compared there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from autobahn.twisted import websocket as autobahn
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from twisted_msgproto.net.wires.websocket.frames import FRAMES_MAX
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.umq import UmqClientFactory, UmqServerFactory

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x37\xfa\x21\x3d"

Frame = tuple[int, bytes]


class Case(NamedTuple):
    """What goes in, the messages and pongs that come back, and the code of the Close, if any."""

    nbytes: bytes
    answers: tuple[Frame, ...] = ()
    close: int | None = None


def sent(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True
) -> bytes:
    """One frame of a client."""
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        size = bytes((bit | len(payload),))
    elif len(payload) < 1 << 16:
        size = struct.pack("!BH", bit | 126, len(payload))
    else:
        size = struct.pack("!BQ", bit | 127, len(payload))
    head = bytes(((0x80 if fin else 0) | rsv << 4 | opcode,)) + size
    if not masked:
        return head + payload
    key = (MASK * (len(payload) // 4 + 1))[: len(payload)]
    hidden = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return head + MASK + hidden.to_bytes(len(payload), "big")


def fragments(opcode: int, payload: bytes, size: int) -> bytes:
    """One message in frames of ``size`` bytes."""
    pieces = [payload[start : start + size] for start in range(0, len(payload), size)]
    return b"".join(
        sent(CONTINUED if number else opcode, piece, fin=number == len(pieces) - 1)
        for number, piece in enumerate(pieces)
    )


def closing(code: int, reason: bytes = b"") -> bytes:
    return sent(CLOSE, code.to_bytes(2, "big") + reason)


GOOD = "κόσμε \U0001f600 \ufeff \ufffe \U0010ffff \0".encode()
"""Text with characters of one to four bytes, and some that are odd and allowed (section 6)."""

BAD = {
    "a lone continuation": b"a\x80b",
    "a start without its end": b"a\xce",
    "overlong": b"a\xc0\xaf",
    "a surrogate": b"a\xed\xa0\x80b",
    "above U+10FFFF": b"a\xf4\x90\x80\x80",
    "a byte that never occurs": b"a\xfe",
    "five bytes": b"a\xf8\x88\x80\x80\x80",
}

HELLO = (TEXT, b"hello")
AFTER = sent(TEXT, b"never read")
LARGE = bytes(range(256)) * 4096  # 1 MiB, not UTF-8

CASES: dict[str, Case] = {
    **{
        f"1 {kind} of {size}": Case(
            sent(opcode, letter * size) + sent(PING), ((opcode, letter * size), (PONG, b""))
        )
        for kind, opcode, letter in (("text", TEXT, b"*"), ("binary", BINARY, b"\xfe"))
        for size in (0, 1, 125, 126, 127, 65535, 65536)
    },
    "1 text of 125, as if of more": Case(
        b"\x81\xfe\0\x7d" + sent(TEXT, b"x" * 125)[2:] + AFTER, (), 1002
    ),
    "1 text of 65535, as if of more": Case(
        b"\x81\xff" + (65535).to_bytes(8, "big") + MASK + b"x" * 65535 + AFTER, (), 1002
    ),
    "1 text of 2**63": Case(b"\x81\xff\x80" + bytes(7) + MASK + AFTER, (), 1002),
    "1 unmasked": Case(sent(TEXT, b"x", masked=False) + AFTER, (), 1002),
    "2 ping": Case(sent(PING), ((PONG, b""),)),
    "2 ping with bytes": Case(sent(PING, b"\0\xff\xfe"), ((PONG, b"\0\xff\xfe"),)),
    "2 ping of 125": Case(sent(PING, b"p" * 125), ((PONG, b"p" * 125),)),
    "2 ping of 126": Case(sent(PING, b"p" * 126) + AFTER, (), 1002),
    "2 pong of 126": Case(sent(PONG, b"p" * 126) + AFTER, (), 1002),
    "2 pong nobody asked for": Case(
        sent(PONG, b"x") + sent(PING, b"y") + sent(PONG), ((PONG, b"y"),)
    ),
    "2 ten pings": Case(
        b"".join(sent(PING, b"%d" % number) for number in range(10)),
        tuple((PONG, b"%d" % number) for number in range(10)),
    ),
    **{
        f"3 reserved bits {bits} of {name}": Case(
            sent(TEXT, b"hello") + sent(opcode, b"", rsv=bits) + AFTER, (HELLO,), 1002
        )
        for bits in range(1, 8)
        for name, opcode in (("text", TEXT), ("a ping", PING), ("a close", CLOSE))
    },
    **{
        f"4 opcode {opcode}": Case(
            sent(TEXT, b"hello") + sent(opcode, payload) + AFTER, (HELLO,), 1002
        )
        for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
        for payload in (b"x",)
    },
    "5 a ping in fragments": Case(sent(PING, b"x", fin=False) + AFTER, (), 1002),
    "5 a pong in fragments": Case(sent(PONG, b"x", fin=False) + AFTER, (), 1002),
    "5 two fragments": Case(fragments(TEXT, b"hello", 3), (HELLO,)),
    "5 a ping between fragments": Case(
        sent(TEXT, b"he", fin=False) + sent(PING, b"x") + sent(CONTINUED, b"llo"),
        ((PONG, b"x"), HELLO),
    ),
    "5 empty fragments": Case(
        sent(TEXT, fin=False) + sent(CONTINUED, b"hello", fin=False) + sent(CONTINUED), (HELLO,)
    ),
    "5 nothing to continue": Case(sent(CONTINUED, b"x") + AFTER, (), 1002),
    "5 nothing to continue behind a message": Case(
        fragments(TEXT, b"hello", 2) + sent(CONTINUED, b"x", fin=False) + AFTER, (HELLO,), 1002
    ),
    "5 text inside a message": Case(sent(TEXT, b"x", fin=False) + AFTER, (), 1002),
    "6 good text": Case(sent(TEXT, GOOD), ((TEXT, GOOD),)),
    "6 good text, byte by byte": Case(fragments(TEXT, GOOD, 1), ((TEXT, GOOD),)),
    "6 anything in binary": Case(sent(BINARY, BAD["overlong"]), ((BINARY, BAD["overlong"]),)),
    **{f"6 {name}": Case(sent(TEXT, nbytes) + AFTER, (), 1007) for name, nbytes in BAD.items()},
    **{
        f"6 {name}, byte by byte": Case(fragments(TEXT, nbytes, 1) + AFTER, (), 1007)
        for name, nbytes in BAD.items()
    },
    "6 bad text is refused before it ends": Case(sent(TEXT, b"a\xed\xa0", fin=False), (), 1007),
    "6 bad text is refused before its frame ends": Case(
        sent(TEXT, b"a\xed\xa0" + bytes(20))[:-9], (), 1007
    ),
    "7 close": Case(sent(TEXT, b"hello") + closing(1000) + AFTER + sent(PING), (HELLO,), 1000),
    "7 close without a code": Case(sent(CLOSE), (), 1000),
    "7 close of one byte": Case(sent(CLOSE, b"\x03"), (), 1002),
    "7 close with a reason of 123": Case(closing(1000, b"r" * 123), (), 1000),
    "7 close with a reason of 124": Case(closing(1000, b"r" * 124), (), 1002),
    "7 close with a bad reason": Case(closing(1000, BAD["a surrogate"]), (), 1007),
    **{
        f"7 close {code}": Case(closing(code), (), 1000)
        for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
    },
    **{
        f"7 close {code}, which none may send": Case(closing(code), (), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999)
    },
    "9 a large frame": Case(sent(BINARY, LARGE), ((BINARY, LARGE),)),
    "9 a large message in fragments": Case(fragments(BINARY, LARGE, 1 << 10), ((BINARY, LARGE),)),
    "9 many small messages": Case(sent(TEXT, b"hello") * 200, (HELLO,) * 200),
    "10 a message in many frames": Case(
        fragments(TEXT, b"*" * 65536, 1300), ((TEXT, b"*" * 65536),)
    ),
}

SHORT = 4096
"""Cases up to this many bytes are also sent byte by byte."""


TESTEES: Final = ("autobahn", "umq", "sabc")
"""The first one is what the others are compared with."""


class Echo:
    """A session that sends back what comes, and reads on when that has been read."""

    factory: Any
    wire: Any
    closing: Callable[[], object] | None = None

    def makeConnection(self, wire: Any) -> None:
        self.wire = wire
        self.factory.connectionOpened(self, "127.0.0.1")
        wire.established()

    def received(self, inputs: list[Any]) -> None:
        self.wire.write(inputs)

    @property
    def link(self) -> Any:
        return self

    def oversized(self) -> None:
        """The wire closes."""

    def heldChanged(self) -> None:
        """Nobody counts it."""

    def unread(self) -> None:
        """The wire drops the peer."""

    def outputChanged(self, paused: bool) -> None:
        if paused:
            self.wire.pauseProducing()
        else:
            self.wire.resumeProducing()

    def outputDrained(self) -> None:
        """Nothing waits for it."""

    def connectionLost(self, reason: object) -> None:
        self.factory.connectionClosed(self, reason)

    def neverConnected(self, error: Exception) -> None:
        """The factory forgets it by itself."""


class Bare(autobahn.WebSocketServerProtocol):  # type: ignore[misc]
    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        self.sendMessage(payload, isBinary)


def server(name: str, clock: Clock) -> Any:
    """A factory that accepts WebSocket connections and echoes."""
    if name == "autobahn":
        bare = autobahn.WebSocketServerFactory(reactor=clock)
        bare.protocol = Bare
        bare.setProtocolOptions(failByDrop=False)  # it says why it closes, as ours do
        return bare
    if name == "umq":
        umq = UmqServerFactory(clock=clock)
        umq.protocol = Echo  # type: ignore[assignment]
        return umq.webSocket
    sabc = SabcServerFactory(clock=clock, limits={"message-bytes": len(LARGE)})
    sabc.protocol = Echo  # type: ignore[assignment]
    return sabc.webSocketFactory()


class Transport(StringTransport):
    """Counts no producers: autobahn takes back some that it never registered."""

    def unregisterProducer(self) -> None:
        """Do nothing."""


def received(nbytes: bytes) -> Iterator[Frame]:
    """The frames of a server."""
    while nbytes:
        length, start = nbytes[1] & 0x7F, 2
        if length == 126:
            length, start = int.from_bytes(nbytes[2:4], "big"), 4
            assert length > 125, "a length stands in as few bytes as can be"
        elif length == 127:
            length, start = int.from_bytes(nbytes[2:10], "big"), 10
            assert length > 65535, "a length stands in as few bytes as can be"
        assert len(nbytes) >= start + length, "frames are whole"
        assert nbytes[1] < 0x80, "a server masks nothing"
        assert nbytes[0] & 0x80, "nobody here sends fragments"
        yield nbytes[0] & 0x7F, nbytes[start : start + length]
        nbytes = nbytes[start + length :]


def answered(testee: str, nbytes: bytes, step: int) -> tuple[tuple[Frame, ...], int | None]:
    """What a testee sends back for ``nbytes``, read in pieces of ``step``."""
    clock = Clock()
    factory = server(testee, clock)
    # Bare autobahn would leave its timers behind.
    factory._batched_timer = SimpleNamespace(call_later=clock.callLater)
    connection = factory.buildProtocol(None)
    transport = Transport(lenient=True)
    connection.makeConnection(transport)
    connection.dataReceived(UPGRADE % b"")
    transport.clear()
    for start in range(0, len(nbytes), step):
        connection.dataReceived(nbytes[start : start + step])
    for _ in range(100):  # large input has several turns
        clock.advance(0)
    frames = list(received(transport.value()))
    closes = [frame for frame in frames if frame[0] == CLOSE]
    assert closes == frames[len(frames) - len(closes) :], "nothing follows a Close"
    code = int.from_bytes(closes[0][1][:2], "big") if closes and closes[0][1] else None
    if testee != TESTEES[0]:
        connection.connectionLost()
        assert not clock.getDelayedCalls()
    return tuple(islice(frames, len(frames) - len(closes))), code or (1000 if closes else None)


def alike(frames: tuple[Frame, ...], testee: str) -> list[Frame]:
    """The frames as they are compared: sABC has one kind of message."""
    if testee != "sabc":
        return list(frames)
    return [(BINARY if opcode == TEXT else opcode, payload) for opcode, payload in frames]


@pytest.mark.parametrize("testee", TESTEES)
def test_every_case_of_rfc_6455_has_its_one_answer(testee: str) -> None:
    """UM-18, UM-21: also what stands behind whole messages, which take a shorter way."""
    wrong = []
    for name, case in CASES.items():
        for step in (len(case.nbytes), 1) if len(case.nbytes) <= SHORT else (len(case.nbytes),):
            answers, close = answered(testee, case.nbytes, step)
            if (alike(answers, testee), close) != (alike(case.answers, testee), case.close):
                wrong.append((name, step, str(answers)[:80], close))
    assert wrong == []


def test_a_message_may_have_the_most_fragments_of_the_public_cases() -> None:
    # 9.3.1 and 9.4.1: 4 MiB in fragments of 64 bytes, and an empty one behind them.
    assert FRAMES_MAX >= (4 << 20) // 64 + 1


def test_small_messages_leave_at_once_on_both_sides__NB_11() -> None:
    client = UmqClientFactory("ws://127.0.0.1:9/", clock=Clock()).webSocket
    assert server("umq", Clock()).tcpNoDelay and client.tcpNoDelay
