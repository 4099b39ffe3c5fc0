"""The data flow's commands have a header frame and a body frame (``MT-13``, ``MT-14``, ``MT-22``).

A header is one byte for the type and then the fields of that type::

    1 Lease     sequence, lease                  6 Confirm  sequence, multiple
    2 Response  sequence            body: code   7 Reject   sequence, multiple, recycle
    3 Summon    sequence, resource               8 Ping
    4 Dismiss   sequence, resource               9 Pong
    5 Content   sequence, resource, properties   body: the content

A sequence is 64 bits unsigned, a name is a short string (one byte for its length, then UTF-8
without control characters), a boolean is a byte of 0 or 1.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from . import fields

SEQUENCE_MAX: Final = (1 << 64) - 1
SHORT_STRING_BYTES_MAX: Final = 255

CONTENT_TYPE: Final = 5
SEQUENCE_BYTES: Final = 9
"""A header has this form up to the end of its sequence."""

CONTENT_HEADER_BYTES_MIN: Final = 14
"""These are type, sequence, the length of an empty resource, and an empty table."""

_SEQUENCE: Final = struct.Struct(">xQ")
read_sequence: Final = _SEQUENCE.unpack_from
"""This reads ``(sequence,)`` of a header of at least nine bytes."""

_CONTROL_CHARACTER: Final = re.compile("[\0-\x1f\x7f-\x9f]")


class IllFormed(ValueError):
    """A message is none of ours: it is dropped silently, and counted under ``reason``."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class Lease:
    """The client opens a data flow with its lease (``MT-14``)."""

    sequence: int
    lease: str


@dataclass(slots=True)
class Response:
    """An answer to the command of this sequence: 200, 400, 403 or 404 (``MT-14``)."""

    sequence: int
    code: int


@dataclass(slots=True)
class Summon:
    """The client wants this resource's content (``MT-16``)."""

    sequence: int
    resource: str


@dataclass(slots=True)
class Dismiss:
    """The client wants no more of this resource's content (``MT-17``)."""

    sequence: int
    resource: str


@dataclass(slots=True)
class Content:
    """Content for or from a resource; ``properties`` is an encoded field table (``MT-18``)."""

    sequence: int
    resource: str
    properties: bytes = fields.EMPTY
    body: bytes = b""


@dataclass(slots=True)
class Confirm:
    """Content is safe: this one, or all up to it (``MT-19``, ``MT-20``)."""

    sequence: int
    multiple: bool = False


@dataclass(slots=True)
class Reject:
    """Content is refused: this one, or all up to it; send it again if ``recycle`` (``MT-19``)."""

    sequence: int
    multiple: bool = False
    recycle: bool = False


@dataclass(slots=True)
class Ping:
    """Are you there? (``MT-21``)"""


@dataclass(slots=True)
class Pong:
    """I am (``MT-21``)."""


DataCommand = Lease | Response | Summon | Dismiss | Content | Confirm | Reject | Ping | Pong
COMMANDS: Final[tuple[type, ...]] = (
    Lease, Response, Summon, Dismiss, Content, Confirm, Reject, Ping, Pong,
)  # fmt: skip
"""They stand in the order of their types, from 1."""

PING: Final = [b"\x08", b""]
PONG: Final = [b"\x09", b""]

_FIXED_BYTES: Final = {2: 9, 6: 10, 7: 11, 8: 1, 9: 1}


def decode(header: bytes, body: bytes) -> DataCommand:
    """Return the command of these two frames; raises IllFormed (``MT-13``).

    A body where none is used is ignored.
    """
    kind = header[0] if header else 0
    if not 1 <= kind <= 9:
        raise IllFormed("type", f"no such type of command: {kind}")
    nbytes = _FIXED_BYTES.get(kind)
    if nbytes is not None and len(header) != nbytes:
        raise IllFormed("header-length", f"a header of type {kind} has {nbytes} bytes")
    if kind >= 8:
        return Ping() if kind == 8 else Pong()
    if len(header) < 10 and kind != 2:
        raise IllFormed("header-length", "the header ends within its fields")
    (sequence,) = read_sequence(header)
    if kind == 2:
        return Response(sequence, _code(body))
    if kind == 6:
        return Confirm(sequence, _boolean(header[9]))
    if kind == 7:
        return Reject(sequence, _boolean(header[9]), _boolean(header[10]))
    end = 10 + header[9]
    if len(header) < end:
        raise IllFormed("header-length", "the header ends within a name")
    name = decode_name(header[10:end])
    if kind == CONTENT_TYPE:
        return Content(sequence, name, decode_properties(header[end:])[0], body)
    if len(header) != end:
        raise IllFormed("header-length", "bytes after the header's last field")
    named: DataCommand = COMMANDS[kind - 1](sequence, name)
    return named


def decode_name(data: bytes) -> str:
    """Return the text of a short string; raises IllFormed (``MT-22``)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise IllFormed("string", "a name is not UTF-8") from None
    if _CONTROL_CHARACTER.search(text):
        raise IllFormed("string", "a control character in a name")
    return text


def decode_properties(data: bytes) -> tuple[bytes, dict[str, str] | None]:
    """The table as it came and its texts (None: it is empty); raises IllFormed (``MT-23``)."""
    if data == fields.EMPTY:
        return fields.EMPTY, None
    try:
        return data, fields.as_texts(data)
    except fields.IllFormedTable as error:
        raise IllFormed("properties", str(error)) from None


def _boolean(byte: int) -> bool:
    if byte > 1:
        raise IllFormed("boolean", f"a boolean of {byte}")
    return byte == 1


def _code(body: bytes) -> int:
    if len(body) != 3 or not body.isdigit():
        raise IllFormed("code", "a response's code is not three digits")
    return int(body)


def encode(command: DataCommand) -> list[bytes]:
    """Return the header and the body of ``command``; ValueError for what no field can hold."""
    if isinstance(command, Ping):
        return PING
    if isinstance(command, Pong):
        return PONG
    if not 0 <= command.sequence <= SEQUENCE_MAX:
        raise ValueError(f"a sequence has 64 bits: {command.sequence}")
    kind = COMMANDS.index(type(command)) + 1
    head = bytes([kind]) + command.sequence.to_bytes(8, "big")
    match command:
        case Lease():
            return [head + encode_name(command.lease), b""]
        case Response():
            return [head, b"%03d" % command.code]
        case Summon() | Dismiss():
            return [head + encode_name(command.resource), b""]
        case Content():
            return [head + encode_name(command.resource) + command.properties, command.body]
        case Confirm():
            return [head + (b"\1" if command.multiple else b"\0"), b""]
        case _:
            return [head + bytes([command.multiple, command.recycle]), b""]


def encode_name(text: str) -> bytes:
    """Return ``text`` as a short string; raise ValueError for what is none (``MT-22``)."""
    if _CONTROL_CHARACTER.search(text):
        raise ValueError(f"a control character in {text!r}")
    nbytes = text.encode("utf-8")
    if len(nbytes) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"a name has at most {SHORT_STRING_BYTES_MAX} bytes, not {len(nbytes)}")
    return bytes([len(nbytes)]) + nbytes


def encode_content(sequence: int, name: bytes, properties: bytes, body: bytes) -> list[bytes]:
    """Return the frames of a Content whose name is an encoded short string: the short way in
    loops.
    """
    return [b"\x05" + sequence.to_bytes(8, "big") + name + properties, body]
