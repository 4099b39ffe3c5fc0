"""JSON logs into typed columns.

    msgproto bridge --queue /var/lib/gateway/queue --table /data/logs \\
        --transform examples.transforms.json_columns:typed

Every log line is a JSON document in ``body``, as Filebeat and others send it.  Its members become
columns of the table with types of their own.  A body which is not such a document keeps its row:
its members are null, ``json_error`` says why, and ``body`` still has the bytes.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from twisted_msgproto.spark.views import json_columns

SCHEMA = """
    `@timestamp` timestamp,
    level string,
    message string,
    status int,
    duration_ms double,
    host struct<name: string>
"""


def typed(messages: DataFrame) -> DataFrame:
    """The rows with the members of their bodies as columns, and their place in the queue."""
    lines = json_columns(messages, SCHEMA)
    return lines.select(
        "gateway",
        "offset",
        "received_at",
        "peer",
        sf.col("`@timestamp`").alias("logged_at"),
        "level",
        "message",
        "status",
        "duration_ms",
        sf.col("host.name").alias("host"),
        "json_error",
        # What could be read does not need to be kept twice.
        sf.when(sf.col("json_error").isNotNull(), sf.col("body")).alias("body"),
    )
