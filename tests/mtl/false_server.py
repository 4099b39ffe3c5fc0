"""A server which answers as a test wants it to: in memory, on a test's clock, nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from tests.mtl.plain import CONTENT, LEASE, SUMMON, short
from tests.tools.memory_zeromq import Network, Router
from twisted_msgproto.mtl import MtlClient, MtlClientFactory, MtlClientService

CONTROL, DATA = "tcp://192.0.2.1:5049", "tcp://192.0.2.1:5050"
PROFILES = ["queue", "ingest"]

Replies = list[tuple[int, dict[str, Any]]]


def command(kind: int, sequence: int, *rest: bytes) -> list[bytes]:
    """A data command without a body."""
    return [bytes([kind]) + sequence.to_bytes(8, "big") + b"".join(rest), b""]


def content(sequence: int, body: bytes = b"x", resource: str = "a") -> list[bytes]:
    """A Content without properties."""
    return [command(CONTENT, sequence, short(resource), b"\0\0\0\0")[0], body]


def response(sequence: int, code: int) -> list[bytes]:
    return [command(2, sequence)[0], b"%d" % code]


class FalseServer:
    """Answers requests by ``answers[name](body)`` and data commands by ``obey(kind, sequence)``.

    Attributes:
        asked: names of the requests, in order.
        got: kinds and sequences of data commands, in order, without heartbeats.
        peer: the data connection which sent last.
    """

    def __init__(self, network: Network) -> None:
        self.asked: list[str] = []
        self.got: list[tuple[int, int]] = []
        self.peer = b""
        self.answers: dict[str, Callable[[dict[str, Any]], Replies]] = {
            "Open": lambda body: [(201, {"profiles": PROFILES})],
            "Authorize": lambda body: [(201, {"profiles": PROFILES})],
            "Profile": lambda body: [(200, {})],
            "Reader": self.lease,
            "Writer": self.lease,
        }
        self.leases = 0
        self.control = Router(network, self._requests, None, self._nothing, self._nothing)
        self.data = Router(network, self._commands, None, self._nothing, self._nothing)
        self.control.bind(CONTROL)
        self.data.bind(DATA)

    def _nothing(self, *_: Any) -> None:
        """Whoever leaves, leaves."""

    def lease(self, body: dict[str, Any]) -> Replies:
        self.leases += 1
        return [(202, {"port": 5050, "lease": f"{self.leases:040}"})]

    def obey(self, kind: int, sequence: int) -> list[list[bytes]]:
        """Leases and Summons are answered with 200; tests put something else here."""
        return [response(sequence, 200)] if kind in (LEASE, SUMMON) else []

    def _requests(self, messages: list[list[bytes]], peers: Any) -> None:
        for name, _, asked, body in messages:
            verb = asked.decode().removeprefix("Connection.")
            self.asked.append(verb)
            for code, answer in self.answers[verb](json.loads(body)):
                self.reply(name, b"%d" % code, json.dumps(answer).encode())

    def reply(self, peer: bytes, *frames: bytes) -> None:
        self.control.sendAll([[peer, b"", *frames]])

    def _commands(self, messages: list[list[bytes]], peers: Any) -> None:
        for name, header, _ in messages:
            self.peer = name
            if header[0] in (8, 9):
                continue
            sequence = int.from_bytes(header[1:9], "big")
            self.got.append((header[0], sequence))
            self.send(*self.obey(header[0], sequence))

    def send(self, *messages: Sequence[bytes]) -> None:
        self.data.sendAll([[self.peer, *message] for message in messages])


class FalseCase(SynchronousTestCase):
    """A client and a false server; at the end nothing is left on the clock or in the log."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = Network(self.clock)
        self.server = FalseServer(self.network)
        self.failures: list[Any] = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    def _observe(self, event: dict[str, Any]) -> None:
        if event.get("log_failure") is not None:
            self.failures.append(event["log_failure"])

    def client(self, **options: Any) -> MtlClient:
        sockets = self.network.sockets("192.0.2.7")
        factory = MtlClientFactory(clock=self.clock, sockets=sockets, **options)
        client = factory.buildClient(CONTROL)
        self.addCleanup(self._end, client)
        return client

    def service(self, **options: Any) -> MtlClientService:
        factory = MtlClientFactory(
            "host", "queue", clock=self.clock, sockets=self.network.sockets("192.0.2.7"), **options
        )
        return MtlClientService(CONTROL, factory, random=lambda: 0.0)

    def _end(self, client: MtlClient) -> None:
        client.abort()
        self.clock.advance(0)
        self.assertEqual(self.failures, [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def pump(self, turns: int = 400) -> None:
        """Let everything happen that is due now; it must come to an end by itself."""
        for _ in range(turns):
            if not any(call.getTime() <= self.clock.seconds() for call in self.clock.calls):
                return
            self.clock.advance(0)
        raise AssertionError("it goes on for ever, without any time in between")

    def wait(self, seconds: float) -> None:
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.advance(0.25)
            self.pump()

    def got(self, deferred: Any) -> Any:
        """The result of a Deferred which fires with what is due now."""
        self.pump()
        return self.successResultOf(deferred)

    def ready(self, **options: Any) -> MtlClient:
        client = self.client(**options)
        self.got(client.open("host"))
        self.got(client.profile("queue"))
        return client
