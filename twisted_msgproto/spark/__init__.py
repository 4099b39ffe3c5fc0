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

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from .registration import register
    from .releasing import release
    from .table_source import read_table

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


MODULES = {"register": "registration", "release": "releasing", "read_table": "table_source"}


def __getattr__(name: str) -> Any:
    """Import what needs pyspark only when somebody asks for it."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_spark()
    return getattr(importlib.import_module(f".{MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *MODULES]
