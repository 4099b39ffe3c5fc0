"""Sessions which are read, broken, or far along, for the tests of the machines."""

from __future__ import annotations

from tests.micromsg2.streams import (
    fault,
    message,
    safe,
    said,
)
from twisted_msgproto.micromsg2.machine import Event, Session, Side

BATCH = "batch-ack:max-count="


def receive(session: Session, octets: bytes, now: float = 0.0) -> list[Event]:
    return session.receive(octets, now)


def broken(session: Session, octets: bytes, code: str = "protocol-error") -> list[Event]:
    """The events of a read which breaks the protocol: an ERROR is written, then silence."""
    events = receive(session, octets)
    found = fault(events)
    assert found.reason == code, found
    assert session.fault is found
    assert session.state is Side.FAILED
    assert said(session)[-1] == found.text
    assert found.text.startswith(f"{code}: ")
    assert receive(session, message(1)) == []
    assert session.outputs() == b""
    return events


def at(session: Session, received: int) -> None:
    """Bring a session to where ``received`` messages have come, all safe and acknowledged."""
    step = 1000
    for first in range(0, received, step):
        numbers = range(first, min(first + step, received))
        octets = b"".join(message(number % 65535 + 1, b"") for number in numbers)
        safe(session, receive(session, octets))
    session.advance(1.0)  # the idle time is over
    session.outputs()


def parts(*frames: tuple[int, bytes], final: bool = True) -> bytes:
    """Frames of one payload; the last is without CONTINUED if ``final``."""
    return b"".join(
        message(number, payload, continued=not final or row < len(frames) - 1)
        for row, (number, payload) in enumerate(frames)
    )
