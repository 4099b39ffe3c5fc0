"""sABC sends frames of text lines with a body, on byte streams and in WebSocket messages.

A frame is a command, headers, a blank line and a body (``SA-01``)::

    frame   = command CRLF 1*(header CRLF) CRLF body [end]
    header  = key "::" value            ; UTF-8 without CR, LF and NUL, no "::" in the value
    end     = CRLF CRLF NUL             ; NUL alone when the body is empty
    command = CONNECT | CONNECTED | DISCONNECT | DISCONNECTING | MESSAGE | ERROR

An end mark ends the *message*.  A frame without one is a part of a message that continues
(``msg-more::yes``) or an error frame that is thrown away (``SA-20``).

How bytes are cut into frames is told in :mod:`.framing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import ClassVar, Final

from ...core.limits import Limits

CRLF: Final = b"\r\n"
BLANK: Final = b"\r\n\r\n"
END: Final = b"\r\n\r\n\0"
"""A message with a body ends with this mark (``SA-01``)."""
END_OF_EMPTY: Final = b"\0"
"""Directly after the blank line this is the end mark (``SA-01``)."""

SESSION_ID: Final = "session-id"
CLIENT_ID: Final = "client-id"
CLIENT_PASSCODE: Final = "client-passcode"
SESSION_EXPIRY: Final = "session-expiry"
MSG_ID: Final = "msg-id"
REF_MSG_ID: Final = "ref-msg-id"
SEND_ONLY: Final = "send-only"
MSG_MORE: Final = "msg-more"
ERROR_CODE: Final = "error-code"
FRAMING: Final = "framing"
LENGTH: Final = "length"
MESSAGE_BYTES: Final = "message-bytes"
"""The largest message that the sender of CONNECT, or of the CONNECTED after it, accepts."""
ANNOUNCEMENTS: Final = frozenset((FRAMING, MESSAGE_BYTES))
"""Our sides tell each other this on CONNECT and CONNECTED, beside the source."""
CONTENT_LENGTH: Final = "content-length"
TRUNCATED: Final = "truncated"
"""With ``yes`` on the answer to a message that was cut (``SA-16``)."""
YES: Final = "yes"

RESERVED: Final = frozenset(
    (
        CLIENT_ID,
        CLIENT_PASSCODE,
        SESSION_ID,
        SESSION_EXPIRY,
        MSG_ID,
        REF_MSG_ID,
        SEND_ONLY,
        MSG_MORE,
        ERROR_CODE,
    )
)


@dataclass(slots=True, frozen=True)
class Bounds:
    """The bounds of a header block (``SA-27``): lines, bytes a line, bytes in all."""

    header_lines: int = 32
    line_bytes: int = 1024
    block_bytes: int = 8192

    @classmethod
    def of(cls, limits: Limits) -> Bounds:
        nbytes = limits.integer("header-block-bytes")
        return cls(max(1, nbytes // 256), nbytes // 8, nbytes)


@dataclass(slots=True)
class Frame:
    """One frame; the subclass is the command."""

    command: ClassVar[str] = ""
    has_body: ClassVar[bool] = False

    headers: dict[str, str]
    body: bytes = b""
    final: bool = True  # an end mark follows the body
    head_bytes: int = 0  # on the wire, to the blank line; 0 for a frame made here, as the next
    end_bytes: int = 0

    def __repr__(self) -> str:  # without the values of the headers: a passcode may be there
        return (
            f"{type(self).__name__}({sorted(self.headers)}, {len(self.body)} bytes,"
            f" final={self.final})"
        )


@dataclass(slots=True, repr=False)
class Connect(Frame):
    """A client's wish for a session (``SA-05``, ``SA-08``)."""

    command: ClassVar[str] = "CONNECT"


@dataclass(slots=True, repr=False)
class Connected(Frame):
    """A server's yes, with the session's name (``SA-09``)."""

    command: ClassVar[str] = "CONNECTED"


@dataclass(slots=True, repr=False)
class Disconnect(Frame):
    """A client's wish for an orderly end (``SA-12``)."""

    command: ClassVar[str] = "DISCONNECT"


@dataclass(slots=True, repr=False)
class Disconnecting(Frame):
    """The last word of either side (``SA-13``)."""

    command: ClassVar[str] = "DISCONNECTING"


@dataclass(slots=True, repr=False)
class Message(Frame):
    """A message, or one part of it (``SA-14``)."""

    command: ClassVar[str] = "MESSAGE"
    has_body: ClassVar[bool] = True


@dataclass(slots=True, repr=False)
class Error(Frame):
    """An error, always one frame (``SA-23``)."""

    command: ClassVar[str] = "ERROR"
    has_body: ClassVar[bool] = True


IN_BODIES: Final = (b"MESSAGE", b"DISCONNECT", b"DISCONNECTING", b"ERROR")
"""A part without an end mark may end before one of these commands (``SA-26``)."""
COMMANDS: Final[Mapping[str, type[Frame]]] = {
    kind.command: kind for kind in (Connect, Connected, Disconnect, Disconnecting, Message, Error)
}


def header_line(key: str, value: str) -> str:
    """ValueError for what would not be read back as it is (``SA-03``).

    A key is not empty, holds no ``::`` and does not end with a colon; a value holds no ``::``;
    CR, LF and NUL stand in neither, so that no value can start another header or frame.
    """
    for text, name in ((key, "key"), (value, "value")):
        if not isinstance(text, str):
            raise ValueError(f"a header {name} is text, not {type(text).__name__}")
        if "::" in text:
            raise ValueError(f"'::' must not stand in a header {name}")
        if "\r" in text or "\n" in text or "\0" in text:
            raise ValueError(f"CR, LF and NUL must not stand in a header {name}")
    if not key or key.endswith(":"):
        raise ValueError("a header key is not empty and does not end with a colon")
    return f"{key}::{value}"


def encode_head(command: str, headers: Mapping[str, str], more: str = "") -> bytes:
    """``more``: lines that were made before.  ValueError, also for text that UTF-8 cannot carry."""
    lines = [header_line(key, value) for key, value in headers.items()]
    return "\r\n".join([command, *lines, f"{more}\r\n"]).encode()


def ends_early(body: bytes) -> bool:
    """Return whether a reader without lengths would see an end mark within ``body`` (``SA-21``)."""
    return body.startswith((b"\0", b"\r\n\0")) or END in body


def part_start(body: bytes | bytearray, position: int) -> int:
    """A part that began with NUL (or CRLF NUL) would be read as an end mark (``SA-21``)."""
    while position < len(body) and body.startswith((b"\0", b"\r\n\0"), position):
        position += 1
    return position


def leads_into_frame(body: bytes | bytearray, start: int, end: int, bounds: Bounds) -> bool:
    """Return whether a part that ends at ``end`` could run into the head of the frame behind it.

    If it ends with a command, headers and the beginning of another header, it would be that
    command: a reader without lengths takes the first under which the block is valid (``SA-26``).
    """
    tail = bytes(body[max(start, end - bounds.block_bytes - 32) : end])
    before, _, line = tail.rpartition(b"\n")
    return b"::" in line and any(
        command + ending in before + b"\n" for command in IN_BODIES for ending in (CRLF, b"\n")
    )


# ── lines, end marks and headers that are read (SA-02, SA-03, SA-28) ─────────────────────────────

_CR: Final = 13


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
    """None if anything is unusual; the line reader of the decoder then finds out what."""
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
