"""Present landed rows as people need them: bodies and fields as columns, retries once.

Every function takes a DataFrame that has (at least) the columns of a queue that it speaks of, and
returns one with columns added.  No row is ever lost on the way: what cannot be read as the function
wants it keeps its row, and an error column says why.  They work on a table, on a queue read as a
table and, where the docstring says so, on a stream.

Exactly once holds per (gateway, offset).  A shipper that lost its connection sends again what was
not acknowledged, and such a message lands twice, at two offsets: see :func:`effectively_once`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from ..core.errors import ConfigurationError
from ..core.loading import extras_named

with extras_named():
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError
    from pyspark.sql import Column, DataFrame, Window
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import StructType

    from ..table import columns
    from ..table.column_blocks import Blocks
    from ..table.columns import NOT_OBJECT, NOT_TEXT, Columns
    from .source import arrow_schema

MADE = "_msgproto_made"  # a column in between, never seen outside

NO_VARIANT = "the body is no JSON that a VARIANT can hold"

PATH = re.compile(r"\$(\.[^.\[]+|\[(\d+|\*|'[^'?]+')\])*")
"""Spark's JSON paths: with any other text ``get_json_object`` finds nothing, and says nothing."""

CONTENT = ("protocol", "kind", "destination", "client_id", "fields", "body", "attachments")
"""The sender decides these columns.  A retry has them all again; its session, peer, time and (as
Lumberjack's sequence numbers begin anew with a connection) message_id are others."""


def body_text(column: str = "body") -> Column:
    """Return the body as text; null where it is null or not UTF-8."""
    return sf.try_validate_utf8(sf.col(column).cast("string"))


def json_columns(
    messages: DataFrame,
    schema: StructType | str | None = None,
    *,
    body: str = "body",
    into: str | None = None,
    error: str = "json_error",
) -> DataFrame:
    """Return ``messages`` with the members of their JSON bodies as columns.

    ``schema`` is a Spark schema or its DDL (``"level string, status int"``); without one it is
    inferred by reading all bodies twice (not for streams).  The members become columns of their
    own, or with ``into`` one struct of that name.  Where a body is not a JSON object its members
    are null, and one that does not fit its type is; then ``error`` says which, and why.  Where all
    is well, or there is no body (null), ``error`` is null.  Of equal names in a body the last one
    counts; numbers are read as they are written.  The types' rules are those of a typed table.

    Raises ConfigurationError when a member has the name of a column that is there already (use
    ``into``) or a type that JSON has no values of, or when a stream comes without a schema.
    """
    if schema is None:
        if messages.isStreaming:
            raise ConfigurationError("a stream's JSON needs a schema: json_columns(stream, schema)")
        schema = inferred_schema(messages, body=body)
    shape = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    shape = shape.toNullable()  # what a body lacks is null, whatever the schema says
    taken = {_folded(name) for name in [*messages.columns, error]}
    clash = [name for name in shape.names if _folded(name) in taken] if into is None else []
    if clash:
        raise ConfigurationError(
            f"the member {clash[0]} of the bodies has the name of a column; "
            'give json_columns a name for a struct: into="json"'
        )
    made = messages.withColumn(MADE, _members(shape)(sf.col(body).cast("binary")))
    whole = sf.col(f"{MADE}.value")
    # A name is whatever a sender has written: no path, and perhaps with a backtick.
    members = [whole.getField(name).alias(name) for name in shape.names]
    value = members if into is None else [whole.alias(into)]
    return made.select("*", *value, sf.col(f"{MADE}.error").alias(error)).drop(MADE)


def _members(shape: StructType) -> Callable[[Column], Column]:
    """Return a function of Spark's that makes ``value``, of the type ``shape``, and ``error``."""
    try:
        fields = list(arrow_schema(shape))
    except PySparkTypeError as error:
        line = str(error).partition("] ")[2]
        raise ConfigurationError(f"no column of JSON can be made: {line}") from None
    wanted = Columns(tuple(columns.Column(one.name, one.type, (one.name,)) for one in fields))
    for column in wanted.columns:
        column.convert()  # a type that JSON has no values of is told here
    result = StructType().add("value", shape).add("error", "string")

    def convert(bodies: pa.Array) -> pa.Array:
        done = Blocks(wanted).convert(bodies, None, len(bodies))
        # Unlike from_arrays it knows the length where there is no member.
        value = pa.Array.from_buffers(
            pa.struct(wanted.fields), len(bodies), [None], children=done.columns
        )
        return pa.StructArray.from_arrays([value, done.errors], ["value", "error"])

    return _arrow_udf(convert, result)


def _arrow_udf(function: Callable[..., pa.Array], result: st.DataType) -> Callable[..., Column]:
    factory: Any = arrow_udf  # its hints know functions of one value, not of arrays
    made: Callable[..., Column] = factory(function, result)
    return made


def inferred_schema(messages: DataFrame, *, body: str = "body") -> StructType:
    """Return the schema that fits the JSON objects among the bodies; reads them all once.

    Of names that differ only in case, which no table can have both, the first one stays.  What is
    nested deeper than 50 levels, more than Arrow hands over, is text, which no object is.
    """
    documents = _arrow_udf(_documents, st.StringType())(sf.col(body).cast("binary"))
    texts = messages.select(documents.alias("value")).where("value IS NOT NULL")
    session = messages.sparkSession
    setting = "spark.sql.caseSensitive"  # without it, which name stays is a matter of chance
    before = session.conf.get(setting)
    session.conf.set(setting, "true")
    try:
        reader = session.read.option("mode", "DROPMALFORMED")
        # A member of this name would have to be a text: Spark makes no column of an empty one.
        found = reader.option("columnNameOfCorruptRecord", "").json(texts).schema
    finally:
        session.conf.set(setting, str(before))
    return cast(StructType, _distinct(found))


def _documents(bodies: pa.Array) -> pa.Array:
    """Return those bodies that are objects as JSON in which no name stands twice."""
    return pa.array([_document(body) for body in bodies.to_pylist()], pa.string())


def _document(body: bytes | None) -> str | None:
    try:
        value = None if body is None else columns.parse(body)
    except columns.BodyError:
        return None
    return columns.json_text(value) if isinstance(value, dict) else None


def _distinct(kind: st.DataType, levels: int = 50) -> st.DataType:
    if not isinstance(kind, st.ArrayType | StructType):
        return kind
    if not levels:
        return st.StringType()
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_distinct(kind.elementType, levels - 1))
    fields: dict[str, st.StructField] = {}
    for field in kind.fields:
        inner = _distinct(field.dataType, levels - 1)
        fields.setdefault(_folded(field.name), st.StructField(field.name, inner))
    return StructType(list(fields.values()))


def _folded(name: str) -> str:
    """Return what Spark compares of a name: Java's equalsIgnoreCase, a character at a time."""
    upper = (char.upper() if len(char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in upper)


def variant_column(
    messages: DataFrame, *, body: str = "body", into: str = "json", error: str = "json_error"
) -> DataFrame:
    """Return ``messages`` with their JSON bodies as one VARIANT column: any shape, queried later.

    ``variant_get(json, '$.user.id', 'bigint')`` or ``json:user.id::bigint`` returns a member.  A
    body that is not JSON is null there, and ``error`` says why; so is one that a VARIANT cannot
    hold, which has a name twice in an object, say.  Numbers lose their spelling, and those with
    more than 38 digits their last ones.  Works on streams.
    """
    text = body_text(body)
    # The parser ends where the value ends, and would not see what follows: the second element has
    # to come after it.  A body cannot bring it along, because it would have to hold its own digest.
    digest = sf.md5(text.cast("binary"))
    pair = sf.try_parse_json(sf.concat(sf.lit("["), text, sf.lit(',"'), digest, sf.lit('"]')))
    good = sf.coalesce(sf.try_variant_get(pair, "$[1]", "string") == digest, sf.lit(False))
    told = (
        sf.when(sf.col(body).isNull() | good, sf.lit(None).cast("string"))
        .when(text.isNull(), NOT_TEXT)
        .otherwise(NO_VARIANT)
    )
    value = sf.when(good, sf.try_variant_get(pair, "$[0]", "variant"))
    return messages.withColumns({into: value, error: told})


def lumberjack_events(
    messages: DataFrame, *, into: str = "event", error: str = "event_error"
) -> DataFrame:
    """Return Lumberjack's events in one shape, however the shipper framed them.

    A data frame (``kind`` = ``data``) has pairs in ``fields``; a JSON frame has a document in
    ``body``.  ``into`` is a map of text to text for both: the pairs, or the document's members,
    those that are not strings as JSON text with numbers as they were written (``event['host']``,
    ``event['@timestamp']``).  A document that is not an object is null there, and ``error`` says
    why.  Other protocols' rows are left out.  Works on streams.
    """
    rows = messages.where(sf.col("protocol") == "lumberjack")
    texts = st.MapType(st.StringType(), st.StringType())
    result = StructType().add("value", texts).add("error", "string")
    made = rows.withColumn(MADE, _arrow_udf(_events, result)(sf.col("body")))
    is_pairs = sf.col("kind") == "data"
    event = sf.when(is_pairs, sf.col("fields")).otherwise(sf.col(f"{MADE}.value"))
    told = sf.when(~is_pairs, sf.coalesce(f"{MADE}.error", sf.when(event.isNull(), NOT_TEXT)))
    return made.withColumns({into: event, error: told}).drop(MADE)


def _events(bodies: pa.Array) -> pa.Array:
    found = [(None, None) if body is None else _event(body) for body in bodies.to_pylist()]
    values = pa.array([event for event, _ in found], pa.map_(pa.string(), pa.string()))
    errors = pa.array([error for _, error in found], pa.string())
    return pa.StructArray.from_arrays([values, errors], ["value", "error"])


def _event(body: bytes) -> tuple[list[tuple[str, str | None]] | None, str | None]:
    try:
        document = columns.parse(body)
    except columns.BodyError as error:
        return None, str(error)
    if not isinstance(document, dict):
        return None, NOT_OBJECT
    texts = [
        (name, value if isinstance(value, str) or value is None else columns.json_text(value))
        for name, value in document.items()
    ]
    try:
        for name, text in texts:
            columns.as_string(name)
            columns.as_string(text or "")
    except columns.Unfit as error:
        return None, f"the body has a text that is {error}"
    return texts, None


def message_key(key: str | None = None, *, body: str = "body") -> Column:
    """Return what makes two messages the same one: a text, never null for rows with a ``key``.

    ``key`` is a JSON path into the body (``$.event.id``).  Without it the key is a hash (SHA-256)
    of everything the sender decides: :data:`CONTENT`.
    """
    if key is not None:
        if not PATH.fullmatch(key):
            raise ConfigurationError(
                f"a key is a JSON path as $.event.id or $['event.id'], not {key!r}"
            )
        return sf.get_json_object(body_text(body), key)
    parts = []
    for name in CONTENT:
        column = sf.col(name)
        if name == "fields":
            column = sf.to_json(sf.array_sort(sf.map_entries(column)))
        elif name == "body":
            column = sf.hex(body)
        elif name == "attachments":
            column = sf.to_json(sf.transform(column, lambda one: sf.hex(one)))
        # Null and "" are different, and no value runs into the next one.
        parts.append(sf.coalesce(sf.concat(sf.lit("="), sf.base64(column)), sf.lit("-")))
    return sf.sha2(sf.concat_ws(",", *parts), 256)


def effectively_once(
    messages: DataFrame, key: str | None = None, *, window: str = "1 hour", body: str = "body"
) -> DataFrame:
    """Return ``messages`` without those that a retry sent again: the first of each key stays.

    Two messages are the same when they have the same ``key`` (see :func:`message_key`) and were
    received no more than ``window`` apart.  A retry of a retry counts from the one before it.  A
    row whose body has no such member (the JSON path finds nothing) stays.  ``window`` is a Spark
    interval: longer than your shippers retry, short enough that a message that is meant to come
    again (a heartbeat) is no duplicate; where such messages exist, use a key that is unique.

    On a stream Spark's ``dropDuplicatesWithinWatermark`` does it, with ``window`` as watermark of
    ``received_at``: it keeps the keys of at least one window as its state, and of rows that come
    in one batch any may be the one that stays.
    """
    known = message_key(key, body=body)
    # Without a key a row is only the same as itself.
    alone = sf.concat_ws(":", "gateway", "offset")
    keyed = messages.withColumn(
        MADE, sf.coalesce(sf.concat(sf.lit("k"), known), sf.concat(sf.lit("o"), alone))
    )
    if messages.isStreaming:
        watched = keyed.withWatermark("received_at", window)
        return watched.dropDuplicatesWithinWatermark([MADE]).drop(MADE)
    before = sf.lag("received_at").over(
        Window.partitionBy(MADE).orderBy("received_at", "gateway", "offset")
    )
    late = sf.col("received_at") > before + sf.expr(f"interval {window}")
    marked = keyed.withColumn(MADE, before.isNull() | late)
    return marked.where(sf.col(MADE)).drop(MADE)


def create_views(messages: DataFrame, name: str = "messages") -> list[str]:
    """Make views for SQL of a table (or of a queue read as a table), and return their names.

    ===================  =======================================================================
    ``NAME``             the rows as they are
    ``NAME_text``        and ``text``: the body as text, null where it is not UTF-8
    ``NAME_json``        and ``json`` (VARIANT), ``json_error``: see :func:`variant_column`
    ``NAME_lumberjack``  Lumberjack's rows, ``event``, ``event_error``: :func:`lumberjack_events`
    ``NAME_once``        without what retries sent again within an hour: :func:`effectively_once`
    ===================  =======================================================================
    """
    views = {
        name: messages,
        f"{name}_text": messages.withColumn("text", body_text()),
        f"{name}_json": variant_column(messages),
        f"{name}_lumberjack": lumberjack_events(messages),
        f"{name}_once": effectively_once(messages),
    }
    for view, frame in views.items():
        frame.createOrReplaceTempView(view)
    return list(views)
