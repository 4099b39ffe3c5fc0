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

from twisted_msgproto.sabc import SabcServer

from .pairs import Case
from .sides import CONNECT, NOW, NUDGE, SESSION, frame, limits, msg, names, open_server, part

READ = 1 << 16
BODY = b"x" * 900_000
LITTLE = 4096
"""A session and its bookkeeping may have grown by this many bytes."""


@contextmanager
def memory() -> Iterator[list[int]]:
    """Give the bytes that were allocated meanwhile and are still there."""
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


def reads(nbytes: bytes) -> Iterator[bytes]:
    """Bytes as they come, in reads of their own."""
    for at in range(0, len(nbytes), READ):
        yield nbytes[at : at + READ]


def deal(server: Any, nbytes: Iterable[Any]) -> None:
    """Read, and answer all that is asked at once."""
    for some in nbytes:
        for event in server.receive(some, NOW):
            if hasattr(event, "position"):
                server.made_safe(event.position, NOW)
                if event.kind == "request":
                    server.acknowledge(event.ids)
        server.outputs()


@pytest.mark.parametrize(
    "frames",
    [
        lambda: msg(BODY, msg_id="1"),
        lambda: msg(BODY, msg_id="1", colour="red"),
        lambda: part(BODY[::2], msg_id="1", a="b") + msg(BODY[::3], msg_id="1", c="d"),
        lambda: msg(BODY, msg_id="1", ref_msg_id="2"),  # it is refused
        lambda: frame("ERROR", {"session-id": SESSION}, BODY),
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
    assert server.no_partial_input and not server.closed
    assert grown[0] < LITTLE


def test_a_frame_of_websocket_is_not_held_until_garbage_is_collected__NB_02() -> None:
    server = open_server(framed=True)
    gc.collect()
    deal(server, [[msg(b"x", msg_id=str(n))] for n in range(20)])
    assert gc.collect() == 0


def test_bytes_that_were_handed_out_are_not_held_beside_the_message__NB_02() -> None:
    """NB-02: what a message holds is what ``held`` says, in the middle of it as well."""
    server = open_server()
    with memory() as grown:
        deal(server, reads(msg(BODY, msg_id="1")[:-1]))
    assert abs(grown[0] - server.input_weight) < LITTLE


def named(start: int, value: str = "") -> dict[str, str]:
    """As many headers of our own as a frame may have beside those it needs."""
    return {f"{number:x}": value for number in range(start, start + 29)}


WIDE = "\N{GRINNING FACE}" + "x" * 200
"""In memory each of its characters takes four bytes."""


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
    assert grown[0] < server.input_weight + LITTLE
    end = msg(b"", msg_id="1")
    (event,) = server.receive([end] if framed else end, NOW)
    assert names([event]) == ["MessagesReceived"]
    assert len(event.fields[0]) == 2900
    assert (server.input_weight, server.no_partial_input) == (0, True)


def test_a_head_of_which_lines_have_come_counts__NB_02() -> None:
    """NB-02: its lines are read as they come, and held as long as the blank line does not."""
    server = open_server()
    octets = msg(b"x", msg_id="1", **named(0, WIDE))
    with memory() as grown:
        server.receive(octets[: octets.index(b"\r\n\r\n") + 2], NOW)
    assert not server.no_partial_input
    assert len(octets) < grown[0] < server.input_weight + LITTLE
    server.receive(octets[octets.index(b"\r\n\r\n") + 2 :], NOW)
    assert (server.input_weight, server.no_partial_input) == (0, True)


def test_a_refused_message_weighs_nothing__NB_02() -> None:
    server = open_server()
    refused = part(b"", msg_id="1", send_only="yes", ref_msg_id="2")
    server.receive(refused + NUDGE, NOW)
    assert (server.input_weight, server.closed) == (0, False)
    server.receive(msg(b"", msg_id="1", **named(0), **named(100)), NOW)
    assert (server.input_weight, server.closed) == (0, True)


A_BATCH = 2000  # what a batch itself may take

MESSAGES = {
    "plain": lambda n: msg(b"", msg_id=f"{n}".zfill(900)),
    "plain and wide": lambda n: msg(b"", msg_id=f"{WIDE}{n}"),
    "odd and wide": lambda n: msg(b"x", msg_id=f"{WIDE}{n}", send_only="yes"),
    "headers that are wide": lambda n: msg(
        b"", msg_id=f"{n}", **{name: WIDE for name in [*named(0)][:20]}
    ),
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
    counted = sum(event.nbytes + event.weight + A_BATCH for event in told)
    assert grown[0] < 2 * counted + LITTLE
    texts = [header for one in octets for header in one.decode().split("\r\n")]
    wide = sum(sys.getsizeof(text) for text in texts if not text.isascii())
    assert sum(event.weight for event in told) <= sum(map(len, octets)) + 200 * 29 * 150 + wide


def test_a_message_that_was_cut_counts_as_what_is_kept_of_it__NB_02() -> None:
    """NB-02, SA-22: what is above the limit is not in memory."""
    server = open_server(limits=limits(message_bytes=1000))
    (event,) = server.receive(msg(b"x" * 1500, msg_id="1", red="1"), NOW)
    assert event.truncated == [True]
    assert 900 < event.nbytes + event.weight < 1300


class AmongOthers(Case):
    def test_requests_that_are_owed_answers_are_refused_and_a_good_one_is_served__NB_02(self):
        """NB-02: a hook may take long; ids, headers and, of coroutines, bodies are kept so long."""
        waiting: Deferred[None] = Deferred()

        class Slow(SabcServer):
            def requestReceived(self, message: Any) -> Any:
                return b"at once" if message.body == b"now" else self.later(message)

            async def later(self, message: Any) -> Any:
                await waiting
                return message.body[:1]

        self.serve(server_class=Slow, process_session_bytes=100_000)
        for case, body, headers in (
            ("ids", b"", {}),
            ("bodies", b"x" * 5_000, {}),
            ("headers", b"", named(0, WIDE[:20])),
        ):
            waiting = Deferred()
            refused = self.factory.counters["turned_away:process-session-bytes"]
            crowd = [self.accept() for _ in range(9)]
            for server in crowd:
                server.dataReceived(CONNECT)
                session = server.transport.value().split(b"session-id::")[1].split(b"\r\n")[0]
                asked = [
                    msg(body, session=session.decode(), msg_id=f"{WIDE}{id}", **headers)
                    for id in range(500)
                ]
                server.transport.clear()
                server.dataReceived(b"".join(asked))
            first, last = crowd[0].transport.value(), crowd[-1].transport.value()
            # In one read more than all may keep: some of it is taken.
            self.assertTrue(0 < first.count(b"error-code::429") < 500, case)
            self.assertIn(b"too many unanswered requests: process-session-bytes", last)
            refused = self.factory.counters["turned_away:process-session-bytes"] - refused
            self.assertTrue(8 * 400 < refused < 9 * 500, (case, refused))
            good, client = self.accept(), self.join()
            self.pump(good, client)
            answer = client.request(b"now")
            self.pump(good, client)
            self.assertEqual(self.successResultOf(answer).body, b"at once")
            waiting.callback(None)  # now nothing of theirs is kept any more
            crowd[-1].transport.clear()
            crowd[-1].dataReceived(msg(b"z", session=session.decode(), msg_id="last"))
            self.assertIn(b"ref-msg-id::last", crowd[-1].transport.value())
            self.assertNotIn(b"ERROR", crowd[-1].transport.value())
            for side in (*crowd, good, client):
                self.lose(side)
        self.clock.advance(60)  # the sum of what was refused is logged

    def test_a_crowd_with_headers_on_connect_is_refused_and_a_good_one_is_served__NB_02(self):
        """NB-02: they are kept as long as the connection is there; few ones are never refused."""
        self.serve(process_session_bytes=100_000)
        octets = frame("CONNECT", {"client-id": "me", **named(0, WIDE)})
        for _ in range(2):  # those who have left count no more
            crowd = [self.accept() for _ in range(9)]
            for server in crowd:
                server.dataReceived(octets)
            fit = [server for server in crowd if server.established]
            self.assertEqual(fit, crowd[: len(fit)])
            self.assertIn(len(fit), (2, 3, 4))
            said = crowd[4].transport.value()
            self.assertIn(b"too many headers: process-session-bytes", said)
            self.assertEqual(crowd[0].connectHeaders, named(0, WIDE))
            crowd[4].dataReceived(frame("CONNECT", {"client-id": "me", "colour": "red"}))
            self.assertEqual(crowd[4].connectHeaders, {"colour": "red"})
            for server in crowd:
                self.lose(server)
        self.assertEqual(
            self.factory.counters["turned_away:process-session-bytes"], 18 - 2 * len(fit)
        )
        self.clock.advance(60)  # the sum of what was refused is logged
