"""Hostile connections to a gateway's sites: bounded, in time and number (``FC-03``)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from twisted_msgproto.net.control.resources import BodilessRequest
from twisted_msgproto.net.control.site import ControlSite

CONNECTIONS_MAX, REQUEST_SECONDS = 100, 30.0


ASKED = b"GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
ADDRESS = IPv4Address("TCP", "127.0.0.1", 1)


class Quick(Resource):
    """Answers at once."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        return b"well"


class Stream(Resource):
    """Never ends its answer."""

    isLeaf = True

    def render_GET(self, request: Request) -> Any:
        request.write(b"begun")
        return NOT_DONE_YET


class Wire(StringTransport):
    """Loses its connection when it is told to."""

    channel: Any = None

    def loseConnection(self) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self.channel.connectionLost(None)

    abortConnection = loseConnection


class Served:
    """A site without sockets, on a clock of our own."""

    def __init__(self) -> None:
        root = Resource()  # type: ignore[no-untyped-call]
        root.putChild(b"quick", Quick())  # type: ignore[no-untyped-call]
        root.putChild(b"stream", Stream())  # type: ignore[no-untyped-call]
        self.clock: Any = Clock()
        self.site = ControlSite(root, requestFactory=BodilessRequest, reactor=self.clock)

    def connect(self, octets: bytes = b"") -> Wire | None:
        channel = self.site.buildProtocol(ADDRESS)
        if channel is None:
            return None
        wire = Wire()
        wire.channel = channel
        channel.makeConnection(wire)
        channel.dataReceived(octets)
        return wire

    def ask(self, wire: Wire | None) -> bool:
        """Whether a whole request is answered."""
        assert wire is not None
        wire.clear()
        wire.channel.dataReceived(ASKED)
        return b"well" in wire.value()


def test_silent_connections_give_way_to_a_scraper() -> None:
    served = Served()
    silent = [served.connect(b"GET / HT") for _ in range(3 * CONNECTIONS_MAX)]
    assert len(served.site.connections) == CONNECTIONS_MAX
    assert served.ask(served.connect())
    assert sum(not wire.disconnecting for wire in silent if wire) == CONNECTIONS_MAX - 1


def test_who_is_answered_now_and_then_is_closed_after_those_who_say_nothing() -> None:
    served = Served()
    scraper = served.connect()
    for _ in range(3 * CONNECTIONS_MAX):
        served.connect(b"GET / HT")
        assert served.ask(scraper)


def test_open_streams_are_not_closed_for_others_and_then_nobody_is_let_in() -> None:
    served = Served()
    streams = [served.connect(STREAM) for _ in range(CONNECTIONS_MAX)]
    assert served.connect() is None
    assert streams[0] is not None
    streams[0].abortConnection()
    assert served.ask(served.connect())


def test_a_header_that_comes_octet_by_octet_ends_in_time() -> None:
    served = Served()
    wire = served.connect()
    assert wire is not None
    for octet in range(int(REQUEST_SECONDS) - 1):
        wire.channel.dataReceived(ASKED[octet : octet + 1])
        served.clock.advance(1.0)
    assert not wire.disconnecting
    served.clock.advance(1.0)
    assert wire.disconnecting
    assert not served.site.connections
    assert not served.clock.getDelayedCalls()


def test_a_connection_rests_only_for_a_while_and_a_stream_as_long_as_it_lasts() -> None:
    served = Served()
    wire, stream = served.connect(), served.connect(STREAM)
    for _ in range(3):
        served.clock.advance(REQUEST_SECONDS - 1)
        assert served.ask(wire)
    served.clock.advance(REQUEST_SECONDS)
    assert wire is not None
    assert stream is not None
    assert (wire.disconnecting, stream.disconnecting) == (True, False)


@pytest.mark.parametrize(
    "octets",
    [
        b"GET /quick HTTP/1.1\r\nx: " + b"y" * 100_000,
        b"GET /quick HTTP/1.1\r\n" + b"x: y\r\n" * 10_000,
        b"GET /" + b"a" * 100_000,
        b"\x16\x03\x01" + b"\0" * 50_000,
        b"GET /quick HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_a_header_that_is_too_long_or_no_header_ends_the_connection(octets: bytes) -> None:
    served = Served()
    wire = served.connect()
    assert wire is not None
    for start in range(0, len(octets), 4096):
        if not wire.disconnecting:
            wire.channel.dataReceived(octets[start : start + 4096])
    assert wire.disconnecting
    assert served.ask(served.connect())


def test_what_is_asked_in_one_go_is_answered_in_turn() -> None:
    served = Served()
    wire = served.connect(ASKED * 100)
    assert wire is not None
    assert wire.value().count(b"well") == 100
    assert served.ask(wire)
