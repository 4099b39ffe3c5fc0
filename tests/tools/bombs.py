"""Zlib streams which inflate to far more than anybody may hold."""

from __future__ import annotations

import struct
import zlib


def deflated(octets: bytes, times: int = 1, level: int = 9) -> bytes:
    """``octets`` × ``times`` as a zlib stream, made without ever having them.

    They are deflated once: what was flushed fully stands for itself, however often it is repeated.
    """
    deflating = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    block = deflating.compress(octets) + deflating.flush(zlib.Z_FULL_FLUSH)
    checksum = 1
    for _ in range(times):
        checksum = zlib.adler32(octets, checksum)
    return b"\x78\xda" + block * times + deflating.flush() + struct.pack(">I", checksum)
