"""What an idle session weighs: ten thousand of each kind have to fit (NB-11)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from tests.micromsg2.streams import handshake
from tests.mtl.broker import Broker
from twisted_msgproto.lumberjack import LumberjackServerFactory
from twisted_msgproto.micromsg2 import MicroMsg2ServerFactory
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.umq.service import DefaultServerFactory

SESSIONS = 40
BYTES_MAX = 12_000
"""A session weighs no more, with its StringTransport and its timers."""

PEER = IPv4Address("TCP", "192.0.2.1", 40000)

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CONNECT = b"CONNECT\r\nclient-id::me\r\n\r\n"


def masked(opcode: int, payload: bytes) -> bytes:
    return bytes((0x80 | opcode, 0x80 | len(payload))) + bytes(4) + payload


KINDS: dict[str, tuple[Callable[[Any], Any], tuple[bytes, ...]]] = {
    "lumberjack": (lambda clock: LumberjackServerFactory(clock=clock), ()),
    "micromsg2": (
        lambda clock: MicroMsg2ServerFactory(clock=clock),
        (handshake(""), handshake("")),
    ),
    "sabc": (lambda clock: SabcServerFactory(clock=clock), (CONNECT,)),
    "sabc-ws": (
        lambda clock: SabcServerFactory(clock=clock).webSocketFactory(),
        (UPGRADE, masked(2, CONNECT)),
    ),
    "umq": (lambda clock: DefaultServerFactory(clock=clock), (UPGRADE, masked(1, b"H1:"))),
}
"""How a server of each kind is made, and what a session of it reads until it stands."""


def weight(make: Callable[[], object], count: int = SESSIONS) -> float:
    """How many bytes one of the things weighs that ``make`` makes."""
    kept = [make() for _ in range(5)]  # what all share is made now
    gc.collect()
    gc.freeze()  # what other tests have left takes half a second of each collection
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept += [make() for _ in range(count)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / count


@pytest.mark.parametrize("name", KINDS)
def test_an_idle_session_is_light_NB_11(name: str) -> None:
    """NB-11"""
    make, reads = KINDS[name]
    factory = make(Clock())

    def session() -> object:
        transport = StringTransport(peerAddress=PEER)
        protocol = factory.buildProtocol(PEER)
        protocol.makeConnection(transport)
        for octets in reads:
            protocol.dataReceived(octets)
        assert not transport.disconnecting
        transport.clear()
        return protocol

    made: Any = session()
    standing = made if isinstance(made.session, str) else made.session
    assert standing.established
    assert weight(session) <= BYTES_MAX


def test_an_idle_session_of_mtl_is_light_NB_11() -> None:
    """Its machine's part: libzmq's own is not Python's."""
    broker = Broker()
    assert weight(broker.session) <= BYTES_MAX
    assert len(broker.server.sessions()) == SESSIONS + 5
