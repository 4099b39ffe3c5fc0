"""All five protocols at one gateway under a bad disk and a clock that is set: nothing is lost.

``./run chaos`` has these tests do more of the same.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.clients import PROTOCOLS, GoodClients
from tests.chaos.gateways import Five, until_stalled
from tests.net.test_time import library
from tests.tools.processes import Launcher, children, environment

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("MSGPROTO_TIMES", "2"))
"""How often the disk fails or the clock is set."""

MESSAGES = 5
"""Each client sends so many meanwhile."""


@contextmanager
def standing(five: Five, directory: Path) -> Iterator[GoodClients]:
    with contextlib.closing(GoodClients(directory)) as clients:
        for name in PROTOCOLS:
            clients.stand(name, five.ports[name])
        yield clients


@contextmanager
def sending(clients: GoodClients, count: int = MESSAGES) -> Iterator[None]:
    """All clients send meanwhile; at the end of the block everything is acknowledged."""
    thread = threading.Thread(target=clients.send_all, args=(count,), daemon=True)
    thread.start()
    yield
    thread.join()


def check(five: Five, clients: GoodClients, rounds: int, what: str) -> None:
    """Each message is acknowledged, and what is acknowledged is in the queue."""
    told = clients.told()
    assert len(told) == len(PROTOCOLS) * (1 + rounds * MESSAGES)
    assert not five.lost(told)
    print(f"figure: {what}, {len(told):,} acknowledged, 0 of them lost")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no prlimit(2) here: Linux")
def test_all_wait_for_room_on_the_disk(launch: Launcher, tmp_path: Path) -> None:
    """FAULTS, disk full; LJ-13, MM-19, SA-16, UM-19, MT-28: acks are withheld, then they come."""
    five = Five(launch, module="twisted_msgproto")
    usual, most = resource.prlimit(five.server.pid, resource.RLIMIT_FSIZE)
    with standing(five, tmp_path) as clients:
        for _ in range(TIMES):
            size = max(path.stat().st_size for path in five.queue.glob("*.segment"))
            resource.prlimit(five.server.pid, resource.RLIMIT_FSIZE, (size + 100, most))
            with sending(clients):
                until_stalled(five.queue)
                assert not five.lost(clients.told())
                resource.prlimit(five.server.pid, resource.RLIMIT_FSIZE, (usual, most))
        check(five, clients, TIMES, f"{TIMES} times without room")


@pytest.mark.skipif(
    shutil.which("strace") is None, reason="no strace: apt-get install strace brings it"
)
def test_a_sync_that_fails_acknowledges_nothing(launch: Launcher, tmp_path: Path) -> None:
    """FAULTS, EIO: every fifth sync of the disk fails, and nothing is lost that was told."""
    trace = tmp_path / "trace"
    failing = (
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:error=EIO:when=14+5",
    )  # a start has about ten
    words = ("strace", "-f", "--seccomp-bpf", *failing, "-o", str(trace))
    five = Five(launch, *words, module="twisted_msgproto")
    with standing(five, tmp_path) as clients:
        for _ in range(TIMES):
            clients.send_all(MESSAGES)
        (traced,) = children(five.server.pid)
        os.kill(traced, signal.SIGKILL)
        five.server.wait()
        failed = trace.read_text().count("(INJECTED)")
        assert failed >= 1
        check(five, clients, TIMES, f"{failed} syncs failed")


def test_a_clock_that_is_set_delays_no_acknowledgement(launch: Launcher, tmp_path: Path) -> None:
    """NB-06: an hour back, a day forward, a day back, while all five send."""
    offset = tmp_path / "offset"

    def step(seconds: int) -> None:
        other = tmp_path / "other"
        other.write_text(f"{seconds:+d}\n")
        os.replace(other, offset)

    step(0)
    stepped = environment(
        LD_PRELOAD=library(),
        FAKETIME_TIMESTAMP_FILE=str(offset),
        FAKETIME_NO_CACHE="1",
        DONT_FAKE_MONOTONIC="1",
    )
    five = Five(launch, module="twisted_msgproto", env=stepped)
    with standing(five, tmp_path) as clients:
        for number in range(TIMES):
            with sending(clients):
                step((-3600, 86_400, -86_400)[number % 3])
        check(five, clients, TIMES, f"{TIMES} steps of the clock")
