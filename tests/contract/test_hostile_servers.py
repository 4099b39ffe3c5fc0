"""A server that speaks and does not read, beside clients of ours: what it can make them keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.cases import BOTH_WAYS, Peer
from tests.contract.world import only, over_all
from tests.umq.pairs import base36
from twisted_msgproto.core.errors import LimitExceeded, TimedOut
from twisted_msgproto.micromsg2.wire.frames import encode_command
from twisted_msgproto.net.wires.stream import SLICE_BYTES
from twisted_msgproto.testing import SafeSink

pytestmark = pytest.mark.usefixtures("short_turns")

UNSENT_BYTES = 1_000_000


def commands(link: Any, begin: int, count: int) -> None:
    """Commands of no extension; each is answered with an ERROR."""
    link.wire.write(encode_command("nonsense", {}) * count)


def ambiguous(link: Any, begin: int, count: int) -> None:
    """Messages with two ids; each is refused with an ERROR."""
    numbers = range(begin, begin + count)
    link.wire.write(b"".join(both_ids(link, number) for number in numbers))


def ambiguous_frames(link: Any, begin: int, count: int) -> None:
    numbers = range(begin, begin + count)
    link.wire.write([both_ids(link, number)[:-2] for number in numbers])


def both_ids(link: Any, number: int) -> bytes:
    length = "content-length::0\r\n" if link.machine.lengths else ""
    lines = f"{link.machine._prefix}msg-id::{number}\r\nref-msg-id::3\r\n{length}\r\n"
    return lines.encode() + b"\0\r\n"


def updates(link: Any, begin: int, count: int) -> None:
    """Updates of topics to which nobody has subscribed; each is answered with ``U``."""
    topics = range(begin + 4000, begin + 4000 + count)
    link.wire.write([f"T{base36(topic)}:" for topic in topics])


NONSENSE: dict[str, Callable[[Any, int, int], None]] = {
    "micromsg2": commands,
    "sabc": ambiguous,
    "sabc-ws": ambiguous_frames,
    "umq": updates,
}


class Deaf:
    def waits(self: Any, peer: Peer) -> int:
        return int(peer.client.link.wire.output.nbytes)

    @only(*BOTH_WAYS)
    def test_answers_to_a_server_that_does_not_read_have_a_bound__NB_02(self: Any) -> None:
        """A server that took 64 KiB in half a minute was written answers to without an end."""
        world = self.world(SafeSink())
        peer = world.join(unsent_bytes=UNSENT_BYTES)
        sent = peer.send(b"x")
        peer.line.server.deaf = True
        most = 0
        for number in range(400):
            NONSENSE[self.case.name](peer.server.link, number * 2000, 2000)
            world.wait(0.05, 0.05)
            if peer.line.client.gone:
                break
            most = max(most, self.waits(peer))
        self.assertTrue(peer.line.client.gone)
        slack = 1_100_000 + SLICE_BYTES  # what waits when it begins: unread-bytes on WebSocket
        self.assertLess(most, 2 * UNSENT_BYTES + slack)
        self.assertGreater(most, UNSENT_BYTES)
        self.failureResultOf(sent, TimedOut)
        self.assertIn("closed: it does not read", " ".join(world.lines()))

    @only("sabc", "sabc-ws", "umq")
    def test_verbs_fail_when_the_server_has_left_too_much_unread__NB_02(self: Any) -> None:
        world = self.world(SafeSink())
        peer = world.join(unsent_bytes=UNSENT_BYTES + 1_100_000)
        peer.line.server.deaf = True
        told = [self.tell(peer, b"x" * 100_000) for _ in range(60)]
        written = [one for one in told if self.is_written(one)]
        self.assertLess(len(written), 30)
        self.assertLess(self.waits(peer), UNSENT_BYTES + 1_200_000)
        self.failureResultOf(peer.send(b"x" * 100_000), LimitExceeded)
        peer.line.server.deaf = False
        world.wait(1)
        self.successResultOf(self.tell(peer, b"x" * 100_000))

    def tell(self: Any, peer: Peer, body: bytes) -> Any:
        if self.case.name == "umq":
            return peer.client.setAttribute("a", body.decode())
        return peer.client.sendOnly(body)

    def is_written(self: Any, told: Any) -> bool:
        failures: list[Any] = []
        told.addErrback(failures.append)
        for failure in failures:
            failure.trap(LimitExceeded)
        return not failures

    @only("micromsg2")
    def test_commands_fail_when_the_server_has_left_too_much_unread__NB_02(self: Any) -> None:
        world = self.world(SafeSink())
        peer = world.join(unsent_bytes=UNSENT_BYTES)
        peer.line.server.deaf = True
        said = [peer.client.sendError("x", "y" * 150) for _ in range(20_000)]
        self.assertLess(len([one for one in said if self.is_written(one)]), 8_000)
        self.assertLess(self.waits(peer), UNSENT_BYTES + SLICE_BYTES)

    @only("micromsg2", "sabc")
    def test_small_answers_that_wait_are_few_pieces__NB_02(self: Any) -> None:
        """Each of 12 bytes needed 200 more."""
        world = self.world(SafeSink())
        peer = world.join()
        peer.line.server.deaf = True
        for number in range(3000):
            NONSENSE[self.case.name](peer.server.link, number * 3, 3)
            world.pump()
        pieces = len(peer.client.link.wire.output._queue or ())
        self.assertLessEqual(pieces, 2 + 2 * self.waits(peer) // SLICE_BYTES)


over_all(globals(), Deaf)
