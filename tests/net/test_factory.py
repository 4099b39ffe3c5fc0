"""What all server factories share."""

import time

import pytest
from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.limits import Limit
from twisted_msgproto.net import MsgprotoServerFactory
from twisted_msgproto.net.gateway import address_name


class Factory(MsgprotoServerFactory):
    protocolName = "test"
    LIMITS = (Limit("size", 5, "octets", "for the test"),)
    protocol = Protocol


def factory(**limits):
    return Factory(
        limits={name.replace("_", "-"): value for name, value in limits.items()},
        clock=Clock(),
        wallClock=lambda: 0.0,
    )


def test_connections_are_bounded():
    server = factory(connections=1)
    server.connectionOpened(server.buildProtocol(None), "a")
    assert server.buildProtocol(None) is None
    assert server.counters["turned_away:connections"] == 1


def test_a_limit_that_is_met_is_said_once_a_minute_with_its_option__NB_08():
    """NB-08"""
    server = factory(connections=1)
    server.connectionOpened(server.buildProtocol(None), "a")
    with capturedLogs() as lines:
        for _ in range(313):
            assert server.buildProtocol(None) is None
        server.clock.advance(60)
    assert [formatEvent(line) for line in lines] == [
        "test: a connection was refused: connections is 1 (--limit connections=NUMBER changes it)",
        "test: limit connections: … and 312 more like it within 60 s (312 refused)",
    ]
    assert server.counters["turned_away:connections"] == 313


class Silent:
    """A connection whose peer said nothing since the clock began."""

    heard = 0.0
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


def test_a_search_for_room_in_vain_is_not_repeated_for_each_newcomer__NB_08():
    """NB-08: newcomers of the group that has the most connections displace nobody; the search for
    that looks at every connection, so it is made once a second.
    """
    server = factory(connections=10)
    server.liveConnections = connections = CountedConnections()
    largest, other = IPv4Address("TCP", "198.51.100.1", 1), IPv4Address("TCP", "192.0.2.7", 1)
    for _ in range(9):
        server.connectionOpened(Silent(), largest.host)
    server.clock.advance(61)
    for _ in range(100):
        assert server.buildProtocol(largest) is not None
    assert connections.scans == 1
    assert server.buildProtocol(other) is not None  # the crowd does not lock it out
    assert connections.scans == 2
    assert sum(connection.gone for connection in connections) == 1


def test_where_nobody_is_silent_newcomers_of_all_groups_share_one_search_a_second__NB_08():
    """NB-08"""
    server = factory(connections=10)
    server.liveConnections = connections = CountedConnections()
    for _ in range(9):
        server.connectionOpened(Silent(), "198.51.100.1")
    for last in range(1, 100):
        server.buildProtocol(IPv4Address("TCP", f"192.0.2.{last}", 1))
    assert connections.scans == 1
    server.clock.advance(1)
    server.buildProtocol(IPv4Address("TCP", "192.0.2.1", 1))
    assert connections.scans == 2


@pytest.mark.parametrize(("crowd", "displaced"), [(4, 0), (5, 1)])
def test_a_newcomer_displaces_only_those_of_a_group_larger_than_its_own_with_it__NB_08(
    crowd, displaced
):
    """NB-08: else two groups would displace one another in turn."""
    server = factory(connections=10)
    for _ in range(crowd):
        server.connectionOpened(Silent(), "198.51.100.1")
    for host in ["192.0.2.7"] * 3 + ["203.0.113.1"] * (6 - crowd):
        server.connectionOpened(Silent(), host)
    server.clock.advance(61)
    assert server.buildProtocol(IPv4Address("TCP", "192.0.2.7", 1)) is not None
    assert sum(connection.gone for connection in server.liveConnections) == displaced


def test_connections_without_a_session_displace_those_of_no_smaller_group__NB_08():
    """NB-08: a crowd that never upgrades to WebSocket has places, so its group is the largest."""
    server = factory(connections=10)
    for _ in range(3):
        server.connectionOpened(Silent(), "198.51.100.1")
    for _ in range(6):
        server.addressTaken("192.0.2.7")
    server.clock.advance(61)
    assert server.buildProtocol(IPv4Address("TCP", "192.0.2.7", 1)) is not None
    assert not any(connection.gone for connection in server.liveConnections)
    for _ in range(4):
        server.addressFreed("192.0.2.7")
    for _ in range(4):
        server.connectionOpened(Silent(), "198.51.100.1")
    server.clock.advance(61)
    assert server.buildProtocol(IPv4Address("TCP", "192.0.2.7", 1)) is not None
    assert sum(connection.gone for connection in server.liveConnections) == 1


def test_connections_of_one_address_are_bounded_by_option():
    server = factory(connections_per_address=1)
    here, there = IPv4Address("TCP", "192.0.2.1", 1), IPv4Address("TCP", "192.0.2.2", 1)
    first = server.buildProtocol(here)
    server.connectionOpened(first, here.host)
    assert server.buildProtocol(here) is None
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


def test_limits_of_the_protocol_and_common_ones_can_be_changed_others_not():
    assert factory(size=7, handshake=1).limits["size"] == 7
    with pytest.raises(ConfigurationError, match="unknown limit 'sizes'"):
        factory(sizes=7)


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


def test_how_slow_input_is_follows_from_cpu_time_on_a_real_reactor__NB_07():
    """NB-07: a busy machine is no reason to read less of a peer at a time."""
    from twisted.internet import reactor

    made = factory()
    made.clock.advance(3)
    assert made.spent() == 3
    assert type(made)(None, clock=reactor).spent is time.thread_time
