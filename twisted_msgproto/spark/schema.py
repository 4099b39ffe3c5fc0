"""The queue's columns as Spark has them, and Arrow's as Spark wants them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..queue import SCHEMA


def spark_schema() -> StructType:
    """Return the columns of every queue as a Spark type, built by hand.

    ``StructType.fromDDL`` needs a running Spark context, and a worker has none.
    """
    return StructType([StructField(f.name, spark_type(f.type), f.nullable) for f in SCHEMA])


def spark_type(arrow: pa.DataType) -> DataType:
    """Return the Spark type of a column of the queue's schema."""
    if pa.types.is_map(arrow):
        return MapType(spark_type(arrow.key_type), spark_type(arrow.item_type))
    if pa.types.is_list(arrow):
        return ArrayType(spark_type(arrow.value_type))
    if pa.types.is_timestamp(arrow):
        return TimestampType()
    simple: dict[pa.DataType, DataType] = {
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.int64(): LongType(),
        pa.bool_(): BooleanType(),
    }
    return simple[arrow]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the very Arrow schema that Spark expects of a task that yields ``schema``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
