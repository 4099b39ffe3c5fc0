"""Turn message batches into the payload of a frame, and payloads into the table's columns.

Writing gathers the lists of many batches and builds Arrow once for all of them; a packed column
becomes Arrow as it stands in its buffer.  What a batch shares is written once per batch, as a run.
Reading puts frames together until there are enough rows and
expands the runs once, so that a queue of one-message groups reads nearly as fast as one of large
groups.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

import pyarrow as pa

from twisted_msgproto.core.errors import LimitExceeded, QueueCorrupt
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.core.packed import PackedBytes, PackedMaps, PackedNumbers, kept_packed

from .arrays import UNKNOWN, array_of, compute, ipc_message, scalar_of
from .format import ALIGNMENT, FRAME_BYTES_MAX, crc32
from .schema import (
    ATTACHMENTS_GIVEN,
    BODY,
    BYTES,
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
    empty,
    stored_schema,
)

RUNS_HEAD = "IIII"
RUNS = struct.Struct(f"<{RUNS_HEAD}")
ORIGINS_REMEMBERED = 4096
"""The origins of this many connections are kept as text; more would only cost time."""

ORIGIN_VALUES = 5
Origin = tuple[str, str, str | None, str | None, str | None]
"""All messages of a batch share these columns (protocol, kind, peer, session, client_id) and the
time.
"""


@dataclass(slots=True)
class Encoded:
    """A frame's payload, complete but for the offset of its first message."""

    count: int
    pieces: list[Any]
    """These are buffers; their bytes together are ``nbytes``, a multiple of 8."""
    nbytes: int
    runs: int
    crc: int
    envelopes: int = 0
    """This many messages are for a broker's queue."""
    replaced: int = 0
    """This counts the texts in which bytes that are not UTF-8 became U+FFFD."""


# -- writing --------------------------------------------------------------------------------------


def clean(text: str) -> tuple[str, int]:
    """Return ``text`` fit for UTF-8, and 1 if something had to become U+FFFD, else 0.

    Bytes from the wire that are no UTF-8 come as lone surrogates (``surrogateescape``).
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            data = text.encode("utf-8", "surrogatepass")
        return data.decode("utf-8", "replace"), 1
    return text, 0


@lru_cache(ORIGINS_REMEMBERED)
def _origin_text(origin: Origin) -> tuple[str, int]:
    if not (isinstance(origin[0], str) and isinstance(origin[1], str)):
        raise TypeError(f"protocol and kind are text, not {origin[:2]!r}")
    texts: list[str | None] = []
    replaced = 0
    for value in origin:
        if value is None:
            texts.append(None)
        elif isinstance(value, str):
            text, changed = clean(value)
            texts.append(text)
            replaced += changed
        else:
            raise TypeError(f"text expected in {origin!r}")
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")), replaced


def _runs(batches: Sequence[MessageBatch], columns: int) -> tuple[bytes, int]:
    origins: dict[Origin, int] = {}
    indices = []
    for batch in batches:
        origin = (batch.protocol, batch.kind, batch.peer, batch.session, batch.client_id)
        indices.append(origins.setdefault(origin, len(origins)))
    written = [_origin_text(origin) for origin in origins]
    text = ("[" + ",".join([text for text, _ in written]) + "]").encode()
    count = len(batches)
    head = struct.pack(
        f"<{RUNS_HEAD}{count}q{count}I{count}I",
        *(columns, count, len(text), 0),
        *[batch.received_at for batch in batches],
        *[batch.count for batch in batches],
        *indices,
    )
    padding = bytes(-(len(head) + len(text)) % ALIGNMENT)
    return head + text + padding, sum([changed for _, changed in written])


_NAMES = tuple(dict.fromkeys(name for _, name, _ in STORED))
_BITS = {name: bit for bit, name, _ in STORED}
_columns_of = attrgetter(*_NAMES)

_MISSING = {"truncated": False}
"""A message without a value has None in its column; in these columns it has another value."""

Stretches = list[Sequence[Any]]
"""All values of a column, in stretches that stay apart because some of them are packed."""


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
    """Return a column's values over all batches.

    Packed columns that are worth it stay as they are; what stands between them is one list.  Raises
    ValueError for a column that has not a value for each message.
    """
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


def _merged(stretches: list[Sequence[Any]]) -> Sequence[Any]:
    return stretches[0] if len(stretches) == 1 else [one for some in stretches for one in some]


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(values, PackedBytes):
        buffers = [None, pa.py_buffer(values.bounds), pa.py_buffer(values.nbytes)]
        return pa.Array.from_buffers(BYTES, len(values), buffers)
    if isinstance(values, PackedNumbers):
        buffers = [None, pa.py_buffer(values)]
        return pa.Array.from_buffers(pa.int64(), len(values), buffers)
    try:
        return array_of(values, kind)
    except UnicodeEncodeError:
        raise  # Arrow would say the same
    except UNKNOWN:
        return _whole(pa.array(values, kind))  # which says what is wrong


def _texts(values: Sequence[str | None]) -> tuple[pa.Array, int]:
    try:
        return _array(values, TEXT), 0
    except UnicodeEncodeError:
        cleaned = [(None, 0) if value is None else clean(value) for value in values]
        return _array([text for text, _ in cleaned], TEXT), sum(n for _, n in cleaned)


def _message_ids(stretches: list[Sequence[Any]]) -> tuple[int, pa.Array, int]:
    integer = pa.int64()
    try:
        if any(type(some) is list and str in map(type, some) for some in stretches):
            raise TypeError("texts among the ids")
        numbers = _joined([_array(some, integer) for some in stretches], integer)
        return MESSAGE_ID_INTEGER, numbers, 0
    except (pa.ArrowException, OverflowError, TypeError):
        # Text, or integers and text in one group, or integers of more than 63 bits.
        texts = [str(value) if type(value) is int else value for value in _merged(stretches)]
        column, replaced = _texts(texts)
        return MESSAGE_ID_TEXT, column, replaced


def _all_fields(stretches: list[Sequence[Any]]) -> tuple[pa.Array, int]:
    parts = [_fields(some) for some in stretches]
    return _joined([part for part, _ in parts], FIELDS), sum(changed for _, changed in parts)


def _packed_texts(rows: PackedBytes) -> pa.Array:
    return pa.StringArray.from_buffers(
        len(rows), pa.py_buffer(rows.bounds), pa.py_buffer(rows.nbytes)
    )


def _fields(values: Sequence[Any]) -> tuple[pa.Array, int]:
    if isinstance(values, PackedMaps):
        texts = _packed_texts(values.keys), _packed_texts(values.items)
        bounds = pa.Array.from_buffers(
            pa.int32(), len(values) + 1, [None, pa.py_buffer(values.bounds)]
        )
        return pa.MapArray.from_arrays(bounds, *texts), 0
    try:
        return _array(values, FIELDS), 0
    except UnicodeEncodeError:
        replaced = 0
        cleaned: list[dict[str, str] | None] = []
        for pairs in values:
            if pairs is None:
                cleaned.append(None)
                continue
            row: dict[str, str] = {}
            for key, item in pairs.items():
                # Cleaned keys may meet; a repeated key keeps its last value.
                (key, changed), (item, also) = clean(key), clean(item)
                row[key] = item
                replaced += changed + also
            cleaned.append(row)
        return _array(cleaned, FIELDS), replaced


def encode(batches: Sequence[MessageBatch]) -> Encoded:
    """Return one frame's payload for all messages of ``batches``, in their order.

    Every batch holds at least one message.  Raises TypeError, ValueError or pyarrow's errors
    (which are both) for a batch whose columns are not what :class:`MessageBatch` says, and
    LimitExceeded for more bytes than a frame can hold.
    """
    gathered = _gathered(batches)
    count = sum([batch.count for batch in batches])
    written = _listed(gathered, count)
    columns, message, envelopes, replaced = _packed(gathered) if written is None else written
    runs, changed = _runs(batches, columns)
    pieces = [runs, *message]
    nbytes = crc = 0
    for piece in pieces:
        nbytes += len(piece)
        crc = crc32(piece, crc)
    padding = bytes(-nbytes % ALIGNMENT)
    if padding:  # pragma: no cover - Arrow pads to 8 by itself; the format does not rely on it
        pieces.append(padding)
        nbytes += len(padding)
        crc = crc32(padding, crc)
    if nbytes > FRAME_BYTES_MAX:
        raise LimitExceeded(f"{nbytes} bytes in one group; a frame holds {FRAME_BYTES_MAX}")
    return Encoded(count, pieces, nbytes, len(runs), crc, envelopes, replaced + changed)


Written = tuple[int, list[Any], int, int]
"""A record batch: its columns (a sum of bits), Arrow's message in pieces, how many envelopes it
holds, and how many texts were cleaned.
"""


def _listed(gathered: dict[str, Stretches], count: int) -> Written | None:
    """Return the columns as :func:`.ipc_message` writes them; None if Arrow has to.

    The larger a column is, the less it matters who writes it, and packed ones are not copied by
    Arrow.
    """
    columns: dict[int, Sequence[Any]] = {}
    envelopes = 0
    for name, stretches in gathered.items():
        values = stretches[0]
        if len(stretches) > 1 or type(values) is not list:
            return None
        bit = _BITS[name]
        if name == "message_id":
            some = next((value for value in values if value is not None), None)
            bit = MESSAGE_ID_TEXT if isinstance(some, str) else MESSAGE_ID_INTEGER
        elif name == "envelope":
            envelopes = count - values.count(None)
        columns[bit] = values
    if not columns:
        return 0, [], 0, 0
    message = ipc_message(count, columns)
    return None if message is None else (sum(columns), message, envelopes, 0)


def _packed(gathered: dict[str, Stretches]) -> Written:
    columns = replaced = envelopes = 0
    arrays: list[pa.Array] = []
    for name, stretches in gathered.items():
        bit, changed = _BITS[name], 0
        if name == "message_id":
            bit, column, changed = _message_ids(stretches)
        elif name == "destination":
            column, changed = _texts(_merged(stretches))
        elif name == "fields":
            column, changed = _all_fields(stretches)
        else:
            kind = TYPES[bit]
            column = _joined([_array(some, kind) for some in stretches], kind)
        if name == "envelope":
            envelopes = len(column) - column.null_count
        columns |= bit
        arrays.append(column)
        replaced += changed
    return columns, _message(columns, arrays), envelopes, replaced


class _Pieces:
    """A file to Arrow that keeps the buffers written to it, without a copy."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def write(self, piece: Any) -> int:
        self.pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Arrow asks for it."""

    def taken(self) -> list[Any]:
        pieces, self.pieces = self.pieces, []
        return pieces


class _Writers(threading.local):
    """Arrow's writers by columns, each thread's own: to make one costs as much as a small frame."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[pa.ipc.RecordBatchStreamWriter, _Pieces]] = {}

    def of(self, columns: int) -> tuple[pa.ipc.RecordBatchStreamWriter, _Pieces]:
        if columns not in self._known:
            schema, pieces = stored_schema(columns), _Pieces()
            writer = pa.ipc.new_stream(pieces, schema)
            # The schema comes out with the first batch, and is not wanted.
            writer.write_batch(empty(schema))
            self._known[columns] = writer, pieces
        return self._known[columns]


_writers = _Writers()


def _message(columns: int, arrays: list[pa.Array]) -> list[Any]:
    writer, pieces = _writers.of(columns)
    pieces.taken()  # what the first use, or an error, left behind
    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=stored_schema(columns)))
    return pieces.taken()


def _whole(array: Any) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        raise LimitExceeded(f"{array.nbytes} bytes in one group; a frame holds {FRAME_BYTES_MAX}")
    return array


# -- reading --------------------------------------------------------------------------------------


@lru_cache(ORIGINS_REMEMBERED)
def _origins(text: bytes) -> list[list[str | None]]:
    origins: list[list[str | None]] = json.loads(text)
    if not all(len(origin) == ORIGIN_VALUES for origin in origins):
        raise ValueError("an origin does not have its five values")
    return origins


def received_at(head: memoryview, place: int) -> int | None:
    """Return when the message at ``place`` of a frame was received, by its runs; None if they are
    damaged.

    In µs since 1970 UTC.
    """
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
    columns: int
    rows: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def arrays(self) -> dict[int, pa.Array]:
        if not self.columns:
            return {}
        whole = self.batches[0] if len(self.batches) == 1 else pa.concat_batches(self.batches)
        bits = [bit for bit, _, _ in STORED if self.columns & bit]
        return dict(zip(bits, whole.columns, strict=True))


@dataclass(slots=True)
class Assembly:
    """Frames that become one record batch of the table.

    ``add`` frames (or parts of them) in order, then call ``finish``.
    """

    gateway: str
    rows: int = 0
    nbytes: int = 0
    _spans: list[tuple[int, int]] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _run_origins: list[list[str | None]] = field(default_factory=list)
    # Neighbouring frames with the same columns: the columns, all rows, the record batches.
    _parts: list[_Part] = field(default_factory=list)

    def add(self, payload: memoryview, runs: int, first: int, count: int, lo: int, hi: int) -> None:
        """Add the messages ``lo`` ≤ offset < ``hi`` of a frame with ``count`` from ``first`` on.

        ``payload`` was checked against its checksum.  Raises QueueCorrupt if it is nothing this
        format version can mean all the same.
        """
        try:
            columns, times, counts, origins = self._head(payload[:runs])
            body = None
            if columns:
                schema = stored_schema(columns)
                body = pa.ipc.read_record_batch(pa.py_buffer(payload[runs:]), schema)
        except Exception as error:  # nonsense is met by struct, json and Arrow, each in its way
            raise QueueCorrupt(f"the record at offset {first} makes no sense: {error}") from error
        if sum(counts) != count or (body is not None and body.num_rows != count):
            raise QueueCorrupt(f"the record at offset {first} does not hold {count} messages")
        if body is not None and columns & ENVELOPE:
            columns, body = _without_envelopes(columns, body)
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
        if not self._parts or self._parts[-1].columns != columns:
            self._parts.append(_Part(columns))
        part = self._parts[-1]
        part.rows += hi - lo
        if body is not None:
            part.batches.append(body if hi - lo == count else body.slice(lo - first, hi - lo))

    @staticmethod
    def _head(
        head: memoryview,
    ) -> tuple[int, Sequence[int], Sequence[int], Iterable[list[str | None]]]:
        columns, runs, text, _ = RUNS.unpack_from(head)
        if columns & ~KNOWN_COLUMNS:
            raise ValueError(f"unknown columns {columns:#x}")
        at = RUNS.size
        times = struct.unpack_from(f"<{runs}q", head, at)
        counts = struct.unpack_from(f"<{runs}I", head, at + 8 * runs)
        indices = struct.unpack_from(f"<{runs}I", head, at + 12 * runs)
        at += 16 * runs
        origins = _origins(bytes(head[at : at + text]))
        return columns, times, counts, [origins[index] for index in indices]

    def finish(self) -> pa.RecordBatch:
        parts = [(part.rows, part.arrays()) for part in self._parts]
        protocol, kind, peer, session, client_id = (
            zip(*self._run_origins, strict=True) if self._run_origins else ((),) * ORIGIN_VALUES
        )
        columns = [
            pa.repeat(scalar_of(self.gateway, TEXT), self.rows),
            _joined([pa.arange(lo, hi) for lo, hi in self._spans], pa.int64()),
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
        self.rows = self.nbytes = 0
        for gathered in (self._spans, self._times, self._ends, self._run_origins, self._parts):
            gathered.clear()
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _expanded(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if len(values) == 1:
            return pa.repeat(scalar_of(values[0], kind), self.rows)
        children = [array_of(self._ends, pa.int32()), array_of(values, kind)]
        runs = pa.RunEndEncodedArray.from_buffers(
            pa.run_end_encoded(pa.int32(), kind), self.rows, [None], 0, children=children
        )
        return compute().run_end_decode(runs)


def _without_envelopes(columns: int, body: pa.RecordBatch) -> tuple[int, pa.RecordBatch | None]:
    columns &= ~ENVELOPE
    if not columns:
        return columns, None
    return columns, pa.RecordBatch.from_arrays(body.columns[:-1], schema=stored_schema(columns))


_FALSE = scalar_of(False, pa.bool_())

_Arrays = Sequence[tuple[int, dict[int, pa.Array]]]
"""These are the rows and the stored columns (by their bits) of each part."""


def _stored_column(parts: _Arrays, bit: int) -> pa.Array:
    kind = TYPES[bit]
    return _joined(
        [arrays[bit] if bit in arrays else pa.nulls(rows, kind) for rows, arrays in parts], kind
    )


def _message_id_column(parts: _Arrays) -> pa.Array:
    ids = []
    for rows, arrays in parts:
        if MESSAGE_ID_INTEGER in arrays:
            ids.append(arrays[MESSAGE_ID_INTEGER].cast(TEXT))
        else:
            ids.append(_stored_column([(rows, arrays)], MESSAGE_ID_TEXT))
    return _joined(ids, TEXT)


def _joined(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)
