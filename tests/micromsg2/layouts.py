"""Frames of MicroMsg2 as these tests write and read them: by the tables alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import pack
from urllib.parse import quote, unquote

from twisted_msgproto.micromsg2 import Offer

COMMAND, EXTENSION, ERROR, LARGE, CONTINUED = 1, 2, 4, 8, 16
PART_OCTETS = 1 << 20


@dataclass(frozen=True)
class Handshake:
    major: int
    minor: int
    identity: str
    required: tuple[Offer, ...] = ()
    optional: tuple[Offer, ...] = ()
    flags: int = 0

    @property
    def offers(self) -> tuple[Offer, ...]:
        return self.required + self.optional


@dataclass(frozen=True)
class Command:
    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class ExtensionFrame:
    index: int
    payload: bytes


@dataclass(frozen=True)
class Error:
    text: str

    @property
    def code(self) -> str:
        return self.text.partition(":")[0]


@dataclass(frozen=True)
class Part:
    sequence: int
    destination: str
    properties: bytes
    payload: bytes


def read_offers(text: str) -> tuple[Offer, ...]:
    found = []
    for item in filter(None, text.split(";")):
        name, _, said = item.partition(":")
        pairs = (pair.partition("=") for pair in filter(None, said.split(",")))
        found.append(Offer(name, {key.lower(): unquote(value) for key, _, value in pairs}))
    return tuple(found)


def _list(offers: Sequence[Offer]) -> bytes:
    items = []
    for offer in offers:
        said = ",".join(f"{key}={quote(text, safe='')}" for key, text in offer.properties.items())
        items.append(offer.name + (f":{said}" if said else ""))
    octets = ";".join(items).encode()
    return pack(">H", len(octets)) + octets


def encode_handshake(said: Handshake) -> bytes:
    identity = said.identity.encode()
    head = bytes((said.major, said.minor, said.flags, len(identity)))
    return head + identity + _list(said.required) + _list(said.optional)


def encode_address(destination: str, properties: bytes = b"") -> bytes:
    name = destination.encode()
    return bytes((len(name),)) + name + pack(">H", len(properties)) + properties


def _sized(kind: int, head: bytes, payload: bytes) -> bytes:
    large = len(payload) > 255
    length = pack(">I", len(payload)) if large else bytes((len(payload),))
    return bytes((kind | (LARGE if large else 0),)) + head + length + payload


def encode_message(sequence: int, address: bytes, payload: bytes, continued: bool = False) -> bytes:
    return _sized(CONTINUED if continued else 0, pack(">H", sequence) + address, payload)


def encode_command(name: str, parameters: Mapping[str, str] | None = None) -> bytes:
    said = ",".join(f"{key}={quote(text, safe='')}" for key, text in (parameters or {}).items())
    return _sized(COMMAND, b"", f"{name};{said}".encode() if said else name.encode())


def encode_extension(index: int, payload: bytes) -> bytes:
    return _sized(EXTENSION, bytes((index,)), payload)


def encode_error(text: str) -> bytes:
    return _sized(ERROR, b"", text.encode())


class _Octets:
    """Octets from which a frame is taken; EOFError where it is not whole."""

    def __init__(self, octets: bytes) -> None:
        self.octets, self.at = octets, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.octets):
            raise EOFError
        self.at += count
        return self.octets[self.at - count : self.at]

    def number(self, octets: int) -> int:
        return int.from_bytes(self.take(octets), "big")

    def handshake(self) -> Handshake:
        major, minor, flags = self.take(3)
        identity = self.take(self.number(1)).decode()
        required, optional = (read_offers(self.take(self.number(2)).decode()) for _ in range(2))
        return Handshake(major, minor, identity, required, optional, flags)

    def frame(self) -> object:
        """A frame; of a message that is whole, a tuple."""
        flags = self.number(1)
        kind, head = flags & 7, self.take({0: 2, EXTENSION: 1}.get(flags & 7, 0))
        address = (self.take(self.number(1)), self.take(self.number(2))) if not kind else (b"", b"")
        payload = self.take(self.number(4 if flags & LARGE else 1))
        if kind == ERROR:
            return Error(payload.decode())
        if kind == EXTENSION:
            return ExtensionFrame(head[0], payload)
        if kind == COMMAND:
            name, _, said = payload.decode().partition(";")
            pairs = (pair.partition("=") for pair in filter(None, said.split(",")))
            return Command(name, {key: unquote(text) for key, _, text in pairs})
        assert not flags & ~(LARGE | CONTINUED), flags
        row = (int.from_bytes(head, "big"), address[0].decode(), address[1], payload)
        return Part(*row) if flags & CONTINUED else row


def frames(octets: bytes, handshakes: int = 0) -> Iterator[object]:
    source = _Octets(octets)
    while True:
        try:
            if handshakes and octets[source.at : source.at + 1] not in (b"\4", b"\x0c"):
                yield source.handshake()
                handshakes -= 1
            else:
                yield source.frame()
        except EOFError:
            return


def decode(chunks: Iterable[bytes], handshakes: int = 0) -> list[object]:
    """Whole frames: handshakes first; messages as (number, destination, properties, payload)."""
    return list(frames(b"".join(chunks), handshakes))
