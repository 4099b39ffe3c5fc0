"""Check and pack events to send, and keep account of those in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import LimitExceeded
from ...core.limits import Limits
from ..terms import FRAME_OCTETS, Event, Parcel
from ..wire import encode_pairs
from ..wire.frames import KEY_OCTETS, PAIRS_MAX


class Packer:
    """Checks events against the limits and makes parcels of them (``LJ-17``, ``LJ-18``)."""

    def __init__(self, limits: Limits, version: int) -> None:
        """``limits`` holds at least :data:`WRITER_LIMITS`; ``version`` is 1 or 2, as a number."""
        if version not in (1, 2):
            raise ValueError(f"version 1 or 2, not {version!r}")
        self.version = version
        self._json_octets_max = limits.integer("json-octets")
        self._data_octets_max = limits.integer("data-octets")

    def pack(self, events: Iterable[Event], token: Any = None) -> Parcel:
        """Return one parcel of all ``events``: documents in version 2, mappings in version 1
        (``LJ-21``).

        Raises LimitExceeded if one of them is above a limit, TypeError if one is of the wrong
        type for the version, ValueError if there is none.
        """
        if self.version == 2:
            return self._pack_documents(events, token)
        return self._pack_mappings(events, token)

    def _pack_documents(self, events: Iterable[Event], token: Any) -> Parcel:
        documents: list[Any] = list(events)
        if not documents:
            raise ValueError("no events")
        if set(map(type, documents)) != {bytes}:
            other = next(type(event) for event in documents if type(event) is not bytes)
            raise TypeError(f"version 2 sends JSON documents as bytes, not {other.__name__}")
        sizes = list(map(len, documents))
        if max(sizes) > self._json_octets_max:
            raise LimitExceeded(
                f"a document of {max(sizes)} octets, at most {self._json_octets_max}; nothing sent"
            )
        return Parcel(documents, sum(sizes) + FRAME_OCTETS * len(documents), token)

    def _pack_mappings(self, events: Iterable[Event], token: Any) -> Parcel:
        payloads = []
        for event in events:
            if not isinstance(event, Mapping):
                raise TypeError(f"version 1 sends mappings of text, not {type(event).__name__}")
            payloads.append(self._encode(event))
        if not payloads:
            raise ValueError("no events")
        return Parcel(payloads, sum(map(len, payloads)) + FRAME_OCTETS * len(payloads), token)

    def _encode(self, pairs: Mapping[str, str]) -> bytes:
        if len(pairs) > PAIRS_MAX:
            raise LimitExceeded(f"{len(pairs)} pairs, at most {PAIRS_MAX}; nothing sent")
        for key, value in pairs.items():
            # UTF-8 takes 1 to 4 octets a character: most texts need not be encoded to be sure.
            for text, limit, what in (
                (key, KEY_OCTETS, "key"),
                (value, self._data_octets_max, "value"),
            ):
                if len(text) * 4 > limit:
                    size = len(text.encode("utf-8", "surrogateescape"))
                    if size > limit:
                        raise LimitExceeded(
                            f"a {what} of {size} octets, at most {limit}; nothing sent"
                        )
        payload = encode_pairs(pairs)
        if len(payload) + FRAME_OCTETS - 4 > self._data_octets_max:
            raise LimitExceeded(
                f"pairs of {len(payload)} octets, at most {self._data_octets_max}; nothing sent"
            )
        return payload


@dataclass(slots=True)
class Flight:
    """One window in flight: it knows the parcel of each of its events, in order."""

    portions: deque[tuple[Parcel, int]]  # parcel, events of it that are not acknowledged
    size: int
    acknowledged: int = 0

    def acknowledge(self, count: int) -> list[Parcel]:
        """``count`` more of its events are acknowledged: the parcels that are done by that."""
        self.acknowledged += count
        done = []
        while count:
            parcel, events = self.portions[0]
            covered = min(count, events)
            count -= covered
            parcel.acknowledged += covered
            if covered == events:
                self.portions.popleft()
            else:
                self.portions[0] = (parcel, events - covered)
            if not parcel.missing:
                done.append(parcel)
        return done
