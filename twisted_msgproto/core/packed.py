"""Packed columns keep all their values in one buffer, and read like any list of the same values.

A value becomes a Python object when somebody asks for it, and the queue writes whole columns
without asking: a message in bulk is no Python object on its way to the disk.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

PACKED_MIN = 64
"""A shorter packed column costs more on its own than as a part of its neighbours' list."""

FORM: Final = 3
"""This number changes with the arguments and results of ``_packed``; see :func:`compiled`."""


def compiled(module: str, form: int) -> Any:
    """None if Python's form has to work: another version has left its ``FORM`` behind."""
    try:
        found = import_module(module)
    except ImportError:  # pragma: no cover - the tests run both forms where it was built
        return None
    return found if getattr(found, "FORM", None) == form else None


_compiled: Any = compiled("twisted_msgproto.core._packed", FORM)

COMPILED: Final = _compiled is not None

V = TypeVar("V")


def spans_python(pieces: Sequence[bytes]) -> tuple[bytes, bytes]:
    """TypeError for something other than bytes, OverflowError beyond 31 bits."""
    bounds = [*accumulate(map(len, pieces), initial=0)]
    try:
        written = struct.pack(f"{len(bounds)}i", *bounds)
    except struct.error:
        raise OverflowError("places are signed 32-bit integers") from None
    data = b"".join(pieces)
    if bounds[-1] != len(data):
        raise TypeError("something other than bytes")
    return written, data


def spans_compiled(pieces: Sequence[bytes]) -> tuple[bytes, bytes]:
    """See :func:`spans_python`, which also does the work for all but lists of ``bytes``."""
    return _compiled.spans(pieces) or spans_python(pieces)


spans = spans_compiled if COMPILED else spans_python


def shift_python(bounds: Any, by: int) -> bytes:
    """``bounds``, a buffer of them, each moved by so much; OverflowError beyond 31 bits."""
    numbers = memoryview(bounds).cast("B").cast("i")
    return array("i", [bound + by for bound in numbers]).tobytes()


def shift_compiled(bounds: Any, by: int) -> bytes:
    shifted: bytes = _compiled.shift(bounds, by)
    return shifted


shift = shift_compiled if COMPILED else shift_python


class Packed(Sequence[V], Generic[V]):
    __slots__ = ()
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise NotImplementedError

    def value(self, row: int) -> V:
        raise NotImplementedError

    def values(self) -> list[V]:
        return [self.value(row) for row in range(len(self))]

    @overload
    def __getitem__(self, place: int) -> V: ...
    @overload
    def __getitem__(self, place: slice) -> list[V]: ...
    def __getitem__(self, place: int | slice) -> V | list[V]:
        rows = range(len(self))[place]
        return self.value(rows) if isinstance(rows, int) else [self.value(row) for row in rows]

    def __iter__(self) -> Iterator[V]:
        return iter(self.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return self.values() == list(other)

    def __repr__(self) -> str:
        return repr(self.values())


class PackedBytes(Packed[bytes]):
    """Rows of bytes that lie side by side in a buffer; they are never changed.

    Row ``k`` stands in ``bytes[bounds[k]:bounds[k + 1]]``; there is one bound more than rows, and
    they are signed 32-bit integers (``array("i")``) that never decrease.
    """

    __slots__ = ("bounds", "nbytes")

    def __init__(self, data: bytes, bounds: array[int]) -> None:
        self.nbytes: bytes = data
        self.bounds: array[int] = bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def value(self, row: int) -> bytes:
        return self.nbytes[self.bounds[row] : self.bounds[row + 1]]

    def values(self) -> list[bytes]:
        nbytes = self.nbytes
        return [nbytes[start:end] for start, end in pairwise(self.bounds)]

    def text(self, row: int) -> str:
        return self.value(row).decode()


class PackedNumbers(Packed[int], array):  # type: ignore[misc,type-arg]
    """64-bit integers that never change: ``PackedNumbers("q", numbers)``."""

    __slots__ = ()

    __len__ = array.__len__
    value = array.__getitem__  # type: ignore[assignment]  # of one place
    values = array.tolist


class PackedMaps(Packed[dict[str, str]]):
    """Maps of texts: map ``k`` holds the pairs ``bounds[k]`` … ``bounds[k + 1] - 1``.

    ``keys`` and ``items`` have a row for each pair; all are UTF-8, and no map has a key twice.
    """

    __slots__ = ("bounds", "items", "keys")

    def __init__(self, bounds: array[int], keys: PackedBytes, items: PackedBytes) -> None:
        self.bounds: array[int] = bounds
        self.keys: PackedBytes = keys
        self.items: PackedBytes = items

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def value(self, row: int) -> dict[str, str]:
        pairs = range(self.bounds[row], self.bounds[row + 1])
        return {self.keys.text(pair): self.items.text(pair) for pair in pairs}


def joined(parts: Sequence[PackedBytes]) -> PackedBytes:
    """All rows of ``parts``, in one buffer that holds nothing else unless it is a part's own."""
    if len(parts) == 1:
        return parts[0]
    bounds = array("i", [0])
    for part in parts:
        place = bounds.pop()  # the part's first bound is the last one of the part before
        bounds.frombytes(shift(part.bounds, place - part.bounds[0]))
    data = b"".join([part.nbytes[part.bounds[0] : part.bounds[-1]] for part in parts])
    return PackedBytes(data, bounds)


def kept_packed(values: object) -> bool:
    """Whether a column is packed and long enough to be worth it: it is not put to others then."""
    return isinstance(values, Packed) and len(values) >= PACKED_MIN


def listed(values: Sequence[V]) -> list[V]:
    return values if isinstance(values, list) else list(values)
