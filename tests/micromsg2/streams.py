"""Octets, machines and events for the tests of MicroMsg2."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from tests.micromsg2.layouts import (
    Error,
    ExtensionFrame,
    Handshake,
    decode,
    encode_address,
    encode_extension,
    encode_handshake,
    encode_message,
    read_offers,
)
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.micromsg2 import Client, Offer, Proposal, Server
from twisted_msgproto.micromsg2.machine import MessagesAcknowledged, MessagesReceived, Session
from twisted_msgproto.micromsg2.terms import LIMITS

CAPTURE = Path(__file__).parent / "captures" / "reference_no_extensions.hex"
"""What a client and a server of the reference implementation said to each other."""


def limits(**changes: object) -> Limits:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return Limits.of(LIMITS).replace(named)


def offers(text: str) -> tuple[Offer, ...]:
    return read_offers(text)


def proposal(required: str = "", optional: str = "", **rest: object) -> Proposal:
    return Proposal(required=offers(required), optional=offers(optional), **rest)  # type: ignore[arg-type]


def handshake(
    required: str = "",
    optional: str = "",
    *,
    major: int = 1,
    minor: int = 0,
    identity: str = "hulk",
) -> bytes:
    return encode_handshake(Handshake(major, minor, identity, offers(required), offers(optional)))


def message(
    sequence: int,
    payload: bytes = b"x",
    destination: str = "commands",
    properties: bytes = b"",
    *,
    continued: bool = False,
) -> bytes:
    return encode_message(sequence, encode_address(destination, properties), payload, continued)


def messages(first: int, count: int, payload: bytes = b"x") -> bytes:
    return b"".join(message(first + offset, payload) for offset in range(count))


def ack(sequence: int, index: int = 1) -> bytes:
    return encode_extension(index, sequence.to_bytes(2, "big"))


def capture(direction: str) -> bytes:
    """What one side said in the capture: ``"C>S"`` or ``"S>C"``."""
    lines = CAPTURE.read_text().splitlines()
    return b"".join(bytes.fromhex(line[4:]) for line in lines if line.startswith(direction))


def cuts(octets: bytes, seed: int = 7, times: int = 6) -> Iterator[list[bytes]]:
    """The stream whole, octet by octet, and cut at random places."""
    yield [octets]
    yield [octets[i : i + 1] for i in range(len(octets))]
    rng = random.Random(seed)
    for _ in range(times):
        count = rng.randint(1, max(1, min(12, len(octets) - 1)))
        places = sorted(rng.sample(range(1, max(2, len(octets))), min(count, len(octets) - 1)))
        edges = [0, *places, len(octets)]
        yield [octets[a:b] for a, b in pairwise(edges)]


def flatten(events: Iterable[object]) -> list[object]:
    """Events without the places where batches begin and end."""
    flat: list[object] = []
    for event in events:
        if isinstance(event, MessagesReceived):
            assert len(event.sequences) > 0
            columns = (event.sequences, event.destinations, event.fields, event.bodies, event.texts)
            for sequence, destination, fields, body, text in zip(*columns, strict=True):
                flat.append((sequence, destination, dict(fields), body, text))
            assert len(event.properties) == len(event.bodies)
        elif isinstance(event, MessagesAcknowledged):
            flat += [("acknowledged", sequence) for sequence in event.sequences]
        elif isinstance(event, Fault):
            flat.append(("fault", event.reason, event.text))
        else:
            flat.append(event)
    return flat


def bodies(events: Iterable[object]) -> list[bytes]:
    return [
        body for event in events if isinstance(event, MessagesReceived) for body in event.bodies
    ]


def fault(events: list[object]) -> Fault:
    """The fault, which is the last event."""
    assert events and isinstance(events[-1], Fault), events
    return events[-1]


def written(session: Session) -> list[object]:
    """What a side wants to write, as frames (after the handshake)."""
    return decode([session.outputs()])


def said(session: Session) -> list[str]:
    """The texts of the ERRORs which a side wants to write."""
    return [frame.text for frame in written(session) if isinstance(frame, Error)]


def acks_written(session: Session, index: int = 1) -> list[int]:
    return [
        int.from_bytes(frame.payload, "big")
        for frame in written(session)
        if isinstance(frame, ExtensionFrame) and frame.index == index
    ]


def pump(client: Session, server: Session, now: float = 0.0) -> tuple[list[object], list[object]]:
    """Carry octets between two sides until both are silent; the events of each."""
    client_events: list[object] = []
    server_events: list[object] = []
    while True:
        up, down = client.outputs(), server.outputs()
        if not up and not down:
            return client_events, server_events
        server_events += server.receive(up, now)
        client_events += client.receive(down, now)


def pair(
    client: Proposal | None = None,
    server: Proposal | None = None,
    client_limits: Limits | None = None,
    server_limits: Limits | None = None,
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


def safe(session: Session, events: Iterable[object], now: float = 0.0) -> None:
    """Say that everything in ``events`` is safe."""
    for event in events:
        if isinstance(event, MessagesReceived):
            session.made_safe(event.place, now)


def fields_of(events: Iterable[object]) -> list[Mapping[str, str]]:
    return [
        fields for event in events if isinstance(event, MessagesReceived) for fields in event.fields
    ]
