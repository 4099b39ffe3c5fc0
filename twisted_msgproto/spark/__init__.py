"""Queues as Structured Streaming sources, and the bridge process from a queue to a table.

Importing this package does not import pyspark; :func:`register` and the bridge do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["need_spark", "register"]


def need_spark() -> None:
    """Imports what the extra ``spark`` brings; ConfigurationError with one line if it is absent."""
    try:
        import pyarrow
        import pyspark.sql.streaming.datasource  # noqa: F401  since pyspark 4.2
    except ImportError as error:
        raise ConfigurationError(
            f"Spark is not installed ({error}): pip install 'twisted-msgproto[spark]'"
        ) from None
    del pyarrow


def register(spark: SparkSession) -> None:
    """Makes ``format("msgproto")`` known to ``spark``, for ``readStream`` and for ``read``.

    The workers import this package too: it is installed there, or on their ``PYTHONPATH``.
    Raises ConfigurationError when pyarrow or a recent pyspark is absent.
    """
    need_spark()
    from .source import QueueSource

    spark.dataSource.register(QueueSource)
