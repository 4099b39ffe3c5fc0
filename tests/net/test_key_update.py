"""A peer of TLS 1.3 may change its keys at any time: OpenSSL's own client does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet import ssl
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.protocol import Factory, ProcessProtocol, Protocol
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority
from twisted_msgproto.net.tls import tls_with

reactor: Any = installed

KEEPS, ASKS = b"k\n", b"K\n"
"""Lines for s_client: change my keys, or change mine and have the server change its own."""


class Echo(Protocol):
    """Answers whatever comes."""

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(b"you said " + data)


class Client(ProcessProtocol):
    """Keeps what s_client prints: what it received, and each message of the handshake."""

    def __init__(self) -> None:
        self.printed = b""
        self._wanted: tuple[bytes, int, Deferred[None]] | None = None
        self.ended: Deferred[None] = Deferred()

    def outReceived(self, data: bytes) -> None:
        self.printed += data
        if self._wanted is not None:
            text, times, seen = self._wanted
            if self.printed.count(text) >= times:
                self._wanted = None
                seen.callback(None)

    errReceived = outReceived

    def prints(self, text: bytes, times: int = 1) -> Deferred[None]:
        """Wait until this was printed so often."""
        seen: Deferred[None] = Deferred()
        self._wanted = text, times, seen
        self.outReceived(b"")
        return seen

    def processEnded(self, reason: Any) -> None:
        self.ended.callback(None)


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the command openssl: apt-get install openssl"
)
class KeyUpdate(TestCase):
    """A server and ``openssl s_client``."""

    timeout = 60

    @inlineCallbacks
    def test_a_client_that_changes_its_keys_is_heard_and_answered__NB_11(self) -> Any:
        directory = Path(self.mktemp())
        directory.mkdir()
        files = Authority(directory).server()
        pem = files.key.read_bytes() + files.cert.read_bytes()
        options = ssl.PrivateCertificate.loadPEM(pem).options()
        echo = Factory.forProtocol(Echo)
        port = reactor.listenTCP(0, tls_with(options, echo), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        client = Client()
        words = ("openssl", "s_client", "-connect", f"127.0.0.1:{port.getHost().port}")
        transport = reactor.spawnProcess(
            client, shutil.which("openssl"), (*words, "-tls1_3", "-brief", "-msg"), env=None
        )
        updates = 0
        for number, (change, ours, theirs) in enumerate(
            [(b"", 0, 0), (KEEPS, 1, 0), (ASKS, 1, 1), (ASKS, 1, 1), (KEEPS, 1, 0)]
        ):
            if change:
                transport.write(change)
                yield client.prints(b"KEYUPDATE\n", number)
            transport.write(b"line %d\n" % number)
            yield client.prints(b"you said line %d\n" % number)
            updates += ours + theirs
            self.assertEqual(client.printed.count(b", KeyUpdate"), updates)
        self.assertEqual(
            client.printed.count(b"<<< TLS 1.3, Handshake [length 0005], KeyUpdate"), 2
        )
        transport.write(b"Q\n")
        yield client.ended
