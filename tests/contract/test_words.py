"""FC-06: what keeps a client from its server is told in words, over real sockets and real TLS.

Names of an application's class: it sees few of ours, and replaces none of them unseen.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from tests.contract.cases import CASES, Peer
from tests.contract.world import World
from tests.doubles import temporary
from tests.tools.certificates import Authority
from twisted_msgproto import lumberjack
from twisted_msgproto.cli.messages import MadeUp
from twisted_msgproto.core.reasons import reason
from twisted_msgproto.net.clients.command_types import SendOptions
from twisted_msgproto.net.gateway import Gateway, ListeningService
from twisted_msgproto.registry import load
from twisted_msgproto.testing import SafeSink

RIGHT, WRONG = "right", "wrong-s3cret"


class Silent:
    def sent(self, count: int) -> None: ...
    def follow(self, takenAt: Any) -> None: ...

    def acknowledged(self, count: int) -> None: ...
    def written(self, count: int) -> None: ...
    def note(self, text: str) -> None: ...
    def alive(self) -> None: ...


class Words:
    """One protocol on one kind of transport; ``plain`` and ``secure`` begin its endpoints."""

    name = ""
    option = "endpoint"
    plain, secure, tail = "tcp:", "tls:", ""
    logs_in = False
    timeout = 120

    def setUp(self: Any) -> None:
        self.directory = temporary(self)
        self.authority = Authority(self.directory)

    def serve(self: Any, endpoint: str, *words: str) -> int:
        """Start a server; its port."""
        options = load(self.name, "service").Options()
        options.read([f"--{self.option}={endpoint}", *words])
        gateway = Gateway(reactor)
        service: Any = load(self.name, "service").serve(options, gateway)
        service.setServiceParent(gateway)
        gateway.startService()
        self.gateway = gateway
        self.addCleanup(lambda: gateway.stopService() if gateway.running else None)
        services = [service] if isinstance(service, ListeningService) else list(service)
        [port] = [port for one in services for port in one.ports]
        return int(port.getHost().port)

    def secured(self: Any, pair: Any) -> int:
        return int(
            self.serve(f"ssl:0:interface=127.0.0.1:privateKey={pair.key}:certKey={pair.cert}")
        )

    async def said(self: Any, kind: str, port: int, **options: Any) -> str:
        """Send one message; what is said of the end."""
        endpoint = f"{kind}{'//' if kind[0] == 'w' else ''}127.0.0.1:{port}{self.tail}"
        chosen = SendOptions(endpoint=endpoint, **options)
        command: Any = load(self.name, "command")
        try:
            sending = command.send(reactor, chosen, MadeUp(1, 10), Silent())
            await Deferred.fromCoroutine(sending)
        except Exception as error:
            words = reason(error, endpoint, served=False)
            self.assertNotRegex(words, r"\[\(|SSL routines|\n|cleanly|^\d")
            return words
        return "sent"

    async def test_a_good_certificate_is_no_reason(self: Any) -> None:
        port = self.secured(self.authority.server())
        self.assertEqual(await self.said(self.secure, port, tls_ca=self.authority.cert), "sent")

    async def test_an_unknown_authority(self: Any) -> None:
        port = self.secured(self.authority.server())
        with capturedLogs() as events:
            words = await self.said(
                self.secure, port, tls_ca=Authority(self.directory, "other").cert
            )
            await self.logged(events, "it does not trust this server's certificate: give it")
        told = [line for line in map(formatEvent, events) if line and "closed: TLS" in line]
        for line in told:  # the server's: who connects is told by a failure
            self.assertIn("it does not trust this server's certificate", line)
        self.assertIn("is not one to trust; give the file of the authority", words)
        self.assertEqual(await self.said(self.secure, port, tls_ca=self.authority.cert), "sent")

    async def test_a_certificate_that_has_expired(self: Any) -> None:
        old = self.authority.expired()
        port = self.secured(old)
        with capturedLogs() as events:
            words = await self.said(self.secure, port, tls_ca=self.authority.cert)
            await self.logged(events, "this server's certificate has expired or was revoked: renew")
        self.assertIn("TLS: the server's certificate has expired; its operator", words)
        self.authority.server(old.cert.name.partition(".")[0])  # the same files
        self.gateway.reload()
        self.assertEqual(await self.said(self.secure, port, tls_ca=self.authority.cert), "sent")

    async def test_a_certificate_of_the_clients_is_wanted(self: Any) -> None:
        pair = self.authority.server()
        port = self.serve(
            f"mtls:0:interface=127.0.0.1:privateKey={pair.key}:certKey={pair.cert}"
            f":caCerts={self.authority.cert}"
        )
        trusted = {"tls_ca": self.authority.cert}
        other = Authority(self.directory, "other").client("other-1")
        for mine, words in (
            ({}, "TLS: the server wants a certificate of ours: --tls-cert"),
            ({"tls_cert": other.cert, "tls_key": other.key}, "does not accept our certificate"),
        ):
            self.assertIn(words, await self.said(self.secure, port, **trusted, **mine))
        mine = self.authority.client()
        trusted |= {"tls_cert": mine.cert, "tls_key": mine.key}
        self.assertEqual(await self.said(self.secure, port, **trusted), "sent")

    async def test_a_certificate_for_another_name(self: Any) -> None:
        port = self.secured(self.authority.server("else", "elsewhere.example"))
        words = await self.said(self.secure, port, tls_ca=self.authority.cert)
        self.assertIn("TLS: the server's certificate is for another name", words)

    async def test_plain_against_tls(self: Any) -> None:
        port = self.secured(self.authority.server())
        with capturedLogs() as events:
            words = await self.said(self.plain, port)
            await self.logged(events, "it does not speak TLS, and this endpoint does")
        self.assertIn(f"; if it speaks TLS there, try {self.secure}", words)

    async def test_nobody_listens(self: Any) -> None:
        port = self.serve("tcp:0:interface=127.0.0.1")
        await self.gateway.stopService()
        words = await self.said(self.plain, port)
        self.assertIn("nobody listens at", words)
        self.assertIn("is the server running, and is the port right?", words)

    async def test_a_wrong_password(self: Any) -> None:
        if not self.logs_in:
            return
        passwords = self.directory / "passwords"
        passwords.write_text(f"me:{RIGHT}\n")
        port = self.serve(
            "tcp:0:interface=127.0.0.1", f"--auth=file:{passwords}", "--limit=login-delay=0"
        )
        with capturedLogs() as events:
            self.assertIn("--user and --password-file", await self.said(self.plain, port))
            words = await self.said(self.plain, port, user="me", password=WRONG)
            await self.logged(events, "login as 'me' refused: name and password do not fit")
        self.assertIn("the server refuses the log-in", words)
        self.assertIn("see --user and --password-file", words)
        self.assertNotIn(WRONG, words + "".join(str(formatEvent(event)) for event in events))
        self.assertEqual(await self.said(self.plain, port, user="me", password=RIGHT), "sent")

    async def logged(self: Any, events: list[Any], text: str) -> None:
        for _ in range(2000):
            if any(text in str(formatEvent(event)) for event in events):
                return
            later: Deferred[None] = Deferred()
            clock: Any = reactor
            clock.callLater(0.01, later.callback, None)
            await later
        raise AssertionError(f"no line has {text!r}")


class TlsAgainstPlain:
    """A server without TLS says at once that its client speaks it, and counts that."""

    async def test_tls_against_plain(self: Any) -> None:
        port = self.serve("tcp:0:interface=127.0.0.1")
        with capturedLogs() as events:
            words = await self.said(self.secure, port, tls_ca=self.authority.cert)
            if self.name != "micromsg2":  # its server speaks first
                await self.logged(events, "it speaks TLS, and this endpoint does not")
                [factory] = self.gateway.factories
                self.assertEqual(factory.counters["faults"], 1)
        self.assertRegex(words, r"does not speak TLS there; try tcp:|the connection was lost")


class WordsOfLumberjack(TlsAgainstPlain, Words, TestCase):
    name = "lumberjack"


class WordsOfMicroMsg2(TlsAgainstPlain, Words, TestCase):
    name = "micromsg2"


class WordsOfSabc(TlsAgainstPlain, Words, TestCase):
    name, logs_in = "sabc", True


class WordsOfSabcOnWebSocket(TlsAgainstPlain, Words, TestCase):
    name, logs_in, option = "sabc", True, "websocket"
    plain, secure, tail = "ws:", "wss:", "/"


class WordsOfUmq(TlsAgainstPlain, Words, TestCase):
    name, logs_in = "umq", True
    plain, secure, tail = "ws:", "wss:", "/"


class WordsOfMtl(TestCase):
    timeout = 120

    async def test_a_host_that_nobody_knows(self) -> None:
        command: Any = load("mtl", "command")
        endpoint = "tcp://no.such.invalid:5049"
        options = SendOptions(endpoint=endpoint)
        try:
            await Deferred.fromCoroutine(command.send(reactor, options, MadeUp(1, 10), Silent()))
        except Exception as error:
            self.assertIn("there is no address for the host of", reason(error, endpoint))
        else:
            self.fail("it was sent")


def test_a_reason_never_shows_what_a_library_says_of_itself(tmp_path: Path) -> None:
    from twisted_msgproto.core.errors import QueueAway
    from twisted_msgproto.spark.flight_client import FlightQueue

    for place, words in (
        ("grpc://127.0.0.1:1", "nobody listens at its address; is the server running"),
        ("grpc://no.such.invalid:1", "there is no address for the host of its address"),
    ):
        try:
            FlightQueue(place, limit=30).begin()
        except QueueAway as error:
            assert f"{place} is not to be reached: {words}" in str(error)
            assert "UNKNOWN" not in str(error)
        else:
            raise AssertionError(place)


SERVERS = {case.name: case.server_class for case in CASES if case.name != "sabc-ws"}
CLIENTS = {case.name: case.client_class for case in CASES if case.name != "sabc-ws"}
HOOKS = {"sessionEstablished", "sessionLost", "batchReceived", "messageReceived"}


def names(kind: type) -> set[str]:
    """What ``kind`` shows beside Twisted's Protocol."""
    return {name for name in dir(kind) if not name.startswith("_") and name not in dir(Protocol)}


def refused(kind: type) -> set[str]:
    """The names of ``kind`` that no application's class may have."""
    found = set()
    for name in {*names(kind), "dataReceived", "makeConnection"} & set(dir(kind)):
        try:
            type("Theirs", (kind,), {name: None})
        except TypeError as error:
            assert str(error).startswith(f"Theirs.{name}: {kind.__name__} has something of this")
            assert "\n" not in str(error)
            found.add(name)
    return found


def hooks(kind: type) -> set[str]:
    """The names of ``kind`` that say that they are hooks."""
    return {name for name in dir(kind) if hasattr(getattr(kind, name, None), "hook")}


@pytest.mark.parametrize("protocol", SERVERS)
def test_a_server_shows_few_names_and_guards_them(protocol: str) -> None:
    """RD-06"""
    kind = SERVERS[protocol]
    shown = names(kind)
    assert len(shown) <= (36 if protocol == "umq" else 25), sorted(shown)
    assert HOOKS <= shown - refused(kind) == hooks(kind) & shown


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_client_guards_its_names(protocol: str) -> None:
    """RD-06"""
    kind = CLIENTS[protocol]
    assert names(kind) - refused(kind) == hooks(kind) & names(kind)


@pytest.mark.parametrize("protocol", SERVERS)
def test_a_factory_says_to_type_checkers_whose_class_it_takes(protocol: str) -> None:
    for kind in (SERVERS[protocol], CLIENTS[protocol]):
        factory = getattr(import_module(f"twisted_msgproto.{protocol}"), f"{kind.__name__}Factory")
        assert factory.__annotations__["protocol"] == f"type[{kind.__name__}]"


def test_a_name_of_a_class_that_is_mixed_in_is_refused_too() -> None:
    mixed = type("Mixed", (), {"close": None})
    with pytest.raises(TypeError, match=r"^Mixed\.close: LumberjackServer has something"):
        types.new_class("Theirs", (mixed, lumberjack.LumberjackServer))
    types.new_class("Theirs", (lumberjack.LumberjackServer, mixed))


MISSPELT = ("messageRecieved", "message_received", "messageReceive", "sesionLost")


@pytest.mark.parametrize("protocol", SERVERS)
def test_a_hook_that_is_misspelt_is_named(protocol: str) -> None:
    """It would never be called: ``authorize`` let everybody in."""
    kind = SERVERS[protocol]
    more = {"authorize"} if hasattr(kind, "authorise") else set()
    for name in {*MISSPELT, *more}:
        with pytest.raises(TypeError, match=rf"^Theirs\.{name} would never be called: "):
            type("Theirs", (kind,), {name: lambda self: None})
    # A method of one's own, perhaps called by the hook, may be named nearly as that.
    type("Own", (kind,), {"messageReceived": print, "message_received": lambda self: None})
    for name in ("messagesReceived", "receivedMessage", "_messageReceived", "connectionList"):
        type("Own", (kind,), {name: lambda self: None})


@pytest.mark.parametrize("kind", [*SERVERS.values(), *list(CLIENTS.values())[:4]])
def test_sessions_are_told_apart_by_identity(kind: Any) -> None:
    """Those of a dataclass had no hash: the server logged a TypeError for each connection."""
    made = dataclass(type("Theirs", (kind,), {}))
    assert len({made(), made()}) == 2
    with pytest.raises(TypeError, match=r"^Theirs\.__eq__: sessions are told apart by identity$"):
        type("Theirs", (kind,), {"__eq__": lambda self, other: True})


def served(hooks: dict[str, Any]) -> tuple[World, Peer]:
    """A server of Lumberjack's with these in its class has stored and acknowledged an event."""
    world = World(CASES[0], SafeSink(), hooks=hooks)
    peer = world.join()
    sent = peer.send(b"x")
    world.wait(1)
    assert sent.called and sent.result is None
    return world, peer


@pytest.mark.parametrize("name", ["deliver", "_ended", "machine", "wire", "log", "link_"])
def test_any_other_name_is_the_applications_own(name: str) -> None:
    """RD-06: what such a server is sent is stored and acknowledged."""
    world, _ = served({name: 1})
    world.close()


@pytest.mark.parametrize("name", ["peer", "session", "link", "messageCount"])
def test_what_is_ours_cannot_be_set(name: str) -> None:
    server: Any = lumberjack.LumberjackServer()
    with pytest.raises(AttributeError):
        setattr(server, name, 1)


@pytest.mark.parametrize("name", ["connectionMade", "connectionLost", "sessionEstablished"])
def test_a_hook_that_does_not_call_ours_breaks_nothing(name: str) -> None:
    """RD-06"""
    called: list[str] = []
    world, peer = served({name: lambda *_: called.append(name)})
    assert len(world.factory.liveConnections) == 1
    peer.client.abort()
    world.wait(1)
    assert (called, len(world.factory.liveConnections)) == ([name], 0)
    world.close()
