"""Count what a table holds of each gateway.

A file whose statistics name one gateway and one protocol is not opened; of the others three columns
are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..core.errors import TableError
from .actions import DataFile
from .log import Table
from .offsets import KEY, FileLost, check_columns, read_footer, read_group

PROTOCOL = "protocol"
DAY = "day"


@dataclass(slots=True)
class GatewayCounts:
    """What the table holds of one gateway."""

    gateway: str
    landed: int | None = None
    """The offset after the last landed row, as the log has it; None when it has none."""
    begin: int | None = None
    """This is the lowest offset in the table; None without rows."""
    rows: int = 0
    files: int = 0
    protocols: dict[str, int] = field(default_factory=dict)
    days: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What a table holds."""

    location: str
    version: int
    table_id: str
    files: int
    octets: int
    rows: int = 0
    gateways: dict[str, GatewayCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    gateway: str
    protocol: str | None
    lowest: int
    rows: int


def counts(table: Table) -> Counts:
    """Count the rows of every gateway, by protocol and by day.

    Raises:
        TableError: the table or one of its files cannot be read.
    """
    check_columns(table)
    files = table.files()
    octets = sum(file.size for file in files)
    found = Counts(table.location, table.version, table.table_id, len(files), octets)
    for gateway, landed in sorted(table.landed().items()):
        found.gateways[gateway] = GatewayCounts(gateway, landed.offset)
    for file in files:
        _count(found, table, file)
    found.rows = sum(each.rows for each in found.gateways.values())
    found.gateways = dict(sorted(found.gateways.items()))
    return found


def _count(found: Counts, table: Table, file: DataFile) -> None:
    seen = set()
    for part in _parts(table, file):
        each = found.gateways.setdefault(part.gateway, GatewayCounts(part.gateway))
        each.rows += part.rows
        each.begin = part.lowest if each.begin is None else min(each.begin, part.lowest)
        if part.protocol is not None:
            each.protocols[part.protocol] = each.protocols.get(part.protocol, 0) + part.rows
        day = file.partition.get(DAY)
        if day is not None:
            each.days[day] = each.days.get(day, 0) + part.rows
        if part.gateway not in seen:
            seen.add(part.gateway)
            each.files += 1


def _parts(table: Table, file: DataFile) -> list[_Part]:
    has_protocol = PROTOCOL in table.schema.names
    known = _from_statistics(file, has_protocol)
    if known is not None:
        return [known]
    stored = [*KEY, *([PROTOCOL] if has_protocol and PROTOCOL not in table.partition_by else [])]
    try:
        return [
            _Part(
                row["gateway"],
                row.get(PROTOCOL, file.partition.get(PROTOCOL)),
                row["offset_min"],
                row["offset_count"],
            )
            for row in _grouped(table, file, stored)
        ]
    except FileLost as error:
        raise TableError(
            f"{file.path} of {table.location}: {error}; 'msgproto table verify' tells what is "
            "missing with it"
        ) from error


def _from_statistics(file: DataFile, has_protocol: bool) -> _Part | None:
    """Return what the log says of a file's rows; None where that is not enough."""
    try:
        statistics = json.loads(file.statistics)
        low, high = statistics["minValues"], statistics["maxValues"]
        rows, lowest = statistics["numRecords"], low["offset"]
        gateway, protocol = low["gateway"], file.partition.get(PROTOCOL, low.get(PROTOCOL))
    except (ValueError, KeyError, TypeError):
        return None
    one = gateway == high["gateway"] and low.get(PROTOCOL) == high.get(PROTOCOL)
    if not one or not isinstance(lowest, int) or (has_protocol and protocol is None):
        return None
    return _Part(gateway, protocol, lowest, rows)


def _grouped(table: Table, file: DataFile, stored: list[str]) -> Iterator[dict[str, Any]]:
    footer = read_footer(table.storage, file)
    keys = [name for name in stored if name != "offset"]
    parts: list[pa.Table] = []
    for group in range(footer.num_row_groups):
        rows = read_group(table.storage, file, footer, group, stored)
        parts.append(rows.group_by(keys).aggregate([("offset", "min"), ("offset", "count")]))
    if parts:
        whole = pa.concat_tables(parts).group_by(keys)
        summed = whole.aggregate([("offset_min", "min"), ("offset_count", "sum")])
        names = {"offset_min_min": "offset_min", "offset_count_sum": "offset_count"}
        for row in summed.to_pylist():
            yield {names.get(name, name): value for name, value in row.items()}
