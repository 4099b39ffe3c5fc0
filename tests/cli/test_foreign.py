"""``send`` and servers which are not ours: how a connection ends, and what TLS has to say."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority, Pair
from twisted_msgproto.cli.messages import MadeUp
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.cli.send import deliver, incomplete
from twisted_msgproto.core.reasons import reason
from twisted_msgproto.net.clients.shapes import SendOptions
from twisted_msgproto.registry import load

websockets = pytest.importorskip("websockets", reason="pip install websockets")
from websockets.sync.server import serve  # noqa: E402

reactor: Any = installed


def umq_answer(message: str | bytes) -> str | None:
    """What a UMQ server says to a client's message: welcome, and a result for each call."""
    assert isinstance(message, str)
    kind, number = message[0], message[1:].partition(":")[0]
    return {"H": f"W{number}:welcome", "C": f"R{number}:ok"}.get(kind)


def sabc_answer(message: str | bytes) -> str | None:
    text = message if isinstance(message, str) else message.decode()
    if text.startswith("CONNECT\r\n"):
        return "CONNECTED\r\nsession-id::s\r\n\r\n\0"
    if text.startswith("DISCONNECT\r\n"):
        return None
    number = re.search(r"\r\nmsg-id::(\S+)", text)
    assert number is not None
    return f"MESSAGE\r\nsession-id::s\r\nref-msg-id::{number[1]}\r\n\r\n\0"


class Sent:
    """One ``send`` in the test's reactor: its counts and its line."""

    def __init__(self, protocol: str, endpoint: str, **options: Any) -> None:
        self.progress = Counted()
        self.options = SendOptions(endpoint=endpoint, **options)
        self.command = load(protocol, "command")
        self.line: str | None = None

    async def run(self) -> Sent:
        why = None
        try:
            await deliver(
                reactor, self.command, self.options, MadeUp(5, 50), self.progress, timeout=60
            )
        except Exception as error:
            why = reason(error, self.options.endpoint)
        self.line = incomplete(self.progress, 5, why)
        return self


class Closing(TestCase):
    """The foreign server is that of the package ``websockets``, in a thread."""

    def close_seen(self, protocol: str, answer: Callable[[str | bytes], str | None]) -> Any:
        """What the server has seen of the end of a ``send``: its exception, and its code."""
        ends: list[tuple[type[BaseException], int | None]] = []

        def handle(connection: Any) -> None:
            try:
                while True:
                    told = answer(connection.recv())
                    if told is None:
                        connection.close()
                    else:
                        connection.send(told)
            except websockets.exceptions.ConnectionClosed as end:
                ends.append((type(end), connection.protocol.close_code))

        server = serve(handle, "127.0.0.1", 0, compression=None, close_timeout=60)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def stop() -> None:
            server.shutdown()
            thread.join()

        self.addCleanup(stop)
        sent = Sent(protocol, f"ws://127.0.0.1:{server.socket.getsockname()[1]}/")
        sending = Deferred.fromCoroutine(sent.run())

        async def ended() -> Any:
            await sending
            self.assertIsNone(sent.line)
            self.assertEqual(sent.progress.messages_acknowledged, 5)
            while not ends:  # the server's thread has to see it
                await moment()
            return ends[0]

        return ended()

    async def test_send_umq_ends_with_a_closing_handshake__HO_18(self) -> None:
        end, code = await self.close_seen("umq", umq_answer)
        self.assertEqual((end, code), (websockets.exceptions.ConnectionClosedOK, 1000))

    async def test_send_sabc_ends_with_a_closing_handshake__HO_18(self) -> None:
        end, code = await self.close_seen("sabc", sabc_answer)
        self.assertEqual((end, code), (websockets.exceptions.ConnectionClosedOK, 1000))


def moment() -> Deferred[None]:
    waited: Deferred[None] = Deferred()
    reactor.callLater(0.01, waited.callback, None)
    return waited


class Trust(TestCase):
    """A server whose certificate is not trusted, or not for this host, or which has none."""

    endpoints = (
        ("lumberjack", "tls:{}:{}"),
        ("micromsg2", "tls:{}:{}"),
        ("sabc", "tls:{}:{}"),
        ("sabc", "wss://{}:{}/"),
        ("umq", "wss://{}:{}/"),
        ("umq", "tls:{}:{}"),
    )

    def setUp(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.authority = Authority(self.directory)

    async def listen(self, pair: Pair | None) -> int:
        where = "tcp:0:interface=127.0.0.1"
        if pair is not None:
            where = f"ssl:0:interface=127.0.0.1:privateKey={pair.key}:certKey={pair.cert}"
        factory = Factory.forProtocol(Protocol)
        factory.noisy = False
        port = await serverFromString(reactor, where).listen(factory)
        self.addCleanup(port.stopListening)
        number: int = port.getHost().port
        return number

    async def lines(self, host: str, pair: Pair | None, **options: Any) -> list[str]:
        number = await self.listen(pair)
        lines = []
        for protocol, endpoint in self.endpoints:
            sent = await Sent(protocol, endpoint.format(host, number), **options).run()
            assert sent.line is not None
            self.assertEqual(sent.progress.messages_acknowledged, 0)
            self.assertNotIn("SSL", sent.line)
            lines.append(sent.line)
        self.flushLoggedErrors()
        return lines

    async def test_a_certificate_which_nobody_vouches_for__FC_06(self) -> None:
        for line in await self.lines("localhost", self.authority.server()):
            self.assertIn("TLS: the server's certificate is not one to trust", line)
            self.assertIn("--tls-ca FILE", line)

    async def test_a_certificate_for_another_host__FC_06(self) -> None:
        pair = self.authority.server("server", "elsewhere.example")
        for line in await self.lines("localhost", pair, tls_ca=self.authority.cert):
            self.assertIn("TLS: the server's certificate is for another name", line)
