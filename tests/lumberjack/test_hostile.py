"""Every hostile stream against a real process: no ack, one line, one count, bounded memory."""

import json
import re
import signal
import socket
import struct
import zlib

import pytest

from tests.chaos.gateways import LISTEN, bodies, most_resident, needs_proc, resident, served
from tests.lumberjack.frames import compressed, encode_ack, encode_json, encode_window
from tests.tools.byte_streams import deflated
from tests.tools.measures import turn_warn
from tests.tools.processes import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, needs_proc, pytest.mark.usefixtures("short_turns")]

MEBI = 1 << 20
COST_MAX = 20 * MEBI
"""What a hostile connection may cost above the limits which it reaches."""

SLICES_MAX = 24 * MEBI
"""A frame is inflated slice by slice, and what was checked is not kept."""


def frame(kind, *numbers, version=b"2"):
    return version + kind + struct.pack(f">{len(numbers)}I", *numbers)


def nested(depth, inner):
    for _ in range(depth):
        inner = compressed(zlib.compress(inner))
    return inner


EVENT = encode_json([1], [b'{"kept":"but not acknowledged"}'])
TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(160)


def hostile_streams():
    """Name → what is sent, the reason which is counted, the limits it may reach (in bytes)."""
    # The bomb of the lessons: about 398 KB for 400 MB, here of whole frames.
    zeros = deflated(encode_json([1], [bytes(MEBI)]), 400)
    assert 350_000 < len(zeros) < 450_000
    # The same of windows: 420 MB of W.
    windows = deflated(encode_window(5) * 100_000, 700)
    return {
        # LJ-16, LJ-05
        "TLS": (TLS_HELLO, "version", 0),
        "an ack from a writer": (encode_ack(1), "wrong-role", 0),
        # LJ-17: ten bytes or a few more, which claim gigabytes
        "a document of 2 GB": (frame(b"J", 1, 1 << 31), "json-limit", 0),
        "pairs without end": (frame(b"D", 1, (1 << 32) - 1), "pairs-limit", 0),
        "a value of 2 GB": (
            frame(b"D", 1, 1, 1) + b"k" + struct.pack(">I", 1 << 31),
            "value-limit",
            0,
        ),
        "a compressed frame of 2 GB": (frame(b"C", 1 << 31), "compressed-limit", 0),
        "many large values": (
            frame(b"D", 1, 1024)
            + (struct.pack(">I", 1) + b"k" + struct.pack(">I", MEBI) + bytes(MEBI)) * 70,
            "data-limit",
            64 * MEBI,
        ),
        # LJ-08
        "no zlib": (compressed(b"\xff" * 1000), "zlib", 0),
        "a partial frame in the third": (nested(3, EVENT[:-1]), "partial-frame", 0),
        "compressed 200 deep": (nested(200, EVENT), "compressed-depth", 0),
        "a bomb of documents": (compressed(zeros), "inflated-limit", SLICES_MAX),
        "a bomb of windows": (
            compressed(windows),
            "compressed-windows-limit",
            SLICES_MAX,
        ),
        "a bomb in a bomb in a bomb": (
            nested(2, compressed(zeros)),
            "inflated-limit",
            SLICES_MAX,
        ),
        "many bombs in one": (
            compressed(deflated(compressed(zeros), 30)),
            "inflated-limit",
            SLICES_MAX,
        ),
    }


def attack(port, nbytes, number=1):
    """Send it behind a whole event which fills no window; (our address, all that came back).

    ``number`` makes the address: of one, few lines are written to the log (NB-09).
    """
    ours = (f"127.0.0.{number}", 0)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, ours) as line:
        host, number = line.getsockname()
        said = b""
        try:
            line.sendall(encode_window(5) + EVENT + nbytes)
            while got := line.recv(4096):
                said += got
        except ConnectionError:
            pass  # what we still sent was not read any more
        return f"{host}:{number}", said


def forget_the_peak(server):
    with open(f"/proc/{server.pid}/clear_refs", "w") as file:
        file.write("5")


def test_hostile_streams_end_without_ack_with_one_line_and_one_count(launch, tmp_path):
    """LJ-05, LJ-08, LJ-16, LJ-17; FAULTS: nested zip bomb, 2 GB in ten bytes."""
    server = launch(
        *("--log-format=text", "lumberjack", "-e", LISTEN, "--queue", "queue"),
        # An event which waits for the rest of its window must not be acknowledged here, and a
        # machine that is busy with others has no time to be kept alive.
        *("--limit", "idle-ack=0", "--limit", "keepalive=0", turn_warn()),
        module="tests.tools.counted",
    )
    port = server.port("lumberjack")
    streams = hostile_streams()
    served(port)
    expected: dict[str, int] = {}
    for number, (name, (octets, reason, reached)) in enumerate(streams.items(), 1):
        forget_the_peak(server)
        before = resident(server)
        peer, said = attack(port, octets, number)
        assert said == b"", f"{name}: {said[:20]!r}"
        cost = most_resident(server) - before
        assert cost <= reached + COST_MAX, f"{name}: {cost / MEBI:.0f} MiB"
        # The frame which is wrong, or one within it.
        start = octets[:2].hex(" ")
        server.line(
            rf"{re.escape(peer)}: closed without ack: .+ \(starts with ({start}|32 4[13a])\b"
        )
        expected[reason] = expected.get(reason, 0) + 1
        server.signal(signal.SIGUSR1)
        counters = json.loads(server.line(r"counters (\{.*\})", nth=number)[1])
        counted = {key: value for key, value in counters.items() if key.startswith("fault:")}
        assert counted == {f"fault:{key}": value for key, value in expected.items()}, name
        assert counters["faults"] == number
        served(port)
    server.end()
    lines = [line for line in server.lines if "closed without ack" in line]
    assert len(lines) == len(streams), "one line for each, and not a second one"
    assert all(len(line) < 400 for line in lines)
    assert "Traceback" not in server.output
    # What came before is kept, though not acknowledged: the writer sends it again.
    kept = bodies(tmp_path / "queue").count(b'{"kept":"but not acknowledged"}')
    assert len(streams) <= kept
