"""The two loops in which a reader spends its time: runs of ``J`` and of ``D`` frames in octets.

Each stands here in Python.  The compiled module ``_scan`` does the same work several times as
fast and is used where it was built; :data:`COMPILED` tells.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from ..core.compiled import compiled
from ..core.packed import PackedMaps, Rows

FORM: Final = 2
"""Of what ``_scan`` takes and gives; see :func:`~twisted_msgproto.core.compiled.compiled`."""

_compiled: Any = compiled("twisted_msgproto.lumberjack._scan", FORM)

COMPILED: Final = _compiled is not None
"""Whether the compiled form is in use."""

_HEAD_AND_LENGTH = struct.Struct(">H4xI")
_HEADER = struct.Struct(">HII")  # version and type as one number, sequence, length or count
_LENGTH = struct.Struct(">I")

KnownKey = tuple[bytes | tuple[bytes, ...], int, str]
"""A key as it stands in a D frame, length first; the size of that; the key as text."""

_NO_KEY: Final[KnownKey] = ((), 0, "")
"""Stands where no key is known: no octets ever start with an empty tuple."""


# ── J frames ────────────────────────────────────────────────────────────────────────────────────


def json_bounds_python(
    octets: bytes, position: int, stop: int, count_max: int
) -> tuple[array[int], int]:
    """Where the frames of a run begin and end, in one array: ``position``, and each end.

    The frames have the version and type of the one which begins at ``position``, are whole, at
    most ``count_max``, and the last one is the first to reach ``stop`` (at most the octets' end).
    The second value is the last bound, or where a frame ends which is not whole and ended the run.
    """
    unpack, header_size, end = _HEAD_AND_LENGTH.unpack_from, _HEADER.size, len(octets)
    run_head = octets[position] << 8 | octets[position + 1]
    bounds = [position]
    add = bounds.append
    try:
        for _ in repeat(None, count_max):
            head, length = unpack(octets, position)
            if head != run_head:
                break
            position += header_size + length
            if position >= stop:
                if position <= end:
                    add(position)
                break
            add(position)
    except struct.error:
        pass  # less than a header is left
    return array("i", bounds), position


def json_bounds_compiled(
    octets: bytes, position: int, stop: int, count_max: int
) -> tuple[array[int], int]:
    """See :func:`json_bounds_python`."""
    bounds, position = _compiled.json_bounds(octets, position, stop, count_max)
    return array("i", bounds), position


# ── D frames ────────────────────────────────────────────────────────────────────────────────────


class DataLimits(NamedTuple):
    """What bounds one D frame: pairs, and octets of a key, of a value, of all."""

    pairs: int
    key_octets: int
    value_octets: int
    octets: int


class DataRun(NamedTuple):
    """D frames of one version which follow each other, up to ``position``.

    ``unusual``: the next frame's header stands there, and the frame is not one for a run.
    """

    position: int
    sequences: list[int]
    pairs: Sequence[dict[str, str]]
    unusual: bool


def data_run_python(
    octets: bytes,
    position: int,
    stop: int,
    count_max: int,
    limits: DataLimits,
    keys: list[KnownKey],
) -> DataRun:
    """The run of D frames which begins at ``position``.

    They are at most ``count_max``, and none of them begins at or after ``stop``.

    Frames which are cut short, above a limit or not UTF-8 are not for a run.  Frames which follow
    each other mostly have the same keys in the same order, so the keys of the last frame are
    compared, lengths and all, before anything is decoded; ``keys`` holds them from call to call.
    """
    end = len(octets)
    unpack, unpack_header, header_size = _LENGTH.unpack_from, _HEADER.unpack_from, _HEADER.size
    pairs_max, key_max, value_max, size_max = limits
    run_head = octets[position] << 8 | octets[position + 1]
    sequences: list[int] = []
    all_pairs: list[dict[str, str]] = []
    known_keys = keys
    unusual = False
    try:
        for _ in repeat(None, count_max):
            if position >= stop:
                break
            head, sequence, count = unpack_header(octets, position)
            if head != run_head:
                break
            unusual = True  # until this frame has been read to its end
            if len(known_keys) != count:
                if count > pairs_max:
                    break
                known_keys = [_NO_KEY] * count
            pairs: dict[str, str] = {}
            known = True
            at = position + header_size
            for key_octets, key_size, key in known_keys:
                if octets.startswith(key_octets, at):
                    at += key_size
                else:
                    known = False
                    (size,) = unpack(octets, at)
                    if size > key_max:
                        raise ValueError
                    text_start = at + 4
                    at = text_start + size
                    key = octets[text_start:at].decode()
                (size,) = unpack(octets, at)
                if size > value_max:
                    raise ValueError
                text_start = at + 4
                at = text_start + size
                pairs[key] = octets[text_start:at].decode()
            if at > end or at - position > size_max:
                break
            unusual = False
            if not known:
                known_keys = [_known_key(key) for key in pairs]
            position = at
            sequences.append(sequence)
            all_pairs.append(pairs)
    except (struct.error, ValueError):
        pass  # cut short, above a limit, or not UTF-8: UnicodeDecodeError is a ValueError
    keys[:] = known_keys
    return DataRun(position, sequences, all_pairs, unusual)


def _known_key(key: str) -> KnownKey:
    """A key as it stands in a D frame, length first; the size of that; and the key."""
    octets = key.encode()
    return _LENGTH.pack(len(octets)) + octets, 4 + len(octets), key


def data_run_compiled(
    octets: bytes,
    position: int,
    stop: int,
    count_max: int,
    limits: DataLimits,
    keys: list[KnownKey],
) -> DataRun:
    """See :func:`data_run_python`.  Its pairs are packed; repeated keys are not for a run."""
    position, sequences, pairs, key_bounds, key_octets, value_bounds, value_octets, unusual = (
        _compiled.data_columns(octets, position, stop, count_max, *limits)
    )
    return DataRun(
        position,
        array("I", sequences).tolist(),
        PackedMaps(
            array("i", pairs),
            Rows(key_octets, array("i", key_bounds)),
            Rows(value_octets, array("i", value_bounds)),
        ),
        unusual,
    )


json_bounds = json_bounds_compiled if COMPILED else json_bounds_python
data_run = data_run_compiled if COMPILED else data_run_python
