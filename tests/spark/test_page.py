"""The live page of a gateway shows a bridge that is on another machine (``FC-03``)."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.tools.processes import Launcher
from tests.tools.served import Served
from twisted_msgproto.lumberjack.wire import encode_json, encode_window
from twisted_msgproto.spark.bridge import Bridge, BridgeOptions, Ending

LOOPBACK = "tcp:0:interface=127.0.0.1"
ROWS = 40
PATIENCE_SECONDS = 300.0


class Borrowing(Bridge):
    """A bridge with the Spark of this test run."""

    context: Any

    @contextlib.contextmanager
    def _spark(self, scratch: Path, java: str = "") -> Iterator[Any]:
        yield self.context


def shown(address: str) -> list[dict[str, Any]]:
    """The bridges, as a gateway's page has them."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/status.json")
    figures = json.loads(connection.getresponse().read())
    connection.close()
    bridges: list[dict[str, Any]] = figures["queue"]["bridges"]
    return bridges


def test_a_bridge_tells_its_status_over_flight_to_the_gateways_page__FC_03(
    launch: Launcher, spark: Any, tmp_path: Path
) -> None:
    queue = launch.directory / "queue"
    gateway = launch.command(
        [sys.executable, "-m", "twisted", "lumberjack", f"--endpoint={LOOPBACK}",
         f"--queue={queue}", f"--status={LOOPBACK}"],
    )  # fmt: skip
    status = gateway.address("status").removeprefix("tcp:")
    with socket.create_connection(("127.0.0.1", gateway.port("lumberjack")), timeout=60) as peer:
        numbers = list(range(1, ROWS + 1))
        peer.sendall(encode_window(ROWS) + encode_json(numbers, [b"{}"] * ROWS))
        assert peer.recv(6) == b"2A\0\0\0" + bytes([ROWS])
    assert shown(status) == []

    with Served(queue) as served:
        options = BridgeOptions(
            [served.location], str(tmp_path / "table"), consumer="far", trigger=0
        )
        ending = Ending()
        said: list[str] = []
        bridge = Borrowing(options, ending, said.append)
        bridge.context = spark.sparkContext
        running = threading.Thread(target=bridge.run, daemon=True)
        running.start()
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (bridges := shown(status)) or bridges[0]["rows"] != ROWS:
                assert running.is_alive(), said
                assert time.monotonic() < deadline, (bridges, said)
                time.sleep(0.1)
        finally:
            ending.wishes += 1
            running.join(PATIENCE_SECONDS)
    assert not running.is_alive()
    [far] = bridges
    assert (far["consumer"], far["state"], far["error"]) == ("far", "running", None)
    assert far["table"] == str(tmp_path / "table")
    assert far["last_batch"]["rows"] == ROWS
    assert (far["gateways"], far["offset"], far["lag_rows"], far["away"]) == (1, ROWS, 0, [])
