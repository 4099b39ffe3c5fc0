"""The watch over CPU time a turn, and a clock that cannot be set."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python import usage

from tests.tools.processes import PATIENCE_SECONDS, Launcher, environment
from twisted_msgproto.lumberjack import encode_json, encode_window
from twisted_msgproto.lumberjack.wire.frames import encode_ack
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.net.process import count_monotonically
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.registry import load


def test_an_operator_hears_whose_input_took_long_once_a_minute__NB_07() -> None:
    """NB-07: one line with the peer and the option's name, a sum, and a counter."""
    server = factory_of(["--turn-warn=50"])
    spent = iter(range(7, 1000))
    server.turnWatch._cpu = lambda: next(spent)  # a second for each turn
    connection = server.buildProtocol(None)
    connection.makeConnection(StringTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 7)))
    with capturedLogs() as lines:
        for _ in range(3):
            connection.dataReceived(encode_window(1))
        server.peerLog.sum_up()
    assert [formatEvent(line) for line in lines if "ms of CPU" in formatEvent(line)] == [
        "lumberjack: 192.0.2.1:7: its input took 1000 ms of CPU time in one turn"
        " (turn-warn is 50 ms)"
    ]
    assert any("2 more long turns" in formatEvent(line) for line in lines)
    assert server.counters["slow_turns"] == 3


@pytest.mark.parametrize(("words", "watches"), [([], False), (["--turn-warn=0"], False)])
def test_nothing_is_measured_unless_an_operator_asks(words: list[str], watches: bool) -> None:
    assert (factory_of(words).turnWatch is not None) is watches


def factory_of(words: list[str]) -> Any:
    options = load("lumberjack", "service").Options()
    options.read(words)
    return Gateway(Clock()).makeFactory(options)


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", ""])
def test_an_option_that_is_no_time_is_a_line(text: str) -> None:
    read: Callable[[list[str]], None] = load("lumberjack", "service").Options().read
    with pytest.raises(usage.UsageError, match="turn-warn takes a time in ms"):
        read([f"--turn-warn={text}"])


# ── a process of ours counts by a clock that cannot be set (nb-0 ────────────────────────────────


FAKETIME = shutil.which("faketime")


class Reactor(Clock):
    """A clock whose ``seconds`` may be replaced, as a reactor's."""


def test_a_reactor_without_timers_counts_by_the_clock_it_is_given() -> None:
    reactor: Any = SelectReactor()
    try:
        count_monotonically(reactor)
        assert reactor.seconds is time.monotonic
    finally:
        reactor.disconnectAll()
        for reader in list(reactor._internalReaders):
            reader.connectionLost(None)


def test_timers_that_were_set_by_another_clock_are_left_alone() -> None:
    reactor = Reactor()
    reactor.callLater(1, lambda: None)
    before = reactor.seconds
    count_monotonically(reactor)
    assert reactor.seconds == before


def library() -> str:
    """Where the library of ``faketime`` stands; skips if the machine has none."""
    if FAKETIME is None:
        pytest.skip("faketime is missing: apt-get install faketime")
    found = sorted(Path("/usr/lib").rglob("libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketimeMT.so.1 is missing: apt-get install libfaketime")
    return str(found[0])


@pytest.mark.slow
def test_acknowledgements_are_on_time_when_the_clock_is_set_back__NB_06(
    launch: Launcher, tmp_path: Path
) -> None:
    """What was on disk already was acknowledged an hour later."""
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    queue = tmp_path / "q"
    server = launch(
        *("lumberjack", "-e", "tcp:0:interface=127.0.0.1"),
        *("--queue", str(queue), "--limit", "idle-ack=2"),
        module="twisted",
        env=environment(
            LD_PRELOAD=library(),
            FAKETIME_TIMESTAMP_FILE=str(offset),
            FAKETIME_NO_CACHE="1",
            DONT_FAKE_MONOTONIC="1",
        ),
    )
    with socket.create_connection(("127.0.0.1", server.port("lumberjack"))) as line:
        line.settimeout(PATIENCE_SECONDS)
        line.sendall(encode_window(5) + encode_json([1, 2, 3], [b"{}", b"{}", b"{}"]))
        reader = QueueReader(queue)
        until = time.monotonic() + PATIENCE_SECONDS
        while reader.end() < 3 and time.monotonic() < until:
            time.sleep(0.01)
        other = tmp_path / "other"
        other.write_text("-3600\n")
        os.replace(other, offset)
        assert line.recv(100) == encode_ack(3)
