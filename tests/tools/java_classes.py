"""``python -m tests.tools.java_classes``: let the Java of each Spark session start quickly.

A Spark session loads ten thousand classes from Spark's jars, and a run of the tests starts some
thirty sessions.  Java can keep loaded classes in an archive, which the next one only maps into its
memory: a start then takes 4.5 CPU seconds and not 7.8.  ``./run test`` makes the archive once for
each environment; without one everything is the same, and slower.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark.java import find_java, spark_environment

MAKING_SECONDS = 300.0
"""Making the archive takes about 15 s; on a very busy machine it took a minute."""

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Java writes to its output about each class that an archive cannot keep."""

ARCHIVE = Path(sys.prefix, "java-classes.jsa")
"""The archive belongs to the environment, whose Spark it is of."""

STAMP = ARCHIVE.with_suffix(".txt")
"""Says of which Java and Spark."""

QUICK = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Java's options for each of its machines: none lives long enough for its best compiler to pay, and
whether Spark's own classes are well-formed is not asked in each start."""


def options() -> str:
    """Return Java's options for a session of a test.

    Java does without an archive that is of another Java or of other jars.
    """
    archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto {QUIET}" if ARCHIVE.exists() else ""
    return QUICK + archive


def wanted_stamp() -> str | None:
    """Return what the archive has to be of; None if there is no Java, or no Spark."""
    try:
        home = find_java().home
        import pyspark
    except (ConfigurationError, ImportError):
        return None
    release = home / "release"
    java = release.read_text() if release.exists() else ""
    installed = Path(pyspark.__file__).stat().st_mtime_ns
    return f"{home.resolve()} {java} {pyspark.__version__} {installed}"


def use_spark(directory: str) -> None:
    """Have Java load what sessions of tests load: SQL, files, streams and Python's workers."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    rows, copied = f"{directory}/rows", f"{directory}/copied"
    session.range(100).selectExpr("id", "cast(id AS string) AS body").write.parquet(rows)
    table = session.read.parquet(rows)
    table.groupBy("body").count().collect()
    stream = session.readStream.schema(table.schema).parquet(rows).writeStream
    written = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(
        availableNow=True
    )
    written.start(copied, format="parquet").awaitTermination()
    session.sparkContext.parallelize(range(4), 2).map(str).collect()
    java = session.sparkContext._gateway.proc
    session.stop()
    java.stdin.close()  # it ends, and in ending writes the archive
    java.wait()


def make(environment: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="classes-", dir=sys.prefix) as directory:
        new = Path(directory, "classes.jsa")
        opts = {
            "SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={new} {QUIET}",
            "SPARK_LAUNCHER_OPTS": QUICK,
        }
        with subprocess.Popen(
            [sys.executable, "-m", "tests.tools.java_classes", directory],
            env={**environment, **spark_environment(find_java()), **opts},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as making:
            try:
                making.wait(MAKING_SECONDS)
            except BaseException:
                os.killpg(making.pid, signal.SIGKILL)  # with its Java, which would go on
                raise
        if new.exists():
            new.rename(ARCHIVE)


def main(words: list[str]) -> int:
    """Make the archive unless it is there; with a directory, be the program that it is made of."""
    if words:
        use_spark(words[0])
        return 0
    wanted = wanted_stamp()
    if wanted is None or (STAMP.exists() and STAMP.read_text() == wanted):
        return 0
    ARCHIVE.unlink(missing_ok=True)
    print("making an archive of Spark's classes for Java (once)", file=sys.stderr)
    with contextlib.suppress(subprocess.TimeoutExpired):
        make(os.environ)
    if not ARCHIVE.exists():
        return 1
    STAMP.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
