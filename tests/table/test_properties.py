"""Which tables this package makes, and which changes of a table stop its writers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.tools.tables import TABLE_SCHEMA
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.table.actions import Metadata, ProtocolVersions
from twisted_msgproto.table.checkpoint import retention_seconds
from twisted_msgproto.table.properties import (
    LOG_RETENTION_HOURS,
    incompatible,
    metadata_of,
    unknown_features,
)


def of(
    schema: pa.Schema = TABLE_SCHEMA, by: tuple[str, ...] = ("day",), name: str = "t"
) -> Metadata:
    return metadata_of(name, schema, by)


def with_field(name: str, field: pa.Field) -> pa.Schema:
    return TABLE_SCHEMA.set(TABLE_SCHEMA.get_field_index(name), field)


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (of(), ""),
        (of(TABLE_SCHEMA.append(pa.field("more", pa.string()))), ""),
        (of(name="u"), "it is another table, u"),
        (of(by=("protocol", "day")), "it is partitioned by protocol, day now"),
        (of(by=()), "it is partitioned by nothing now"),
        (of(TABLE_SCHEMA.remove(1)), "its column 'offset' is gone"),
        (
            of(with_field("peer", pa.field("peer", pa.int64()))),
            "its column 'peer' has another type",
        ),
        (
            of(with_field("peer", pa.field("peer", pa.string(), nullable=False))),
            "its column 'peer' must not be null now",
        ),
        (
            of(TABLE_SCHEMA.append(pa.field("more", pa.string(), nullable=False))),
            "its new column 'more' must not be null",
        ),
    ],
)
def test_files_written_before_fit_or_it_is_said_why_not(theirs: Metadata, reason: str) -> None:
    assert incompatible(of(), theirs) == reason


@pytest.mark.parametrize(
    ("protocol", "unknown"),
    [
        (ProtocolVersions(1, 2), []),
        (ProtocolVersions(1, 7, writer_features=frozenset({"appendOnly"})), ["writer version 7"]),
        (ProtocolVersions(2, 5), ["writer version 5"]),
        (
            ProtocolVersions(3, 7, frozenset({"deletionVectors"}), frozenset({"rowTracking"})),
            ["deletionVectors", "rowTracking"],
        ),
    ],
)
def test_what_a_newer_table_needs_is_named(protocol: ProtocolVersions, unknown: list[str]) -> None:
    found = unknown_features(protocol)
    assert [any(text in one for one in found) for text in unknown] == [True] * len(unknown)
    assert bool(found) == bool(unknown)


def test_a_table_which_cannot_be_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match="no column 'hour'"):
        of(by=("day", "hour", "minute"))
    with pytest.raises(ConfigurationError, match="cannot hold this schema"):
        of(pa.schema([pa.field("day", pa.date32()), pa.field("u", pa.float16())]))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 6 hours", 6 * 3600),
        ("interval 2 days", 2 * 86_400),
        ("interval 1 week", 604_800),
        ("interval 90 seconds", 90),
        ("interval 5 minutes", 300),
        ("for ever", LOG_RETENTION_HOURS * 3600),
    ],
)
def test_how_long_a_log_is_kept_is_read_as_delta_writes_it(text: str, seconds: float) -> None:
    assert retention_seconds({"delta.logRetentionDuration": text}) == seconds
    assert retention_seconds({}) == LOG_RETENTION_HOURS * 3600
