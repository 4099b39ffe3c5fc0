"""Which rows were erased from a table, exactly: nothing lands them again, whatever is set back.

``msgproto-erased:NAME`` is how many rows ``_bridge/erased/NAME.parquet`` has as ranges of offsets
(0: it does not count any more); the file is durable before the version that names it.

A version of another program may take rows out and change them, but it must not add any: the keys of
what it adds are keys of what it removes, each once, as the files themselves have them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from shlex import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..core.errors import RewindNeeded, TableError
from ..queue.damage import Range, merged
from . import plan
from .actions import Commit, DataFile
from .delta_table import Table
from .row_offsets import Offsets, covered, has_keys, read_offsets, size, without
from .storage import LocalStorage, Storage, one_line, told

PREFIX = "msgproto-erased:"
FOLDER = "_bridge/erased"

Erased = Mapping[str, list[Range]]  # of offsets, in order, for each gateway

TAKEN_BACK = frozenset({"RESTORE", "FSCK", "REPAIR"})
"""These operations change what the table holds, whatever they say they added and removed."""


def path_of(name: str) -> str:
    return f"{FOLDER}/{name}.parquet"


def names(transactions: Mapping[str, int]) -> list[str]:
    return [
        name.removeprefix(PREFIX)
        for name, rows in transactions.items()
        if name.startswith(PREFIX) and rows
    ]


def write(storage: Storage, name: str, erased: Erased) -> dict[str, int]:
    rows = [(gateway, lo, hi) for gateway, parts in sorted(erased.items()) for lo, hi in parts]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]
    kinds = (pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays, ["gateway", "lo", "hi"]), sink, compression="zstd")
    put(storage, path_of(name), sink.getvalue().to_pybytes())
    return {PREFIX + name: sum(hi - lo for _, lo, hi in rows)}


def put(storage: Storage, path: str, data: bytes) -> None:
    """Make a durable file of notes, before the version that names it."""
    with told(f"cannot write {path} of {storage.location}"):
        if isinstance(storage, LocalStorage):
            storage.make_folder(path)
        storage.put(path, data)


class Notes:
    """Reads what is noted in a table; each file once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, Erased] = {}
        self._united: tuple[list[str], Erased] = [], {}

    def of(self, transactions: Mapping[str, int]) -> Erased:
        wanted = names(transactions)
        if wanted != self._united[0]:
            for name in wanted:
                if name not in self._read:
                    self._read[name] = _read(self._storage, name)
            self._united = wanted, united(self._read[name] for name in wanted)
        return self._united[1]


def _read(storage: Storage, name: str) -> Erased:
    path = path_of(name)
    try:
        with storage.filesystem().open_input_file(path) as source:
            rows = pq.ParquetFile(source).read()
    except (OSError, pa.ArrowException) as error:
        raise TableError(
            f"{path} of {storage.location} says which rows were erased, and cannot be read: "
            f"{one_line(error)}; put it back from a copy of the table's folder"
        ) from error
    found: dict[str, list[Range]] = {}
    for gateway, lo, hi in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(gateway, []).append((lo, hi))
    return found


def united(parts: Iterable[Erased]) -> dict[str, list[Range]]:
    found: dict[str, list[Range]] = {}
    for part in parts:
        for gateway, ranges in part.items():
            found.setdefault(gateway, []).extend(ranges)
    return {gateway: merged(ranges) for gateway, ranges in found.items()}


def instead(
    storage: Storage, transactions: Mapping[str, int], erased: Erased, *others: str
) -> dict[str, int]:
    """Return notes with which ``erased`` is all that counts; ``others`` are settled by it."""
    old = {PREFIX + name: 0 for name in (*names(transactions), *others)}
    return old | (write(storage, uuid.uuid4().hex, erased) if any(erased.values()) else {})


def hidden(batch: plan.Plan, erased: Erased) -> plan.Plan:
    if not erased:
        return batch
    return replace(batch, tasks=[[_hidden(part, erased) for part in task] for task in batch.tasks])


def _hidden(part: plan.Range, erased: Erased) -> plan.Range:
    rows = [(part.lo, part.hi)]
    return replace(part, erased=tuple(without(rows, without(rows, erased.get(part.gateway, [])))))


def among(rows: pa.Table, erased: Erased) -> pa.ChunkedArray:
    gateways, offsets = rows.column("gateway").cast(pa.string()), rows.column("offset")
    found = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for gateway, parts in erased.items():
        if parts:
            mine = pc.and_(pc.equal(gateways, gateway), covered(offsets, parts))
            found = pc.or_(found, pc.fill_null(mine, False))
    return found


# -- other programs --------------------------------------------------------------------------------


def name_of(commit: Commit) -> str:
    """Return the name of a note about another's version, the same for all who make it."""
    return f"{commit.version:020d}-{commit.timestamp}"


def erased_by(table: Table, commit: Commit) -> dict[str, list[Range]]:
    """Return what another program's version took out; raise RewindNeeded if it did more."""
    storage = table.storage
    if commit.run is not None or not commit.data_change:
        return {}
    words = set(commit.operation.upper().replace("-", " ").split())
    if words & TAKEN_BACK or "overwrite" in str(commit.parameters.get("mode", "")).lower():
        raise _refused(storage, commit, "changed rows which the bridge had landed")
    if not has_keys(table):
        if commit.removed:
            raise _refused(storage, commit, "changed rows, and nobody can tell which")
        return {}
    removed = _keys(storage, commit, [DataFile(path, 0, {}) for path in commit.removed])
    added = _keys(storage, commit, commit.added)
    for gateway, coverage in added.gateways.items():
        before = removed.gateways.get(gateway)
        strange = without(coverage.ranges(), before.ranges() if before else [])
        if again := [*strange, *coverage.twice()]:
            raise _refused(
                storage, commit, f"added rows of gateway {gateway} at offset {min(again)[0]}"
            )
    found = {}
    for gateway, coverage in removed.gateways.items():
        after = added.gateways.get(gateway)
        if gone := without(coverage.ranges(), after.ranges() if after else []):
            found[gateway] = gone
    return found


def _keys(storage: Storage, commit: Commit, files: Iterable[DataFile]) -> Offsets:
    with told(f"cannot read {storage.location}"):
        try:
            sized = [replace(one, size=one.size or storage.size(one.path)) for one in files]
        except FileNotFoundError:
            raise _refused(storage, commit, "took out files which are gone already") from None
    found = read_offsets(storage, sized)
    if found.lost:
        path, reason = min(found.lost.items())
        raise _refused(storage, commit, f"names the file {path}: {reason}")
    return found


def _refused(storage: Storage, commit: Commit, what: str) -> RewindNeeded:
    return RewindNeeded(
        f"version {commit.version} of {storage.location} ({commit.operation or 'unknown'}, by "
        f"another program) {what}; {rewind(storage.location)}"
    )


def rewind(location: str) -> str:
    return (
        f"'msgproto table rewind {quote(location)} --queue QUEUE' sets each gateway's place to "
        "what the table's rows prove, then start the bridge again"
    )


def rows_of(erased: Erased) -> int:
    return sum(size(parts) for parts in erased.values())
