"""A read that is one record of TLS: it is decrypted by one call, as an idle peer's pongs are."""

from __future__ import annotations

import ssl as standard_ssl
from collections.abc import Iterator
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet import ssl
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.doubles import TlsClient
from tests.tools.certificates import Authority
from twisted_msgproto.net.tls import tls_with

RECORD_OCTETS = 16 << 10


class Reader(Protocol):
    """Notes what comes."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.came.append(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason


class Noted:
    """Stands before OpenSSL's connection, and notes what it is asked."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.handle, name)


class Ends(TlsClient):
    """A server's end over TLS, without sockets, and its client."""

    def __init__(self, factory: Any, latest: standard_ssl.TLSVersion) -> None:
        self.clock = factory._clock = Clock()
        super().__init__(factory.buildProtocol(None), StringTransport(), latest)
        self.reader: Reader = self.server.wrappedProtocol
        self.handle = self.server._tlsConnection = Noted(self.server._tlsConnection)


@pytest.fixture(params=[standard_ssl.TLSVersion.TLSv1_2, standard_ssl.TLSVersion.TLSv1_3])
def ends(tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[Ends]:
    files = Authority(tmp_path).server()
    pem = files.key.read_bytes() + files.cert.read_bytes()
    options = ssl.PrivateCertificate.loadPEM(pem).options()
    return Ends(tls_with(options, Factory.forProtocol(Reader)), request.param)


@pytest.mark.parametrize("size", [1, 16, RECORD_OCTETS - 100])
def test_one_record_needs_one_call_to_be_decrypted__NB_11(ends: Ends, size: int) -> None:
    piece = bytes([7]) * size
    ends.server.dataReceived(ends.records(piece))
    assert ends.reader.came == [piece]
    assert ends.handle.asked == ["bio_write", "recv"]
    ends.server.dataReceived(ends.records(b"next"))
    assert ends.reader.came == [piece, b"next"]


def test_a_record_in_two_reads_and_two_records_in_one_arrive_whole__NB_11(ends: Ends) -> None:
    octets = ends.records(b"one", b"two", b"three")
    second = len(ends.records(b"one"))
    for data in (octets[:3], octets[3:second], octets[second:-1], octets[-1:]):
        ends.server.dataReceived(data)
    assert b"".join(ends.reader.came) == b"onetwothree"


def test_an_answer_of_openssl_to_a_record_leaves_at_once__NB_11(ends: Ends) -> None:
    """A record without octets of the application, such as an update of keys, may be answered."""

    class Answers(Noted):
        def recv(self, octets: int) -> bytes:
            raise SSL.WantReadError

        def bio_read(self, octets: int) -> bytes:
            return b"an answer"

    ends.take()
    ends.server._tlsConnection = Answers(ends.handle)
    ends.server.dataReceived(ends.records(b"x"))
    assert ends.transport.value() == b"an answer"
    assert ends.reader.came == []
    assert not ends.transport.disconnecting


def test_a_record_that_says_the_end_is_answered_and_ends_the_connection__NB_11(ends: Ends) -> None:
    with pytest.raises(standard_ssl.SSLWantReadError):
        ends.tls.unwrap()
    ends.server.dataReceived(ends.outgoing.read())
    ends.take()
    ends.tls.unwrap()  # it needs the server's close_notify
    assert ends.transport.disconnecting


def test_a_broken_record_ends_the_connection_with_its_reason__NB_11(ends: Ends) -> None:
    octets = bytearray(ends.records(b"to be broken"))
    octets[-1] ^= 1
    more = ends.records(b"more")
    ends.server.dataReceived(bytes(octets))
    assert ends.transport.disconnecting
    with pytest.raises(standard_ssl.SSLError, match=r"(?i)bad.record.mac"):
        ends.read()  # the alert
    ends.server.dataReceived(more)  # it reads on until its alert has left
    assert ends.reader.came == []
    ends.server.connectionLost(Failure(ConnectionError()))
    assert ends.reader.lost is not None
    assert ends.reader.lost.check(SSL.Error)
    assert "mac" in str(ends.reader.lost.value)


def test_nothing_is_delivered_after_an_abort__NB_11(ends: Ends) -> None:
    ends.server.abortConnection()
    ends.server.dataReceived(ends.records(b"late"))
    assert ends.reader.came == []


def test_what_is_written_now_stands_behind_what_was_gathered__NB_11(ends: Ends) -> None:
    ends.server.write(b"first,")
    ends.server.writeNow(b" then,")
    assert ends.read() == b"first, then,"
    ends.server.writeNow(b" at once,")
    assert ends.read() == b" at once,"
    ends.server.write(b" last")
    ends.clock.advance(0)
    assert ends.read() == b" last"
    assert ends.clock.getDelayedCalls() == []


def test_more_than_a_record_is_written_now_as_well__NB_11(ends: Ends) -> None:
    octets = bytes(range(256)) * (5 * RECORD_OCTETS // 256)
    ends.server.writeNow(octets)
    assert ends.read() == octets


def test_what_is_written_now_after_the_end_is_dropped__NB_11(ends: Ends) -> None:
    ends.server.loseConnection()
    ends.server.writeNow(b"late")
    ends.clock.advance(0)
    assert ends.read() == b""


def test_what_is_written_now_in_the_handshake_waits_for_its_end__NB_11(tmp_path: Any) -> None:
    class Early(Reader):
        def connectionMade(self) -> None:
            transport: Any = self.transport
            transport.writeNow(b"one ")
            transport.writeNow(b"two")

    files = Authority(tmp_path).server()
    pem = files.key.read_bytes() + files.cert.read_bytes()
    options = ssl.PrivateCertificate.loadPEM(pem).options()
    ends = Ends(tls_with(options, Factory.forProtocol(Early)), standard_ssl.TLSVersion.TLSv1_3)
    ends.clock.advance(0)
    assert ends.read() == b"one two"
