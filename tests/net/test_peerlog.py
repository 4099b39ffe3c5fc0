"""Lines of the log about what peers do: limited for each address, summed up, bounded in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.internet.task import Clock
from twisted.logger import Logger, formatEvent, globalLogPublisher

from twisted_msgproto.net import peerlog
from twisted_msgproto.net.addresses import network_of
from twisted_msgproto.net.peerlog import FAULTS, LIMITS, LINES_MAX, LOGINS, PeerLog, Topic

LOG = Logger(namespace="twisted_msgproto.test")


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


def write(
    front: PeerLog, address: str, now: float = 0.0, reason: str = "junk", topic: Topic = FAULTS
) -> None:
    front.write(topic, LOG, address, now, "{peer}: closed", reason=reason, peer=address)


def test_lines_of_one_address_are_limited_and_summed_up__NB_09(lines: list[str]) -> None:
    front = PeerLog()
    for number in range(317):
        write(front, "192.0.2.1", now=number / 10, reason="tls" if number % 2 else "junk")
    write(front, "192.0.2.2", now=32.0)
    assert lines == ["192.0.2.1: closed"] * LINES_MAX + ["192.0.2.2: closed"]
    lines.clear()
    write(front, "192.0.2.3", now=60.0)
    assert lines == [
        "192.0.2.1: … and 312 more like it from this address within 60 s (156 tls, 156 junk)",
        "192.0.2.3: closed",
    ]


def test_a_sum_is_written_on_time_though_nobody_comes__NB_09(lines: list[str]) -> None:
    clock, front = Clock(), PeerLog()
    front.clock = clock
    for _ in range(LINES_MAX):
        write(front, "192.0.2.1")
    assert clock.getDelayedCalls() == []
    write(front, "192.0.2.1")
    clock.advance(59)
    assert len(lines) == LINES_MAX
    write(front, "192.0.2.1", 59.0, topic=LOGINS)
    clock.advance(1)
    assert lines[-1] == "192.0.2.1: … and 1 more like it from this address within 60 s (1 junk)"
    assert clock.getDelayedCalls() == []


def test_sums_are_written_at_the_end_and_nothing_is_left_on_the_clock__NB_09(
    lines: list[str],
) -> None:
    clock, front = Clock(), PeerLog()
    front.clock = clock
    for _ in range(9):
        write(front, "192.0.2.1")
        write(front, "10 connections", topic=LIMITS)
    lines.clear()
    front.sum_up()
    assert lines == [
        "192.0.2.1: … and 4 more like it from this address within 60 s (4 junk)",
        "10 connections: … and 8 more like it within 60 s (8 junk)",
    ]
    assert clock.getDelayedCalls() == []


def test_a_flood_of_addresses_is_bounded_in_memory_and_lines__NB_09(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peerlog, "ADDRESSES_MAX", 30)
    monkeypatch.setattr(peerlog, "ALL_LINES_MAX", 20)
    monkeypatch.setattr(peerlog, "SUMS_MAX", 4)
    front = PeerLog()
    for number in range(200):
        for _ in range(7):
            write(front, f"192.0.2.{number}")
    assert len(lines) == 20
    lines.clear()
    front.sum_up(60.0)
    assert len(lines) == 5
    assert lines[-1] == (
        f"other addresses: … and {200 * 7 - 20 - 4 * 7} more like it from other addresses"
        " within 60 s"
    )


def test_one_topic_does_not_hide_another__NB_09(lines: list[str]) -> None:
    """Who sends junk has no login less in the log."""
    front = PeerLog()
    for _ in range(100):
        write(front, "192.0.2.1")
    write(front, "192.0.2.1", topic=LOGINS)
    assert len(lines) == LINES_MAX + 1


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.9", None),
        ("::1", None),
        ("", None),
        ("unix", None),
    ],
)
def test_an_ipv6_network_is_one_address_and_this_machine_is_many(
    address: str, network: str | None
) -> None:
    assert network_of(address) == network
