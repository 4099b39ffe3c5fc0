"""Packed columns: they read like lists, whatever they are packed in."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tools.packing import packed_maps, rows
from twisted_msgproto.core.packed import (
    PACKED_MIN,
    Packed,
    PackedNumbers,
    joined,
    kept_packed,
    listed,
    shift_python,
)

COLUMNS: list[tuple[Packed[Any], list[Any]]] = [
    (rows([b"a", b"", b"ccc"], b"??"), [b"a", b"", b"ccc"]),
    (rows([]), []),
    (PackedNumbers("q", [0, 7, 2**32 - 1]), [0, 7, 2**32 - 1]),
    (PackedNumbers("q"), []),
    (packed_maps([{"a": "1", "b": "é"}, {}, {"a": ""}]), [{"a": "1", "b": "é"}, {}, {"a": ""}]),
    (packed_maps([]), []),
]


@pytest.mark.parametrize(("column", "values"), COLUMNS)
def test_a_packed_column_reads_like_a_list(column: Packed[Any], values: list[Any]) -> None:
    assert len(column) == len(values)
    assert list(column) == column.values() == values
    assert repr(column) == repr(values)
    for place in range(-len(values), len(values)):
        assert column[place] == values[place]
    for places in (slice(None), slice(1, None), slice(None, None, -1), slice(5, 9)):
        assert column[places] == values[places]
    for beyond in (len(values), -len(values) - 1):
        with pytest.raises(IndexError):
            column[beyond]


@pytest.mark.parametrize(("column", "values"), COLUMNS)
def test_a_packed_column_equals_any_sequence_of_the_same_values(
    column: Packed[Any], values: list[Any]
) -> None:
    assert column == values
    assert column == tuple(values)
    assert column == column[:]
    assert column != [*values, 1]
    assert column != 1
    assert column != ""
    assert column != b""


def test_a_packed_column_cannot_be_a_key() -> None:
    """It may be equal to a list, so it has no hash, as lists have none."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(COLUMNS[0][0])


def test_the_shape_of_a_packed_column_says_what_to_write() -> None:
    bare: Packed[int] = Packed()
    for missing in (lambda: len(bare), lambda: bare.value(0)):
        with pytest.raises(NotImplementedError):
            missing()


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (rows([b"x"] * PACKED_MIN), True),
        (rows([b"x"] * (PACKED_MIN - 1)), False),
        ([b"x"] * PACKED_MIN, False),
        (None, False),
    ],
)
def test_only_long_packed_columns_stay_apart(values: Sequence[bytes] | None, kept: bool) -> None:
    assert kept_packed(values) is kept


def test_joined_rows_keep_their_order_and_hold_nothing_else() -> None:
    parts = [rows([b"a", b""], b"before it"), rows([]), rows([b"bcd"] * 3, b"?")]
    whole = joined(parts)
    assert whole == [b"a", b"", b"bcd", b"bcd", b"bcd"]
    assert whole.octets == b"abcdbcdbcd"


def test_rows_alone_stay_as_they_are() -> None:
    some = rows([b"x" * 10], b"before")
    assert joined([some]) is some


def test_a_list_is_added_to_as_it_is_and_anything_else_as_a_copy() -> None:
    values = [1]
    assert listed(values) is values
    assert listed(rows([b"a"])) == [b"a"]
    assert type(listed((1,))) is list


def test_bounds_are_moved_as_far_as_31_bits_go() -> None:
    assert shift_python(array("i", [0, 5]), 3) == array("i", [3, 8]).tobytes()
    with pytest.raises(OverflowError):
        shift_python(array("i", [1]), 2**31 - 1)
