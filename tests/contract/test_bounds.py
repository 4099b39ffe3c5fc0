"""Slow peers, unfinished messages, limits of ours, and what a message costs beside idle peers."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import LogLevel

from tests.contract.cases import BOTH_WAYS, CONNECTED
from tests.contract.world import only, over_all
from tests.doubles import HeldSink
from twisted_msgproto.core.errors import MsgprotoError
from twisted_msgproto.testing import SafeSink

pytestmark = pytest.mark.usefixtures("short_turns")

LARGE_BYTES = 900_000
"""More than any buffer on the way holds, and less than any limit of a message."""

STEADY_BYTES = 131_072
"""What a slow reader takes at a time: all of it takes longer than an answer may otherwise."""


class Slow:
    """A peer that does not read is cut off; one that reads slowly is served."""

    @only(*BOTH_WAYS)
    def test_a_client_that_does_not_read_is_cut_off_with_a_line_and_a_counter(self: Any) -> None:
        """HO-27"""
        world = self.world(SafeSink())
        peer = world.join()
        peer.line.client.deaf = True
        pushed = peer.push(b"x" * LARGE_BYTES)
        world.wait(31)
        self.assertTrue(peer.line.server.gone)
        self.assertEqual(world.factory.counters["fault:unread"], 1)
        told = [text for text in world.lines(LogLevel.warn) if "does not read" in text]
        self.assertEqual(len(told), 1, world.lines())
        self.failureResultOf(pushed)

    @only(*CONNECTED)
    def test_a_server_that_does_not_read_is_left_and_whoever_waits_hears_it(self: Any) -> None:
        world = self.world(SafeSink())
        peer = world.join(unread_seconds=20.0)
        peer.line.server.deaf = True
        sent = peer.send(b"x" * LARGE_BYTES)
        world.wait(25)
        self.assertTrue(peer.line.client.gone)
        self.failureResultOf(sent, MsgprotoError)

    @only(*BOTH_WAYS)
    def test_a_client_that_reads_slowly_but_steadily_is_not_cut_off(self: Any) -> None:
        """HO-04"""
        world = self.world(SafeSink())
        peer = world.join(hooks={"message": lambda session, message: None})
        peer.line.client.deaf = True
        pushed = peer.push(b"x" * LARGE_BYTES)
        self.read_steadily(world, peer.line.client)
        self.assertFalse(peer.line.server.gone)
        self.successResultOf(pushed)

    @only(*CONNECTED)
    def test_a_server_that_reads_slowly_but_steadily_is_not_left(self: Any) -> None:
        """HO-04: our own uploads."""
        world = self.world(SafeSink())
        peer = world.join(unread_seconds=20.0)
        peer.line.server.deaf = True
        sent = peer.send(b"x" * LARGE_BYTES)
        self.read_steadily(world, peer.line.server)
        self.assertFalse(peer.line.client.gone)
        self.successResultOf(sent)

    def read_steadily(self: Any, world: Any, end: Any) -> None:
        """Take some bytes every 12 s until all have come, then read as usual."""
        while end.other.buffer and not end.gone:
            world.wait(12)
            end.deaf = False
            left = STEADY_BYTES
            while left > 0 and (there := len(end.other.buffer)):
                end.read(min(left, there))
                left -= there
            end.deaf = True
        end.deaf = False
        world.wait(1)


class Crowds:
    """Who is silent makes room for newcomers from other addresses."""

    @only(*CONNECTED)
    def test_silent_connections_do_not_lock_others_out__NB_08(self: Any) -> None:
        """NB-08"""
        world = self.world(SafeSink(), connections=20)
        silent = [world.join(host="198.51.100.1") for _ in range(20)]
        world.wait(62)  # nobody was silent when the last of them came; that is looked at again
        good = world.join(host="192.0.2.7")
        self.soon(world, good.send(b"y"))
        self.assertEqual(sum(peer.gone for peer in silent), 1)
        self.assertEqual(world.factory.counters["displaced"], 1)
        told = [text for text in world.lines(LogLevel.warn) if "for a newcomer" in text]
        self.assertEqual(len(told), 1)


class Bounds:
    """What peers can make us hold, and what we do not write."""

    @only(*CONNECTED)
    def test_unfinished_messages_have_one_bound_for_the_process(self: Any) -> None:
        """NB-02: the same limit in all protocols; above most of it others have to wait."""
        octets, limit = LARGE_BYTES // 10, LARGE_BYTES
        world = self.world(SafeSink(), process_held_bytes=limit)
        peers = [world.join() for _ in range(25)]
        for peer in peers:
            self.ignore(peer.send(b"x" * octets))
            self.read_a_third(peer, octets)
        self.assertLessEqual(world.factory.shared.held.held, limit)
        held_back = [p for p in peers if self.why_unread(p) == "process-held-bytes"]
        self.assertGreaterEqual(len(held_back), 2)
        self.assertNotIn(peers[0], held_back)
        self.assertEqual(world.factory.counters["fault:process-held-bytes"], 0)
        world.wait(5)  # who is read finishes, then the others do: nothing is lost
        for peer in peers:
            self.successResultOf(peer.sent[-1])

    @only(*CONNECTED)
    def test_who_stands_still_makes_room_for_who_moves(self: Any) -> None:
        """NB-03: the honest sender of a large message was cut off, those who stood still stayed."""
        world = self.world(SafeSink(), process_held_bytes=1_000_000)
        still = [world.join() for _ in range(3)]
        for peer in still:
            self.ignore(peer.send(b"x" * LARGE_BYTES))
            self.read_a_third(peer, LARGE_BYTES)
            peer.line.server.deaf = True
        world.wait(28)
        moving = world.join()
        self.soon(world, moving.send(b"x" * LARGE_BYTES), 3)
        self.assertGreaterEqual(world.factory.counters["fault:process-held-bytes"], 1)
        told = [text for text in world.lines(LogLevel.warn) if "process-held-bytes" in text]
        self.assertEqual(len(told), world.factory.counters["fault:process-held-bytes"])

    @only(*CONNECTED)
    def test_a_small_message_waits_for_nobody_who_stands_still__RD_42(self: Any) -> None:
        """RD-42"""
        world = self.world(SafeSink(), process_held_bytes=1_200_000)
        still = self.stand_still(world, 10)
        for nbytes in (60, 6_000, 25_000):
            self.soon(world, world.join().send(b"x" * nbytes))
        self.assertEqual(sum(peer.gone for peer in still), 0)

    @only(*CONNECTED)
    def test_a_large_message_waits_5_s_at_most_for_those_who_stand_still__RD_42(self: Any) -> None:
        """They have logged in, and so long ago that they are nobody's newcomers."""
        world = self.world(SafeSink(), process_held_bytes=1_200_000)
        self.stand_still(world, 40)
        moving = world.join()
        sent = moving.send(b"x" * (LARGE_BYTES // 3))
        world.wait(5, step=0.25)
        self.successResultOf(sent)

    def stand_still(self: Any, world: Any, count: int) -> list[Any]:
        """Join as many peers that leave two thirds of a message behind; their share is full."""
        still = [world.join() for _ in range(count)]
        for peer in still:
            self.ignore(peer.send(b"x" * (LARGE_BYTES // 3)))
            self.read_a_third(peer, LARGE_BYTES // 3)
            peer.line.server.deaf = True
        self.assertGreater(world.factory.shared.held.held, 900_000)
        return still

    @only(*CONNECTED)
    def test_nothing_is_stored_behind_what_could_not_be(self: Any) -> None:
        """What stood behind a pause was read on, and stored, before the session ended: a gap."""
        sink = HeldSink()
        world = self.world(sink, unsafe_bytes=1)
        peer = world.join()
        for _ in range(400):
            self.ignore(peer.send(b"x" * 200))
        world.pump()
        self.assertEqual(self.why_unread(peer), "connection-bytes")
        before = len(sink.messages)
        sink.fail(OSError("no disk"))
        world.wait(1)
        self.assertEqual((len(sink.messages), peer.line.server.gone), (before, True))
        self.flushLoggedErrors(OSError)

    def why_unread(self: Any, peer: Any) -> Any:
        return peer.server.snapshot()["not_read_because"]

    def read_a_third(self: Any, peer: Any, nbytes: int) -> None:
        """Let a third of a message arrive; what its sender has to say leaves in slices."""
        start = peer.bytes_written - len(peer.line.client.buffer)
        left = nbytes // 3
        while left > 0 and peer.line.server.read(left):
            arrived = peer.bytes_written - len(peer.line.client.buffer)
            left = nbytes // 3 - (arrived - start)

    @only(*CONNECTED)
    def test_who_sends_in_bulk_is_paused_and_its_neighbour_is_not(self: Any) -> None:
        """NB-01: what waits for the disk is shared; a pause is for who has more than its share."""
        sink = HeldSink()
        world = self.world(sink, process_unsafe_bytes=100_000)
        bulk, good = world.join(), world.join()
        self.ignore(bulk.send(b"x" * 150_000))
        world.pump()
        self.assertEqual(self.why_unread(bulk), "process-unsafe-bytes")
        before = len(sink.batches)
        self.ignore(good.send(b"x" * 10_000))
        world.pump()
        self.assertEqual(len(sink.batches), before + 1)
        self.assertIsNone(self.why_unread(good))
        sink.safe()
        world.pump()
        self.assertIsNone(self.why_unread(bulk))


over_all(globals(), Slow, Crowds, Bounds)


# ── Much is under way in both directions: nobody waits for somebody who waits for th ──


class BothFull:
    """A client has written more than the server reads at a time, and its answers are as large."""

    @only("sabc", "sabc-ws", "umq")
    def test_a_client_reads_its_answers_while_its_own_bytes_wait(self: Any) -> None:
        def echo(server: Any, message: Any) -> Any:
            return message.body

        world = self.world(SafeSink(), hooks={"message": echo})
        peer = world.join(full=1024)
        answered = []

        def again(result: Any, left: int) -> None:
            answered.append(left)
            if left:
                peer.send(b"x" * 65_536).addCallback(again, left - 1)

        for _ in range(100):
            peer.send(b"x" * 65_536).addCallback(again, 3)
        world.wait(1)
        self.assertEqual(len(answered), 400)
        self.assertEqual(world.lines(), [])


over_all(globals(), BothFull)
