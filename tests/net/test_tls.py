"""Byte streams on real TLS: what ends them, and what a turn processes."""

from __future__ import annotations

import re
import socket
import ssl as standard_ssl
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization
from OpenSSL import SSL
from twisted.internet import reactor as installed
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    SSL4ClientEndpoint,
    serverFromString,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock, deferLater
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from tests.doubles import temporary
from tests.tools.certificates import Authority
from tests.tools.processes import Launcher
from tests.tools.sslyze import CERTIFICATE, needs_sslyze, scanned
from twisted_msgproto import lumberjack, umq
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.lumberjack import (
    LumberjackServer,
    LumberjackServerFactory,
    encode_json,
    encode_window,
)
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ServerFactory
from twisted_msgproto.net.clients.client_endpoints import client_endpoint
from twisted_msgproto.net.clients.command_types import ConnectOptions
from twisted_msgproto.net.endpoints import ServedEndpoint
from twisted_msgproto.queue import QueueWriter
from twisted_msgproto.testing import SafeSink

reactor: Any = installed


class Writer(Protocol):
    """A client which sends one event, and tells what came back when the connection ends."""

    def __init__(self) -> None:
        self.came = b""
        self.ended: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(encode_window(1) + encode_json([1], [b"{}"]))

    def dataReceived(self, data: bytes) -> None:
        self.came += data

    def connectionLost(self, reason: Any) -> None:
        self.ended.callback(self.came)


class Ends(TestCase):
    timeout = 60

    async def ended(self, end: Any, clock: Any = reactor) -> bytes:
        """What a client receives of a server whose hook calls ``end(server)``."""
        lost: Deferred[None] = Deferred()

        class Server(LumberjackServer):
            def messageReceived(self, message: Any) -> None:
                end(self)

            def sessionLost(self, reason: Any) -> None:
                lost.callback(None)

        server = Authority(temporary(self)).server()
        factory = LumberjackServerFactory(SafeSink(), clock=clock)
        factory.protocol = Server
        where = f"ssl:0:interface=127.0.0.1:privateKey={server.key}:certKey={server.cert}"
        port = await serverFromString(reactor, where).listen(factory)
        self.addCleanup(port.stopListening)
        options = ssl.CertificateOptions(verify=False)
        client = SSL4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port, options)
        writer: Any = await client.connect(Factory.forProtocol(Writer))
        came: bytes = await writer.ended
        await lost
        self.assertEqual(len(factory.liveConnections), 0)
        return came

    async def test_what_a_hook_closes_ends_in_the_next_turn(self) -> None:
        clock = Clock()

        def end(server: Any) -> None:
            server.transport.loseConnection()
            reactor.callLater(0, clock.advance, 0)

        self.assertEqual(await self.ended(end, clock), b"2A\0\0\0\1")

    async def test_a_server_that_drains_ends_with_its_peer_and_not_with_its_limit(self) -> None:
        """It reads no events any more, but what ends TLS: the clock of the limit stands still."""
        came = await self.ended(lambda server: server.factory.drain(), Clock())
        self.assertEqual(came, b"2A\0\0\0\1")

    async def test_who_pauses_a_connection_that_ends_does_not_keep_it_from_ending(self) -> None:
        def end(server: Any) -> None:
            server.link.wire.close(False)
            server.link.wire.pauseProducing()

        await self.ended(end, Clock())

    async def test_a_client_that_closes_ends_with_its_server_and_not_with_its_limit(self) -> None:
        server = Authority(temporary(self)).server()
        where = f"ssl:0:interface=127.0.0.1:privateKey={server.key}:certKey={server.cert}"
        served = MicroMsg2ServerFactory(SafeSink(), clock=reactor)
        port = await serverFromString(reactor, where).listen(served)
        self.addCleanup(port.stopListening)
        options = ssl.CertificateOptions(verify=False)
        endpoint = SSL4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port, options)
        client: Any = await endpoint.connect(MicroMsg2ClientFactory(clock=Clock()))
        await client.whenEstablished()
        await client.close()
        await served.drain()


class Gathered(TestCase):
    """What is written over TLS leaves with the next turn, together, and is never more than fits."""

    timeout = 60

    async def client_of(self, protocol: type[Protocol]) -> Any:
        """The socket of a client over TLS of a server with this protocol."""
        files = Authority(temporary(self)).server()
        where = f"ssl:0:interface=127.0.0.1:privateKey={files.key}:certKey={files.cert}"
        port: Any = await ServedEndpoint(reactor, where).listen(Factory.forProtocol(protocol))
        self.addCleanup(port.stopListening)
        context = standard_ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, standard_ssl.CERT_NONE
        line = socket.create_connection(("127.0.0.1", port.getHost().port), timeout=60)
        client = await deferToThread(context.wrap_socket, line)
        self.addCleanup(client.close)
        return client

    async def connected(self) -> tuple[Any, Any]:
        """A server's end over TLS, and the socket of its client."""
        made: Deferred[Any] = Deferred()

        class Server(Protocol):
            def connectionMade(self) -> None:
                made.callback(self)

            def connectionLost(self, reason: Any = None) -> None:
                test.lost.callback(None)

        test, self.lost = self, Deferred[None]()
        client = await self.client_of(Server)
        await deferToThread(client.send, b"hello")
        return (await made).transport, client

    async def test_small_writes_of_a_turn_are_one_record_which_the_system_has_at_once__NB_11(
        self,
    ) -> None:
        transport, client = await self.connected()
        sent: list[int] = []
        raw = transport.transport
        write = raw.write
        raw.write = lambda octets: (sent.append(len(octets)), write(octets))
        started: list[object] = []
        raw.startWriting = lambda: started.append(None)  # the reactor would be asked
        for piece in (b"ping", b" and", b" pong"):
            transport.write(piece)
        self.assertEqual(sent, [])
        await deferLater(reactor, 0)
        self.assertEqual(len(sent), 1)
        self.assertEqual(started, [])
        self.assertEqual(await deferToThread(client.recv, 100), b"ping and pong")
        transport.abortConnection()
        await self.lost

    async def test_a_peer_that_reads_nothing_pauses_its_producer_and_gets_all_in_order(
        self,
    ) -> None:
        transport, client = await self.connected()
        paused: Deferred[None] = Deferred()
        told: list[str] = []

        class Producer:
            def pauseProducing(self) -> None:
                told.append("pause")
                if not paused.called:
                    paused.callback(None)

            def resumeProducing(self) -> None:
                told.append("resume")

            def stopProducing(self) -> None:
                pass

        transport.registerProducer(Producer(), True)
        piece, count = bytes(range(256)) * 200, 0
        while not told and count < 2000:
            transport.write(piece)
            count += 1
            await deferLater(reactor, 0)
        self.assertEqual(told, ["pause"])
        self.assertLess(count, 2000)
        transport.write(b"last")
        transport.unregisterProducer()
        transport.loseConnection()

        def all_of_it() -> bytes:
            came = b""
            while octets := client.recv(1 << 20):  # an end without close_notify would be an error
                came += octets
            client.unwrap()
            return came

        self.assertEqual(await deferToThread(all_of_it), piece * count + b"last")
        await self.lost


# ── what browsers offer ─────────────────────────────────────────────────────────────────────────


class Offers(TestCase):
    """Clients that offer names of protocols in the hand-shake (ALPN), as each browser does."""

    timeout = 60

    def described(self) -> list[str]:
        """An endpoint of each kind that speaks TLS."""
        home = temporary(self)
        files = Authority(home).server()
        directory = home / "names"
        directory.mkdir()
        both = files.key.read_bytes() + files.cert.read_bytes()
        (directory / "localhost.pem").write_bytes(both)
        (directory / "localhost.pem").chmod(0o600)
        rest = f"privateKey={files.key}:certKey={files.cert}"
        where = "0:interface=127.0.0.1"
        return [
            f"ssl:{where}:{rest}",
            f"tls:{directory}:{where}",
            f"mtls:{where}:{rest}:verify=none",
        ]

    def agreed(self, address: str, offered: list[str]) -> str | None:
        context = standard_ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, standard_ssl.CERT_NONE
        context.set_alpn_protocols(offered)
        port = int(re.findall(r":(\d+)", address)[-1])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as line,
            context.wrap_socket(line, server_hostname="localhost") as client,
        ):
            return client.selected_alpn_protocol()

    async def test_a_client_is_served_whatever_it_offers(self) -> None:
        """WebSocket is HTTP/1.1; the other protocols have no name to agree on."""
        for endpoint in self.described():
            plain, web = lumberjack.serve(endpoint), umq.serve(endpoint)
            for serving in (plain, web):
                async with serving as server:
                    (address,) = server.addresses
                    for offered in (["http/1.1"], ["h2", "http/1.1"], ["h2"]):
                        agreed = await deferToThread(self.agreed, address, offered)
                        common = serving is web and "http/1.1" in offered
                        self.assertEqual(agreed, "http/1.1" if common else None, address)


# ── certificates for several names ──────────────────────────────────────────────────────────────


CURVE: Final = b"""-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
"""
"""What ``openssl ecparam -genkey`` writes before a key."""


class Names(TestCase):
    """A directory with certificates for several names: clients say whom they want (SNI)."""

    timeout = 60

    def asked(self, port: int, name: bytes | None) -> str:
        """Whose certificate is shown to a client that asks for ``name``."""
        with socket.create_connection(("127.0.0.1", port)) as line:
            client = SSL.Connection(SSL.Context(SSL.TLS_METHOD), line)
            if name is not None:
                client.set_tlsext_host_name(name)
            client.set_connect_state()
            client.do_handshake()
            certificate = client.get_peer_certificate()
            assert certificate is not None
            return str(certificate.get_subject().CN)

    async def test_each_name_has_its_own_and_a_stranger_writes_no_line(self) -> None:
        home = temporary(self)
        authority = Authority(home)
        names = home / "names"
        names.mkdir()
        for name in ("one.example", "*.two.example", "*.three.example"):
            files = authority.server(name.strip("*."), name)
            both = files.key.read_bytes() + files.cert.read_bytes()
            (names / files.cert.name).write_bytes(both)
        async with lumberjack.serve(f"tls:{names}:0:interface=127.0.0.1") as server:
            port = int(server.addresses[0].rpartition(":")[2])
            with capturedLogs() as events:
                known = (b"one.example", b"a.two.example", b"a.three.example")
                wanted = (*known, b"three.example", b"\xff.x", None)
                shown = {name: await deferToThread(self.asked, port, name) for name in wanted}
        names_shown = [shown[name] for name in known]
        self.assertEqual(names_shown, ["one.example", "two.example", "three.example"])
        others = {shown[name] for name in wanted[3:]}
        self.assertEqual(len(others), 1, "all others see the same one")
        lines = [str(formatEvent(event)) for event in events]
        self.assertEqual([line for line in lines if "name" in line or "SNI" in line], [])

    async def test_names_have_no_case_and_a_curve_is_passed_over(self) -> None:
        home = temporary(self)
        authority = Authority(home)
        names = home / "names"
        names.mkdir()
        for name in ("A.example", "one.example", "Two.example"):
            files = authority.server(name, name)
            parts = [part.read_bytes() for part in (files.cert, authority.cert, files.key)]
            (names / f"{name}.pem").write_bytes(CURVE.join(parts))
        async with lumberjack.serve(f"tls:{names}:0:interface=127.0.0.1") as server:
            port = int(server.addresses[0].rpartition(":")[2])
            for name, shown in (("ONE.example", "one.example"), ("two.example", "Two.example")):
                self.assertEqual(await deferToThread(self.asked, port, name.encode()), shown)

    async def test_a_directory_without_any_is_told_of_at_the_start(self) -> None:
        home = temporary(self)
        with capturedLogs() as events:
            async with lumberjack.serve(f"tls:{home}:0:interface=127.0.0.1") as server:
                port = int(server.addresses[0].rpartition(":")[2])
                with self.assertRaises(SSL.Error):
                    await deferToThread(self.asked, port, b"one.example")
        lines = [str(formatEvent(event)) for event in events]
        [told] = [line for line in lines if "no certificate for any name" in line]
        self.assertIn("msgproto reload", told)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    """OpenSSL asks the terminal, and a gateway that reads its keys again would stand still."""
    files = Authority(tmp_path).server()
    key: Any = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    pair = f"privateKey={files.key}:certKey={files.cert}"
    for where in (f"ssl:0:{pair}", f"mtls:0:{pair}:verify=none", f"haproxy:ssl:0:{pair}"):
        with pytest.raises(ConfigurationError, match=f"the key in {files.key} has a passphrase"):
            lumberjack.serve(where)
    with pytest.raises(ConfigurationError, match=r"has a passphrase; .* openssl pkey"):
        lumberjack.serve(f"tls:{tmp_path}:0")
    options = ConnectOptions(endpoint="tls:h:1", tls_cert=files.cert, tls_key=files.key)
    with pytest.raises(ConfigurationError, match="has a passphrase"):
        client_endpoint(reactor, options)


def test_a_directory_may_have_the_root_of_a_chain(tmp_path: Path) -> None:
    """Nobody ever had the whole chain: a check, a start and a reload went on for ever."""
    authority = Authority(tmp_path)
    pair = authority.server()
    chain = pair.key.read_bytes() + pair.cert.read_bytes() + authority.cert.read_bytes()
    directory = tmp_path / "pems"
    directory.mkdir()
    (directory / "chain.pem").write_bytes(chain)
    assert lumberjack.serve(f"tls:{directory}:0")


def test_a_broken_file_of_a_directory_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigurationError, match=f"{bad} is no PEM file"):
        lumberjack.serve(f"tls:{tmp_path}:0")


# ── a scanner ───────────────────────────────────────────────────────────────────────────────────


LOOPBACK: Final = "interface=127.0.0.1"

ENDPOINTS: Final = {
    "lumberjack": "mtls:0:{pair}:verify=none",
    "micromsg2": "ssl:0:{pair}",
    "sabc": "tls:{directory}:0",
    "umq": "ssl:0:{pair}",
    "status": "ssl:0:{pair}",
    "flight": "grpc+tls://127.0.0.1:0",
}
"""Every server with TLS → its endpoint string; together they have every kind of string."""

GATEWAY: Final = """
[queue]
directory = "queue"
[status]
endpoint = "{status}"
[lumberjack]
endpoint = "{lumberjack}"
[micromsg2]
endpoint = "{micromsg2}"
[sabc]
endpoint = "{sabc}"
[umq]
endpoint = "{umq}"
"""


def serving(launch: Launcher) -> dict[str, int]:
    """Start a gateway and a Flight server; the port of each endpoint."""
    here = launch.directory
    server = Authority(here).server()
    (here / "pems").mkdir()
    (here / "pems" / "localhost.pem").write_bytes(
        server.key.read_bytes() + server.cert.read_bytes()
    )
    pair = f"privateKey={server.key}:certKey={server.cert}"
    strings = {
        name: f"{text.format(pair=pair, directory=here / 'pems')}:{LOOPBACK}"
        for name, text in ENDPOINTS.items()
    }
    (here / "gateway.toml").write_text(GATEWAY.format(**strings))
    QueueWriter(here / "queue").close()
    command = ["msgproto", "--config", "gateway.toml"]
    gateway = launch(*command, module="twisted")
    flight = launch(
        "flight",
        "--queue=queue",
        f"--listen={ENDPOINTS['flight']}",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
    )
    return {name: (flight if name == "flight" else gateway).port(name) for name in ENDPOINTS}


@pytest.mark.slow
@needs_sslyze
def test_sslyze_finds_nothing_but_the_certificate_at_any_endpoint(
    launch: Launcher, tmp_path: Path
) -> None:
    """What docs/how-it-is-tested.md says of each."""
    ports = serving(launch)
    found = scanned([f"localhost:{port}" for port in ports.values()], tmp_path)
    findings = {
        name: [kind for kind in found[f"localhost:{port}"] if not kind.startswith(CERTIFICATE)]
        for name, port in ports.items()
    }
    assert findings == {name: [] for name in ENDPOINTS}
