"""A table with columns that is made of a raw one: exact, whatever was trimmed, erased or killed."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import damage_record
from tests.table.conftest import both
from tests.tools.disks import POWERS, PowerDisk
from tests.tools.loops import drain, finish, loop_over
from tests.tools.tables import Gateway, check_sum, create_table, delta, opened_again
from twisted_msgproto.core.errors import Overtaken, QueueAway, QueueMismatch, TableError
from twisted_msgproto.table import preflight
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.derive import Derived, derive, propose, raw_rows, tried_lines, try_out
from twisted_msgproto.table.landing import DAY, Target
from twisted_msgproto.table.proof import verify
from twisted_msgproto.table.retention import erase, expire
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.shape import Shape, shape_of

COLUMNS = {
    "number": {"path": "n", "type": "long"},
    "half": {"path": "deep.half", "type": "double"},
    "client": {"from": "fields", "path": "client", "type": "string"},
}
WHERE = {"protocol": ["lumberjack", "mtl"]}


def shaped(**more: Any) -> Shape:
    given = {"columns": COLUMNS, "where": WHERE, "keep": ["protocol", "body"], **more}
    shape = shape_of(given)
    assert shape is not None
    return shape


def body(number: int) -> bytes:
    """Every seventh is wrong in one column, every eleventh no JSON."""
    if number % 11 == 0:
        return b"no JSON %d" % number
    wrong = {"n": "n/a"} if number % 7 == 0 else {"n": number}
    return json.dumps({**wrong, "deep": {"half": number / 2}}).encode()


def fields(number: int) -> dict[str, str] | None:
    return {"client": f"c-{number}", "other": ""} if number % 3 else None


def fill(gateway: Gateway, raw: Table | None = None) -> None:
    """Rows of three days and three protocols, landed in small files."""
    for number, protocol in enumerate(["lumberjack", "umq", "mtl"] * 2):
        gateway.put(8, day=number // 2, protocol=protocol, body=body, fields=fields)
        if raw is not None:
            land(raw, gateway)


def land(table: Table, gateway: Gateway) -> None:
    loop_over(opened_again(table), [gateway.directory]).run()


def target_at(location: str | Path, raw: Table, shape: Shape) -> Target:
    """Partitioned as the raw table is."""
    schema = shape.schema.append(DAY)
    return Target(str(location), raw.storage.options, schema, raw.partition_by, shape=shape)


def beside(raw: Table, name: str = "typed") -> str:
    return f"{raw.location}-{name}"


def make(
    raw: Table, *gateways: Gateway, shape: Shape | None = None, name: str = "typed", **how: Any
) -> Derived:
    target = target_at(beside(raw, name), raw, shape or shaped())
    queues = {gateway.id: gateway.reader for gateway in gateways}
    return derive(opened_again(raw), target, queues, Run.new(), **how)


def typed_of(raw: Table, name: str = "typed") -> Table:
    return Table.open(beside(raw, name), dict(raw.storage.options))


def go_on(raw: Table, gateway: Gateway, *, shape: Shape | None = None, name: str = "typed") -> None:
    """As the bridge does that lands the table from here on."""
    shape = shape or shaped()
    schema, run = shape.schema.append(DAY), Run.new()
    opened = preflight.open_table(
        beside(raw, name), schema, None, raw.storage.options, run, grows=True
    )
    preflight.grow(opened, schema, run, {})
    loop = loop_over(opened, [gateway.directory])
    loop.target = target_at(beside(raw, name), raw, shape)
    loop.run()
    finish(loop)


def rows_of(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = delta(table).to_pyarrow_table().sort_by("offset").to_pylist()
    return found


def trim(gateway: Gateway, raw: Table) -> None:
    """The raw table's bridge lets its queue go; what is left is what the others still need."""
    finish(drain(opened_again(raw), [gateway.directory]))
    gateway.trim()


@both
def test_a_derived_table_is_as_if_it_had_been_landed_from_the_beginning(
    table: Table, a: Gateway, tmp_path: Path
) -> None:
    """Damaged, expired and erased rows are carried, the queue is trimmed, and a bridge goes on."""
    fill(a)
    damage_record(a.directory, body(20))
    shutil.copytree(a.directory, tmp_path / "whole")
    land(table, a)
    delta(table).delete("offset = 33")
    a.put(3, day=2, body=body)
    land(table, a)
    expire(opened_again(table), date(2023, 11, 16), Run.new())
    erase(opened_again(table), Run.new(), where="offset IN (26, 36, 44, 50)")
    compact(opened_again(table), Run.new())
    trim(a, table)
    assert a.reader.begin() > 40

    said: list[str] = []
    done = make(table, a, say=said.append)
    typed = typed_of(table)
    found = check_sum(typed, a)
    raw = check_sum(table, a)
    assert found.landed == raw.landed
    assert (found.expired_rows, found.damaged_rows) == (raw.expired_rows, raw.damaged_rows)
    assert (found.erased, done.rows) == (raw.erased, found.rows)
    assert (
        found.left_out == done.left_out == sum(row["protocol"] == "umq" for row in rows_of(table))
    )
    assert len(said) == 2 and said[0].startswith("part 1 of 2, 2023-11-16: ")

    a.put(9, day=3, body=body)
    go_on(table, a)
    check_sum(typed, a)
    # The same rows, landed from a queue that was never trimmed.
    whole = Gateway.at(tmp_path / "whole")
    whole.put(3, day=2, body=body)
    whole.put(9, day=3, body=body)
    drain_typed(tmp_path / "once", whole)
    gone = {offset for lo, hi in found.erased for offset in range(lo, hi)}
    expected = [
        row
        for row in rows_of(Table.open(tmp_path / "once"))
        if row["offset"] not in gone and row["day"] >= date(2023, 11, 16)
    ]
    assert rows_of(typed) == expected
    assert {row["_error"] for row in expected} >= {None, "the body is not JSON"}
    assert {row["client"] for row in expected} >= {None, "c-28"}


def drain_typed(location: Path, gateway: Gateway) -> None:
    shape = shaped()
    table = preflight.open_table(str(location), shape.schema.append(DAY), None, {}, Run.new())
    loop = loop_over(table, [gateway.directory])
    loop.target = target_at(location, table, shape)
    loop.run()


def goes_on(raw: Table, gateway: Gateway) -> None:
    """The raw table's bridge lands more, and lets the queue go."""
    gateway.put(10, day=4, body=body)
    trim(gateway, raw)


def rows_are_erased(raw: Table, gateway: Gateway) -> None:
    gateway.put(10, day=2, body=body)
    land(raw, gateway)
    erase(opened_again(raw), Run.new(), where="offset IN (3, 12, 47, 55)")


@pytest.mark.parametrize("meanwhile", [goes_on, rows_are_erased], ids=lambda act: act.__name__)
def test_what_happens_to_the_raw_table_meanwhile_happens_to_the_other(
    local: Table, a: Gateway, meanwhile: Callable[[Table, Gateway], None]
) -> None:
    fill(a, local)
    make(local, a, say=lambda line: line.startswith("part 1 ") and meanwhile(local, a))
    found = check_sum(typed_of(local), a)
    assert found.landed is not None and found.landed.offset == 49
    consumer = preflight.consumer_name(typed_of(local).table_id)
    assert a.reader.consumers()[consumer] == 49
    go_on(local, a)
    rewind(typed_of(local), Run.new(), queues={a.id: a.reader})  # what was erased stays so
    check_sum(typed_of(local), a)
    assert {row["offset"] for row in rows_of(typed_of(local))} == {
        row["offset"] for row in rows_of(local) if row["protocol"] != "umq"
    }


@both
def test_a_run_that_was_interrupted_goes_on_or_begins_again(
    table: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(a, table)
    stop_after(1, table, a)
    with pytest.raises(TableError, match=r"has only a part of .*'msgproto table derive' again"):
        go_on(table, a)
    half = verify(typed_of(table))
    assert not half.intact and next(half.findings()).startswith("half made: run 'msgproto table")
    said: list[str] = []
    compact(opened_again(table), Run.new())
    make(table, a, say=said.append)
    assert [line[:11] for line in said] == ["part 2 of 3", "part 3 of 3"]
    expected = rows_of(typed_of(table))
    check_sum(typed_of(table), a)
    # Once more beside it, with files gone that the first run had settled on.
    stop_after(2, table, a, name="other")
    erase(opened_again(table), Run.new(), where="offset = 3", purge=True)
    said.clear()
    make(table, a, name="other", say=said.append)
    assert len(said) == 3, "it has begun again"
    check_sum(typed_of(table, "other"), a)
    assert rows_of(typed_of(table, "other")) == [row for row in expected if row["offset"] != 3]
    # A third time there is nothing to do.
    version = typed_of(table).version
    assert make(table, a).version == version


class Stop(BaseException):
    """The process ends here."""


def stop_after(parts: int, raw: Table, gateway: Gateway, **how: Any) -> None:
    def say(line: str) -> None:
        if line.startswith(f"part {parts} "):
            raise Stop

    with pytest.raises(Stop):
        make(raw, gateway, say=say, **how)


class Going:
    """A queue that answers when a table is begun, and no more."""

    def __init__(self, gateway: Gateway) -> None:
        self._queue, self._asked = gateway.reader, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def register(self, consumer: str) -> int:
        self._asked += 1
        if self._asked > 1:
            raise QueueAway("it does not answer")
        return self._queue.register(consumer)


def test_a_queue_that_goes_while_a_table_is_made_is_waited_for_by_the_next_run(
    local: Table, a: Gateway
) -> None:
    fill(a, local)
    target = target_at(beside(local), local, shaped())
    queues: dict[str, Any] = {a.id: Going(a)}
    with pytest.raises(QueueAway, match="it does not answer"):
        derive(opened_again(local), target, queues, Run.new())
    with pytest.raises(TableError, match="only a part"):
        go_on(local, a)
    trim(a, local)
    make(local, a)
    a.put(5, day=2, body=body)
    go_on(local, a)
    check_sum(typed_of(local), a)


def test_of_two_at_once_one_ends_and_the_table_is_exact(local: Table, a: Gateway) -> None:
    fill(a, local)

    def other(line: str) -> None:
        if line.startswith("part 1 "):
            make(local, a)

    with pytest.raises(Overtaken, match=r"another writer of .*typed changed msgproto-deriv"):
        make(local, a, say=other)
    check_sum(typed_of(local), a)


def test_again_with_one_more_column_is_another_table(local: Table, a: Gateway) -> None:
    fill(a, local)
    make(local, a)
    more = shaped(columns={**COLUMNS, "text": {"path": "n", "type": "string"}})
    with pytest.raises(TableError, match=r"typed is a table already, .*choose a new location"):
        make(local, a, shape=more)
    make(local, a, shape=more, name="wider")
    trim(a, local)
    a.put(5, day=2, body=body)
    go_on(local, a)
    go_on(local, a, shape=more, name="wider")
    wider = rows_of(typed_of(local, "wider"))
    assert sum(row["text"] is not None for row in wider) > 20
    assert [{**row, "text": 0} for row in wider] == [
        {**row, "text": 0} for row in rows_of(typed_of(local))
    ]
    check_sum(typed_of(local, "wider"), a)


def test_a_table_with_two_columns_of_partitions(a: Gateway, tmp_path: Path) -> None:
    raw = create_table(tmp_path / "parted", partition_by=("protocol", "day"))
    fill(a, raw)
    make(raw, a)
    assert len(typed_of(raw).files()) == 4
    go_on(raw, a)
    make(raw, a, shape=Shape(), name="copy")
    assert rows_of(typed_of(raw, "copy")) == rows_of(raw)
    check_sum(typed_of(raw), a)


def test_a_table_of_all_rows_and_one_of_a_table_that_leaves_rows_out(
    local: Table, a: Gateway
) -> None:
    fill(a, local)
    raw = Shape((("protocol", ("umq", "mtl")),))
    make(local, a, shape=raw, name="some")
    make(local, a, shape=Shape(), name="copy")
    assert rows_of(typed_of(local, "copy")) == rows_of(local)
    check_sum(typed_of(local, "copy"), a)
    some = typed_of(local, "some")
    left_out = check_sum(some, a).left_out
    make(some, a)
    found = check_sum(typed_of(some), a)
    assert found.left_out == left_out + 16
    assert {row["protocol"] for row in rows_of(typed_of(some))} == {"mtl"}


# -- refusals -------------------------------------------------------------------------------------


def lose_a_file(raw: Table, gateway: Gateway) -> None:
    Path(raw.location, opened_again(raw).files()[0].path).unlink()


def set_queue_back(raw: Table, gateway: Gateway) -> None:
    shutil.rmtree(gateway.directory)
    shutil.copytree(f"{gateway.directory}-older", gateway.directory)


def forget_rows(raw: Table, gateway: Gateway) -> None:
    """Somebody has told the queue that nobody needs what the raw table has not landed yet."""
    gateway.put(20, body=body)
    for consumer in gateway.reader.consumers():
        gateway.reader.forget(consumer)
    gateway.reader.commit("other", gateway.reader.end())
    gateway.trim()


def restore(raw: Table, gateway: Gateway) -> None:
    DeltaTable(raw.location).restore(2)


REFUSED: Mapping[str, tuple[Callable[[Table, Gateway], None], type[Exception], str]] = {
    "a file is lost": (lose_a_file, TableError, r"is not intact \(lost: file .*verify .*' tells"),
    "a restore": (restore, TableError, r"is not intact \(missing: .*verify .*' tells"),
    "an older queue": (set_queue_back, QueueMismatch, "was restored from an older copy"),
    "a trimmed queue": (forget_rows, QueueMismatch, "was trimmed before it landed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_exact_is_refused_in_a_line(
    local: Table, a: Gateway, name: str
) -> None:
    spoil, kind, line = REFUSED[name]
    shutil.copytree(a.directory, f"{a.directory}-older")
    fill(a, local)
    spoil(local, a)
    with pytest.raises(kind, match=line) as told:
        make(local, a)
    assert "\n" not in str(told.value)
    if kind is QueueMismatch:
        assert not Path(beside(local)).exists(), "a refusal makes no table"
    else:
        assert not typed_of(local).files()


def test_a_half_made_table_is_not_mixed_with_another_definition(local: Table, a: Gateway) -> None:
    fill(a, local)
    stop_after(1, local, a)
    with pytest.raises(TableError, match="by another definition: put that back, or remove"):
        make(local, a, shape=shaped(where={}))
    make(local, a)
    with pytest.raises(TableError, match=r"has no column 'protocol'|has no column 'peer'"):
        make(typed_of(local), a, name="third")


# -- kills ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cut_at_any_step_leaves_what_the_next_run_makes_exact(
    local: Table, a: Gateway, pytestconfig: pytest.Config
) -> None:
    """In the short form each step has one of the losses, by turns."""
    fill(a, local)

    make(local, a, name="whole")
    expected = rows_of(typed_of(local, "whole"))
    done, step = False, 0
    while not done:
        for power in POWERS if pytestconfig.getoption("--long") else POWERS[step % 3 :][:1]:
            name = f"{power}-{step}"
            disk = PowerDisk(Path(beside(local, name)), step)
            done = disk.ends(power, partial(make, local, a, name=name, disk=disk))
            make(local, a, name=name)
            assert rows_of(typed_of(local, name)) == expected, name
            check_sum(typed_of(local, name), a)
        step += 1
    assert step > 20


def test_a_gateway_whose_queue_is_gone_is_carried_with_its_rows(
    local: Table, a: Gateway, b: Gateway
) -> None:
    fill(a, local)
    fill(b)
    drain(opened_again(local), [a.directory, b.directory])
    shutil.rmtree(b.directory)
    make(local, a)
    a.put(5, day=2, body=body)
    go_on(local, a)
    check_sum(typed_of(local), a)
    raw, typed = local, typed_of(local)
    assert set(typed.landed()) == set(opened_again(raw).landed())
    assert replace(typed.landed()[a.id], offset=0).incarnation


NAMES = [
    "a.b",
    "`a`",
    "ä",
    "😀",
    "select",
    '"',
    "'",
    "\\",
    "%41",
    "*",
    "\0",
    "\r\n",
    "\x7f",
    "\ud800",
]


def test_a_proposal_is_a_file_that_finds_what_is_there_whatever_names_are_in_it(
    local: Table, a: Gateway
) -> None:
    def body(number: int) -> bytes:
        return json.dumps(
            {name: {**dict.fromkeys(NAMES, number), "": 0} for name in NAMES}
        ).encode()

    a.put(2, body=body, fields=lambda number: dict.fromkeys(["", *NAMES[:-1]], "text"))
    land(local, a)
    proposed = tomllib.loads(propose(raw_rows(opened_again(local), 10)))
    shape = shape_of({"columns": proposed["table"]["columns"]})
    assert shape is not None and shape.columns is not None
    names = NAMES[:-1]  # of these no file can speak
    wanted = {(one, other) for one in names for other in names} | {(name,) for name in names}
    assert {column.path for column in shape.columns.columns} == wanted
    [_, *rows] = [row for batch in raw_rows(opened_again(local), 10) for row in batch.to_pylist()]
    for row in rows:
        values, error = shape.columns.row(row["body"], row["fields"])
        assert error is None and set(values.values()) == {row["offset"], "text"}


def test_a_proposal_has_the_type_of_all_values_and_is_tried_out(local: Table, a: Gateway) -> None:
    document = {
        "@timestamp": "2026-01-31T12:00:00Z",
        "host": {"name": "web-1", "ip.v4": "10.0.0.1"},
        "n": 2**63 - 1,
        "large": 2**63,
        "low": -(10**18) + 1,
        "took": 1.5,
        "code": "200",
        "zip": "01234",
        "zero": 0,
        "minus": "-05",
        "ok": True,
        "tags": ["a", None],
        "mixed": [1, "x"],
        "both": 1,
        "parts": [{"a": 1}],
        "day": "2026-01-31",
        "N": "quoted",
        "none": None,
        "by": "joe",
    }
    other = b'{"n":7,"took":3,"both":[1],"by":{"id":1}}'
    bodies = [json.dumps(document).encode(), b"no JSON", other]
    given = [{"user": "joe", "role": "x"}, {"role": "y"}]
    a.put(199, body=lambda n: bodies[n % 3 - 1], fields=lambda n: dict(*given[n - 1 : n]))
    land(local, a)
    proposed = propose(raw_rows(opened_again(local), 200))
    assert proposed.splitlines() == [
        "# proposed from 200 rows",
        "[table.columns]",
        'timestamp = { path = "@timestamp", type = "timestamp" }',
        'host_name = { path = "host.name", type = "string" }',
        'host_ip_v4 = { path = ["host", "ip.v4"], type = "string" }',
        'n = { path = "n", type = "long" }',
        'large = { path = "large", type = "string" }',
        'low = { path = "low", type = "long" }',
        'took = { path = "took", type = "double" }',
        'code = { path = "code", type = "long" }',
        'zip = { path = "zip", type = "string" }',
        'zero = { path = "zero", type = "long" }',
        'minus = { path = "minus", type = "string" }',
        'ok = { path = "ok", type = "boolean" }',
        'tags = { path = "tags", type = "array<string>" }',
        'mixed = { path = "mixed", type = "array<string>" }',
        'both = { path = "both", type = "json" }',
        'parts = { path = "parts", type = "json" }',
        'day_2 = { path = "day", type = "date" }',
        'N_2 = { path = "N", type = "string" }',
        'by = { path = "by", type = "json" }',
        'by_id = { path = "by.id", type = "long" }',
        'role = { from = "fields", path = "role", type = "string" }',
        '# seldom: "user"',
    ]
    columns = {"n": {"path": "n", "type": "int"}, "wrong": {"path": "m", "type": "int"}}
    for given, lines in (
        ({"where": {"protocol": "umq"}}, ["x: 0 rows, 50 left out, 0 errors"]),
        ({}, ["x: 50 rows, 0 errors"]),
        (
            {"columns": columns},
            [
                "x: 50 rows, 34 errors",
                "x: body: 17 errors, as: the body is not JSON",
                "x: n: 17 errors, 16 values, as: n: 9223372036854775807 is too large for int",
                "x: wrong: 0 errors, 0 values",
            ],
        ),
    ):
        shape = shape_of(given) or Shape()
        tried = try_out(shape, raw_rows(opened_again(local), 50))
        assert tried_lines("x", shape, tried) == lines
