"""Contents of the queue profile become messages of the broker, and messages contents.

A message has an envelope beside its body (:mod:`twisted_msgproto.core.broker.envelopes`).  In those
of this protocol the field table stands behind the head, as it came.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import islice
from typing import Final

from ..core.broker import QueuedMessage
from ..core.broker.envelopes import Fields, head, opened, writable
from ..net.broker.forms import fields_of as fields_of_any
from .wire.data import EMPTY, FIELDS_MAX, decode_table, encode_table, with_field

FORM: Final = "mtl"
"""Envelopes that have a field table behind their head are of this form."""

REDELIVERIES: Final = "mtl-redeliveries"
"""A content that came back from a reader has this property: how often it was tried."""

head_for = lru_cache(4096)(partial(head, FORM))
"""Return the head of this protocol's envelopes for a queue."""


def table_of(message: QueuedMessage, start: bytes) -> bytes:
    """Return a message's fields as sent, behind ``start``; ValueError for a bad envelope."""
    envelope = message.envelope
    if envelope[: len(start)] == start:
        return envelope[len(start) :]
    other = opened(envelope)  # another protocol's, or one from a queue of another name
    return other.own if other.form == FORM else own_of(fields_of_any(other))


def marked(table: bytes, message: QueuedMessage) -> bytes:
    """Return the field table of a message as a reader gets it: one that came back says so."""
    if not (message.again or message.tries):
        return table
    try:
        return with_field(table, REDELIVERIES, message.tries)
    except ValueError:
        return table  # it has as many fields as a table may have


# ── queues that other protocols share ───────────────────────────────────────────────────────────


def fields_of(own: bytes) -> Fields:
    return decode_table(own)


def own_of(fields: Fields) -> bytes:
    """Return the field table of properties; what no field can hold becomes text, or is left out."""
    some = dict(islice(fields.items(), FIELDS_MAX))
    try:
        return encode_table(writable(some, encode_table))
    except ValueError:  # tables within tables have too many fields together
        return EMPTY
