"""Messages go from one peer to others as frames without numbers, and as envelopes.

:class:`Routed` is a message as consumers get it.  A message for a queue has an *envelope* beside
its body, so that it can be made again from the log.  These bytes stand behind the envelope's head;
all integers are little-endian::

    u16 bytes, properties as they came
    then for each annotating extension that said something of the message (MM-29):
    u16 bytes, the extension's name; u16 bytes, what it said
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from sys import getsizeof
from typing import Final

from ..core.broker import QUEUED_MESSAGE_BYTES, QueuedMessage, QueueName
from ..core.broker.envelopes import Fields, Opened, head, opened, writable
from ..net.broker.forms import fields_of as fields_of_any
from .wire.frames import Unnumbered, encode_address, encode_unnumbered
from .wire.texts import (
    NO_PROPERTIES,
    BadText,
    Kind,
    Properties,
    Value,
    parse_properties,
    write_properties,
)

FORM: Final = "micromsg2"
"""Envelopes whose own bytes are the ones above have this form."""

FILTERED_BYTES: Final = 8
"""This many bytes of properties are one step for each condition that searches in a text."""

READ_STEPS: Final = 2
"""Reading the properties of a message is this many steps for each byte of its envelope."""

NO_NOTES: Final[Mapping[str, str]] = {}

_SIZE: Final = struct.Struct("<H")

_NO_FIELD: Final = re.compile("[^a-z0-9-]")


@dataclass(slots=True, eq=False)
class Routed:
    """One message for consumers."""

    order: int  # of arrival; topics compare by it
    frames: tuple[Unnumbered, ...]  # what every consumer gets, but for the numbers
    nbytes: int  # of frames and notes
    properties: Properties  # until all filters have seen them
    notes: Mapping[str, str]  # for annotating extensions
    weight: int  # steps of a condition that searches in a text
    waiters: int = 0  # that it waits for


_head: Final = lru_cache(4096)(partial(head, FORM))


def envelopes(
    queues: Mapping[str, QueueName],
    destinations: Sequence[str],
    texts: Sequence[bytes],
    notes: Sequence[Mapping[str, str]],
) -> list[bytes | None]:
    """Return an envelope for each message whose destination is one of ``queues``, else None."""
    made: list[bytes | None] = []
    last: tuple[str, bytes] | None = None
    envelope = b""
    for row, address in enumerate(zip(destinations, texts, strict=True)):
        destination, text = address
        name = queues.get(destination)
        if name is None:
            made.append(None)
            continue
        if address != last:
            last, envelope = address, b"".join((_head(name), _SIZE.pack(len(text)), text))
        said = notes[row] if notes else NO_NOTES
        made.append(envelope + _written(said) if said else envelope)
    return made


def _written(notes: Mapping[str, str]) -> bytes:
    texts = [text.encode("utf-8") for note in notes.items() for text in note]
    return b"".join([piece for text in texts for piece in (_SIZE.pack(len(text)), text)])


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield texts that have their sizes in front; ValueError where one is cut."""
    position, end = 0, len(data)
    while position < end:
        start = position + _SIZE.size
        position = start + int.from_bytes(data[position:start], "little")
        if position > end:
            raise ValueError("an envelope's own bytes are cut")
        yield data[start:position]


def weight_of(address: bytes, payload: bytes, notes: Mapping[str, str]) -> int:
    said = getsizeof(notes) + sum(map(getsizeof, notes.values())) if notes else 0
    return QUEUED_MESSAGE_BYTES + len(address) + len(payload) + said


def routed(message: QueuedMessage, destination: str) -> Routed:
    """Return a queue's message for consumers; ValueError if its envelope makes no sense.

    Nothing is remembered with the message, which is counted with its own bytes only.
    """
    text, *said = _pieces(_own(opened(message.envelope)))
    names = [name.decode("utf-8") for name in said]
    notes = dict(zip(names[::2], names[1::2], strict=True)) if names else NO_NOTES
    address = encode_address(destination, text)
    return Routed(
        message.message_id,
        encode_unnumbered(address, message.body),
        weight_of(address, message.body, notes),
        NO_PROPERTIES,
        notes,
        len(text) // FILTERED_BYTES,
    )


def _own(envelope: Opened) -> bytes:
    return envelope.own if envelope.form == FORM else own_of(fields_of_any(envelope))


def _properties(text: bytes) -> Properties:
    try:
        return parse_properties(text).properties
    except BadText as error:
        raise ValueError(str(error)) from None


class Glance:
    """Reads properties for filters, and remembers the last: a queue's look at the same in turn."""

    def __init__(self) -> None:
        self._envelope: bytes | None = None
        self._properties = NO_PROPERTIES

    def steps(self, message: QueuedMessage) -> int:
        envelope = message.envelope
        return 0 if envelope == self._envelope else READ_STEPS * len(envelope)

    def properties(self, message: QueuedMessage) -> Properties:
        """Return its properties; ValueError if its envelope makes no sense."""
        envelope = message.envelope
        if envelope != self._envelope:
            text = next(_pieces(_own(opened(envelope))))
            self._properties = _properties(text)
            self._envelope = envelope
        return self._properties


# ── queues that other protocols share ───────────────────────────────────────────────────────────


def fields_of(own: bytes) -> Fields:
    text, *said = _pieces(own)
    names = [name.decode("utf-8") for name in said]
    fields = {key: _neutral(value) for key, value in _properties(text).items()}
    return {**fields, **dict(zip(names[::2], names[1::2], strict=True))}


def _neutral(value: Value) -> object:
    if value.kind is not Kind.DATE:
        return value.content
    with suppress(ValueError, OverflowError, OSError):  # before the year 1, or after 9999
        return datetime.fromtimestamp(float(value.content), UTC)
    return value.content


def own_of(fields: Fields) -> bytes:
    """Return the bytes behind the head of an envelope for properties of another protocol.

    Names are written in lower case, with a hyphen for each character that no FIELD has; what no
    property can be becomes text.  Properties that are too long together are left out.
    """
    named = {_NO_FIELD.sub("-", name.lower()): value for name, value in fields.items()}
    text = write_properties(writable(named, write_properties))
    try:
        return _SIZE.pack(len(text)) + text
    except struct.error:
        return _SIZE.pack(0)
