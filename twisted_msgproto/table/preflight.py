"""A start checks before it writes: the table, its log's operations, and each gateway.

What the table says about a gateway is believed only when nothing has happened to the table that
could have made it untrue, and only for the queue whose history it is. What does not fit is one line
that says what happened and what to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from ..core.errors import (
    ConfigurationError,
    QueueMismatch,
    RewindNeeded,
    TableError,
)
from ..queue.lineage import Description, Landed
from . import erased, gaps
from .actions import Commit, Run, Torn
from .delta_table import Table, exists
from .landing import DAY, PARTITION_COLUMNS, TABLE_SCHEMA
from .object_storage import storage_at
from .properties import forgetting
from .row_offsets import KEY, FileLost, has_keys, row_groups
from .shape import BODY, ERROR
from .snapshot import read_version
from .storage import LocalStorage, Storage

CONSUMER_DIGITS = 8

REWIND = "REWIND"

MARKS = (ERROR, BODY)  # columns that a typed table has from its beginning, and no other table


def open_table(
    location: str,
    schema: pa.Schema | None,
    partition_by: Sequence[str] | None,
    storage: Mapping[str, str],
    run: Run,
    *,
    grows: bool = False,
    properties: Mapping[str, str] = MappingProxyType({}),
    say: Callable[[str], object] = str,
) -> Table:
    """Return the table at ``location``, made if there is none, fit to be landed in.

    ``schema`` is what lands (default: the queue's columns and ``day``), ``partition_by`` what was
    asked for (None: any), ``properties`` a new table's. With ``grows`` columns may be missing: see
    :func:`grow`. Repairs are told to ``say`` at once: the next start finds none.
    """
    place = storage_at(location, storage)
    check_place(place)
    wanted = tuple(partition_by) if partition_by is not None else None
    check_partitioning(wanted or (DAY.name,))
    schema = TABLE_SCHEMA if schema is None else schema
    table = Table.open_or_create(
        location, schema, wanted or (DAY.name,), storage, properties, run=run
    )
    for line in table.mended:
        say(line)
    if wanted is not None and table.partition_by != wanted:
        raise ConfigurationError(
            f"the table {table.location} is partitioned by {','.join(table.partition_by)}, not by "
            f"{','.join(wanted)}; leave --partition-by out, or land into a new table"
        )
    if gaps.half_derived(table.transactions):
        raise TableError(
            f"the table {table.location} has only a part of the one that it is made of: run "
            "'msgproto table derive' again, to its end"
        )
    check_schema(table, schema, grows=grows)
    return table


def grow(table: Table, schema: pa.Schema, run: Run, properties: Mapping[str, str]) -> None:
    """Add what the table has not, at the end of a start, as a column does not go any more."""
    table.grow(list(schema), run=run)
    check_schema(table, schema)  # another bridge may have added others of these names
    table.set_properties(properties, run=run)


def is_new(location: str, storage: Mapping[str, str]) -> bool:
    place = storage_at(location, storage)
    check_place(place)
    return not exists(place)


def check_partitioning(partition_by: Sequence[str]) -> None:
    strange = [name for name in partition_by if name not in PARTITION_COLUMNS]
    if strange or len(set(partition_by)) != len(partition_by) or DAY.name not in partition_by:
        raise ConfigurationError(
            f"--partition-by is day or protocol,day, not {','.join(map(str, partition_by))!r}"
        )


def check_place(storage: Storage) -> None:
    """Raise ConfigurationError for a table's place that is no directory or cannot be read."""
    if not isinstance(storage, LocalStorage):
        return
    place = storage.location
    try:
        storage.disk.names(place)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigurationError(f"--table {place} is not a directory") from None
    except OSError as error:
        raise ConfigurationError(f"--table {place} cannot be read: {error.strerror}") from error


def check_schema(table: Table, schema: pa.Schema, *, grows: bool = False) -> None:
    """Raise ConfigurationError unless ``schema`` fits; with ``grows`` columns may be missing."""
    has = {column.name: column for column in table.schema}
    lower = {name.lower(): name for name in has}
    for column in schema:
        if column.name not in has:
            other = lower.get(column.name.lower())
            if other is not None:
                raise ConfigurationError(
                    f"the table {table.location} has a column {other!r}, which differs from "
                    f"{column.name!r} only in case; give the column the table's name"
                )
            if not grows or not column.nullable or column.name in MARKS:
                raise ConfigurationError(
                    f"the table {table.location} has no column {column.name!r}: it is not a table "
                    "of what this bridge lands; choose another location"
                )
        elif _plain(column.type) != _plain(has[column.name].type):
            raise ConfigurationError(
                f"the column {column.name!r} of the table {table.location} is of type "
                f"{has[column.name].type}, not {column.type}; give the new one another name, or "
                "choose another location"
            )
    for name in table.partition_by:
        if name not in schema.names or name not in PARTITION_COLUMNS:
            remedy = "choose another location"
            if name in PARTITION_COLUMNS:
                remedy = f'keep = ["{name}"], or have the function return it'
            raise ConfigurationError(
                f"the table {table.location} is partitioned by {name}, by which this bridge "
                f"does not land: {remedy}"
            )
    for name, column in has.items():
        if name not in schema.names and not column.nullable:
            raise ConfigurationError(
                f"the table {table.location} has a column {name!r} which must not be null and "
                "which this bridge does not land; choose another location"
            )


def _plain(kind: pa.DataType) -> str:
    # One Delta type, which pyarrow may call by several names.
    if pa.types.is_map(kind):
        return f"map<{_plain(kind.key_type)},{_plain(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_plain(kind.value_type)}>"
    if pa.types.is_struct(kind):
        parts = (f"{kind.field(i).name}:{_plain(kind.field(i).type)}" for i in range(len(kind)))
        return f"struct<{','.join(parts)}>"
    return re.sub(r"^large_|_view$", "", str(kind))


# -- the log --------------------------------------------------------------------------------------


def check_operations(table: Table) -> None:
    """Raise RewindNeeded when offsets may not match rows, TableError when they are forgotten."""
    reason = forgetting(table.properties, table.location)
    if reason:
        raise TableError(f"nothing can land in {table.location}: {reason}")
    table.check_features()
    if not table.landed():
        check_no_rows(table)
        return
    for commit in reversed(list(versions_since_landing(table))):
        note_erased(table, commit)


def check_no_rows(table: Table) -> None:
    """Raise TableError when a table without a place of any gateway holds rows of one."""
    if not has_keys(table):
        return
    for _, rows in row_groups(table.storage, table.files(), KEY):
        if not isinstance(rows, FileLost) and (gateways := rows.drop_null()["gateway"]):
            raise TableError(
                f"the table {table.location} holds rows of gateway {gateways[0]}, and its log "
                "does not say how far any gateway has landed: a query may have made it from "
                "another table. The rows would land twice; land in a new table, or in a copy of "
                "the other table's whole folder"
            )


def versions_since_landing(table: Table) -> Iterator[Commit]:
    """Yield the newest version down to the newest that landed rows of a gateway.

    Behind a rewind of some gateways they continue, until every gateway has been set.
    """
    doubtful = set(table.landed())
    for version in range(table.version, -1, -1):
        try:
            commit = read_version(table.storage, version)
        except FileNotFoundError:
            raise RewindNeeded(
                f"the log of {table.location} has no version {version} any more, so what happened "
                "to the table since it was landed last is not known; "
                f"{erased.rewind(table.location)}"
            ) from None
        except (OSError, Torn) as error:
            raise TableError(
                f"version {version} of {table.location} cannot be read: {error}"
            ) from None
        yield commit
        if commit.landed and commit.run is not None:
            doubtful -= commit.landed.keys()
            if commit.operation != REWIND or not doubtful:
                return


def note_erased(table: Table, commit: Commit) -> int:
    name = erased.name_of(commit)
    if table.has(erased.PREFIX + name):
        return 0
    found = erased.erased_by(table, commit)
    if found:
        table.due |= erased.write(table.storage, name, found)
    return erased.rows_of(found)


def not_noted(table: Table) -> dict[str, erased.Erased]:
    """Return what others took out since rows landed, by the note's name, if a start notes it."""
    found: dict[str, erased.Erased] = {}
    with contextlib.suppress(RewindNeeded):
        for commit in versions_since_landing(table):
            name = erased.name_of(commit)
            if commit.run is None and commit.removed and not table.has(erased.PREFIX + name):
                with contextlib.suppress(RewindNeeded):
                    found[name] = erased.erased_by(table, commit)
    return found


def note_others(table: Table, run: Run) -> None:
    """Note what other programs took out in a version of its own: files that prove it will go."""
    others = not_noted(table)
    if others:
        noted = erased.Notes(table.storage).of(table.transactions)
        whole = erased.united([noted, *others.values()])
        notes = erased.instead(table.storage, table.transactions, whole, *others)
        table.replace([], [], run=run, operation="NOTE", notes=notes)


# -- gateways -------------------------------------------------------------------------------------


def consumer_name(table_id: str) -> str:
    return f"spark-{re.sub(r'[^0-9A-Za-z]', '', table_id)[:CONSUMER_DIGITS]}"


def check_gateway(
    location: str, description: Description, landed: Landed | None, *, start_begin: bool
) -> None:
    """Raise QueueMismatch for one that the table does not know and another has trimmed."""
    if landed is None and description.begin > 0 and not start_begin:
        raise QueueMismatch(
            f"the table {location} does not know queue {description.queue_id}, which has trimmed "
            f"its rows below offset {description.begin}: is it the right table? --start begin "
            "lands what the queue still holds"
        )
