"""An envelope says for which queue a message is, and what its body does not say of it.

Its layout stands in ``docs/queue-format.md``: a head, which is the same for all messages that one
protocol has for one queue, and then the protocol's own bytes.

Servers of several protocols may share the queues of one space.  Then these bytes are read by the
protocol that wrote them, into :data:`Fields`, and written by the one whose consumer gets the
message.  ``docs/broker.md`` has the table of what becomes of what.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from .terms import QueueName

VERSION: Final = 1

_HEAD: Final = struct.Struct("<BBHHH")


class Opened(NamedTuple):
    """What an envelope says: ``form`` is the protocol whose bytes ``own`` are."""

    form: str
    name: QueueName
    own: bytes


def head(form: str, name: QueueName) -> bytes:
    """ValueError for a name above 65535 bytes."""
    texts = [text.encode("utf-8", "surrogateescape") for text in (form, *name)]
    sizes = list(map(len, texts))
    try:
        start = _HEAD.pack(VERSION, sizes[0], _HEAD.size + sum(sizes), sizes[1], sizes[2])
    except struct.error:
        raise ValueError("the name of a queue is too long") from None
    return b"".join((start, *texts))


def head_of(envelope: bytes) -> bytes:
    """ValueError for what is no envelope."""
    if len(envelope) < _HEAD.size or envelope[0] != VERSION:
        raise ValueError("this is no envelope of version 1")
    _, _, nbytes, _, _ = _HEAD.unpack_from(envelope)
    return envelope[:nbytes]


def opened(envelope: bytes) -> Opened:
    """ValueError for what is no envelope."""
    nbytes = len(head_of(envelope))
    _, form, whole, space, name = _HEAD.unpack_from(envelope)
    if not nbytes == whole == _HEAD.size + form + space + name:
        raise ValueError("this envelope is cut")
    texts = []
    position = _HEAD.size
    for size in (form, space, name):
        texts.append(envelope[position : position + size].decode("utf-8", "surrogateescape"))
        position += size
    return Opened(texts[0], QueueName(texts[1], texts[2]), envelope[nbytes:])


Fields = Mapping[str, Any]
"""The values are text, bool, int, float, Decimal, datetime, bytes, None, lists and mappings."""


def writable(fields: Fields, write: Callable[[Fields], object]) -> dict[str, Any]:
    """Return of ``fields`` what ``write`` takes; another value becomes text, or is left out."""
    written: dict[str, Any] = {}
    for name, value in fields.items():
        for form in (value, as_text(value)):
            try:
                write({name: form})
            except (ValueError, TypeError):
                continue
            written[name] = form
            break
    return written


def as_text(value: Any) -> str:
    """Return a value as text: bytes as base64, a time as ISO 8601, what is no text as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | datetime):
        return str(in_json(value))
    return str(value) if isinstance(value, Decimal) else json.dumps(value, default=in_json)


def in_json(value: Any) -> str | float:
    """Return what stands in JSON for bytes, base64, for a time, ISO 8601, or for a Decimal."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return float(value)
