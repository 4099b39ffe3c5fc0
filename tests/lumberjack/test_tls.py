"""Lumberjack over TLS: endpoint strings, the names in clients' certificates, what ends early."""

from ipaddress import ip_address

from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.application.service import IServiceMaker
from twisted.internet import reactor, ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import capturedLogs, formatEvent
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.doubles import temporary
from tests.lumberjack.frames import encode_json, encode_window
from tests.tools.certificates import Authority
from twisted_msgproto.lumberjack import connect, serve
from twisted_msgproto.testing import SafeSink


class Case(TestCase):
    """A server in this process, on a TLS endpoint string, and certificates for both sides."""

    timeout = 60

    def setUp(self):
        self.directory = temporary(self)
        self.authority = Authority(self.directory)
        self.server = self.authority.server()
        self.sink = SafeSink()

    def mtls(self, verify="force_peer"):
        files = f"privateKey={self.server.key}:certKey={self.server.cert}"
        trust = f"caCerts={self.authority.cert}:verify={verify}"
        return f"mtls:0:{files}:{trust}:interface=127.0.0.1"

    def tls(self, certificate=None):
        trust = ssl.Certificate.loadPEM(self.authority.cert.read_bytes())
        mine = certificate and ssl.PrivateCertificate.loadPEM(
            certificate.cert.read_bytes() + certificate.key.read_bytes()
        )
        return ssl.optionsForClientTLS("localhost", trust, mine)

    async def names(self, where, *certificates):
        """What clients with these certificates are called; each sends an event."""
        async with serve(where, sink=self.sink) as server:
            for certificate in certificates:
                async with connect(server.addresses[0], tls=self.tls(certificate)) as client:
                    await client.send(b'{"over": "tls"}')
        return [message.client_id for message in self.sink.messages]


class EndpointStrings(Case):
    async def test_key_and_chain_may_stand_in_other_files(self):
        """LJ-01: one file for key and certificate; several authorities; a chain to show."""
        other = Authority(self.directory, "other")
        both = self.directory / "both.pem"
        both.write_bytes(self.server.key.read_bytes() + self.server.cert.read_bytes())
        trusted = self.directory / "trusted.pem"
        trusted.write_bytes(b"words\n" + other.cert.read_bytes() + self.authority.cert.read_bytes())
        names = await self.names(
            f"mtls:0:privateKey={both}:caCerts={trusted}:interface=127.0.0.1"
            f":extraCertChain={self.authority.cert}",
            other.client("web-2"),
        )
        self.assertEqual(names, ["O=Example,CN=web-2"])


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
        whom = whose("O=Example", "CN=Zuri")
        certificates = [
            self.authority.client(
                f"c{number}", whose=whom, also=also, serial=0x1F03, instead=(old, new)
            )
            for number, (also, old, new, _) in enumerate(ODD.values())
        ]
        names = await self.names(self.mtls(), *certificates)
        for name, (what, (*_, expected)) in zip(names, ODD.items(), strict=True):
            self.assertRegex(name, f"^{expected}$", what)

    async def test_issuers_without_a_name_are_not_taken_for_each_other__RD_23(self):
        """Both give the same serial number.  (OpenSSL takes a certificate without a name for one
        that has signed itself, and refuses it.)
        """
        places = [self.directory / name for name in ("one", "other")]
        for place in places:
            place.mkdir()
        authorities = [Authority(place, whose=whose()) for place in places]
        with self.authority.cert.open("ab") as file:
            file.writelines(authority.cert.read_bytes() for authority in authorities)
        certificates = [
            authority.client(f"c{number}", whose=subject, also=also, serial=1)
            for number, (subject, also) in enumerate(
                [(whose("O=Example"), []), (whose("O=Example"), [HERE]), (whose("CN=web-1"), [])]
            )
            for authority in authorities
        ]
        *nameless, one, other = await self.names(self.mtls(), *certificates)
        self.assertEqual(len(set(nameless)), 4)
        for name in nameless:
            self.assertRegex(name, "^sha256:[0-9a-f]{64}$")
        self.assertEqual((one, other), ("CN=web-1", "CN=web-1"))

    async def test_each_certificate_has_a_name_of_its_own__RD_23(self):
        """LJ-01, RD-23: some had none, or that of everybody in the same organization."""
        certificates = [
            self.authority.client(f"c{number}", whose=subject, also=also, serial=0x1F03)
            for number, (subject, also, _) in enumerate(NAMES.values())
        ]
        names = await self.names(self.mtls(), *certificates)
        self.assertEqual(dict(zip(NAMES, names, strict=True)), {
            what: name for what, (_, _, name) in NAMES.items()
        })  # fmt: skip


class Raw(Protocol):
    """A client that writes what the test says, and tells when it is lost."""

    def __init__(self):
        self.received = b""
        self.lost = Deferred()

    def dataReceived(self, data):
        self.received += data

    def connectionLost(self, reason):
        self.lost.callback(None)


class EarlyEnds(Case):
    async def test_who_only_looks_whether_the_port_is_open_is_not_told(self):
        """LJ-16: as balancers do, every few seconds."""
        with capturedLogs() as events:
            async with serve(self.mtls(), sink=self.sink) as server:
                port = int(server.addresses[0].rpartition(":")[2])
                client = await TCP4ClientEndpoint(reactor, "127.0.0.1", port).connect(
                    Factory.forProtocol(Raw)
                )
                client.transport.loseConnection()
                await client.lost
        ours = (one for one in events if "peer" in one or "msgproto" in repr(one.get("factory")))
        self.assertEqual([formatEvent(event) for event in ours], [])
        self.assertEqual(server.factory.counters["faults"], 0)

    async def test_after_the_writer_ends_tls_its_events_are_kept(self):
        """LJ-19: Twisted's TLS ends both ways at once, so no ack can be sent; nothing is lost."""
        async with serve(self.mtls("peer"), sink=self.sink) as server:
            port = int(server.addresses[0].rpartition(":")[2])
            plain = HostnameEndpoint(reactor, "127.0.0.1", port)
            client = await wrapClientTLS(self.tls(), plain).connect(Factory.forProtocol(Raw))
            client.transport.write(encode_window(5) + encode_json([1, 2], [b"1", b"2"]))
            client.transport.write(b"2J\0\0\0\3")  # and the start of a third
            client.transport.loseConnection()
            await client.lost
        self.assertEqual([message.body for message in self.sink.messages], [b"1", b"2"])
        self.assertEqual(client.received, b"")
        self.assertEqual(server.factory.counters["faults"], 0)


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
            (("0", "privateKey={other}", *good[2:]), "is not the key of the certificate in"),
        ):
            line = self.complaint(*parts)
            self.assertIn("bad endpoint 'mtls", line)
            self.assertIn(words, line)
