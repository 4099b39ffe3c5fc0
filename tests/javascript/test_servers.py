"""The package for JavaScript runs in Node against our real servers."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.tools.certificates import Authority
from tests.tools.javascript import installed, node
from tests.tools.processes import PROJECT, Launched, Launcher
from twisted_msgproto.queue import QueueReader

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def run(launch: Launcher, script: str, *arguments: str) -> Launched:
    """Start a script of this directory in Node."""
    installed("ws")  # an older Node has no WebSocket of its own
    return launch.command([node(), str(HERE / script), *arguments])


def as_websocket(address: str) -> str:
    return address.replace("tcp:", "ws://") + "/"


def as_secure(address: str) -> str:
    return re.sub(r"^\w+:", "wss://", address) + "/"


def test_calls_callbacks_topics_attributes_and_what_comes_back(launch: Launcher) -> None:
    """FC-08, UM-09 … UM-16, SA-12 … SA-24, from Node."""
    authority = Authority(launch.directory)
    pair = authority.server()
    words = ["--tls", str(pair.cert), str(pair.key)]
    server = launch.command([sys.executable, str(HERE / "server.py"), *words])
    urls = [as_websocket(server.address(name)) for name in ("umq", "sabc")]
    secure = as_secure(server.address("secure"))
    client = run(launch, "live.mjs", *urls, secure, str(authority.cert))
    assert client.wait() == 0, client.output
    assert client.lines == [f"{what}: all of it holds" for what in ("umq", "sabc", "TLS")]
    # UM-19, UM-21, SA-17: programs that are slower than the network.
    slow = run(launch, "slow.mjs", *urls)
    assert slow.wait() == 0, slow.output
    assert slow.lines == ["files in pieces", "paused", "bounded", "working"]


def test_what_the_stock_servers_acknowledge_is_in_the_queue(launch: Launcher) -> None:
    """UM-17, SA-08, SA-16: log-ins, and an answer that says "on disk"."""
    config = launch.directory / "gateway.toml"
    config.write_text(
        "[queue]\ndirectory = 'spool'\n"
        "[umq]\nendpoint = ['tcp:0:interface=127.0.0.1']\nauth = ['memory:bob:secret']\n"
        "limit = ['login-delay=0.05']\n"
        "[sabc]\nwebsocket = ['tcp:0:interface=127.0.0.1']\nauth = ['memory:bob:secret']\n"
        "limit = ['login-delay=0.05']\n"
    )
    gateway = launch("gateway", "--config", str(config))
    urls = [as_websocket(gateway.address("umq")), gateway.address("sabc")]
    client = run(launch, "stock.mjs", *urls)
    assert client.wait() == 0, client.output
    gateway.end()
    reader = QueueReader(launch.directory / "spool")
    rows = [row for batch in reader.read(reader.begin(), reader.end()) for row in batch.to_pylist()]
    kept = {(row["protocol"], row["destination"], row["body"]): row for row in rows}
    event = kept["umq", "event", b'["event",{"clicked":"here"}]']
    assert event["attachments"] == [b"\1\2"]
    assert event["client_id"] == "bob"
    message = kept["sabc", None, b"safe on disk"]
    assert dict(message["fields"]) == {"colour": "red"}


def test_the_example_stores_its_events(launch: Launcher) -> None:
    """FC-08: docs/javascript.md shows it."""
    words = ["umq", "-e", "tcp:0:interface=127.0.0.1", "--queue", "spool"]
    server = launch(*words, module="twisted")
    installed("ws")
    example = PROJECT / "examples" / "javascript" / "events.mjs"
    client = launch.command([node(), str(example), as_websocket(server.address("umq"))])
    assert client.wait() == 0, client.output
    pages = ["/", "/products", "/checkout"]
    assert client.lines == [f"{page} is on disk" for page in pages]
    server.end()
    reader = QueueReader(launch.directory / "spool")
    rows = [row for batch in reader.read(reader.begin(), reader.end()) for row in batch.to_pylist()]
    assert [json.loads(row["body"])[1]["page"] for row in rows] == pages
    assert {row["destination"] for row in rows} == {"visited"}
