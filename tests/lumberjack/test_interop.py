"""Shippers which are not ours, live, against ``twistd lumberjack`` with a queue.

Live: ``pylogbeat`` from PyPI (version 2, compressed, numbers which run on over windows, TLS),
``lumberjack-client`` from npm (version 2, compressed, numbers from 1 in each window) and
``lumberjack-protocol`` from npm (version 1, plain data frames over TLS, one W for ever).
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.tools.certificates import Authority
from tests.tools.processes import Launched, Launcher
from twisted_msgproto.queue import QueueReader

pytestmark = pytest.mark.slow

FOREIGN = Path(__file__).parent.parent / "foreign"


def serve(launch: Launcher, endpoint: str = "tcp:0:interface=127.0.0.1", *more: str) -> Launched:
    words = ["--log-format=text", "lumberjack", "-e", endpoint, "--queue", "spool", *more]
    return launch(*words, module="twisted")


def rows(launch: Launcher) -> list[dict]:
    """All rows of the server's queue."""
    reader = QueueReader(launch.directory / "spool")
    batches = reader.read(reader.begin(), reader.end())
    return [row for batch in batches for row in batch.to_pylist()]


def node(launch: Launcher, script: str, *arguments: object) -> Launched:
    """Start a script of tests/foreign, or skip and say what is missing."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed (Debian: apt-get install nodejs npm)")
    if not (FOREIGN / "node_modules" / "lumberjack-client").is_dir():
        pytest.skip("the npm packages are not installed: ./run test installs them")
    return launch.command(["node", str(FOREIGN / script), *map(str, arguments)])


# ── Live ────────────────────────────────────────────────────────────────────────────────────────

PYLOGBEAT = """
import json, sys
from pylogbeat import PyLogBeatClient
port, tls = int(sys.argv[1]), json.loads(sys.argv[2])
client = PyLogBeatClient("127.0.0.1", port, timeout=60, ssl_enable=bool(tls), **tls)
number = 0
for size in (1, 5, 200):
    batch = [{"n": number + at, "text": "über die Leitung"} for at in range(size)]
    number += size
    client.send(batch)  # returns when the number of its last event was acknowledged
    print("acknowledged", client._last_ack, flush=True)
client.close()
"""


def pylogbeat(launch: Launcher, port: int, **tls: object) -> None:
    pytest.importorskip("pylogbeat", reason="pylogbeat is not installed: pip install pylogbeat")
    shipping = launch.command([sys.executable, "-c", PYLOGBEAT, str(port), json.dumps(tls)])
    assert shipping.wait() == 0, shipping.output
    # Its numbers run on over the windows, and it takes nothing else for its ack.
    assert [line for line in shipping.lines if line.startswith("ack")] == [
        "acknowledged 1",
        "acknowledged 6",
        "acknowledged 206",
    ]
    documents = [json.loads(row["body"]) for row in rows(launch)]
    assert documents == [{"n": n, "text": "über die Leitung"} for n in range(206)]


def test_pylogbeat_compressed(launch: Launcher) -> None:
    """LJ-08, LJ-11: every window in one C frame; numbers which run on."""
    server = serve(launch)
    pylogbeat(launch, server.port("lumberjack"))
    assert {(row["kind"], row["client_id"]) for row in rows(launch)} == {("json", None)}


def test_pylogbeat_over_tls_with_a_certificate(launch: Launcher, tmp_path: Path) -> None:
    """LJ-01, LJ-08: against an mtls: endpoint."""
    authority = Authority(tmp_path)
    ours, theirs = authority.server(), authority.client("beat-1")
    server = serve(
        launch,
        f"mtls:0:interface=127.0.0.1:privateKey={ours.key}:certKey={ours.cert}"
        f":caCerts={authority.cert}",
    )
    pylogbeat(
        launch,
        server.port("lumberjack"),
        ssl_verify=True,
        ca_certs=str(authority.cert),
        certfile=str(theirs.cert),
        keyfile=str(theirs.key),
    )
    assert {row["client_id"] for row in rows(launch)} == {"O=Example,CN=beat-1"}


def test_lumberjack_client_compressed(launch: Launcher) -> None:
    """LJ-08, LJ-13: a window of 40 in one C frame, then windows of one; one ack for each."""
    server = serve(launch)
    shipping = node(launch, "lumberjack_client.js", server.port("lumberjack"), 40)
    assert shipping.wait() == 0, shipping.output
    assert shipping.lines == ["ack 2A 40", "ack 2A 1", "ack 2A 1", "ack 2A 1"]
    documents = [json.loads(row["body"]) for row in rows(launch)]
    assert documents == [{"n": n, "text": "über die Leitung"} for n in range(43)]


def test_lumberjack_protocol_plain_over_tls(launch: Launcher, tmp_path: Path) -> None:
    """LJ-01, LJ-03, LJ-07, LJ-11, LJ-13: W 50 once, then a stream of D frames, numbers run on.

    Each full window is acknowledged with its last number; the short one after the idle time.
    """
    authority = Authority(tmp_path)
    ours = authority.server()
    server = serve(
        launch,
        f"ssl:0:interface=127.0.0.1:privateKey={ours.key}:certKey={ours.cert}",
        "--limit",
        "idle-ack=0.2",
    )
    shipping = node(
        launch,
        "lumberjack_protocol.js",
        server.port("lumberjack"),
        authority.cert,
        220,
        50,
    )
    assert shipping.wait() == 0, shipping.output
    acks = [int(line.split()[1]) for line in shipping.lines if line.startswith("ack ")]
    assert [ack for ack in acks if ack % 50 == 0] == [50, 100, 150, 200]
    assert acks[-1] == 220
    got = [(row["kind"], dict(row["fields"]), row["body"]) for row in rows(launch)]
    assert got == [
        ("data", {"line": f"line {n}", "host": "web-1", "text": "über die Leitung"}, None)
        for n in range(220)
    ]
