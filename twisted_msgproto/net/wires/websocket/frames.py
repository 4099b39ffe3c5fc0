"""Frames of RFC 6455, limits of a connection, and what replaces parts of autobahn."""

from __future__ import annotations

import struct
from codecs import utf_8_decode
from collections.abc import Callable
from math import inf
from random import getrandbits, random
from typing import Any, Final, NamedTuple

from autobahn.websocket.xormasker import create_xor_masker  # type: ignore[attr-defined]
from twisted.logger import Logger

from twisted_msgproto.core.errors import shown
from twisted_msgproto.core.frame_buffer import FrameBuffer
from twisted_msgproto.core.limits import Limit

from ...memory import Clock

CLOSE_NORMAL: Final = 1000
CLOSE_LEAVING: Final = 1001
CLOSE_PROTOCOL: Final = 1002
CLOSE_INVALID: Final = 1007
CLOSE_TOO_BIG: Final = 1009
CLOSE_INTERNAL: Final = 1011

MESSAGE_LIMIT: Final = Limit(
    "websocket-message-bytes", 16 << 20, "bytes", "one message, all its frames", 1
)
"""A protocol without it sets ``message_bytes`` of its factories."""

WEBSOCKET_LIMITS: Final = (
    Limit("connections", 10_000, "connections", "of one server at a time", 1),
    Limit("websocket-upgrade-seconds", 10.0, "s", "from connect to upgrade", 0.001),
    # Proxies often end a connection that was silent for a minute.
    Limit("websocket-ping-seconds", 55.0, "s", "between pings; 0 sends none"),
    Limit("unread-bytes", 1 << 20, "bytes", "unread output before the producer is paused", 1),
    Limit("unread-seconds", 30.0, "s", "a peer that reads nothing for this long is dropped", 0.001),
)

FRAMES_MAX: Final = 1 << 17  # usual is half: 4 MiB by 64 bytes (cases 9.3.1 and 9.4.1)

UPGRADE_BYTES: Final = 16 << 10

CLOSE_SECONDS: Final = 5.0

PONG_SECONDS: Final = 30.0

PINGS_STEP_SECONDS: Final = 0.5  # what is due within is done in one turn: most of its cost

PINGS_SPREAD: Final = 0.5  # earlier for the first: else a restart's peers stay together


# ── frames as bytes (rfc 6455, section 5) ───────────────────────────────────────────────────────


TEXT: Final = 0x81
BINARY: Final = 0x82
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A

CONTROL_BYTES_MAX: Final = 125

OPCODES: Final = (0, 1, 2, 8, 9, 10)

CODES: Final = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})

_MASKED_AS_NUMBER: Final = 1024

_INVALID_TEXT: Final = "encountered invalid UTF-8 while processing text message"


class Refusal(NamedTuple):
    """What came breaks RFC 6455, or a limit of ours: the code and the text of our Close."""

    code: int
    text: str


class Control(NamedTuple):
    opcode: int
    payload: bytes


class FrameReader:
    """The way from bytes to messages, of one connection."""

    __slots__ = ("_as_bytes", "_final", "_fragments", "_left", "_mask", "_opcode", "_pieces",
                 "_server", "_unfinished", "answer", "bytes_max", "held", "starved")  # fmt: skip

    def __init__(self, server: bool, as_bytes: bool, bytes_max: int) -> None:
        """``server``: what comes has to be masked; ``as_bytes``: text is bytes, too."""
        self._server = server
        self._as_bytes = as_bytes
        self.bytes_max = bytes_max  # of a message
        self.answer: Control | Refusal | None = None  # before more is read; then it is None again
        self.held = 0  # bytes of a message whose end is not here
        self.starved = False  # nothing more can be read before more bytes come
        self._left = 0  # bytes of the frame that is being read
        self._mask = b""  # of the next of them
        self._opcode = 0  # of the message that is being read; 0: none is, or nobody wants it
        self._fragments = 0  # of that message
        self._pieces: FrameBuffer | None = None
        self._unfinished = b""  # of a text: the beginning of its next character

    def read(self, data: bytes, found: list[Any], most: int, wanted: bool) -> tuple[bytes, int]:
        """Read frames at the beginning of ``data``, ``most`` at most; add messages to ``found``.

        Returns the rest of ``data``, and how many frames that were.  If messages are not ``wanted``
        any more, all but a Close is dropped, and nothing is refused.
        """
        if not wanted:
            self.drop()
        server, largest, as_bytes = self._server, self.bytes_max, self._as_bytes
        place, count, size = 0, 0, len(data)
        self.starved = False
        while count < most and self.answer is None and not self.starved:
            # Nearly all messages stand in one frame that is here as a whole; anything else, and
            # anything that is not in order, is read by parts.
            plain = wanted and not self._left and not self._opcode
            while plain and size - place >= 2 and count < most:
                opcode, second = data[place], data[place + 1]
                if opcode not in (TEXT, BINARY, PONG) or (second >= 0x80) is not server:
                    break
                length, start = second & 0x7F, place + 2
                if length == 126:
                    length, start = int.from_bytes(data[start : start + 2], "big"), start + 2
                    if length < 126:
                        break
                elif length == 127:
                    break
                mask_end = start + 4 if server else start
                end = mask_end + length
                if end > size or length > largest:
                    break
                if opcode == PONG:
                    if length > CONTROL_BYTES_MAX:
                        break
                else:
                    payload = data[mask_end:end]
                    if server and payload:
                        payload = xored(payload, data[start:mask_end])
                    message: str | bytes = payload
                    if opcode == TEXT and not (as_bytes and payload.isascii()):
                        try:
                            text = payload.decode()
                        except UnicodeDecodeError:
                            break
                        if not as_bytes:
                            message = text
                    found.append(message)
                    count += 1
                place = end
            if place == size:
                self.starved = True
            elif count < most:
                place = self._part(data, place, found, wanted)
                count += 1
        return data[place:] if place else data, count

    def drop(self) -> None:
        self._opcode = self.held = 0
        self._pieces = None

    def _part(self, data: bytes, place: int, found: list[Any], wanted: bool) -> int:
        if self._left:
            return self._payload(data, place, found)
        if len(data) - place < 2:
            self.starved = True
            return place
        first, second = data[place], data[place + 1]
        opcode, length, start = first & 0x0F, second & 0x7F, place + 2
        wrong = self._wrong(first, second) if wanted else ""
        if length >= 126 and not wrong:
            width = 2 if length == 126 else 8
            length = int.from_bytes(data[start : start + width], "big")
            start += width
            least = 126 if width == 2 else 1 << 16
            if start <= len(data) and wanted and not least <= length < 1 << 63:
                wrong = f"a frame of {length} bytes says so in {width} bytes"
        if wrong:
            self.answer = Refusal(CLOSE_PROTOCOL, wrong)
            return place
        mask_end = start + 4 if second >= 0x80 else start
        if mask_end > len(data):
            self.starved = True
            return place
        self._mask = data[start:mask_end]
        if opcode > 7:
            return self._control(data, place, mask_end, length, wanted)
        if wanted:
            self._fragments = 1 if opcode else self._fragments + 1
            if self.held + length > self.bytes_max or self._fragments > FRAMES_MAX:
                much = "bytes" if self._fragments <= FRAMES_MAX else "fragments"
                self.answer = Refusal(CLOSE_TOO_BIG, f"a message has too many {much}")
                return place
            if opcode:
                self._opcode, self._pieces, self._unfinished = opcode, FrameBuffer(), b""
        self._left, self._final = length, first >= 0x80  # its message ends with it
        return self._payload(data, mask_end, found)

    def _wrong(self, first: int, second: int) -> str:
        opcode, length = first & 0x0F, second & 0x7F
        if first & 0x70:
            return "a bit is set that no extension explains"
        if (second >= 0x80) is not self._server:
            return "a client masks its frames, and a server does not"
        if opcode not in OPCODES:
            return f"a frame has the reserved opcode {opcode}"
        if opcode > 7:
            if first < 0x80 or length > CONTROL_BYTES_MAX:
                return "a control frame is not fragmented, and has no more than 125 bytes"
            if opcode == CLOSE & 0x0F and length == 1:
                return "a Close has half a code"
        elif bool(opcode) is bool(self._opcode):
            return "a fragment belongs to no message, or a message begins within another"
        return ""

    def _control(self, data: bytes, place: int, start: int, length: int, wanted: bool) -> int:
        opcode, end = data[place] | 0x80, start + length
        if length > CONTROL_BYTES_MAX:  # it was refused already
            self._left = length
            if opcode == CLOSE:
                self.answer = Control(CLOSE, b"")
            return start
        if end > len(data):
            self.starved = True
            return place
        payload = data[start:end]
        if self._mask and payload:
            payload = xored(payload, self._mask)
        if wanted and opcode == CLOSE and payload:
            self.answer = refused(payload)
            if self.answer is not None:
                return place
        if opcode == CLOSE or (opcode == PING and wanted):
            self.answer = Control(opcode, payload)
        return end

    def _payload(self, data: bytes, place: int, found: list[Any]) -> int:
        piece = data[place : place + self._left]
        self._left -= len(piece)
        self.starved = self._left > 0
        pieces, final = self._pieces, self._final and not self._left
        if pieces is not None:
            if self._mask and piece:
                at = len(piece) % 4
                piece, self._mask = xored(piece, self._mask), self._mask[at:] + self._mask[:at]
            if self._opcode == TEXT & 0x0F and not self._is_text(piece, final):
                self.answer = Refusal(CLOSE_INVALID, _INVALID_TEXT)
                self.starved = False
                return place + len(piece)
            pieces.add(piece)
            self.held = pieces.nbytes
            if final:
                message = b"".join(pieces.taken())
                is_text = self._opcode == TEXT & 0x0F and not self._as_bytes
                found.append(message.decode() if is_text else message)
                self.drop()
        return place + len(piece)

    def _is_text(self, piece: bytes, final: bool) -> bool:
        if not self._unfinished and piece.isascii():
            return True
        piece = self._unfinished + piece
        try:
            taken = utf_8_decode(piece, "strict", final)[1]
        except UnicodeDecodeError:
            return False
        self._unfinished = rest = piece[taken:]
        return not (rest[:1] == b"\xed" and rest[1:] >= b"\xa0")  # half a surrogate, to Python


def refused(payload: bytes) -> Refusal | None:
    code = int.from_bytes(payload[:2], "big")
    if code not in CODES:
        return Refusal(CLOSE_PROTOCOL, f"invalid close code {code}")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return Refusal(CLOSE_INVALID, "the text of a Close is not UTF-8")
    return None


def frame(opcode: int, payload: bytes, masked: bool) -> tuple[bytes, ...]:
    length = len(payload)
    mask_bit = 0x80 if masked else 0
    if length <= 125:
        head = bytes((opcode, mask_bit | length))
    elif length <= 0xFFFF:
        head = struct.pack("!BBH", opcode, mask_bit | 126, length)
    else:
        head = struct.pack("!BBQ", opcode, mask_bit | 127, length)
    if not masked:
        return head, payload
    # The mask only has to differ from frame to frame: it protects proxies from browser scripts,
    # and the one who runs this process can write to the socket as they like.
    mask = getrandbits(32).to_bytes(4, "big")
    return head, mask, xored(payload, mask) if payload else b""


def xored(payload: bytes, mask: bytes) -> bytes:
    length = len(payload)
    if length > _MASKED_AS_NUMBER:
        data: bytes = create_xor_masker(mask, length).process(payload)
        return data
    key = (mask * (length // 4 + 1))[:length]
    number = int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")
    return number.to_bytes(length, "little")


def opcode_of(payload: bytes) -> int:
    if payload.isascii():
        return TEXT
    try:
        payload.decode()
    except UnicodeDecodeError:
        return BINARY
    return TEXT


def close_reason(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode()


# ── what replaces autobahn's log, timers and pings ────────────────────────────────────────────────


log: Logger = Logger(namespace="twisted_msgproto.websocket")


class QuietLog:
    """Takes autobahn's log lines, of which most are dropped.

    It writes two or three for each connection that a peer spoils: one address could fill the log.
    What has to be known of peers is told by lines of our own, which are summed up.
    """

    def debug(self, *args: object, **values: object) -> None:
        """Drop the line; the others that are about peers are dropped, too."""

    info = warn = debug

    def error(self, text: str = "", **values: object) -> None:
        """Tell as debug, with every value escaped: something has failed in autobahn."""
        safe = {name: shown(str(value)) for name, value in values.items()}
        log.debug("{text}", text=text.format(**safe) if safe else text)

    critical = error


class Keepalive:
    """The pings of one connection; whatever comes shows life: a large message delays a pong."""

    __slots__ = ("_asked_at", "_call", "_clock", "_gone", "_interval", "_ping", "heard")

    def __init__(
        self, clock: Clock, interval: float, ping: Callable[[], None], gone: Callable[[], None]
    ) -> None:
        """Ping every ``interval`` seconds (0: never); ``gone()`` is called each time from then on
        that no answer has come within :data:`PONG_SECONDS`.
        """
        self._clock = clock
        self._interval = interval
        self._ping = ping
        self._gone = gone
        self._call: Any = None
        self._asked_at = -inf
        self.heard: bool = True  # since the last ping; the carrier sets it

    def start(self) -> None:
        if self._interval > 0:
            self._later(self._interval * (1 - PINGS_SPREAD * random()))

    def stop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def excuse(self) -> None:
        """Give the peer as much time again: what it sent was not read."""
        self._asked_at = self._clock.seconds()

    def _later(self, seconds: float) -> None:
        step = min(PINGS_STEP_SECONDS, self._interval / 8)
        early = (self._clock.seconds() + seconds) % step
        self._call = self._clock.callLater(seconds - early, self._look)

    def _look(self) -> None:
        self._later(self._interval)
        now = self._clock.seconds()
        if self.heard:
            self.heard, self._asked_at = False, now
            self._ping()
        elif now >= self._asked_at + PONG_SECONDS:
            self._gone()
