"""A reader spends its time in two loops over runs of ``J`` and of ``D`` frames.

Each is here in Python.  The compiled module ``_scan`` does the same work several times as fast and
is used where it was built; :data:`COMPILED` tells.  A ``D`` frame that is not here as a whole, or
breaks a limit, is not one for a run: it is read pair by pair.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, repeat
from sys import getsizeof
from typing import Any, Final, NamedTuple

from ...core.compiled import compiled
from ...core.packed import PackedBytes, PackedMaps, PackedNumbers
from .frames import LENGTH, LONG

FORM: Final = 5
"""This number changes with the arguments and results of ``_scan``; see
:func:`~twisted_msgproto.core.compiled.compiled`.
"""

_compiled: Any = compiled("twisted_msgproto.lumberjack._scan", FORM)

COMPILED: Final = _compiled is not None

_HEADER = struct.Struct(">HII")  # version and type as one number, sequence, length or count
_LENGTH = struct.Struct(">I")
_JSON: Final = ord("J")
_WINDOW: Final = ord("W")
_WINDOW_SIZE: Final = 6

KnownKey = tuple[bytes | tuple[bytes, ...], int, str]
"""A key as it stands in a D frame, length first; the size of that; the key as text."""

KNOWN_KEYS_MAX: Final = 32
KNOWN_KEYS_BYTES: Final = 1024
"""A frame of no more keys and bytes is remembered for the next read: shippers have ten keys or so.
More would cost a silent connection up to 2 MiB.
"""

_NO_KEY: Final[KnownKey] = ((), 0, "")
"""Stands where no key is known: no bytes ever start with an empty tuple."""


# ── J frames, and the windows they stand in ─────────────────────────────────────────────────────

JsonRun = tuple[int, PackedNumbers, PackedBytes, list[tuple[int, int]], int]
"""Return J frames of one version that follow each other, and the W frames among them:

* the position behind them,
* the J frames' sequence numbers,
* and documents,
* of each W frame: how many J frames stand before it, and the window it announces,
* the bytes of the next J frame, if its header stands at the position and its end is not here; else
  0.
"""


def json_run_python(
    data: bytes, position: int, stop: int, count_max: int, window_max: int, windows_max: int
) -> JsonRun:
    """Return the run of J and W frames that begins at ``position``.

    They are whole, at most ``count_max`` J and ``windows_max`` W frames, and none of them begins at
    or after ``stop``.  A W frame that announces 0 or more than ``window_max`` is not for a run.
    """
    unpack, header_size, end = _HEADER.unpack_from, _HEADER.size, len(data)
    json_head = data[position] << 8 | _JSON
    window_head = data[position] << 8 | _WINDOW
    sequences: list[int] = []
    bodies: list[bytes] = []
    windows: list[tuple[int, int]] = []
    needed = 0
    while len(bodies) < count_max and position < stop and position + header_size <= end:
        head, number, length = unpack(data, position)
        if head == json_head:
            start = position + header_size
            after = start + length
            if after > end:
                needed = after - position
                break
            sequences.append(number)
            bodies.append(data[start:after])
            position = after
        elif head == window_head and 0 < number <= window_max and len(windows) < windows_max:
            windows.append((len(bodies), number))
            position += _WINDOW_SIZE
        else:
            break
    bounds = array("i", accumulate(map(len, bodies), initial=0))
    columns = PackedNumbers("q", sequences), PackedBytes(b"".join(bodies), bounds)
    return position, *columns, windows, needed


def json_run_compiled(
    data: bytes, position: int, stop: int, count_max: int, window_max: int, windows_max: int
) -> JsonRun:
    position, sequences, bounds, bodies, windows, needed = _compiled.json_columns(
        data, position, stop, count_max, window_max, windows_max
    )
    columns = PackedNumbers("q", sequences), PackedBytes(bodies, array("i", bounds))
    return position, *columns, windows, needed


def cut_at_limit(run: JsonRun, bytes_max: int) -> tuple[JsonRun, int]:
    """Return what stands before the first document above ``bytes_max``, and the bytes of that, or
    0.
    """
    position, sequences, bodies, windows, needed = run
    bounds = bodies.bounds
    for row, (begin, end) in enumerate(pairwise(bounds)):
        if end - begin > bytes_max:
            kept = [window for window in windows if window[0] <= row]
            left = (bounds[-1] - begin) + _HEADER.size * (len(bodies) - row)
            left += _WINDOW_SIZE * (len(windows) - len(kept))
            columns = (
                PackedNumbers("q", sequences[:row]),
                PackedBytes(bodies.nbytes[:begin], bounds[: row + 1]),
            )
            return (position - left, *columns, kept, 0), end - begin
    too_long = needed - _HEADER.size
    return run, too_long if too_long > bytes_max else 0


# ── D frames ────────────────────────────────────────────────────────────────────────────────────


class DataLimits(NamedTuple):
    pairs: int
    key_bytes: int
    value_bytes: int
    nbytes: int


class DataRun(NamedTuple):
    """D frames of one version that follow each other, up to ``position``.

    ``pairs`` has the pairs of each frame, and ``pair_count`` says how many were read, repeated keys
    included.  ``unusual``: the next frame's header stands there, and the frame is not one for a
    run.
    """

    position: int
    sequences: PackedNumbers
    pairs: Sequence[dict[str, str]]
    pair_count: int
    unusual: bool


def data_run_python(
    data: bytes,
    position: int,
    stop: int,
    count_max: int,
    pairs_stop: int,
    limits: DataLimits,
    keys: list[KnownKey],
) -> DataRun:
    """Return the run of D frames that begins at ``position``.

    They are at most ``count_max``, and none of them begins at or after ``stop``, or behind
    ``pairs_stop`` pairs.

    Frames that are cut short, above a limit or not UTF-8 are not for a run.  Frames that follow
    each other mostly have the same keys in the same order, so the keys of the last frame are
    compared, lengths and all, before anything is decoded; ``keys`` holds them from call to call.
    """
    end = len(data)
    unpack, unpack_header, header_size = _LENGTH.unpack_from, _HEADER.unpack_from, _HEADER.size
    pairs_max, key_max, value_max, size_max = limits
    run_head = data[position] << 8 | data[position + 1]
    sequences: list[int] = []
    all_pairs: list[dict[str, str]] = []
    known_keys = keys
    pair_count = 0
    unusual = False
    try:
        for _ in repeat(None, count_max):
            if position >= stop or pair_count >= pairs_stop:
                break
            head, sequence, count = unpack_header(data, position)
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
            for key_bytes, key_size, key in known_keys:
                if data.startswith(key_bytes, at):
                    at += key_size
                else:
                    known = False
                    (size,) = unpack(data, at)
                    if size > key_max:
                        raise ValueError
                    text_start = at + 4
                    at = text_start + size
                    key = data[text_start:at].decode()
                (size,) = unpack(data, at)
                if size > value_max:
                    raise ValueError
                text_start = at + 4
                at = text_start + size
                pairs[key] = data[text_start:at].decode()
            if at > end or at - position > size_max:
                break
            unusual = False
            if not known:
                known_keys = [_known_key(key) for key in pairs]
            position = at
            pair_count += count
            sequences.append(sequence)
            all_pairs.append(pairs)
    except (struct.error, ValueError):
        pass  # cut short, above a limit, or not UTF-8: UnicodeDecodeError is a ValueError
    keys[:] = known_keys if _are_few(known_keys) else ()
    return DataRun(position, PackedNumbers("q", sequences), all_pairs, pair_count, unusual)


def _are_few(keys: list[KnownKey]) -> bool:
    return len(keys) <= KNOWN_KEYS_MAX and sum([size for _, size, _ in keys]) <= KNOWN_KEYS_BYTES


def _known_key(key: str) -> KnownKey:
    nbytes = key.encode()
    return _LENGTH.pack(len(nbytes)) + nbytes, 4 + len(nbytes), key


def data_run_compiled(
    data: bytes,
    position: int,
    stop: int,
    count_max: int,
    pairs_stop: int,
    limits: DataLimits,
    keys: list[KnownKey],
) -> DataRun:
    """See :func:`data_run_python`.  Its pairs are packed; repeated keys are not for a run."""
    position, sequences, pairs, key_bounds, key_bytes, value_bounds, value_bytes, unusual = (
        _compiled.data_columns(data, position, stop, count_max, pairs_stop, *limits)
    )
    bounds = array("i", pairs)
    maps = PackedMaps(
        bounds,
        PackedBytes(key_bytes, array("i", key_bounds)),
        PackedBytes(value_bytes, array("i", value_bounds)),
    )
    return DataRun(position, PackedNumbers("q", sequences), maps, bounds[-1], unusual)


json_run = json_run_compiled if COMPILED else json_run_python
data_run = data_run_compiled if COMPILED else data_run_python


# ── a D frame that is not for a run ─────────────────────────────────────────────────────────────


class AboveLimit(NamedTuple):
    """The limit that a D frame is above: a fault's reason, its text and the limit's name, which
    is empty where no operator sets it.
    """

    reason: str
    text: str
    name: str


@dataclass(slots=True)
class PartialData:
    """What was read of an incomplete D frame, so that nothing is read twice (``LJ-03``).

    Attributes:
        missing: pairs that are not read yet; 0 once the frame is here.
        start: the frame's first bytes, for the log.
        bytes: how much of the frame was read so far, its header included.
        texts_bytes: what its keys and values occupy in memory.
        key: it was read, and its value was not; None between pairs.
        invalid_texts: keys and values that were not UTF-8; their bytes are kept as surrogates.
    """

    version: int
    sequence: int
    pair_count: int
    start: bytes
    nbytes: int = LONG.size
    texts_bytes: int = 0
    pairs: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    invalid_texts: int = 0
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing = self.pair_count

    @property
    def held_bytes(self) -> int:
        """Return what it occupies in memory: for short texts ten times its bytes."""
        return self.texts_bytes + getsizeof(self.pairs)

    def read(
        self, content: bytes, position: int, limits: DataLimits
    ) -> tuple[int, int, AboveLimit | None]:
        """Read on from ``position``, as far as the bytes reach.

        Return the position behind what was read, how many bytes are needed there to go on (0 when
        the frame is here), and the limit that the frame is above, or None.
        """
        begin, end = position, len(content)
        text_bytes_max = limits.key_bytes, limits.value_bytes
        pairs, key = self.pairs, self.key
        needed = 0
        above: AboveLimit | None = None
        while self.missing:
            text_start = position + LENGTH.size
            if text_start > end:
                needed = LENGTH.size
                break
            (length,) = LENGTH.unpack_from(content, position)
            if length > text_bytes_max[key is not None]:
                what = "key" if key is None else "value"
                text = f"a {what} of {length} bytes"
                above = AboveLimit(f"{what}-limit", text, "" if key is None else "data-bytes")
                break
            text_end = text_start + length
            if text_end > end:
                needed = LENGTH.size + length
                break
            raw = content[text_start:text_end]
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                self.invalid_texts += 1
                text = raw.decode("utf-8", "surrogateescape")
            position = text_end
            self.texts_bytes += getsizeof(text)
            if key is None:
                key = text
            else:
                pairs[key] = text
                key = None
                self.missing -= 1
        self.key = key
        self.nbytes += position - begin
        if self.nbytes > limits.nbytes:
            above = AboveLimit("data-limit", "a data frame is too large", "data-bytes")
        return position, needed, above
