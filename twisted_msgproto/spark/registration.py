"""Make the data sources known to a running session, workers included.

Which program workers run, and where they look for modules, is written into everything the driver
sends them. By default that is ``python3`` from the ``PATH``, and nothing of the driver's
``sys.path``: a plain script in a virtual environment fails with both.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PACKAGE = Path(__file__).resolve().parents[1]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


OWN_ERROR = re.compile(r"twisted_msgproto\.core\.errors\.\w+: (.+)")

PYTHON_ERROR = re.compile(
    r"(?P<indent>(?<![^\n])[ \t]+|)Traceback \(most recent call last\):\n"
    r"(?:(?P=indent)[ \t].*\n)+(?P=indent)(?P<error>\S.*)"
)
"""Spark indents what a worker said that could not start."""

WORKER_ERROR = re.compile(r"Error from python worker:\s+(?P<error>\S.*)")
"""One whose Python lacks pyspark says so in a line, of which Java's own has nothing."""

JAVA_ERROR = re.compile(
    r"\AAn error occurred while calling .+\n"
    r": (?:.*\b(?:java|org|scala)\.(?=[\w.$]+: .)(?:\w+\.)*(?:SparkException: )?)?(?P<error>.+)"
)
"""Below the call that py4j names stands the error; what caused it comes last in its line, where the
kind alone may be all that is said.
"""


def register(spark: SparkSession, *, probe: bool = True) -> None:
    """Make ``format("msgproto")`` and ``format("msgproto-table")`` known to ``spark``.

    It also lets the workers find this package.  On one machine (``local[…]``) they run this very
    Python unless ``PYSPARK_PYTHON`` or Spark's setting ``spark.pyspark.python`` names another.
    There and on a cluster one worker is asked by a small job whether it can run the source
    (``probe=False`` leaves that out); a package that it lacks is sent to it.

    Raises ConfigurationError, one line that says what to set, when pyarrow or a recent pyspark is
    absent here, or when the cluster's workers cannot run the source.
    """
    from .source import QueueSource
    from .table_source import TableSource

    context = classic_context(spark)
    if context is not None:
        prepare_workers(context, probe=probe)
    spark.conf.set(PUSHDOWN, "true")
    for source in (QueueSource, TableSource):
        spark.dataSource.register(source)


def classic_context(spark: SparkSession) -> SparkContext | None:
    """Return the session's context; None under Spark Connect, whose server has the workers."""
    try:
        return spark.sparkContext
    except Exception:  # pyspark raises its own kinds, which differ with its version
        return None


def prepare_workers(context: SparkContext, *, probe: bool = True) -> None:
    """Let workers run a Python that has this package; ``probe`` asks one of them.

    The operator's ``PYSPARK_PYTHON`` and ``spark.pyspark.python`` stay as they are. Raises
    ConfigurationError when workers cannot do it.
    """
    configured = context.getConf().get("spark.pyspark.python")
    chosen = "PYSPARK_PYTHON" in os.environ or bool(configured)
    if configured and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = configured
    context.environment["PYTHONPATH"] = with_package(context.environment.get("PYTHONPATH", ""))
    if str(context.master).startswith("local"):
        if not chosen:
            context.pythonExec = sys.executable
        probe = probe and context.pythonExec != sys.executable
    if not probe:
        return
    problem = ask_worker(context)
    if problem is not None and not chosen:
        # Nobody said which: this Python, if the nodes have it where this one has it.
        usual, context.pythonExec = context.pythonExec, sys.executable
        if (again := ask_worker(context)) is None or again == PACKAGE.name:
            problem = again
        else:
            context.pythonExec = usual
    if problem == PACKAGE.name:
        archive = os.path.join(context._temp_dir, PACKAGE.name)
        context.addPyFile(shutil.make_archive(archive, "zip", PACKAGE.parent, PACKAGE.name))
        problem = ask_worker(context)
    if problem is not None:
        major, minor = sys.version_info[:2]
        raise ConfigurationError(
            f"the workers of {context.master} cannot run the source ({context.pythonExec}: "
            f"{problem}); set PYSPARK_PYTHON, before the session starts, to a Python "
            f"{major}.{minor} which has twisted-msgproto[spark] on every node, or unset it"
        )


def fork_workers_by(context: SparkContext, module: str) -> None:
    """Let ``module`` fork the workers, if they run this very Python, and none does so far."""
    if str(context.master).startswith("local") and context.pythonExec == sys.executable:
        context._jsc.sc().conf().setIfMissing("spark.python.daemon.module", module)


def with_package(path: str) -> str:
    paths = [part for part in path.split(os.pathsep) if part]
    root = PACKAGE.parent
    # An installed package is found anyway, and site-packages does not belong before the stdlib.
    if root.name not in ("site-packages", "dist-packages") and str(root) not in paths:
        paths.insert(0, str(root))
    return os.pathsep.join(paths)


def ask_worker(context: SparkContext) -> str | None:
    """Return what keeps a worker from running the source: a missing module's name, or a line."""

    # Sent as it stands, without this module, which a worker may not have.
    def probe(_: Any) -> str | None:
        try:
            import twisted_msgproto.spark.source  # noqa: F401
        except ModuleNotFoundError as error:
            return str(error.name).partition(".")[0]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    try:
        answer = context.parallelize([0], 1).map(probe).collect()[0]
    except Exception as error:
        return job_error(str(error)) if str(error) else "it does not start"
    if answer is not None and answer.isidentifier() and answer != PACKAGE.name:
        return f"it has no module {answer}"
    return answer


def job_error(text: str) -> str:
    found = PYTHON_ERROR.search(text) or WORKER_ERROR.search(text) or JAVA_ERROR.search(text)
    return first_line(found["error"] if found else text)


def first_line(error: BaseException | str) -> str:
    """Return the first line that says something, cut to 300 characters; else the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:299]}…"
