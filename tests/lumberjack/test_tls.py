"""Lumberjack over TLS: endpoint strings, client certificates, hand-shakes which fail."""

from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.application.service import IServiceMaker
from twisted.internet import reactor, ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    serverFromString,
    wrapClientTLS,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import capturedLogs, formatEvent
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.doubles import temporary
from tests.lumberjack.frames import encode_json, encode_window
from tests.tools.certificates import Authority
from twisted_msgproto.core.errors import TimedOut
from twisted_msgproto.lumberjack import (
    LumberjackClientFactory,
    LumberjackServer,
    LumberjackServerFactory,
)
from twisted_msgproto.testing import SafeSink


class WatchedServer(LumberjackServer):
    """Tells the test how its session went."""

    def sessionEstablished(self):
        self.factory.established.append(self.clientId)

    def connectionLost(self, reason):
        super().connectionLost(reason)
        self.factory.ended.callback(self)


class Watched(Protocol):
    """A raw client which tells when it is connected and when it is lost."""

    def __init__(self):
        self.received = b""
        self.made = Deferred()
        self.lost = Deferred()

    def connectionMade(self):
        self.made.callback(None)

    def dataReceived(self, data):
        self.received += data

    def connectionLost(self, reason):
        self.lost.callback(str(reason.value))


class Case(TestCase):
    """A server in this process, on a TLS endpoint string, and certificates for both sides."""

    timeout = 60

    def setUp(self):
        directory = self.directory = temporary(self)
        self.authority = Authority(directory)
        self.server = self.authority.server()
        self.client = self.authority.client()
        self.sink = SafeSink()

    def files(self, verify=None, ca=None):
        parts = [f"privateKey={self.server.key}", f"certKey={self.server.cert}"]
        if verify is not None:
            parts += [f"caCerts={ca or self.authority.cert}", f"verify={verify}"]
        return ":".join([*parts, "interface=127.0.0.1"])

    async def listen(self, description, authoriser=None, **limits):
        self.factory = LumberjackServerFactory(
            self.sink, limits=limits, clock=reactor, authoriser=authoriser
        )
        self.factory.protocol = WatchedServer
        self.factory.established = []
        self.factory.ended = Deferred()
        port = await serverFromString(reactor, description).listen(self.factory)
        self.addCleanup(port.stopListening)
        self.port = port.getHost().port
        return self.port

    def endpoint(self, certificate=None, *, ca=None, host="localhost", **extra):
        trust = ssl.trustRootFromCertificates(
            [ssl.Certificate.loadPEM((ca or self.authority).cert.read_bytes())]
        )
        mine = certificate and ssl.PrivateCertificate.loadPEM(
            certificate.cert.read_bytes() + certificate.key.read_bytes()
        )
        options = ssl.optionsForClientTLS(
            host, trustRoot=trust, clientCertificate=mine, extraCertificateOptions=extra or None
        )
        return wrapClientTLS(options, HostnameEndpoint(reactor, "127.0.0.1", self.port))

    async def connect(self, *arguments, changes=None, **options):
        factory = LumberjackClientFactory(limits=changes, clock=reactor)
        return await self.endpoint(*arguments, **options).connect(factory)

    async def exchange(self, *arguments, **options):
        """One event, acknowledged; then both sides end."""
        # No help from the deadline of stop(): the end must be a clean one.
        client = await self.connect(*arguments, changes={"drain": 1000.0}, **options)
        await client.send(b'{"over": "tls"}')
        await client.close()
        await self.factory.ended
        return client

    @property
    def client_ids(self):
        return [message.client_id for message in self.sink.messages]


class EndpointStrings(Case):
    async def test_tls(self):
        """LJ-01: Twisted's ``tls:`` string, a directory of certificates by host name."""
        pems = self.directory / "pems"
        pems.mkdir()
        (pems / "localhost.pem").write_bytes(
            self.server.key.read_bytes() + self.server.cert.read_bytes()
        )
        await self.listen(f"tls:{pems}:0:interface=127.0.0.1")
        await self.exchange()
        self.assertEqual(self.client_ids, [None])

    async def test_key_and_chain_may_stand_in_other_files(self):
        """LJ-01: one file for key and certificate; several authorities; a chain to show."""
        both = self.directory / "both.pem"
        both.write_bytes(self.server.key.read_bytes() + self.server.cert.read_bytes())
        other = Authority(self.directory, "other")
        trusted = self.directory / "trusted.pem"
        trusted.write_bytes(b"words\n" + other.cert.read_bytes() + self.authority.cert.read_bytes())
        await self.listen(
            f"mtls:0:privateKey={both}:caCerts={trusted}:interface=127.0.0.1"
            f":extraCertChain={self.authority.cert}"
        )
        await self.exchange(other.client("web-2"))
        self.assertEqual(self.client_ids, ["O=Example,CN=web-2"])


class ClientCertificates(Case):
    async def test_peer_takes_who_shows_none(self):
        """LJ-01."""
        await self.listen(f"mtls:0:{self.files('peer')}")
        await self.exchange()
        self.assertEqual(self.client_ids, [None])


def whose(*parts):
    """A subject of these types and values, in the order of the certificate."""
    types = {"O": NameOID.ORGANIZATION_NAME, "CN": NameOID.COMMON_NAME, "UID": NameOID.USER_ID}
    return x509.Name(
        [
            x509.NameAttribute(types[kind], value, _validate=False)
            for kind, value in (part.split("=", 1) for part in parts)
        ]
    )


URI, DNS, EMAIL = x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name
HERE = x509.IPAddress(ip_address("192.0.2.7"))
SERIAL = "serial:O=Example,CN=authority/1f03"

NAMES = {
    "a common name, whatever else there is": (
        whose("O=Example", "CN=web-1"),
        [URI("spiffe://example/web-1")],
        "O=Example,CN=web-1",
    ),
    "two common names": (whose("CN=a", "O=Example", "CN=b"), [], "CN=a,O=Example,CN=b"),
    "a common name that is not ASCII": (
        whose("CN=Z\u00fcrich \U0001f389"),
        [],
        "CN=Z\u00fcrich \U0001f389",
    ),
    "an empty common name": (whose("CN="), [DNS("web-1.example")], "DNS:web-1.example"),
    "a blank common name": (whose("CN= "), [], SERIAL),
    "nothing": (whose(), [], SERIAL),
    "an organization alone": (whose("O=Example"), [], SERIAL),
    "another part alone": (whose("UID=7", "O=Example"), [], SERIAL),
    "only addresses": (whose("O=Example"), [HERE], SERIAL),
    "a URI": (whose("O=Example"), [URI("spiffe://example/web-1")], "URI:spiffe://example/web-1"),
    "names of each kind": (
        whose(),
        [HERE, EMAIL("a@b.example"), DNS("c.example"), URI("urn:d"), URI("urn:e")],
        "URI:urn:d",
    ),
    "several hosts": (
        whose(),
        [EMAIL("x@y.example"), DNS("b.example"), DNS("a.example")],
        "DNS:b.example",
    ),
    "an address for letters": (whose(), [EMAIL("web-1@example")], "email:web-1@example"),
    "empty names": (whose(), [URI(""), DNS(""), EMAIL("a@b.example")], "email:a@b.example"),
    "a host that looks like another kind": (
        whose(),
        [DNS("URI:spiffe://example/root")],
        "DNS:URI:spiffe://example/root",
    ),
    "an organization that looks like another kind": (
        whose("O=URI:spiffe://example/root"),
        [],
        SERIAL,
    ),
    "a common name that looks like another kind": (
        whose("CN=URI:spiffe://example/root"),
        [],
        "CN=URI:spiffe://example/root",
    ),
    "a common name with parts": (whose("CN=a,CN=serial:b"), [], r"CN=a\,CN=serial:b"),
    "what separates parts": (whose("O=E", "CN=x,O=R+CN=admin"), [], r"O=E,CN=x\,O=R\+CN=admin"),
}

HOST = DNS("w-1.example")
TEXT = b"\x0c\x04Zuri"
ODD = {
    "a Latin-1 common name": ([], TEXT, b"\x14\x04Z\xfcri", SERIAL),
    "and a host": ([HOST], TEXT, b"\x14\x04Z\xfcri", "DNS:w-1.example"),
    "a host that is not ASCII": ([HOST], b"w-1", b"w\xfc1", "O=Example,CN=Zuri"),
    "no text of its type": ([HOST], TEXT, b"\x13\x04Z\xfcri", "sha256:[0-9a-f]{64}"),
}


class NamesInCertificates(Case):
    async def test_what_cannot_be_read_of_a_certificate_is_taken_for_absent__RD_23(self):
        """LJ-01: the hand-shake was good, and a traceback was all that came of it."""
        for number, (what, (also, old, new, name)) in enumerate(ODD.items()):
            await self.listen(f"mtls:0:{self.files('force_peer')}")
            client = self.authority.client(
                f"c{number}",
                whose=whose("O=Example", "CN=Zuri"),
                also=also,
                serial=0x1F03,
                instead=(old, new),
            )
            await self.exchange(client)
            self.assertRegex(self.client_ids[-1], f"^{name}$", what)

    async def test_issuers_without_a_name_are_not_taken_for_each_other__RD_23(self):
        """Both give the same serial number.  (OpenSSL takes a certificate without a name for one
        that has signed itself, and refuses it.)
        """
        places = [self.directory / name for name in ("one", "other")]
        for place in places:
            place.mkdir()
        authorities = [Authority(place, whose=whose()) for place in places]
        both = b"".join(authority.cert.read_bytes() for authority in authorities)
        self.authority.cert.write_bytes(self.authority.cert.read_bytes() + both)
        for subject, also in (
            (whose("O=Example"), []),
            (whose("O=Example"), [HERE]),
            (whose("CN=web-1"), []),
        ):
            for authority in authorities:
                await self.listen(f"mtls:0:{self.files('force_peer')}")
                await self.exchange(
                    authority.client(f"c{len(self.client_ids)}", whose=subject, also=also, serial=1)
                )
        *nameless, one, other = self.client_ids
        self.assertEqual(len(set(nameless)), 4)
        for name in nameless:
            self.assertRegex(name, "^sha256:[0-9a-f]{64}$")
        self.assertEqual((one, other), ("CN=web-1", "CN=web-1"))

    async def test_each_certificate_has_a_name_of_its_own__RD_23(self):
        """LJ-01, RD-23: some had none, or that of everybody in the same organization."""
        for number, (what, (subject, also, name)) in enumerate(NAMES.items()):
            await self.listen(f"mtls:0:{self.files('force_peer')}")
            client = self.authority.client(f"c{number}", whose=subject, also=also, serial=0x1F03)
            await self.exchange(client)
            self.assertEqual(self.client_ids[-1], name, what)
            self.assertEqual(self.factory.established, [name], what)


class Failing(Case):
    async def test_a_reader_which_never_shakes_hands_is_left(self):
        """LJ-15."""
        silent = Factory.forProtocol(Watched)
        port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(silent)
        self.addCleanup(port.stopListening)
        self.port = port.getHost().port
        client = await self.connect(changes={"handshake": 0.05})
        with pytest.raises(TimedOut, match="no TLS hand-shake in time"):
            await client.send(b"{}")

    async def test_who_only_looks_whether_the_port_is_open_is_not_told(self):
        """LJ-16: as balancers do, every few seconds."""
        await self.listen(f"ssl:0:{self.files()}")
        with capturedLogs() as events:
            client = await TCP4ClientEndpoint(reactor, "127.0.0.1", self.port).connect(
                Factory.forProtocol(Watched)
            )
            client.transport.loseConnection()
            await self.factory.ended
        self.assertEqual([formatEvent(event) for event in events if "peer" in event], [])
        self.assertEqual(self.factory.counters["faults"], 0)

    async def test_after_the_writer_ends_tls_its_events_are_kept(self):
        """LJ-19: Twisted's TLS ends both ways at once, so no ack can be sent; nothing is lost."""
        await self.listen(f"ssl:0:{self.files()}")
        client = await self.endpoint().connect(Factory.forProtocol(Watched))
        client.transport.write(encode_window(5) + encode_json([1, 2], [b"1", b"2"]))
        client.transport.write(b"2J\0\0\0\3")  # and the start of a third
        client.transport.loseConnection()
        await client.lost
        await self.factory.ended
        self.assertEqual([message.body for message in self.sink.messages], [b"1", b"2"])
        self.assertEqual(client.received, b"")
        self.assertEqual(self.factory.counters["faults"], 0)


def usage_of_twistd():
    (maker,) = [one for one in getPlugins(IServiceMaker) if one.tapname == "lumberjack"]
    return maker.options()


class Strings(SynchronousTestCase):
    """What an operator may get wrong about ``mtls:`` is one line, before anything listens."""

    def setUp(self):
        self.directory = temporary(self)
        authority = Authority(self.directory)
        self.pair = authority.server()
        self.other = authority.server("other")
        self.ca = authority.cert

    def complaint(self, *parts):
        text = ":".join(["mtls", *parts]).format(
            key=self.pair.key, cert=self.pair.cert, ca=self.ca, other=self.other.key
        )
        with self.assertRaises(SystemExit) as caught:
            usage_of_twistd().parseOptions(["-e", text])
        line = str(caught.exception)
        self.assertNotIn("\n", line)
        return line

    def test_each_mistake_has_its_words(self):
        """LJ-01."""
        good = ("0", "privateKey={key}", "certKey={cert}", "caCerts={ca}")
        empty = self.directory / "empty.pem"
        empty.write_bytes(b"")
        locked = self.directory / "locked.pem"
        locked.write_bytes(LOCKED_KEY)
        for parts, words in (
            ((), "missing"),
            (("x", *good[1:]), "port is a number from 0 to 65535, not 'x'"),
            (("65536", *good[1:]), "port is a number from 0 to 65535"),
            (("0",), "privateKey=FILE is missing"),
            ((*good, "backlog=many"), "backlog is a whole number"),
            ((*good, "verify=maybe"), "verify is one of none, peer, force_peer, not 'maybe'"),
            (good[:3], "verify=force_peer needs caCerts=FILE"),
            ((*good, "colour=red"), "colour"),
            ((*good[:3], "caCerts=/nowhere"), "caCerts: cannot read /nowhere: No such file"),
            ((*good[:3], f"caCerts={empty}"), "caCerts: nothing usable in"),
            (("0", "privateKey={cert}", *good[2:]), "privateKey: nothing usable in"),
            (("0", f"privateKey={locked}", *good[2:]), "privateKey: nothing usable in"),
            (("0", "privateKey={other}", *good[2:]), "is not the key of the certificate in"),
        ):
            line = self.complaint(*parts)
            self.assertIn("bad endpoint 'mtls", line)
            self.assertIn(words, line)


LOCKED_KEY = b"""-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBCa
-----END ENCRYPTED PRIVATE KEY-----
"""
