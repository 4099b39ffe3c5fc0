"""Write rows of a table's files anew: in another order, or without some of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from ..core.errors import TableError
from .actions import DataFile
from .landing import PartitionFile, Target, make_durable
from .log import Table
from .offsets import read_footer, read_group
from .snapshot import one_line
from .storage import Storage


def target_of(table: Table) -> Target:
    storage = table.storage
    return Target(table.location, dict(storage.options), table.schema, table.partition_by)


def read_rows(storage: Storage, file: DataFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the row groups of a file in the columns of ``schema``; what it does not have is null.

    Raises:
        FileLost: the file is missing or torn.
        TableError: the storage cannot be read.
    """
    footer = read_footer(storage, file)
    for group in range(footer.num_row_groups):
        rows = read_group(storage, file, footer, group)
        columns = [
            rows.column(column.name).cast(column.type)
            if column.name in rows.column_names
            else pa.nulls(rows.num_rows, column.type)
            for column in schema
        ]
        yield pa.Table.from_arrays(columns, schema=schema)


def write_file(
    target: Target,
    storage: Storage,
    partition: Mapping[str, str | None],
    rows: Iterable[pa.Table],
) -> DataFile | None:
    """Write one durable file of a partition that no log names yet, and return it; None if there are
    no rows.

    Raises TableError when the storage refuses; what was written is removed then.
    """
    values = tuple(partition[name] or "" for name in target.partition_by)
    file: PartitionFile | None = None
    try:
        for part in rows:
            if part.num_rows:
                file = file or PartitionFile(target, storage, values)
                file.write(part)
        if file is None:
            return None
        file.close()
        make_durable(storage, [file.path])
        return file.data_file()
    except BaseException as error:
        if file is not None:
            with contextlib.suppress(Exception):
                file.close()
            discard(storage, [file.path])
        if isinstance(error, (OSError, pa.ArrowException)):
            line = one_line(error)
            raise TableError(f"the table {target.location} cannot be written: {line}") from error
        raise


def discard(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files that no log names, as far as that is possible; vacuum does the rest."""
    for path in paths:
        with contextlib.suppress(Exception):
            storage.delete(path)
