"""What an idle session weighs: ten thousand of each kind have to fit (NB-11).

Each kind is weighed in a process of its own (``python -m tests.contract.test_idle_weight KIND``):
an instance's dict is larger in a process in which others of its class have had more attributes.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from tests.micromsg2.streams import handshake
from tests.mtl.broker import Broker
from tests.tools.processes import Launcher
from twisted_msgproto.lumberjack import LumberjackServerFactory
from twisted_msgproto.micromsg2 import MicroMsg2ServerFactory
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.umq.service import DefaultServerFactory

SESSIONS = 40
PEER = IPv4Address("TCP", "192.0.2.1", 40000)

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CONNECT = b"CONNECT\r\nclient-id::me\r\n\r\n"


def masked(opcode: int, payload: bytes) -> bytes:
    return bytes((0x80 | opcode, 0x80 | len(payload))) + bytes(4) + payload


class Kind(NamedTuple):
    """One kind of session.

    ``bytes_max``: what one may weigh, with its StringTransport and its timers, as of Python 3.11
    and a tenth more.  It is lowered when a session becomes lighter, and never raised.
    """

    name: str
    factory: Callable[[Any], Any]
    reads: tuple[bytes, ...]
    bytes_max: int


KINDS = (
    Kind("lumberjack", lambda clock: LumberjackServerFactory(clock=clock), (), 4_000),
    Kind(
        "micromsg2",
        lambda clock: MicroMsg2ServerFactory(clock=clock),
        (handshake(""), handshake("")),
        4_820,
    ),
    Kind("sabc", lambda clock: SabcServerFactory(clock=clock), (CONNECT,), 5_300),
    Kind(
        "sabc-ws",
        lambda clock: SabcServerFactory(clock=clock).webSocketFactory(),
        (UPGRADE, masked(2, CONNECT)),
        9_160,
    ),
    Kind(
        "umq", lambda clock: DefaultServerFactory(clock=clock), (UPGRADE, masked(1, b"H1:")), 9_250
    ),
)


def weight(make: Callable[[], object], count: int = SESSIONS) -> float:
    """How many bytes one of the things weighs that ``make`` makes."""
    kept = [make() for _ in range(5)]  # what all share is made now
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept += [make() for _ in range(count)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / count


def weight_of(kind: Kind) -> float:
    factory = kind.factory(Clock())

    def session() -> object:
        transport = StringTransport(peerAddress=PEER)
        protocol = factory.buildProtocol(PEER)
        protocol.makeConnection(transport)
        for octets in kind.reads:
            protocol.dataReceived(octets)
        assert not transport.disconnecting
        transport.clear()
        return protocol

    made: Any = session()
    standing = made if isinstance(made.session, str) else made.session
    assert standing.established
    return weight(session)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_idle_session_is_light_NB_11(launch: Launcher, kind: Kind) -> None:
    """NB-11"""
    ended = launch.run(kind.name, module="tests.contract.test_idle_weight")
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) <= kind.bytes_max


def test_an_idle_session_of_mtl_is_light_NB_11() -> None:
    """Its machine's part: libzmq's own is not Python's."""
    broker = Broker()
    assert weight(broker.session) <= 1_200
    assert len(broker.server.sessions()) == SESSIONS + 5


if __name__ == "__main__":
    print(next(weight_of(kind) for kind in KINDS if kind.name == sys.argv[1]))
