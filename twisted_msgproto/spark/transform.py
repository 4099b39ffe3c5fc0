"""Run a pipeline of one's own between the queues and the table, exactly once like everything else.

The function must not keep anything from one batch to the next. It is called once at the start with
no rows at all; the columns that it returns then are the table's. When it raises,
:class:`FunctionFailed` says so, and no mark moves.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import logging
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle, daemon
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from ..core.errors import ConfigurationError, MsgprotoError, TableError
from ..core.loading import import_object
from ..queue import SCHEMA
from ..table.columns import check_name
from ..table.dead_letters import FunctionFailed
from ..table.landing import (
    DAY,
    Failure,
    Files,
    LandedRanges,
    Target,
    read_all,
    undone,
)
from ..table.object_storage import storage_at
from ..table.plan import Range
from .jobs import JOB_GROUP, SparkRunner, rows_of, settle, spans_of
from .registration import OWN_ERROR, PYTHON_ERROR, first_line
from .source import arrow_schema, spark_schema
from .source_options import open_range

if TYPE_CHECKING:
    from pyspark import Accumulator

Function = Callable[[DataFrame], DataFrame]

# A task names so the gateway that it could not read, through Java: JSON in hexadecimal digits,
# which a traceback's line of the program has not.
FAILED = re.compile(r"msgproto-failed: ([0-9a-f]+);")

LANDABLE: tuple[type[st.DataType], ...] = (
    *(st.StringType, st.BinaryType, st.BooleanType, st.DateType, st.TimestampType),
    *(st.ByteType, st.ShortType, st.IntegerType, st.LongType),
    *(st.FloatType, st.DoubleType, st.DecimalType),
)
"""A table can hold these simple types, and every reader of Delta tables understands them."""

BY_ROW = frozenset(
    {"Project", "Filter", "Generate", "MapInArrow", "MapInPandas", "SubqueryAlias", "View"}
    | {"Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint"}
)
"""With these steps of a query, what becomes of a row does not depend on other rows."""

JOINS_BY_ROW = {"Inner": (0, 1), "Cross": (0, 1)} | dict.fromkeys(
    ("LeftOuter", "LeftSemi", "LeftAnti"), (0,)
)
"""Joins are such steps, if the messages are on one of these sides."""

OF_DATA = ("21", "22", "23", "39", "P0")  # SQLSTATEs: a row, or a function on it, is at fault


# All tables' functions share a session: one might replace another's temporary view before its use.
_calling = threading.Lock()


class RowRefused(ValueError):
    """A row that the function has returned cannot stand in the table."""


class Transform:
    """Lands batches through the function ``name`` (``MODULE:FUNCTION``); a runner of the loop."""

    def __init__(self, runner: SparkRunner, name: str) -> None:
        self._runner = runner
        self._spark = SparkSession(runner.context)
        self._name = name
        self._function = load_function(name)
        try:
            require_minimum_pandas_version()
        except ImportError as error:
            raise ConfigurationError(
                f"a transform needs pandas ({first_line(error)}): "
                "pip install 'twisted-msgproto[spark]'"
            ) from None
        # They print a page for each row that SQL refuses, or a step of a query in Python.
        for words in ("SQL", "DataFrame"):
            logging.getLogger(f"{words}QueryContextLogger").setLevel(logging.CRITICAL)
        try:
            empty = self._apply(self._spark.createDataFrame([], spark_schema()))
        except MsgprotoError as error:
            raise ConfigurationError(str(error)) from error
        except Exception as error:
            raise ConfigurationError(
                f"the transform {name} failed: {type(error).__name__}: {first_line(error)}"
            ) from error
        self.schema: pa.Schema = landed_schema(name, empty.schema)
        self._by_row = by_row(empty._jdf.queryExecution().analyzed())

    def __call__(self, target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        """Land ``tasks`` through the function, durably; FunctionFailed when it raises."""
        spark, context = self._spark, self._runner.context
        rows = rows_of(spans_of(tasks))
        context.setJobGroup(JOB_GROUP, f"{rows} rows through {self._name}", True)
        met: Accumulator[frozenset[Met]] = context.accumulator(frozenset(), Union())
        # One row a task, made by Java: the function's DataFrame has exactly these partitions.
        numbers = spark.range(0, len(tasks), 1, len(tasks))
        given = numbers.mapInArrow(reading([list(ranges) for ranges in tasks], met), spark_schema())
        try:
            result = self._apply(given)
            self._check_columns(result)
            names = [name for name in target.schema.names if name in result.columns]
            # mapInArrow takes a dot or a backtick in a name for more than a letter.
            quoted = [f"`{name.replace('`', '``')}`" for name in names]
            plain = result.select(*quoted).toDF(*(f"c{n}" for n in range(len(names))))
            written = plain.mapInArrow(writing(target, names), "landed binary").collect()
        except Exception as error:
            failed = failures(str(error))
            if failed:
                return LandedRanges(failed=failed)
            raise self._explained(error) from error
        return collected([pickle.loads(row[0]) for row in written], tasks, met.value)

    def _apply(self, given: DataFrame) -> DataFrame:
        with _calling:
            result = self._function(given)
        if not isinstance(result, DataFrame):
            raise TableError(
                f"the transform {self._name} returned {type(result).__name__}, not a DataFrame"
            )
        return result

    def _check_columns(self, result: DataFrame) -> None:
        try:
            schema = landed_schema(self._name, result.schema)
        except ConfigurationError as error:
            raise TableError(str(error)) from error
        now, before = ({one.name: one.type for one in each} for each in (schema, self.schema))
        strange = [name for name in {**before, **now} if now.get(name) != before.get(name)]
        if strange:
            was, is_now = (each.get(strange[0], "not there") for each in (before, now))
            raise TableError(
                f"the transform {self._name} returns other columns than at the start: "
                f"{strange[0]!r} was {was} and is {is_now}"
            )

    def _explained(self, error: Exception) -> MsgprotoError:
        reason = raised(error)
        if reason:
            return FunctionFailed(self._name, reason, by_row=self._by_row)
        told = self._runner.explained(error)
        if type(told) is not TableError:
            return told
        return TableError(f"the transform {self._name}: {told}")


def raised(error: Exception) -> str:
    """Return what the function raised; empty if storage, queue, Java or memory was at fault."""
    text = str(error)
    if isinstance(error, MsgprotoError) or OWN_ERROR.search(text):
        return ""
    line = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, PythonException):
        found = PYTHON_ERROR.search(text)
        line = found["error"] if found else first_line(error)
    elif isinstance(error, PySparkException):
        state = error.getSqlState() or ""
        return first_line(error) if state[:2] in OF_DATA else ""
    elif type(error).__module__.startswith("py4j"):
        return ""
    line = line.removeprefix(f"{__name__}.{RowRefused.__name__}: ")
    kind = getattr(builtins, line.partition(":")[0], None)
    elsewhere = isinstance(kind, type) and issubclass(kind, (OSError, MemoryError))
    return "" if elsewhere else first_line(line)


def by_row(query: Any) -> bool:
    """Return whether what a query (Java's plan of it) makes of a message depends on it alone."""
    return _by_row(query) == (1, True)


def _by_row(query: Any) -> tuple[int, bool]:
    """Return how often a query reads the messages, and whether each step on their way is by row."""
    children = query.children()
    below = [_by_row(children.apply(number)) for number in range(children.size())]
    if not below:
        return int(list(query.schema().fieldNames()) == SCHEMA.names), True
    good = all(fine for reads, fine in below if reads)
    reads = sum(reads for reads, _ in below)
    if reads:
        sides: tuple[int, ...] = (0,) if query.nodeName() in BY_ROW else ()
        if query.nodeName() == "Join":
            sides = JOINS_BY_ROW.get(query.joinType().toString(), ())
        good &= query.subqueries().isEmpty() and any(below[side][0] for side in sides)
    return reads, good


def load_function(name: str) -> Function:
    """Return the function ``MODULE:FUNCTION``; the working directory is searched, too."""
    if not all(name.partition(":")):
        raise ConfigurationError(f"--transform is MODULE:FUNCTION, not {name!r}")
    try:
        module, function = import_object(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"--transform {name}: {error}") from error.__cause__
    if not callable(function):
        module_name, _, attribute = name.partition(":")
        raise ConfigurationError(
            f"--transform {name}: the module {module_name} has no function {attribute}"
        )
    # Workers need not have the module: what of it a query needs is sent along.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    found: Function = function
    return found


def landed_schema(name: str, schema: st.StructType) -> pa.Schema:
    lower = [column.lower() for column in schema.names]
    twice = sorted({column for column in lower if lower.count(column) > 1})
    if twice:
        raise ConfigurationError(f"the transform {name} returns the column {twice[0]} twice")
    for field in schema.fields:
        refuse_name(name, field.name)
        refuse_type(name, field.name, field.dataType)
    # Rows from before the function made a column are null there, and those after it did.
    landed = pa.schema(
        column if column.name in SCHEMA.names else column.with_nullable(True)
        for column in arrow_schema(schema)
    )
    if DAY.name in schema.names:
        if landed.field(DAY.name).type != DAY.type:
            raise ConfigurationError(
                f"the transform {name} returns a column day which is no date; the table is "
                "partitioned by it"
            )
        position = landed.get_field_index(DAY.name)
        return landed.remove(position).append(DAY)
    times = schema["received_at"].dataType if "received_at" in schema.names else None
    if not isinstance(times, st.TimestampType):
        raise ConfigurationError(
            f"the transform {name} must return received_at (a timestamp) or day (a date): the "
            "table is partitioned by day"
        )
    return landed.append(DAY)


def refuse_name(name: str, column: str) -> None:
    try:
        check_name(column)
    except ConfigurationError as error:
        raise ConfigurationError(f"the transform {name}: {error}; give it an alias") from None


def refuse_type(name: str, column: str, kind: st.DataType) -> None:
    if isinstance(kind, st.StructType):
        if not kind.fields:
            raise ConfigurationError(
                f"the transform {name} returns {column} as a structure of nothing, which a table "
                "cannot hold"
            )
        for field in kind.fields:
            refuse_name(name, field.name)
            refuse_type(name, f"{column}.{field.name}", field.dataType)
    elif isinstance(kind, st.ArrayType):
        refuse_type(name, column, kind.elementType)
    elif isinstance(kind, st.MapType):
        refuse_type(name, column, kind.keyType)
        refuse_type(name, column, kind.valueType)
    elif type(kind) not in LANDABLE:
        raise ConfigurationError(
            f"the transform {name} returns {column} as {kind.simpleString()}, which a table "
            "cannot hold; cast it (VARIANT: to a string)"
        )


# -- on the workers -------------------------------------------------------------------------------

Met = tuple[str, int, int, int, tuple[tuple[int, int], ...]]  # gateway, bounds, rows, damage


class Union(AccumulatorParam[frozenset[Met]]):
    """What reads told.  Told twice (a task was run again) it is still one thing."""

    def zero(self, value: frozenset[Met]) -> frozenset[Met]:
        return frozenset()

    def addInPlace(self, value1: frozenset[Met], value2: frozenset[Met]) -> frozenset[Met]:
        return value1 | value2


Batches = Iterable[pa.RecordBatch]


def reading(
    tasks: Sequence[Sequence[Range]], met: Accumulator[frozenset[Met]]
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def read(numbers: Batches) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_task(tasks[number], met)

    return read


def read_task(
    ranges: Sequence[Range], met: Accumulator[frozenset[Met]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task.  Raises TableError that names the gateway if it cannot be read."""
    rows: dict[Range, int] = dict.fromkeys(ranges, 0)
    for part, item in read_all(ranges, open_range):
        if isinstance(item, Failure):
            told = {"gateway": part.gateway, "mismatch": item.mismatch, "line": item.line}
            raise TableError(f"msgproto-failed: {json.dumps(told).encode().hex()};")
        if isinstance(item, pa.RecordBatch):
            rows[part] += item.num_rows
            yield pa.RecordBatch.from_arrays(item.columns, schema=SCHEMA)
        else:
            damaged = tuple((lo, hi) for lo, hi in item)
            met.add(frozenset([(part.gateway, part.lo, part.hi, rows[part], damaged)]))


def writing(target: Target, names: Sequence[str]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        landed = write_rows(target, (batch.rename_columns(list(names)) for batch in batches))
        yield pa.RecordBatch.from_pydict({"landed": [pickle.dumps(landed)]})

    return write


def write_rows(target: Target, batches: Batches) -> LandedRanges:
    files = Files(target, storage_at(target.location, target.storage))
    landed = LandedRanges()
    with undone(target, files.remove):
        for batch in batches:
            if batch.num_rows:
                files.write(fitted(batch, target))
        landed.files = files.finish()
    return landed


def fitted(batch: pa.RecordBatch, target: Target) -> pa.RecordBatch:
    columns = []
    for field in target.schema:
        if field.name in batch.schema.names:
            try:
                column = batch.column(field.name).cast(field.type)
            except pa.ArrowException as error:
                line = first_line(error)
                raise RowRefused(f"{field.name} of the result cannot be stored: {line}") from error
        else:  # day alone: landed_schema saw to it
            column = batch.column("received_at").cast(pa.timestamp("us", "UTC")).cast(pa.date32())
        if column.null_count and (field.name in target.partition_by or not field.nullable):
            raise RowRefused(f"a row of the result has no {field.name}, which the table needs")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target.schema)


# -- on the driver --------------------------------------------------------------------------------


def collected(
    written: Iterable[LandedRanges], tasks: Sequence[Sequence[Range]], met: Iterable[Met]
) -> LandedRanges:
    """Return the batch as a whole; a range whose read told nothing counts as read."""
    landed = LandedRanges(files=[file for part in written for file in part.files])
    told = {(gateway, lo, hi): (rows, damaged) for gateway, lo, hi, rows, damaged in met}
    ranges = sorted((part for task in tasks for part in task), key=lambda part: part.gateway)
    for gateway, parts in groupby(ranges, key=lambda part: part.gateway):
        landed.rows[gateway] = 0
        for part in parts:
            unread: tuple[int, tuple[tuple[int, int], ...]] = (part.hi - part.lo, ())
            rows, damaged = told.get((gateway, part.lo, part.hi), unread)
            landed.rows[gateway] += rows
            if damaged:
                landed.damaged.setdefault(gateway, []).extend(damaged)
    returned = sum(file.rows or 0 for file in landed.files)
    landed.dropped = max(0, sum(landed.rows.values()) - returned)
    return landed


def failures(text: str) -> dict[str, Failure]:
    found = {}
    for match in FAILED.finditer(text):
        told = json.loads(bytes.fromhex(match[1]))
        found[told["gateway"]] = Failure(bool(told["mismatch"]), str(told["line"]))
    return found


if __name__ == "__main__":  # in the place of Spark's own daemon, which forks the workers
    # A function that raises ends its workers: those after it would need seconds of imports.
    with contextlib.suppress(ImportError):
        require_minimum_pandas_version()
    settle()
    daemon.manager()
