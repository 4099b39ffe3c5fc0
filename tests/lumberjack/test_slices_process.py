"""NB-10: filebeat's large batch against a real gateway with a real queue."""

import socket
from random import Random

import pytest

from tests.chaos.gateways import LISTEN, bodies, most_resident, needs_proc, resident
from tests.lumberjack.frames import encode_ack
from tests.lumberjack.test_slices import batch, varied
from tests.tools.processes import PATIENCE_SECONDS
from tests.tools.turns import turn_warn

pytestmark = [pytest.mark.slow, needs_proc, pytest.mark.usefixtures("short_turns")]

MEBI = 1 << 20
RESIDENT_MAX = 250 * MEBI


def test_2048_varied_lines_of_40_kb_land_whole_within_250_mb(launch, tmp_path):
    """NB-10: one window in one C frame, acknowledged when all of it is in the queue."""
    server = launch(
        *("--log-format=text", "lumberjack", "-e", LISTEN, "--queue", "queue", turn_warn()),
        module="twisted",
    )
    port = server.port("lumberjack")
    source = Random(1)
    lines = [varied(40_000, source) for _ in range(64)] * 32
    octets = batch(lines)
    idle = resident(server)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as line:
        line.sendall(octets)
        heard = b""
        while not heard.endswith(encode_ack(len(lines))):
            got = line.recv(600)
            assert got, server.output
            heard += got
    # Keep-alives before it, if it took that long.
    assert heard.replace(encode_ack(0), b"") == encode_ack(len(lines))
    peak = most_resident(server)
    print(
        f"{len(octets) / MEBI:.1f} MiB compressed, {sum(map(len, lines)) / MEBI:.0f} MiB of lines"
    )
    print(f"resident: {idle / MEBI:.0f} MiB idle, {peak / MEBI:.0f} MiB at most")
    assert bodies(tmp_path / "queue") == lines
    assert peak <= RESIDENT_MAX
    server.end()
