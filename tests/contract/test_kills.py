"""A real server of each, killed under clients which come back: nothing is lost in silence."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.endpoints import reserved
from tests.tools.five import ANYWHERE, CLIENTS, SERVERS, rows
from tests.tools.processes import Launched, launching
from twisted_msgproto.core.errors import ConnectionClosed

pytestmark = pytest.mark.slow

reactor: Any = installed

KILLS = int(os.environ.get("MSGPROTO_KILLS", "5"))
"""``./run chaos`` has more."""

WINDOW = 20
"""Messages in flight."""

MORE = 40
"""Each client has so many acknowledgements from one server before it is killed."""

LOAD = 10
"""So many come to each client while all of them send, and then the server is killed."""


class Ledger:
    """What was sent, and what the Deferreds said of it.

    Attributes:
        safe: bodies whose Deferred fired.
        fired: how often the Deferred of each sending has fired.
        errors: what the sender was told; each such body was sent again.
    """

    def __init__(self, send: Callable[[bytes], Deferred[Any]], name: str) -> None:
        self._name = name.encode()
        self._send = send
        self._next = 0
        self._waiting: list[tuple[int, Deferred[None]]] = []
        self._end: Deferred[None] | None = None
        self.going = False
        self.sendings = 0
        self.flying = 0
        self.safe: set[bytes] = set()
        self.fired: Counter[int] = Counter()
        self.errors: list[Exception] = []

    def go(self) -> None:
        self.going = True
        self.fill()

    def fill(self) -> None:
        while self.going and self.flying < WINDOW:
            self._next += 1
            self.send(b'{"of":"%s","n":%d}' % (self._name, self._next))

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
        if self._end is not None and not self.flying:
            self._end.callback(None)

    def landed(self) -> Deferred[None]:
        """Send nothing new; fires when all is safe that was sent."""
        self.going = False
        self._end = Deferred()
        if not self.flying:
            self._end.callback(None)
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
        """Go on; fires when ``count`` more are safe."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append((len(self.safe) + count, waiting))
        self.go()
        return waiting

    def pause(self, result: object = None) -> None:
        self.going = False


class Killed(TestCase):
    """HO-12: five times kill -9, each time while clients of every protocol send.

    A client loses nothing that it was not told about: whatever was acknowledged is in the queue,
    and of the rest every Deferred has failed.  What it was told of it sends again here, so that in
    the end all is in the queue.
    """

    timeout = 900 + 60 * KILLS

    async def test_a_client_loses_nothing_that_it_was_not_told_of(self) -> None:
        """HO-12, LJ-15, MM-19, SA-16, SA-25, UM-19, MT-28"""
        directory = Path(self.mktemp())
        directory.mkdir()
        queue, file = directory / "queue", directory / "gateway.toml"
        with launching(directory) as launch, reserved(len(ANYWHERE)) as held:
            there = dict(zip(ANYWHERE, held, strict=True))
            file.write_text(SERVERS.format(queue=queue, **there))

            def serve() -> Launched:
                return launch("gateway", "--config", file)

            server = serve()
            ports = {
                name: int(
                    (
                        await deferToThread(
                            server.line,
                            rf"\b{client.server} listening on \S+:(\d+)",
                            nth=client.nth,
                        )
                    )[1]
                )
                for name, client in CLIENTS.items()
            }
            services = {name: client.make(ports[name]) for name, client in CLIENTS.items()}
            ledgers = {name: self.ledger(name, service) for name, service in services.items()}
            for service in services.values():
                service.startService()
            for _ in range(KILLS):
                await self.all_stand(ledgers.values())
                await gatherResults([ledger.more(LOAD) for ledger in ledgers.values()])
                self.assertEqual(await deferToThread(server.kill), -signal.SIGKILL)
                server = serve()
            await self.all_stand(ledgers.values())
            await gatherResults([ledger.landed() for ledger in ledgers.values()])
            for name, service in services.items():
                await service.close()
                self.assertEqual(service.state, "down", name)
            await deferToThread(server.end)
        stored = rows(queue)
        for name, ledger in ledgers.items():
            self.check(name, ledger, stored[CLIENTS[name].server])
        acknowledged = sum(len(ledger.safe) for ledger in ledgers.values())
        print(f"figure: {KILLS} kills, {acknowledged:,} acknowledged, 0 of them lost")

    def ledger(self, name: str, service: Any) -> Ledger:
        send = CLIENTS[name].send
        return Ledger(lambda body: send(service, body), name)

    async def all_stand(self, ledgers: Iterable[Ledger]) -> None:
        """Every client has something acknowledged; who has enough waits for the others."""
        await gatherResults([ledger.more(MORE).addCallback(ledger.pause) for ledger in ledgers])

    def check(self, name: str, ledger: Ledger, stored: set[bytes]) -> None:
        """What one client was told is true of what its server has stored."""
        self.assertEqual(set(ledger.fired.values()), {1}, f"{name}: each Deferred fires once")
        self.assertEqual(len(ledger.fired), ledger.sendings, f"{name}: every one of them fires")
        mine = {body for body in stored if b'"%s"' % name.encode() in body}
        self.assertEqual(ledger.safe - mine, set(), f"{name}: acknowledged and not stored")
        self.assertEqual(mine - ledger.safe, set(), f"{name}: stored and never acknowledged")
        self.assertGreaterEqual(len(ledger.safe), (KILLS + 1) * MORE)
        allowed = {ConnectionClosed} if CLIENTS[name].told else set()
        self.assertEqual({type(error) for error in ledger.errors} - allowed, set(), name)
        self.assertLessEqual(len(ledger.errors), KILLS * WINDOW)
