"""One ``msgproto send`` in memory: what the command line runs, on a clock."""

from __future__ import annotations

import functools
from typing import Any

from twisted.internet.defer import Deferred

from tests.contract.cases import CONTROL, Endpoint
from tests.contract.world import World
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.cli.send import deliver, encoder, incomplete
from twisted_msgproto.core.reasons import reason
from twisted_msgproto.mtl import MtlClientFactory
from twisted_msgproto.net.clients.command_types import SendOptions
from twisted_msgproto.registry import load
from twisted_msgproto.testing import Pair as Line

TIMEOUT_SECONDS = 20.0
LONGEST_SECONDS = 120.0
"""No ``send`` takes longer than this, whatever the server does: its time-out, and leaving."""

ENDPOINTS = {
    "lumberjack": "tcp:server:5044",
    "micromsg2": "tcp:server:5045",
    "sabc": "tcp:server:5046",
    "sabc-ws": "ws://server:5047/",
    "umq": "ws://server:5048/",
    "mtl": CONTROL,
}

RAW = (
    "Traceback",
    "SSL routines",
    "cleanly",
    "non-clean",
    "Error",
    "<",
    "Deferred",
    "None",
    "ITCP",
)
"""What no operator should have to read."""


class Bodies:
    def __init__(self, bodies: list[bytes], step: int) -> None:
        self.left = list(bodies)
        self.step = step

    async def some(self, most: int) -> list[bytes]:
        count = min(most, self.step)
        taken, self.left = self.left[:count], self.left[count:]
        return taken


class Typed:
    """An input that brings a line when somebody has typed it; :meth:`end` ends it."""

    def __init__(self) -> None:
        self.waiting: Deferred[list[bytes]] | None = None

    async def some(self, most: int) -> list[bytes]:
        self.waiting = Deferred()
        return await self.waiting

    def give(self, *lines: bytes) -> None:
        assert self.waiting is not None
        waiting, self.waiting = self.waiting, None
        waiting.callback(list(lines))

    def end(self) -> None:
        self.give()


class Peer:
    """An endpoint of what is no server: each connection is a line to a protocol of the test."""

    def __init__(self, world: World, build: Any) -> None:
        self.world = world
        self.build = build
        self.lines: list[Line] = []

    def connect(self, factory: Any) -> Deferred[Any]:
        line = Line(self.build, factory.buildProtocol)
        self.lines.append(line)
        self.world.peers.append(OnLine(line))
        connected: Deferred[Any] = Deferred()
        connected.callback(line.client.protocol)
        return connected


class OnLine:
    sent = ()

    def __init__(self, line: Line) -> None:
        self.line = line

    def pump(self) -> bool:
        return self.line.pump()

    def cut(self) -> None:
        self.line.cut()


def played(test: Any, world: World, endpoint: Any, host: str) -> Any:
    """The command module of the protocol, which reaches this world's server, or ``endpoint``."""
    name = test.case.name
    module = load(name.partition("-")[0], "command")
    at = Endpoint(test.case, world) if endpoint is None else endpoint
    for attribute in ("client_endpoint", "websocket_endpoint"):
        if hasattr(module, attribute):
            test.patch(module, attribute, lambda reactor, options: at)
    if name == "mtl":
        sockets = world.network.sockets(host)
        test.patch(module, "MtlClientFactory", functools.partial(MtlClientFactory, sockets=sockets))
    return module


class Sent:
    """One ``send``.

    Attributes:
        progress: what it was told.
        done: fires when it has ended.
        error: what ended it, or None.
    """

    def __init__(self, test: Any, world: World, endpoint: Any = None, **options: Any) -> None:
        module = played(test, world, endpoint, "192.0.2.7")
        count, step = options.pop("count", 6), options.pop("step", 2)
        source = options.pop("source", None)
        self.test, self.world = test, world
        self.progress = Counted()
        self.error: BaseException | None = None
        lines = options.pop("lines", [b'{"n":%d}' % n for n in range(count)])
        self.options = SendOptions(endpoint=ENDPOINTS[test.case.name], window=2, **options)
        encode = encoder(module, self.options)
        bodies = Bodies(lines if encode is None else list(map(encode, lines)), step)
        self.done = Deferred.fromCoroutine(
            deliver(
                world.clock, module, self.options, source or bodies, self.progress, TIMEOUT_SECONDS
            )
        )
        self.done.addErrback(self._failed)

    def _failed(self, failure: Any) -> None:
        self.error = failure.value

    @property
    def acknowledged(self) -> int:
        return self.progress.messages_acknowledged

    @property
    def line(self) -> str | None:
        why = None if self.error is None else reason(self.error, self.options.endpoint)
        return incomplete(self.progress, None, why)

    def settle(self) -> Sent:
        """Wait until it has ended; it has a deadline of its own."""
        waited = 0.0
        while not self.done.called or self.done.paused:
            self.test.assertLess(waited, LONGEST_SECONDS, "send does not end")
            self.world.wait(1)
            waited += 1
        self.world.pump()
        return self

    def missing(self, at_most: int) -> str:
        """It has ended with a line: no more than ``at_most`` messages are acknowledged."""
        line = self.settle().line
        assert line is not None, "all is well, says send"
        self.test.assertLessEqual(self.acknowledged, at_most)
        self.test.assertNotIn("\n", line)
        for ugly in RAW:
            self.test.assertNotIn(ugly, line)
        start = "nothing was sent: "
        if self.progress.messages_sent:
            start = f"{self.acknowledged} of {self.progress.messages_sent} messages were "
        self.test.assertEqual(line[: len(start)], start)
        self.test.assertGreater(len(line), len(start) + 5)
        return line
