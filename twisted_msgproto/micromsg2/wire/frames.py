"""MicroMsg2 frames are turned into bytes and back here.

Numbers are in network byte order (``MM-01``)::

    handshake  = major(1) minor(1) flags(1) length(1) identity
                 length(2) required length(2) optional                          MM-02
    frame      = flags(1) …                                                     MM-11
    message    = flags sequence(2) length(1) destination length(2) properties
                 size payload                                                   MM-12
    command    = flags size text                                                MM-15
    extension  = flags index(1) size payload                                    MM-16
    error      = flags size text                                                MM-17
    size       = bytes(1), or bytes(4) if flags has LARGE_PAYLOAD

A connection is some handshakes, then frames; where a handshake is expected, an ERROR frame may
stand as well (``MM-17``).  Messages are the hot path: neighbours come out of the decoder together,
as the columns of one :class:`Messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Final

from ...core.errors import Fault, shown
from ...core.frame_buffer import FrameBuffer
from ...core.limits import Limit, Limits
from .texts import (
    BadText,
    Offer,
    TooLong,
    read_command,
    read_extensions,
    write_command,
    write_extensions,
)

MAJOR: Final = 1
MINOR: Final = 0

COMMAND: Final = 1
EXTENSION: Final = 2
ERROR: Final = 4
LARGE_PAYLOAD: Final = 8
CONTINUED: Final = 16
TYPES: Final = COMMAND | EXTENSION | ERROR
KNOWN_FLAGS: Final = TYPES | LARGE_PAYLOAD | CONTINUED

SEQUENCES: Final = range(1, 0x10000)
"""MicroMsg2 counts from 1 to 65535 and begins again (``MM-13``)."""

MIB: Final = 1 << 20
LARGE_HEADER_BYTES: Final = 5

SHORT_MAX: Final = 0xFF

LIMITS: Final = (
    Limit("properties-bytes", 8192, "bytes", "the properties of one message"),
    Limit("frame-payload-bytes", MIB, "bytes", "one MESSAGE frame: above 1 MiB it must be split"),
    Limit("command-bytes", 65536, "bytes", "of one COMMAND, EXTENSION or ERROR"),
)
"""A peer may make us buffer this; each is checked on the length, before the content has come."""

EXTENSION_LIST_BYTES: Final = 4096
"""Each extension list of a handshake is not longer."""

PROTOCOL_ERROR: Final = "protocol-error"
LIMIT_EXCEEDED: Final = "limit-exceeded"


def after(number: int, steps: int = 1) -> int:
    return (number - 1 + steps) % len(SEQUENCES) + 1


def following(number: int, count: int) -> Sequence[int]:
    first = after(number)
    if first + count - 1 in SEQUENCES:
        return range(first, first + count)
    return [after(number, steps) for steps in range(1, count + 1)]


def steps_between(start: int, end: int) -> int:
    """Return how many steps forward lead from ``start`` to ``end``: less than there are numbers."""
    return (end - start) % len(SEQUENCES)


@dataclass(slots=True, frozen=True)
class Handshake:
    """One of the three messages that open a connection (``MM-02`` … ``MM-04``)."""

    major: int
    minor: int
    identity: str
    required: tuple[Offer, ...] = ()
    optional: tuple[Offer, ...] = ()
    flags: int = 0

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Return all extensions in the order of their indexes (``MM-09``)."""
        return self.required + self.optional


@dataclass(slots=True)
class Messages:
    """Complete MESSAGE/SEND frames that followed each other, as columns (``MM-12``)."""

    sequences: list[int] = field(default_factory=list)
    destinations: list[str] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    nbytes: int = 0  # on the wire

    def __len__(self) -> int:
        return len(self.sequences)


@dataclass(slots=True, frozen=True)
class Part:
    """A MESSAGE/SEND frame with CONTINUED: more of the same payload follow (``MM-14``)."""

    sequence: int
    destination: str
    properties: bytes
    payload: bytes


@dataclass(slots=True, frozen=True)
class Command:
    """A COMMAND: its name in lower case, and its parameters (``MM-15``)."""

    name: str
    parameters: dict[str, str]


@dataclass(slots=True, frozen=True)
class ExtensionFrame:
    """A frame that belongs to the extension with this index, counted from 1 (``MM-16``)."""

    index: int
    payload: bytes


@dataclass(slots=True, frozen=True)
class Error:
    """An ERROR frame (``MM-17``); ours begin with a stable code, ``code: text``."""

    text: str

    @property
    def code(self) -> str:
        return self.text.partition(":")[0]


Frame = Handshake | Messages | Part | Command | ExtensionFrame | Error

# Encoding ---------------------------------------------------------------------------------------


def _sized(payload: bytes) -> tuple[int, bytes]:
    if len(payload) <= SHORT_MAX:
        return 0, bytes((len(payload),))
    return LARGE_PAYLOAD, struct.pack(">I", len(payload))


def encode_handshake(handshake: Handshake) -> bytes:
    """Return the bytes of a handshake message; BadText for what its fields cannot carry."""
    try:
        identity = handshake.identity.encode("ascii")
    except UnicodeEncodeError:
        raise BadText(f"identity {handshake.identity!r} is not ASCII") from None
    if len(identity) > SHORT_MAX:
        raise BadText(f"an identity has at most {SHORT_MAX} characters")
    nbytes = [
        bytes((handshake.major, handshake.minor, handshake.flags, len(identity))),
        identity,
    ]
    for offers in (handshake.required, handshake.optional):
        text = write_extensions(offers)
        if len(text) > 0xFFFF:
            raise BadText("an extension list has at most 65535 bytes")
        nbytes += (struct.pack(">H", len(text)), text)
    return b"".join(nbytes)


def encode_error(text: str) -> bytes:
    nbytes = text.encode("utf-8", "replace")
    flag, length = _sized(nbytes)
    return bytes((ERROR | flag,)) + length + nbytes


def encode_command(name: str, parameters: Mapping[str, str]) -> bytes:
    """Return a COMMAND frame (``MM-15``); BadText for a name or key that is no FIELD."""
    payload = write_command(name, parameters)
    flag, length = _sized(payload)
    return bytes((COMMAND | flag,)) + length + payload


def encode_extension(index: int, payload: bytes) -> bytes:
    flag, length = _sized(payload)
    return bytes((EXTENSION | flag, index)) + length + payload


def encode_address(destination: str, properties: bytes = b"") -> bytes:
    """Return what stands between number and payload's size; TooLong or BadText if it cannot be."""
    try:
        data = destination.encode("utf-8")
    except UnicodeEncodeError:
        raise BadText(f"a destination is UTF-8, not {shown(destination)}") from None
    except AttributeError:
        raise TypeError(f"a destination is text, not {type(destination).__name__}") from None
    if len(data) > SHORT_MAX:
        raise TooLong(f"a destination has at most {SHORT_MAX} bytes")
    if len(properties) > 0xFFFF:
        raise TooLong("properties have at most 65535 bytes")
    return b"".join((bytes((len(data),)), data, struct.pack(">H", len(properties)), properties))


_ALIKE_MIN: Final = 8
"""From this many messages of one size on they are worth unpacking together."""

_ALIKE_ROWS: Final = 64
"""This many are unpacked together; a sender of fewer alike is not tried again in the same read."""

_START: Final = struct.Struct(">BH")
_LONG: Final = struct.Struct(">I")


Unnumbered = tuple[int, bytes]
"""A MESSAGE frame without its number: the flags, and all that stands behind the number."""


def encode_unnumbered(address: bytes, payload: bytes) -> tuple[Unnumbered, ...]:
    """Return the frames of one payload, for any number of receivers (``MM-14``, ``MM-31``)."""
    if len(payload) <= MIB:
        flag, length = _sized(payload)
        return ((flag, address + length + payload),)
    frames = []
    for offset in range(0, len(payload), MIB):
        part = payload[offset : offset + MIB]
        flag, length = _sized(part)
        if offset + MIB < len(payload):
            flag |= CONTINUED
        frames.append((flag, b"".join((address, length, part))))
    return tuple(frames)


def encode_numbered(
    numbers: Sequence[int], messages: Sequence[tuple[Unnumbered, ...]]
) -> list[bytes]:
    """Return messages in a row, the frames of one with its number; receivers share all else."""
    flags, contents = zip(*chain.from_iterable(messages), strict=True)
    if len(flags) != len(messages):  # some have several parts
        pairs = zip(numbers, messages, strict=True)
        numbers = [number for number, frames in pairs for _ in frames]
    data = [b""] * (2 * len(flags))
    data[::2] = map(_START.pack, flags, numbers)
    data[1::2] = contents
    return data


# Decoding ---------------------------------------------------------------------------------------


class _Broken(Exception):
    def __init__(self, text: str, reason: str = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.reason = reason


class _Incomplete(Exception):
    """Its argument is how many bytes a frame needs."""


class Decoder:
    """Turns bytes into frames; after a Fault nothing comes out any more."""

    def __init__(self, limits: Limits, handshakes: int = 0) -> None:
        """The stream begins with ``handshakes`` handshake messages (a server: 2, a client: 1)."""
        self._limits = limits
        self._handshakes = handshakes
        self._payload_max = limits.integer("frame-payload-bytes")
        self._properties_max = limits.integer("properties-bytes")
        self._gathered = FrameBuffer()
        self._expected = 0  # do not look again before this many bytes are buffered
        self._ended = False
        self.more: bool = False  # the last ``feed`` has left complete frames
        self.replaced: int = 0  # texts that were not UTF-8 and have U+FFFD now
        # The address of the last message, encoded, and what it says: most messages repeat it.
        self._last_address: tuple[bytes, str, bytes] = (b"\0\0\0", "", b"")

    @property
    def buffered(self) -> int:
        return self._gathered.nbytes

    def end(self) -> None:
        self._ended = True
        self._gathered = FrameBuffer()

    def feed(self, data: bytes, most: float = inf) -> list[Frame | Fault]:
        """Return complete frames, ``most`` at most (a run of messages is one); a Fault is the last.

        The beginning of another is not read again, nor copied, until enough has come: the cost of a
        large frame does not depend on how it was cut.
        """
        self.more = False
        if self._ended:
            return []
        gathered = self._gathered
        if gathered.nbytes:
            if gathered.nbytes + len(data) < self._expected:
                gathered.add(data)
                return []
            data = b"".join((*gathered.taken(), data))
        frames: list[Frame | Fault] = []
        position = 0
        try:
            while position < len(data):
                if len(frames) >= most:
                    self.more = True
                    raise _Incomplete(0)
                if self._handshakes:
                    position = self._opening(data, position, frames)
                    continue
                position = self._messages(data, position, frames)
                if position < len(data):
                    position = self._frame(data, position, frames)
        except _Incomplete as rest:
            (self._expected,) = rest.args
            gathered.add(data[position:])
        except (_Broken, BadText) as fault:
            self.end()
            reason = fault.reason if isinstance(fault, _Broken) else PROTOCOL_ERROR
            raw = bytes(data[position : position + 32])
            frames.append(Fault(reason, str(fault), raw))
        return frames

    def _limited(self, nbytes: int, limit: str) -> int:
        if nbytes > self._limits[limit]:
            allowed = f"{limit} allows {self._limits.integer(limit)}"
            raise _Broken(f"{nbytes} bytes, {allowed}", LIMIT_EXCEEDED)
        return nbytes

    def _opening(self, data: bytes, start: int, frames: list[Frame | Fault]) -> int:
        """A handshake message, or an ERROR frame in its place (``MM-17``); where it ends."""
        if data[start] in (ERROR, ERROR | LARGE_PAYLOAD):
            return self._frame(data, start, frames)
        position = start + 4
        _need(data, start, position)
        major, minor, flags, nbytes = data[start:position]
        identity_end = position + nbytes
        _need(data, start, identity_end)
        try:
            identity = data[position:identity_end].decode("ascii")
        except UnicodeDecodeError:
            raise _Broken(f"identity {shown(data[position:identity_end])} is not ASCII") from None
        position = identity_end
        lists = []
        for _ in ("required", "optional"):
            _need(data, start, position + 2)
            nbytes = _short(data, position)
            if nbytes > EXTENSION_LIST_BYTES:
                raise _Broken(f"{nbytes} bytes of extensions", LIMIT_EXCEEDED)
            position += 2
            _need(data, start, position + nbytes)
            text = data[position : position + nbytes]
            lists.append(read_extensions(text))
            position += nbytes
        frames.append(Handshake(major, minor, identity, lists[0], lists[1], flags))
        self._handshakes -= 1
        return position

    def _messages(self, data: bytes, position: int, frames: list[Frame | Fault]) -> int:
        """Return the whole messages from ``position`` on, as one run, and where it ends.

        The hot path: it takes what is plainly good, and leaves all else to :meth:`_frame`.
        """
        sequences: list[int] = []
        destinations: list[str] = []
        properties: list[bytes] = []
        payloads: list[bytes] = []
        begin = position
        last_size = 0  # of the message before, as long as it is worth while to look for equals
        alike = 0  # messages since the last change of address
        address, destination, text = self._last_address
        address_bytes = len(address)
        payload_max, end = self._payload_max, len(data)
        unpack_start = _START.unpack_from
        try:
            while True:
                flags, sequence = unpack_start(data, position)
                at = position + 3
                if not data.startswith(address, at):
                    if flags & ~LARGE_PAYLOAD or not self._address(data, at):
                        break
                    if alike:
                        destinations += [destination] * alike
                        properties += [text] * alike
                        alike = 0
                    address, destination, text = self._last_address
                    address_bytes = len(address)
                at += address_bytes
                if not flags:
                    stop = at + data[at] + 1
                    at += 1
                elif flags == LARGE_PAYLOAD:
                    at += 4
                    stop = at + _LONG.unpack_from(data, at - 4)[0]
                else:
                    break
                if stop > end or stop - at > payload_max:
                    break
                payloads.append(data[at:stop])
                sequences.append(sequence)
                alike += 1
                size, position = stop - position, stop
                if size == last_size and end - position >= size * _ALIKE_MIN and not flags:
                    count = self._alike(data, position, size, address, sequences, payloads)
                    alike += count
                    position += count * size
                    # What is tried in vain is bounded by what has succeeded before.
                    last_size = size if count >= _ALIKE_ROWS else -1
                elif last_size >= 0:
                    last_size = size
        except (struct.error, IndexError):
            pass  # the data end inside a header
        if alike:
            destinations += [destination] * alike
            properties += [text] * alike
        if sequences:
            nbytes = position - begin
            frames.append(Messages(sequences, destinations, properties, payloads, nbytes))
        return position

    @staticmethod
    def _alike(
        data: bytes,
        start: int,
        size: int,
        address: bytes,
        sequences: list[int],
        payloads: list[bytes],
    ) -> int:
        """Unpack messages of this size and address; return how many: much faster than the loop."""
        payload_size = size - len(address) - 4
        head = address + bytes((payload_size,))
        left = (len(data) - start) // size
        position = start
        while left:
            rows = good = min(_ALIKE_ROWS, left)
            values = _alike_layout(len(head), payload_size, rows).unpack_from(data, position)
            flags, heads = data[position : position + rows * size : size], values[1::3]
            if flags.count(0) != rows or heads.count(head) != rows:
                found = zip(flags, heads, strict=True)
                good = next(row for row, each in enumerate(found) if each != (0, head))
            sequences += values[: good * 3 : 3]
            payloads += values[2 : good * 3 : 3]
            position += good * size
            left = left - rows if good == rows else 0
        return (position - start) // size

    def _address(self, data: bytes, start: int) -> bool:
        """Read a destination and properties into ``_last_address``; False if that is not to be."""
        end = len(data)
        if start >= end:
            return False
        lengths = start + 1 + data[start]
        if lengths + 2 > end:
            return False
        nbytes = _short(data, lengths)
        stop = lengths + 2 + nbytes
        if nbytes > self._properties_max or stop > end:
            return False
        name = data[start + 1 : lengths]
        try:
            destination = name.decode("utf-8")
        except UnicodeDecodeError:
            destination = name.decode("utf-8", "replace")
            self.replaced += 1
        self._last_address = (data[start:stop], destination, data[lengths + 2 : stop])
        return True

    def _frame(self, data: bytes, start: int, frames: list[Frame | Fault]) -> int:
        flags = data[start]
        kind = flags & TYPES
        if flags & ~KNOWN_FLAGS:
            raise _Broken(f"unknown flags {flags:#04x}")
        if kind not in (0, COMMAND, EXTENSION, ERROR):
            raise _Broken(f"more than one frame type in flags {flags:#04x}")
        if not kind:
            return self._part(data, start, frames)
        if flags & CONTINUED:
            raise _Broken(f"CONTINUED on flags {flags:#04x}: only messages have parts")
        position = start + (2 if kind == EXTENSION else 1)
        payload, end = self._payload(data, start, position, "command-bytes")
        if kind == COMMAND:
            frames.append(Command(*read_command(payload)))
        elif kind == EXTENSION:
            frames.append(ExtensionFrame(data[start + 1], payload))
        else:
            text = payload.decode("utf-8", "replace")
            self.replaced += text.count("\ufffd") > payload.count(b"\xef\xbf\xbd")
            frames.append(Error(text))
        return end

    def _part(self, data: bytes, start: int, frames: list[Frame | Fault]) -> int:
        """Return a MESSAGE frame that the fast loop left: continued, cut or too long."""
        _need(data, start, start + 4)
        lengths = start + 4 + data[start + 3]
        _need(data, start, lengths + 2)
        nbytes = self._limited(_short(data, lengths), "properties-bytes")
        position = lengths + 2 + nbytes
        payload, end = self._payload(data, start, position, "frame-payload-bytes")
        self._address(data, start + 3)
        _, destination, text = self._last_address
        frames.append(Part(_short(data, start + 1), destination, text, payload))
        return end

    def _payload(self, data: bytes, start: int, position: int, limit: str) -> tuple[bytes, int]:
        at = position + (4 if data[start] & LARGE_PAYLOAD else 1)
        _need(data, start, at)
        end = at + self._limited(int.from_bytes(data[position:at], "big"), limit)
        _need(data, start, end)
        return data[at:end], end


@lru_cache(256)
def _alike_layout(head_bytes: int, payload_bytes: int, rows: int) -> struct.Struct:
    return struct.Struct(">" + f"xH{head_bytes}s{payload_bytes}s" * rows)


def _need(data: bytes, start: int, stop: int) -> None:
    if stop > len(data):
        raise _Incomplete(stop - start)


def _short(data: bytes, position: int) -> int:
    return data[position] << 8 | data[position + 1]
