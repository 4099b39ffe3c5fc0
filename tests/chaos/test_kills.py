"""Real processes, killed with SIGKILL under load: gateway and bridge, and then the exact table."""

from collections import Counter

import pytest

from tests.chaos.shippers import Shipper
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark.table import LandedTable

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]

GATEWAY_KILLS = 5
BRIDGE_KILLS = 3
START_SECONDS = 300.0


def gateway(launch, queue, port=0):
    server = launch(
        *("lumberjack", "-e", f"tcp:{port}:interface=127.0.0.1", "--queue", queue),
        module="twisted",
    )
    return server, server.port("lumberjack")


def bridge(launch, queue, table, *options):
    return launch("bridge", "--queue", queue, "--table", table, *options)


def test_nothing_acknowledged_is_lost_and_nothing_lands_twice(launch, tmp_path):
    """LJ-13, LJ-15: gateway killed five times and bridge three times under load."""
    queue, table = tmp_path / "queue", tmp_path / "table"
    server, port = gateway(launch, queue)
    shippers = [Shipper(name, port) for name in ("a", "b")]
    for shipper in shippers:
        shipper.start()
    shippers[0].await_more(200)
    gateway_kills = bridge_kills = 0
    landing = bridge(launch, queue, table)
    while gateway_kills < GATEWAY_KILLS or bridge_kills < BRIDGE_KILLS:
        if bridge_kills < BRIDGE_KILLS:
            # Only after a batch has landed is there something to go wrong.
            landing.line(r"batch \d+: \d+ rows", seconds=START_SECONDS)
            landing.kill()
            bridge_kills += 1
            landing = bridge(launch, queue, table)
        for _ in range(2):
            if gateway_kills < GATEWAY_KILLS:
                server.kill()
                gateway_kills += 1
                server, _ = gateway(launch, queue, port)
                for shipper in shippers:
                    shipper.await_more(500)
    for shipper in shippers:
        shipper.finish()
    assert server.end() is not None
    landing.line(r"batch \d+: \d+ rows", seconds=START_SECONDS)
    landing.end(seconds=60)
    drained = bridge(launch, queue, table, "--once")
    assert drained.wait(seconds=START_SECONDS) == 0, drained.output

    landed = LandedTable(table).read(["gateway", "offset", "body", "session"])
    acknowledged = set().union(*(shipper.acknowledged for shipper in shippers))
    bodies = Counter(landed["body"].to_pylist())
    assert not acknowledged - bodies.keys()
    offsets = sorted(landed["offset"].to_pylist())
    end = QueueReader(queue).end()
    assert offsets == list(range(end)), "each offset of the queue once, and no other"
    assert len(set(landed["gateway"].to_pylist())) == 1
    # What came twice came over another connection: the wire is at-least-once, the table exact.
    connections = sum(shipper.connections for shipper in shippers)
    assert sum(bodies.values()) - len(bodies) <= connections * 50
