"""Messages and their latencies are counted, and the flow of 15 minutes is kept (``FC-03``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from twisted_msgproto import MessageBatch
from twisted_msgproto.net import Delivery, OctetBudget, ReadControl
from twisted_msgproto.net.status.flow import FlowHistory, since
from twisted_msgproto.net.traffic import Traffic, quantile

SAMPLE_SECONDS, SAMPLES_MAX = 5.0, 180


def batch(count: int) -> MessageBatch:
    return MessageBatch("lumberjack", "json", 0, count=count, octets=10 * count, body=[b""] * count)


class Transport:
    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


def delivering(traffic: Traffic) -> Delivery:
    control = ReadControl(Transport())
    return Delivery(
        control, OctetBudget(), 1 << 20, lambda place: None, lambda place, why: None, traffic
    )


def test_a_latency_ends_when_the_batch_is_safe_and_counts_once_for_each_message() -> None:
    clock = Clock()
    traffic = Traffic(clock.seconds)
    waiting: Deferred[None] = Deferred()
    delivering(traffic).deliver(lambda one: waiting, batch(7), 1)
    assert (traffic.messages, traffic.octets, sum(traffic.latencies)) == (7, 70, 0)
    clock.advance(0.02)
    waiting.callback(None)
    assert sum(traffic.latencies) == 7
    assert traffic.waited == pytest.approx(0.14)
    assert quantile(traffic.latencies, 0.99) == pytest.approx(0.02, rel=0.25)


def test_what_is_safe_at_once_waited_for_nothing_and_what_is_lost_does_not_count() -> None:
    clock = Clock()
    traffic = Traffic(clock.seconds)
    delivery = delivering(traffic)
    delivery.deliver(lambda one: None, batch(3), 1)
    assert traffic.latencies[0] == 3
    lost: Deferred[None] = Deferred()
    delivery.deliver(lambda one: lost, batch(5), 2)
    lost.errback(ValueError("the disk"))
    assert (traffic.messages, sum(traffic.latencies)) == (8, 3)


@pytest.mark.parametrize("seconds", [0.00005, 0.0042, 0.7, 33.0])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_quantile_is_right_to_a_quarter(seconds: float, share: float) -> None:
    traffic = Traffic(lambda: seconds)
    traffic.acknowledged(1000, 0.0)
    found = quantile(traffic.latencies, share)
    assert found is not None
    assert found == pytest.approx(seconds, rel=0.25, abs=0.0001)


def test_the_slow_few_stand_in_p99_alone_and_what_is_above_all_bounds_at_the_last() -> None:
    traffic = Traffic(lambda: 0.001)
    traffic.acknowledged(980, 0.0)
    traffic.seconds = lambda: 1000.0
    traffic.acknowledged(20, 0.0)
    assert quantile(traffic.latencies, 0.5) == pytest.approx(0.001, rel=0.25)
    assert quantile(traffic.latencies, 0.99) == 100.0
    assert quantile([0] * len(traffic.latencies), 0.5) is None


class Kept:
    """A history of one protocol's traffic, by a clock of our own."""

    def __init__(self) -> None:
        self.clock: Any = Clock()
        self.traffic = Traffic(self.clock.seconds)
        self.factories = [SimpleNamespace(protocolName="umq", traffic=self.traffic)]
        self.history = FlowHistory(self.clock, lambda: self.factories, lambda: self.clock.seconds())
        self.history.start()

    def tick(self, messages: int = 0) -> None:
        self.traffic.messages += messages
        self.traffic.octets += 100 * messages
        self.traffic.acknowledged(messages, self.clock.seconds() - 0.01)
        self.clock.advance(SAMPLE_SECONDS)


def test_rates_are_those_of_each_sample_and_a_sample_without_messages_has_no_latency() -> None:
    kept = Kept()
    kept.tick(50)
    kept.tick()
    columns = kept.history.figures()["protocols"]["umq"]
    assert columns["messages_per_second"] == [10.0, 0.0]
    assert columns["octets_per_second"] == [1000.0, 0.0]
    assert columns["ack_p50_seconds"][0] == pytest.approx(0.01, rel=0.25)
    assert columns["ack_p99_seconds"][1] is None


def test_only_the_last_15_minutes_are_kept_and_nothing_after_the_end() -> None:
    kept = Kept()
    for _ in range(SAMPLES_MAX + 3):
        kept.tick(5)
    flow = kept.history.figures()
    assert len(flow["at"]) == SAMPLES_MAX == 15 * 60 / SAMPLE_SECONDS
    assert {len(values) for values in flow["protocols"]["umq"].values()} == {SAMPLES_MAX}
    kept.history.stop()
    assert kept.clock.getDelayedCalls() == []
    assert kept.history.figures() == flow


def test_servers_of_one_protocol_are_added_up_and_a_new_one_has_no_past() -> None:
    kept = Kept()
    kept.tick(5)
    kept.factories += [
        SimpleNamespace(protocolName=name, traffic=Traffic(kept.clock.seconds))
        for name in ("umq", "mtl")
    ]
    kept.factories[1].traffic.messages = 10
    kept.tick(5)
    protocols = kept.history.figures()["protocols"]
    assert protocols["umq"]["messages_per_second"] == [1.0, 3.0]
    assert protocols["mtl"]["messages_per_second"] == [None, 0.0]


def test_a_page_is_sent_what_it_has_not_got() -> None:
    kept = Kept()
    for _ in range(3):
        kept.tick(5)
    flow = kept.history.figures()
    rest = since(flow, flow["at"][0])
    assert rest["at"] == flow["at"][1:]
    assert rest["protocols"]["umq"]["messages_per_second"] == [1.0, 1.0]
    assert since(flow, flow["at"][-1])["at"] == []
    assert since(flow, 0) == flow
