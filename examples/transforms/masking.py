"""Personal data masked before anything lands.

    msgproto bridge --queue /var/lib/gateway/queue --table /data/messages \\
        --transform examples.transforms.masking:masked

Addresses of mail and the last part of IPv4 addresses do not reach the table, neither in bodies nor
in fields; health checks do not land at all.  A body that is not UTF-8 text cannot be looked
through, so it does not land either; its row does, with ``masked`` = ``dropped``.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

MAIL = r"[\w.+-]+@[\w-]+(\.[\w-]+)+"
ADDRESS = r"\b(\d{1,3}\.\d{1,3}\.\d{1,3})\.\d{1,3}\b"


def without_names(text: Column) -> Column:
    """The text with what names a person replaced."""
    return sf.regexp_replace(sf.regexp_replace(text, MAIL, "<mail>"), ADDRESS, "$1.0")


def masked(messages: DataFrame) -> DataFrame:
    """The rows without personal data and without health checks."""
    text = sf.try_validate_utf8(sf.col("body").cast("string"))
    wanted = messages.where(sf.coalesce(sf.col("destination") != "health", sf.lit(True)))
    return wanted.select(
        "gateway",
        "offset",
        "received_at",
        "protocol",
        "kind",
        "destination",
        without_names(sf.col("peer")).alias("peer"),
        sf.transform_values("fields", lambda _, value: without_names(value)).alias("fields"),
        without_names(text).cast("binary").alias("body"),
        sf.when(sf.col("body").isNull() | text.isNotNull(), "read")
        .otherwise("dropped")
        .alias("masked"),
    )
