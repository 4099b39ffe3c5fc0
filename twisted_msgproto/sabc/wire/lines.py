"""Read lines of a frame's head, end marks, and headers (``SA-02``, ``SA-03``, ``SA-28``).

This module finds where one ends in a buffer, and whether it is in order; :mod:`.framing` makes
frames of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from sys import getsizeof

from . import COMMANDS, CRLF, END, Bounds, Frame

_CR = 13


def wide(texts: Iterable[str]) -> int:
    """Return what those that are not ASCII occupy: it may be four times their bytes."""
    return sum([getsizeof(text) for text in texts if not text.isascii()])


# What the other side gets wrong, as (reason, text).  The texts show nothing of what was sent.
_NO_SEPARATOR = ("header-syntax", "a header is key::value")
_SEPARATOR_IN_VALUE = ("header-syntax", "a header value holds no '::'")
_CONTROL_BYTE = ("header-syntax", "a header holds neither CR nor LF nor NUL")
_EMPTY_KEY = ("header-syntax", "a header key is not empty")
_NOT_UTF_8 = ("header-encoding", "headers are UTF-8")
_REPEATED = ("header-repeated", "a header stands once")


def quick_head(head: bytes, bounds: Bounds) -> tuple[type[Frame], dict[str, str]] | None:
    """Return command and headers of a complete head without its blank line, CRLF throughout.

    None if anything is unusual; the line reader of the decoder then finds out what.
    """
    try:
        command, *lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        return None
    kind = COMMANDS.get(command)
    count = len(lines)
    if kind is None or not 0 < count <= bounds.header_lines:
        return None
    if head.count(b"\n") != count or head.count(b"\r") != count or b"\0" in head:
        return None
    if head.count(b"::") != count:
        return None
    headers = {}
    for line in lines:
        key, separator, value = line.partition("::")
        if not separator:
            return None
        headers[key] = value
    if len(headers) != count or "" in headers:
        return None
    return kind, headers


def read_header(line: bytes, headers: dict[str, str]) -> tuple[str, str] | None:
    """Put the header of ``line`` into ``headers``; what is wrong with it, or None."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return _NOT_UTF_8
    if "\r" in text or "\n" in text or "\0" in text:
        return _CONTROL_BYTE
    key, separator, value = text.partition("::")
    if not separator:
        return _NO_SEPARATOR
    if "::" in value:
        return _SEPARATOR_IN_VALUE
    if not key:
        return _EMPTY_KEY
    if key in headers:
        return _REPEATED
    headers[key] = value
    return None


class Lines:
    """What finds lines and end marks: with CRLF only, or bare LF as well (``SA-28``)."""

    def __init__(self, lenient: bool) -> None:
        self.lenient: bool = lenient
        line_end = rb"\r?\n" if lenient else rb"\r\n"
        self._end = re.compile(line_end + line_end + rb"\0")
        self._start = re.compile(rb"(?:" + line_end + rb")?\0")

    def next(self, data: bytearray, start: int) -> tuple[int, int]:
        """Return where the line from ``start`` ends and the next begins; (-1, -1): not yet."""
        if not self.lenient:
            end = data.find(CRLF, start)
            return (end, end + 2) if end >= 0 else (-1, -1)
        end = data.find(b"\n", start)
        if end < 0:
            return -1, -1
        return (end - 1 if end > start and data[end - 1] == _CR else end), end + 1

    def begin(self, data: bytearray, end: int, floor: int) -> int:
        """Return where the line up to ``end`` begins: behind a line end after ``floor``; or -1."""
        if not self.lenient:
            found = data.rfind(CRLF, floor, end)
            return found + 2 if found >= 0 else -1
        found = data.rfind(b"\n", floor, end)
        return found + 1 if found >= 0 else -1

    def end_before(self, data: bytearray, start: int) -> int:
        if not self.lenient:
            return start - 2
        return start - 2 if start > 1 and data[start - 2] == _CR else start - 1

    def end_at_start(self, data: bytearray, start: int) -> int:
        """Return the bytes of an end mark directly after the blank line; 0: there is none."""
        found = self._start.match(data, start)
        return 0 if found is None else found.end() - start

    def end_in(self, data: bytearray, start: int) -> tuple[int, int]:
        """Return where the first end mark from ``start`` on begins and ends; (-1, -1): nowhere."""
        if not self.lenient:
            found = data.find(END, start)
            return (found, found + 5) if found >= 0 else (-1, -1)
        match = self._end.search(data, start)
        return (-1, -1) if match is None else match.span()

    def end_here(self, data: bytearray, start: int, empty: bool) -> int | None:
        """Return the bytes of the end mark at ``start``; 0: none is here; None: not known yet."""
        rest = bytes(data[start : start + 5])
        if empty and rest[:1] == b"\0":
            return 1
        match = self._end.match(rest)
        if match is not None:
            return match.end()
        marks = (END, b"\n\n\0", b"\n\r\n\0", b"\r\n\n\0") if self.lenient else (END,)
        return None if any(mark.startswith(rest) for mark in marks) else 0


STRICT = Lines(False)
LENIENT = Lines(True)
