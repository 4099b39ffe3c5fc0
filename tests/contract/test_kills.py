"""Real servers, killed under clients which come back: nothing is lost that nobody was told of."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.processes import Launched, Launcher, launching
from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.lumberjack import LumberjackClientFactory, LumberjackClientService
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ClientService
from twisted_msgproto.mtl import MtlClientFactory, MtlClientService
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.sabc import SabcClientFactory, SabcClientService
from twisted_msgproto.umq import UmqClientFactory, UmqClientService

pytestmark = pytest.mark.slow

reactor: Any = installed

KILLS = 5
WINDOW = 20
"""Messages in flight."""

MORE = 40
"""Acknowledgements from one server before it is killed."""

SOON: dict[str, object] = {"retry-first": 0.1, "retry-most": 1.0, "waiting-seconds": 600.0}
"""A killed server is back soon, and this machine may be busy."""


class Ledger:
    """What was sent, and what the Deferreds said of it.

    Attributes:
        safe: bodies whose Deferred fired.
        fired: how often the Deferred of each sending has fired.
        errors: what the sender was told; each such body was sent again.
    """

    def __init__(self, send: Callable[[bytes], Deferred[Any]]) -> None:
        self._send = send
        self._next = 0
        self._waiting: list[tuple[int, Deferred[None]]] = []
        self._end: Deferred[None] = Deferred()
        self.going = True
        self.sendings = 0
        self.flying = 0
        self.safe: set[bytes] = set()
        self.fired: Counter[int] = Counter()
        self.errors: list[Exception] = []

    def fill(self) -> None:
        """Keep the window full."""
        while self.going and self.flying < WINDOW:
            self._next += 1
            self.send(b'{"n":%d}' % self._next)

    def send(self, body: bytes) -> None:
        self.sendings += 1
        number = self.sendings
        self.flying += 1
        self._send(body).addCallbacks(
            self._acknowledged, self._told, (number, body), errbackArgs=(number, body)
        )

    def _acknowledged(self, result: object, number: int, body: bytes) -> None:
        self.fired[number] += 1
        self.flying -= 1
        self.safe.add(body)
        self._look()
        self.fill()
        if not self.flying:
            self._end.callback(None)

    def landed(self) -> Deferred[None]:
        """Send nothing new; fires when all is safe that was sent."""
        self.going = False
        return self._end

    def _told(self, failure: Any, number: int, body: bytes) -> None:
        self.fired[number] += 1
        self.errors.append(failure.value)
        # As an application would: what it was told of it sends again.
        reactor.callLater(0, self._again, body)

    def _again(self, body: bytes) -> None:
        self.flying -= 1
        self.send(body)

    def _look(self) -> None:
        for entry in list(self._waiting):
            if len(self.safe) >= entry[0]:
                self._waiting.remove(entry)
                entry[1].callback(None)

    def more(self, count: int) -> Deferred[None]:
        """Fires when ``count`` more are safe."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append((len(self.safe) + count, waiting))
        return waiting


class Killed(TestCase):
    """HO-12: five times kill -9, each time under load.

    A client loses nothing that it was not told about: whatever was acknowledged is in the queue,
    and of the rest every Deferred has failed.  What it was told of it sends again here, so that in
    the end all is in the queue.
    """

    timeout = 900

    option = "-e"

    def serve(self, launch: Launcher, name: str, endpoint: str, *more: str) -> Launched:
        return launch(name, self.option, endpoint, "--queue", self.queue, *more, module="twisted")

    async def killed(
        self,
        name: str,
        anywhere: str,
        make: Callable[[int], Any],
        send: Callable[[Any, bytes], Deferred[Any]],
        *more: str,
    ) -> Ledger:
        """Kill the server of ``name`` five times; what was sent and told."""
        directory = Path(self.mktemp())
        directory.mkdir()
        self.queue = directory / "queue"
        with launching(directory) as launch:
            server = self.serve(launch, name, anywhere, *more)
            said = await deferToThread(server.line, rf"\b{name} listening on ([^\s\"'\\]+)")
            port = int(re.findall(r":(\d+)", said[1])[-1])
            there = re.sub(r"(?<=:)(0|\*)(?=:|$)", str(port), anywhere)
            service = make(port)
            service.startService()
            ledger = Ledger(lambda body: send(service, body))
            ledger.fill()
            for _ in range(KILLS):
                await ledger.more(MORE)
                self.assertEqual(await deferToThread(server.kill), -signal.SIGKILL)
                server = self.serve(launch, name, there, *more)
            await ledger.more(MORE)
            await ledger.landed()
            await service.close()
            self.assertEqual(service.state, "down")
            await deferToThread(server.end)
        self.assertEqual(set(ledger.fired.values()), {1}, "each Deferred fires once")
        self.assertEqual(len(ledger.fired), ledger.sendings, "and every one of them does")
        stored = Counter(body for batch in self.rows() for body in batch)
        self.assertEqual(ledger.safe - stored.keys(), set())
        self.assertEqual(stored.keys() - ledger.safe, set(), "all were acknowledged in the end")
        self.assertGreaterEqual(len(ledger.safe), (KILLS + 1) * MORE)
        return ledger

    def rows(self) -> list[list[bytes]]:
        reader = QueueReader(self.queue)
        return [
            batch.column("body").to_pylist() for batch in reader.read(reader.begin(), reader.end())
        ]

    def told(self, ledger: Ledger) -> None:
        """What was on its way when a server died is told, and nothing else."""
        self.assertEqual({type(error) for error in ledger.errors} - {ConnectionClosed}, set())
        self.assertLessEqual(len(ledger.errors), KILLS * WINDOW)

    def tcp(self, port: int) -> Any:
        return clientFromString(reactor, f"tcp:127.0.0.1:{port}")

    async def test_lumberjack(self) -> None:
        """LJ-15: events are kept; nobody is told of anything but their acknowledgement."""
        ledger = await self.killed(
            "lumberjack",
            "tcp:0:interface=127.0.0.1",
            lambda port: LumberjackClientService(
                self.tcp(port), LumberjackClientFactory(), limits=SOON
            ),
            lambda service, body: service.send(body),
        )
        self.assertEqual(ledger.errors, [])

    async def test_micromsg2(self) -> None:
        """MM-19"""
        self.told(
            await self.killed(
                "micromsg2",
                "tcp:0:interface=127.0.0.1",
                lambda port: MicroMsg2ClientService(
                    self.tcp(port), MicroMsg2ClientFactory(), limits=SOON
                ),
                lambda service, body: service.send("orders", body),
            )
        )

    async def test_micromsg2_which_may_repeat(self) -> None:
        """MM-19: ``safe``"""
        ledger = await self.killed(
            "micromsg2",
            "tcp:0:interface=127.0.0.1",
            lambda port: MicroMsg2ClientService(
                self.tcp(port), MicroMsg2ClientFactory(), limits=SOON
            ),
            lambda service, body: service.send("orders", body, safe=True),
        )
        self.assertEqual(ledger.errors, [])

    async def test_sabc(self) -> None:
        """SA-16"""
        self.told(
            await self.killed(
                "sabc",
                "tcp:0:interface=127.0.0.1",
                lambda port: SabcClientService(self.tcp(port), SabcClientFactory(), limits=SOON),
                lambda service, body: service.request(body, timeout=600),
            )
        )

    async def test_sabc_over_websocket(self) -> None:
        """SA-16, SA-25: ``safe``"""
        self.option = "--websocket"
        ledger = await self.killed(
            "sabc",
            "tcp:0:interface=127.0.0.1",
            lambda port: SabcClientService(
                self.tcp(port), SabcClientFactory(), url=f"ws://127.0.0.1:{port}/", limits=SOON
            ),
            lambda service, body: service.request(body, timeout=600, safe=True),
        )
        self.assertEqual(ledger.errors, [])

    async def test_umq(self) -> None:
        """UM-19"""
        self.told(
            await self.killed(
                "umq",
                "tcp:0:interface=127.0.0.1",
                lambda port: UmqClientService(
                    self.tcp(port), UmqClientFactory(f"ws://127.0.0.1:{port}/"), limits=SOON
                ),
                lambda service, body: service.call(body.decode(), timeout=600),
            )
        )

    async def test_mtl(self) -> None:
        """MT-28: contents are kept; nobody is told of anything but their Confirm."""
        limits = {"request-timeout": 1.0, "heartbeat": 0.5, "liveness": 1.5}
        ledger = await self.killed(
            "mtl",
            "tcp://127.0.0.1:*",
            lambda port: MtlClientService(
                f"tcp://127.0.0.1:{port}",
                MtlClientFactory("host", "ingest", limits=limits),
                limits=SOON,
            ),
            lambda service, body: service.send("events", body),
            "--one-socket",
        )
        self.assertEqual(ledger.errors, [])
