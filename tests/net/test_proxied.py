"""Behind a proxy (``haproxy:`` endpoints) a connection is its client's, and not the proxy's."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactor, StringTransportWithDisconnection
from twisted.logger import capturedLogs, formatEvent

from tests.tools.sinks import SafeSink
from twisted_msgproto.lumberjack import LumberjackServerFactory
from twisted_msgproto.lumberjack.wire import encode_json, encode_window

PROXY = IPv4Address("TCP", "192.0.2.1", 4242)
EVENT = encode_window(1) + encode_json([1], [b"{}"])
JUNK = b"\0" * 100


class Balancer:
    """A proxy in front of a Lumberjack server; all its connections come from one address."""

    def __init__(self, **limits: int) -> None:
        self.sink = SafeSink()
        changes = {name.replace("_", "-"): value for name, value in limits.items()}
        self.factory = LumberjackServerFactory(self.sink, clock=Clock(), limits=changes)
        reactor = MemoryReactor()
        serverFromString(reactor, "haproxy:tcp:5044").listen(self.factory)
        self._wrapping = reactor.tcpServers[0][1]

    def connection(self, host: str, octets: bytes = b"", family: str = "TCP4") -> Any:
        """A connection for the client at ``host``, and what it sends."""
        wrapper = self._wrapping.buildProtocol(PROXY)
        transport: Any = StringTransportWithDisconnection(peerAddress=PROXY)
        transport.protocol = wrapper
        wrapper.makeConnection(transport)
        wrapper.dataReceived(f"PROXY {family} {host} {host} 1 2\r\n".encode())
        link = wrapper.wrappedProtocol
        if octets:
            wrapper.dataReceived(octets)
        return link, transport

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
    first, _ = balancer.connection("198.51.100.1", EVENT)
    second, _ = balancer.connection("198.51.100.1", EVENT)
    refused, third = balancer.connection("198.51.100.1", EVENT)
    assert not third.connected
    assert "its address has too many connections" in str(refused.ending)
    assert balancer.factory.counters["turned_away:connections-per-address"] == 1
    for last in range(2, 9):
        _, other = balancer.connection(f"198.51.100.{last}", EVENT)
        assert other.connected
    assert len(balancer.sink.batches) == 9
    first.transport.abortConnection()
    second.transport.abortConnection()
    _, fourth = balancer.connection("198.51.100.1", EVENT)
    assert fourth.connected
    assert balancer.hosts.count("198.51.100.1") == 1


def test_whose_connection_it_is_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    balancer = Balancer()
    asked: list[str] = []
    monkeypatch.setattr(balancer.factory, "addressKnown", lambda link, host: not asked.append(host))
    link, transport = balancer.connection("198.51.100.1", EVENT)
    transport.protocol.dataReceived(EVENT)
    link.dataReceived(b"")
    assert asked == ["198.51.100.1"]


@pytest.mark.parametrize(
    "header", ["UNKNOWN x", "TCP4 a\x1b[31m a 1 2", "TCP6 fe80::1%\x1b[31m a 1 2"]
)
def test_what_a_proxy_says_is_believed_only_if_it_is_an_address__NB_09(header: str) -> None:
    """NB-09: it goes into the log."""
    balancer = Balancer()
    wrapper = balancer._wrapping.buildProtocol(PROXY)
    wrapper.makeConnection(StringTransportWithDisconnection(peerAddress=PROXY))
    wrapper.dataReceived(f"PROXY {header}\r\n".encode() + EVENT)
    assert [batch.peer for batch in balancer.sink.batches] == ["192.0.2.1:4242"]
    assert balancer.hosts == ["192.0.2.1"]
