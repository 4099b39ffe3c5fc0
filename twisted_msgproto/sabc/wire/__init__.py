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

from collections.abc import Mapping
from dataclasses import dataclass
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
    """One frame; the subclass is the command.

    ``final``: an end mark follows the body.  ``head_bytes`` and ``end_bytes`` are the bytes of
    the head (to the blank line) and the end mark on the wire; 0 for frames that were made here.
    ``headers`` may hold a passcode, so their values do not show in ``repr``.
    """

    command: ClassVar[str] = ""
    has_body: ClassVar[bool] = False

    headers: dict[str, str]
    body: bytes = b""
    final: bool = True
    head_bytes: int = 0
    end_bytes: int = 0

    def __repr__(self) -> str:
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
    """Return the line ``key::value``; ValueError for what would not be read back as it is
    (``SA-03``).

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
    """Return command, headers and the blank line as bytes; ``more``: lines that were made before.

    Raises ValueError as :func:`header_line` does, and for text that UTF-8 cannot carry.
    """
    lines = [header_line(key, value) for key, value in headers.items()]
    return "\r\n".join([command, *lines, f"{more}\r\n"]).encode()


def ends_early(body: bytes) -> bool:
    """Return whether a reader without lengths would see an end mark within ``body`` (``SA-21``)."""
    return body.startswith((b"\0", b"\r\n\0")) or END in body


def part_start(body: bytes | bytearray, position: int) -> int:
    """Return the first place at or after ``position`` where a part may begin without lengths
    (``SA-21``).

    A part that began with NUL (or CRLF NUL) would be read as an end mark.
    """
    while position < len(body) and body.startswith((b"\0", b"\r\n\0"), position):
        position += 1
    return position


def leads_into_frame(body: bytes | bytearray, start: int, end: int, bounds: Bounds) -> bool:
    """Return whether a part that ends at ``end`` could run into the head of the frame behind it.

    A reader without lengths takes the first command under which the header block is valid
    (``SA-26``).  If the part ends with a command, headers and the beginning of another header, it
    would be that command.
    """
    tail = bytes(body[max(start, end - bounds.block_bytes - 32) : end])
    before, _, line = tail.rpartition(b"\n")
    return b"::" in line and any(
        command + ending in before + b"\n" for command in IN_BODIES for ending in (CRLF, b"\n")
    )
