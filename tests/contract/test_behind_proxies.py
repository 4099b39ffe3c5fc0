"""What stands in front of a server: load balancers, and how they begin a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority
from tests.tools.processes import Launcher, environment, launching
from tests.tools.queues import batch, put
from twisted_msgproto.queue import QueueWriter

reactor: Any = installed

V2 = b"\r\n\r\n\0\r\nQUIT\n"
EVENT = struct.pack(">2sI2sII", b"2W", 1, b"2J", 1, 2) + b"{}"
ACK = struct.pack(">2sI", b"2A", 1)
HEADERS = {
    "TCP4": b"PROXY TCP4 198.51.100.1 198.51.100.2 1 2\r\n",
    "TCP6": b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n",
    "UNKNOWN": b"PROXY UNKNOWN\r\n",
    "UNKNOWN with addresses": b"PROXY UNKNOWN ffff:f::ffff ffff:f::ffff 65535 65535\r\n",
    "version 2, LOCAL": V2 + b"\x20\0\0\0",
    "version 2, LOCAL with addresses": V2 + b"\x20\x11\0\x0c" + bytes(12),
    "version 2, UNSPEC": V2 + b"\x21\0\0\0",
    "version 2, TCP4": V2 + b"\x21\x11\0\x0c" + bytes((198, 51, 100, 1) * 2) + bytes(4),
}


NO_HEADERS = {
    "a port above all": b"PROXY TCP4 198.51.100.1 198.51.100.2 99999 2\r\n",
    "a name": b"PROXY TCP4 balancer 198.51.100.2 1 2\r\n",
    "an address of the other family": b"PROXY TCP6 198.51.100.1 198.51.100.2 1 2\r\n",
    "a line feed in an address": b"PROXY TCP4 1.1.1.1\n1.1.1.1 198.51.100.2 1 2\r\n",
    "an escape in a zone": b"PROXY TCP6 fe80::1%\x1b[0m fe80::2 1 2\r\n",
    "version 2, a command that is none": V2 + b"\x22\x11\0\x0c" + bytes(12),
    "version 2, too short": V2 + b"\x21\x11\0\x05" + bytes(5),
}


def test_a_header_may_come_in_pieces_and_has_addresses_that_are_some(launch: Launcher) -> None:
    """RD-24: what is logged and told apart by a peer's address is no text of the peer's choice."""
    endpoint = "haproxy:tcp:0:interface=127.0.0.1"
    (launch.directory / "g.toml").write_text(f'[lumberjack]\nendpoint = "{endpoint}"\n')
    server = launch("gateway", "--config=g.toml")

    def answer(pieces: list[bytes]) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port("lumberjack")), 60) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    one.sendall(piece)
                return one.recv(len(ACK))
        return b""

    for name, words in HEADERS.items():
        first = {at: answer([words[:at], words[at:] + EVENT]) for at in (1, 5, 12, 15)}
        assert first == dict.fromkeys(first, ACK), name
        assert answer([bytes((one,)) for one in words] + [EVENT]) == ACK, name
    for name, words in NO_HEADERS.items():
        assert answer([words + EVENT]) == b"", name


def test_a_header_that_does_not_come_has_the_time_of_a_handshake(launch: Launcher) -> None:
    """LJ-17: silent connections and halves of headers stood for ever."""
    endpoint, limits = "haproxy:tcp:0:interface=127.0.0.1", "limit = { handshake = 0.5 }"
    (launch.directory / "g.toml").write_text(f'[lumberjack]\nendpoint = "{endpoint}"\n{limits}\n')
    server = launch("gateway", "--config=g.toml")
    words = HEADERS["version 2, TCP4"]
    with socket.create_connection(("127.0.0.1", server.port("lumberjack")), 60) as whole:
        whole.sendall(words)
        for begin in (b"", b"P", b"PROXY TCP4 198", V2, words[:15], words[:-1]):
            with socket.create_connection(("127.0.0.1", server.port("lumberjack")), 60) as one:
                one.sendall(begin)
                with contextlib.suppress(ConnectionResetError):
                    assert one.recv(1) == b""
        server.line("closed: it does not in time begin as a proxy does")
        whole.sendall(EVENT)
        assert whole.recv(len(ACK)) == ACK


TLS_KINDS = {
    "ssl": "ssl:0:privateKey={pem}",
    "mtls": "mtls:0:privateKey={pem}:caCerts={ca}",
    "tls": "tls:{folder}:0",
}


def certified(directory: Path, *kinds: str) -> tuple[Authority, list[str]]:
    """Return the endpoints with a certificate of localhost, and who signed it."""
    folder = directory / "pems"
    folder.mkdir()
    authority = Authority(directory)
    pair = authority.server("localhost", "localhost")
    pem = folder / "localhost.pem"
    pem.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    return authority, [one.format(pem=pem, folder=folder, ca=authority.cert) for one in kinds]


@pytest.mark.parametrize("kind", TLS_KINDS)
def test_a_header_stands_in_front_of_tls(launch: Launcher, kind: str) -> None:
    """RD-24: Twisted looks for it inside, where no balancer puts it.  Rows have the client's
    address, as without TLS; also once the certificates were read again.
    """
    authority, [where] = certified(launch.directory, TLS_KINDS[kind])
    (launch.directory / "g.toml").write_text(
        f"[queue]\ndirectory = 'q'\n[lumberjack]\n"
        f"endpoint = 'haproxy:{where}:interface=127.0.0.1'\n"
    )
    server = launch("gateway", "--config=g.toml")
    context = ssl.create_default_context(cafile=str(authority.cert))
    own = authority.client("shipper")
    context.load_cert_chain(own.cert, own.key)

    def answer(header: bytes, pieces: bool) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port("lumberjack")), 60) as plain:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            inside = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with contextlib.suppress(ssl.SSLWantReadError):
                inside.do_handshake()
            first = header + outgoing.read()
            for start in range(0, len(first), 1 if pieces else len(first)):
                plain.sendall(first[start : start + (1 if pieces else len(first))])
            wants: list[Any] = [inside.do_handshake, lambda: inside.write(EVENT), inside.read]
            got: Any = b""
            while wants:
                try:
                    got = wants[0]()
                    del wants[0]
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    came = plain.recv(1 << 16)
                    if not came:
                        return b""
                    incoming.write(came)
                plain.sendall(outgoing.read())
            return bytes(got)

    assert answer(HEADERS["TCP4"], pieces=True) == ACK
    assert launch.run("reload", "q").returncode == 0
    for name, header in HEADERS.items():
        assert answer(header, pieces=False) == ACK, name
    with contextlib.suppress(ConnectionError):
        assert answer(b"", pieces=False) == b""
    server.line("closed: it does not begin as a proxy does")
    lines = launch.run("queue", "dump", "q").stdout.splitlines()
    peers = [json.loads(line)["peer"].rpartition(":")[0] for line in lines]
    assert peers[:3] == ["198.51.100.1", "198.51.100.1", "[2001:db8::1]"], peers
    assert len(peers) == 1 + len(HEADERS)


OVER_TLS = [*TLS_KINDS.values(), *(f"haproxy:{kind}" for kind in TLS_KINDS.values())]


def test_who_is_refused_at_a_limit_is_closed_at_once_whatever_the_endpoint(
    launch: Launcher,
) -> None:
    """Behind TLS and proxies it stayed open, and had two tracebacks in the log."""
    _, kinds = certified(launch.directory, *OVER_TLS)
    wheres = [f"{kind}:interface=127.0.0.1" for kind in ("tcp:0", "haproxy:tcp:0", *kinds)]
    listen = {name: f"endpoint = {wheres}\n" for name in ("lumberjack", "micromsg2", "umq", "sabc")}
    listen["sabc"] += f"websocket = {wheres}\n"
    text = "".join(f"[{name}]\n{its}" for name, its in listen.items())
    (launch.directory / "g.toml").write_text(f"{text}[limits]\nconnections = 1\n")
    server = launch("gateway", "--config=g.toml")
    for name, its in listen.items():
        several = range(1, 1 + len(wheres) * its.count("\n"))
        lines = [server.line(rf" {name} listening on ", nth=nth).string for nth in several]
        ports = [int(line.rpartition(":")[2]) for line in lines]
        with socket.create_connection(("127.0.0.1", ports[0]), 60):
            for port in ports:
                with contextlib.suppress(ConnectionResetError):  # within connect(), or later
                    refused = socket.create_connection(("127.0.0.1", port), 60)
                    with refused:
                        assert refused.recv(1) == b"", (name, port)
    server.end()
    assert "Traceback" not in server.output and "Starting factory" not in server.output


class Tunnel(Protocol):
    """A proxy that knows CONNECT: it joins what comes next with what listens there."""

    def connectionMade(self) -> None:
        self.head = b""
        self.far: Any = None

    def dataReceived(self, data: bytes) -> None:
        if self.far is not None:
            self.far.transport.write(data)
            return
        self.head += data
        if b"\r\n\r\n" in self.head:
            host, port = self.head.split()[1].decode().rsplit(":", 1)
            self.factory.asked.append(f"{host}:{port}")  # type: ignore[union-attr]
            point = TCP4ClientEndpoint(reactor, host, int(port))
            connectProtocol(point, Far(self)).addErrback(lambda _: self.transport.abortConnection())

    def connectionLost(self, reason: Any = None) -> None:
        if self.far is not None:
            self.far.transport.loseConnection()


class Far(Protocol):
    def __init__(self, near: Tunnel) -> None:
        self.near = near

    def connectionMade(self) -> None:
        self.near.far = self
        self.near.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")

    def dataReceived(self, data: bytes) -> None:
        self.near.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.near.transport.loseConnection()


PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")


class TheEnvironmentsProxies(TestCase):
    """RD-13: they are for browsers; a queue elsewhere is asked directly, but for its own option."""

    @inlineCallbacks
    def test_only_the_option_leads_through_a_proxy(self) -> Iterator[Deferred[Any]]:
        directory = Path(self.mktemp()).absolute()
        directory.mkdir(parents=True)
        writer = QueueWriter(directory / "queue")
        put(writer, batch(1))
        writer.close()
        tunnels: Any = Factory.forProtocol(Tunnel)
        tunnels.asked = []
        port = yield TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(tunnels)
        self.addCleanup(port.stopListening)
        with launching(directory) as launch:
            place = "grpc://127.0.0.1:0"
            served = launch("flight", "--queue=queue", f"--listen={place}")
            where = served.line(r"flight listening on (\S+)")[1]
            [token] = (directory / "queue").glob("flight-*.token")
            words = ["queue", "consumers", where, "--json", f"--token-file={token}"]
            env = environment(**dict.fromkeys(PROXIES, "http://127.0.0.1:9"))
            done = yield deferToThread(launch.run, *words, env=env)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(tunnels.asked, [])
            through = f"--flight-proxy=http://127.0.0.1:{port.getHost().port}"
            done = yield deferToThread(launch.run, *words, through, env=env)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(tunnels.asked, [where.removeprefix("grpc://")])
