"""An envelope says for which queue a message is, and what its body does not say of it.

Its layout stands in ``docs/queue-format.md``: a head, which is the same for all messages that one
protocol has for one queue, and then the protocol's own bytes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from .terms import QueueName

VERSION: Final = 1

_HEAD: Final = struct.Struct("<BBHHH")


class Opened(NamedTuple):
    """What an envelope says: ``form`` is the protocol whose bytes ``own`` are."""

    form: str
    name: QueueName
    own: bytes


def head(form: str, name: QueueName) -> bytes:
    """Return the head of the envelopes of messages for the queue ``name``.

    What stands behind it is in the bytes of the protocol ``form``.  ValueError for a name above
    65535 bytes.
    """
    texts = [text.encode("utf-8", "surrogateescape") for text in (form, *name)]
    sizes = list(map(len, texts))
    try:
        start = _HEAD.pack(VERSION, sizes[0], _HEAD.size + sum(sizes), sizes[1], sizes[2])
    except struct.error:
        raise ValueError("the name of a queue is too long") from None
    return b"".join((start, *texts))


def head_of(envelope: bytes) -> bytes:
    """Return the head of an envelope; ValueError for what is none."""
    if len(envelope) < _HEAD.size or envelope[0] != VERSION:
        raise ValueError("this is no envelope of version 1")
    _, _, nbytes, _, _ = _HEAD.unpack_from(envelope)
    return envelope[:nbytes]


def opened(envelope: bytes) -> Opened:
    """Return what an envelope says; ValueError for what is none."""
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
