"""What is stored of a session has no gap, also where the sink fails at once."""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.contract.cases import Umq
from tests.contract.world import World
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.net.sink import IMessageSink


@implementer(IMessageSink)
class FailsFirst:
    """The first batch is not stored, and that is known at once; the others would be."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        self.kinds.append(batch.kind)
        return fail(QueueError("no space left")) if len(self.kinds) == 1 else succeed(None)


class Gaps(SynchronousTestCase):
    def test_nothing_of_a_read_is_stored_behind_what_was_not(self) -> None:
        sink = FailsFirst()
        world = World(Umq(), sink)
        peer = world.join()
        sent = peer.send(b"one")
        peer.client.setAttribute("name", "value")
        world.pump()
        self.failureResultOf(sent)
        self.assertEqual(sink.kinds, ["call"])
        self.assertEqual(world.close(), [])
