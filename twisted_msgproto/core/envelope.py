"""An envelope says for which queue of a broker a message is, and holds what its body does not.

It stands in the durable queue beside the message, so that a broker's queues can be made again from
there alone after a restart.  ``docs/broker-format.md`` specifies the layout.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from .errors import LimitExceeded

VERSION = 1
HEAD = struct.Struct("<BBHHH")
"""Version, octets of ``form``, octets of the whole head, of ``space`` and of ``name``."""
NAMES_OCTETS_MAX = 0xFFFF - HEAD.size - 0xFF
"""``space`` and ``name`` together have at most this many octets of UTF-8."""
HEADS_REMEMBERED = 4096
"""The heads of this many queues are kept; more would only cost time."""


class Envelope(NamedTuple):
    """Holds what an envelope says.

    Texts that came as octets that are no UTF-8 hold them as lone surrogates (``surrogateescape``).
    """

    form: str
    """The protocol in whose form ``octets`` are: ``"micromsg2"`` or ``"mtl"``."""
    space: str
    """The broker's queues are named within this space."""
    name: str
    """The queue's name."""
    octets: bytes
    """What the protocol needs to deliver the message again, in its own form."""

    def packed(self) -> bytes:
        """Return the envelope as octets; LimitExceeded if its names are too long."""
        return head(self.form, self.space, self.name) + self.octets


@lru_cache(HEADS_REMEMBERED)
def head(form: str, space: str, name: str) -> bytes:
    """Return the octets that all envelopes of one queue and form begin with.

    Raises LimitExceeded if the names are longer than :data:`NAMES_OCTETS_MAX` together, or ``form``
    has more than 255 octets.
    """
    forms, spaces, names = (text.encode("utf-8", "surrogateescape") for text in (form, space, name))
    if len(forms) > 0xFF or len(spaces) + len(names) > NAMES_OCTETS_MAX:
        raise LimitExceeded(
            f"a queue's names have {len(spaces) + len(names)} octets; "
            f"an envelope holds {NAMES_OCTETS_MAX}"
        )
    octets = HEAD.size + len(forms) + len(spaces) + len(names)
    return HEAD.pack(VERSION, len(forms), octets, len(spaces), len(names)) + forms + spaces + names


def head_octets(envelope: bytes) -> int:
    """Return how many octets of an envelope are its head; ValueError if it is none of ours."""
    if len(envelope) < HEAD.size:
        raise ValueError("an envelope is shorter than its head")
    version, forms, octets, spaces, names = HEAD.unpack_from(envelope)
    if version != VERSION:
        raise ValueError(f"an envelope has version {version}; this program knows {VERSION}")
    if octets != HEAD.size + forms + spaces + names or octets > len(envelope):
        raise ValueError("the head of an envelope makes no sense")
    return int(octets)


def unpacked(envelope: bytes) -> Envelope:
    """Return what an envelope says; ValueError if it is none of ours."""
    octets = head_octets(envelope)
    _, forms, _, spaces, _ = HEAD.unpack_from(envelope)
    at = HEAD.size
    bounds = ((at, at + forms), (at + forms, at + forms + spaces), (at + forms + spaces, octets))
    form, space, name = (envelope[lo:hi].decode("utf-8", "surrogateescape") for lo, hi in bounds)
    return Envelope(form, space, name, bytes(envelope[octets:]))


__all__ = ["NAMES_OCTETS_MAX", "VERSION", "Envelope", "head", "head_octets", "unpacked"]
