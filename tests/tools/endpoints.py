"""Many gateways in few processes: real Flight endpoints, each with a queue and an id of its own.

``python -m tests.tools.endpoints DIR COUNT`` makes COUNT small queues in DIR, serves each on a port
of its own, prints their locations as one JSON list, and ends when its standard input does.  An
endpoint costs a thread and about 100 KiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.tools.processes import environment
from tests.tools.queues import frame
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.disk import OSDisk
from twisted_msgproto.queue.flight import QueueFlightServer


class HastyDisk(OSDisk):
    """A disk which is never synced: a thousand queues are made in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._sync = lambda descriptor: None

    def sync_directory(self, path: str) -> None:
        pass


class SlowServer(QueueFlightServer):
    """A server which answers after ``delay`` seconds, as one far away does."""

    delay = 0.0

    def do_action(self, context: Any, action: Any) -> list[Any]:
        time.sleep(self.delay)
        return super().do_action(context, action)


def serve(directory: Path, count: int, rows: int, delay: float) -> list[SlowServer]:
    """Make ``count`` queues of ``rows`` messages each and serve them."""
    servers = []
    for number in range(count):
        path = str(directory / str(number))
        log = SegmentLog(path, disk=HastyDisk())
        log.append([frame(0, rows)])
        log.close()
        server = SlowServer(path, "grpc://127.0.0.1:0")
        server.delay = delay
        servers.append(server)
    return servers


@contextmanager
def endpoints(
    directory: Path, count: int, *, processes: int = 2, rows: int = 10, delay: float = 0.0
) -> Iterator[list[str]]:
    """The locations of ``count`` endpoints, which ``processes`` processes serve meanwhile."""
    children = []
    try:
        for number in range(processes):
            share = count // processes + (number < count % processes)
            words = [str(directory / f"process-{number}"), str(share)]
            words += ["--rows", str(rows), "--delay", str(delay)]
            children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.tools.endpoints", *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment(),
                    cwd=Path(__file__).parent.parent.parent,
                )
            )
        locations: list[str] = []
        for child in children:
            assert child.stdout is not None
            locations += json.loads(child.stdout.readline())
        yield locations
    finally:
        for child in children:
            with suppress(BrokenPipeError):
                child.communicate(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.0)
    asked = parser.parse_args()
    servers = serve(asked.directory, asked.count, asked.rows, asked.delay)
    print(json.dumps([server.address for server in servers]), flush=True)
    sys.stdin.read()
    for server in servers:
        server.close()


if __name__ == "__main__":
    main()
