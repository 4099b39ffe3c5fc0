"""The watch over CPU time a turn, and the line with which ``--turn-warn`` speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python import usage

from tests.tools.small_link import LineServer
from twisted_msgproto.lumberjack.service import Options
from twisted_msgproto.net import MsgprotoServerFactory
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.net.turns import TurnWatch


class Worker:
    """Work that takes CPU time of a clock of its own."""

    spent = 0.0

    def outer(self, seconds: float) -> str:
        self.spent += seconds
        self.inner(seconds)
        return "done"

    def inner(self, seconds: float) -> None:
        self.spent += seconds

    def fails(self) -> None:
        self.spent += 1.0
        raise ValueError


def watched(seconds: float) -> tuple[Worker, list[Any]]:
    worker, slow = Worker(), []
    watch = TurnWatch(seconds, lambda *told: slow.append(told), lambda: worker.spent)
    watch.measure(worker, "outer", "inner", "fails", peer="192.0.2.1:1", host="192.0.2.1")
    return worker, slow


def test_a_turn_is_told_once_with_all_that_was_called_in_it__NB_07() -> None:
    """NB-07"""
    worker, slow = watched(0.05)
    assert worker.outer(0.025) == "done"
    assert slow == []
    worker.outer(0.03)
    assert slow == [("192.0.2.1:1", "192.0.2.1", pytest.approx(0.06))]


def test_a_turn_that_fails_is_told_as_well__NB_07() -> None:
    worker, slow = watched(0.5)
    with pytest.raises(ValueError):
        worker.fails()
    assert [spent for _, _, spent in slow] == [1.0]
    worker.inner(0.1)
    assert len(slow) == 1


class Factory(MsgprotoServerFactory):
    protocolName = "lines"
    protocol = LineServer


def test_an_operator_hears_whose_input_took_long_once_a_minute__NB_07() -> None:
    """NB-07: one line with the peer and the option's name, a sum, and a counter."""
    server = Factory(clock=Clock(), limits={"handshake": 1})
    spent = iter(range(1000))
    watch = server.watchTurns(0.05)
    watch._cpu = lambda: next(spent)  # a second for each turn
    connection: Any = server.buildProtocol(None)
    connection.factory = server
    connection.makeConnection(StringTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 7)))
    with capturedLogs() as lines:
        for _ in range(3):
            connection.dataReceived(b"x\n")
        server.peerLog.sum_up()
    assert [formatEvent(line) for line in lines if "ms of CPU" in formatEvent(line)] == [
        "lines: 192.0.2.1:7: its input took 1000 ms of CPU time in one turn (turn-warn is 50 ms)"
    ]
    assert any("2 more long turns" in formatEvent(line) for line in lines)
    assert server.counters["slow_turns"] == 3


@pytest.mark.parametrize(("words", "watches"), [([], False), (["--turn-warn=0"], False)])
def test_nothing_is_measured_unless_an_operator_asks(words: list[str], watches: bool) -> None:
    assert (factory_of(words).turnWatch is not None) is watches


def test_the_option_is_in_ms() -> None:
    watch = factory_of(["--turn-warn=50"]).turnWatch
    assert watch is not None
    assert watch._seconds == 0.05


def factory_of(words: list[str]) -> Any:
    options = Options()
    options.read(words)
    return Gateway(Clock()).makeFactory(options)


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", ""])
def test_an_option_that_is_no_time_is_a_line(text: str) -> None:
    read: Callable[[list[str]], None] = Options().read
    with pytest.raises(usage.UsageError, match="turn-warn takes a time in ms"):
        read([f"--turn-warn={text}"])
