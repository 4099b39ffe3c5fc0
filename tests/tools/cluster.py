"""A standalone Spark cluster on the loopback interface, started from the pip package.

Its master and workers are real Java processes with free ports.  Everything is ended by pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools.processes import Launched, descendants, environment, launching

WORKER_MEMORY = "1g"
"""What a worker may give its executors; two workers and a driver fit into a small machine."""

START_SECONDS = 180.0
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
        url = master.line(r"Starting Spark master at (spark://\S+)", seconds=START_SECONDS)[1]
        made = Cluster(url)
        for number in range(workers):
            place = scratch / f"worker-{number}"
            place.mkdir()
            size = ["--cores", str(cores), "--memory", WORKER_MEMORY, "--work-dir", str(place)]
            hand = [program, "org.apache.spark.deploy.worker.Worker", *address, *size, url]
            made.workers.append(launch.command(hand, env=env))
        master.line(r"Registering worker", nth=workers, seconds=START_SECONDS)
        try:
            yield made
        finally:
            left = set().union(*(descendants(worker.pid) for worker in made.workers))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
