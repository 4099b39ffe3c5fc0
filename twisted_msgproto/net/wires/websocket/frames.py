"""Encode WebSocket messages as octets (RFC 6455, section 5): heads, masks, text or binary."""

from __future__ import annotations

import struct
from random import getrandbits
from typing import Final

from autobahn.websocket.xormasker import create_xor_masker  # type: ignore[attr-defined]

TEXT: Final = 0x81
BINARY: Final = 0x82
PING: Final = 0x89
PONG: Final = 0x8A
"""A message in one frame begins with this octet."""

CONTROL_OCTETS_MAX: Final = 125
"""A ping or pong has at most this many octets (RFC 6455, section 5.5)."""

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
        octets: bytes = create_xor_masker(mask, length).process(payload)
        return octets
    key = (mask * (length // 4 + 1))[:length]
    number = int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")
    return number.to_bytes(length, "little")


def opcode_of(payload: bytes) -> int:
    """What ``payload`` is sent as by a protocol whose frames are octets: text if it is UTF-8."""
    if payload.isascii():
        return TEXT
    try:
        payload.decode()
    except UnicodeDecodeError:
        return BINARY
    return TEXT


def close_reason(text: str) -> bytes:
    """``text`` as a close frame can carry it: at most 123 octets of whole characters."""
    return text.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode()
