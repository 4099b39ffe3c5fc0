"""TLS in memory: records, buffers, and what waits while it is paused."""

from __future__ import annotations

import ctypes
import gc
import ssl as standard_ssl
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import ssl
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import PrivateCertificate
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.doubles import TlsClient
from tests.tools.certificates import Authority
from tests.tools.small_link import MsgprotoServerFactoryOfLines, Sink
from twisted_msgproto.net import tls
from twisted_msgproto.net.tls import tls_with
from twisted_msgproto.net.turns import TurnWatch


class Reader(Protocol):
    """Notes what comes."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.came.append(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason


class Ends(TlsClient):
    """A server's end over TLS, without sockets, and its client."""

    def __init__(self, factory: Any, latest: standard_ssl.TLSVersion) -> None:
        self.clock = factory._clock = Clock()
        super().__init__(factory.buildProtocol(None), StringTransport(), latest)
        self.reader: Reader = self.server.wrappedProtocol


@pytest.fixture(params=[standard_ssl.TLSVersion.TLSv1_2, standard_ssl.TLSVersion.TLSv1_3])
def ends(tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[Ends]:
    files = Authority(tmp_path).server()
    pem = files.key.read_bytes() + files.cert.read_bytes()
    options = ssl.PrivateCertificate.loadPEM(pem).options()
    return Ends(tls_with(options, Factory.forProtocol(Reader)), request.param)


def test_a_record_in_two_reads_and_two_records_in_one_arrive_whole__NB_11(ends: Ends) -> None:
    octets = ends.records(b"one", b"two", b"three")
    second = len(ends.records(b"one"))
    for data in (octets[:3], octets[3:second], octets[second:-1], octets[-1:]):
        ends.server.dataReceived(data)
    assert b"".join(ends.reader.came) == b"onetwothree"


class Silent:
    """A producer, as every session registers one with its transport."""

    def stopProducing(self) -> None:
        """It has stopped."""


def test_what_is_written_and_aborted_in_one_turn_is_no_fault_of_tls(ends: Ends) -> None:
    ends.server.registerProducer(Silent(), True)
    ends.server.write(b"unsaid")
    ends.server.abortConnection()
    ends.clock.advance(0)
    assert ends.read() == b""
    ends.server.connectionLost(Failure(ConnectionAborted()))
    assert ends.reader.lost is not None
    assert ends.reader.lost.check(ConnectionAborted, ConnectionLost)


RECORDS, RECORD_SECONDS = 16, 0.0005
"""Each record is said to take so long: two pieces of 16, and one record more, fit into a turn."""


def test_records_of_one_byte_are_decrypted_in_many_turns_and_arrive_whole__NB_07(
    tmp_path: Path,
) -> None:
    """NB-07: 2,800 of them come with one read, which kept all others waiting for half a second."""
    sink = Sink()
    factory = MsgprotoServerFactoryOfLines(sink, clock=Clock())
    processed, taken = [0], list[float]()
    served = Served(tmp_path, factory)
    served.tls.spent = lambda: processed[0] * RECORD_SECONDS
    factory.turnWatch = TurnWatch(-1.0, lambda *told: taken.append(told[2]), lambda: processed[0])
    connection, encrypted = served.connection()
    server = connection.wrappedProtocol
    received = server.dataReceived

    def counted(data: bytes) -> None:
        processed[0] += 1
        received(data)

    server.dataReceived = counted
    line = b"x" * 2800
    connection.dataReceived(b"".join(encrypted(bytes([byte])) for byte in line + b"\n"))
    assert connection.transport.producerState == "paused"
    served.clock.advance(0)  # all turns that are due, of each of which the watch is told
    assert connection.transport.producerState == "producing"
    assert sink.bodies == [line]
    assert max(taken) <= 3 * RECORDS < sum(taken) == processed[0]
    assert len(taken) < processed[0] / RECORDS
    connection.connectionLost(Failure(ConnectionLost()))


# ── what tls keeps of a connection ──────────────────────────────────────────────────────────────


PEER = IPv4Address("TCP", "192.0.2.1", 4242)
READ = bytes(range(256)) * 240


class Allocated(ctypes.Structure):
    """What ``mallinfo2`` of glibc returns."""

    _fields_ = (
        ("others", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("former", ctypes.c_size_t * 2),
        ("used", ctypes.c_size_t),
        ("free", ctypes.c_size_t * 2),
    )


def allocated() -> int:
    """The bytes that C has allocated in this process."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Allocated
    told = mallinfo2()
    return int(told.used + told.mapped)


class Counted(Protocol):
    """Counts what came."""

    came = b""

    def dataReceived(self, data: bytes) -> None:
        self.came += data


class Line(StringTransport):
    """A connection in memory."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """No socket is behind this."""

    setTcpKeepAlive = setTcpNoDelay


class Served:
    """A server's endpoint with TLS, in memory."""

    def __init__(self, directory: Path, factory: Any = None) -> None:
        pair = Authority(directory).server()
        pem = pair.key.read_bytes() + pair.cert.read_bytes()
        factory = factory or Factory.forProtocol(Counted)
        self.tls = tls.tls_with(PrivateCertificate.loadPEM(pem).options(), factory)
        self.clock = self.tls._clock = getattr(factory, "clock", None) or Clock()
        self.tls.spent = self.clock.seconds

    def connection(self) -> tuple[Any, Any]:
        """A connection, and what encrypts bytes for it."""
        served: Any = self.tls.buildProtocol(PEER)
        transport = Line()
        return served, TlsClient(served, transport).records


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Two of its connections may have a large buffer."""
    monkeypatch.setattr(tls, "LARGE_BUFFERS", 2)
    return Served(tmp_path)


def test_who_once_sent_much_keeps_no_large_buffer_in_openssl__NB_02(served: Served) -> None:
    """NB-02: each kept 76 KB for as long as it was connected."""
    pairs = [served.connection() for _ in range(20)]
    reads = [encrypted(READ) for _, encrypted in pairs]
    before = allocated()
    for (connection, _), octets in zip(pairs, reads, strict=True):
        connection.dataReceived(octets)
        assert connection.wrappedProtocol.came == READ
        connection.wrappedProtocol.came = b""
    assert allocated() - before < 20 * 16_000
    assert list(served.tls.large) == [connection for connection, _ in pairs[-2:]]


def test_who_lost_a_large_buffer_is_served_on__NB_02(served: Served) -> None:
    """NB-02: also in the middle of a record, and the buffer is large again with the next read."""
    pairs = [served.connection() for _ in range(4)]
    half = len(READ) // 2
    for turn in range(3):
        reads = [encrypted(READ) for _, encrypted in pairs]
        for begin, end in ((0, half), (half, None)):
            for (connection, _), octets in zip(pairs, reads, strict=True):
                connection.dataReceived(octets[begin:end])
        for connection, _ in pairs:
            assert connection.wrappedProtocol.came == READ * (turn + 1)
    assert list(served.tls.large) == [connection for connection, _ in pairs[-2:]]


class Another:
    """A peer of any protocol, as the ledger sees it."""

    address = "192.0.2.2"
    reading = True

    def __init__(self) -> None:
        self.cut = False

    def holdBack(self, held_back: bool) -> None:
        """It has nothing to say to that."""

    def cutOff(self, nbytes: int, limit: float) -> None:
        self.cut = True


EVENT = b"x" * 999 + b"\n"


def paused(directory: Path) -> tuple[Served, Any, Any]:
    """A server of lines, a link that was paused within a read of 60 lines, and its TLS."""
    sink = Sink(held=True)
    factory = MsgprotoServerFactoryOfLines(sink, clock=Clock(), limits={"unsafe-bytes": 1})
    served = Served(directory, factory)
    return served, one_more(served), sink


def one_more(served: Served) -> Any:
    """One more link of that server, paused as the first one is."""
    connection, encrypted = served.connection()
    link = connection.wrappedProtocol.link
    connection.dataReceived(b"".join(encrypted(EVENT) for _ in range(60)))
    assert link.snapshot()["not_read_because"]
    return link


def test_what_waits_for_a_paused_connection_counts_for_the_process__NB_02(tmp_path: Path) -> None:
    """NB-02: 10,000 of them held up to 64 KiB each, and nobody counted that."""
    served, link, sink = paused(tmp_path)
    ledger = link.factory.shared.held
    assert 40_000 < ledger.held < 61 * len(EVENT) + 100
    while len(sink.bodies) < 60 or not link.reading:
        for waiting in sink.waiting:
            waiting.called or waiting.callback(None)
        served.clock.advance(0)
    assert sink.bodies == [EVENT[:-1]] * 60
    assert (ledger.held, link.wire.held) == (0, 0)
    link.transport.connectionLost()


def test_what_waits_for_a_turn_counts_if_it_is_paused_meanwhile__NB_02(served: Served) -> None:
    told: list[int] = []
    connection, encrypted = served.connection()
    connection.tellRest(told.append)
    served.tls.spent = count().__next__  # a turn is over soon
    connection.dataReceived(b"".join(encrypted(EVENT) for _ in range(60)))
    connection.pauseProducing()
    served.clock.advance(0)
    [rest] = told
    assert rest > 20_000


def test_whom_we_do_not_read_is_not_late_for_what_waits__NB_02(tmp_path: Path) -> None:
    """NB-02: the peer that stands still is cut off, and not the one that waits for our disk."""
    served, link, _ = paused(tmp_path)
    ledger = link.factory.shared.held
    ledger.limit = ledger.held + 100_000
    stands = Another()
    ledger.hold(stands, 1, served.clock.seconds())
    served.clock.advance(20)
    ledger.hold(Another(), 99_000, served.clock.seconds())
    assert (stands.cut, link.closeReason) == (True, None)
    link.transport.connectionLost()
    assert ledger.held == 99_000


def test_all_whom_the_disk_kept_waiting_go_on_though_memory_is_short__NB_02(tmp_path: Path) -> None:
    """NB-02: what waits for them is above three quarters of the limit, and nobody is cut off."""
    served, first, sink = paused(tmp_path)
    ledger = first.factory.shared.held
    ledger.limit = 8 * ledger.held + 1
    links = [first, *(one_more(served) for _ in range(7))]
    assert ledger.held > 0.75 * ledger.limit
    for _ in range(200):
        for waiting in sink.waiting:
            waiting.called or waiting.callback(None)
        served.clock.advance(0.1)
    assert len(sink.bodies) == 8 * 60
    assert ledger.held == 0
    for link in links:
        assert link.closeReason is None
        link.transport.connectionLost()
