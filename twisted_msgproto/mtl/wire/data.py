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

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from ...core.broker.envelopes import in_json

# ── Field tables (``MT-23``) ──────────────────────────────────────────────────────────────────────

# A table is a 32-bit length and then fields: a short string for the name, one octet for the type,
# the value.  The letters are those that the widely deployed brokers use (``s`` is a 16-bit integer
# and ``l`` a signed 64-bit one there)::
#
#     t boolean   b B 8 bits   s U u 16 bits   I i 32 bits   l L 64 bits signed   f d floats
#     D decimal   S text   x bytes   T time   A array   F table   V nothing


DEPTH_MAX: Final = 8
"""Tables and arrays may be nested this deep, the outermost table included."""

FIELDS_MAX: Final = 128
"""A table may have this many values, those of inner tables and arrays included."""

EMPTY: Final = b"\0\0\0\0"

FieldValue = (
    bool | int | float | Decimal | str | bytes | datetime | Sequence[Any] | Mapping[str, Any] | None
)


class IllFormed(ValueError):
    """A message is none of ours: it is dropped silently, and counted under ``reason``."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class IllFormedTable(IllFormed):
    """The bytes are no field table, or one above a limit."""

    def __init__(self, text: str) -> None:
        super().__init__("properties", text)


_FIXED: Final[dict[int, struct.Struct]] = {
    ord(letter): struct.Struct(">" + code)
    for letter, code in {
        "b": "b", "B": "B", "s": "h", "U": "h", "u": "H", "I": "i", "i": "I",
        "l": "q", "L": "q", "f": "f", "d": "d",
    }.items()
}  # fmt: skip


def decode_table(data: bytes) -> dict[str, Any]:
    """Return the fields of a table that fills ``data``; raises IllFormedTable.

    The last value of a name counts.  Text that is not UTF-8 gets U+FFFD, and a time outside of
    Python's calendar stays an integer.
    """
    if len(data) - 4 != int.from_bytes(data[:4], "big"):
        raise IllFormedTable("the table's length is not that of its bytes")
    reader = _Reading(data)
    try:
        return reader.table(4, len(data), 1)
    except (struct.error, IndexError):
        raise IllFormedTable("the table ends within a field") from None


class _Reading:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.count = 0

    def table(self, at: int, end: int, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while at < end:
            name_end = at + 1 + self.data[at]
            try:
                name = self.data[at + 1 : name_end].decode("utf-8")
            except UnicodeDecodeError:
                raise IllFormedTable("a name is not UTF-8") from None
            fields[name], at = self.value(name_end, end, depth)
        return fields

    def array(self, at: int, end: int, depth: int) -> list[Any]:
        values = []
        while at < end:
            value, at = self.value(at, end, depth)
            values.append(value)
        return values

    def value(self, at: int, end: int, depth: int) -> tuple[Any, int]:
        """The value whose type stands at ``at``, and where it ends: at most at ``end``."""
        self.count += 1
        if self.count > FIELDS_MAX:
            raise IllFormedTable(f"more than {FIELDS_MAX} fields")
        data, letter = self.data, self.data[at]
        at += 1
        value: Any
        fixed = _FIXED.get(letter)
        if fixed is not None:
            (value,), stop = fixed.unpack_from(data, at), at + fixed.size
        elif letter in b"SxAF":
            start = at + 4
            stop = start + int.from_bytes(data[at:start], "big")
            if letter == 0x53:
                value = data[start:stop].decode("utf-8", "replace")
            elif letter == 0x78:
                value = data[start:stop]
            elif depth >= DEPTH_MAX:
                raise IllFormedTable(f"deeper than {DEPTH_MAX}")
            elif letter == 0x41:
                value = self.array(start, stop, depth + 1)
            else:
                value = self.table(start, stop, depth + 1)
        elif letter == 0x74:
            if data[at] > 1:
                raise IllFormedTable(f"a boolean of {data[at]}")
            value, stop = data[at] == 1, at + 1
        elif letter == 0x44:
            digits = int.from_bytes(data[at + 1 : at + 5], "big", signed=True)
            value, stop = Decimal(digits).scaleb(-data[at]), at + 5
        elif letter == 0x54:
            value, stop = _time(int.from_bytes(data[at : at + 8], "big")), at + 8
        elif letter == 0x56:
            value, stop = None, at
        else:
            raise IllFormedTable(f"no such type of value: {bytes([letter])!r}")
        if stop > end:
            raise IllFormedTable("the table ends within a value")
        return value, stop


def _time(seconds: int) -> datetime | int:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return seconds


def encode_table(fields: Mapping[str, FieldValue]) -> bytes:
    """Return ``fields`` as bytes, length included; integers have 32 bits where they fit, else 64.

    ValueError for what no field can hold or a limit forbids, TypeError for a type without a letter.
    """
    return _Writing().table(fields, 1)


class _Writing:
    def __init__(self) -> None:
        self.count = 0

    def table(self, fields: Mapping[str, FieldValue], depth: int) -> bytes:
        return _with_length(
            b"".join(
                _short_string(name) + self.value(value, depth) for name, value in fields.items()
            )
        )

    def value(self, value: FieldValue, depth: int) -> bytes:
        self.count += 1
        if self.count > FIELDS_MAX:
            raise ValueError(f"more than {FIELDS_MAX} fields")
        for kind, encode in _ENCODERS:
            if isinstance(value, kind):
                return encode(value)
        if value is None:
            return b"V"
        if depth >= DEPTH_MAX:
            raise ValueError(f"deeper than {DEPTH_MAX}")
        if isinstance(value, Mapping):
            return b"F" + self.table(value, depth + 1)
        if isinstance(value, Sequence):
            return b"A" + _with_length(b"".join(self.value(item, depth + 1) for item in value))
        raise TypeError(f"no field holds a {type(value).__name__}")


def _short_string(text: str) -> bytes:
    """Its length in one byte and its bytes; ValueError where there are more than 255."""
    encoded = text.encode("utf-8")
    if len(encoded) > 255:
        raise ValueError(f"a name has at most 255 bytes, not {len(encoded)}")
    return bytes([len(encoded)]) + encoded


def _with_length(nbytes: bytes) -> bytes:
    return len(nbytes).to_bytes(4, "big") + nbytes


def _integer(value: int) -> bytes:
    for letter, bits in ((b"I", 32), (b"l", 64)):
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return letter + value.to_bytes(bits // 8, "big", signed=True)
    raise ValueError(f"no field holds the integer {value}")


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"no field holds the decimal {value}")
    unscaled = int("".join(map(str, digits))) * 10 ** max(0, exponent if exponent < 16 else 16)
    if exponent < -255 or unscaled >= 1 << 31:
        raise ValueError(f"no field holds the decimal {value}")
    return struct.pack(">cBi", b"D", max(0, -exponent), -unscaled if sign else unscaled)


def _seconds(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise ValueError("a time without its zone")
    seconds = int(value.timestamp())
    if seconds < 0:
        raise ValueError(f"no field holds the time {value}, which is before 1970")
    return struct.pack(">cQ", b"T", seconds)


_ENCODERS: Final[tuple[tuple[type, Callable[[Any], bytes]], ...]] = (
    (bool, lambda value: b"t\1" if value else b"t\0"),
    (int, _integer),
    (float, lambda value: struct.pack(">cd", b"d", value)),
    (Decimal, _decimal),
    (str, lambda value: b"S" + _with_length(value.encode("utf-8"))),
    (bytes, lambda value: b"x" + _with_length(value)),
    (datetime, _seconds),
)


def with_field(table: bytes, name: str, value: FieldValue) -> bytes:
    """Return an encoded table with one more field at its end; ValueError if it is full."""
    reading = _Reading(table)
    reading.table(4, len(table), 1)
    if reading.count >= FIELDS_MAX:
        raise ValueError(f"it has {FIELDS_MAX} fields already")
    added = _short_string(name) + _Writing().value(value, 1)
    return _with_length(table[4:] + added)


def as_text(value: FieldValue) -> str:
    """Return a value for the ``fields`` column: text as it is, else JSON (base64, ISO 8601)."""
    return value if isinstance(value, str) else json.dumps(value, default=in_json)


def as_texts(table: bytes) -> dict[str, str]:
    """The fields of an encoded table as the ``fields`` column wants them; raises IllFormedTable."""
    return {name: as_text(value) for name, value in decode_table(table).items()}


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────


SEQUENCE_MAX: Final = (1 << 64) - 1

CONTENT: Final = b"\x05"  # how the header of one begins
SEQUENCE_BYTES: Final = 9
"""A header has this form up to the end of its sequence."""

CONTENT_HEADER_BYTES_MIN: Final = 14
"""These are type, sequence, the length of an empty resource, and an empty table."""

_SEQUENCE: Final = struct.Struct(">xQ")
read_sequence: Final = _SEQUENCE.unpack_from
"""This reads ``(sequence,)`` of a header of at least nine bytes."""

_CONTROL_CHARACTER: Final = re.compile("[\0-\x1f\x7f-\x9f]")


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
    properties: bytes = EMPTY
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
    """Return the command of two frames, without an unused body; raises IllFormed (``MT-13``)."""
    kind = header[0] if header else 0
    if not 1 <= kind <= 9:
        raise IllFormed("type", f"no such type of command: {kind}")
    nbytes = _FIXED_BYTES.get(kind)
    if nbytes is not None and len(header) != nbytes:
        raise IllFormed("header-length", f"a header of type {kind} has {nbytes} bytes")
    if kind >= 8:
        return Ping() if kind == 8 else Pong()
    if kind == 2:
        return Response(read_sequence(header)[0], _code(body))
    if len(header) < 10:
        raise IllFormed("header-length", "the header ends within its fields")
    (sequence,) = read_sequence(header)
    if kind == 6:
        return Confirm(sequence, _boolean(header[9]))
    if kind == 7:
        return Reject(sequence, _boolean(header[9]), _boolean(header[10]))
    end = 10 + header[9]
    if len(header) < end:
        raise IllFormed("header-length", "the header ends within a name")
    name = decode_name(header[10:end])
    if kind == 5:
        table = header[end:]
        if table != EMPTY:
            decode_table(table)
        return Content(sequence, name, table, body)
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
    return _short_string(text)


def encode_content(sequence: int, name: bytes, properties: bytes, body: bytes) -> list[bytes]:
    """As :func:`encode`; ``name`` is an encoded short string: the short way in loops."""
    return [CONTENT + sequence.to_bytes(8, "big") + name + properties, body]


def as_bytes(body: object) -> bytes:
    """A body that is not ``bytes`` as it is now; TypeError for what is no bytes."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes, not {type(body).__name__}")
