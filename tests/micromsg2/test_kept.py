"""What peers make MicroMsg2 keep is small, or counted with what it weighs (``NB-02``)."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from string import ascii_lowercase, digits
from typing import Any

from tests.doubles import HeldSink
from tests.micromsg2.cases import Peers
from tests.micromsg2.streams import (
    BATCH,
    handshake,
    limits,
    message,
    proposal,
    receive,
    server_with,
)
from twisted_msgproto.micromsg2.machine import Server

KEYS = ["".join(key) for key in product(ascii_lowercase + digits, repeat=2)]
LARGE = "a=T😀" + "x" * 60_000
LIMIT = 1 << 20


def crowded(nbytes: int = 8192, first: str = "") -> bytes:
    """Properties of so many bytes at most: the more of them there are, the more they weigh."""
    text = first
    for key in KEYS:
        if len(text) + 4 > nbytes:
            break
        text += f"{key}:;"
    return text.encode()


def different(count: int, nbytes: int = 8192) -> list[bytes]:
    return [crowded(nbytes, first=f"number:N{number};") for number in range(count)]


@contextmanager
def grown() -> Iterator[Callable[[], int]]:
    """Yield what tells how many bytes of memory have come since."""
    gc.freeze()  # what other tests have left takes a second of each collection
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


# ── what a machine holds ────────────────────────────────────────────────────────────────────────


def test_an_unfinished_payload_holds_its_properties_as_they_came__NB_02() -> None:
    """NB-02, MM-31: it may stand for two minutes."""
    server, text = server_with(BATCH + "9"), crowded()
    with grown() as kept:
        receive(server, message(1, b"ab", properties=text, continued=True))
        assert kept() < 64 << 10
    assert server.input_weight == 2 + len(text)
    (whole,) = receive(server, message(1, b"c"))
    assert (whole.bodies, len(whole.fields[0])) == ([b"abc"], len(KEYS))
    assert server.input_weight == 0


def test_a_read_weighs_each_text_of_properties_once__NB_02() -> None:
    """NB-02: messages with the same properties share them; an honest sender is not slowed down."""
    texts = different(3, 600)
    alone = sum(
        receive(server_with(), message(1, b"1", properties=text))[0].weight for text in texts
    )
    for extensions in (BATCH + "9", BATCH + "9;json"):  # as columns, and one by one
        rows = [(number, texts[min(number, 3) - 1]) for number in range(1, 6)]
        octets = b"".join(message(number, b"1", properties=text) for number, text in rows)
        (event,) = receive(server_with(extensions), octets)
        assert len(event.bodies) == 5
        assert event.weight == alone > 3 * 600


def greeting() -> bytes:
    """A handshake whose two lists are full of properties that mean nothing."""
    filled = ",".join(f"{key}={'x' * 100}" for key in KEYS[:32])
    long = "count=" + "x" * 3000
    return handshake(f"batch-ack:max-count=7,{long};pub-sub", f"json:{filled}")


def test_little_is_kept_of_what_stood_in_a_handshake__NB_02() -> None:
    """NB-02, MM-08: two lists were 158 KB for each connection, during the handshake and after; now
    a name has 32 properties at most.
    """
    first, server = (Server(proposal(optional="json"), limits()) for _ in range(2))
    for _ in range(2):
        receive(first, greeting())  # what is made once, by the first
    with grown() as kept:
        for _ in range(2):
            receive(server, greeting())
            server.outputs()
            gc.collect()
            assert kept() < 16 << 10
    extensions = {one.name: dict(one.properties) for one in server.extensions}
    assert extensions == {"batch-ack": {"max-count": "7"}, "pub-sub": {}, "json": {}}
    assert server.snapshot()["count"] == 7


# ── what all sessions keep ──────────────────────────────────────────────────────────────────────


class Kept(Peers):
    def serve(self, *queues: str, **options: Any) -> Any:
        factory = super().serve(*queues, **options)
        self.every = factory.shared.session_memory
        return factory

    def bounded(self, limit: int = LIMIT, *queues: str, **limits: int) -> None:
        self.serve(*queues, limits={"process_session_bytes": limit, **limits})

    def tearDown(self) -> None:
        super().tearDown()
        self.assertEqual((self.every.nbytes, self.every.sessions), (0, 0))

    def test_empty_messages_with_large_properties_make_a_subscriber_too_slow__NB_02(self) -> None:
        """NB-02, MM-32: only payloads were counted; others get theirs, and nobody waits."""
        self.serve(limits={"subscriber_bytes": 100_000})
        sender, deaf, good = self.sender(""), self.peer(), self.peer()
        deaf.stop_reading()
        for peer in (deaf, good):
            peer.subscribe("topic/a", "number>=N0")
        for number, text in enumerate((*different(13), *different(8))):
            self.assertFalse(deaf.closed and number < 13)
            sender.send("topic/a", b"", properties=text)
        self.assertEqual((deaf.closed, len(good.bodies)), (True, 21))

    def test_subscriptions_of_all_sessions_have_one_bound__NB_02(self) -> None:
        """NB-02, MM-32: 100 such filters were 27 MB of one connection; others are served."""
        self.bounded()
        hog, good = self.peer(), self.peer()
        good.subscribe("topic/good")
        for name in ("topic/0", "topic/1", "topic/2", "topic/3", "topic/4", "queue"):
            hog.subscribe(name, LARGE)
        refused = [
            f"limit-exceeded: {name}: process-session-bytes" for name in ("topic/4", "queue")
        ]
        self.assertEqual([text.removesuffix(" allows no more") for text in hog.errors], refused)
        self.assertEqual(self.factory.counters["turned_away:process-session-bytes"], 2)
        self.assertIn("a subscription was refused: process-session-bytes", "".join(self.lines))
        self.assertEqual(len(self.factory.broker.queues), 0)
        before = self.every.nbytes
        good.subscribe("topic/" + "x" * 249)
        self.assertGreater(self.every.nbytes, before + 255)
        good.subscribe("topic/0", "a=Tx")
        self.assertTrue(LIMIT * 0.8 < self.every.nbytes <= LIMIT)
        # A filter in the place of another is counted once; a smaller one always is granted.
        hog.subscribe("topic/0", LARGE)
        self.every.limit = 1
        before = self.every.nbytes
        hog.subscribe("topic/0", "a=Tx")
        self.assertLess(self.every.nbytes, before - 60_000)
        hog.unsubscribe("topic/1")
        self.assertLess(self.every.nbytes, before - 120_000)
        self.assertEqual(len(hog.errors), 2)
        hog.send("topic/0", b"news", properties=b"a:Tx;")
        self.assertEqual(good.bodies, [b"news"])

    def test_it_is_always_known_what_subscribers_keep__NB_02(self) -> None:
        """NB-02: whatever consumers do, in any order."""
        chance = random.Random(2)
        self.bounded(20_000, broker_queues=2, subscriptions=6)
        windows = (1, 2, 1000)
        consumers = [self.window(each) for each in windows]
        sender, errors = self.sender(""), ""
        names = ["a", "b", "c", "topic/a", "topic/b", "topic/c", "topic/d", "topic/e"]
        for _ in range(1200):
            at = chance.randrange(3)
            consumer, name = consumers[at], chance.choice(names)
            match chance.randrange(12):
                case 3 | 4 | 5:
                    sender.send(name, b"x" * 500, b"y", properties=b"a:N1;")
                case 6:
                    consumer.ack()
                case 1 | 2:
                    consumer.unsubscribe(name)
                case 0:
                    consumer.lose()
                case _:
                    consumer.subscribe(name, chance.choice(["", "a=N1", "a=T" + "x" * 9000]))
            if consumer.closed or not consumer.server.established:
                errors += "".join(consumer.errors)
                self.gone(consumer)
                consumers[at] = self.window(windows[at])
            self.assertLessEqual(self.every.nbytes, 2 * 20_000 + 3 * (8 << 10))
        self.assertIn("process-session-bytes", errors)
        self.assertGreater(self.factory.counters["fault:slow-consumer"], 0)

    def test_what_waits_for_subscribers_has_one_bound__NB_02(self) -> None:
        """NB-02, MM-32: 20 subscribers of 20 topics had 320 MiB; who reads, or waits for little,
        has all.
        """
        self.bounded()
        sender, good, late = self.sender(""), self.peer(), self.peer()
        deaf = [self.peer() for _ in range(20)]
        for number, peer in enumerate(deaf):
            peer.stop_reading()
            peer.subscribe(f"topic/{number}")
            good.subscribe(f"topic/{number}")
        late.stop_reading()
        late.subscribe("topic/late")
        sender.send("topic/late", b"x" * 30_000)
        for _ in range(10):
            for number in range(20):
                sender.send(f"topic/{number}", b"x" * 20_000)
                self.assertLessEqual(self.every.nbytes, 2 * LIMIT)
        sender.send("topic/late", b"y")
        ended = sum(peer.closed for peer in deaf)
        self.assertEqual(self.factory.counters["fault:slow-consumer"], ended)
        self.assertGreater(ended, 10)
        self.assertEqual((len(good.bodies), good.closed), (200, False))
        late.read_on()
        self.assertEqual(late.bodies, [b"x" * 30_000, b"y"])

    def test_a_message_that_waits_for_many_is_counted_once__NB_02(self) -> None:
        """NB-02: a message is shared by all its subscribers, so a crowd of them is no reason to
        drop anybody.
        """
        self.bounded()
        sender, crowd = self.sender(""), [self.peer() for _ in range(100)]
        for peer in crowd:
            peer.stop_reading()
            peer.subscribe("topic/a")
        sender.send("topic/a", *[b"x" * 10_000] * 50)
        self.turns()
        self.assertEqual(self.factory.counters["fault:slow-consumer"], 0)
        self.assertTrue(LIMIT / 2 < self.every.nbytes < LIMIT)
        crowd[0].read_on()
        self.assertGreater(self.every.nbytes, LIMIT / 2)
        for peer in crowd[1:]:
            self.gone(peer)
        self.assertLess(self.every.nbytes, 1000)

    def test_what_waits_for_the_disk_counts_with_its_properties__NB_02(self) -> None:
        """NB-02: 64 MiB of messages of nothing but properties took gigabytes."""
        self.sink = HeldSink()
        self.serve(limits={"unsafe_bytes": 1 << 20})
        hog, good = self.sender(""), self.sender("")
        for text in different(4):
            hog.send("a", b"", properties=text)
        good.send("a", b"fine")
        self.assertEqual((hog.is_read, good.is_read), (False, True))
        self.assertGreater(self.factory.shared.waiting, 1 << 20)
        self.assertLess(self.factory.traffic.nbytes, 64 << 10)  # figures tell what came
        self.sink.release()
        self.assertEqual((hog.is_read, self.factory.shared.waiting), (True, 0))

    def test_what_waits_for_full_queues_counts_with_its_properties__NB_02(self) -> None:
        """NB-02, BK-03: and each message with its objects."""
        text = crowded()
        for properties in ([b"", text], [b""] * 200):
            self.serve("q", limits={"queue_messages": 1})
            rows = enumerate(properties, 1)
            self.sender().write(b"".join([message(n, b"", "q", each) for n, each in rows]))
            self.assertGreater(self.factory.senderBackpressure.waiting, 5 * len(text))
            self.consumer()
            self.assertEqual(self.factory.senderBackpressure.waiting, 0)
