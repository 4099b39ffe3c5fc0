"""MTL's frames: field tables, data headers, control requests and their envelopes."""

import base64
import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pamqp.decode
import pamqp.encode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.mtl.wire import data

# ── field tables ────────────────────────────────────────────────────────────────────────────────

EVERYTHING = {
    "text": "grüße",
    "empty": "",
    "bytes": b"\x00\xff",
    "yes": True,
    "no": False,
    "small": 1,
    "negative": -5,
    "32": 2**31 - 1,
    "64": 2**63 - 1,
    "-64": -(2**63),
    "float": 1.5,
    "decimal": Decimal("-3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "nothing": None,
    "list": [1, "a", [None], {"b": 2}],
    "table": {"inner": {"deep": "x"}},
}

names = st.text(max_size=20)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.none()
    | st.decimals(-(10**6), 10**6, places=3)
    | st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)).map(
        lambda moment: moment.replace(microsecond=0, tzinfo=UTC)
    )
)
tables = st.dictionaries(
    names,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=6,
)


def deep(kind: str, levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "A" else {"x": value}
    return value


@given(tables)
def test_tables_come_back__MT_23(table: dict[str, Any]) -> None:
    if _depth(table) <= data.DEPTH_MAX:
        assert data.decode_table(data.encode_table(table)) == table


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        *((n, 5) for n in (2**31 - 1, -(2**31))),
        *((n, 9) for n in (2**31, -(2**31) - 1, 2**63 - 1, -(2**63))),
        *((n, 6) for n in (Decimal(2**31 - 1), Decimal(1 - 2**31), Decimal("1E-255"))),
        (Decimal("2E3"), 6),
    ],
)
def test_numbers_at_their_ends_come_back__MT_23(value: Any, octets: int) -> None:
    table = data.encode_table({"x": value})
    assert (data.decode_table(table), len(table)) == ({"x": value}, 4 + 2 + octets)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def test_an_independent_library_reads_our_tables__MT_23() -> None:
    assert data.encode_table({}) == bytes(4)
    used, table = pamqp.decode.field_table(data.encode_table(EVERYTHING))
    assert used == len(data.encode_table(EVERYTHING))
    table = {key: bytes(v) if isinstance(v, bytearray) else v for key, v in table.items()}
    assert table == EVERYTHING


def test_we_read_the_tables_of_an_independent_library__MT_23() -> None:
    numbers = {str(n): n for n in (0, 200, -200, 40_000, -40_000, 3_000_000_000, 2**40, -(2**40))}
    theirs = {**EVERYTHING, **numbers, "bytes": bytearray(b"\x00\xff")}
    assert data.decode_table(pamqp.encode.field_table(theirs)) == {**EVERYTHING, **numbers}


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        (b"t\x01", True), (b"b\xff", -1), (b"B\xff", 255), (b"s\xff\xfe", -2), (b"U\xff\xfe", -2),
        (b"u\xff\xfe", 65534), (b"I\xff\xff\xff\xfd", -3), (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l" + b"\xff" * 8, -1), (b"L" + b"\xff" * 8, -1), (b"f?\xc0\0\0", 1.5),
        (b"d?\xf8" + bytes(6), 1.5), (b"D\x02\xff\xff\xff\xff", Decimal("-0.01")),
        (b"D\x01\x12\x34\x56\x78", Decimal("30541989.6")),
        (b"S\0\0\0\x02ab", "ab"), (b"S\0\0\0\x01\xff", "�"), (b"x\0\0\0\x01\xff", b"\xff"),
        (b"T" + bytes(8), datetime(1970, 1, 1, tzinfo=UTC)), (b"T" + b"\xff" * 8, 2**64 - 1),
        (b"V", None), (b"A\0\0\0\x04t\x01t\0", [True, False]), (b"F\0\0\0\x03\x01aV", {"a": None}),
    ],
)  # fmt: skip
def test_every_letter_of_the_deployed_set_is_read__MT_23(octets: bytes, value: object) -> None:
    table = struct.pack(">I", 2 + len(octets)) + b"\x01k" + octets
    assert data.decode_table(table) == {"k": value}


@pytest.mark.parametrize(
    "octets",
    [
        b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\0\0", b"\0\0\0\1\1", b"\0\0\0\2\1k", b"\0\0\0\2\5k",
        b"\0\0\0\3\1kt", b"\0\0\0\4\1kt\2", b"\0\0\0\3\1kZ", b"\0\0\0\4\1kI\0",
        b"\0\0\0\x08\1kS\0\0\0\2a", b"\0\0\0\x07\1kS\xff\xff\xff\xff", b"\0\0\0\3\1\xffV",
        b"\0\0\0\x09\1kF\0\0\0\2\5k", b"\0\0\0\x08\1kA\0\0\0\1I", b"\0\0\0\x08\1kA\0\0\0\1t",
        b"\0\0\0\x05\1kD\0\0", b"\0\0\0\x05\1kT\0\0", b"\0\0\0\x04\1kx\0",
        b"\0\0\0\x0c\1kA\0\0\0\1t\1tt\1",
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused__MT_23__MT_13(octets: bytes) -> None:
    with pytest.raises(data.IllFormedTable):
        data.decode_table(octets)


@pytest.mark.parametrize("kind", ["A", "F"])
def test_tables_have_at_most_8_levels__MT_23(kind: str) -> None:
    assert data.decode_table(data.encode_table({"x": deep(kind, 7)})) == {"x": deep(kind, 7)}
    with pytest.raises(ValueError, match="deeper than 8"):
        data.encode_table({"x": deep(kind, 8)})
    inner = pamqp.encode.field_table({"x": deep(kind, 8)})
    with pytest.raises(data.IllFormedTable, match="deeper than 8"):
        data.decode_table(inner)
    with pytest.raises(data.IllFormedTable, match="deeper than 8"):
        data.with_field(inner, "y", 1)


def test_tables_have_at_most_128_fields() -> None:
    """MT-23: those of inner tables and arrays count too."""
    most = {str(number): number for number in range(128)}
    assert data.decode_table(data.encode_table(most)) == most
    for more in ({**most, "x": 1}, {"x": list(range(128))}, {"x": most}):
        with pytest.raises(ValueError, match="more than 128"):
            data.encode_table(more)
        with pytest.raises(data.IllFormedTable, match="more than 128"):
            data.decode_table(pamqp.encode.field_table(more))


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, Decimal("1E-256"), Decimal("NaN"), Decimal(2**31), Decimal("1E30"),
     datetime(2020, 1, 1), datetime(1969, 12, 31, tzinfo=UTC)],
)  # fmt: skip
def test_what_no_field_can_hold_is_the_callers_fault__MT_23(value: Any) -> None:
    with pytest.raises(ValueError, match=r"no field holds|without its zone"):
        data.encode_table({"x": value})


def test_a_field_that_is_added_may_be_as_deep_as_others__MT_23() -> None:
    value = deep("A", 7)
    assert data.decode_table(data.with_field(data.EMPTY, "y", value)) == {"y": value}
    with pytest.raises(ValueError, match="deeper than 8"):
        data.with_field(data.EMPTY, "y", deep("A", 8))
    deepest = data.encode_table({"x": value})
    assert data.decode_table(data.with_field(deepest, "y", 1)) == {"x": value, "y": 1}


def test_types_without_a_letter_and_long_names_are_the_callers_fault__MT_23() -> None:
    with pytest.raises(TypeError, match="no field holds a object"):
        data.encode_table({"x": object()})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="255 bytes"):
        data.encode_table({"ä" * 128: 1})


def test_of_a_name_which_stands_twice_the_last_value_counts__MT_23() -> None:
    assert data.decode_table(b"\0\0\0\x08\1kt\1\1kt\0") == {"k": False}
    once = data.encode_table({"a": 1})
    assert data.decode_table(data.with_field(once, "a", "2")) == {"a": "2"}
    full = data.encode_table({str(number): None for number in range(128)})
    with pytest.raises(ValueError, match="already"):
        data.with_field(full, "x", 1)


def test_values_which_are_no_text_become_json_text() -> None:
    """MT-23: the ``fields`` column holds texts."""
    texts = data.as_texts(data.encode_table(EVERYTHING))
    assert texts["text"] == "grüße"
    assert texts["yes"] == "true"
    assert texts["nothing"] == "null"
    assert texts["time"] == '"2026-01-02T03:04:05Z"'
    assert base64.b64decode(json.loads(texts["bytes"])) == b"\0\xff"
    assert json.loads(texts["list"]) == EVERYTHING["list"]
    assert json.loads(texts["decimal"]) == -3.14


# ── data headers ────────────────────────────────────────────────────────────────────────────────

HUGE = 2**64 - 1
SPEC = [
    (data.Lease(1, "abc"), "01 0000000000000001 03 616263", b""),
    (data.Response(2, 200), "02 0000000000000002", b"200"),
    (data.Summon(3, "r"), "03 0000000000000003 01 72", b""),
    (data.Dismiss(HUGE, "r"), "04 ffffffffffffffff 01 72", b""),
    (data.Content(5, "r", body=b"x"), "05 0000000000000005 01 72 00000000", b"x"),
    (data.Content(5, ""), "05 0000000000000005 00 00000000", b""),
    (data.Confirm(6, True), "06 0000000000000006 01", b""),
    (data.Reject(7, False, True), "07 0000000000000007 00 01", b""),
    (data.Ping(), "08", b""),
    (data.Pong(), "09", b""),
]


@pytest.mark.parametrize(("command", "header", "body"), SPEC)
def test_headers_are_as_the_text_says(command: data.DataCommand, header: str, body: bytes) -> None:
    """MT-13, MT-14, MT-16 … MT-22"""
    assert data.encode(command) == [bytes.fromhex(header), body]
    assert data.decode(bytes.fromhex(header), body) == command


@pytest.mark.parametrize(("command", "header", "body"), SPEC)
def test_every_cut_and_every_trailing_byte_is_ill_formed(
    command: data.DataCommand, header: str, body: bytes
) -> None:
    """MT-13"""
    octets = bytes.fromhex(header)
    for cut in range(len(octets)):
        with pytest.raises(data.IllFormed):
            data.decode(octets[:cut], body)
    with pytest.raises(data.IllFormed):
        data.decode(octets + b"\0", body)


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        ("03 0000000000000007 04 6e61", b"", "header-length"),
        ("05 0000000000000007 04 6e61", b"x", "header-length"),
        ("00", b"", "type"),
        ("0a", b"", "type"),
        ("ff0000", b"", "type"),
        ("06 0000000000000006 02", b"", "boolean"),
        ("07 0000000000000006 00 ff", b"", "boolean"),
        ("07 0000000000000006 03 01", b"", "boolean"),
        ("03 0000000000000003 01 ff", b"", "string"),
        ("03 0000000000000003 01 00", b"", "string"),
        ("03 0000000000000003 01 7f", b"", "string"),
        ("03 0000000000000003 02 c285", b"", "string"),
        ("05 0000000000000003 01 0a 00000000", b"", "string"),
        ("05 0000000000000003 01 72 00000001", b"", "properties"),
        ("02 0000000000000002", b"", "code"),
        ("02 0000000000000002", b"2000", "code"),
        ("02 0000000000000002", b"2 0", "code"),
    ],
)
def test_ill_formed_commands_say_what_they_are_counted_under(
    header: str, body: bytes, reason: str
) -> None:
    """MT-13, MT-22"""
    with pytest.raises(data.IllFormed) as caught:
        data.decode(bytes.fromhex(header), body)
    assert caught.value.reason == reason


def test_what_no_header_can_hold_is_the_callers_fault__MT_22() -> None:
    for command in (
        data.Summon(-1, "r"), data.Summon(2**64, "r"), data.Summon(1, "ä" * 128),
        data.Summon(1, "a\nb"), data.Lease(1, "\x80"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"64 bits|255 bytes|control character"):
            data.encode(command)
    assert data.decode(*data.encode(data.Summon(1, "ä" * 127 + "b"))).resource == "ä" * 127 + "b"  # type: ignore[union-attr]
