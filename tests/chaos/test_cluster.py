"""A standalone Spark cluster, three gateways over Flight with TLS and a token, and what can die.

Issue of the table: a worker, a gateway, a Flight server, the driver and single tasks are killed
under load; afterwards each offset of each gateway is in the table exactly once.

A standalone Spark cluster on the loopback interface, started from the pip package.

Its master and workers are real Java processes with free ports.  Everything is ended by pid.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.chaos.clients import Shipper
from tests.spark.conftest import messages, write
from tests.tools import java_classes
from tests.tools.certificates import Authority, Pair
from tests.tools.endpoints import reserved
from tests.tools.processes import (
    Launched,
    Launcher,
    command_of,
    descendants,
    environment,
    launching,
)
from twisted_msgproto.queue import QueueReader

START_SECONDS = 300.0
BATCH = r"batch \d+: [1-9]\d* rows"


class Site:
    """A machine with a gateway: a Lumberjack server, its queue, and the queue's Flight server."""

    def __init__(
        self, launch: Launcher, name: str, pair: Pair, token: Path, ports: tuple[int, int]
    ) -> None:
        self._launch = launch
        self._pair = pair
        self._token = token
        self.port, self._flight_port = ports
        self.queue = launch.directory / f"queue-{name}"
        self.start_gateway()
        self.shipper = Shipper(name, self.port)
        self.shipper.start()
        self.shipper.await_more(1)
        self.start_flight()

    def start_gateway(self) -> None:
        where = f"tcp:{self.port}:interface=127.0.0.1"
        words = ("lumberjack", "-e", where, "--queue", self.queue)
        self.gateway = self._launch(*words, module="twisted")
        self.gateway.address("lumberjack")

    def start_flight(self) -> None:
        where = f"grpc+tls://127.0.0.1:{self._flight_port}"
        self.flight = self._launch(
            *("flight", "--queue", self.queue, "--listen", where),
            *("--tls-cert", self._pair.cert, "--tls-key", self._pair.key),
            *("--token-file", self._token),
        )
        self.address = self.flight.line(r"flight listening on (\S+)")[1]

    def kill_gateway(self) -> None:
        self.gateway.kill()
        self.start_gateway()

    def finish(self) -> None:
        self.shipper.finish()
        self.gateway.end()


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def sites(launch: Launcher, tmp_path: Path) -> Iterator[list[Site]]:
    pair = Authority(tmp_path).server("server", "127.0.0.1", "localhost")
    token = tmp_path / "token"
    token.write_text("a secret of three gateways\n")
    token.chmod(0o600)
    # Nobody else uses their ports while they are down.
    with reserved(6) as ports:
        each = zip(("a", "b", "c"), zip(ports[:3], ports[3:], strict=True), strict=True)
        made = [Site(launch, name, pair, token, two) for name, two in each]
        try:
            yield made
        finally:
            for site in made:
                with contextlib.suppress(AssertionError):
                    site.shipper.finish()


class Bridges:
    def __init__(
        self,
        launch: Launcher,
        spark: Cluster,
        queues: Sequence[str | Path],
        table: str | Path,
        *secrets: str | Path,
    ) -> None:
        self._launch = launch
        places = [word for queue in queues for word in ("--queue", queue)]
        settings = (
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={java_classes.options()}",
        )
        conf = [word for setting in settings for word in ("--conf", setting)]
        self._words = (*places, "--table", table, "--master", spark.master, *conf, *secrets)

    @classmethod
    def of_sites(cls, launch: Launcher, spark: Cluster, sites: list[Site], table: str) -> Bridges:
        here = launch.directory
        secrets = ("--token-file", here / "token", "--tls-ca", here / "authority.pem")
        places = [site.address for site in sites]
        return cls(launch, spark, places, table, *secrets)

    def __call__(self, *options: str, here: bool = False) -> Launched:
        """Start one; ``here``: without Java, as after the kills of tests/chaos/test_kills.py."""
        words = ("bridge", *self._words, *options)
        if here:
            return self._launch("--here", *words, module="tests.tools.dying")
        return self._launch(*words)


def next_batch(bridge: Launched) -> None:
    """Waits until a batch has landed which had not when this was called."""
    seen = sum(bool(re.search(BATCH, line)) for line in bridge.lines)
    bridge.line(BATCH, nth=seen + 1, seconds=START_SECONDS)


def landed(table: str) -> dict[str, Counter[int]]:
    """How often each offset is in the table, by gateway; read by delta-rs."""
    rows = DeltaTable(table).to_pyarrow_table(columns=["gateway", "offset"])
    found: dict[str, Counter[int]] = {}
    for gateway, offset in zip(
        *(rows[name].to_pylist() for name in rows.column_names), strict=True
    ):
        found.setdefault(gateway, Counter())[offset] += 1
    return found


def expected(sites: list[Site]) -> dict[str, Counter[int]]:
    readers = [QueueReader(site.queue) for site in sites]
    return {reader.queue_id: Counter(range(reader.end())) for reader in readers}


def kill_python_workers(spark: Cluster) -> int:
    """Kill -9 of the Python processes which run the tasks of the cluster; how many there were."""
    killed = 0
    for worker in spark.workers:
        for pid in descendants(worker.pid):
            if "pyspark" in command_of(pid) and "daemon" in command_of(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
    return killed


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(1800)
def test_a_cluster_lands_each_offset_once_whatever_dies(
    launch: Launcher,
    spark_cluster: Cluster,
    sites: list[Site],
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    """TB-09: a gateway that is away holds up nobody else; everything lands exactly once.

    The bridge which follows the killed one lands the rest, in the short form without the cluster;
    in the long form another one lands under load before it.
    """
    table = str(tmp_path / "table")
    start = Bridges.of_sites(launch, spark_cluster, sites, table)
    bridge = start()
    bridge.line(BATCH, seconds=START_SECONDS)

    assert kill_python_workers(spark_cluster) > 0
    next_batch(bridge)
    next_batch(bridge)

    sites[0].kill_gateway()
    sites[0].shipper.await_more(100)

    sites[1].flight.kill()
    bridge.line(re.escape(sites[1].address), seconds=START_SECONDS)  # it is named
    others = QueueReader(sites[2].queue).queue_id
    before = landed(table)[others].total()
    while landed(table)[others].total() <= before + 100:
        next_batch(bridge)
    sites[1].start_flight()

    spark_cluster.kill_worker(0)
    sites[0].shipper.await_more(100)
    bridge.kill()
    long = pytestconfig.getoption("--long")
    if long:
        bridge = start()
        bridge.line(BATCH, seconds=START_SECONDS)

    for site in sites:
        site.finish()
    bridge.end(seconds=60)
    drained = start("--once") if long else start("--once", here=True)
    assert drained.wait(seconds=START_SECONDS) == 0, drained.output
    assert landed(table) == expected(sites)


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(1800)
def test_workers_which_cannot_run_the_task_end_the_bridge_with_one_line(
    launch: Launcher, spark_cluster: Cluster, tmp_path: Path
) -> None:
    """TB-14: a cluster whose workers lack the Python which the driver names."""
    write(tmp_path / "queue", messages(0, 10))
    start = Bridges(launch, spark_cluster, [tmp_path / "queue"], tmp_path / "table")
    # One executor is enough: each costs a start of Java.
    words = ("--conf", "spark.pyspark.python=/nowhere/python3", "--conf", "spark.cores.max=1")
    bridge = start(*words)
    assert bridge.wait(seconds=START_SECONDS) == 2, bridge.output
    [line] = [line for line in bridge.lines if line.startswith("msgproto bridge:")]
    assert "Python" in line
    assert "Traceback" not in bridge.output


WORKER_MEMORY = "1g"
"""What a worker may give its executors; two workers and a driver fit into a small machine."""

CLUSTER_SECONDS = 180.0
"""How long a Java process may take to say where it listens on a busy machine."""


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        master: the URL for ``--master``.
        workers: the workers' processes; a test may kill one.
    """

    master: str
    workers: list[Launched] = field(default_factory=list)

    def kill_worker(self, number: int) -> None:
        """Ends a worker and the executors it has started, as a machine which loses its power."""
        worker = self.workers[number]
        victims = {worker.pid, *descendants(worker.pid)}
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()


@contextlib.contextmanager
def cluster(scratch: Path, *, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """A master and ``workers`` workers of ``cores`` cores each; all ended afterwards."""
    import pyspark

    from twisted_msgproto.spark.java import find_java, spark_environment

    home = Path(pyspark.__file__).parent
    program = str(home / "bin" / "spark-class")
    env: Mapping[str, str] = {
        **environment(**spark_environment(find_java())),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with launching(scratch) as launch:
        boss = [program, "org.apache.spark.deploy.master.Master", *address]
        master = launch.command(boss, env=env)
        url = master.line(r"Starting Spark master at (spark://\S+)", seconds=CLUSTER_SECONDS)[1]
        made = Cluster(url)
        for number in range(workers):
            place = scratch / f"worker-{number}"
            place.mkdir()
            size = ["--cores", str(cores), "--memory", WORKER_MEMORY, "--work-dir", str(place)]
            hand = [program, "org.apache.spark.deploy.worker.Worker", *address, *size, url]
            made.workers.append(launch.command(hand, env=env))
        master.line(r"Registering worker", nth=workers, seconds=CLUSTER_SECONDS)
        try:
            yield made
        finally:
            left = set().union(*(descendants(worker.pid) for worker in made.workers))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
