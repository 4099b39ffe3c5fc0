"""Read a landed table back without Spark: fast enough to ask it every second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from ..core.disk import OS_DISK, exists

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # it imports pandas

DELTA_LOG = "_delta_log"


class LandedTable:
    """What a bridge has landed in ``directory``, at the moment of each call; nothing before it
    exists.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory: Path = Path(directory)

    def dataset(self) -> ds.Dataset | None:
        if not exists(OS_DISK, str(self.directory / DELTA_LOG)):
            return None
        from deltalake import DeltaTable

        # Arrow's threads would call delta-rs's files while the interpreter ends, and abort it.
        place = fs.SubTreeFileSystem(str(self.directory), fs.LocalFileSystem())
        return DeltaTable(str(self.directory)).to_pyarrow_dataset(filesystem=place)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        dataset = self.dataset()
        if dataset is None:
            from ..queue import SCHEMA

            empty = SCHEMA.empty_table()
            return empty if columns is None else empty.select(list(columns))
        return dataset.to_table(columns=None if columns is None else list(columns))

    def count(self) -> int:
        dataset = self.dataset()
        return 0 if dataset is None else int(dataset.count_rows())

    def counts(self) -> dict[str, int]:
        grouped = self.read(["protocol"]).group_by("protocol").aggregate([([], "count_all")])
        names, counts = grouped.column("protocol"), grouped.column("count_all")
        return dict(sorted(zip(names.to_pylist(), counts.to_pylist(), strict=True)))

    def duplicates(self) -> list[tuple[str, int, int]]:
        return duplicates(self.read(["gateway", "offset"]))

    def offsets(self) -> dict[str, list[tuple[int, int]]]:
        return ranges(self.read(["gateway", "offset"]))


def duplicates(table: pa.Table) -> list[tuple[str, int, int]]:
    """Return (gateway, offset, times) of the pairs that ``table`` holds more than once."""
    counted = table.group_by(["gateway", "offset"]).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted.column("count_all"), 1))
    columns = [twice.column(name).to_pylist() for name in ("gateway", "offset", "count_all")]
    return sorted(zip(*columns, strict=True))


def ranges(table: pa.Table) -> dict[str, list[tuple[int, int]]]:
    """Return per gateway the ranges [lo, hi) of the offsets in ``table``."""
    found: dict[str, list[tuple[int, int]]] = {}
    for gateway in sorted(pc.unique(table.column("gateway")).to_pylist()):
        mine = table.filter(pc.equal(table.column("gateway"), gateway)).column("offset")
        offsets = pc.unique(mine).sort()
        # A range ends where the step to the next offset is more than one.
        steps = pc.subtract(offsets[1:], offsets[:-1])
        breaks = pc.indices_nonzero(pc.greater(steps, 1)).to_pylist()
        firsts = [0, *(index + 1 for index in breaks)]
        lasts = [*breaks, len(offsets) - 1]
        found[gateway] = [
            (offsets[first].as_py(), offsets[last].as_py() + 1)
            for first, last in zip(firsts, lasts, strict=True)
        ]
    return found
