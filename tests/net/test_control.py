"""The operator's HTTP: who may ask, what is answered, and where it lies."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from twisted_msgproto.core.errors import QueueAway, QueueError
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.net.site.client import GatewayBroker, SocketPath
from twisted_msgproto.net.site.http import BoundedSite
from twisted_msgproto.net.site.queue_view import MessageShown, NoSuchQueue, QueueShown


class OverUnix(http.client.HTTPConnection):
    """Speaks HTTP on the control socket in a queue's directory."""

    def __init__(self, directory: str) -> None:
        super().__init__("gateway", timeout=60)
        self.path = os.path.join(directory, "control")

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def message(place: int, body: bytes = b"x", **fields: str) -> MessageShown:
    return MessageShown(
        message_id=place, received_at=1_700_000_000_000_000, tries=1, bytes=len(body),
        fields=fields, body=body,
    )  # fmt: skip


def opened_files() -> list[str]:
    """What this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one which lists them
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


class Shelf:
    """A broker of two queues; what it is told to do is noted."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.broken: Exception | None = None
        self.answer: Deferred[int] | None = None

    def queues(self) -> list[QueueShown]:
        if self.broken is not None:
            raise self.broken
        return [
            QueueShown(space="micromsg2", name="orders", waiting=2, oldest=5),
            QueueShown(space="mtl/v/queue", name="käse & brot", waiting=0, in_flight=1, bytes=3),
            QueueShown(space="mtl/w/queue", name="käse & brot", waiting=5, in_flight=2, bytes=4),
        ]

    def peek(self, space: str, name: str, count: int) -> list[MessageShown]:
        if name != "orders":
            raise NoSuchQueue(f"there is no queue {name!r}")
        self.told.append(("peek", space, name, count))
        return [message(1, b"caf\xc3\xa9", a="1"), message(2, b"\xff")][:count]

    def purge(self, space: str, name: str) -> Any:
        self.told.append(("purge", space, name))
        return 7 if self.answer is None else self.answer

    def requeue(self, space: str, name: str, to: str) -> int:
        self.told.append(("requeue", space, name, to))
        return 8


class Control(TestCase):
    def setUp(self) -> None:
        self.shelf = Shelf()
        self.directory = self.mktemp()
        os.makedirs(self.directory)

    def serve(self, directory: str | None = None) -> Gateway:
        gateway = Gateway(reactor, directory or self.directory)
        self.patch(gateway, "broker", lambda: self.shelf)
        gateway.startService()
        self.addCleanup(gateway.stopService)
        return gateway

    def asked(self, verb: str, *arguments: Any, directory: str | None = None) -> Deferred[Any]:
        broker = GatewayBroker(directory or self.directory)
        return deferToThread(getattr(broker, verb), *arguments)

    def request(
        self, method: str, target: str, headers: Any = (), body: Any = None
    ) -> Deferred[tuple[int, bytes]]:
        def ask() -> tuple[int, bytes]:
            connection = OverUnix(self.directory)
            try:
                connection.request(method, target, headers=dict(headers), body=body)
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        return deferToThread(ask)

    # ── what is asked ───────────────────────────────────────────────────────────────────────────

    async def test_what_the_broker_has_comes_out_as_it_was(self) -> None:
        self.serve()
        self.assertEqual(await self.asked("queues"), self.shelf.queues())
        shown = await self.asked("peek", "micromsg2", "orders", 5)
        self.assertEqual(shown, [message(1, b"caf\xc3\xa9", a="1"), message(2, b"\xff")])
        await self.request("GET", "/broker/peek?space=a&name=orders")
        self.assertEqual(await self.asked("purge", "mtl/v/queue", "käse & brot"), 7)
        self.assertEqual(await self.request("GET", "/alive"), (200, b"{}\n"))
        broker = json.loads((await self.request("GET", "/status.json"))[1])["broker"]
        self.assertEqual([one["waiting"] for one in broker["queues"]], [5, 2, 0])
        self.assertEqual(
            {name: [*space.values()] for name, space in broker["spaces"].items()},
            {"micromsg2": [1, 2, 0, 0], "mtl": [2, 5, 3, 7]},
        )
        self.assertEqual(await self.asked("requeue", "micromsg2", "orders.dead", "orders"), 8)
        self.assertEqual(
            self.shelf.told,
            [
                ("peek", "micromsg2", "orders", 5),
                ("peek", "a", "orders", 10),
                ("purge", "mtl/v/queue", "käse & brot"),
                ("requeue", "micromsg2", "orders.dead", "orders"),
            ],
        )

    async def test_an_answer_is_bounded_in_messages_and_bytes(self) -> None:
        self.serve()
        shelf: Any = self.shelf
        for stored, shown in (
            ([message(n, bytes(4 << 20)) for n in range(3)], 1),
            ([message(0, bytes((4 << 20) - 1)), message(1), message(2)], 2),
            ([message(n) for n in range(2000)], 1000),
        ):
            shelf.peek = lambda space, name, count, stored=stored: stored
            got = await self.asked("peek", "micromsg2", "orders", 1000)
            self.assertEqual([one.message_id for one in got], list(range(shown)))
        shelf.queues = lambda: [QueueShown(space="s", name="q", waiting=0)] * 10_003
        answer = json.loads((await self.request("GET", "/broker/queues"))[1])
        self.assertEqual((len(answer["queues"]), answer["more"]), (10_000, 3))
        broker = json.loads((await self.request("GET", "/status.json"))[1])["broker"]
        self.assertEqual((len(broker["queues"]), broker["queues_total"]), (200, 10_003))

    async def test_what_cannot_be_is_one_line(self) -> None:
        self.serve()
        with self.assertRaisesRegex(NoSuchQueue, "there is no queue 'x'"):
            await self.asked("peek", "micromsg2", "x", 1)
        for count in (0, 1001):
            with self.assertRaisesRegex(QueueError, "count is a number from 1 to 1000"):
                await self.asked("peek", "micromsg2", "orders", count)
        with self.assertRaisesRegex(QueueError, "count is a number from 1 to 1000, not '9+…$"):
            await self.asked("peek", "micromsg2", "orders", "9" * 6000)
        with self.assertRaisesRegex(QueueError, "another queue"):
            await self.asked("requeue", "micromsg2", "orders", "orders")
        self.shelf.broken = QueueError("two\nlines")
        with self.assertRaisesRegex(QueueError, "^two lines$"):
            await self.asked("queues")
        self.shelf.broken = QueueError("x" * 4001)
        with self.assertRaisesRegex(QueueError, "^x{3999}…$"):
            await self.asked("queues")

    async def test_a_fault_of_ours_is_logged_and_told_without_its_traceback(self) -> None:
        self.serve()
        self.shelf.broken = ZeroDivisionError("secret")
        with self.assertRaisesRegex(QueueError, "^the gateway failed; its log says why$"):
            await self.asked("queues")
        self.assertEqual((await self.request("GET", "/status.json"))[0], 500)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    async def test_requests_that_nobody_of_ours_makes(self) -> None:
        self.serve()
        purge = "/broker/purge?space=micromsg2&name=orders"
        for method, target, headers, status in (
            ("GET", "/broker/nothing", {}, 404),
            ("GET", "/broker/peek?space=micromsg2", {}, 400),
            ("GET", "/broker/peek?space=%FF&name=x", {}, 400),
            ("GET", purge, {"X-Msgproto": "1"}, 405),
            ("DELETE", "/broker/queues", {}, 405),
            # A browser sends this for a page of another site.
            ("POST", purge, {"Content-Type": "text/plain"}, 400),
        ):
            got, _ = await self.request(method, target, headers)
            self.assertEqual(got, status, (method, target))
        self.assertEqual(self.shelf.told, [])

    async def test_the_body_of_a_request_is_not_kept(self) -> None:
        self.serve()
        target = "/broker/purge?space=micromsg2&name=orders"
        status, answer = await self.request("POST", target, {"X-Msgproto": "1"}, bytes(1 << 20))
        self.assertEqual((status, answer), (200, b'{"count": 7}\n'))
        chunks = iter([bytes(1 << 16)] * 16)
        status, answer = await self.request("POST", target, {"X-Msgproto": "1"}, chunks)
        self.assertEqual((status, answer), (200, b'{"count": 7}\n'))

    # ── the socket ──────────────────────────────────────────────────────────────────────────────

    async def test_the_socket_is_for_its_user_alone_and_ends_with_the_gateway(self) -> None:
        service = self.serve()
        path = Path(self.directory, "control")
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        await service.stopService()
        self.assertFalse(path.exists())

    async def test_a_file_of_somebody_else_stays_and_the_gateway_works_without(self) -> None:
        path = Path(self.directory, "control")
        path.write_text("mine")
        with capturedLogs() as logged:
            gateway = self.serve()
        self.assertIn("which works without that", str(list(map(formatEvent, logged))))
        await gateway.stopService()
        self.assertEqual(path.read_text(), "mine")

    async def test_a_directory_with_a_long_name_has_a_socket_too(self) -> None:
        directory = os.path.join(self.directory, *["d" * 50] * 4)
        os.makedirs(directory)
        service = self.serve(directory)
        self.assertTrue(Path(directory, "control").is_socket())
        self.assertEqual(len(await self.asked("queues", directory=directory)), 3)
        await service.stopService()
        self.assertNotIn("control", os.listdir(directory))
        self.assertNotIn(os.path.realpath(directory), opened_files())

    async def test_the_socket_of_another_user_is_told(self) -> None:
        self.serve()
        with (
            patch.object(SocketPath, "__init__", side_effect=PermissionError(13, "no")),
            self.assertRaisesRegex(QueueAway, "this user may not use its socket"),
        ):
            await self.asked("queues")


@pytest.mark.parametrize(
    "answer",
    [b"{}", b'{"queues": [{"x": 1}], "messages": [1], "count": "x", "done": 3}', b"[]", b"{"],
)
def test_what_answers_and_is_no_gateway_is_one_line(answer: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(502 if answer == b"[]" else 200)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        broker = GatewayBroker(f"http://127.0.0.1:{server.server_port}")
        asks: tuple[Any, ...] = (
            broker.queues,
            broker.reload,
            lambda: broker.peek("s", "q", 1),
            lambda: broker.purge("s", "q"),
            lambda: broker.requeue("s", "q", "p"),
        )
        try:
            for ask in asks:
                with pytest.raises(QueueError, match=r"than a gateway of this|is no gateway"):
                    ask()
        finally:
            server.shutdown()


# ── hostile connections to a gateway's sites ────────────────────────────────────────────────────


CONNECTIONS_MAX, REQUEST_SECONDS = 100, 30.0


ASKED = b"GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
ADDRESS = IPv4Address("TCP", "127.0.0.1", 1)


class Quick(Resource):
    """Answers at once."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        return b"well"


class Stream(Resource):
    """Never ends its answer."""

    isLeaf = True

    def render_GET(self, request: Request) -> Any:
        request.write(b"begun")
        return NOT_DONE_YET


class Wire(StringTransport):
    """Loses its connection when it is told to."""

    channel: Any = None

    def loseConnection(self) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self.channel.connectionLost(None)

    abortConnection = loseConnection


class Served:
    """A site without sockets, on a clock of our own."""

    def __init__(self) -> None:
        root = Resource()  # type: ignore[no-untyped-call]
        root.putChild(b"quick", Quick())  # type: ignore[no-untyped-call]
        root.putChild(b"stream", Stream())  # type: ignore[no-untyped-call]
        self.clock: Any = Clock()
        self.site = BoundedSite(root, reactor=self.clock)

    def connect(self, nbytes: bytes = b"") -> Wire | None:
        channel = self.site.buildProtocol(ADDRESS)
        if channel is None:
            return None
        wire = Wire()
        wire.channel = channel
        channel.makeConnection(wire)
        channel.dataReceived(nbytes)
        return wire

    def ask(self, wire: Wire | None) -> bool:
        """Whether a whole request is answered."""
        assert wire is not None
        wire.clear()
        wire.channel.dataReceived(ASKED)
        return b"well" in wire.value()


def test_silent_connections_give_way_to_a_scraper() -> None:
    served = Served()
    silent = [served.connect(b"GET / HT") for _ in range(3 * CONNECTIONS_MAX)]
    assert len(served.site.connections) == CONNECTIONS_MAX
    assert served.ask(served.connect())
    assert sum(not wire.disconnecting for wire in silent if wire) == CONNECTIONS_MAX - 1


def test_who_is_answered_now_and_then_is_closed_after_those_who_say_nothing() -> None:
    served = Served()
    scraper = served.connect()
    for _ in range(3 * CONNECTIONS_MAX):
        served.connect(b"GET / HT")
        assert served.ask(scraper)


def test_open_streams_are_not_closed_for_others_and_then_nobody_is_let_in() -> None:
    served = Served()
    streams = [served.connect(STREAM) for _ in range(CONNECTIONS_MAX)]
    assert served.connect() is None
    assert streams[0] is not None
    streams[0].abortConnection()
    assert served.ask(served.connect())


def test_a_header_that_comes_byte_by_byte_ends_in_time() -> None:
    served = Served()
    wire = served.connect()
    assert wire is not None
    for byte in range(int(REQUEST_SECONDS) - 1):
        wire.channel.dataReceived(ASKED[byte : byte + 1])
        served.clock.advance(1.0)
    assert not wire.disconnecting
    served.clock.advance(1.0)
    assert wire.disconnecting
    assert not served.site.connections
    assert not served.clock.getDelayedCalls()


def test_a_connection_rests_only_for_a_while_and_a_stream_as_long_as_it_lasts() -> None:
    served = Served()
    wire, stream = served.connect(), served.connect(STREAM)
    for _ in range(3):
        served.clock.advance(REQUEST_SECONDS - 1)
        assert served.ask(wire)
    served.clock.advance(REQUEST_SECONDS)
    assert wire is not None
    assert stream is not None
    assert (wire.disconnecting, stream.disconnecting) == (True, False)
