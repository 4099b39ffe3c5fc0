"""What tests of every room put in a real thing's id, and how they ask a machine."""

from __future__ import annotations

import shutil
import ssl
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_msgproto import testing
from twisted_msgproto.core.connection import Connection, WorkLost


def due(machine: Connection[Any, Any, Any], now: float) -> tuple[list[Any], float | None]:
    """Let a machine do what is due; return its events and its next deadline."""
    return machine.advance(now), machine.deadline


def unanswered(machine: Connection[Any, Any, Any]) -> list[Any]:
    """End a machine's connection; return the work that nobody answered, as plain values."""
    return [one for event in machine.lost(0.0) if isinstance(event, WorkLost) for one in event.work]


@implementer(ITCPTransport)
class Tcp(StringTransport):
    """Says that it is a TCP connection, and notes how it is to behave."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, bool] = {}

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.told["NoDelay"] = enabled

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self.told["KeepAlive"] = enabled


class LoggedCase(SynchronousTestCase):
    """Has a clock, and ``lines`` that the package has logged."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.lines: list[str] = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    def _observe(self, event: dict[str, Any]) -> None:
        if str(event.get("log_namespace", "")).startswith("twisted_msgproto"):
            self.lines.append(event["log_format"].format(**event))


class TlsClient:
    """A client over TLS without sockets, shaken hands with the server's end ``server``."""

    def __init__(
        self,
        server: Any,
        transport: StringTransport,
        latest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = latest
        self.server, self.transport = server, transport
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        server.makeConnection(transport)
        shaken = False
        while not shaken:
            try:
                self.tls.do_handshake()
                shaken = True
            except ssl.SSLWantReadError:
                pass
            octets = self.outgoing.read()
            while octets:  # reads of one record each
                end = 5 + int.from_bytes(octets[3:5])
                server.dataReceived(octets[:end])
                octets = octets[end:]
            self.take()

    def take(self) -> None:
        self.incoming.write(self.transport.value())
        self.transport.clear()

    def records(self, *pieces: bytes) -> bytes:
        for piece in pieces:
            self.tls.write(piece)
        return self.outgoing.read()

    def read(self) -> bytes:
        self.take()
        came = b""
        while True:
            try:
                octets = self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                return came
            if not octets:
                return came
            came += octets


def lines_run(work: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def bytes_of(build: Callable[[], object]) -> int:
    """What is allocated for what ``build`` returns, while it is there.

    A thread of pytest-xdist takes its orders meanwhile: what that keeps does not count.
    """
    others = [tracemalloc.Filter(False, f"*/{name}/*") for name in ("execnet", "xdist")]
    others.append(tracemalloc.Filter(False, threading.__file__))
    tracemalloc.start()
    try:
        built = build()
        found = tracemalloc.take_snapshot().filter_traces(others)
    finally:
        tracemalloc.stop()
    assert built is not None
    return sum(trace.size for trace in found.traces)


def own_time(**instead: Any) -> SimpleNamespace:
    """One module's ``time``: other threads of this process look at the clock and sleep, too."""
    return SimpleNamespace(**{**vars(time), **instead})


class HeldSink(testing.HeldSink):
    """Keeps batches and their Deferreds until the test says that they are safe or never will be."""

    safe = testing.HeldSink.release


class Figures:
    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._known = dict(read())

    def __call__(self, step: object = None) -> dict[str, Any]:
        """Return the figures that ``step``, which was evaluated just now, has changed."""
        before, self._known = self._known, dict(self._read())
        return {name: now for name, now in self._known.items() if before.get(name) != now}


def temporary(case: Any) -> Path:
    directory = tempfile.mkdtemp(prefix="msgproto-")
    case.addCleanup(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
