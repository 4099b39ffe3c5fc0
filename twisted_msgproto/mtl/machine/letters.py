"""Contents of the queue profile as letters of the broker.

A letter has an envelope beside its body (:mod:`twisted_msgproto.core.broker.envelopes`).  In those
of this protocol the field table stands behind the head, as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...core.broker import Letter, QueueName
from ...core.broker.envelopes import Opened, head, opened
from ..wire.fields import with_field
from .flows import Stored

FORM: Final = "mtl"
"""Envelopes that have a field table behind their head are of this form."""

REDELIVERIES: Final = "mtl-redeliveries"
"""A content that came back from a reader has this property: how often it was tried."""

HEADS_KEPT: Final = 4096
"""The heads of this many queues' envelopes are remembered."""

Foreign = Callable[[Opened], bytes]
"""Returns the field table for an envelope of another protocol's."""


@dataclass(slots=True)
class Given(Stored):
    """One content that a reader has, and the place of its letter."""

    place: int = 0


class Heads:
    """Remembers the heads of envelopes, one for each queue."""

    def __init__(self) -> None:
        self._heads: dict[QueueName, bytes] = {}

    def of(self, name: QueueName) -> bytes:
        """Return the head of the envelopes of contents for the queue ``name``."""
        found = self._heads.get(name)
        if found is None:
            if len(self._heads) >= HEADS_KEPT:
                self._heads.clear()
            found = self._heads[name] = head(FORM, name)
        return found


def contents(
    letters: Sequence[Letter], start: bytes, foreign: Foreign
) -> list[tuple[Given, bytes]]:
    """Return letters as contents, each with the properties that a reader gets.

    ``start`` is the head of this protocol's envelopes for their queue.  A letter that came back
    says so in its properties; its octets are the sender's otherwise.  Raises ValueError for an
    envelope that makes no sense.
    """
    size = len(start)
    found = []
    for letter in letters:
        envelope = letter.envelope
        if envelope[:size] == start:
            table = envelope[size:]
        else:  # another protocol's, or put here from a queue of another name
            open_one = opened(envelope)
            table = open_one.own if open_one.form == FORM else foreign(open_one)
        content = Given(table, letter.body, letter.tries, letter.place)
        found.append((content, _marked(table, letter) if letter.again or letter.tries else table))
    return found


def _marked(table: bytes, letter: Letter) -> bytes:
    try:
        return with_field(table, REDELIVERIES, letter.tries)
    except ValueError:
        return table  # it has as many fields as a table may have
