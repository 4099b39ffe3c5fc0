"""Real sockets: WebSocket, TLS and wss; the same sessions as on TCP; foreign WebSocket clients."""

from __future__ import annotations

import asyncio
import contextlib

import websockets
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.sabc import sides
from tests.sabc.sides import crlf
from twisted_msgproto.sabc import (
    SabcServer,
    SabcServerFactory,
)


class Echo(SabcServer):
    async def requestReceived(self, message):
        return message.body[::-1]


class Served(TestCase):
    """A server on 127.0.0.1, TCP and WebSocket."""

    timeout = 60

    async def listen(self, endpoint=None, sink=None, server=Echo, origins=(), **options):
        self.factory = SabcServerFactory(sink, clock=reactor, **options)
        self.factory.protocol = server
        endpoint = endpoint or "tcp:0:interface=127.0.0.1"
        ports = []
        for factory in (self.factory, self.factory.webSocketFactory(origins)):
            port = await serverFromString(reactor, endpoint).listen(factory)
            self.addCleanup(port.stopListening)
            ports.append(port.getHost().port)
        self.addCleanup(self.factory.drain)
        self.tcp, self.ws = f"tcp:127.0.0.1:{ports[0]}", f"ws://127.0.0.1:{ports[1]}"
        return self.factory

    async def foreign(self, *messages, **options):
        """Say all this with another library; what is heard until the end, and how it ends."""

        async def client():
            async with websockets.connect(self.ws, proxy=None, **options) as socket:
                for message in messages:
                    await socket.send(message)
                heard = []
                with contextlib.suppress(websockets.ConnectionClosed):
                    while True:
                        heard.append(await socket.recv())
                return heard, socket.close_code, socket.subprotocol

        return await deferToThread(asyncio.run, client())

    async def test_websocket_carries_text_unless_it_is_none(self):
        """SA-25: text and binary are read; the sub-protocol is offered, not required."""
        await self.listen(newSessionId=lambda: sides.SESSION)

        said = [
            sides.CONNECT.decode(),
            sides.HOLA,  # binary
            sides.HELLO.decode(),
            sides.HOLA.replace(b"000001", b"000002").replace(b"Hola", b"\xff!"),
            *(part.decode() for part in (sides.PART_1, sides.PART_2, sides.PART_3)),
            sides.DISCONNECT.decode().rstrip(),  # without its blank line, as the source shows it
        ]
        answers, code, chosen = await self.foreign(*said, subprotocols=["sabc"])
        self.assertEqual((chosen, code), ("sabc", 1000))
        self.assertEqual(await self.foreign(*said), (answers, 1000, None))
        connected, mundo, hello, odd, parts, end = answers
        self.assertEqual(connected, crlf(f"CONNECTED\nsession-id::{sides.SESSION}\n\n^@").decode())
        self.assertEqual(mundo, sides.MUNDO.decode().replace("Mundo!!!", "aloH"))
        self.assertTrue(hello.endswith("olleH\r\n\r\n\0"))
        self.assertEqual(
            odd, sides.MUNDO.replace(b"000001", b"000002").replace(b"Mundo!!!", b"!\xff")
        )  # binary
        self.assertTrue(parts.encode().endswith(sides.WHOLE_BODY[::-1] + b"\r\n\r\n\0"))
        self.assertTrue(end.startswith("DISCONNECTING"))

    async def test_a_fault_on_websocket_is_told_and_closes_with_its_code(self):
        """SA-06, SA-20, SA-21."""
        await self.listen(newSessionId=lambda: sides.SESSION)

        no_end = sides.HOLA[:-5].decode()  # an error frame: discarded
        said = sides.CONNECT.decode(), no_end, sides.HOLA.decode() + "x"
        (_, answer), code, _ = await self.foreign(*said)
        self.assertIn("error-code::400", answer)
        self.assertIn(f"session-id::{sides.SESSION}", answer)
        self.assertEqual(code, 1002)

    async def test_before_the_session_a_message_is_small(self):
        """FAULTS: one header block, before authentication; afterwards twice the message limit."""
        await self.listen()

        lines = ["CONNECT", "client-id::me", *[f"h{n}::" + "x" * 1018 for n in range(7)], "i::"]
        largest = "\r\n".join(lines) + "x" * 1004 + "\r\n\r\n\0"
        self.assertEqual(len(largest), len("CONNECT\r\n") + 8192 + len("\r\n\0"))
        heard = await self.foreign(largest, "DISCONNECT")
        self.assertIn("CONNECTED", heard[0][0])
        for size, answered, code in ((9000, 0, 1009), (2000, 1, 1002)):
            heard = await self.foreign("CONNECT\r\n" + "x" * size)
            self.assertEqual((len(heard[0]), heard[1]), (answered, code))

    async def test_more_than_twice_the_limit_is_answered_and_not_stored(self):
        """HO-20, SA-22: as on TCP."""
        seen = []

        class Seeing(SabcServer):
            def requestReceived(self, message):
                seen.append(message)

        await self.listen(
            server=Seeing, limits={"message-bytes": 1000}, newSessionId=lambda: sides.SESSION
        )
        cut, large = (sides.HOLA.replace(b"Hola", b"x" * size) for size in (1500, 3000))
        (_, shown, answer), code, _ = await self.foreign(sides.CONNECT.decode(), cut, large)
        self.assertIn("truncated::yes", shown)
        self.assertIn("error-code::413", answer)
        self.assertEqual(code, 1009)
        self.assertEqual([message.truncated for message in seen], [True])
