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
    """What a bridge has landed in ``directory``, at the moment of each call."""

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

    def duplicates(self) -> list[tuple[str, int, int]]:
        """Return (gateway, offset, times) of the pairs that it has more than once."""
        table = self.read(["gateway", "offset"])
        counted = table.group_by(["gateway", "offset"]).aggregate([([], "count_all")])
        twice = counted.filter(pc.greater(counted.column("count_all"), 1))
        columns = [twice.column(name).to_pylist() for name in ("gateway", "offset", "count_all")]
        return sorted(zip(*columns, strict=True))
