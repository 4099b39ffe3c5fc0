"""What a hostile peer can make the server hold: measured in the server's process, against limits.

The limits are chosen so that the bound of messages alone would be passed many times over.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.mtl.plain import Plain
from tests.tools.processes import Launched, launching

MIB = 1 << 20
CONTENT = 8 * MIB
PEER = 64 * MIB
UNSAFE = 16 * MIB
UNREAD = 16 * MIB
"""What waits for a peer outside libzmq (``Bounds.unread_octets``)."""

UNDER_WAY = 6 * CONTENT
"""Contents which libzmq reads or writes just now, and those which a turn has in its hands."""

SLACK = 16 * MIB
BODIES = 64
"""So many times CONTENT is far above every bound."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Launched]:
    with launching(tmp_path) as launch:
        yield launch(
            *(f"content-octets={CONTENT + 1024}", f"peer-octets={PEER}"),
            *(f"unsafe-octets={UNSAFE}", "liveness=600", "session-idle=600"),
            module="tests.mtl.held",
        )


def resident_most(server: Launched) -> int:
    """The most octets which the process ever had in memory."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1])


def test_a_writer_of_large_contents_cannot_fill_a_server_which_does_not_read(
    server: Launched,
) -> None:
    """MT-24, MT-29: libzmq holds at most ``peer-octets``; nothing is lost, others are served."""
    address = server.address("mtl")
    with Plain(address, prepare=lambda socket: socket.set(zmq.SNDHWM, 1)) as hostile:
        writer = hostile.ready("ingest").flow("Writer", ["a"])
        before = resident_most(server)
        body = bytes(CONTENT)
        sent = 0
        held = 0
        while sent < BODIES:
            if writer.socket.poll(2000, zmq.POLLOUT):
                last = writer.content("a", body)
                sent += 1
                continue
            # A busy machine is slow, which is not the same as full.
            before_that, held = held, resident_most(server) - before
            if held >= UNSAFE and held == before_that:
                break
        assert sent < BODIES
        assert UNSAFE <= held <= UNSAFE + PEER + UNDER_WAY + SLACK
        with Plain(address) as other:
            other.ready("ingest").flow("Writer", ["b"], lease=False)
        server.signal(signal.SIGUSR1)
        writer.confirmed(last)
        assert resident_most(server) - before <= UNSAFE + PEER + UNDER_WAY + SLACK


def test_a_reader_which_takes_no_large_contents_cannot_fill_the_server(server: Launched) -> None:
    """MT-24, MT-27, MT-29: it misses them, and then it loses its place."""
    address = server.address("mtl")
    with Plain(address, prepare=lambda socket: socket.set(zmq.RCVHWM, 1)) as client:
        client.ready("test")
        deaf, writer = (client.flow(way, ["resource"], "none") for way in ("Reader", "Writer"))
        assert deaf.summon("resource") == b"200"
        before = resident_most(server)
        body = bytes(CONTENT)
        for _ in range(BODIES):
            writer.content("resource", body)
            assert writer.pong()
        held = resident_most(server) - before
        assert held <= PEER + UNREAD + UNDER_WAY + SLACK
        with Plain(address) as other:
            other.ready("test")
