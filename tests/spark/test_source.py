"""The data source ``msgproto``, asked as Spark asks it, without Spark: plans, places, filters."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.doubles import own_time
from tests.spark.conftest import (
    batch,
    damage_record,
    data_source,
    identity,
    messages,
    offsets_of,
    stream,
    write,
)
from twisted_msgproto.core.errors import ConfigurationError, QueueAway, QueueError, QueueMismatch
from twisted_msgproto.queue import SCHEMA, QueueReader
from twisted_msgproto.spark import need_spark, source_options

pytest.importorskip("pyspark")

from pyspark.sql import datasource as sql
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

SECOND = 1_000_000
ALL = ReadAllAvailable()


def test_record_batches_have_exactly_the_schema_spark_checks_for() -> None:
    """Spark compares the first batch of every task; types, zone and nullability have to agree."""
    assert to_arrow_schema(data_source("msgproto").schema(), timezone="UTC").equals(SCHEMA)


def proof(queue: Path, offset: int) -> dict[str, int]:
    """What a place in Spark's checkpoint proves its history with."""
    landed = QueueReader(queue).place(offset)
    numbers = {"incarnation": landed.incarnation, "witness": landed.witness}
    return {name: number for name, number in numbers.items() if number}


def ranges_of(reader: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    return [(each.value.lo, each.value.hi) for each in reader.partitions(start, end)]


def rows_of(reader: Any, parts: Any) -> list[int]:
    batches = [rows for part in parts for rows in reader.read(part)]
    return [offset for rows in batches for offset in rows.column("offset").to_pylist()]


# -- a stream's places -----------------------------------------------------------------------------


def test_a_directory_with_a_comma_or_blanks_is_one_queue__RD_11(
    queue: Path, tmp_path: Path
) -> None:
    place = queue.rename(tmp_path / " a, b ")
    assert offsets_of(batch(place)) == list(range(1500))
    assert offsets_of(batch(f"file://{place}")) == list(range(1500))


@pytest.mark.parametrize("begin", ["file:", "file://", "file://localhost"])
@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b?c", "é"])
def test_a_file_url_is_unquoted_and_a_path_is_not(tmp_path: Path, begin: str, name: str) -> None:
    place = tmp_path / name
    write(place, messages(0, 3))
    assert offsets_of(batch(os.fspath(place))) == [0, 1, 2]
    assert offsets_of(batch(f"{begin}{quote(os.fspath(place))}")) == [0, 1, 2]


def test_a_file_url_of_another_machine_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"the machine queues: .*file:///PATH"):
        batch("file://queues/q")


def test_a_stream_plans_reads_and_goes_on(queue: Path) -> None:
    assert stream(queue).getDefaultReadLimit() == ALL
    reader = stream(queue, numPartitions=2, minPartitionRows=1, maxRowsPerTrigger=400)
    name = identity(queue)
    start = reader.initialOffset()
    assert start == {name: {"offset": 0, "since": 0}}
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert first == {name: {"offset": 400, "since": 0, **proof(queue, 400)}}
    rest = reader.latestOffset(first, ALL)
    assert rest == reader.reportLatestOffset() == {name: {"offset": 1500, **proof(queue, 1500)}}
    parts = reader.partitions(start, first)
    assert [(each.value.lo, each.value.hi) for each in parts] == [(0, 200), (200, 400)]
    worker = pickle.loads(pickle.dumps(reader))
    assert rows_of(worker, parts) == list(range(400))
    assert reader.partitions(rest, rest) == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of no partitions


def test_draining_ends_where_the_queue_ended_at_the_start(queue: Path) -> None:
    reader = stream(queue)
    reader.prepareForTriggerAvailableNow()
    write(queue, messages(1500, 10))
    latest = reader.latestOffset(reader.initialOffset(), ALL)
    assert latest[identity(queue)]["offset"] == 1500
    assert reader.latestOffset(latest, ALL) == latest


def test_the_first_batch_says_where_it_began(queue: Path) -> None:
    """Repeated after a kill it would ask ``startingOffsets`` again, and ``latest`` has moved on."""
    name = identity(queue)
    reader = stream(queue, startingOffsets=json.dumps({name: 40}))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end == {name: {"offset": 1500, "since": 40, **proof(queue, 1500)}}
    write(queue, messages(1500, 10))
    later = stream(queue, startingOffsets="latest")
    assert ranges_of(later, later.initialOffset(), end) == [(40, 1500)]
    following = later.latestOffset(end, ALL)
    assert following == {name: {"offset": 1510, **proof(queue, 1510)}}
    assert ranges_of(later, end, following) == [(1500, 1510)]


def test_a_first_batch_without_rows_keeps_the_place_it_began_at(queue: Path) -> None:
    reader = stream(queue, startingOffsets="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start, "or Spark would run an empty batch"
    write(queue, messages(1500, 50))
    following = reader.latestOffset(start, ALL)
    assert ranges_of(reader, start, following) == [(1500, 1550)]
    again = stream(queue, startingOffsets="latest")
    assert ranges_of(again, again.initialOffset(), following) == [(1500, 1550)]


def test_a_queue_which_joins_later_says_where_its_first_batch_began(
    queue: Path, tmp_path: Path
) -> None:
    """Trimming after the plan must not change what a repeated batch reads."""
    second = tmp_path / "second"
    write(second, messages(0, 30))
    one, two = identity(queue), identity(second)
    reader = stream(f"{queue},{second}")
    start = {one: {"offset": 1500}}
    end = reader.latestOffset(start, ALL)
    assert end == {**start, two: {"offset": 30, "since": 0, **proof(second, 30)}}
    assert ranges_of(reader, start, end) == [(0, 30)]
    write(second, messages(30, 10))
    following = reader.latestOffset(end, ALL)
    assert following[two] == {"offset": 40, **proof(second, 40)}
    assert ranges_of(reader, end, following) == [(30, 40)]


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"numPartitions": 3, "minPartitionRows": 1}, [0, 500, 1000, 1500]),
        ({"numPartitions": 8, "minPartitionRows": 600}, [0, 750, 1500]),
        ({"numPartitions": 8, "minPartitionRows": 5000}, [0, 1500]),
        ({"numPartitions": 2000, "minPartitionRows": 1}, [*range(1501)]),
        ({"minPartitionRows": 1}, [0, 750, 1500]),
    ],
)
def test_ranges_are_cut_evenly_but_not_too_small(
    queue: Path, options: dict[str, int], bounds: list[int]
) -> None:
    reader = stream(queue, **options)
    end = {identity(queue): {"offset": 1500}}
    assert ranges_of(reader, reader.initialOffset(), end) == list(itertools.pairwise(bounds))
    parts = reader.partitions(reader.initialOffset(), end)
    assert {each.value.landed for each in parts} == {None}, "the place proves nothing"


def test_a_second_task_begins_at_40_000_rows(tmp_path: Path) -> None:
    write(tmp_path, messages(0, 40_000))
    reader, name = stream(tmp_path), identity(tmp_path)
    for end, bounds in ((39_999, [0, 39_999]), (40_000, [0, 20_000, 40_000])):
        found = ranges_of(reader, {name: {"offset": 0}}, {name: {"offset": end}})
        assert found == list(itertools.pairwise(bounds))


def test_a_retired_queue_keeps_its_place(queue: Path) -> None:
    name = identity(queue)
    start = {"gone": {"offset": 77}, name: {"offset": 0}}
    reader = stream(queue, retired="gone,other")
    end = reader.latestOffset(start, ALL)
    assert end["gone"] == {"offset": 77}
    assert ranges_of(reader, start, end) == [(0, 1500)]


# -- a checkpoint that does not fit ----------------------------------------------------------------


def trim(queue: Path) -> int:
    """Has the first rows of a queue trimmed; where it begins now."""
    for first in (1500, 1800):
        write(queue, messages(first, 300), segment_bytes=1)
    for segment in sorted(queue.glob("*.segment"))[:2]:
        segment.unlink()
    begin = QueueReader(queue).begin()
    assert begin > 1000
    return begin


def changed(queue: Path, name: str) -> dict[str, int]:
    return {"offset": 900, name: proof(queue, 900)[name] + 1}


Case = tuple[Callable[[Path], dict[str, int]], tuple[str, ...]]
CASES: dict[str, Case] = {
    "ahead": (
        lambda queue: {"offset": 1550},
        ("ahead of queue", "offset 1550", "ends at 1500", "new table", "or accept the loss"),
    ),
    "trimmed": (
        lambda queue: {"offset": trim(queue) - 900},
        ("is wanted, the earliest kept is", "still holds offsets from"),
    ),
    "restored": (
        lambda queue: changed(queue, "incarnation"),
        ("row 899 of the queue", "is not the one which was read", "restored from an older copy"),
    ),
    "snapshot": (
        lambda queue: changed(queue, "witness"),
        ("row 899 of the queue", "is not the one which was read", "set back to a snap"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_that_does_not_fit_is_refused_with_what_helps__TB_06__RD_04(
    queue: Path, case: str
) -> None:
    place_of, texts = CASES[case]
    name, place = identity(queue), place_of(queue)
    reader = stream(queue)
    before = {name: {"offset": place["offset"] - 1}}
    checks: list[Callable[[], object]] = [
        lambda: reader.latestOffset({name: place}, ALL),
        lambda: reader.partitions(before, {name: place}),
    ]
    for check in checks:
        with pytest.raises(QueueMismatch) as caught:
            check()
        assert "\n" not in str(caught.value)
        assert all(text in str(caught.value) for text in texts)
    accepting, end = stream(queue, **remedy(caught.value)), QueueReader(queue).end()
    following = accepting.latestOffset({name: place}, ALL)
    assert following[name]["offset"] == end
    lo = min(max(place["offset"], QueueReader(queue).begin()), end)
    assert ranges_of(accepting, {name: place}, following) == ([(lo, end)] if lo < end else [])
    begin = QueueReader(queue).begin()
    assert ranges_of(accepting, {name: {"offset": 0}}, {name: {"offset": begin}}) == []
    assert stream(queue).initialOffset()[name]["offset"] == begin


def remedy(error: BaseException) -> dict[str, str]:
    """The option that a refusal names."""
    [(name, value)] = re.findall(r"\boption (\w+)=([\w-]+)", str(error))
    return {name: value}


@pytest.mark.parametrize("loss", [True, False])
def test_the_checkpoint_of_another_queue_is_refused_whatever_is_accepted__TB_06(
    queue: Path, loss: bool
) -> None:
    reader, place = stream(queue, failOnDataLoss=loss), {"other": {"offset": 5}}
    for check in (
        lambda: reader.latestOffset(place, ALL),
        lambda: reader.partitions({"other": {"offset": 1}}, place),
    ):
        with pytest.raises(QueueMismatch, match="belongs to queue other, ") as caught:
            check()
        assert remedy(caught.value) == {"retired": "other"}


@pytest.mark.parametrize("loss", [True, False])
def test_after_a_power_loss_the_gateway_is_waited_for__NB_12(
    queue: Path, loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With accepted losses the stream went back to the old end, and read rows once more."""
    old = (queue / "end").read_bytes()
    write(queue, messages(1500, 7))
    start = {identity(queue): {"offset": 1507, **proof(queue, 1507)}}
    (queue / "end").write_bytes(old)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            write(queue)  # the gateway starts, and ends

    monkeypatch.setattr(source_options, "time", own_time(sleep=sleep))
    assert stream(queue, failOnDataLoss=loss).latestOffset(start, ALL) == start
    assert len(waited) == 2


def test_a_gateway_that_is_away_holds_a_stream_up_and_ends_it_after_a_while(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream(queue)
    start = reader.initialOffset()
    left, now = [3], itertools.count(0.0, 10.0)
    own = own_time(sleep=lambda seconds: None)

    def end(self: QueueReader) -> int:
        if left[0]:
            left[0] -= 1
            raise QueueAway("gw1 does not answer")
        return 1500

    monkeypatch.setattr(source_options, "time", own)
    monkeypatch.setattr(QueueReader, "end", end)
    assert reader.latestOffset(start, ALL)[identity(queue)]["offset"] == 1500
    left[0] = 1
    assert reader.reportLatestOffset() is None
    left[0] = 1000
    own.monotonic = lambda: next(now)
    with pytest.raises(QueueAway, match="gw1 does not answer"):
        reader.latestOffset(start, ALL)
    assert left[0] == 1000 - 6  # once every ten seconds, for a minute


def test_a_repeated_batch_whose_rows_are_gone_is_refused_and_an_accepted_loss_goes_on(
    queue: Path,
) -> None:
    name, begin = identity(queue), trim(queue)
    start, end = {name: {"offset": 100}}, {name: {"offset": begin + 50}}
    with pytest.raises(QueueMismatch, match="offset 100 is wanted"):
        stream(queue).partitions(start, end)
    lossy = stream(queue, failOnDataLoss=False)
    assert ranges_of(lossy, start, end) == [(begin, begin + 50)]
    assert ranges_of(lossy, start, {name: {"offset": 200}}) == []
    following = lossy.latestOffset(start, ALL)
    assert following == {name: {"offset": 2100, "since": begin, **proof(queue, 2100)}}
    assert ranges_of(lossy, start, following) == [(begin, 2100)]


def test_tasks_prove_the_history_that_was_planned__TB_06_TB_07(queue: Path, tmp_path: Path) -> None:
    """TB-06, TB-07 in a stream of one's own: what stands there by then is another history."""
    shutil.copytree(queue, tmp_path / "older")
    write(queue, messages(1500, 10))
    reader = stream(queue)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    assert rows_of(reader, parts) == list(range(1510))
    shutil.rmtree(queue)
    shutil.move(tmp_path / "older", queue)
    write(queue, messages(9000, 10))
    with pytest.raises(QueueMismatch, match="restored from an older copy"):
        rows_of(reader, parts)


def test_another_queue_at_the_place_of_the_first_is_noticed_by_the_worker__TB_07(
    queue: Path,
) -> None:
    reader = stream(queue)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    shutil.rmtree(queue)
    write(queue, messages(0, 1500))
    with pytest.raises(QueueMismatch, match="the stream reads"):
        rows_of(reader, parts)


# -- marks -----------------------------------------------------------------------------------------


def test_only_a_named_consumer_holds_the_queue_and_spark_moves_no_mark__TB_15(queue: Path) -> None:
    """TB-15: when Spark commits a batch nothing of it was synced, so nothing may be trimmed."""
    place = {identity(queue): {"offset": 900}}
    for options, held in (({}, {}), ({"consumer": "night"}, {"night": 0})):
        reader = stream(queue, **options)
        reader.initialOffset()
        reader.commit({**place, "gone": {"offset": 1}})
        reader.latestOffset(place, ALL)
        assert QueueReader(queue).consumers() == held


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, 'needs .option\\("queue", DIRECTORY\\)'),
        ({"queue": " , "}, "needs"),
        ({"startingOfsets": "latest"}, "no option startingOfsets; did you mean startingOffsets"),
        ({"Cosumer": "c"}, "no option Cosumer; did you mean consumer"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is a whole number from 1"),
        ({"numPartitions": "two"}, "numPartitions is a whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"startingOffsets": "soon"}, "startingOffsets is earliest, latest or JSON"),
        ({"startingOffsets": '{"a": -3}'}, "startingOffsets has -3 for queue a"),
        ({"startingOffsets": '{"a": true}'}, "startingOffsets has True"),
        ({"startingOffsets": "{a"}, "startingOffsets is JSON as"),
        ({"startingTimestamp": "noon"}, "startingTimestamp is milliseconds since"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "is error or latest, not x"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch reads"),
        ({"endingOffsets": "earliest"}, "endingOffsets is latest or JSON, not earliest"),
        ({"endingOffsets": '{"a": -2}'}, "endingOffsets has -2 for queue a"),
        ({"endingTimestamp": "0"}, "endingTimestamp is for batch reads"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, str], text: str) -> None:
    given = {"queue": "q", **options} if options else {}
    source = data_source("msgproto", **given)
    with pytest.raises(ConfigurationError, match=text) as caught:
        source.streamReader(source.schema())
    assert "\n" not in str(caught.value)


def test_what_is_no_queue_or_one_twice_is_one_line(queue: Path, tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="no queue in"):
        stream(tmp_path / "nothing").initialOffset()
    with pytest.raises(ConfigurationError, match="are the same queue"):
        stream(f"{queue},file://{queue}").initialOffset()


def test_without_pyspark_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(ConfigurationError) as caught:
        need_spark()
    assert "pip install 'twisted-msgproto[spark]'" in str(caught.value)
    assert "\n" not in str(caught.value)


# -- where reading begins and ends -----------------------------------------------------------------


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """Ten groups of ten rows, received at the seconds 1000, 1001, … 1009."""
    directory = tmp_path / "timed"
    groups = [messages(10 * n, 10, received_at=(1000 + n) * SECOND) for n in range(10)]
    write(directory, *groups)
    return directory


def begun(queue: Path, **options: Any) -> int:
    place = stream(queue, **options).initialOffset()[identity(queue)]
    assert place["since"] == place["offset"]
    return int(place["offset"])


def test_a_stream_begins_where_the_options_say(timed: Path, queue: Path) -> None:
    name = identity(timed)
    assert begun(timed) == begun(timed, startingOffsets="earliest") == 0
    assert begun(timed, startingOffsets="latest", another="option") == 100
    for given, offset in ((23, 23), (-2, 0), (-1, 100), (100, 100)):
        assert begun(timed, startingOffsets=json.dumps({name: given})) == offset
    assert begun(timed, startingOffsets="{}") == 0
    times = ("1970-01-01T00:16:44Z", "1970-01-01T01:16:44+01:00", "1970-01-01T00:16:44")
    for moment in (1_004_000, 1_003_001, *times):
        assert begun(timed, startingTimestamp=moment) == 40
    assert begun(timed, startingTimestamp=0, startingOffsets="latest") == 0
    assert begun(timed, startingOffsetsByTimestamp=json.dumps({name: 1_009_000})) == 90
    places = stream(f"{timed},{queue}", startingOffsets=json.dumps({name: 7})).initialOffset()
    assert {one: place["offset"] for one, place in places.items()} == {name: 7, identity(queue): 0}


def test_what_the_queue_does_not_have_is_one_line_or_its_end(timed: Path) -> None:
    late = {"startingTimestamp": "1970-01-01T00:16:49.001Z"}
    with pytest.raises(ConfigurationError, match=r"no row .* after 1970-01-01T00:16:49\.001Z"):
        begun(timed, **late)
    with pytest.raises(ConfigurationError, match="is milliseconds since 1970"):
        begun(timed, startingTimestamp=10**15)  # microseconds
    assert begun(timed, **late, startingOffsetsByTimestampStrategy="latest") == 100
    beyond = json.dumps({identity(timed): 101})
    with pytest.raises(QueueMismatch, match=r"asks for offset 101 .* which has 0 to 100"):
        begun(timed, startingOffsets=beyond)
    assert begun(timed, startingOffsets=beyond, failOnDataLoss=False) == 100
    with pytest.raises(ConfigurationError, match="name queue other, which is not among"):
        begun(timed, startingOffsets='{"other": 1}')


def test_a_read_covers_what_the_options_say(timed: Path) -> None:
    name = identity(timed)
    for options, offsets in (
        ({}, range(100)),
        ({"startingOffsets": {name: 20}, "endingOffsets": {name: 35}}, range(20, 35)),
        ({"startingTimestamp": 1_002_000, "endingTimestamp": 1_004_000}, range(20, 40)),
        ({"endingOffsetsByTimestamp": {name: 1_001_000}}, range(10)),
        ({"startingOffsets": "latest"}, []),
        ({"endingTimestamp": 9_999_999}, range(100)),
    ):
        given = {
            option: json.dumps(value) if isinstance(value, dict) else value
            for option, value in options.items()
        }
        assert offsets_of(batch(timed, **given)) == list(offsets)


def test_a_time_is_found_beside_damaged_rows(timed: Path) -> None:
    damage_record(timed, b'{"n":40}')
    assert begun(timed, startingTimestamp=1_004_000) in range(40, 51)
    assert offsets_of(batch(timed, startingTimestamp=1_004_000)) == list(range(50, 100))
    assert begun(timed, startingTimestamp=1_003_000) == 30


def test_small_groups_are_merged_into_large_batches(timed: Path) -> None:
    reader = batch(timed)
    [rows] = [rows for part in reader.partitions() for rows in reader.read(part)]
    assert rows.num_rows == 100
    assert rows.schema.equals(SCHEMA)


def test_damaged_rows_are_left_out_and_reported_once_a_task__RD_29(
    queue: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage_record(queue, b'{"n":777}')
    name = identity(queue)
    reader = batch(queue, sql.GreaterThanOrEqual(("offset",), 100), sql.LessThan(("offset",), 1200))
    assert offsets_of(reader) == [*range(100, 600), *range(900, 1200)]
    text = re.escape(
        f"queue {name}: 300 of the rows 100..1199 are damaged and were skipped (offsets 600..899)\n"
    )
    assert re.fullmatch(rf"msgproto: \d{{4}}-\d\d-\d\dT\S+Z {text}", capfd.readouterr().err)


# -- filters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([sql.EqualTo(("offset",), 5)], (5, 6)),
        ([sql.EqualNullSafe(("offset",), 5)], (5, 6)),
        ([sql.In(("offset",), (9, 5, 7))], (5, 10)),
        ([sql.GreaterThan(("offset",), 5)], (6, 100)),
        ([sql.GreaterThanOrEqual(("offset",), 5)], (5, 100)),
        ([sql.LessThan(("offset",), 5)], (0, 5)),
        ([sql.LessThanOrEqual(("offset",), 5)], (0, 6)),
        ([sql.EqualTo(("offset",), "5")], (0, 100)),
        ([sql.In(("offset",), (5, None))], (0, 100)),
        ([sql.In(("offset",), ())], (0, 100)),
        ([sql.IsNotNull(("offset",))], (0, 100)),
        ([sql.Not(sql.EqualTo(("offset",), 5))], (0, 100)),
        ([sql.GreaterThan(("count",), 5)], (0, 100)),
        ([sql.EqualTo(("offset",), 1000)], None),
        (
            [
                sql.GreaterThan(("offset",), 5),
                sql.GreaterThanOrEqual(("offset",), 3),
                sql.LessThan(("offset",), 20),
                sql.LessThanOrEqual(("offset",), 30),
            ],
            (6, 20),
        ),
    ],
    ids=repr,
)
def test_what_is_read_holds_every_offset_that_the_filters_want(
    timed: Path, filters: list[Any], bounds: tuple[int, int] | None
) -> None:
    for order in (filters, filters[::-1]):
        parts = batch(timed, *order).partitions()
        assert [(each.value.lo, each.value.hi) for each in parts] == (
            [] if bounds is None else [bounds]
        )


def test_gateways_are_those_that_every_filter_names(timed: Path, queue: Path) -> None:
    one, two = identity(timed), identity(queue)
    several = sql.In(("gateway",), (one, two, None))
    for filters, read in (
        ([several], {one, two}),
        ([several, sql.EqualTo(("gateway",), two)], {two}),
        ([several, sql.EqualNullSafe(("gateway",), "c")], set()),
        ([sql.StringContains(("gateway",), "zz")], {one, two}),
    ):
        parts = batch(f"{timed},{queue}", *filters).partitions()
        assert {each.value.gateway for each in parts} == read


def test_filters_on_columns_leave_rows_out_before_spark_has_them(timed: Path) -> None:
    write(timed, messages(0, 5, protocol="umq", destination=["a", None, "b", "c", None]))
    at = dt.datetime.fromtimestamp(1004, dt.UTC)
    umq = sql.EqualTo(("protocol",), "umq")
    for filters, offsets in (
        ([sql.EqualTo(("received_at",), at)], range(40, 50)),
        # Null-safe: a row without a destination is not equal to "a", and stays.
        ([umq, sql.Not(sql.EqualNullSafe(("destination",), "a"))], range(101, 105)),
        ([sql.EqualTo(("unknown",), 1)], range(105)),
    ):
        assert offsets_of(batch(timed, *filters)) == list(offsets)


COLUMNS = {
    "row": pa.array(range(4)),
    "offset": pa.array([0, 1, 2, None], pa.int64()),
    "kind": pa.array(["json", "text", None, "js_n"], pa.string()),
    "day": pa.array([dt.date(2024, 1, 1), None, dt.date(2024, 1, 3), dt.date(2024, 1, 2)]),
    "at": pa.array([10, 20, None, 30], pa.timestamp("us", "UTC")),
    "flag": pa.array([True, False, None, True], pa.bool_()),
    "share": pa.array([0.5, None, 1.5, 2.5], pa.float64()),
}
JAN_2 = dt.date(2024, 1, 2)
AT_20 = dt.datetime.fromtimestamp(20e-6, dt.UTC)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A table with a column of each kind, and nulls in it."""
    location = str(tmp_path_factory.mktemp("columns") / "table")
    write_deltalake(location, pa.table(COLUMNS))
    yield location


def left(table: str, *filters: sql.Filter) -> list[int]:
    """The rows that a table's source gives Spark, which applies every filter once more."""
    source = data_source("msgproto-table", path=table, pushFilters=True)
    reader = source.reader(source.schema())
    reader.pushFilters(list(filters))
    batches = [rows for part in reader.partitions() for rows in reader.read(part)]
    return [row for rows in batches for row in rows.column("row").to_pylist()]


def said(column: str, holds: Callable[[Any], bool]) -> list[int]:
    """The rows for which SQL says true: of null only what ``holds`` says of None."""
    return [row for row, value in enumerate(COLUMNS[column].to_pylist()) if holds(value)]


def known(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is not None and holds(value)


FILTERS: list[tuple[sql.Filter, Callable[[Any], bool]]] = [
    (sql.EqualTo(("offset",), 1), known(lambda value: value == 1)),
    (sql.EqualNullSafe(("offset",), 1), known(lambda value: value == 1)),
    (sql.GreaterThan(("offset",), 1), known(lambda value: value > 1)),
    (sql.GreaterThanOrEqual(("offset",), 1), known(lambda value: value >= 1)),
    (sql.LessThan(("offset",), 1), known(lambda value: value < 1)),
    (sql.LessThanOrEqual(("offset",), 1), known(lambda value: value <= 1)),
    (sql.In(("offset",), (0, 2)), known(lambda value: value in (0, 2))),
    (sql.In(("offset",), (0, None)), known(lambda value: value == 0)),
    (sql.IsNull(("kind",)), lambda value: value is None),
    (sql.IsNotNull(("kind",)), lambda value: value is not None),
    (sql.EqualTo(("kind",), "json"), known(lambda value: value == "json")),
    (sql.StringStartsWith(("kind",), "js_"), known(lambda value: value.startswith("js_"))),
    (sql.StringEndsWith(("kind",), "on"), known(lambda value: value.endswith("on"))),
    (sql.StringContains(("kind",), "ex"), known(lambda value: "ex" in value)),
    (sql.GreaterThan(("day",), JAN_2), known(lambda value: value > JAN_2)),
    (sql.LessThanOrEqual(("at",), AT_20), known(lambda value: value <= AT_20)),
    (sql.EqualTo(("flag",), True), known(lambda value: value is True)),
]


@pytest.mark.parametrize(("one", "holds"), FILTERS, ids=lambda value: type(value).__name__)
def test_a_filter_and_its_opposite_leave_exactly_the_rows_that_sql_wants(
    table: str, one: sql.Filter, holds: Callable[[Any], bool]
) -> None:
    [column] = one.attribute  # type: ignore[attr-defined]
    assert left(table, one) == said(column, holds)
    total = isinstance(one, sql.IsNull | sql.IsNotNull | sql.EqualNullSafe)
    others = (lambda value: not holds(value)) if total else known(lambda value: not holds(value))
    nulls = said(column, lambda value: value is None)
    if isinstance(one, sql.In):  # Arrow keeps null as well; Spark drops it itself
        assert set(left(table, sql.Not(one))) == {*said(column, others), *nulls}
    else:
        assert left(table, sql.Not(one)) == said(column, others)


@pytest.mark.parametrize(
    "one",
    [
        sql.EqualTo(("nothing",), 1),
        sql.EqualTo(("kind", "of"), "json"),
        sql.EqualTo(("offset",), None),
        sql.EqualTo(("offset",), "1"),
        sql.EqualTo(("offset",), True),
        sql.EqualTo(("offset",), 1 << 70),
        sql.EqualTo(("flag",), 1),
        sql.EqualTo(("share",), 0.5),
        sql.EqualTo(("at",), dt.datetime(2024, 1, 1)),
        sql.In(("offset",), (1, "2")),
        sql.In(("offset",), (None,)),
        sql.StringContains(("offset",), "1"),
        sql.StringContains(("day",), JAN_2),  # type: ignore[arg-type]
        sql.Not(sql.EqualTo(("share",), 0.5)),
        sql.Filter(),
    ],
    ids=lambda one: re.sub(r"\W+", "-", repr(one)),
)
def test_what_arrow_may_see_differently_stays_with_spark(table: str, one: sql.Filter) -> None:
    assert left(table, one) == [0, 1, 2, 3]
    assert left(table, one, sql.EqualTo(("offset",), 1)) == [1]
    assert left(table, sql.GreaterThan(("offset",), 0), sql.EqualTo(("kind",), "text"), one) == [1]
