"""Views: bodies and fields as columns, no row lost, retries once."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import messages, write
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.table.columns import NOT_JSON, NOT_OBJECT, NOT_TEXT, TOO_DEEP

pytest.importorskip("pyspark")

from twisted_msgproto.spark import views

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

SECOND = 1_000_000
BODIES: list[bytes | None] = [
    b'{"level": "info", "status": 200, "user": {"id": 7}}',
    b'{"level": "warn", "status": "many"}',
    b"not json at all",
    b"[1, 2]",
    b"\xff\xfe",
    None,
    b'"text"',
    b"null",
    b'{"level": "cut',
    b"",
    b"{}",
]


@pytest.fixture
def bodies(spark: Any, tmp_path: Path) -> Any:
    queue = tmp_path / "bodies"
    write(queue, messages(0, len(BODIES), body=BODIES))
    return spark.read.format("msgproto").option("queue", str(queue)).load()


def column(frame: Any, *names: str) -> list[Any]:
    rows = frame.orderBy("offset").select(*names).collect()
    return [row[0] if len(names) == 1 else tuple(row) for row in rows]


ERRORS = [
    None,
    'status: "many" is not of type int',
    NOT_JSON,
    NOT_OBJECT,
    NOT_TEXT,
    None,
    NOT_OBJECT,
    NOT_OBJECT,
    NOT_JSON,
    NOT_JSON,
    None,
]


def test_json_bodies_become_columns_and_no_row_is_lost(bodies: Any) -> None:
    schema = "level string NOT NULL, status int, user struct<id: bigint NOT NULL> NOT NULL"
    seen = views.json_columns(bodies, schema)
    assert column(seen, "json_error") == ERRORS
    assert column(seen, "level")[:2] == ["info", "warn"]
    assert column(seen, "status")[:2] == [200, None]
    assert column(seen, "user.id")[0] == 7
    assert column(seen, "level")[2:] == [None] * (len(BODIES) - 2)
    assert seen.columns == [*bodies.columns, "level", "status", "user", "json_error"]
    assert seen.count() == len(BODIES)


def test_a_schema_is_inferred_from_the_objects_among_the_bodies(bodies: Any) -> None:
    seen = views.json_columns(bodies, into="json")
    assert sorted(seen.schema["json"].dataType.names) == ["level", "status", "user"]
    assert column(seen, "json.status")[:2] == ["200", "many"]


def test_members_of_any_name_become_columns_that_are_inferred(spark: Any, tmp_path: Path) -> None:
    """A backtick in one body of any sender spoilt the whole view."""
    odd = ["a`b", "`", "a.b", " ", "*", "x y", "\U0001f600", "a[0]", "%"]
    queue = tmp_path / "odd"
    bodies: list[bytes | None] = [json.dumps({name: 7}).encode() for name in odd]
    write(queue, messages(0, len(odd), body=bodies))
    frame = spark.read.format("msgproto").option("queue", str(queue)).load()
    seen = views.json_columns(frame)
    assert set(seen.columns) - {*frame.columns, "json_error"} == {*odd}
    for number, row in enumerate(seen.orderBy("offset").collect()):
        found = row.asDict()
        assert {name for name in odd if found[name] is not None} == {odd[number]}
        assert found["json_error"] is None


@pytest.mark.parametrize(
    ("bodies", "names"),
    [
        ([b'{"_corrupt_record": 1}', b'{"b": 2}'], ["_corrupt_record", "b"]),
        ([b"{}", b"plain"], []),
        ([], []),
        ([b'{"b": {"c": 1}}', b'{"B": {"c": 1}}'], ["B"]),
        (
            ['{"s": 1, "\u017f": 2, "\u03c2": 3, "\u03c3": 4, "i": 5, "\u0131": 6}'.encode()],
            ["i", "s", "\u03c2"],
        ),
        (
            [b'{"a":' * 150 + b"7" + b"}" * 150, b'{"b":%s7%s}' % (b"[" * 150, b"]" * 150)],
            ["a", "b"],
        ),
    ],
)
def test_no_member_of_a_body_spoils_an_inferred_view(
    spark: Any, bodies: list[bytes], names: list[str]
) -> None:
    frame = spark.createDataFrame(list(enumerate(bodies)), "offset long, body binary").coalesce(1)
    seen = views.json_columns(frame)
    assert seen.columns == [*frame.columns, *names, "json_error"]
    assert seen.schema.simpleString().count("a:") in (0, 50)
    assert len(seen.collect()) == len(bodies)
    assert seen.select(*names).count() == len(bodies)


def test_what_json_columns_cannot_make_is_refused_in_one_line(bodies: Any) -> None:
    for name in ("Offset", "off\u017fet"):
        with pytest.raises(ConfigurationError, match=rf'member {name} .* into="json"'):
            views.json_columns(bodies, f"`{name}` int")
    for kind in ("binary", "timestamp_ntz", "map<int, string>", "interval day", "varchar(3)"):
        with pytest.raises(ConfigurationError, match="no column of JSON"):
            views.json_columns(bodies, f"level {kind}")


def test_json_as_variant_takes_any_shape(bodies: Any) -> None:
    seen = views.variant_column(bodies)
    other = {NOT_OBJECT: None, NOT_JSON: views.NO_VARIANT, ERRORS[1]: None}
    assert column(seen, "json_error") == [other.get(error, error) for error in ERRORS]
    taken = seen.selectExpr("offset", "variant_get(json, '$.user.id', 'bigint') AS id")
    assert column(taken, "id") == [7, *[None] * (len(BODIES) - 1)]
    assert column(seen.selectExpr("offset", "variant_get(json, '$[1]', 'int') v"), "v")[3] == 2


NASTY: list[bytes] = [
    b'{"n":1,"n":2}',
    b'{"n":1} {"n":2}',
    b'{"n":1},0] x',
    b'{"n":1700000000.123456789}',
    b'{"n":1e999999999}',
    b'{"n":1e-999999999}',
    b'{"n":%s}' % (b"9" * 5000),
    b'{"n":NaN}',
    b'{"n":"\\ud800"}',
    b'{"n":%s}' % (b'{"a":' * 5000 + b"1" + b"}" * 5000),
    b"[" * 100_000,
    b'{"N":1,"n":3}',
    b'{"%s":1}' % (b"k" * 60_000),
    b'{"\\udc00":1}',
    b'{"":{"":[]}}',
    b'\xef\xbb\xbf{"n":1}',
    b"Infinity",
]


def test_no_body_spoils_a_view_and_value_and_error_are_of_one_mind__RD_02(
    spark: Any, tmp_path: Path
) -> None:
    """RD-02"""
    queue = tmp_path / "nasty"
    write(queue, messages(0, len(NASTY), body=NASTY))
    frame = spark.read.format("msgproto").option("queue", str(queue)).load().cache()
    unlike = NOT_JSON
    texts = views.json_columns(frame, "n string")
    assert column(texts, "n", "json_error") == [
        ("2", None),
        (None, unlike),
        (None, unlike),
        ("1700000000.123456789", None),
        ("1e999999999", None),
        ("1e-999999999", None),
        ("9" * 5000, None),
        ("NaN", None),
        (None, 'n: "\\ud800" is not Unicode: half of a surrogate pair'),
        (None, TOO_DEEP),
        (None, TOO_DEEP),
        ("3", None),
        *[(None, None)] * 3,
        (None, unlike),
        (None, NOT_OBJECT),
    ]
    events = column(views.lumberjack_events(frame), "event", "event_error")
    assert [error for _, error in events] == [
        error
        if number not in (8, 13)
        else "the body has a text that is not Unicode: half of a surrogate pair"
        for number, (_, error) in enumerate(column(texts, "n", "json_error"))
    ]
    assert events[3][0] == {"n": "1700000000.123456789"}
    for event, error in events:
        assert (event is None) != (error is None)
    for value, error in column(
        views.variant_column(frame).selectExpr("offset", "to_json(json)", "json_error"),
        "`to_json(json)`",
        "json_error",
    ):
        assert (value, error) in ((None, views.NO_VARIANT), (value, None))
        assert error or value is not None
    made = views.json_columns(frame, into="json")
    assert "N" in made.schema["json"].dataType.names
    assert made.where("json_error IS NULL").count() == 11


OF_EACH_TYPE = {
    "b tinyint": ("127", 127, "128"),
    "s smallint": ('"-7"', -7, "40000"),
    "f float": ("0.1", 0.10000000149011612, "1e39"),
    "g float": ('"2.5"', 2.5, "3.4028235677973366e38"),
    "h float": ('"Infinity"', float("inf"), '"inf"'),
    "d double": ("1e300", 1e300, "1e400"),
    "m decimal(5, 2)": ("1.5", Decimal("1.50"), "1.555"),
    "t date": ('"2026-01-31"', dt.date(2026, 1, 31), '"2026-02-30"'),
    "o boolean": ("true", True, "1"),
    "fs array<float>": ("[0.5, null]", [0.5, None], "[1e39]"),
    "p map<string, float>": ('{"x": 0.5}', {"x": 0.5}, '{"x": 1e39}'),
    "r struct<f: float>": ('{"f": 0.5}', (0.5,), "5"),
}


def test_a_column_of_each_type_has_its_value_or_an_error(spark: Any, tmp_path: Path) -> None:
    """Bodies of two kinds in turns, and many of one kind, which are read together."""
    names = [kind.partition(" ")[0] for kind in OF_EACH_TYPE]
    for turn in (1, 40):
        texts = [
            ",".join(
                f'"{name}":{row[place]}'
                for name, row in zip(names, OF_EACH_TYPE.values(), strict=True)
            )
            for place in (0, 2)
        ]
        body = [b"{%s}" % texts[n // turn % 2].encode() for n in range(80)]
        write(tmp_path / f"{turn}", messages(0, 80, body=body))
        frame = spark.read.format("msgproto").option("queue", str(tmp_path / f"{turn}")).load()
        seen = views.json_columns(frame, ", ".join(OF_EACH_TYPE))
        for row in seen.select("offset", *names, "json_error").collect():
            good = row.offset // turn % 2 == 0
            for name, (_, value, _) in zip(names, OF_EACH_TYPE.values(), strict=True):
                expected = value if good else None
                assert row[name] == expected, (name, row.json_error)
                assert good or f"{name}: " in row.json_error or f"{name}.x: " in row.json_error
            assert (row.json_error is None) is good


def test_lumberjacks_two_kinds_of_events_have_one_shape(spark: Any, tmp_path: Path) -> None:
    queue = tmp_path / "beats"
    pairs = {"host": "a", "message": "hello"}
    document = {"host": "b", "message": "hi", "tags": [1, 2], "n": 5, "none": None}
    write(
        queue,
        messages(0, 1, kind="data", fields=[pairs], body=None),
        messages(1, 3, body=[json.dumps(document).encode(), b"[1]", b"x"]),
        messages(4, 1, protocol="umq"),
    )
    frame = spark.read.format("msgproto").option("queue", str(queue)).load()
    seen = views.lumberjack_events(frame)
    assert column(seen, "event") == [
        pairs,
        {"host": "b", "message": "hi", "tags": "[1,2]", "n": "5", "none": None},
        None,
        None,
    ]
    assert column(seen, "event_error") == [None, None, NOT_OBJECT, NOT_JSON]
    assert column(seen, "event.host") == ["a", "b", None, None]


@pytest.fixture
def retried(spark: Any, tmp_path: Path) -> Path:
    """Ids 1, 2, 2 (again after 60 s), 1 (again after 2 h), and two bodies without an id."""
    queue = tmp_path / "retried"
    for seconds, session, body in [
        (0, "s1", b'{"id": 1, "t": 5}'),
        (1, "s1", b'{"id": 2}'),
        (61, "s2", b'{"id": 2}'),
        (7200, "s3", b'{"id": 1, "t": 6}'),
        (7201, "s3", b"plain"),
        (7202, "s4", b"plain"),
    ]:
        write(
            queue,
            messages(0, 1, received_at=seconds * SECOND, session=session, body=[body]),
        )
    return queue


def test_a_retry_is_left_out_within_the_window(spark: Any, retried: Path) -> None:
    frame = spark.read.format("msgproto").option("queue", str(retried)).load()
    assert column(views.effectively_once(frame, "$.id"), "offset") == [0, 1, 3, 4, 5]
    assert column(views.effectively_once(frame, "$.id", window="3 hours"), "offset") == [0, 1, 4, 5]
    assert column(views.effectively_once(frame, "$.id", window="59 seconds"), "offset") == list(
        range(6)
    )
    # By the whole content: the two plain bodies are the same, ids 1 differ in t.
    assert column(views.effectively_once(frame, window="3 hours"), "offset") == [0, 1, 3, 4]
    for key in ("id", "$id", '$["id"]', "$.id.", "$.ids[", "$..id"):
        with pytest.raises(ConfigurationError, match="a key is a JSON path"):
            views.effectively_once(frame, key)
    assert column(views.effectively_once(frame, "$['id']"), "offset") == [0, 1, 3, 4, 5]


def test_what_a_sender_decides_makes_the_key(spark: Any, tmp_path: Path) -> None:
    queue = tmp_path / "keys"
    same = {"protocol": "mtl", "kind": "content", "message_id": ["1"], "body": [b"b"]}
    write(queue, messages(0, 1, **same, fields=[{"a": "1", "b": "2"}], destination=["x"]))
    write(queue, messages(0, 1, **same, fields=[{"b": "2", "a": "1"}], destination=["x"]))
    write(queue, messages(0, 1, **same, fields=[{"a": "1", "b": "2"}], destination=[""]))
    write(queue, messages(0, 1, **same, fields=[{"a": "1", "b": "2"}], destination=[None]))
    frame = spark.read.format("msgproto").option("queue", str(queue)).load()
    keys = column(frame.withColumn("key", views.message_key()), "key")
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_a_stream_is_effectively_once_too(spark: Any, retried: Path, tmp_path: Path) -> None:
    stream = spark.readStream.format("msgproto").option("queue", str(retried)).load()
    once = views.effectively_once(stream, "$.id", window="1 hour")
    query = (
        once.writeStream.format("memory")
        .queryName("once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # In one batch the watermark does not move, so the late id 1 is a duplicate, too; which row of
    # a key stays is as Spark's shuffle has it.
    seen = column(spark.table("once"), "offset")
    assert len(seen) == 4 and len({0, 3} & set(seen)) == len({1, 2} & set(seen)) == 1
    assert {4, 5} <= set(seen)
    with pytest.raises(ConfigurationError, match="needs a schema"):
        views.json_columns(stream)


def test_views_for_sql(spark: Any, bodies: Any) -> None:
    names = views.create_views(bodies, "seen")
    assert names == ["seen", "seen_text", "seen_json", "seen_lumberjack", "seen_once"]
    for name in names:
        assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == len(BODIES), name
    level = "SELECT json:level::string FROM seen_json WHERE json:user.id::bigint = 7"
    assert [row[0] for row in spark.sql(level).collect()] == ["info"]
