"""What a session holds of what it has read, and how that is weighed (NB-02)."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from twisted_msgproto.core.kept import SMALL_OCTETS, table_octets
from twisted_msgproto.net.delivery import BATCH_WEIGHT_OCTETS
from twisted_msgproto.sabc import SabcServer
from twisted_msgproto.sabc.machine import Server
from twisted_msgproto.sabc.terms.events import REQUEST, MessagesReceived
from twisted_msgproto.sabc.wire import Connect, Error, encode
from twisted_msgproto.sabc.wire.framing import read_frame

from .pairs import Case, HeldCase
from .sides import NOW, NUDGE, SESSION, limits, msg, open_server, part
from .vectors import CONNECT

READ = 1 << 16
BODY = b"x" * 900_000
LITTLE = 4096
"""A session and its bookkeeping may have grown by this many octets."""


@contextmanager
def memory() -> Iterator[list[int]]:
    """Give the octets that were allocated meanwhile and are still there."""
    grown: list[int] = []
    gc.freeze()  # what other tests have left takes a second of each collection
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield grown
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


def reads(octets: bytes) -> Iterator[bytes]:
    """Octets as they come, in reads of their own."""
    for at in range(0, len(octets), READ):
        yield octets[at : at + READ]


def deal(server: Server, octets: Iterable[bytes]) -> None:
    """Read, and answer all that is asked at once."""
    for some in octets:
        for event in server.receive(some, NOW):
            if isinstance(event, MessagesReceived):
                server.made_safe(event.place, NOW)
                if event.kind == REQUEST:
                    server.acknowledge(event.ids)
        server.outputs()


@pytest.mark.parametrize(
    "frames",
    [
        lambda: msg(BODY, msg_id="1"),
        lambda: msg(BODY, msg_id="1", colour="red"),
        lambda: part(BODY[::2], msg_id="1", a="b") + msg(BODY[::3], msg_id="1", c="d"),
        lambda: msg(BODY, msg_id="1", ref_msg_id="2"),  # it is refused
        lambda: encode(Error({"session-id": SESSION}, BODY)),
    ],
    ids=["plain", "with a header", "in parts", "refused", "error"],
)
@pytest.mark.parametrize("size", [READ, 2 * len(BODY)], ids=["in reads", "at once"])
def test_a_silent_session_holds_nothing_of_what_it_has_dealt_with__NB_02(
    frames: Any, size: int
) -> None:
    """NB-02: ten thousand answered messages of 1 MiB are no 10 GB until the next ones come."""
    server = open_server()
    octets = frames()
    deal(server, reads(msg(b"warm", msg_id="0")))
    with memory() as grown:
        deal(server, (octets[at : at + size] for at in range(0, len(octets), size)))
    assert server.whole and not server.closed
    assert grown[0] < LITTLE


def test_octets_that_were_handed_out_are_not_held_beside_the_message__NB_02() -> None:
    """NB-02: what a message holds is what ``held`` says, in the middle of it as well."""
    server = open_server()
    with memory() as grown:
        deal(server, reads(msg(BODY, msg_id="1")[:-1]))
    assert abs(grown[0] - server.held) < LITTLE


def named(start: int, value: str = "") -> dict[str, str]:
    """As many headers of our own as a frame may have beside those it needs."""
    return {f"{number:x}": value for number in range(start, start + 29)}


WIDE = "\N{GRINNING FACE}" + "x" * 200
"""In memory each of its characters takes four octets."""


@pytest.mark.parametrize("value", ["", "red", WIDE], ids=["no text", "short", "wide"])
@pytest.mark.parametrize("framed", [False, True])
def test_headers_of_messages_that_are_not_whole_count_with_what_they_take__NB_02(
    value: str, framed: bool
) -> None:
    """NB-02, SA-18: each part may bring new ones, which are kept until the last part has come."""
    server = open_server(framed=framed)
    parts = [part(b"", msg_id="1", **named(start, value)) for start in range(0, 2900, 29)]
    with memory() as grown:
        for octets in parts:
            server.receive([octets] if framed else octets, NOW)
    assert not server.closed
    assert grown[0] < server.held + LITTLE
    end = msg(b"", msg_id="1")
    (event,) = server.receive([end] if framed else end, NOW)
    assert isinstance(event, MessagesReceived)
    assert len(event.fields[0]) == 2900
    assert (server.held, server.whole) == (0, True)


def test_a_head_of_which_lines_have_come_counts__NB_02() -> None:
    """NB-02: its lines are read as they come, and held as long as the blank line does not."""
    server = open_server()
    octets = msg(b"x", msg_id="1", **named(0, WIDE))
    with memory() as grown:
        server.receive(octets[: octets.index(b"\r\n\r\n") + 2], NOW)
    assert not server.whole
    assert len(octets) < grown[0] < server.held + LITTLE
    server.receive(octets[octets.index(b"\r\n\r\n") + 2 :], NOW)
    assert (server.held, server.whole) == (0, True)


def test_a_refused_message_weighs_nothing__NB_02() -> None:
    server = open_server()
    refused = part(b"", msg_id="1", send_only="yes", ref_msg_id="2")
    server.receive(refused + NUDGE, NOW)
    assert (server.held, server.closed) == (0, False)
    server.receive(msg(b"", msg_id="1", **named(0), **named(100)), NOW)
    assert (server.held, server.closed) == (0, True)


def test_a_frame_of_a_websocket_message_is_not_held_until_garbage_is_collected__NB_02() -> None:
    """NB-02: each decoder is one of its own, and refers to itself."""
    octets = msg(BODY, msg_id="1")
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        read_frame(octets)
        assert tracemalloc.get_traced_memory()[0] - before < LITTLE
    finally:
        tracemalloc.stop()
        gc.enable()


MESSAGES = {
    "plain": lambda n: msg(b"", msg_id=f"{n}".zfill(900)),
    "plain and wide": lambda n: msg(b"", msg_id=f"{WIDE}{n}"),
    "odd and wide": lambda n: msg(b"x", msg_id=f"{WIDE}{n}", send_only="yes"),
    "headers that are wide": lambda n: msg(
        b"", msg_id=f"{n}", **{name: WIDE for name in [*named(0)][:20]}
    ),
    "plain and short": lambda n: msg(b"body", msg_id=f"{n}"),
    "odd": lambda n: msg(b"x", msg_id=f"{n}".zfill(900), send_only="yes"),
    "headers": lambda n: msg(b"", msg_id=f"{n}", send_only="yes", **named(0, "yes")),
    "headers in parts": lambda n: (
        part(b"", msg_id=f"{n}", **named(0, "yes")) + msg(b"", msg_id=f"{n}")
    ),
}


@pytest.mark.parametrize("made", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
def test_ids_and_headers_count_while_the_sink_is_slow__NB_02(made: Any, alone: bool) -> None:
    """NB-02, NB-01: messages without bodies wait for the disk as well."""
    server = open_server()
    octets = [made(number) for number in range(200)]
    reads = octets if alone else [b"".join(octets)]
    told: list[Any] = []
    with memory() as grown:
        for some in reads:
            told += server.receive(some, NOW)
    assert sum(len(event.ids) for event in told) == 200
    counted = sum(event.octets + event.weight + BATCH_WEIGHT_OCTETS for event in told)
    assert grown[0] < 2 * counted + LITTLE
    texts = [header for one in octets for header in one.decode().split("\r\n")]
    wide = sum(sys.getsizeof(text) for text in texts if not text.isascii())
    assert sum(event.weight for event in told) <= sum(map(len, octets)) + 200 * 29 * 150 + wide


def told(*octets: bytes, **options: Any) -> list[MessagesReceived]:
    """What a server tells of its peer's messages, read by read."""
    server = open_server(**options)
    events = [event for some in octets for event in server.receive(some, NOW)]
    return [event for event in events if isinstance(event, MessagesReceived)]


OWN_HEADER = 150
"""A header of one's own counts as so much beside its octets, as the page of limits says."""


def test_a_message_counts_as_its_frames_and_150_octets_for_each_header_of_its_own__NB_02() -> None:
    """NB-02: what is counted is known to the octet, one by one and of many together."""
    for send_only in ({}, {"send_only": "yes"}):
        octets = msg(b"body", msg_id="1", red="1", blue="22", **send_only)
        (event,) = told(octets)
        assert (event.octets, event.weight) == (4, len(octets) - 4 + 2 * OWN_HEADER)
        wide = msg(b"body", msg_id=WIDE, **{WIDE: WIDE + "y"}, **send_only)
        (event,) = told(wide)
        texts = 2 * sys.getsizeof(WIDE) + sys.getsizeof(WIDE + "y")
        assert event.weight == len(wide) - 4 + OWN_HEADER + texts
        (event,) = told(octets + octets.replace(b"msg-id::1", b"msg-id::2") + wide)
        assert event.octets == 12
        assert event.weight == 2 * (len(octets) - 4 + 2 * OWN_HEADER) + (
            len(wide) - 4 + OWN_HEADER + texts
        )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_plain_requests_count_as_their_heads__NB_02(count: int) -> None:
    """NB-02: whether they come together or behind a part of another one."""
    plain = [msg(b"body", msg_id=f"{number}") for number in range(count)]
    head = plain[0].index(b"\r\n\r\n") + 4
    first, rest = plain[0][:9], plain[0][9:] + b"".join(plain[1:])
    for reads in ([b"".join(plain)], [first, rest]):
        events = told(*reads)
        assert sum(each.octets for each in events) == 4 * count
        assert head * count <= sum(each.weight for each in events) < (head + 1) * count
    events = told(*plain)
    assert [(each.octets, each.weight) for each in events] == [(4, head)] * count
    wide = [msg(b"body", msg_id=f"{WIDE}{number}") for number in range(count)]
    (event,) = told(b"".join(wide))
    assert event.weight == count * (head - 1 + sys.getsizeof(f"{WIDE}0"))


def test_a_message_that_was_cut_counts_as_what_is_kept_of_it__NB_02() -> None:
    """NB-02, SA-22: what is above the limit is not in memory."""
    bounds = limits(message_octets=1000)
    (event,) = told(msg(b"x" * 1500, msg_id="1", red="1"), limits=bounds)
    assert event.truncated == [True]
    assert event.octets + event.weight == 1000 + OWN_HEADER
    (event,) = told(msg(b"x" * 800, msg_id="1", red="1"), limits=bounds)
    assert event.truncated is None


def test_parts_hold_their_octets_and_a_table_of_their_headers__NB_02() -> None:
    """NB-02, SA-18: reserved headers are read and gone; those of a new part come on top."""
    server = open_server(lengths=True)
    octets = sized(b"abc", red="1")
    server.receive(octets, NOW)
    assert server.held == len(octets) + table_octets({"red": "1"})
    more = sized(b"defg", blue="22", green="333")
    server.receive(more, NOW)
    tables = table_octets({"red": "1"}) + table_octets({"blue": "22", "green": "333"})
    assert server.held == len(octets) + len(more) + tables
    assert not server.whole


def sized(body: bytes, **own: str) -> bytes:
    """A part of message 1 with its length."""
    length = {"content_length": f"{len(body)}"}
    return msg(body, final=False, msg_id="1", msg_more="yes", **length, **own)


class Slow(HeldCase):
    def test_senders_of_headers_wait_for_the_sink_and_a_good_one_is_served__NB_02(self):
        """NB-02, NB-01, NB-03: they are not read above their share of ``process-octets``."""
        good, client = self.pair(process_octets=200_000)
        crowd = [self.accept() for _ in range(3)]
        for number, server in enumerate(crowd, 2):
            server.dataReceived(CONNECT)
            for id in range(100):
                if server.transport.producerState == "producing":
                    session = f"secret-{number}"
                    octets = msg(session=session, msg_id=f"{id}", send_only="yes", **named(0))
                    server.dataReceived(octets)
        states = [server.transport.producerState for server in crowd]
        self.assertEqual(states, ["paused"] * 3)
        answer = client.request(b"Hola")
        self.pump()
        self.assertEqual(good.transport.producerState, "producing")
        for _ in range(len(self.sink.waiting)):
            self.sink.safe()
        self.pump()
        self.assertEqual(self.successResultOf(answer).body, b"")


class AmongOthers(Case):
    def test_those_with_headers_without_end_are_cut_off_and_a_good_one_is_served__NB_02(self):
        """NB-02, FAULTS: by what all of them take, not by the octets they have sent."""
        _, client = self.pair(process_held_octets=1 << 20)
        crowd = [self.accept() for _ in range(4)]
        for number, server in enumerate(crowd, 2):
            server.dataReceived(CONNECT)
            for start in range(0, 5800, 29):
                if server.transport.connected and not server.transport.aborted:
                    headers = named(start, WIDE[:2])
                    session = f"secret-{number}"
                    server.dataReceived(part(b"", session=session, msg_id="1", **headers))
        self.assertLess(self.factory.budget.held.held, 1 << 20)
        self.assertEqual([server.transport.aborted for server in crowd], [True] * 4)
        answer = client.request(b"Hola")
        self.pump()
        self.assertEqual(self.successResultOf(answer).body, b"")

    def test_a_crowd_whose_requests_are_owed_answers_is_refused_and_a_good_one_is_served__NB_02(
        self,
    ):
        """NB-02: an application may take long, and each of their ids takes kilobytes."""
        owed: list[Deferred[bytes]] = []

        class Owing(SabcServer):
            def requestReceived(self, message: Any) -> Any:
                if message.body == b"now":
                    return b"at once"
                owed.append(Deferred())
                return owed[-1]

        self.serve(process_kept_octets=100_000)
        self.factory.protocol = Owing
        kept = self.factory.budget.kept
        crowd = [self.accept() for _ in range(9)]
        for number, server in enumerate(crowd, 1):
            server.dataReceived(CONNECT)
            session = f"secret-{number}"
            octets = [msg(b"", session=session, msg_id=f"{WIDE}{id}") for id in range(50)]
            for read in (octets[:25], octets[25:]):
                server.dataReceived(b"".join(read))
        each = 256 + sys.getsizeof(f"{WIDE}{11}")
        self.assertTrue(len(owed) * (each - 8) <= kept.octets <= len(owed) * each)
        self.assertLess(kept.octets, 2 * 100_000 + 9 * SMALL_OCTETS)
        self.assertLess(len(owed), 9 * 50)
        self.assertIn(
            b"too many unanswered requests: process-kept-octets", crowd[8].transport.value()
        )
        refused = self.factory.counters["turned_away:process-kept-octets"]
        self.assertEqual(refused, 9 * 50 - len(owed))
        good = self.accept()
        good.dataReceived(CONNECT)
        good.transport.clear()
        good.dataReceived(msg(b"now", session="secret-10", msg_id="1"))
        good.dataReceived(msg(b"later", session="secret-10", msg_id="2"))
        self.assertIn(b"at once", good.transport.value())
        for answer in owed[::2]:
            answer.callback(b"at last")
        self.assertIn(b"at last", crowd[0].transport.value())
        self.assertLess(kept.octets, 110_000)
        for server in (*crowd, good):
            self.lose(server)
        self.assertEqual((kept.octets, kept.sessions), (0, 0))
        for answer in owed[1::2]:
            answer.callback(b"too late")
        self.assertEqual((kept.octets, kept.sessions), (0, 0))
        self.clock.advance(60)  # the sum of what was refused is logged

    def test_requests_that_wait_for_their_answers_count_with_their_bodies_and_headers__NB_02(self):
        """NB-02: a hook that is a coroutine keeps the whole request until it has answered."""
        waiting: Deferred[None] = Deferred()

        class Slow(SabcServer):
            async def requestReceived(self, message: Any) -> Any:
                await waiting
                return message.body[:1]

        self.serve(process_kept_octets=1_000_000)
        self.factory.protocol = Slow
        kept = self.factory.budget.kept
        crowd = [self.accept() for _ in range(4)]
        for number, server in enumerate(crowd, 1):
            server.dataReceived(CONNECT)
            for id in range(8):
                octets = msg(b"x" * 50_000, session=f"secret-{number}", msg_id=f"{id}", one=WIDE)
                server.dataReceived(octets)
        asked = 4 * 8 - self.factory.counters["turned_away:process-kept-octets"]
        self.assertGreater(kept.octets, asked * (50_000 + sys.getsizeof(WIDE)))
        self.assertLess(kept.octets, 2 * 1_000_000)
        self.assertLess(asked, 4 * 8)
        waiting.callback(None)
        self.assertEqual((kept.octets, kept.sessions), (0, 0))
        for server in crowd:
            self.lose(server)
        self.clock.advance(60)  # the sum of what was refused is logged

    def test_a_crowd_with_headers_on_connect_is_refused_and_a_good_one_is_served__NB_02(self):
        """NB-02: they are kept as long as the connection is there; few ones are never refused."""
        self.serve(process_kept_octets=100_000)
        kept = self.factory.budget.kept
        octets = encode(Connect({"client-id": "me", **named(0, WIDE)}))
        crowd = [self.accept() for _ in range(9)]
        for server in crowd:
            server.dataReceived(octets)
        fit = [server for server in crowd if server.established]
        self.assertEqual(fit, crowd[:3])
        self.assertTrue(kept.octets <= 100_000 < kept.octets * 4 / 3, kept.octets)
        self.assertIn(b"too many headers: process-kept-octets", crowd[4].transport.value())
        self.assertEqual(crowd[0].connectHeaders, named(0, WIDE))
        crowd[4].dataReceived(encode(Connect({"client-id": "me", "colour": "red"})))
        self.assertEqual(crowd[4].connectHeaders, {"colour": "red"})
        good = self.accept()
        good.dataReceived(encode(Connect({"client-id": "good", **named(0, "of mine")})))
        self.assertTrue(good.established)
        for server in (*crowd, good):
            self.lose(server)
        self.assertEqual((kept.octets, kept.sessions), (0, 0))
        self.assertEqual(self.factory.counters["turned_away:process-kept-octets"], 6)
        self.clock.advance(60)  # the sum of what was refused is logged
