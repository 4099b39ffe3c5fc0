"""Messages on their way from one peer to others: frames without numbers, and envelopes.

:class:`Routed` is a message as consumers get it.  A message for a queue has an *envelope* beside
its body, so that it can be made again from the log.  These octets stand behind the envelope's head;
all integers are little-endian::

    u16 octets, properties as they came
    then for each annotating extension that said something of the message (MM-29):
    u16 octets, the extension's name; u16 octets, what it said
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..core.broker import Letter, QueueName
from ..core.broker.envelopes import Opened, head, opened
from .wire import (
    BadText,
    Properties,
    Unnumbered,
    encode_address,
    encode_unnumbered,
    read_properties,
)

FORM: Final = "micromsg2"
"""Envelopes whose own octets are the ones above have this form."""

FILTERED_OCTETS: Final = 8
"""This many octets of properties are one step for each condition that searches in a text."""

HEADS_KEPT: Final = 4096
"""So many heads of envelopes are remembered."""

NO_NOTES: Final[Mapping[str, str]] = {}

_SIZE: Final = struct.Struct("<H")


@dataclass(slots=True, eq=False)
class Routed:
    """Is one message for consumers; topics compare by ``order``, its order of arrival.

    ``frames`` are what every consumer gets, but for the numbers (see ``encode_unnumbered``), and
    ``octets`` are the payload's.  ``notes`` are for annotating extensions (the type of ``dotnet``),
    ``weight`` is what a condition which searches in a text costs with this message, in steps.
    """

    order: int
    frames: tuple[Unnumbered, ...]
    octets: int
    properties: Properties
    notes: Mapping[str, str]
    weight: int


class Envelopes:
    """Makes the envelopes of messages for the queues of one space."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._heads: dict[str, bytes] = {}

    def make(
        self,
        queues: Mapping[str, QueueName],
        destinations: Sequence[str],
        texts: Sequence[bytes],
        notes: Sequence[Mapping[str, str]],
    ) -> list[bytes | None]:
        """Return an envelope for each message whose destination is one of ``queues``, else None.

        ``texts`` are the properties as they came; ``notes`` may be empty where there are none.
        """
        if len(self._heads) > HEADS_KEPT:
            self._heads.clear()
        heads = self._heads
        made: list[bytes | None] = []
        last: tuple[str, bytes] | None = None
        envelope = b""
        for row, address in enumerate(zip(destinations, texts, strict=True)):
            destination, text = address
            if destination not in queues:
                made.append(None)
                continue
            if address != last:
                last = address
                start = heads.get(destination)
                if start is None:
                    start = heads[destination] = head(FORM, QueueName(self._space, destination))
                envelope = b"".join((start, _SIZE.pack(len(text)), text))
            said = notes[row] if notes else NO_NOTES
            made.append(envelope + _written(said) if said else envelope)
        return made


def _written(notes: Mapping[str, str]) -> bytes:
    texts = [text.encode("utf-8") for note in notes.items() for text in note]
    return b"".join([piece for text in texts for piece in (_SIZE.pack(len(text)), text)])


def _pieces(octets: bytes) -> Iterator[bytes]:
    """Yield texts that have their sizes in front; ValueError where one is cut."""
    position, end = 0, len(octets)
    while position < end:
        if position + _SIZE.size > end:
            raise ValueError("an envelope's own octets are cut")
        (size,) = _SIZE.unpack_from(octets, position)
        position += _SIZE.size
        if position + size > end:
            raise ValueError("an envelope's own octets are cut")
        yield octets[position : position + size]
        position += size


def routed(letter: Letter) -> Routed:
    """Return a letter of a queue as consumers get it; ValueError if its envelope makes no sense."""
    form = letter.forms
    if type(form) is not Routed:
        form = letter.forms = _read(letter, opened(letter.envelope))
    return form


def _read(letter: Letter, envelope: Opened) -> Routed:
    if envelope.form != FORM:
        raise ValueError(f"an envelope of the form {envelope.form} is not for MicroMsg2")
    text, *said = _pieces(envelope.own)
    names = [name.decode("utf-8") for name in said]
    try:
        properties = read_properties(text)
    except BadText as error:
        raise ValueError(str(error)) from None
    return Routed(
        letter.place,
        encode_unnumbered(encode_address(envelope.name.name, text), letter.body),
        len(letter.body),
        properties,
        dict(zip(names[::2], names[1::2], strict=True)) if names else NO_NOTES,
        len(text) // FILTERED_OCTETS,
    )


def octets_of(messages: Iterable[Routed]) -> int:
    """Return the octets of the payloads of ``messages``."""
    return sum([message.octets for message in messages])


__all__ = ["FILTERED_OCTETS", "FORM", "NO_NOTES", "Envelopes", "Routed", "octets_of", "routed"]
