"""What all server factories share, also behind a proxy, and the end of a process."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.application.service import Service
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.task import Clock
from twisted.internet.testing import (
    MemoryReactor,
    StringTransport,
    StringTransportWithDisconnection,
)
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from tests.net.test_websocket_cases import UPGRADE
from twisted_msgproto.core.limits import Limit
from twisted_msgproto.extend import MsgprotoServerFactory
from twisted_msgproto.lumberjack import LumberjackServerFactory, encode_json, encode_window
from twisted_msgproto.micromsg2 import MicroMsg2ServerFactory
from twisted_msgproto.net import DurableSink
from twisted_msgproto.net.endpoints import ServedEndpoint, address_name
from twisted_msgproto.net.factory import peer_name
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.testing import SafeSink
from twisted_msgproto.umq import UmqServerFactory


class Factory(MsgprotoServerFactory):
    protocolName = "test"
    LIMITS = (Limit("size", 5, "bytes", "for the test"),)
    protocol = Protocol


def factory(**limits):
    return Factory(
        limits={name.replace("_", "-"): value for name, value in limits.items()},
        clock=Clock(),
        wallClock=lambda: 0.0,
    )


def turned_away(connection):
    transport = StringTransport()
    connection.makeConnection(transport)
    return transport.disconnecting


def test_a_limit_that_is_met_is_said_once_a_minute_with_its_option__NB_08():
    """NB-08"""
    server = factory(connections=1)
    server.connectionOpened(server.buildProtocol(None), "a")
    with capturedLogs() as lines:
        for _ in range(313):
            assert turned_away(server.buildProtocol(None))
        server.clock.advance(60)
    assert [formatEvent(line) for line in lines] == [
        "test: a connection was refused: connections is 1 (--limit connections=NUMBER changes it)",
        "test: limit connections: … and 312 more like it within 60 s (312 refused)",
    ]
    assert server.counters["turned_away:connections"] == 313
    [limit] = re.findall(r"--limit ([a-z]+)=NUMBER changes it", formatEvent(lines[0]))
    server = factory(**{limit: 314})
    with capturedLogs() as lines:
        assert all(server.buildProtocol(None) for _ in range(314))
    assert not lines


class Silent:
    """A connection whose peer said nothing since the clock began."""

    lastHeard = 0.0
    owes = False
    peer = "198.51.100.1:1"
    gone = False

    @property
    def link(self):
        return self

    def displace(self):
        self.gone = True


class CountedConnections(dict):
    """Live connections that count how often all of them are looked at."""

    scans = 0

    def items(self):
        self.scans += 1
        return super().items()


CROWD, OTHER = "198.51.100.1", "192.0.2.7"


def test_a_search_for_room_in_vain_is_made_once_a_second__NB_08():
    """NB-08: a search looks at every connection.  Newcomers of the group that has the most
    connections displace nobody, and where nobody is silent no newcomer does.
    """
    server = factory(connections=10)
    server.liveConnections = connections = CountedConnections()
    for _ in range(9):
        server.connectionOpened(Silent(), CROWD)
    for last in range(1, 100):
        assert server.buildProtocol(IPv4Address("TCP", f"192.0.2.{last}", 1)) is not None
    assert connections.scans == 1
    for seconds, host, scans in ((1, OTHER, 2), (60, CROWD, 3)):
        server.clock.advance(seconds)
        for _ in range(100):
            assert server.buildProtocol(IPv4Address("TCP", host, 1)) is not None
        assert connections.scans == scans
    assert server.buildProtocol(IPv4Address("TCP", OTHER, 1)) is not None, "it is not locked out"
    assert sum(connection.gone for connection in connections) == 1


@pytest.mark.parametrize(
    ("sessions", "upgrading", "displaced"),
    [
        ({CROWD: 4, OTHER: 3, "203.0.113.1": 2}, {}, 0),
        ({CROWD: 5, OTHER: 3, "203.0.113.1": 1}, {}, 1),
        ({CROWD: 3}, {OTHER: 6}, 0),  # a crowd that never upgrades to WebSocket has places
        ({CROWD: 7}, {OTHER: 2}, 1),
    ],
)
def test_a_newcomer_displaces_only_those_of_a_group_larger_than_its_own_with_it__NB_08(
    sessions, upgrading, displaced
):
    """NB-08: else two groups would displace one another in turn."""
    server = factory(connections=10)
    for host, count in sessions.items():
        for _ in range(count):
            server.connectionOpened(Silent(), host)
    for host, count in upgrading.items():
        for _ in range(count):
            server.addressTaken(host)
    server.clock.advance(60)
    assert server.buildProtocol(IPv4Address("TCP", OTHER, 1)) is not None
    gone = [server.liveConnections[one] for one in server.liveConnections if one.gone]
    assert gone == [CROWD] * displaced


def test_connections_of_one_address_are_bounded_by_option():
    server = factory(connections_per_address=1)
    here, there = IPv4Address("TCP", "192.0.2.1", 1), IPv4Address("TCP", "192.0.2.2", 1)
    first = server.buildProtocol(here)
    server.connectionOpened(first, here.host)
    assert turned_away(server.buildProtocol(here))
    assert server.buildProtocol(there) is not None
    assert server.counters["turned_away:connections-per-address"] == 1
    server.connectionClosed(first)
    server.connectionClosed(first)
    assert server.buildProtocol(here) is not None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SSL.SysCallError(104, "ECONNRESET"), "ECONNRESET"),
        (SSL.Error([("SSL routines", "", "bad certificate")]), "bad certificate"),
        (SSL.Error([]), "the connection ended in the middle of it"),
        (SSL.ZeroReturnError(), "the connection ended in the middle of it"),
    ],
)
def test_a_connection_which_tls_ended_is_told_and_forgotten_whatever_the_error_holds(error, text):
    """LJ-16: else it would count as live for ever, and a server which stops would wait for it."""
    server = factory(connections=1)
    protocol = server.buildProtocol(None)
    protocol.makeConnection(StringTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 1)))
    server.connectionOpened(protocol, "192.0.2.1")
    with capturedLogs() as lines:
        server.connectionClosed(protocol, Failure(error))
    assert [line["text"] for line in lines] == [text]
    assert server.counters["fault:tls"] == 1
    assert not server.liveConnections


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("mtls:0:privateKey=k", "mtls:192.0.2.1:80"),
        ("ssl:0", "ssl:192.0.2.1:80"),
        ("haproxy:ssl:0", "ssl:192.0.2.1:80"),
        ("tcp:0", "tcp:192.0.2.1:80"),
        ("", "tcp:192.0.2.1:80"),
    ],
)
def test_an_endpoint_of_tls_is_announced_by_its_own_name__NB_13(description, name):
    assert address_name(IPv4Address("TCP", "192.0.2.1", 80), description) == name


@pytest.mark.parametrize(("name", "shown"), [(None, "unix"), (b"s\n\xff", "s\\n\ufffd")])
def test_a_peer_on_a_unix_socket_is_named_in_one_line(name: Any, shown: str) -> None:
    assert peer_name(UNIXAddress(name)) == shown


def test_how_slow_input_is_follows_from_cpu_time_on_a_real_reactor__NB_07():
    """NB-07: a busy machine is no reason to read less of a peer at a time."""
    from twisted.internet import reactor

    made = factory()
    made.clock.advance(3)
    assert made.spent() == 3
    assert type(made)(None, clock=reactor).spent is time.thread_time


# ── behind a proxy (haproxy ─────────────────────────────────────────────────────────────────────


PROXY = IPv4Address("TCP", "192.0.2.1", 4242)
EVENT = encode_window(1) + encode_json([1], [b"{}"])
JUNK = b"\0" * 100


class Served:
    """A server behind a proxy, as a gateway listens."""

    listening: Any = staticmethod(ServedEndpoint)

    def __init__(self, factory: Any) -> None:
        reactor = MemoryReactor()
        self.listening(reactor, "haproxy:tcp:5044").listen(factory)
        self.outer = reactor.tcpServers[0][1]

    def receives(self, *reads: bytes) -> Any:
        """The transport of a connection that reads these bytes."""
        connection = self.outer.buildProtocol(PROXY)
        transport: Any = StringTransportWithDisconnection(peerAddress=PROXY)
        transport.protocol = connection
        connection.makeConnection(transport)
        for octets in reads:
            if transport.connected:
                connection.dataReceived(octets)
        return transport


class Balancer(Served):
    """A proxy in front of a Lumberjack server that listens on Twisted's own endpoint."""

    listening = staticmethod(serverFromString)

    def __init__(self, **limits: int) -> None:
        self.sink = SafeSink()
        changes = {name.replace("_", "-"): value for name, value in limits.items()}
        self.factory = LumberjackServerFactory(self.sink, clock=Clock(), limits=changes)
        super().__init__(self.factory)

    def connection(self, host: str, nbytes: bytes, family: str = "TCP4") -> Any:
        """The transport of a connection for the client at ``host``, and what it sends."""
        return self.receives(f"PROXY {family} {host} {host} 1 2\r\n".encode(), nbytes)

    @property
    def hosts(self) -> list[str]:
        return list(self.factory.liveConnections.values())


def test_what_is_stored_and_logged_names_the_client_behind_the_proxy__NB_09() -> None:
    """NB-09: its faults are summed up for its own address, and its rows have it."""
    balancer = Balancer()
    balancer.connection("198.51.100.1", EVENT)
    assert [batch.peer for batch in balancer.sink.batches] == ["198.51.100.1:1"]
    assert balancer.hosts == ["198.51.100.1"]
    with capturedLogs() as logged:
        for _ in range(9):
            balancer.connection("198.51.100.2", JUNK)
        balancer.connection("2001:db8::1", JUNK, "TCP6")
    lines = [formatEvent(event) or "" for event in logged]
    assert len(lines) == 6
    assert lines[0].startswith("198.51.100.2:1: closed without ack: version")
    assert lines[-1].startswith("[2001:db8::1]:1: closed without ack: version")


def test_the_limit_of_an_address_is_for_the_client_behind_the_proxy__NB_08() -> None:
    """NB-08: one client cannot take the proxy's places, and others come in."""
    balancer = Balancer(connections_per_address=2)
    first, second, third = (balancer.connection("198.51.100.1", EVENT) for _ in range(3))
    assert not third.connected
    assert balancer.factory.counters["turned_away:connections-per-address"] == 1
    for last in range(2, 9):
        assert balancer.connection(f"198.51.100.{last}", EVENT).connected
    assert len(balancer.sink.batches) == 9
    first.abortConnection()
    second.abortConnection()
    assert balancer.connection("198.51.100.1", EVENT).connected
    assert balancer.hosts.count("198.51.100.1") == 1


@pytest.mark.parametrize("kind", [SabcServerFactory, UmqServerFactory])
def test_the_limit_of_an_address_holds_on_websocket_too__NB_08(kind: Any) -> None:
    """One client behind the proxy had all connections."""
    sessions = kind(clock=Clock(), limits={"connections-per-address": 2})
    served = Served(sessions.webSocketFactory() if kind is SabcServerFactory else sessions)
    header = "PROXY TCP4 198.51.100.{} 198.51.100.2 1 2\r\n"
    for last, status in ((1, b"101"), (1, b"101"), (1, b"503"), (2, b"101")):
        transport = served.receives(header.format(last).encode() + UPGRADE % b"")
        assert transport.value().split()[1] == status
    assert sessions.counters["turned_away:connections-per-address"] == 1
    assert sorted(sessions.liveConnections.values()) == [f"198.51.100.{n}" for n in (1, 1, 2)]


@pytest.mark.parametrize("header", ["TCP4 198.51.100.{} 198.51.100.{} 1 2", "UNKNOWN"])
@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (LumberjackServerFactory, b"2"),
        (MicroMsg2ServerFactory, b"M"),
        (SabcServerFactory, b"C"),
        (lambda **given: SabcServerFactory(**given).webSocketFactory(), UPGRADE % b""),
        (UmqServerFactory, UPGRADE % b""),
    ],
)
def test_who_waits_for_its_header_takes_no_place_of_the_proxys_address__NB_08(
    kind: Any, first: bytes, header: str
) -> None:
    """A proxy that connects all its clients at once had most of them refused."""
    served = Served(kind(clock=Clock(), limits={"connections-per-address": 2}))
    waiting = [served.receives() for _ in range(9)]
    for last, transport in enumerate(waiting):
        begin = f"PROXY {header}\r\n".format(last, last).encode()
        transport.protocol.dataReceived(begin + first)
    closed = [not one.connected or b" 503 " in one.value() for one in waiting]
    assert sum(closed) == (7 if header == "UNKNOWN" else 0)


def test_who_says_nothing_behind_the_proxy_is_named__NB_09() -> None:
    """It has a time for its hand-shake; the line had named the proxy."""
    server = MicroMsg2ServerFactory(clock=Clock())
    with capturedLogs() as logged:
        Served(server).receives(b"PROXY TCP4 198.51.100.1 198.51.100.2 1 2\r\n")
        server.clock.advance(60)
    assert [formatEvent(line)[:16] for line in logged] == ["198.51.100.1:1: "]


@pytest.mark.parametrize(
    "header", ["UNKNOWN x", "TCP4 a\x1b[31m a 1 2", "TCP6 fe80::1%\x1b[31m a 1 2"]
)
def test_what_a_proxy_says_is_believed_only_if_it_is_an_address__NB_09(header: str) -> None:
    """NB-09: it goes into the log."""
    balancer = Balancer()
    balancer.receives(f"PROXY {header}\r\n".encode() + EVENT)
    assert [batch.peer for batch in balancer.sink.batches] == ["192.0.2.1:4242"]
    assert balancer.hosts == ["192.0.2.1"]


SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"

NO_HEADERS = [
    (b"2W\0\0\0\1",),
    (b"PROXY TCP4 a b c d\r\n",),
    (b"PROXY TCP4 192.0.2.9 192.0.2.1 1\r\n",),
    (b"PROXY TCP4 \xff 192.0.2.1 1 2\r\n",),
    (b"PROXY TCP4 192.0.2.9 192.0.2.1 65536 2\r\n",),
    (b"PROXY TCP9 a b 1 2\r\n",),
    (b"PROXY TC", b"P4 a b c d\r\n"),
    (b"PROXY " + b"x" * 300,),
    (SIGNATURE + b"\x21\x11\0\4abcd",),
]


@pytest.mark.parametrize("reads", NO_HEADERS)
def test_a_connection_that_begins_otherwise_is_a_fault_and_no_traceback__NB_09(
    reads: tuple[bytes, ...],
) -> None:
    """NB-09: Twisted's reader of the PROXY protocol raises ValueError for some of them."""
    lumberjack, umq, sabc = (
        kind(clock=Clock())
        for kind in (LumberjackServerFactory, UmqServerFactory, SabcServerFactory)
    )
    for sessions, factory in (
        (lumberjack, lumberjack),
        (umq, umq),
        (sabc, sabc.webSocketFactory()),
    ):
        served = Served(factory)
        with capturedLogs() as logged:
            transports = [served.receives(*reads) for _ in range(9)]
        assert not any(transport.connected for transport in transports)
        assert sessions.counters["fault:proxy"] == 9
        lines = [formatEvent(event) or "" for event in logged]
        assert len(lines) == 5, lines
        assert lines[0].startswith("192.0.2.1:4242: closed: it does not begin as a proxy does")


def binary(extra: int) -> bytes:
    """The beginning of a binary header for 192.0.2.9, with ``extra`` bytes of extensions."""
    addresses = bytes([192, 0, 2, 9, 192, 0, 2, 1, 0, 1, 0, 2])
    return SIGNATURE + b"\x21\x11" + (len(addresses) + extra).to_bytes(2, "big") + addresses


LARGEST = (16 << 10) - len(binary(0))


def test_a_header_of_more_than_16_kib_is_refused_before_it_is_here__NB_02() -> None:
    """NB-02: up to 64 KiB of each connection waited for the rest of the header, uncounted."""
    factory = LumberjackServerFactory(clock=Clock())
    served = Served(factory)
    assert not served.receives(binary(LARGEST + 1)).connected
    assert not served.receives(binary(60_000) + bytes(60_000)).connected
    assert factory.counters["fault:proxy"] == 2
    good = served.receives(b"PROXY TCP4 192.0.2.9 192.0.2.1 1 2\r\n" + EVENT)
    assert good.connected


@pytest.mark.parametrize("extra", [0, 4000, LARGEST])
def test_a_header_with_extensions_is_read_and_not_kept__NB_02(extra: int) -> None:
    """NB-02: what a proxy tells of a client, such as its certificate, is not looked at."""
    sink = SafeSink()
    served = Served(LumberjackServerFactory(sink, clock=Clock()))
    transport = served.receives(binary(extra) + bytes(extra // 2), bytes(extra - extra // 2), EVENT)
    assert transport.connected
    assert [batch.peer for batch in sink.batches] == ["192.0.2.9:1"]
    for at in range(1, len(binary(0))):  # wherever a read ends
        assert served.receives(binary(0)[:at], binary(0)[at:] + EVENT).connected


def test_a_fault_of_the_server_is_not_the_proxys() -> None:
    class Broken(Protocol):
        def dataReceived(self, data: bytes) -> None:
            raise ZeroDivisionError

    factory = ServerFactory.forProtocol(Broken)  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        Served(factory).receives(b"PROXY TCP4 192.0.2.9 192.0.2.1 1 2\r\nx")


# ── the end of a process ────────────────────────────────────────────────────────────────────────


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
