"""Servers as users start them, and what their processes have used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS_MAX = 60.0


def free_port() -> int:
    """Return a port that nobody listens on just now; nor on the next one, which MTL takes too."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", 0)) as taken:
            port = int(taken.getsockname()[1])
            with socket.create_server(("127.0.0.1", port + 1)):
                return port


@contextmanager
def server(protocol: str, directory: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Have ``twistd PROTOCOL`` over a queue in ``directory``: its process and its port."""
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}" if protocol == "mtl" else f"tcp:{port}:interface=127.0.0.1"
    words = [protocol, "-e", endpoint, "--queue", str(directory / "queue"), *options]
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "twisted", *words],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                said = (directory / "server.log").read_text().strip().splitlines()[-1:]
                raise RuntimeError(f"the server did not start: {said}")
            time.sleep(0.02)
        yield process.pid, port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads that run, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _tree(pid: int) -> dict[int, list[str]]:
    """Return a process and all below it, with what the system says of each."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    below = {pid}
    while more := {one for one, told in found.items() if int(told[1]) in below} - below:
        below |= more
    return {one: found[one] for one in below & found.keys()}


def tree_seconds(pid: int) -> float:
    """Return the CPU time of a process, of all below it, and of those of them that have ended."""
    ticks = sum(sum(map(int, told[11:15])) for told in _tree(pid).values())
    return ticks / os.sysconf("SC_CLK_TCK")


def tree_bytes(pid: int) -> int:
    """Return the memory of a process and of all below it; what they share counts once."""
    total = 0
    for one in _tree(pid):
        with suppress(OSError):
            told = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += int(told.partition("\nPss:")[2].split()[0]) * 1024
    return total


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
