"""A gateway killed with SIGKILL under publishers and consumers of its queues.

Three times in the suite, and more often, with the rows in a table of Spark in the end, where
``MSGPROTO_TIMES`` says how often.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.processes import Launched, Launcher, launching
from twisted_msgproto.core.errors import MsgprotoError
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
)
from twisted_msgproto.mtl import MtlClient, MtlClientFactory, MtlClientService
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.broker_files.marks import Marks
from twisted_msgproto.queue.broker_files.settled import parsed, taken

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

reactor: Any = installed

MORE = os.environ.get("MSGPROTO_TIMES")
KILLS = int(MORE or 3)
LOAD = 60
"""So many messages of each publisher are acknowledged between two kills."""
WINDOW = 20
PATIENCE_SECONDS = 300.0
"""Messages of one publisher in flight."""

SERVERS = """
[queue]
directory = "{queue}"
[micromsg2]
endpoint = ["tcp:{micromsg2}:interface=127.0.0.1"]
broker-queue = ["jobs"]
[mtl]
endpoint = ["tcp://127.0.0.1:{mtl}"]
one-socket = true
"""
ANYWHERE = {"micromsg2": 0, "mtl": "*"}
SOON: dict[str, object] = {"retry-first": 0.1, "retry-most": 1.0, "waiting-seconds": 600.0}
MTL_SOON = {"request-timeout": 1.0, "heartbeat": 0.5, "liveness": 1.5}
HOST, PROFILE, RESOURCE = "host", "queue", "bills"


class Publisher:
    """Keeps a window of messages in flight; what is not acknowledged is sent again.

    Attributes:
        acknowledged: the bodies that are.
    """

    def __init__(self, name: str, send: Callable[[bytes], Deferred[Any]]) -> None:
        self._name = name
        self._send = send
        self._sent = 0
        self._flying = 0
        self._going = False
        self._waiting: list[tuple[int, Deferred[None]]] = []
        self._landed: Deferred[None] | None = None
        self.acknowledged: set[bytes] = set()

    def more(self, count: int) -> Deferred[None]:
        """Go on; fires when ``count`` more are acknowledged."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append((len(self.acknowledged) + count, waiting))
        self._going = True
        self._fill()
        return waiting

    def landed(self) -> Deferred[None]:
        """Send nothing new; fires when everything that was sent is acknowledged."""
        self._going = False
        self._landed = Deferred()
        self._look()
        return self._landed

    def _fill(self) -> None:
        while self._going and self._flying < WINDOW:
            self._sent += 1
            self._flying += 1
            self._put(f"{self._name} {self._sent}".encode())

    def _put(self, body: bytes) -> None:
        self._send(body).addCallbacks(
            self._safe, lambda failure: reactor.callLater(0.05, self._put, body), (body,)
        )

    def _safe(self, result: object, body: bytes) -> None:
        self.acknowledged.add(body)
        self._flying -= 1
        self._look()
        self._fill()

    def _look(self) -> None:
        for entry in list(self._waiting):
            if len(self.acknowledged) >= entry[0]:
                self._waiting.remove(entry)
                entry[1].callback(None)
        if self._landed is not None and not self._flying and not self._landed.called:
            self._landed.callback(None)


class Taking(MicroMsg2Client):
    def messageReceived(self, message: Any) -> None:
        self.factory.took(message.body)  # type: ignore[attr-defined]


class Micromsg2:
    def __init__(self, port: int, took: Callable[[bytes], None]) -> None:
        factory = MicroMsg2ClientFactory()
        factory.protocol = Taking  # type: ignore[assignment]
        factory.took = took  # type: ignore[attr-defined]
        self._service = MicroMsg2ClientService(tcp(port), factory, limits=SOON)

    def start(self) -> None:
        self._service.startService()

    async def again(self) -> None:
        await self._service.subscribe("jobs")
        await self._service.whenEstablished()

    async def gone(self) -> None:
        """The gateway was killed: wait until all that was on its way has come."""
        while self._service.session is not None:
            await deferLater(reactor, 0.01)

    async def stop(self) -> None:
        await self._service.close()


class Mtl:
    """A reader that confirms what it is given; it comes back when it is told to."""

    def __init__(self, port: int, took: Callable[[bytes], None]) -> None:
        self._port = port
        self._took = took
        self._client: Any = None

    def start(self) -> None:
        """Nothing: it comes with :meth:`again`."""

    async def again(self) -> None:
        while self._client is None:
            factory = MtlClientFactory(limits={**MTL_SOON, "window": WINDOW}, clock=reactor)
            client = MtlClient(f"tcp://127.0.0.1:{self._port}", factory, persistent=False)
            try:
                await client.open(HOST)
                await client.profile(PROFILE)
                self._reader = await client.reader([RESOURCE], "full", self._received)
                self._reader.lost = lambda error: None
                await self._reader.summon(RESOURCE)
            except MsgprotoError:
                client.abort()
            else:
                self._client = client

    def _received(self, content: Any) -> None:
        self._took(content.body)
        self._reader.confirm(content.sequence)

    async def gone(self) -> None:
        self._client.abort()
        self._client = None

    async def stop(self) -> None:
        self._reader.flush()
        await self._client.close()


def tcp(port: int) -> Any:
    return clientFromString(reactor, f"tcp:127.0.0.1:{port}")


class Rows:
    """What the directory of a gateway that does not run says of its queues' messages."""

    def __init__(self, queue: Path) -> None:
        reader = QueueReader(queue)
        offsets: list[int] = []
        self.bodies: list[bytes] = []
        for batch in reader.read(reader.begin(), reader.end()):
            columns = batch.select(["offset", "body"]).to_pydict()
            offsets += columns["offset"]
            self.bodies += columns["body"]
        assert offsets == list(range(len(offsets))), "each offset once, and none is missing"
        marks = Marks()
        marks.begun(0)
        file = queue / "broker" / "settled"
        if file.exists():
            assert not taken(parsed(file.read_bytes(), reader.queue_id).groups, marks)
        self.settled = [marks.is_settled(offset) for offset in offsets]

    def waiting(self) -> Counter[bytes]:
        """How many messages with each body are not settled, by the disk."""
        return Counter(
            body for body, done in zip(self.bodies, self.settled, strict=True) if not done
        )


class Killed(TestCase):
    timeout = 3600

    async def test_everything_acknowledged_is_delivered_and_settled__BK(self) -> None:
        """MM-27, MT-20: and nothing of which the disk says that it is settled comes again"""
        directory = Path(self.mktemp())
        directory.mkdir()
        with launching(directory) as launch:
            await self.kill(launch, directory)

    async def kill(self, launch: Launcher, directory: Path) -> None:
        queue, file = directory / "queue", directory / "gateway.toml"

        def serve(ports: dict[str, Any]) -> Launched:
            file.write_text(SERVERS.format(queue=queue, **ports))
            return launch("gateway", "--config", file)

        server = serve(ANYWHERE)
        ports = {
            name: int((await deferToThread(server.line, rf"\b{name} listening on \S+:(\d+)"))[1])
            for name in ANYWHERE
        }
        delivered: Counter[bytes] = Counter()

        def took(body: bytes) -> None:
            delivered[body] += 1

        consumers: list[Any] = [Micromsg2(ports["micromsg2"], took) for _ in range(2)]
        consumers.append(Mtl(ports["mtl"], took))
        services = [MicroMsg2ClientService(tcp(ports["micromsg2"]), MicroMsg2ClientFactory(),
                                           limits=SOON) for _ in range(2)]  # fmt: skip
        mtl = MtlClientService(
            f"tcp://127.0.0.1:{ports['mtl']}",
            MtlClientFactory(HOST, PROFILE, limits=MTL_SOON),
            limits=SOON,
        )
        publishers = [
            Publisher("a", lambda body: services[0].send("jobs", body, {"n": 1})),
            Publisher("b", lambda body: services[1].send("jobs", body)),
            Publisher("m", lambda body: mtl.send(RESOURCE, body)),
        ]
        for one in (*services, mtl, *consumers):
            getattr(one, "startService", getattr(one, "start", None))()
        waiting: Counter[bytes] = Counter()
        rows = 0
        ever: set[bytes] = set()
        for _ in range(KILLS):
            for consumer in consumers:
                await consumer.again()
            await gatherResults([publisher.more(LOAD) for publisher in publishers])
            self.assertEqual(await deferToThread(server.kill), -signal.SIGKILL)
            for consumer in consumers:
                await consumer.gone()
            found = await deferToThread(Rows, queue)
            self.once(delivered, waiting + Counter(found.bodies[rows:]))
            ever |= delivered.keys()
            delivered.clear()
            waiting, rows = found.waiting(), len(found.bodies)
            server = serve(ports)
        for consumer in consumers:
            await consumer.again()
        await gatherResults([publisher.landed() for publisher in publishers])
        acknowledged = set[bytes]().union(*[publisher.acknowledged for publisher in publishers])
        patience = reactor.seconds() + PATIENCE_SECONDS
        while missing := acknowledged - ever - delivered.keys():
            self.assertLess(reactor.seconds(), patience, f"{len(missing)} never came")
            await deferLater(reactor, 0.05)
        for one in (*services, mtl):
            await one.close()
        for consumer in consumers:
            await consumer.stop()
        await deferToThread(server.end)
        found = Rows(queue)
        self.once(delivered, waiting + Counter(found.bodies[rows:]))
        self.assertEqual(found.waiting(), Counter(), "everything is settled in the end")
        self.assertEqual(acknowledged - set(found.bodies), set())
        if MORE:
            self.land(launch, queue, directory / "table", len(found.bodies))
        print(
            f"figure: {KILLS} kills, {len(acknowledged)} messages acknowledged, 0 lost,"
            f" {len(found.bodies) - len(acknowledged)} sent twice"
        )

    def once(self, delivered: Counter[bytes], allowed: Counter[bytes]) -> None:
        """In one life of the gateway each row comes once, and none that was settled before."""
        self.assertEqual(delivered - allowed, Counter())

    def land(self, launch: Launcher, queue: Path, table: Path, count: int) -> None:
        from twisted_msgproto.spark.landed_table import LandedTable

        bridge = launch("bridge", "--queue", queue, "--table", table, "--once")
        assert bridge.wait(seconds=600.0) == 0, bridge.output
        landed = LandedTable(table).read(["offset"])
        self.assertEqual(sorted(landed["offset"].to_pylist()), list(range(count)))
