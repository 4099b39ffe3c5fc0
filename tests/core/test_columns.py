"""Messages as columns: lists, packed columns, and loops that also have a compiled form."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tools.byte_streams import packed_frames, packed_maps
from tests.tools.byte_streams import packed_rows as rows
from twisted_msgproto import IMessageSink, Message, MessageBatch
from twisted_msgproto.core import packed
from twisted_msgproto.core.errors import shown
from twisted_msgproto.core.packed import (
    Packed,
    PackedNumbers,
    compiled,
    joined,
    kept_packed,
)
from twisted_msgproto.lumberjack.wire import frames


def test_a_batch_gives_a_view_of_each_row():
    batch = MessageBatch(
        "umq", "call", 7, "peer", "s", "me", 2, 3, message_id=["a", "b"], body=[b"1", b"2"]
    )
    first, second = batch
    assert first == Message(
        "umq", "call", 7, "peer", "s", "me", message_id="a", body=b"1", truncated=False
    )
    assert second.body == b"2"
    assert len(batch) == 2
    assert [first, second] == [batch.message(0), batch.message(1)]


def test_a_view_of_a_packed_batch_has_the_types_which_any_other_has():
    numbers, bodies = packed_frames([7, 8], [b"a", b""])
    maps = packed_maps([{"a": "b"}, {}])
    batch = MessageBatch("p", "k", 0, count=2, message_id=numbers, fields=maps, body=bodies)
    expected = [
        Message("p", "k", 0, message_id=7, fields={"a": "b"}, body=b"a"),
        Message("p", "k", 0, message_id=8, fields={}, body=b""),
    ]
    assert list(batch) == expected == [batch.message(0), batch.message(1)]
    assert [type(value) for value in (expected[0].fields, expected[0].body)] == [dict, bytes]


@pytest.mark.parametrize("body", [[b"1"], [b"1", b"2", b"3"]])
def test_a_column_of_another_length_is_a_programmer_s_fault(body):
    batch = MessageBatch("p", "k", 0, count=2, message_id=[1, 2], body=body)
    with pytest.raises(ValueError, match=r"body has . values for 2 messages"):
        list(batch)


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_outside_of_the_batch_is_an_index_error(row):
    with pytest.raises(IndexError, match="of a batch of 1"):
        MessageBatch("p", "k", 0, count=1).message(row)


def test_the_sink_interface_is_at_the_top_and_nothing_else_appears_by_magic():
    import twisted_msgproto

    assert IMessageSink.getName() == "IMessageSink"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = twisted_msgproto.nothing


def test_what_a_peer_sent_is_escaped_and_cut_for_the_log():
    assert shown(b"a\nb") == "b'a\\nb'"
    assert len(shown("x" * 10_000)) == 200
    assert [shown("x" * octets, 10) for octets in (8, 9)] == ["'xxxxxxxx'", "'xxxxxxxx…"]
    assert shown("x" * 10_000).endswith("…")


def test_a_batch_of_nothing_has_nothing_and_messages_need_no_value():
    batch = MessageBatch("", "", 0)
    assert (batch.count, batch.nbytes, batch.weight) == (0, 0, 0)
    assert list(MessageBatch("p", "k", 0, count=2)) == [Message("p", "k", 0)] * 2


# ── packed columns ──────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (rows([b"x"] * 64), True),
        (rows([b"x"] * (63)), False),
        ([b"x"] * 64, False),
        (None, False),
    ],
)
def test_only_long_packed_columns_stay_apart(values: Sequence[bytes] | None, kept: bool) -> None:
    assert kept_packed(values) is kept


def test_joined_rows_keep_their_order_and_hold_nothing_else() -> None:
    parts = [rows([b"a", b""], b"before it"), rows([]), rows([b"bcd"] * 3, b"?")]
    whole = joined(parts)
    assert whole == [b"a", b"", b"bcd", b"bcd", b"bcd"]
    assert whole.nbytes == b"abcdbcdbcd"


# ── loops which are also there in a compiled form ───────────────────────────────────────────────


needs_compiled = pytest.mark.skipif(
    not packed.COMPILED,
    reason="the compiled loops were not built: pip install -e . with a C compiler at hand",
)
FORMS = [
    pytest.param("python", id="python"),
    pytest.param("compiled", id="compiled", marks=needs_compiled),
]


def loop(name: str, form: str) -> Any:
    return getattr(packed, f"{name}_{form}")


# ── which form is used ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("left", "used"), [(None, False), (2, False), (3, True)])
def test_a_compiled_form_of_another_version_is_not_used(
    left: int | None, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may be left in the tree where an update could not be compiled."""
    module = ModuleType("left")
    if left is not None:
        module.FORM = left  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "twisted_msgproto.core._packed", module)
    assert compiled("twisted_msgproto.core._packed", 3) is (module if used else None)


@pytest.mark.parametrize(
    ("source", "form"), [("core/_packed.c", packed.FORM), ("lumberjack/_scan.c", frames.FORM)]
)
def test_both_forms_have_the_same_number(source: str, form: int) -> None:
    """With another number the compiled form is never used, and what tests it is skipped."""
    text = (Path(packed.__file__).parents[1] / source).read_text()
    assert f"enum {{ FORM = {form} }};" in text


def test_the_columns_use_the_compiled_form_where_there_is_one() -> None:
    form = "compiled" if packed.COMPILED else "python"
    assert packed.shift is loop("shift", form)
    assert packed.spans is loop("spans", form)


# ── spans ───────────────────────────────────────────────────────────────────────────────────────


class Bytes(bytes):
    """Is bytes of another name, as a programmer may give."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("pieces", "sizes"),
    [
        ([b"ab", b"", b"cde"], [2, 0, 3]),
        ([], []),
        ((b"a", b"bc"), [1, 2]),
        ([b"a", bytearray(b"bc"), memoryview(b"d"), Bytes(b"ef")], [1, 2, 1, 2]),
        ([b"a", None], None),
        (["a"], None),
        ([7], None),
        (7, None),
        (None, None),
        ([b"a", memoryview(array("i", [1, 2]))], None),
    ],
)
def test_spans_are_the_bounds_of_the_pieces_and_their_bytes(
    form: str, pieces: Any, sizes: list[int] | None
) -> None:
    if sizes is None:
        with pytest.raises(TypeError):
            loop("spans", form)(pieces)
    else:
        bounds = array("i", accumulate(sizes, initial=0)).tobytes()
        assert loop("spans", form)(pieces) == (bounds, b"".join(pieces))


@pytest.mark.parametrize("form", FORMS)
def test_spans_refuse_what_is_beyond_31_bits(form: str) -> None:
    half = bytes(1 << 30)  # nobody reads it: no memory is taken for it
    with pytest.raises(OverflowError):
        loop("spans", form)([half, half])


@needs_compiled
def test_both_forms_say_the_same_of_any_pieces() -> None:
    source = random.Random(11)
    for _ in range(300):
        pieces = [source.randbytes(source.randrange(40)) for _ in range(source.randrange(99))]
        assert loop("spans", "compiled")(pieces) == loop("spans", "python")(pieces)


# ── shift ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
def test_shift_moves_each_bound(form: str) -> None:
    shift = loop("shift", form)
    assert array("i", shift(array("i", [5, 5, 9]), -5)) == array("i", [0, 0, 4])
    assert array("i", shift(array("i", [0]), 2**31 - 1)) == array("i", [2**31 - 1])
    assert shift(array("i"), 7) == b""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", [2**31 - 1, -(2**31) - 2, 2**62])
def test_shift_refuses_what_is_beyond_31_bits(form: str, by: int) -> None:
    with pytest.raises(OverflowError):
        loop("shift", form)(array("i", [1]), by)


@needs_compiled
def test_both_forms_say_the_same_of_any_bounds() -> None:
    source = random.Random(7)
    for _ in range(300):
        bounds = array("i", [source.getrandbits(20) for _ in range(source.randrange(99))])
        by = source.randrange(-(1 << 20), 1 << 20)
        assert loop("shift", "compiled")(bounds, by) == loop("shift", "python")(bounds, by)


@needs_compiled
def test_bounds_in_a_buffer_which_is_not_aligned_are_read_all_the_same() -> None:
    bounds = memoryview(b"?" + array("i", [1, 3, 6]).tobytes())[1:]
    assert array("i", loop("shift", "compiled")(bounds, 1)) == array("i", [2, 4, 7])
    with pytest.raises(TypeError):
        loop("shift", "compiled")("text", 1)
