"""MicroMsg2 as these tests write and read it, by the tables alone; machines, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from struct import pack
from typing import Any
from urllib.parse import quote, unquote

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.micromsg2 import Offer, Proposal
from twisted_msgproto.micromsg2.machine import Client, Server

CAPTURE = Path(__file__).parent / "captures" / "reference_no_extensions.hex"
"""What a client and a server of the reference implementation said to each other."""

COMMAND, EXTENSION, ERROR, LARGE, CONTINUED = 1, 2, 4, 8, 16
BATCH = "batch-ack:max-count="

Session = Client | Server

# ── Frames ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Handshake:
    major: int
    minor: int
    identity: str
    required: tuple[Offer, ...] = ()
    optional: tuple[Offer, ...] = ()
    flags: int = 0


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


def offers(text: str) -> tuple[Offer, ...]:
    found = []
    for item in filter(None, text.split(";")):
        name, _, said = item.partition(":")
        pairs = (pair.partition("=") for pair in filter(None, said.split(",")))
        found.append(Offer(name, {key.lower(): unquote(value) for key, _, value in pairs}))
    return tuple(found)


def _list(offered: Sequence[Offer]) -> bytes:
    items = []
    for offer in offered:
        said = ",".join(f"{key}={quote(text, safe='')}" for key, text in offer.properties.items())
        items.append(offer.name + (f":{said}" if said else ""))
    octets = ";".join(items).encode()
    return pack(">H", len(octets)) + octets


def handshake(
    required: str = "",
    optional: str = "",
    *,
    major: int = 1,
    minor: int = 0,
    identity: str = "hulk",
) -> bytes:
    head = bytes((major, minor, 0, len(identity))) + identity.encode()
    return head + _list(offers(required)) + _list(offers(optional))


def encode_address(destination: str, properties: bytes = b"") -> bytes:
    name = destination.encode()
    return bytes((len(name),)) + name + pack(">H", len(properties)) + properties


def _sized(kind: int, head: bytes, payload: bytes) -> bytes:
    large = len(payload) > 255
    length = pack(">I", len(payload)) if large else bytes((len(payload),))
    return bytes((kind | (LARGE if large else 0),)) + head + length + payload


def message(
    sequence: int,
    payload: bytes = b"x",
    destination: str = "commands",
    properties: bytes = b"",
    *,
    continued: bool = False,
) -> bytes:
    address = encode_address(destination, properties)
    return _sized(CONTINUED if continued else 0, pack(">H", sequence) + address, payload)


def messages(first: int, count: int, payload: bytes = b"x") -> bytes:
    return b"".join(message(first + offset, payload) for offset in range(count))


def parts(*frames: tuple[int, bytes], final: bool = True) -> bytes:
    """Frames of one payload; the last is without CONTINUED if ``final``."""
    return b"".join(
        message(number, payload, continued=not final or row < len(frames) - 1)
        for row, (number, payload) in enumerate(frames)
    )


def encode_command(name: str, parameters: Mapping[str, str] | None = None) -> bytes:
    said = ",".join(f"{key}={quote(text, safe='')}" for key, text in (parameters or {}).items())
    return _sized(COMMAND, b"", f"{name};{said}".encode() if said else name.encode())


def encode_extension(index: int, payload: bytes) -> bytes:
    return _sized(EXTENSION, bytes((index,)), payload)


def ack(sequence: int, index: int = 1) -> bytes:
    return encode_extension(index, sequence.to_bytes(2, "big"))


def encode_error(text: str) -> bytes:
    return _sized(ERROR, b"", text.encode())


class _Bytes:
    """Bytes from which a frame is taken; EOFError where it is not whole."""

    def __init__(self, nbytes: bytes) -> None:
        self.nbytes, self.at = nbytes, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.nbytes):
            raise EOFError
        self.at += count
        return self.nbytes[self.at - count : self.at]

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "big")

    def handshake(self) -> Handshake:
        major, minor, flags = self.take(3)
        identity = self.take(self.number(1)).decode()
        required, optional = (offers(self.take(self.number(2)).decode()) for _ in range(2))
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


def decode(nbytes: bytes, handshakes: int = 0) -> list[Any]:
    """Whole frames: handshakes first; messages as (number, destination, properties, payload)."""
    source, found = _Bytes(nbytes), list[Any]()
    while True:
        try:
            if handshakes and nbytes[source.at : source.at + 1] not in (b"\4", b"\x0c"):
                found.append(source.handshake())
                handshakes -= 1
            else:
                found.append(source.frame())
        except EOFError:
            return found


def capture(direction: str) -> bytes:
    """What one side said in the capture: ``"C>S"`` or ``"S>C"``."""
    lines = CAPTURE.read_text().splitlines()
    return b"".join(bytes.fromhex(line[4:]) for line in lines if line.startswith(direction))


# ── Machines ────────────────────────────────────────────────────────────────────────────────────


def limits(**changes: object) -> Any:
    return Server().limits.replace({name.replace("_", "-"): n for name, n in changes.items()})


def proposal(required: str = "", optional: str = "", **rest: Any) -> Proposal:
    return Proposal(required=offers(required), optional=offers(optional), **rest)


def pump(client: Session, server: Session, now: float = 0.0) -> tuple[list[Any], list[Any]]:
    """Carry bytes between two sides until both are silent; the events of each."""
    client_events, server_events = list[Any](), list[Any]()
    while True:
        up, down = client.outputs(), server.outputs()
        if not up and not down:
            return client_events, server_events
        server_events += server.receive(up, now)
        client_events += client.receive(down, now)


def pair(
    client: Proposal | None = None,
    server: Proposal | None = None,
    client_limits: Any = None,
    server_limits: Any = None,
) -> tuple[Client, Server]:
    """Both sides in a session."""
    ours, theirs = Client(client, client_limits), Server(server, server_limits)
    ours.open()
    pump(ours, theirs)
    assert ours.established and theirs.established, (ours.fault, theirs.fault)
    return ours, theirs


def server_with(extensions: str = "", **changes: object) -> Server:
    """A server in a session of which these extensions were agreed."""
    return pair(proposal(extensions), None, limits(ack_count=32767), limits(**changes))[1]


def client_with(extensions: str = "", **changes: object) -> Client:
    return pair(proposal(extensions), None, limits(**changes), limits())[0]


def send(
    session: Session,
    destination: str,
    payload: bytes,
    *,
    properties: Mapping[str, Any] = {},
    notes: Mapping[str, str] = {},
) -> None:
    address = session.address(destination, properties)
    session.check((len(payload),), notes)
    session.send_run(address, (payload,), notes)


def receive(session: Session, nbytes: bytes, now: float = 0.0) -> list[Any]:
    return session.receive(nbytes, now)


def state(session: Session) -> object:
    return session.snapshot()["state"]


def broken(session: Session, nbytes: bytes, code: str = "protocol-error") -> list[Any]:
    """The events of a read which breaks the protocol: an ERROR is written, then silence."""
    events = receive(session, nbytes)
    found = fault(events)
    assert found.reason == code, found
    assert session.fault is found
    assert state(session) == "FAILED"
    assert said(session)[-1] == found.text
    assert found.text.startswith(f"{code}: ")
    assert receive(session, message(1)) == []
    assert session.outputs() == b""
    return events


def batches(events: Iterable[Any]) -> list[Any]:
    """The events that have messages."""
    return [event for event in events if hasattr(event, "bodies")]


def safe(session: Session, events: Iterable[Any], now: float = 0.0) -> None:
    """Say that everything in ``events`` is safe."""
    for batch in batches(events):
        session.made_safe(batch.position, now)


def at(session: Session, received: int) -> None:
    """Bring a session to where ``received`` messages have come, all safe and acknowledged."""
    step = 1000
    for first in range(0, received, step):
        numbers = range(first, min(first + step, received))
        octets = b"".join(message(number % 65535 + 1, b"") for number in numbers)
        safe(session, receive(session, octets))
    session.advance(1.0)  # the idle time is over
    session.outputs()


def flatten(events: Iterable[Any]) -> list[Any]:
    """Messages one by one, without the places where batches begin and end; others as tuples."""
    flat: list[Any] = []
    for event in events:
        if hasattr(event, "bodies"):
            assert len(event.sequences) > 0
            columns = (event.sequences, event.destinations, event.fields, event.bodies, event.texts)
            for sequence, destination, fields, body, text in zip(*columns, strict=True):
                flat.append((sequence, destination, dict(fields), body, text))
            assert len(event.properties) == len(event.bodies)
        elif isinstance(event, Fault):
            flat.append(("fault", event.reason, event.text))
        else:
            flat.append((type(event).__name__, *astuple(event)))
    return flat


def bodies(events: Iterable[Any]) -> list[bytes]:
    return [body for batch in batches(events) for body in batch.bodies]


def fields_of(events: Iterable[Any]) -> list[Mapping[str, str]]:
    return [fields for batch in batches(events) for fields in batch.fields]


def written(session: Session) -> list[Any]:
    """What a side wants to write, as frames (after the handshake)."""
    return decode(session.outputs())


def said(session: Session) -> list[str]:
    """The texts of the ERRORs which a side wants to write."""
    return [frame.text for frame in written(session) if isinstance(frame, Error)]


def fault(events: list[Any]) -> Fault:
    """The fault, which is the last event."""
    assert events and isinstance(events[-1], Fault), events
    return events[-1]
