"""This package reads queues as Structured Streaming sources, and contains the bridge process from
queues to a table.

Importing this package does not import pyspark; :func:`register` and the others do.

=====================================  ===========================================================
:func:`register`                       ``format("msgproto")`` and ``format("msgproto-table")``
:func:`release`                        lets a queue forget what a stream of one's own made durable
:func:`read_table`                     a landed table as a DataFrame, without the Delta package
:mod:`~twisted_msgproto.spark.views`   bodies and fields as columns, duplicates of retries removed
=====================================  ===========================================================
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["need_spark", "read_table", "register", "release"]


def need_spark() -> None:
    """Import what the extra ``spark`` installs; raise ConfigurationError with one line if it is
    absent.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql.streaming.datasource  # noqa: F401  since pyspark 4.2
    except ImportError as error:
        found = getattr(sys.modules.get("pyspark"), "__file__", None)
        if found is None or getattr(error, "name", None) == "pyarrow":
            raise ConfigurationError(
                f"Spark is not installed ({error}): pip install 'twisted-msgproto[spark]'"
            ) from None
        version = getattr(sys.modules["pyspark"], "__version__", "of no version")
        raise ConfigurationError(
            f"the pyspark in {os.path.dirname(found)} is {version}, which is too old ({error}): "
            "take it out of PYTHONPATH, or pip install 'twisted-msgproto[spark]'"
        ) from None


def register(spark: SparkSession, *, probe: bool = True) -> None:
    """Make ``format("msgproto")`` and ``format("msgproto-table")`` known to ``spark``.

    It also lets the workers find this package.  On one machine (``local[…]``) they run this very
    Python unless ``PYSPARK_PYTHON`` or Spark's setting ``spark.pyspark.python`` names another.
    There and on a cluster one worker is asked by a small job whether it can run the source
    (``probe=False`` leaves that out); a package that it lacks is sent to it.

    Raises ConfigurationError, one line that says what to set, when pyarrow or a recent pyspark is
    absent here, or when the cluster's workers cannot run the source.
    """
    need_spark()
    from .registration import register_sources

    register_sources(spark, probe=probe)


def release(
    checkpoint: str | os.PathLike[str],
    queue: str | Sequence[str],
    consumer: str,
    *,
    sync: Callable[[], object] | None = None,
    token_file: str | None = None,
    authority: str | None = None,
    source: int = 0,
) -> dict[str, int]:
    """Let queues forget what a stream has committed and made durable; return the released offsets.

    Reads the last committed batch from the stream's ``checkpoint`` (a local directory), calls
    ``sync``, makes the checkpoint durable and only then publishes the batch's end as the mark of
    ``consumer``.  Call it as often as the queue's disk needs it, from the program of the stream or
    beside it: from a ``StreamingQueryListener``, from a timer, after ``awaitTermination()``.

    ``sync`` must make the sink's output durable before it returns: ``os.sync`` for a sink on this
    machine's disks under Linux; None for a sink that is durable when a batch is committed (an
    object store, a database, the durable topics of a broker).  ``queue`` is the source's option
    ``queue``.  ``source`` is the source's number in a query that has several.

    Raises ConfigurationError when the checkpoint is none, QueueMismatch when a queue never had
    what the checkpoint says, QueueError when a queue is not there or the checkpoint has none of
    them, OSError from the disk.
    """
    need_spark()
    from . import releasing

    return releasing.release(
        checkpoint,
        queue,
        consumer,
        sync=sync,
        token_file=token_file,
        authority=authority,
        source=source,
    )


def read_table(
    spark: SparkSession,
    location: str | os.PathLike[str],
    *,
    storage: Mapping[str, str] | None = None,
    version: int | None = None,
) -> DataFrame:
    """Read the table at ``location`` as it is now (or as of ``version``) with Spark's Parquet
    reader.

    Every worker must reach the files: a directory on a shared disk, or an object store for which
    Spark has its own connector and settings (``s3://`` is handed to it as ``s3a://``). ``storage``
    are options of the object store; delta-rs reads the log here on the driver.

    Raises ConfigurationError with one line when there is no table.
    """
    need_spark()
    from . import table_source

    return table_source.read_table(spark, location, storage=storage, version=version)
