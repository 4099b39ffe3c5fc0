"""Present landed rows as people need them: bodies and fields as columns, retries once.

Every function takes a DataFrame that has (at least) the columns of a queue that it speaks of, and
returns one with columns added.  No row is ever lost on the way: what cannot be read as the function
wants it keeps its row, and an error column says why.  They work on a table, on a queue read as a
table and, where the docstring says so, on a stream.

Exactly once holds per (gateway, offset).  A shipper that lost its connection sends again what was
not acknowledged, and such a message lands twice, at two offsets: see :func:`effectively_once`.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from ..core.errors import ConfigurationError

CORRUPT = "_msgproto_corrupt"
"""Spark's JSON reader puts a text that does not fit here; it is never seen outside."""

NOT_TEXT = "the body is not UTF-8"
NOT_JSON = "the body is not JSON"
NOT_OBJECT = "the body is JSON, but not an object"
NOT_FITTING = "the body does not fit the schema"

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
    inferred by reading all bodies once (not for streams).  The members become columns of their own,
    or with ``into`` one struct of that name.  Where a body is not a JSON object or does not fit,
    its members are null, as far as they do not fit, and ``error`` says why; where all is well, or
    there is no body (null), ``error`` is null.

    Raises ConfigurationError when a member has the name of a column that is there already (use
    ``into``), or a stream comes without a schema.
    """
    if schema is None:
        if messages.isStreaming:
            raise ConfigurationError("a stream's JSON needs a schema: json_columns(stream, schema)")
        schema = inferred_schema(messages, body=body)
    shape = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    taken = {name.lower() for name in [*messages.columns, error]}
    clash = [name for name in shape.names if name.lower() in taken] if into is None else []
    if clash:
        raise ConfigurationError(
            f"the member {clash[0]} of the bodies has the name of a column; "
            'give json_columns a name for a struct: into="json"'
        )
    text, value = body_text(body), sf.try_parse_json(body_text(body))
    asked = StructType(shape.fields).add(CORRUPT, "string")
    parsed = messages.withColumn(
        CORRUPT, sf.from_json(text, asked, {"columnNameOfCorruptRecord": CORRUPT})
    )
    members = [sf.col(f"{CORRUPT}.`{name}`").alias(name) for name in shape.names]
    told = (
        sf.when(sf.col(body).isNull(), sf.lit(None).cast("string"))
        .when(text.isNull(), NOT_TEXT)
        .when(value.isNull(), NOT_JSON)
        .when(~sf.schema_of_variant(value).startswith("OBJECT"), NOT_OBJECT)
        .when(sf.col(f"{CORRUPT}.{CORRUPT}").isNotNull(), NOT_FITTING)
    )
    columns = members if into is None else [sf.struct(*members).alias(into)]
    return parsed.select("*", *columns, told.alias(error)).drop(CORRUPT)


def inferred_schema(messages: DataFrame, *, body: str = "body") -> StructType:
    """Return the schema that fits the JSON objects among the bodies; reads them all once."""
    value = sf.try_parse_json(body_text(body))
    objects = messages.where(sf.schema_of_variant(value).startswith("OBJECT"))
    reader = messages.sparkSession.read.option("mode", "DROPMALFORMED")
    return reader.json(objects.select(body_text(body).alias("value"))).schema


def variant_column(
    messages: DataFrame, *, body: str = "body", into: str = "json", error: str = "json_error"
) -> DataFrame:
    """Return ``messages`` with their JSON bodies as one VARIANT column: any shape, queried later.

    ``variant_get(json, '$.user.id', 'bigint')`` or ``json:user.id::bigint`` returns a member.  A
    body that is not JSON is null there, and ``error`` says why.  Works on streams.
    """
    text = body_text(body)
    value = sf.try_parse_json(text)
    told = (
        sf.when(sf.col(body).isNull(), sf.lit(None).cast("string"))
        .when(text.isNull(), NOT_TEXT)
        .when(value.isNull(), NOT_JSON)
    )
    return messages.withColumns({into: value, error: told})


def lumberjack_events(
    messages: DataFrame, *, into: str = "event", error: str = "event_error"
) -> DataFrame:
    """Return Lumberjack's events in one shape, however the shipper framed them.

    A data frame (``kind`` = ``data``) has pairs in ``fields``; a JSON frame has a document in
    ``body``.  ``into`` is a map of text to text for both: the pairs, or the document's members,
    those that are not strings as JSON text (``event['host']``, ``event['@timestamp']``).  A
    document that is not an object is null there, and ``error`` says why.  Other protocols' rows
    are left out.  Works on streams.
    """
    rows = messages.where(sf.col("protocol") == "lumberjack")
    text = body_text()
    value = sf.try_parse_json(text)
    is_pairs = sf.col("kind") == "data"
    document = sf.schema_of_variant(value).startswith("OBJECT")
    members = sf.from_json(text, "map<string,string>")
    told = (
        sf.when(is_pairs, sf.lit(None).cast("string"))
        .when(sf.col("body").isNull() | text.isNull(), NOT_TEXT)
        .when(value.isNull(), NOT_JSON)
        .when(~document, NOT_OBJECT)
    )
    event = sf.when(is_pairs, sf.col("fields")).when(document, members)
    return rows.withColumns({into: event, error: told})


def message_key(key: str | None = None, *, body: str = "body") -> Column:
    """Return what makes two messages the same one: a text, never null for rows with a ``key``.

    ``key`` is a JSON path into the body (``$.event.id``).  Without it the key is a hash (SHA-256)
    of everything the sender decides: :data:`CONTENT`.
    """
    if key is not None:
        if not key.startswith("$"):
            raise ConfigurationError(f"a key is a JSON path as $.event.id, not {key!r}")
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
        CORRUPT, sf.coalesce(sf.concat(sf.lit("k"), known), sf.concat(sf.lit("o"), alone))
    )
    if messages.isStreaming:
        watched = keyed.withWatermark("received_at", window)
        return watched.dropDuplicatesWithinWatermark([CORRUPT]).drop(CORRUPT)
    before = sf.lag("received_at").over(
        Window.partitionBy(CORRUPT).orderBy("received_at", "gateway", "offset")
    )
    late = sf.col("received_at") > before + sf.expr(f"interval {window}")
    marked = keyed.withColumn(CORRUPT, before.isNull() | late)
    return marked.where(sf.col(CORRUPT)).drop(CORRUPT)


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
