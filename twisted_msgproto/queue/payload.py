"""Turn message batches into the payload of a frame, and payloads into the table's columns.

Writing gathers the lists of many batches; a packed column is written as it stands in its buffer.
What a batch shares is written once per batch, as a run.  Reading puts frames together until there
are enough rows, makes Arrow's arrays of them and expands the runs once, so that a queue of
one-message groups reads nearly as fast as one of large groups.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

import pyarrow as pa

from twisted_msgproto.core.errors import LimitExceeded, QueueCorrupt
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.core.packed import kept_packed

from .arrays import (
    Buffers,
    array_from,
    array_of,
    bits_of,
    buffers_of,
    compute,
    joined,
    read,
    scalar_of,
    written,
)
from .format import ALIGNMENT, FRAME_BYTES_MAX, crc32
from .schema import (
    ATTACHMENTS_GIVEN,
    BODY,
    DESTINATION,
    ENVELOPE,
    FIELDS,
    FIELDS_GIVEN,
    KNOWN_COLUMNS,
    MESSAGE_ID_INTEGER,
    MESSAGE_ID_TEXT,
    SCHEMA,
    STORED,
    TEXT,
    TIME,
    TRUNCATED,
    TYPES,
)

SMALL_MESSAGES = 32  # frames of no more are put together before Arrow, or without it

RUNS_HEAD = "IIII"
RUNS = struct.Struct(f"<{RUNS_HEAD}")
ORIGINS_REMEMBERED = 4096  # connections whose origins stay as text; more cost only time

ORIGIN_VALUES = 5
Origin = tuple[str, str, str | None, str | None, str | None]
"""What a batch's messages share: protocol, kind, peer, session, client_id."""


@dataclass(slots=True)
class Encoded:
    """A frame's payload, complete but for the offset of its first message."""

    count: int
    pieces: list[Any]  # buffers of together ``nbytes`` bytes, a multiple of 8
    nbytes: int
    runs: int
    crc: int
    envelopes: int  # messages for a broker's queue


# -- writing --------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Return ``text`` fit for UTF-8: U+FFFD for bytes of the wire that came as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            data = text.encode("utf-8", "surrogatepass")
        return data.decode("utf-8", "replace")
    return text


@lru_cache(ORIGINS_REMEMBERED)
def _origin_text(origin: Origin) -> str:
    if not (isinstance(origin[0], str) and isinstance(origin[1], str)):
        raise TypeError(f"protocol and kind are text, not {origin[:2]!r}")
    if not all(value is None or isinstance(value, str) for value in origin):
        raise TypeError(f"text expected in {origin!r}")
    texts = [None if value is None else clean(value) for value in origin]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds of the first and the last day that a table can be partitioned by."""


def _runs(batches: Sequence[MessageBatch], columns: int, partial: int) -> bytes:
    origins: dict[Origin, int] = {}
    indices = []
    for batch in batches:
        origin = (batch.protocol, batch.kind, batch.peer, batch.session, batch.client_id)
        indices.append(origins.setdefault(origin, len(origins)))
    text = ("[" + ",".join(map(_origin_text, origins)) + "]").encode()
    count = len(batches)
    times = [batch.received_at for batch in batches]
    if not (min(times) >= TIME_MIN and max(times) <= TIME_MAX):
        raise ValueError("received_at: microseconds since 1970, of the years 1 to 9999")
    head = struct.pack(
        f"<{RUNS_HEAD}{count}q{count}I{count}I",
        *(columns, count, len(text), partial),
        *times,
        *[batch.count for batch in batches],
        *indices,
    )
    padding = bytes(-(len(head) + len(text)) % ALIGNMENT)
    return head + text + padding


_NAMES = tuple(dict.fromkeys(name for _, name, _ in STORED))
_BITS = {name: bit for bit, name, _ in STORED}
_columns_of = attrgetter(*_NAMES)

CLEANED = DESTINATION | FIELDS_GIVEN  # peers choose this text; what is not UTF-8 becomes U+FFFD
_MISSING = {"truncated": False}  # where a message without a value has another one than None

Stretches = list[Sequence[Any]]  # a column's values; stretches that are packed stay apart


def _gathered(batches: Sequence[MessageBatch]) -> dict[str, Stretches]:
    if len(batches) == 1:
        return _alone(batches[0])
    counts = [batch.count for batch in batches]
    columns = zip(_NAMES, zip(*map(_columns_of, batches), strict=True), strict=True)
    return {
        name: _stretches(name, parts, counts)
        for name, parts in columns
        # What compares a packed column with None is Python code.
        if parts[0] is not None or parts.count(None) < len(parts)
    }


def _alone(batch: MessageBatch) -> dict[str, Stretches]:
    gathered: dict[str, Stretches] = {}
    for name, values in zip(_NAMES, _columns_of(batch), strict=True):
        if values is not None:
            if len(values) != batch.count:
                raise ValueError(f"{name} has {len(values)} values for {batch.count} messages")
            gathered[name] = [values]
    return gathered


def _stretches(
    name: str, parts: Sequence[Sequence[Any] | None], counts: Sequence[int]
) -> Stretches:
    """Return a column's values over all batches; ValueError if not a value for each message."""
    stretches: Stretches = []
    values: list[Any] | None = None  # the last stretch, if it may be added to
    for part, count in zip(parts, counts, strict=True):
        if part is None:
            part = [_MISSING.get(name)] * count
        elif len(part) != count:
            raise ValueError(f"{name} has {len(part)} values for {count} messages")
        if kept_packed(part):
            stretches.append(part)
            values = None
        elif values is None:
            values = list(part)
            stretches.append(values)
        else:
            values += part
    return stretches


def _column(stretches: Stretches, kind: pa.DataType) -> Buffers:
    return joined(kind, [buffers_of(some, kind) for some in stretches], [*map(len, stretches)])


def _texts(stretches: Stretches, kind: pa.DataType) -> Buffers:
    try:
        return _column(stretches, kind)
    except UnicodeEncodeError:
        tidy: Any = _clean_map if kind is FIELDS else clean
        values = [one for some in stretches for one in some]
        return _column([[None if one is None else tidy(one) for one in values]], kind)


def _clean_map(pairs: Mapping[str, str]) -> dict[str, str]:
    # Cleaned keys may meet; a repeated key keeps its last value.
    return {clean(key): clean(item) for key, item in pairs.items()}


def _message_ids(stretches: Stretches) -> tuple[int, Buffers]:
    try:
        return MESSAGE_ID_INTEGER, _column(stretches, TYPES[MESSAGE_ID_INTEGER])
    except struct.error:
        # Text, or integers and text in one group, or integers of more than 63 bits.
        values = [one for some in stretches for one in some]
        texts = [str(value) if type(value) is int else value for value in values]
        return MESSAGE_ID_TEXT, _texts([texts], TEXT)


def encode(batches: Sequence[MessageBatch]) -> Encoded:
    """Return one frame's payload for the messages of ``batches``, none of which is empty.

    TypeError or ValueError for columns unlike :class:`MessageBatch`, LimitExceeded for more bytes
    than a frame holds.
    """
    count = sum([batch.count for batch in batches])
    columns = envelopes = 0
    made: list[Buffers] = []
    for name, stretches in _gathered(batches).items():
        bit = _BITS[name]
        try:
            if name == "message_id":
                bit, column = _message_ids(stretches)
            elif bit & CLEANED:
                column = _texts(stretches, TYPES[bit])
            else:
                column = _column(stretches, TYPES[bit])
        except (TypeError, AttributeError, struct.error) as error:
            raise TypeError(f"{name}: {error}") from error
        except OverflowError as error:
            raise LimitExceeded(f"{name}: more than {FRAME_BYTES_MAX} bytes in a group") from error
        if name == "envelope":
            envelopes = sum(column[0]) if column[0] else count
        columns |= bit
        made.append(column)
    partial, block = written(columns, made)
    try:
        runs = _runs(batches, columns, partial)
    except struct.error as error:
        raise TypeError(f"received_at: {error}") from error
    pieces = [runs, *block]
    nbytes = sum(map(len, pieces))
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    if nbytes > FRAME_BYTES_MAX:
        raise LimitExceeded(f"{nbytes} bytes in one group; a frame holds {FRAME_BYTES_MAX}")
    return Encoded(count, pieces, nbytes, len(runs), crc, envelopes)


# -- reading --------------------------------------------------------------------------------------


@lru_cache(ORIGINS_REMEMBERED)
def _origins(text: bytes) -> list[list[str | None]]:
    origins: list[list[str | None]] = json.loads(text)
    if not all(len(origin) == ORIGIN_VALUES for origin in origins):
        raise ValueError("an origin does not have its five values")
    return origins


def received_at(head: memoryview, place: int) -> int | None:
    """Return when the message at ``place`` of a frame was received; None if that is damaged."""
    try:
        _, runs, _, _ = RUNS.unpack_from(head)
        counts = struct.unpack_from(f"<{runs}I", head, RUNS.size + 8 * runs)
        for run, count in enumerate(counts):
            place -= count
            if place < 0:
                time: int = struct.unpack_from("<q", head, RUNS.size + 8 * run)[0]
                return time
    except struct.error:
        pass
    return None


@dataclass(slots=True)
class _Part:
    """Neighbouring frames with the same columns; or one of which a part is wanted."""

    columns: int
    wanted: slice | None
    counts: list[int] = field(default_factory=list)
    frames: list[list[Buffers]] = field(default_factory=list)

    def arrays(self) -> tuple[int, dict[int, pa.Array]]:
        rows = sum(self.counts)
        arrays = {}
        for index, bit in enumerate(bits_of(self.columns)):
            kind = TYPES[bit]
            buffers = joined(kind, [frame[index] for frame in self.frames], self.counts)
            array = array_from(kind, rows, buffers)
            array.validate(full=True)  # before Arrow reads where a text ends that ends nowhere
            arrays[bit] = array[self.wanted] if self.wanted else array
        return len(range(rows)[self.wanted]) if self.wanted else rows, arrays


def read_head(
    head: memoryview, count: int
) -> tuple[int, int, Sequence[int], Sequence[int], Sequence[int], bytes]:
    """Return columns, those with None, times, counts, indices and the text of origins.

    Raises ValueError or struct.error for what makes no sense, or has not ``count`` messages.
    """
    columns, runs, text, partial = RUNS.unpack_from(head)
    if columns & ~KNOWN_COLUMNS:
        raise ValueError(f"unknown columns {columns:#x}")
    at = RUNS.size + 16 * runs
    numbers = struct.unpack_from(f"<{runs}q{2 * runs}I", head, RUNS.size)
    counts = numbers[runs : 2 * runs]
    if sum(counts) != count:
        raise ValueError(f"its runs do not hold {count} messages")
    return (
        columns,
        partial,
        numbers[:runs],
        counts,
        numbers[2 * runs :],
        bytes(head[at : at + text]),
    )


@dataclass(slots=True)
class Assembly:
    """Frames, added in order, that become one record batch of the table."""

    gateway: str
    rows: int = 0
    nbytes: int = 0
    _spans: list[tuple[int, int]] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _run_origins: list[list[str | None]] = field(default_factory=list)
    _parts: list[_Part] = field(default_factory=list)

    def add(self, payload: memoryview, runs: int, first: int, count: int, lo: int, hi: int) -> None:
        """Add ``lo`` ≤ offset < ``hi`` of a checked frame; QueueCorrupt if it is nonsense."""
        try:
            columns, partial, times, counts, indices, text = read_head(payload[:runs], count)
            known = _origins(text)
            origins = [known[index] for index in indices]
            small = count <= SMALL_MESSAGES  # bytes are cut faster, and their copies cost more
            block = bytes(payload[runs:]) if small else payload[runs:]
            frame = read(columns, partial, block, count)
        except MemoryError:
            raise  # the record may be whole
        except Exception as error:  # nonsense is met by struct and json, each in its way
            raise QueueCorrupt(f"the record at offset {first} makes no sense: {error}") from error
        columns &= ~ENVELOPE
        row = first
        end = self.rows
        for time, messages, origin in zip(times, counts, origins, strict=True):
            taken = min(row + messages, hi) - max(row, lo)
            row += messages
            if taken > 0:
                end += taken
                self._times.append(time)
                self._ends.append(end)
                self._run_origins.append(origin)
        self.rows = end
        self.nbytes += len(payload)
        if self._spans and self._spans[-1][1] == lo:
            self._spans[-1] = self._spans[-1][0], hi
        else:
            self._spans.append((lo, hi))
        wanted = slice(lo - first, hi - first) if hi - lo < count else None
        part = self._parts[-1] if self._parts else None
        if part is None or part.columns != columns or wanted or part.wanted:
            part = _Part(columns, wanted)
            self._parts.append(part)
        part.counts.append(count)
        part.frames.append(frame)

    def finish(self) -> pa.RecordBatch:
        """Return the rows that were added; QueueCorrupt if a frame makes no sense."""
        try:
            return self._made()
        except MemoryError:
            raise
        except Exception as error:
            raise QueueCorrupt(f"a record makes no sense: {error}") from error
        finally:
            self.rows = self.nbytes = 0
            for gathered in (self._spans, self._times, self._ends, self._run_origins, self._parts):
                gathered.clear()

    def _made(self) -> pa.RecordBatch:
        parts = [part.arrays() for part in self._parts]
        protocol, kind, peer, session, client_id = (
            zip(*self._run_origins, strict=True) if self._run_origins else ((),) * ORIGIN_VALUES
        )
        columns = [
            pa.repeat(scalar_of(self.gateway, TEXT), self.rows),
            _concatenated([pa.arange(lo, hi) for lo, hi in self._spans], pa.int64()),
            self._expanded(self._times, pa.int64()).cast(TIME),
            self._expanded(protocol, TEXT),
            self._expanded(peer, TEXT),
            self._expanded(session, TEXT),
            self._expanded(client_id, TEXT),
            self._expanded(kind, TEXT),
            _message_id_column(parts),
            _stored_column(parts, DESTINATION),
            _stored_column(parts, FIELDS_GIVEN),
            _stored_column(parts, BODY),
            _stored_column(parts, ATTACHMENTS_GIVEN),
            compute().fill_null(_stored_column(parts, TRUNCATED), _FALSE),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _expanded(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if len(values) == 1:
            return pa.repeat(scalar_of(values[0], kind), self.rows)
        children = [array_of(self._ends, pa.int32()), array_of(values, kind)]
        runs = pa.RunEndEncodedArray.from_buffers(
            pa.run_end_encoded(pa.int32(), kind), self.rows, [None], 0, children=children
        )
        return compute().run_end_decode(runs)


_FALSE = scalar_of(False, pa.bool_())

_Arrays = Sequence[tuple[int, dict[int, pa.Array]]]


def _stored_column(parts: _Arrays, bit: int) -> pa.Array:
    kind = TYPES[bit]
    return _concatenated(
        [arrays[bit] if bit in arrays else pa.nulls(rows, kind) for rows, arrays in parts], kind
    )


def _message_id_column(parts: _Arrays) -> pa.Array:
    ids = []
    for rows, arrays in parts:
        if MESSAGE_ID_INTEGER in arrays:
            ids.append(arrays[MESSAGE_ID_INTEGER].cast(TEXT))
        else:
            ids.append(_stored_column([(rows, arrays)], MESSAGE_ID_TEXT))
    return _concatenated(ids, TEXT)


def _concatenated(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)
