"""Real filebeat: sizes of bulks and of events, with TLS and without, and a gateway that is killed
(NB-10, LJ-17).
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import Counter
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.chaos.gateways import most_resident
from tests.chaos.report import Found, NotHere, Row
from tests.tools.certificates import Authority
from tests.tools.endpoints import reserved
from tests.tools.filebeat import BINARY, filebeat
from tests.tools.processes import Launched, Launcher, launching
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.queue import QueueReader

BULKS = (2048, 50)
RESIDENT_MB = 250
DEADLINE_SECONDS = 600.0
LATEST_KILL = 0.8
"""The last kill comes when at most this share of the lines has landed."""

LOOK_SECONDS = 0.05
WORDS = 6000


class Load(NamedTuple):
    lines: int
    nbytes: int
    what: str


LOADS = (
    Load(20_000, 1_000, "20,000 lines of 1 KB"),
    Load(2048, 40_000, "2,048 varied lines of 40 KB"),
    Load(40, 3_000_000, "40 lines of 3 MB"),
)


def digest(nbytes: bytes) -> bytes:
    return blake2b(nbytes, digest_size=16).digest()


def write_lines(path: Path, load: Load, seed: int = 1) -> set[bytes]:
    """Add lines of words, which compress about 3 : 1, to a file; what each is known by."""
    source, known = Random(seed), set()
    words = [b"%x" % source.getrandbits(28) for _ in range(WORDS)]
    with path.open("ab") as file:
        for number in range(load.lines):
            line = b"%08d " % number + b" ".join(source.choices(words, k=load.nbytes // 7))
            known.add(digest(line[: load.nbytes]))
            file.write(line[: load.nbytes] + b"\n")
    return known


class Landed:
    def __init__(self, queue: Path) -> None:
        self._queue = queue
        self._read = 0
        self.lines: Counter[bytes] = Counter()

    def look(self) -> None:
        try:
            reader = QueueReader(self._queue)
            end = reader.end()
            for batch in reader.read(self._read, end):
                for body in batch.column("body").to_pylist():
                    self.lines[digest(json.loads(body)["message"].encode())] += 1
            self._read = end
        except (QueueError, OSError):
            pass  # it is not there yet, or is being recovered


def gateway(launch: Launcher, port: int, tls: str) -> Launched:
    kind = f"ssl:{port}:interface=127.0.0.1:{tls}" if tls else f"tcp:{port}:interface=127.0.0.1"
    words = ("-e", kind, "--queue", launch.directory / "queue")
    server = launch("--log-format=text", "lumberjack", *words, module="twisted")
    server.address("lumberjack")
    return server


class Shipped(NamedTuple):
    """One run: lines missing, rows beyond one for each line, the peak, kills."""

    missing: int
    duplicates: int
    peak: float
    kills: int


def ship(launch: Launcher, load: Load, bulk: int, tls: bool, kills: int) -> Shipped:
    """Ship a file, killing the gateway so often meanwhile; wait until all of it has landed.

    Where that is too quick for a kill, as many lines are added, and the gateway is killed as soon
    as it has some of them.
    """
    with reserved(1) as [port]:  # nobody else uses it while the gateway is down
        return _ship(launch, port, load, bulk, tls, kills)


def _ship(launch: Launcher, port: int, load: Load, bulk: int, tls: bool, kills: int) -> Shipped:
    file = launch.directory / "lines.log"
    wanted = write_lines(file, load)
    secured, trusted = "", None
    if tls:
        trusted = Authority(launch.directory)
        ours = trusted.server()
        secured = f"privateKey={ours.key}:certKey={ours.cert}"
    server = gateway(launch, port, secured)
    shipper = filebeat(launch, file, port, bulk=bulk, authority=trusted)
    landed, killed, peak = Landed(launch.directory / "queue"), 0, 0.0
    chance = Random(bulk)
    # The next kill comes when this many lines have landed.
    shares = sorted(chance.random() * LATEST_KILL for _ in range(kills))
    until = time.monotonic() + DEADLINE_SECONDS
    look_seconds, more = LOOK_SECONDS, 0
    while time.monotonic() < until:
        if len(landed.lines) == len(wanted) and killed >= min(kills, 1):
            break
        if len(landed.lines) == len(wanted) and not more:
            more = len(wanted)
            wanted |= write_lines(file, load, seed=2)
            look_seconds = 0.001
        time.sleep(look_seconds)
        peak = max(peak, most_resident(server) / 1e6)
        if killed < kills and len(landed.lines) > (more or len(wanted) * shares[killed]):
            look_seconds = LOOK_SECONDS
            server.kill()
            killed += 1
            server = gateway(launch, port, secured)
        landed.look()
        assert shipper.process.poll() is None, shipper.output
    shipper.end()
    server.end()
    landed.look()
    assert landed.lines.keys() <= wanted, "a line stands in the queue that was never sent"
    missing = len(wanted) - len(landed.lines)
    return Shipped(missing, landed.lines.total() - len(landed.lines), peak, killed)


def measure(load: Load, kill: bool, scale: float) -> Found:
    if not BINARY.exists():
        raise NotHere("no filebeat: python -m tests.tools.filebeat brings it")
    load = load._replace(lines=max(10, int(load.lines * scale)))
    runs: list[Shipped] = []
    for bulk, tls in itertools.product(BULKS, (False, True)):
        with tempfile.TemporaryDirectory() as directory, launching(Path(directory)) as launch:
            runs.append(ship(launch, load, bulk, tls, 3 if kill else 0))
    missing = sum(run.missing for run in runs)
    twice = sum(run.duplicates for run in runs)
    peak = max(run.peak for run in runs)
    kills = f"{sum(run.kills for run in runs)} kills, " if kill else ""
    return Found(
        f"{len(runs)} runs of {load.lines:,} lines: {kills}{missing} missing, {twice} twice;"
        f" peak {peak:.0f} MB",
        # Without a kill nothing was tried of one.
        not missing and peak <= RESIDENT_MB and (not kill or all(run.kills for run in runs)),
    )


ROWS = tuple(
    Row(
        "filebeat",
        f"filebeat 8.1.3, {load.what}, bulks of 2,048 and of 50, plain and TLS"
        + (", kill -9 of the gateway" if kill else ""),
        f"every line lands whole, at least once; peak ≤ {RESIDENT_MB} MB",
        partial(measure, load, kill),
    )
    for kill in (False, True)
    for load in LOADS
)
