"""A test without a network: what is sent is acknowledged when it is safe, and not before."""

from msgproto_lines import LinesClientFactory, LinesServerFactory

from twisted_msgproto.testing import Clock, HeldSink, Pair


def test_an_acknowledgement_waits_for_the_disk() -> None:
    clock, sink = Clock(), HeldSink()
    server = LinesServerFactory(sink, clock=clock, wallClock=clock.seconds)
    client = LinesClientFactory(clock=clock)
    pair = Pair(server.buildProtocol, client.buildProtocol)
    sent = pair.client.protocol.send(b"hello")
    pair.pump()
    assert not sent.called
    sink.release()  # the disk has it
    pair.pump()
    assert sent.called
    pair.cut()
