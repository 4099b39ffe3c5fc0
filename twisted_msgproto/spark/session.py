"""Make a Spark session for a bridge: private, quiet, in UTC, and certain to end.

The Java machine is started by hand: so its stderr can be kept, and its end be waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..core.disk import writing
from ..core.errors import ConfigurationError
from .java import (
    DESCRIPTORS_MIN,
    NO_SHARED_FIGURES,
    Java,
    find_java,
    is_local,
    leftovers,
    spark_environment,
    why_not,
)
from .locks import descriptors_of
from .registration import prepare_workers

OWN_LINE = "msgproto:"  # begins a worker's line on stderr that is for the operator

UNCAUGHT = 'Exception in thread "main"'
"""Java says so when its start fails; its other threads may go on, and pyspark waits for good ..."""

LAST_WORDS_SECONDS = 1.0  # ... so that it is ended after this time, in which it tells the cause

STOP_SECONDS_MAX = 0.7  # Spark may need this long to stop in order ...

END_SECONDS_MAX = 0.5
"""... and then its Java machine, and then the workers, before they are killed. What a batch has not
committed lands with the next one.
"""

LOG_BYTES_MAX = 4 << 20  # Spark's own log is begun anew at this size; one older file is kept

LINES_MAX = 1000  # the cause is looked for in so many lines that Java said last

# Java only schedules: best compiler and parallel collector would take half of a start's CPU time.
SCHEDULING_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

MASTER_SECONDS_MAX = 5.0  # a Spark master that takes no connection until then is away

PLAIN = re.compile(r"[\w./-]+", re.ASCII)

JAVA_SETTING = "spark.driver.extraJavaOptions"

LOG_CONFIGURATION = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.1
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {size}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""


def session_settings(
    master: str, scratch: Path, changes: Mapping[str, str], java: str = ""
) -> dict[str, str]:
    """Return Spark's settings; ``scratch`` is a path without characters that scripts heed."""
    if nameless():  # Java knows no home then
        java = f"-Duser.home={scratch / 'tmp'} {java}"
    java = f"{java} {changes.get(JAVA_SETTING, '')}"
    settings = {
        "spark.master": master,
        "spark.app.name": "msgproto-bridge",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # Parquet's default for timestamps is a 12-byte type that others read as nanoseconds.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Hadoop's own local file system writes a checksum file beside each file and starts a
        # process (chmod) for every file it makes: some 12 a batch. This one: 4, and no clutter.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.sql.shuffle.partitions": "2",
        # Before each row Spark asks how large the rows before it are, which takes as long as they
        # are many where a column is a list or a map.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    if is_local(master):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        # Or else every user of this machine could send the driver objects, and read its blocks.
        settings["spark.authenticate"] = "true"
    return {
        **settings,
        **changes,
        JAVA_SETTING: (
            f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').absolute().as_uri()} "
            # Java unpacks libraries there, and a killed one leaves them.
            f"-Djava.io.tmpdir={scratch / 'tmp'} {NO_SHARED_FIGURES} {java}"
        ).rstrip(),
    }


@contextlib.contextmanager
def spark_context(
    master: str,
    scratch: Path,
    changes: Mapping[str, str],
    java: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Any]:
    """Make a new SparkContext; afterwards neither it nor its Java machine runs any more.

    Jobs need no session, which takes twice as long to start. ``scratch`` is private and exists;
    ``say`` hears of each variable that is not heeded. Raises ConfigurationError when Spark or its
    workers do not start.
    """
    check_master(master)
    check_descriptors()
    if master.startswith("spark://"):
        check_answering(master)
    found = find_java()
    if found.passed_over and os.environ.get("JAVA_HOME"):
        say(f"not heeded: {found.passed_over[0]}; Java is {found.home}")
    local = is_local(master)
    unset = leftovers(os.environ) if local else []
    if unset:
        say(
            f"not heeded with the master {master}: {', '.join(unset)} (Spark's settings are given "
            "with --conf)"
        )
    with _environment(dict.fromkeys(unset)), plain_path(scratch) as plain:
        if not local:
            check_home(os.environ)
        started = _started(master, scratch, plain, changes, java, dict(os.environ))
        with contextlib.ExitStack() as stack:
            with _environment(needed_by(found, changes, local, stack)):
                context = stack.enter_context(started)
            yield context


@contextlib.contextmanager
def spark_session(
    master: str, scratch: Path, changes: Mapping[str, str], java: str = ""
) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with spark_context(master, scratch, changes, java) as context:
        yield SparkSession(context)


@contextlib.contextmanager
def _started(
    master: str,
    scratch: Path,
    plain: Path,
    changes: Mapping[str, str],
    java: str,
    given: Mapping[str, str],
) -> Iterator[Any]:
    log = scratch / "spark.log"
    configuration = scratch / "log4j2.properties"
    with writing(configuration):
        configuration.write_text(LOG_CONFIGURATION.format(log=plain / log.name, size=LOG_BYTES_MAX))
    # Spark's Python warns about every pandas newer than itself; nothing here uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    from pyspark import SparkConf, SparkContext
    from pyspark.accumulators import AccumulatorTCPServer
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    # When Java is killed this one prints a traceback, where one line is said by others.
    AccumulatorTCPServer.handle_error = lambda *words: None  # type: ignore[method-assign]
    # So does this, for a call under way, and it asks the root logger as well as its own.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_from_py4j)
    settings = session_settings(master, plain, changes, java)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    reader, writer = os.pipe()
    java_says = JavaErrors(os.fdopen(reader, "rb"), scratch / "java.log")
    popen: dict[str, Any] = {
        # Java says on stdout why it does not start, if that is its memory.
        "stdout": writer,
        "stderr": writer,
        # A terminal's Ctrl-C is for the bridge alone, which lets the running batch end.
        "start_new_session": os.getsid(0) != os.getpid(),
        # When this process is killed, Java ends once it has said where it listens; until then
        # nobody may clear the folder in which it says that.
        "pass_fds": descriptors_of(scratch),
    }
    others = descendants(os.getpid())
    try:
        with _temporaries_in(plain / "tmp"):
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
    except (PySparkException, OSError) as error:
        os.close(writer)
        java_says.thread.join()
        told = java_says.text or str(error)
        raise ConfigurationError(
            f"Java did not start: {why_not(told, given, changes)}; its output: {java_says.path}"
        ) from None
    except BaseException:  # a wish to end
        # Java would stay for ever: where it says that it listens is removed by now.
        _kill(descendants(os.getpid()) - others, signal.SIGKILL)
        raise
    os.close(writer)
    process: subprocess.Popen[bytes] = gateway.proc
    context = None
    try:
        try:
            if name := nameless():  # Hadoop would ask the machine, and end with an error
                users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
                users.setLoginUser(users.createRemoteUser(name))
            context = SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            told = str(error)
            if not type(error).__name__.startswith("Py4JJava"):  # Java has ended
                told = logged_errors(log) or java_says.text or told
            raise ConfigurationError(
                f"Spark did not start: {why_not(told, given, changes)}; its log: {log}"
            ) from None
        prepare_workers(context)
        yield context
    finally:
        if context is not None:
            within(STOP_SECONDS_MAX, context.stop)
        within(END_SECONDS_MAX, gateway.shutdown)
        _end(process)
        # Another session may be wanted in this process: let pyspark forget the dead machine.
        SparkContext._gateway = SparkContext._jvm = None


def needed_by(
    found: Java, changes: Mapping[str, str], local: bool, stack: contextlib.ExitStack
) -> dict[str, str]:
    """Return the variables of a start; what they need lasts as long as ``stack``."""
    needed = spark_environment(found, local=local)
    # pyspark asks the environment alone; its own scripts would have copied the setting there.
    if python := changes.get("spark.pyspark.python"):
        needed["PYSPARK_PYTHON"] = python
    if local:
        needed["SPARK_HOME"] = str(stack.enter_context(plain_path(Path(needed["SPARK_HOME"]))))
    return needed


MASTER = re.compile(
    r"local(\[(\d+|\*)(, *\d+)?\]|-cluster\[.*\])?|spark://\S+:\d+|yarn|k8s://\S+", re.ASCII
)


def check_master(master: str) -> None:
    if not MASTER.fullmatch(master):
        raise ConfigurationError(
            f"--master takes a Spark master (local[2], spark://HOST:PORT, yarn, k8s://…), not "
            f"{master!r}"
        )


def check_descriptors() -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < DESCRIPTORS_MIN:
        raise ConfigurationError(
            f"this process may have {allowed} files open, and Spark needs {DESCRIPTORS_MIN} and "
            "more: ulimit -n 4096, or LimitNOFILE=4096 in the unit"
        )


def check_answering(master: str) -> None:
    problem = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS_MAX):
                return
        except (OSError, ValueError) as error:
            problem = problem or f"{place}: {getattr(error, 'strerror', None) or error}"
    raise ConfigurationError(
        f"no Spark master answers ({problem}): start it, or correct --master {master}"
    )


def check_home(environment: Mapping[str, str]) -> None:
    home = environment.get("SPARK_HOME")
    if home and not os.path.isfile(os.path.join(home, "bin", "spark-submit")):
        raise ConfigurationError(
            f"SPARK_HOME is {home}, where there is no bin/spark-submit: unset SPARK_HOME, and the "
            "Spark of pyspark is used"
        )


def nameless() -> str:
    """Return a name for this user where the machine knows none, as in a container; else ""."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return os.environ.get("HADOOP_USER_NAME") or str(os.geteuid())
    return ""


def logged_errors(log: Path) -> str:
    with contextlib.suppress(OSError):
        text = log.read_text(errors="replace")
        return "\n".join(re.findall(r"^\S+ \S+ ERROR [\w$.]+: (.+)", text, re.MULTILINE))
    return ""


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change variables of this process, None meaning that there is none, and change them back."""
    before = {name: os.environ.get(name) for name in changes}
    _set_variables(changes)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def plain_path(directory: Path) -> Iterator[Path]:
    """Hold a path of ``directory`` that Spark's scripts neither divide nor change."""
    if PLAIN.fullmatch(str(directory)) or not os.path.isdir("/proc/self/fd"):
        yield directory
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporaries_in(directory: Path) -> Iterator[None]:
    directory.mkdir(mode=0o700, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def within(seconds: float, work: Callable[[], Any]) -> None:
    """Do ``work``, but wait no longer for it: a call into a dying Java machine may not return."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Java by closing its stdin, and its Python workers with it; if that fails, kill them."""
    workers = descendants(process.pid)
    try:
        process.communicate(timeout=END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    deadline = time.monotonic() + END_SECONDS_MAX
    while workers := {pid for pid in workers if os.path.exists(f"/proc/{pid}/exe")}:  # not zombies
        if time.monotonic() > deadline:
            _kill(workers, signal.SIGKILL)
            break
        time.sleep(0.02)


def _kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        tasks = f"/proc/{waiting.pop()}/task"
        with contextlib.suppress(OSError):  # it ends meanwhile, as its threads may
            for task in os.listdir(tasks):
                with contextlib.suppress(OSError):
                    fresh = {*map(int, Path(tasks, task, "children").read_text().split())} - found
                    found |= fresh
                    waiting += fresh
    return found


class JavaErrors:
    """Java's and its workers' stderr, read even on a full disk: else Java would wait for good."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self.path = path
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._others = descendants(os.getpid())
        path.unlink(missing_ok=True)
        self.thread: threading.Thread = threading.Thread(
            target=self._run, name="java-stderr", daemon=True
        )
        self.thread.start()

    @property
    def text(self) -> str:
        return "".join(list(self._lines))

    def _run(self) -> None:
        with self._stream:
            for data in self._stream:
                line = data.decode(errors="replace")
                self._lines.append(line)
                with contextlib.suppress(OSError):
                    self._keep(data)
                if line.startswith(OWN_LINE):
                    with contextlib.suppress(OSError):  # stderr may be a file on that disk
                        print(line.rstrip(), file=sys.stderr)
                if line.startswith(UNCAUGHT):
                    java = descendants(os.getpid()) - self._others
                    timer = threading.Timer(LAST_WORDS_SECONDS, _kill, [java, signal.SIGTERM])
                    timer.daemon = True
                    timer.start()

    def _keep(self, data: bytes) -> None:
        with open(self.path, "ab") as file:
            if file.tell() > LOG_BYTES_MAX:
                file.truncate(0)
            file.write(data)
