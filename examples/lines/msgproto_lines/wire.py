r"""Lines and bytes: a line is a word, a space and the rest.

The client says ``put BODY`` and ``subscribe``; the server says ``ack N`` (the first N lines of this
connection are done: bodies are safe, a subscription stands), ``message BODY`` and ``error TEXT``.
Where there are users, the client first says ``login BODY``, a name and a password on two lines, and
waits for ``welcome``.  In a body ``\n`` stands for a line feed and ``\\`` for a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ESCAPE = re.compile(rb"\\(.?)")
ESCAPED = {b"n": b"\n", b"\\": b"\\"}


def line(word: bytes, rest: bytes) -> bytes:
    """Return a line with its end."""
    return b"%s %s\n" % (word, rest)


def escape(body: bytes) -> bytes:
    """Return a body as it stands in a line."""
    return body.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")


def unescape(text: bytes) -> bytes:
    """Return the body which stands in a line; ValueError if none can be written so."""
    try:
        return ESCAPE.sub(lambda found: ESCAPED[found[1]], text)
    except KeyError:
        raise ValueError("a backslash stands before neither n nor a backslash") from None


class Lines:
    """Bytes in, lines out."""

    def __init__(self, limit: int) -> None:
        """``limit`` is in bytes of a line."""
        self.limit = limit
        self.rest = bytearray()

    def read(self, nbytes: bytes) -> Iterator[bytes]:
        """Iterate over the lines which are whole now; ValueError for one above the limit."""
        self.rest += nbytes
        if b"\n" in nbytes:
            *whole, self.rest = self.rest.split(b"\n")
            for one in whole:
                yield self._bounded(one)
        self._bounded(self.rest)

    def _bounded(self, nbytes: bytearray) -> bytes:
        if len(nbytes) > self.limit:
            raise ValueError("a line is too long")
        return bytes(nbytes)
