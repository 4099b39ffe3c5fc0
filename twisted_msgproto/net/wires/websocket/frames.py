"""Frames of RFC 6455, limits of a connection, and what replaces autobahn's log and timers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import getrandbits
from typing import Final
from typing import Protocol as Shape

from autobahn.websocket.xormasker import create_xor_masker  # type: ignore[attr-defined]
from twisted.logger import Logger

from twisted_msgproto.core.errors import shown
from twisted_msgproto.core.limits import Limit

from ...memory import Clock

CLOSE_NORMAL: Final = 1000
CLOSE_LEAVING: Final = 1001
CLOSE_PROTOCOL: Final = 1002
CLOSE_TOO_BIG: Final = 1009
CLOSE_INTERNAL: Final = 1011

WEBSOCKET_LIMITS: Final = (
    Limit("connections", 10_000, "connections", "of one server at a time", 1),
    Limit("websocket-message-bytes", 16 << 20, "bytes", "one message, all its frames", 1),
    Limit("websocket-upgrade-seconds", 10.0, "s", "from connect to upgrade", 0.001),
    # Proxies often end a connection that was silent for a minute.
    Limit("websocket-ping-seconds", 55.0, "s", "between pings; 0 sends none"),
    Limit("unread-bytes", 1 << 20, "bytes", "unread output before the producer is paused", 1),
    Limit("unread-seconds", 30.0, "s", "a peer that reads nothing for this long is dropped", 0.001),
)

FRAMES_MAX: Final = 1 << 17
"""A message has no more fragments.

4 MiB in fragments of 64 bytes are the most that is usual: conformance cases 9.3.1 and 9.4.1.
"""

UPGRADE_BYTES: Final = 16 << 10

CLOSE_SECONDS: Final = 5.0

PONG_SECONDS: Final = 30.0


# ── encode websocket messages as bytes (rfc 6455 ───────────────────────────────────────────────


TEXT: Final = 0x81
BINARY: Final = 0x82
PING: Final = 0x89
PONG: Final = 0x8A
"""A message in one frame begins with this byte."""

CONTROL_BYTES_MAX: Final = 125
"""A ping or pong has at most this many bytes (RFC 6455, section 5.5)."""

_MASKED_AS_NUMBER: Final = 1024


def frame(opcode: int, payload: bytes, masked: bool) -> tuple[bytes, ...]:
    """Return one message in one frame, as its parts; ``opcode`` is one of the above.

    What a client sends is ``masked``.
    """
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
    """What ``payload`` is sent as by a protocol whose frames are bytes: text if it is UTF-8."""
    if payload.isascii():
        return TEXT
    try:
        payload.decode()
    except UnicodeDecodeError:
        return BINARY
    return TEXT


def close_reason(text: str) -> bytes:
    """``text`` as a close frame can carry it: at most 123 bytes of whole characters."""
    return text.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode()


# ── replace what autobahn logs and times by what this package do ────────────────────────────────


log = Logger(namespace="twisted_msgproto.net.wires.websocket")


class Call(Shape):
    """What ``callLater`` returns."""

    def cancel(self) -> None:
        """Forget it."""

    def active(self) -> bool:
        """It may still happen."""


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


class PlainTimer:
    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def call_later(self, delay: float, function: Callable[..., object], *args: object) -> Call:
        """Return a plain ``callLater``: autobahn's own buckets cancel in linear time."""
        call: Call = self.clock.callLater(delay, function, *args)
        return call
