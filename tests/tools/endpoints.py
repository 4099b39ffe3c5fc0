"""Run many gateways in few processes: real Flight endpoints, each with a queue and an id of its
own.

``python -m tests.tools.endpoints DIR COUNT`` makes COUNT small queues in DIR, or
uses those that are there, serves each on a port of its own and prints their locations as one JSON
list.  A line ``N`` on its standard input adds N messages to each queue, and is answered by a line;
the process ends when its standard input does.  An endpoint costs a thread and about 100 KiB.

The same process can be killed and started again, on the same ports, or stopped for a while: then
its gateways are there and say nothing, as machines do that are out of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.tools.processes import environment
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.disk import OSDisk
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.flight_server import QueueFlightServer
from twisted_msgproto.queue.payload import encode

PROCESSES = 2
END_SECONDS = 60.0
"""A process may need this long to close its endpoints."""


class HastyDisk(OSDisk):
    """Is a disk that is never synced, so that a thousand queues are made in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._sync = lambda descriptor: None

    def sync_directory(self, path: str) -> None:
        """Do nothing: these queues need not survive."""


class SlowServer(QueueFlightServer):
    """A server that answers after ``delay`` seconds, as one far away does."""

    delay = 0.0

    def do_action(self, context: Any, action: Any) -> list[Any]:
        time.sleep(self.delay)
        return super().do_action(context, action)


class Served:
    def __init__(self, path: str, port: int, delay: float) -> None:
        self.path = path
        self._disk = HastyDisk()
        if not os.path.isdir(path):
            SegmentLog(path, disk=self._disk).close()
        self.server = SlowServer(path, f"grpc://127.0.0.1:{port}")
        self.server.delay = delay

    def write(self, rows: int) -> None:
        log = SegmentLog(self.path, disk=self._disk)
        first = log.end
        bodies = [b"body %d" % number for number in range(first, first + rows)]
        log.append(
            [
                encode(
                    [
                        MessageBatch(
                            "lumberjack",
                            "json",
                            int(time.time() * 1e6),
                            peer="tcp:127.0.0.1:1",
                            count=rows,
                            nbytes=sum(map(len, bodies)),
                            message_id=list(range(first, first + rows)),
                            body=bodies,
                        )
                    ]
                )
            ]
        )
        log.close()


class Endpoints:
    """One process that serves ``count`` queues below ``directory``; see the module.

    ``ports`` are those to listen on (default: free ones), ``env`` is the process's environment.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        rows: int = 10,
        delay: float = 0.0,
        ports: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        words = [str(directory), str(count), "--rows", str(rows), "--delay", str(delay)]
        words += ["--ports", ",".join(map(str, ports))] if ports else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._locations: list[str] = []

    @property
    def locations(self) -> list[str]:
        """Return where the queues are served; waits until they are."""
        if not self._locations:
            self._locations = json.loads(self._answer())
        return self._locations

    @property
    def ports(self) -> list[int]:
        return [int(location.rpartition(":")[2]) for location in self.locations]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the endpoints ended with {self._process.wait()}")
        return line

    def write(self, rows: int) -> None:
        """Add this many messages to each queue; return when they are there."""
        assert self._process.stdin is not None
        print(rows, file=self._process.stdin, flush=True)
        self._answer()

    def stop(self) -> None:
        """From here on nothing answers, and nothing is refused either."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End in order; do nothing if it has ended."""
        if self._process.poll() is None:
            self.resume()
        with suppress(BrokenPipeError, ValueError):
            self._process.communicate(timeout=END_SECONDS)


@contextmanager
def serving(
    directory: Path,
    counts: Sequence[int],
    *,
    rows: int = 10,
    delay: float = 0.0,
    ports: Mapping[int, Sequence[int]] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[Endpoints]]:
    """Run a process for each of ``counts``; all of them serve meanwhile.

    ``ports``, by the place in ``counts``, has the ports of those processes that are to be killed
    and started again (see :func:`reserved`).
    """
    with ExitStack() as stack:
        made = []
        for number, count in enumerate(counts):
            one = Endpoints(
                directory / f"process-{number}",
                count,
                rows=rows,
                delay=delay,
                ports=(ports or {}).get(number, ()),
                env=env,
            )
            stack.callback(one.close)
            made.append(one)
        for one in made:
            _ = one.locations
        yield made


@contextmanager
def endpoints(
    directory: Path, count: int, *, processes: int = PROCESSES, rows: int = 10, delay: float = 0.0
) -> Iterator[list[str]]:
    """The locations of ``count`` endpoints, which ``processes`` processes serve meanwhile."""
    counts = [count // processes + (number < count % processes) for number in range(processes)]
    with serving(directory, counts, rows=rows, delay=delay, env=environment()) as served:
        yield [location for one in served for location in one.locations]


@contextmanager
def reserved(count: int) -> Iterator[list[int]]:
    """Reserve ports, so that no connection of this machine uses them by chance while nobody
    listens.

    They are bound here and not listened on; a server that sets SO_REUSEADDR, as gRPC's do, can
    listen on them again and again, and nobody is connected meanwhile.
    """
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("0.0.0.0", 0))  # a server may listen on every address
            ports.append(held.getsockname()[1])
        yield ports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--ports", type=lambda text: [int(port) for port in text.split(",")])
    asked = parser.parse_args()
    fresh = not asked.directory.is_dir()
    asked.directory.mkdir(parents=True, exist_ok=True)
    ports = asked.ports or [0] * asked.count
    served = [
        Served(str(asked.directory / str(number)), ports[number], asked.delay)
        for number in range(asked.count)
    ]
    if fresh:
        for one in served:
            one.write(asked.rows)
    print(json.dumps([one.server.address for one in served]), flush=True)
    for line in sys.stdin:
        for one in served:
            one.write(int(line))
        print(flush=True)
    for one in served:
        one.server.close()


if __name__ == "__main__":
    main()
