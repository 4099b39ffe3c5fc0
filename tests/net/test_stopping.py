"""The end of a process: connections first, then the queue, and together they have a few seconds."""

import pytest
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from twisted_msgproto.net import DurableSink
from twisted_msgproto.net.gateway import Gateway


class Ending(Service):
    """A server whose connections take their time to end."""

    def __init__(self):
        self.ended = Deferred()

    def stopService(self):
        return self.ended


class Closing(DurableSink):
    """A sink which notes how long it may take to close."""

    def __init__(self):
        self.seconds = []

    def close(self, timeout=None):
        self.seconds.append(timeout)
        return succeed(False)


@pytest.mark.parametrize(
    ("used", "left"),
    [(0, 4.0), (1.5, 2.5), (60, 0.5)],
)
def test_the_queue_has_what_the_connections_left_of_the_time(used, left):
    """FAULTS, SIGTERM: exit in 5 s, also where nothing can be made safe any more."""
    clock, server, sink = Clock(), Ending(), Closing()
    gateway = Gateway(clock)
    gateway.sink = sink
    server.setServiceParent(gateway)
    gateway.startService()
    stopped = gateway.stopService()
    clock.advance(used)
    assert not sink.seconds, "what the connections still say would find the queue closed"
    server.ended.callback(None)
    assert stopped.called
    assert sink.seconds == [pytest.approx(left)]
