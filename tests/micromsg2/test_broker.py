"""The broker alone: topics, queues, filters, bounds, consumers which come and go."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.micromsg2.layouts import decode, encode_address
from twisted_msgproto.core.broker import LETTER_OCTETS, weight
from twisted_msgproto.core.kept import Kept
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.micromsg2 import Broker
from twisted_msgproto.micromsg2.application import LIMITS, SPACE, SubscriptionRefused
from twisted_msgproto.micromsg2.letters import Routed
from twisted_msgproto.micromsg2.wire import read_properties
from twisted_msgproto.net.broker import ServedBroker

WEIGHT = weight(b"", b"0") + 30
"""A small message for a queue weighs no more."""


class Consumer:
    """Takes what it has room for, and acknowledges when it is told to."""

    def __init__(self, broker: Broker, room: int = 1000, acknowledges: bool = True) -> None:
        self.broker = broker
        self.window = room
        self.acknowledges = acknowledges
        self.got: list[Routed] = []
        self.flights: list[int] = []
        self.number = 0
        self.ended = False

    def room(self) -> int:
        return self.window - len(self.flights)

    def push(self, messages: Sequence[Routed]) -> Iterable[int] | None:
        assert not self.ended
        assert 0 < len(messages) <= self.room()
        self.got += messages
        if not self.acknowledges:
            return None
        numbers = list(range(self.number, self.number + len(messages)))
        self.number += len(messages)
        self.flights += numbers
        return numbers

    def owing(self) -> None:
        assert self.acknowledges

    def too_slow(self) -> None:
        self.ended = True

    def failed(self, error: Exception) -> None:
        raise error

    def acknowledge(self, count: int | None = None) -> None:
        count = len(self.flights) if count is None else count
        done, self.flights = self.flights[:count], self.flights[count:]
        self.broker.acknowledged(self, done)

    def lose(self) -> None:
        self.ended = True
        self.flights = []
        self.broker.lost(self)

    @property
    def bodies(self) -> list[bytes]:
        frames = [(head, rest) for one in self.got for head, rest in one.frames]
        found = decode([bytes((head,)) + b"\0\1" + rest for head, rest in frames])
        return [row[3] for row in found if isinstance(row, tuple)]

    def subscribe(self, destination: str, expression: str = "") -> None:
        parameters = {"destination": destination}
        if expression:
            parameters["filter"] = expression
        self.broker.obey(self, "subscribe", parameters)
        self.broker.look()


class Sender:
    """Publishes bodies and notes which of its batches were accepted."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.accepted: list[int] = []
        self.sent = 0

    def send(self, destination: str, *bodies: bytes, properties: bytes = b"") -> None:
        batch, self.sent = self.sent, self.sent + 1
        count = len(bodies)
        destinations, texts = [destination] * count, [properties] * count
        values = [read_properties(properties)] * count
        publish(
            self.broker, destinations, values, texts, bodies, lambda: self.accepted.append(batch)
        )


def publish(
    broker: Broker,
    destinations: Sequence[str],
    properties: Sequence[Any],
    texts: Sequence[bytes],
    bodies: Sequence[bytes],
    accepted: Callable[[], None],
) -> None:
    """As a server does: the messages are safe, some are for queues, some for topics."""
    missing = {"queues", "topics"}

    def done(part: str) -> None:
        missing.discard(part)
        if not missing:
            accepted()

    envelopes = broker.envelopes.make(broker.queues, destinations, texts, [])
    broker.enqueue(destinations, bodies, envelopes, lambda: None, lambda: done("queues"))
    broker.publish(destinations, properties, texts, bodies, [], lambda: done("topics"))


class World(Broker):
    """A broker with its queues, and a clock."""

    def __init__(self, queues: Iterable[str], limits: Limits, every: Kept | None = None) -> None:
        self.clock = Clock()
        self.served = ServedBroker(self.clock, limits, wallClock=lambda: 0.0)
        super().__init__(self.served, limits, queues, every=every)
        self.declare()

    def waiting(self, queue: str) -> int:
        """How many messages of a queue are with no consumer."""
        return sum(each.waiting for each in self.served.queues() if each.name == (SPACE, queue))

    def turns(self, work: Callable[[Callable[[], object]], None]) -> int:
        """Let the turns of the reactor pass in which the queues go on."""
        turns = 0
        while self.served.unfinished:
            work(self.look)
            turns += 1
        return turns


def broker(queues: Iterable[str] = (), every: Kept | None = None, **limits: Any) -> World:
    changes = {name.replace("_", "-"): value for name, value in limits.items()}
    return World(queues, Limits.of(LIMITS).replace(changes), every)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# ── topics (MM-26) ──────────────────────────────────────────────────────────────────────────────


def test_every_subscriber_of_a_topic_gets_each_message() -> None:
    """MM-26"""
    room = broker()
    first, second, other = Consumer(room), Consumer(room), Consumer(room)
    first.subscribe("topic/a")
    second.subscribe("topic/a")
    other.subscribe("topic/b")
    sender = Sender(room)
    sender.send("topic/a", *numbered(3))
    assert first.bodies == second.bodies == numbered(3)
    assert other.bodies == []
    assert sender.accepted == [0]
    assert first.got[0].frames[0][1].startswith(encode_address("topic/a"))


def test_a_topic_without_subscribers_keeps_nothing() -> None:
    """MM-26"""
    room = broker()
    sender = Sender(room)
    sender.send("topic/a", b"1")
    late = Consumer(room)
    late.subscribe("topic/a")
    assert (late.bodies, sender.accepted) == ([], [0])
    assert not room.concerns_topics(["topic/b"])
    assert room.concerns_topics(["x", "topic/a"])
    late.lose()
    assert not room.concerns_topics(["topic/a"])


def test_messages_of_a_topic_wait_for_room() -> None:
    """MM-19, MM-26: the window of a consumer is never exceeded (see Consumer.push)"""
    room = broker()
    slow = Consumer(room, room=2)
    slow.subscribe("topic/a")
    Sender(room).send("topic/a", *numbered(5))
    assert slow.bodies == numbered(2)
    slow.acknowledge(1)
    assert slow.bodies == numbered(3)
    slow.acknowledge()
    slow.acknowledge()
    assert slow.bodies == numbered(5)
    assert room.counters["topics_acknowledged"] == 5


@pytest.mark.parametrize(
    "limits",
    [{"subscriber_messages": 3}, {"subscriber_octets": 3 * (LETTER_OCTETS + len("1topic/a22x"))}],
)
def test_a_subscriber_which_is_too_slow_is_ended_and_nobody_waits_for_it(
    limits: dict[str, int],
) -> None:
    """MM-32: the policy at the bound; the other subscribers get theirs"""
    room = broker(**limits)
    slow, good = Consumer(room, room=1), Consumer(room)
    slow.subscribe("topic/a")
    good.subscribe("topic/a")
    sender = Sender(room)
    sender.send("topic/a", *numbered(4))
    assert not slow.ended
    sender.send("topic/a", b"4")
    assert slow.ended
    sender.send("topic/a", b"5")
    assert slow.bodies == numbered(1)
    assert good.bodies == numbered(6)
    assert sender.accepted == [0, 1, 2]
    assert room.counters["topics_slow_consumers"] == 1
    assert room.counters["topics_lost"] == 5


# ── queues (MM-27) ──────────────────────────────────────────────────────────────────────────────


def test_a_destination_becomes_a_queue_with_its_first_subscriber() -> None:
    """MM-27: before that a message is no business of the broker"""
    room = broker()
    sender = Sender(room)
    sender.send("q", b"early")
    consumer = Consumer(room)
    consumer.subscribe("q")
    sender.send("q", b"1")
    assert consumer.bodies == [b"1"]
    consumer.lose()
    sender.send("q", b"2")
    again = Consumer(room)
    again.subscribe("q")
    assert again.bodies == [b"1", b"2"]


def test_a_named_queue_keeps_messages_until_a_consumer_comes() -> None:
    """MM-27"""
    room = broker(["q"])
    Sender(room).send("q", *numbered(3))
    assert room.waiting("q") == 3
    consumer = Consumer(room)
    consumer.subscribe("q")
    assert consumer.bodies == numbered(3)
    assert room.waiting("q") == 0


def test_each_message_of_a_queue_goes_to_one_consumer_in_turn() -> None:
    """MM-27: consumers compete"""
    room = broker(["q"])
    consumers = [Consumer(room) for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe("q")
    Sender(room).send("q", *numbered(9))
    assert sorted(body for consumer in consumers for body in consumer.bodies) == numbered(9)
    for consumer in consumers:
        assert len(consumer.bodies) == 3
        assert consumer.bodies == sorted(consumer.bodies)


def test_a_consumer_without_room_is_passed_over_and_none_with_room_waits() -> None:
    """MM-27"""
    room = broker(["q"])
    small, large = Consumer(room, room=1), Consumer(room, room=4)
    small.subscribe("q")
    large.subscribe("q")
    Sender(room).send("q", *numbered(8))
    assert (len(small.got), len(large.got)) == (1, 4)
    assert room.waiting("q") == 3
    small.acknowledge()
    assert small.bodies[-1] == b"5"


def test_unacknowledged_messages_go_back_to_the_head_when_their_consumer_is_lost() -> None:
    """MM-27: before anything that was not delivered yet, in their order"""
    room = broker(["q"])
    lost, other = Consumer(room, room=4), Consumer(room, room=0)
    lost.subscribe("q")
    other.subscribe("q")
    Sender(room).send("q", *numbered(8))
    lost.acknowledge(1)
    assert lost.bodies == numbered(5)
    other.window = 100
    lost.lose()
    room.ready(other)
    assert other.bodies == numbered(7, 1)
    assert room.snapshot()["broker_returned"] == 4
    other.acknowledge()
    other.lose()
    assert room.waiting("q") == 0


def test_what_no_filter_lets_pass_stays_and_holds_up_nothing() -> None:
    """MM-24, MM-27"""
    room = broker(["q"])
    consumer = Consumer(room)
    consumer.subscribe("q", "a=N1")
    sender = Sender(room)
    sender.send("q", b"2", properties=b"a:N2;")
    sender.send("q", b"1", properties=b"a:N1;")
    sender.send("q", b"3", properties=b"a:N2;")
    assert consumer.bodies == [b"1"]
    assert room.waiting("q") == 2
    other = Consumer(room)
    other.subscribe("q", "a=N2")
    assert other.bodies == [b"2", b"3"]
    # a filter which is replaced counts from then on
    sender.send("q", b"4", properties=b"a:N3;")
    consumer.subscribe("q", "a=N3")
    assert consumer.bodies == [b"1", b"4"]


def test_a_full_consumer_with_the_right_filter_holds_up_what_is_behind() -> None:
    """MM-27: order matters"""
    room = broker(["q"])
    full, idle = Consumer(room, room=0), Consumer(room)
    full.subscribe("q", "a=N1")
    idle.subscribe("q", "a=N2")
    sender = Sender(room)
    sender.send("q", b"1", properties=b"a:N1;")
    sender.send("q", b"2", properties=b"a:N2;")
    assert idle.bodies == []
    full.window = 1
    room.ready(full)
    assert (full.bodies, idle.bodies) == ([b"1"], [b"2"])


# ── bounds (MM-32) ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limits", [{"queue_messages": 3}, {"queue_octets": 3 * WEIGHT}])
def test_a_full_queue_withholds_acceptance_until_there_is_room(limits: dict[str, int]) -> None:
    """MM-19, MM-32: what came is kept, but its ack waits"""
    room = broker(["q"], **limits)
    sender = Sender(room)
    sender.send("q", *numbered(3))
    assert sender.accepted == [0]
    sender.send("q", b"3")
    sender.send("q", b"4")
    assert sender.accepted == [0]
    consumer = Consumer(room, room=1)
    consumer.subscribe("q")
    assert sender.accepted == [0]
    consumer.acknowledge()
    assert sender.accepted == [0]
    consumer.acknowledge()
    assert sender.accepted == [0, 1, 2]
    assert consumer.bodies == numbered(3)


def test_subscriptions_are_bounded() -> None:
    """MM-32"""
    room = broker(subscriptions=2)
    consumer = Consumer(room)
    consumer.subscribe("topic/a")
    consumer.subscribe("b")
    consumer.subscribe("b", "x=N1")
    with pytest.raises(SubscriptionRefused, match="subscriptions allows 2") as refusal:
        consumer.subscribe("c")
    assert refusal.value.code == "limit-exceeded"
    Consumer(room).subscribe("c")
    consumer.broker.unsubscribe(consumer, "topic/a")
    consumer.subscribe("d")


def test_queues_are_bounded() -> None:
    """MM-32: a client cannot make them without end"""
    room = broker(["a"], broker_queues=2)
    consumer = Consumer(room)
    consumer.subscribe("b")
    with pytest.raises(SubscriptionRefused, match="broker-queues allows 2"):
        consumer.subscribe("c")
    consumer.subscribe("topic/c")
    assert room.snapshot()["broker_queues"] == 2
    assert room.snapshot()["subscriptions"] == 2


@pytest.mark.parametrize(
    ("command", "parameters", "code"),
    [
        ("subscribe", {}, "bad-command"),
        ("subscribe", {"destination": ""}, "bad-command"),
        ("unsubscribe", {}, "bad-command"),
        ("unsubscribe", {"destination": "a"}, "bad-command"),
        ("subscribe", {"destination": "a", "filter": "b<=Tx"}, "bad-filter"),
        ("subscribe", {"destination": "a", "filter": "nonsense"}, "bad-filter"),
        ("subscribe", {"destination": "a", "filter": "b=N1;" * 33}, "bad-filter"),
        ("subscribe", {"destination": "ä" * 128}, "bad-filter"),
    ],
)
def test_a_subscription_which_cannot_be_is_refused_with_a_code(
    command: str, parameters: dict[str, str], code: str
) -> None:
    """MM-24, MM-25: when it is set"""
    room = broker()
    with pytest.raises(SubscriptionRefused) as refusal:
        room.obey(Consumer(room), command, parameters)
    assert refusal.value.code == code
    assert room.queues == {}


def test_an_unsubscribed_consumer_gets_nothing_more() -> None:
    """MM-25: and what is in flight stays its own"""
    room = broker()
    consumer, other = Consumer(room), Consumer(room)
    for destination in ("topic/a", "q"):
        consumer.subscribe(destination)
        other.subscribe(destination)
        sender = Sender(room)
        sender.send(destination, b"1")
        room.obey(consumer, "unsubscribe", {"destination": destination})
        before = len(consumer.got)
        sender.send(destination, b"2")
        assert len(consumer.got) == before
        assert other.bodies[-1] == b"2"
    with pytest.raises(SubscriptionRefused):
        room.unsubscribe(consumer, "q")
    consumer.acknowledge()


# ── what takes longer than one turn (NB-07) ─────────────────────────────────────────────────────

CONDITIONS = 32
MESSAGES = 2_000
SUBSCRIBERS = 20
STORM = ";".join(f"p{number}=N1" for number in range(CONDITIONS))
MATCHING = ";".join(f"p{number}:N1" for number in range(CONDITIONS)).encode()


def test_a_storm_of_filters_on_a_topic_takes_many_turns() -> None:
    """NB-07: it took one of 111 ms and more; what is published meanwhile waits for its turn"""
    room = broker(subscriber_messages=10 * MESSAGES)
    watchers = [Consumer(room, room=10 * MESSAGES) for _ in range(SUBSCRIBERS)]
    for watcher in watchers:
        watcher.subscribe("topic/a", STORM)
        watcher.subscribe("topic/b")
    sender = Sender(room)
    first, second = numbered(MESSAGES), numbered(3, MESSAGES)
    sender.send("topic/a", *first, properties=MATCHING)
    sender.send("topic/b", *second)
    assert room.unfinished and sender.accepted == []
    watchers[-1].lose()
    room.unsubscribe(watchers[-2], "topic/a")
    turns = 0
    while room.unfinished:
        room.go_on()
        turns += 1
    assert turns >= 10
    assert sender.accepted == [0, 1]
    assert all(watcher.bodies == first + second for watcher in watchers[:-2])
    assert watchers[-2].bodies == second
    assert watchers[-1].bodies == []


def test_messages_of_several_topics_keep_their_order_over_turns() -> None:
    """NB-07, MM-26"""
    room = broker()
    consumer = Consumer(room, room=10_000)
    consumer.subscribe("topic/b", "a=N1")
    consumer.subscribe("topic/a")
    count = 100
    names = ["topic/a", "topic/b"] * count
    bodies = numbered(2 * count)
    values = [read_properties(b"a:N1;")] * (2 * count)
    room.publish(names, values, [b"a:N1;"] * (2 * count), bodies, [], lambda: None)
    while room.unfinished:
        room.go_on(1)
    assert consumer.bodies == bodies


def test_a_storm_of_filters_on_a_queue_takes_many_turns() -> None:
    """NB-07: what nobody wanted is looked at again with each subscription"""
    room = broker(["q"])
    consumers = [Consumer(room, room=MESSAGES) for _ in range(SUBSCRIBERS)]
    for consumer in consumers:
        consumer.subscribe("q", STORM.replace("p31=N1", "p31=N2"))
    sender = Sender(room)
    sender.send("q", *numbered(MESSAGES), properties=MATCHING)
    room.turns(lambda look: look())
    assert [consumer.bodies for consumer in consumers] == [[]] * SUBSCRIBERS
    last = Consumer(room, room=MESSAGES)
    last.subscribe("q", STORM)
    assert room.turns(lambda look: look()) >= 10
    assert last.bodies == numbered(MESSAGES)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_consumers_do_every_message_of_a_queue_is_settled_once_and_in_order(
    seed: int,
) -> None:
    """MM-27: a model: what was acknowledged by nobody is delivered to somebody, oldest first"""
    rng = random.Random(seed)
    room = broker(["q"], queue_messages=rng.choice([2, 10, 100]), tries=10_000)
    sender = Sender(room)
    consumers: list[Consumer] = []
    settled: list[bytes] = []
    sent = 0
    for _ in range(120):
        action = rng.random()
        if action < 0.35:
            count = rng.randint(1, 4)
            sender.send("q", *numbered(count, sent))
            sent += count
        elif action < 0.5:
            consumers.append(Consumer(room, room=rng.randint(1, 5)))
            consumers[-1].subscribe("q")
        elif consumers:
            consumer = rng.choice(consumers)
            flying = len(consumer.flights)
            if action < 0.85:
                count = rng.randint(0, flying)
                start = len(consumer.got) - flying
                settled += consumer.bodies[start : start + count]
                consumer.acknowledge(count)
            else:
                consumers.remove(consumer)
                consumer.lose()
        for consumer in consumers:
            assert consumer.room() <= 0 or not room.waiting("q")
    for consumer in consumers[:-1]:
        consumer.lose()
    last = consumers[-1] if consumers else Consumer(room)
    last.window = 10_000
    if not consumers:
        last.subscribe("q")
    room.ready(last)
    start = len(last.got) - len(last.flights)
    tail = last.bodies[start:]
    settled += tail
    last.acknowledge()
    assert sorted(map(int, settled)) == list(range(sent))
    assert sorted(sender.accepted) == list(range(sender.sent))
