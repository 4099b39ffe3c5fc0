"""Lines of the log about what peers do: limited for each address, summed up, bounded in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.logger import Logger, formatEvent, globalLogPublisher

from twisted_msgproto.net import MsgprotoServerFactory
from twisted_msgproto.net.peerlog import LOGINS

LOG = Logger(namespace="twisted_msgproto.test")
LINES_MAX = 5  # of one address within a minute


class Server(MsgprotoServerFactory):
    protocolName = "lines"
    protocol = Protocol

    def __init__(self) -> None:
        self.time: Any = Clock()
        super().__init__(clock=self.time)

    def says(self, host: str, reason: str = "junk", **more: Any) -> None:
        self.writeOf(LOG, host, "{peer}: closed", reason=reason, peer=host, **more)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is written."""
    written: list[str] = []

    def observe(event: dict[str, object]) -> None:
        if event.get("log_namespace") == "twisted_msgproto.test":
            written.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield written
    globalLogPublisher.removeObserver(observe)


def test_lines_of_one_address_are_limited_and_summed_up_on_time__NB_09(lines: list[str]) -> None:
    """NB-09: also though nobody comes when the minute is over."""
    server = Server()
    for number in range(317):
        server.says("192.0.2.1", reason="tls" if number % 2 else "junk")
        server.time.advance(0.1)
    server.says("192.0.2.2")
    assert lines == ["192.0.2.1: closed"] * LINES_MAX + ["192.0.2.2: closed"]
    lines.clear()
    server.time.advance(60 - 31.8)
    assert lines == []
    server.time.advance(0.2)
    assert lines == [
        "192.0.2.1: … and 312 more like it from this address within 60 s (156 tls, 156 junk)"
    ]
    assert server.time.getDelayedCalls() == []
    server.says("192.0.2.1")
    assert lines[1:] == ["192.0.2.1: closed"]


def test_sums_are_written_at_the_end_and_nothing_is_left_on_the_clock__NB_09(
    lines: list[str],
) -> None:
    server = Server()
    for _ in range(9):
        server.says("192.0.2.1")
    lines.clear()
    server.peerLog.sum_up()
    assert lines == ["192.0.2.1: … and 4 more like it from this address within 60 s (4 junk)"]
    assert server.time.getDelayedCalls() == []


def test_a_flood_of_addresses_is_bounded_in_lines__NB_09(lines: list[str]) -> None:
    server = Server()
    for number in range(1500):
        for _ in range(7):
            server.says(f"10.0.{number // 250}.{number % 250}")
    assert len(lines) == 200
    lines.clear()
    server.peerLog.sum_up()
    assert len(lines) == 21
    assert lines[-1] == (
        f"other addresses: … and {1500 * 7 - 200 - 20 * 7} more like it from other addresses"
        " within 60 s"
    )


def test_one_topic_does_not_hide_another__NB_09(lines: list[str]) -> None:
    """Who sends junk has no login less in the log."""
    server = Server()
    for _ in range(100):
        server.says("192.0.2.1")
    server.says("192.0.2.1", topic=LOGINS)
    assert len(lines) == LINES_MAX + 1
