"""What a body means as columns: the rules as a table, kept by the reference and by Arrow's short
cut, and a fuzz that compares both.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.table.column_blocks import Blocks
from twisted_msgproto.table.columns import (
    DEPTH_MAX,
    NOT_JSON,
    NOT_OBJECT,
    NOT_TEXT,
    TOO_DEEP,
    Column,
    Columns,
    columns_of,
)
from twisted_msgproto.table.shape import Shape, shape_of

BAD = "an error"
"""The value is null, and the row's error names the column."""


def micros(text: str) -> int:
    time = dt.datetime.fromisoformat(text)
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


NOON = micros("2026-01-31T12:00:00+00:00")

# The type, a value as it stands in a body, what the column has.
VECTORS: list[tuple[str | dict[str, str], str, Any]] = [
    ("string", '"x"', "x"),
    ("string", '""', ""),
    ("string", '"\\u0000\\ud83d\\ude00\\/"', "\0😀/"),
    ("string", '"\\ud83d"', BAD),
    ("string", '"\\ude00"', BAD),
    ("string", "1", "1"),
    ("string", "-0", "-0"),
    ("string", "1700000000.123456789", "1700000000.123456789"),
    ("string", "1e400", "1e400"),
    ("string", "1.50", "1.50"),
    ("string", "NaN", "NaN"),
    ("string", "true", "true"),
    ("string", "false", "false"),
    ("string", "null", None),
    ("string", "{}", BAD),
    ("string", '["x"]', BAD),
    ("int", "1", 1),
    ("int", '"1"', 1),
    ("int", "-2147483648", -(2**31)),
    ("int", "2147483647", 2**31 - 1),
    ("int", "2147483648", BAD),
    ("int", '"2147483648"', BAD),
    ("int", "-0", 0),
    ("int", '"007"', 7),
    ("int", f'"{"0" * 5000}7"', 7),
    ("int", f'"{"7" * 5000}"', BAD),
    ("int", "1.0", BAD),
    ("int", '"1.0"', BAD),
    ("int", "1e2", BAD),
    ("int", '"0x1F"', BAD),
    ("int", '"+1"', BAD),
    ("int", '" 1"', BAD),
    ("int", '"1\\n"', BAD),
    ("int", '"1_0"', BAD),
    ("int", '"١"', BAD),
    ("int", '""', BAD),
    ("int", "true", BAD),
    ("int", "NaN", BAD),
    ("int", "null", None),
    ("int", "[1]", BAD),
    ("long", "2147483648", 2**31),
    ("long", "9223372036854775807", 2**63 - 1),
    ("long", '"9223372036854775807"', 2**63 - 1),
    ("long", "-9223372036854775808", -(2**63)),
    ("long", "9223372036854775808", BAD),
    ("long", "123456789012345678901234567890", BAD),
    ("double", "1", 1.0),
    ("double", "0.1", 0.1),
    ("double", '"0.1"', 0.1),
    ("double", "1e2", 100.0),
    ("double", '"-1.5E-3"', -0.0015),
    ("double", "1e-400", 0.0),
    ("double", "1e400", BAD),
    ("double", '"1e400"', BAD),
    ("double", "1.8e308", BAD),
    ("double", "9" * 400, BAD),
    ("double", "Infinity", float("inf")),
    ("double", "-Infinity", float("-inf")),
    ("double", '"Infinity"', float("inf")),
    ("double", '"inf"', BAD),
    ("double", '"1."', BAD),
    ("double", '".5"', BAD),
    ("double", '"+1"', BAD),
    ("double", '"0x1p3"', BAD),
    ("double", '"1_0"', BAD),
    ("double", "true", BAD),
    ("double", "null", None),
    ("decimal(10,2)", "1.5", Decimal("1.50")),
    ("decimal(10,2)", '"1.50"', Decimal("1.50")),
    ("decimal(10,2)", "-0.01", Decimal("-0.01")),
    ("decimal(10,2)", "1.500", Decimal("1.50")),
    ("decimal(10,2)", "1.505", BAD),
    ("decimal(10,2)", "1e2", Decimal("100.00")),
    ("decimal(10,2)", "1e-2", Decimal("0.01")),
    ("decimal(10,2)", "1e-999999999", BAD),
    ("decimal(10,2)", "0e-999999999", Decimal("0.00")),
    ("decimal(10,0)", "0.00", Decimal("0")),
    ("decimal(10,2)", "1e999999999", BAD),
    ("decimal(10,2)", f'"1e{"9" * 5000}"', BAD),
    ("decimal(10,2)", "99999999.99", Decimal("99999999.99")),
    ("decimal(10,2)", "100000000", BAD),
    ("decimal(2,2)", "0.25", Decimal("0.25")),
    ("decimal(2,2)", "1", BAD),
    ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
    ("decimal(38,0)", "9" * 39, BAD),
    ("decimal(10,2)", "NaN", BAD),
    ("decimal(10,2)", '".5"', BAD),
    ("boolean", "true", True),
    ("boolean", '"false"', False),
    ("boolean", '"True"', BAD),
    ("boolean", "1", BAD),
    ("boolean", '"yes"', BAD),
    ("boolean", "null", None),
    ("timestamp", '"2026-01-31T12:00:00Z"', NOON),
    ("timestamp", '"2026-01-31 12:00:00"', NOON),
    ("timestamp", '"2026-01-31T13:30:00+01:30"', NOON),
    ("timestamp", '"2026-01-31T10:30:00-0130"', NOON),
    ("timestamp", '"2026-01-31T12:00:00.5Z"', NOON + 500_000),
    ("timestamp", '"2026-01-31T12:00:00.123456789Z"', NOON + 123_456),
    ("timestamp", '"2026-01-31 12:00:00.999999999999+00:00"', NOON + 999_999),
    ("timestamp", '"1969-12-31T23:59:59.9999999Z"', -1),
    ("timestamp", '"0001-01-01T00:00:00Z"', micros("0001-01-01T00:00:00+00:00")),
    ("timestamp", '"9999-12-31T23:59:59.999999Z"', micros("9999-12-31T23:59:59.999999+00:00")),
    ("timestamp", '"2262-04-12T00:00:00Z"', micros("2262-04-12T00:00:00+00:00")),
    ("timestamp", '"0001-01-01T00:00:00+01:00"', BAD),
    ("timestamp", '"9999-12-31T23:59:59-01:00"', BAD),
    ("timestamp", '"0000-01-01T00:00:00Z"', BAD),
    ("timestamp", '"2026-02-30T12:00:00Z"', BAD),
    ("timestamp", '"2026-01-31T24:00:00Z"', BAD),
    ("timestamp", '"2026-01-31T12:00:60Z"', BAD),
    ("timestamp", '"2026-01-31T12:00:00+24:00"', BAD),
    ("timestamp", '"2026-01-31T12:00:00+00:60"', BAD),
    ("timestamp", '"2026-01-31T12:00Z"', BAD),
    ("timestamp", '"2026-01-31"', BAD),
    ("timestamp", '"2026-01-31T12:00:00.Z"', BAD),
    ("timestamp", '"2026-01-31T12:00:00 Z"', BAD),
    ("timestamp", '"n/a"', BAD),
    ("timestamp", "1769860800000", BAD),
    ("timestamp", "null", None),
    ({"type": "timestamp", "format": "epoch_ms"}, "1769860800000", NOON),
    ({"type": "timestamp", "format": "epoch_ms"}, '"1769860800000"', NOON),
    ({"type": "timestamp", "format": "epoch_ms"}, "1769860800000.1239", NOON + 123),
    ({"type": "timestamp", "format": "epoch_s"}, "1769860800", NOON),
    ({"type": "timestamp", "format": "epoch_s"}, "1769860800.123456789", NOON + 123_456),
    ({"type": "timestamp", "format": "epoch_s"}, "1.7698608e9", NOON),
    ({"type": "timestamp", "format": "epoch_s"}, "-0.0000019", -1),
    ({"type": "timestamp", "format": "epoch_s"}, f'"1.{"0" * 9000}1"', 1_000_000),
    ({"type": "timestamp", "format": "epoch_s"}, "1e-999999999", 0),
    ({"type": "timestamp", "format": "epoch_s"}, "1e18", BAD),
    ({"type": "timestamp", "format": "epoch_s"}, "1e999999999", BAD),
    ({"type": "timestamp", "format": "epoch_s"}, "9223372036854775807", BAD),
    ({"type": "timestamp", "format": "epoch_s"}, '"2026-01-31T12:00:00Z"', BAD),
    (
        {"type": "timestamp", "format": "%d/%b/%Y:%H:%M:%S %z"},
        '"31/Jan/2026:13:00:00 +0100"',
        NOON,
    ),
    ({"type": "timestamp", "format": "%d/%b/%Y:%H:%M:%S"}, '"31/Jan/2026:12:00:00"', NOON),
    ({"type": "timestamp", "format": "%d/%b/%Y:%H:%M:%S %z"}, '"31/Foo/2026:13:00:00 +0100"', BAD),
    ("date", '"2026-01-31"', dt.date(2026, 1, 31)),
    ("date", '"0001-01-01"', dt.date(1, 1, 1)),
    ("date", '"0000-01-01"', BAD),
    ("date", '"2026-02-30"', BAD),
    ("date", '"2026-01-31T12:00:00Z"', BAD),
    ("date", '"20260131"', BAD),
    ("date", "20260131", BAD),
    ({"type": "date", "format": "%d.%m.%Y"}, '"31.01.2026"', dt.date(2026, 1, 31)),
    ({"type": "date", "format": "%d.%m.%Y"}, '"31.02.2026"', BAD),
    ("array<string>", '["a",null,"b"]', ["a", None, "b"]),
    ("array<string>", "[]", []),
    ("array<string>", "[1,true]", ["1", "true"]),
    ("array<string>", "[0,-0]", ["0", "-0"]),
    ("array<string>", '["a",["b"]]', BAD),
    ("array<string>", '"a"', BAD),
    ("array<string>", "null", None),
    ("array<int>", '[1,"2"]', [1, 2]),
    ("array<int>", "[1,2.5]", BAD),
    ("array<int>", "[2147483648]", BAD),
    ("array<double>", "[1,1.8e308]", BAD),
    ("array<double>", "[null,-Infinity,1]", [None, float("-inf"), 1.0]),
    ("array<timestamp>", '["2026-01-31T12:00:00Z"]', [NOON]),
    ("array<decimal(4,1)>", "[1.5]", [Decimal("1.5")]),
    ("json", '{"b": [1.50, true, null, "é"]}', '{"b":[1.50,true,null,"é"]}'),
    ("json", '"x"', '"x"'),
    ("json", "null", None),
]


def spec(given: str | dict[str, str]) -> dict[str, Any]:
    return {"path": "a.v", **({"type": given} if isinstance(given, str) else given)}


def by_reference(
    columns: Columns, bodies: Sequence[bytes | None], fields: Sequence[Any] | None = None
) -> tuple[list[list[Any]], list[str | None]]:
    rows = [
        columns.row(body, fields[index] if fields else None) for index, body in enumerate(bodies)
    ]
    return [list(values.values()) for values, _ in rows], [error for _, error in rows]


def by_blocks(
    columns: Columns,
    bodies: Sequence[bytes | None],
    fields: Sequence[Any] | None = None,
    **how: Any,
) -> tuple[list[list[Any]], list[str | None]]:
    pairs = None if fields is None else pa.array(fields, pa.map_(pa.string(), pa.string()))
    done = Blocks(columns, **how).convert(pa.array(bodies, pa.binary()), pairs, len(bodies))
    assert sum(done.counts.values()) == sum(
        error.count("; ") + 1 for error in done.errors.drop_null().to_pylist()
    ), "every error is counted, in one column"
    arrays = [plain(array).to_pylist() for array in done.columns]
    return [list(row) for row in zip(*arrays, strict=True)], done.errors.to_pylist()


def plain(array: pa.Array) -> pa.Array:
    """Times as microseconds: Python's own times do not compare when they are in lists."""
    if array.type == pa.timestamp("us", "UTC"):
        return array.cast(pa.int64())
    if array.type == pa.list_(pa.timestamp("us", "UTC")):
        return array.cast(pa.list_(pa.int64()))
    return array


@pytest.mark.parametrize(
    ("kind", "text", "value"), VECTORS, ids=[f"{k}-{t[:30]}" for k, t, _ in VECTORS]
)
def test_a_value_becomes_what_the_rules_say_alone_and_among_others(
    kind: str | dict[str, str], text: str, value: Any
) -> None:
    columns = columns_of({"v": spec(kind)})
    body = b'{"a": {"v": %s}, "other": "}{"}' % text.encode()
    values, errors = by_reference(columns, [body])
    assert repr(values) == repr([[None if value == BAD else value]])
    assert (errors[0] or "").startswith("v: ") == (value == BAD)
    others = [b'{"a": {"v": null}}', b' {"a":{}}\n', b"{}"]
    for among in ([body], [body, *others], [*others, body], [*others, body, body, *others]):
        expected = by_reference(columns, among)
        assert repr(by_blocks(columns, among)) == repr(expected)
        assert repr(by_blocks(columns, among, short_cut=False)) == repr(expected)


STRUCT = pa.struct([("n", pa.int32()), ("t", pa.string())])
MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "text", "value", "error"),
    [
        (STRUCT, '{"n":"5","t":1}', {"n": 5, "t": "1"}, None),
        (STRUCT, "{}", {"n": None, "t": None}, None),
        (STRUCT, '{"n":"x","t":"y"}', {"n": None, "t": "y"}, 'v.n: "x" is not of type int'),
        (STRUCT, "null", None, None),
        (STRUCT, "[1]", None, "v: [1] is no object"),
        (MAP, '{"a":1,"b":null}', [("a", 1), ("b", None)], None),
        (MAP, '{"a":"x","b":"y"}', None, 'v.a: "x" is not of type long'),
        (MAP, "null", None, None),
        (MAP, "5", None, "v: 5 is no object"),
        (MAP, '{"\\ud800":1}', None, 'v: a name in {"\\ud800":1} is not Unicode'),
        (pa.list_(STRUCT), '[{"n":1},null]', [{"n": 1, "t": None}, None], None),
        (pa.list_(STRUCT), "null", None, None),
        (pa.list_(STRUCT), "{}", None, "v: {} is no array"),
        (pa.float32(), "0.5", 0.5, None),
        (pa.float32(), "Infinity", float("inf"), None),
        (pa.float32(), "1e39", None, "v: 1e39 is too large for float"),
        (pa.int8(), "-128", -128, None),
        (pa.int8(), "128", None, "v: 128 is too large for byte"),
        (pa.int16(), "32768", None, "v: 32768 is too large for short"),
    ],
)
def test_what_sql_asks_for_may_have_members(
    kind: pa.DataType, text: str, value: Any, error: str | None
) -> None:
    columns = Columns((Column("v", kind, ("v",)),))
    body = b'{"v":%s}' % text.encode()
    assert by_reference(columns, [body]) == ([[value]], [error])
    expected = [[value], [None]], [error, None]
    for way in (True, False):
        assert by_blocks(columns, [body, b"{}"], short_cut=way) == expected


def nested(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)


BODIES: list[tuple[bytes | None, str | None]] = [
    (None, None),
    (b"", NOT_JSON),
    (b" ", NOT_JSON),
    (b"null", NOT_OBJECT),
    (b"[1]", NOT_OBJECT),
    (b'"x"', NOT_OBJECT),
    (b"1", NOT_OBJECT),
    (b"{}", None),
    (b' \t\r\n{ "v" : "x" } \n', None),
    (b'{"v":"x"} {"v":"z"}', NOT_JSON),
    (b'{"v":"x"}{"v":"z"}', NOT_JSON),
    (b'{"v":"x"}\n{"v":"z"}', NOT_JSON),
    (b'{"v":"x"}}', NOT_JSON),
    (b'{"v":"x"', NOT_JSON),
    (b'{"v":"x",}', NOT_JSON),
    (b'{"v":"x\ty"}', NOT_JSON),
    (b'{"v":"x\ny"}', NOT_JSON),
    (b'{"v":"x} \\u000a {"}', None),
    (b'{"v":01}', NOT_JSON),
    (b'{"v":+1}', NOT_JSON),
    (b'{"v":1.}', NOT_JSON),
    (b'{"v":Inf}', NOT_JSON),
    (b'{"v":-NaN}', NOT_JSON),
    (b'{"x":[-Inf],"v":"y"}', NOT_JSON),
    (b'{"x":NaN,"v":"level: Info"}', None),
    (b"{'v':'x'}", NOT_JSON),
    (b'{"v":"x"/**/}', NOT_JSON),
    (b'\xef\xbb\xbf{"v":"x"}', NOT_JSON),
    (b'{"v":"\xff"}', NOT_TEXT),
    ('{"v":"x"}'.encode("utf-16"), NOT_TEXT),
    (b'{"v":"x","v":"y"}', None),
    (b'{"x":1,"x":{"y":2}}', None),
    (b'{"\\u0076":"x"}', None),
    (b'{"x":1e400}', None),
    (b'{"x":"\\ud800"}', None),
    (nested(DEPTH_MAX), None),
    (nested(DEPTH_MAX + 1), TOO_DEEP),
    (nested(100_000), TOO_DEEP),
    (b'{"v":"' + b"[" * 1000 + b'"}', None),
]


@pytest.mark.parametrize(("body", "error"), BODIES, ids=[repr(body)[:40] for body, _ in BODIES])
@pytest.mark.parametrize("kind", ["string", "int"])
def test_a_body_has_the_error_that_the_rules_say_wherever_it_stands(
    body: bytes | None, error: str | None, kind: str
) -> None:
    columns = columns_of({"v": {"type": kind}, "doc": {"type": "json"}})
    values, errors = by_reference(columns, [body])
    if error:
        assert (errors[0] or "").split("; ")[0] == error
        assert values[0][0] is None
    elif kind == "string":
        assert errors == [None]
    is_json = body is not None and error in (None, NOT_OBJECT)
    assert values[0][1] == (body.decode() if is_json and body is not None else None)
    good = b'{"v": "1"}'
    for among in ([body], [body, good], [good, body], [None, body, good, b"", good]):
        expected = by_reference(columns, among)
        assert by_blocks(columns, among) == expected
        assert by_blocks(columns, among, short_cut=False) == expected


def test_members_are_found_by_path_and_what_is_no_object_on_the_way_is_null() -> None:
    columns = columns_of(
        {
            "host": {"path": "host.name", "type": "string"},
            "dotted": {"path": ["host.name"], "type": "string"},
            "port": {"path": "host.port", "type": "int", "required": True},
        }
    )
    bodies = [
        b'{"host": {"name": "a", "port": 1}, "host.name": "b"}',
        b'{"host": 5}',
        b'{"host": null}',
        b'{"host": {}, "host": {"name": "c", "port": "2"}}',
        b'{"host": {"port": null}}',
        b"oops",
        None,
    ]
    missing = "port: it is missing"
    expected = (
        [["a", "b", 1], *[[None] * 3] * 2, ["c", None, 2], *[[None] * 3] * 3],
        [None, missing, missing, None, missing, NOT_JSON, missing],
    )
    assert by_reference(columns, bodies) == expected
    assert by_blocks(columns, bodies) == expected
    assert by_blocks(columns, bodies[:1]) == (expected[0][:1], expected[1][:1])


def test_fields_are_texts_and_the_last_of_equal_names_wins() -> None:
    columns = columns_of(
        {
            "user": {"from": "fields", "type": "string"},
            "status": {"from": "fields", "path": "http.status", "type": "int", "required": True},
            "at": {"from": "fields", "type": "timestamp"},
        }
    )
    fields = [
        [("user", "joe"), ("http.status", "200"), ("at", "2026-01-31T12:00:00Z")],
        [("user", "a"), ("user", "b"), ("http.status", "x")],
        [],
        None,
    ]
    expected = (
        [["joe", 200, NOON], ["b", None, None], [None] * 3, [None] * 3],
        [None, 'status: "x" is not of type int', *["status: it is missing"] * 2],
    )
    bodies = [b"oops", None, b"{}", b""]
    assert by_reference(columns, bodies, fields) == expected
    assert by_blocks(columns, bodies, fields) == expected


def test_an_error_names_column_value_and_reason_and_stays_short() -> None:
    columns = columns_of({"n": {"type": "int"}, "t": {"type": "date"}})
    body = b'{"n": "%s", "t": {"a": 1}}' % (b"x" * 1000)
    [error] = by_reference(columns, [body])[1]
    assert error == f'n: "{"x" * 58}… is not of type int; t: {{"a":1}} is an object'


# -- both ways are one ----------------------------------------------------------------------------


KINDS: list[dict[str, Any]] = [
    *({"type": name} for name in ("string", "int", "long", "double", "boolean", "date")),
    *({"type": name} for name in ("timestamp", "decimal(10,2)", "array<string>", "array<long>")),
    *({"type": "timestamp", "format": name} for name in ("epoch_s", "epoch_ms")),
    {"type": "json", "path": "a"},
    {"type": "json"},
]


def random_text(world: random.Random) -> str:
    letters = ['"', "\\", "x", "}", "{", "\n", "é", "\\ud83d", "\\u0041", "1", " ", "-0", "Inf"]
    return '"' + "".join(world.choices(letters, k=world.randrange(4))) + '"'


def random_value(world: random.Random, depth: int = 0) -> str:
    kind = world.randrange(10)
    if kind < 5:
        return world.choice(VECTORS)[1]
    if kind == 5:
        return random_text(world)
    if kind == 6 and depth < 3:
        inner = [random_value(world, depth + 1) for _ in range(world.randrange(3))]
        return f"[{', '.join(inner)}]"
    if kind == 7 and depth < 3:
        return random_object(world, depth + 1)
    return str(world.randrange(-(10 ** world.randrange(1, 20)), 10 ** world.randrange(1, 20)))


def random_object(world: random.Random, depth: int = 0) -> str:
    names = [world.choice("abcd") for _ in range(world.randrange(4))]
    blank = world.choice(["", "", " ", "\n"])
    members = [f'"{name}":{blank}{random_value(world, depth)}' for name in names]
    return "{" + f",{blank}".join(members) + "}"


def random_body(world: random.Random, wild: float) -> bytes | None:
    if world.random() >= wild:
        calm = world.choice(['"1"', "1", "null", '"2026-01-31T12:00:00Z"', '"2026-01-31"'])
        return f'{{"a": {calm}, "b": {{"c": "x", "d": [1, 2]}}, "c": {calm}}}'.encode()
    kind = world.randrange(12)
    if kind == 0:
        return world.choice(BODIES)[0]
    text = random_object(world).encode()
    if kind == 1 and text:
        place = world.randrange(len(text))
        return text[:place] + world.choice([b"", b"\xff", b"}", b"{", b'"', b"\n"]) + text[place:]
    if kind == 2:
        return text + world.choice([b" ", b"\n", b"", b","]) + random_object(world).encode()
    return text


def random_columns(world: random.Random) -> Columns:
    paths = ["a", "b", "c", "b.c", "b.d", "a.b.c", "d"]
    given = {}
    for index in range(world.randrange(1, 5)):
        kind = dict(world.choice(KINDS))
        if kind != {"type": "json"}:
            kind.setdefault("path", world.choice(paths))
        if world.randrange(6) == 0:
            kind["required"] = True
        given[f"c{index}"] = kind
    return columns_of(given)


def test_arrow_says_what_the_reference_says(request: pytest.FixtureRequest) -> None:
    """Raise the number with ``--worlds``; ``--seed`` repeats the fresh half of another run."""
    worlds, seed = request.config.getoption("--worlds"), request.config.getoption("--seed")
    for number in range(worlds):
        world = random.Random(number if seed is None or number % 2 else f"{seed}.{number}")
        columns = random_columns(world)
        blocks, singly = Blocks(columns), Blocks(columns, short_cut=False)
        for _ in range(3):
            wild = world.choice([0.0, 0.02, 0.3, 1.0])
            bodies = [random_body(world, wild) for _ in range(world.randrange(1, 40))]
            expected = by_reference(columns, bodies)
            for way in (blocks, singly):
                done = way.convert(pa.array(bodies, pa.binary()), None, len(bodies))
                arrays = [plain(array).to_pylist() for array in done.columns]
                rows = [list(row) for row in zip(*arrays, strict=True)]
                for body, row, error, *wanted in zip(
                    bodies, rows, done.errors.to_pylist(), *expected, strict=True
                ):
                    assert repr([row, error]) == repr(wanted), (number, columns, body)


# -- what people write ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "names no column"),
        ({"a": {"typ": "int"}}, "did you mean 'type'"),
        ({"a": {}}, "has no type"),
        ({"a": {"type": "integer"}}, "is of type 'integer'; there are string, int"),
        ({"a": {"type": "decimal(39,2)"}}, "1 to 38 digits"),
        ({"a": {"type": "decimal(2,3)"}}, "1 to 38 digits"),
        ({"a": {"type": "array<array<int>>"}}, "there are string"),
        ({"a": {"type": "array<json>"}}, "there are string"),
        ({"a": 5}, "the column 'a' is a table as"),
        ({"a b": {"type": "int"}}, "a name has no blank"),
        ({"a=b": {"type": "int"}}, "a name has no blank"),
        ({"": {"type": "int"}}, "a name has no blank"),
        ({"a\0b": {"type": "int"}}, "a name has no blank"),
        ({"a\x7f": {"type": "int"}}, "a name has no blank"),
        ({"User": {"type": "int"}, "user": {"type": "int"}}, "only in case"),
        ({"Offset": {"type": "int"}}, "the table has one already"),
        ({"_error": {"type": "int"}}, "the table has one already"),
        ({"a": {"type": "int", "path": ""}}, "path is"),
        ({"a": {"type": "int", "path": "a..b"}}, "path is"),
        ({"a": {"type": "int", "path": [1]}}, "path is"),
        ({"a": {"type": "int", "path": 3}}, "path is"),
        ({"a": {"type": "int", "from": "header"}}, 'from is "body" or "fields"'),
        ({"a": {"type": "json", "from": "fields"}}, "fields do not have"),
        ({"a": {"type": "array<int>", "from": "fields"}}, "fields do not have"),
        ({"a": {"type": "int", "format": "epoch_s"}}, "only timestamp and date"),
        ({"a": {"type": "date", "format": "epoch_s"}}, "a format is one of"),
        ({"a": {"type": "timestamp", "format": "%Q"}}, "a format is epoch_ms"),
        ({"a": {"type": "timestamp", "format": "%H:%M"}}, "a format is epoch_ms"),
        ({"a": {"type": "int", "required": 1}}, "required is true or false"),
    ],
)
def test_columns_that_cannot_be_are_refused_in_a_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        columns_of(given)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


A = {"a": {"type": "int"}}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"keep": ["body"]}, "keep is for a table with [table.columns]; others keep all"),
        ({"columns": 5}, "[table.columns] is a table of columns, not 5"),
        ({"columns": A, "keep": "body"}, "keep is a list of protocol, peer, "),
        ({"columns": A, "keep": ["body", "offset"]}, "not ['body', 'offset']"),
        ({"columns": A, "keep": ["kind", "body", "body"]}, "keep has 'body' twice"),
        ({"columns": A, "keep": ["kind"]}, 'partitioned by protocol: keep = ["protocol"]'),
        ({"where": 5}, "where is a table as"),
        ({"where": {"fields": "x"}}, "where names 'fields'; rows are chosen by "),
        ({"where": {"kind": []}}, "where: kind is a text or a list of texts, not []"),
        ({"where": {"kind": ["x", 5]}}, "where: kind is a text or a list of texts, not ['x', 5]"),
        ({"where": {"truncated": "x"}}, "where: truncated is true or false, not 'x'"),
        ({"where": {"kind": ["x", "y", "x"]}}, "where: kind has 'x' twice"),
    ],
)
def test_rows_that_cannot_be_chosen_are_refused_in_a_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(line)):
        shape_of(given, ("day", "protocol"))


def test_a_shape_is_what_was_written() -> None:
    assert shape_of({}, ("day", "protocol")) is shape_of({"where": {}}) is None
    where = shape_of({"where": {"truncated": True, "kind": ["x", "y"]}}, ("day", "protocol"))
    assert where == Shape((("truncated", (True,)), ("kind", ("x", "y"))))
    whole = shape_of({"columns": A, "keep": ["body", "protocol"]}, ("day", "protocol"))
    assert whole is not None and (whole.where, whole.columns) == ((), columns_of(A))
    assert whole.keep == ("protocol", "body"), "in the order of the queue's columns"
