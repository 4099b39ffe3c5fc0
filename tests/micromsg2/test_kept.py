"""What peers make MicroMsg2 keep is small, or counted with what it weighs (``NB-02``)."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from string import ascii_lowercase, digits
from urllib.parse import quote

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from tests.micromsg2.cases import Case
from tests.micromsg2.layouts import encode_command
from tests.micromsg2.sessions import BATCH, receive
from tests.micromsg2.streams import handshake, limits, message, proposal, server_with
from tests.micromsg2.test_broker import Consumer, Sender, broker
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.core.kept import SMALL_OCTETS, Kept
from twisted_msgproto.micromsg2 import STANDARD, Extension, Server
from twisted_msgproto.micromsg2.application import (
    KeptTooMuch,
    SubscriptionRefused,
)
from twisted_msgproto.micromsg2.machine import MessagesReceived

KEYS = ["".join(key) for key in product(ascii_lowercase + digits, repeat=2)]


def crowded(
    octets: int = 8192, value: Callable[[int], str] = lambda number: "", first: str = ""
) -> bytes:
    """Properties of so many octets at most: the more of them there are, the more they weigh."""
    text = first
    for number, key in enumerate(KEYS):
        item = f"{key}:{value(number)};"
        if len(text) + len(item) > octets:
            break
        text += item
    return text.encode()


def different(count: int, octets: int = 8192) -> list[bytes]:
    return [crowded(octets, first=f"number:N{number};") for number in range(count)]


@contextmanager
def grown() -> Iterator[Callable[[], int]]:
    """Yield what tells how many octets of memory have come since."""
    gc.freeze()  # what other tests have left takes a second of each collection
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


# ── properties (MM-22) ──────────────────────────────────────────────────────────────────────────


def test_an_unfinished_payload_holds_its_properties_as_they_came__NB_02() -> None:
    """NB-02, MM-31: it may stand for two minutes."""
    server, text = server_with(BATCH + "9"), crowded()
    with grown() as kept:
        receive(server, message(1, b"ab", properties=text, continued=True))
        assert kept() < 64 << 10
    assert server.held == 2 + len(text)
    (whole,) = receive(server, message(1, b"c"))
    assert isinstance(whole, MessagesReceived)
    assert (whole.bodies, len(whole.fields[0])) == ([b"abc"], len(KEYS))
    assert server.held == 0


def test_a_read_weighs_each_text_of_properties_once__NB_02() -> None:
    """NB-02: messages with the same properties share them; an honest sender is not slowed down."""
    texts = different(3, 600)
    alone = 0
    for text in texts:
        (event,) = receive(server_with(), message(1, b"1", properties=text))
        assert isinstance(event, MessagesReceived)
        alone += event.weight
    for extensions in (BATCH + "9", BATCH + "9;json"):  # as columns, and one by one
        server = server_with(extensions)
        rows = [(number, texts[min(number, 3) - 1]) for number in range(1, 6)]
        octets = b"".join(message(number, b"1", properties=text) for number, text in rows)
        (event,) = receive(server, octets)
        assert isinstance(event, MessagesReceived)
        assert len(event.bodies) == 5
        assert event.weight == alone > 3 * 600


# ── handshakes (MM-02 … MM-08) ──────────────────────────────────────────────────────────────────


def greeting() -> bytes:
    """A handshake whose two lists are full of properties that mean nothing."""
    filled = ",".join(f"{key}=" for key in KEYS[:800])
    long = "count=" + "x" * 3000
    return handshake(f"batch-ack:max-count=7,{long};pub-sub", f"json:{filled}")


def test_little_is_kept_of_what_stood_in_a_handshake__NB_02() -> None:
    """NB-02, MM-08: two lists were 158 KB for each connection, during the handshake and after."""
    server = Server(proposal(optional="json"), limits())
    receive(server, greeting())
    receive(server, greeting())
    assert server.established  # what is made once, by the first
    server = Server(proposal(optional="json"), limits())
    with grown() as kept:
        receive(server, greeting())
        server.outputs()
        gc.collect()
        assert kept() < 16 << 10
        receive(server, greeting())
        server.outputs()
        gc.collect()
        assert kept() < 16 << 10
    extensions = {one.name: dict(one.properties) for one in server.extensions}
    assert extensions == {"batch-ack": {"max-count": "7"}, "pub-sub": {}, "json": {}}
    assert server.snapshot()["count"] == 7


class Telling(Extension):
    """A vendor's extension, whose properties may mean anything."""

    name = "x-telling"


def telling() -> bytes:
    """A handshake that says much about it."""
    return handshake("x-telling:" + ",".join(f"{key}=red" for key in KEYS[:500]))


class Vendors(Case):
    def test_a_crowd_that_tells_a_vendors_extension_much_is_refused_and_others_are_served__NB_02(
        self,
    ) -> None:
        """NB-02, MM-10: who says little is never refused for what others keep."""
        factory = self.server_factory(
            proposal=proposal(known=STANDARD.plus(Telling)),
            limits={"process_kept_octets": 400_000},
        )
        every = factory.budget.kept
        crowd = [self.connect(factory) for _ in range(20)]
        for server, _ in crowd:
            for _ in range(2):
                server.dataReceived(telling())
        refused = [transport for server, transport in crowd if not server.established]
        assert 10 < len(refused) < 20
        assert every.octets <= 400_000
        assert every.sessions == 20 - len(refused)
        for transport in refused:
            assert b"too many properties: process-kept-octets" in transport.value()
            assert transport.disconnecting
        good, _ = self.connect(factory, "x-telling:level=3;batch-ack")
        assert good.established
        assert good.machine.extensions[0].properties == {"level": "3"}
        for server, _ in (*crowd, (good, None)):
            server.connectionLost(Failure(ConnectionDone()))
        assert (every.octets, every.sessions) == (0, 0)


# ── the broker (MM-26, MM-27) ───────────────────────────────────────────────────────────────────


def test_empty_messages_with_large_properties_make_a_subscriber_too_slow__NB_02() -> None:
    """NB-02, MM-32: only payloads were counted; others get theirs, and nobody waits."""
    room = broker(subscriber_octets=100_000)
    deaf, good = Consumer(room, room=0), Consumer(room)
    for consumer in (deaf, good):
        consumer.subscribe("topic/a", "number>=N0")
    sender = Sender(room)
    texts = different(13)
    for text in texts[:12]:
        sender.send("topic/a", b"", properties=text)
    assert not deaf.ended
    for text in (*texts[12:], *different(8)):
        sender.send("topic/a", b"", properties=text)
    assert deaf.ended
    assert len(good.bodies) == 21
    assert room.snapshot()["topics_slow_consumers"] == 1


# ── subscriptions (MM-25) ───────────────────────────────────────────────────────────────────────

LARGE = "a=T😀" + "x" * 60_000
LIMIT = 1 << 20


def test_subscriptions_of_all_sessions_have_one_bound__NB_02() -> None:
    """NB-02, MM-32: 100 such filters were 27 MB of one connection; who keeps little is served."""
    every = Kept(LIMIT)
    room = broker(every=every)
    hog, good = Consumer(room), Consumer(room)
    good.subscribe("topic/good")
    for number in range(4):
        hog.subscribe(f"topic/{number}", LARGE)
    for name in ("topic/4", "queue"):
        with pytest.raises(KeptTooMuch, match=f"{name}: process-kept-octets allows") as refusal:
            hog.subscribe(name, LARGE)
        assert refusal.value.code == "limit-exceeded"
    assert "queue" not in room.queues
    good.subscribe("topic/more", "a=Tx")
    assert LIMIT * 0.8 < every.octets <= LIMIT
    # A filter in the place of another is counted once; a smaller one always is granted.
    hog.subscribe("topic/0", LARGE)
    every.limit = 1
    before = every.octets
    hog.subscribe("topic/0", "a=Tx")
    assert every.octets < before - 60_000
    room.unsubscribe(hog, "topic/1")
    good.lose()
    assert every.octets < before - 120_000
    assert every.sessions == 1
    hog.lose()
    assert (every.octets, every.sessions) == (0, 0)


def test_it_is_always_known_what_subscribers_keep__NB_02() -> None:
    """NB-02: whatever consumers do, in any order."""
    chance, every = random.Random(2), Kept(20_000)
    room = broker(every=every, broker_queues=2, subscriptions=6)
    consumers = [Consumer(room, room=each) for each in (0, 2, 1000)]
    sender = Sender(room)
    refused = 0
    for _ in range(2000):
        consumer = chance.choice(consumers)
        name = chance.choice(["a", "b", "c", "topic/a", "topic/b", "topic/c", "topic/d", "topic/e"])
        try:
            match chance.randrange(12):
                case 0:
                    consumer.flights = []
                    room.lost(consumer)
                case 3 | 4 | 5:
                    sender.send(name, b"x" * 500, b"y", properties=b"a:N1;")
                case 6:
                    consumer.acknowledge()
                case 1 | 2:
                    room.unsubscribe(consumer, name)
                case _:
                    consumer.subscribe(name, chance.choice(["", "a=N1", "a=T" + "x" * 9000]))
        except KeptTooMuch:
            refused += 1
        except SubscriptionRefused:
            pass
        assert every.octets <= 2 * every.limit + SMALL_OCTETS * every.sessions
        for each in consumers:
            each.ended = False  # it comes again
    assert refused
    assert room.snapshot()["topics_slow_consumers"]
    for consumer in consumers:
        room.lost(consumer)
    assert (every.octets, every.sessions) == (0, 0)


# ── what waits for the subscribers of topics (MM-26) ────────────────────────────────────────────


def test_what_waits_for_subscribers_has_one_bound__NB_02() -> None:
    """NB-02, MM-32: 20 subscribers of 20 topics had 320 MiB; who reads, or waits for little, has
    all.
    """
    every = Kept(LIMIT)
    room = broker(every=every)
    sender, good, late = Sender(room), Consumer(room), Consumer(room, room=0)
    deaf = [Consumer(room, room=0) for _ in range(20)]
    for number, consumer in enumerate(deaf):
        consumer.subscribe(f"topic/{number}")
        good.subscribe(f"topic/{number}")
    late.subscribe("topic/late")
    sender.send("topic/late", b"x" * 30_000)
    for _ in range(10):
        for number in range(20):
            sender.send(f"topic/{number}", b"x" * 20_000)
            assert every.octets <= 2 * LIMIT
        good.acknowledge()
    sender.send("topic/late", b"y")
    ended = sum(consumer.ended for consumer in deaf)
    assert room.snapshot()["topics_slow_consumers"] == ended > 10
    assert (len(good.bodies), good.ended) == (200, False)
    late.window = 1000
    room.ready(late)
    assert late.bodies == [b"x" * 30_000, b"y"]


def test_a_message_that_waits_for_many_is_counted_once__NB_02() -> None:
    """NB-02: a message is shared by all its subscribers, so a crowd of them is no reason to drop
    anybody.
    """
    every = Kept(LIMIT)
    room = broker(every=every)
    crowd = [Consumer(room, room=0) for _ in range(100)]
    for consumer in crowd:
        consumer.subscribe("topic/a")
    Sender(room).send("topic/a", *[b"x" * 10_000] * 50)
    assert room.counters["topics_slow_consumers"] == 0
    assert LIMIT / 2 < every.octets < LIMIT
    crowd[0].window = 1000
    room.ready(crowd[0])
    assert every.octets > LIMIT / 2
    for consumer in crowd[1:]:
        consumer.lose()
    assert every.octets < 1000


class Served(Case):
    """Servers, what waits for their sink, and what waits for room in their queues."""

    def test_what_waits_for_the_disk_counts_with_its_properties__NB_02(self) -> None:
        """NB-02: 64 MiB of messages of nothing but properties took gigabytes."""
        self.sink = HeldSink()
        factory = self.server_factory(limits={"unsafe_octets": 1 << 20})
        hog, one = self.connect(factory, "")
        good, other = self.connect(factory, "")
        for text in different(4):
            hog.dataReceived(message(1, b"", properties=text))
        self.assertEqual(one.producerState, "paused")
        good.dataReceived(message(1, b"fine"))
        self.assertEqual(other.producerState, "producing")
        self.assertGreater(factory.budget.waiting, 1 << 20)
        self.assertLess(factory.traffic.octets, 64 << 10)  # figures tell what came
        self.sink.release()
        self.assertEqual(one.producerState, "producing")
        self.assertEqual(factory.budget.waiting, 0)
        self.lose(hog, good)

    def test_what_waits_for_full_queues_counts_with_its_properties__NB_02(self) -> None:
        """NB-02, BK-03."""
        self.sink = SafeSink()
        factory = self.server_factory(limits={"queue_messages": 1}, brokerQueues=["q"])
        sender, _ = self.connect(factory, BATCH + "9")
        text = crowded()
        sender.dataReceived(message(1, b"", "q") + message(2, b"", "q", text))
        self.assertGreater(factory.withheld.waiting, 5 * len(text))
        reader, _ = self.connect(factory, "pub-sub")
        reader.dataReceived(encode_command("subscribe", {"destination": "q"}))
        self.assertEqual(factory.withheld.waiting, 0)
        self.lose(sender, reader)

    def test_a_subscription_that_is_refused_for_others_is_told_by_name__NB_02(self) -> None:
        """NB-02, MM-33: the connection stays, and the neighbour gets what it subscribed to."""
        self.sink = SafeSink()
        factory = self.server_factory(limits={"process_kept_octets": LIMIT})
        hog, one = self.connect(factory, "pub-sub")
        good, other = self.connect(factory, "pub-sub")
        for number in range(5):
            parameters = {"destination": f"topic/{number}", "filter": "a=T" + quote(LARGE[3:])}
            hog.dataReceived(encode_command("subscribe", parameters))
        refusal = "limit-exceeded: topic/4: process-kept-octets allows no more"
        self.assertEqual(self.errors(one), [refusal])
        self.assertEqual(factory.counters["turned_away:process-kept-octets"], 1)
        self.assertIn("a subscription was refused: process-kept-octets", "".join(self.lines))
        good.dataReceived(encode_command("subscribe", {"destination": "topic/0"}))
        hog.dataReceived(message(1, b"news", "topic/0"))
        self.assertEqual(self.bodies(other), [b"news"])
        self.lose(hog, good)
        self.assertEqual(factory.budget.kept.octets, 0)
