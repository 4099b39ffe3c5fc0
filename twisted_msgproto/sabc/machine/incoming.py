"""Join messages that come in parts."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Final

from ...core.kept import table_octets
from ..wire import RESERVED


class Incoming:
    """A message that is being received, or what is to be skipped of one.

    Attributes:
        key: (is a response, id); None for an ERROR and for what carries no id.
        id: the id to name in events.
        size: octets of all its frames so far, heads and end marks included (``SA-22``).
        weight: what its headers so far occupy in memory beside, where more of it has to come.
        cut: it is above the limit; what was kept is delivered when its true end has come.
        muted: nothing of it is to be delivered (any more); it is read to its true end.
        heard: when the last octets of it came.
    """

    __slots__ = (
        "cut",
        "fields",
        "heard",
        "id",
        "key",
        "muted",
        "parts",
        "send_only",
        "size",
        "weight",
    )

    def __init__(self, key: tuple[bool, str] | None, id: str | None, now: float) -> None:
        self.key = key
        self.id = id
        self.fields: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.send_only = False
        self.size = 0
        self.weight = 0
        self.cut = False
        self.muted = False
        self.heard = now

    def mute(self) -> None:
        self.muted = True
        self.parts = []
        self.fields = {}

    def weigh(self, headers: Mapping[str, str]) -> None:
        """Count headers of a frame that does not end the message: they wait with it."""
        if not self.muted:
            own = {name: value for name, value in headers.items() if name not in RESERVED}
            self.weight += table_octets(own)


NOTHING_YET: Final = Incoming(None, None, 0.0)
"""All sides that are in no message share this; it is never changed."""


def whole_characters(body: bytes) -> bytes:
    """Return ``body`` without an unfinished last UTF-8 character; as it is if it is not UTF-8."""
    try:
        return body[: codecs.utf_8_decode(body, "strict", False)[1]]
    except UnicodeDecodeError:
        return body
