"""The figures of a gateway and its status site, over real connections (``FC-03``)."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import threading
import time
from math import inf
from pathlib import Path
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families
from twisted.internet import reactor as real_reactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import ConfigurationError, QueueError
from twisted_msgproto.net import counters
from twisted_msgproto.net.gateway import Gateway, ListeningService
from twisted_msgproto.net.site import figures as site_figures
from twisted_msgproto.net.site import http as site_http
from twisted_msgproto.net.site.client import GatewayBroker
from twisted_msgproto.net.site.queue_figures import read_figures, safe_and_landing
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.consumers import status_path, write_status
from twisted_msgproto.registry import load

LISTENERS_MAX = 32
SESSIONS_SHOWN_MAX = 200


reactor: Any = real_reactor
LUMBERJACK = load("lumberjack", "service")
LOOPBACK = "tcp:0:interface=127.0.0.1"
TOKEN = "a-token-of-some-length"
WINDOW = b"2W\0\0\0\x01"
EVENT = b"2J\0\0\0\x01\0\0\0\x0b" + b'{"a":"<b>"}'
ACK = b"2A\0\0\0\x01"


class Peer(Protocol):
    """Collects what it is sent."""

    def __init__(self) -> None:
        self.nbytes = b""
        self.wanted: list[tuple[bytes, Deferred[None]]] = []
        self.gone: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.nbytes += data
        self._look()

    def connectionLost(self, reason: Any = None) -> None:
        self.gone.callback(None)

    def until(self, nbytes: bytes) -> Deferred[None]:
        found: Deferred[None] = Deferred()
        self.wanted.append((nbytes, found))
        self._look()
        return found

    def _look(self) -> None:
        for octets, found in self.wanted:
            if octets in self.nbytes and not found.called:
                found.callback(None)


class Served(TestCase):
    """A gateway with one server, a queue, and a status endpoint."""

    def setUp(self) -> None:
        self.directory = os.path.abspath(self.mktemp())

    async def serve(self, token: str | None = None, queue: bool = True) -> None:
        token_file = None
        if token is not None:
            token_file = self.mktemp()
            Path(token_file).write_text(f"{token}\nanother line\n")
        options = LUMBERJACK.Options()
        options.read([f"--endpoint={LOOPBACK}"])
        self.gateway = Gateway(reactor, self.directory if queue else None)
        server: Any = LUMBERJACK.serve(options, self.gateway)
        server._announced = lambda name, address: None
        server.setServiceParent(self.gateway)
        self.gateway.showStatus(LOOPBACK, token_file)
        status = next(
            child
            for child in self.gateway
            if isinstance(child, ListeningService) and child.factory.protocolName == "status"
        )
        status._announced = lambda name, address: None
        self.addCleanup(self.gateway.stopService)
        self.gateway.startService()
        self.site: Any = status.factory
        self.port = status.ports[0].getHost().port  # type: ignore[attr-defined]
        self.server_port = server.ports[0].getHost().port

    async def peer(self, port: int) -> Peer:
        peer: Any = await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), Peer())

        def end() -> Deferred[None]:
            peer.transport.abortConnection()
            return peer.gone  # type: ignore[no-any-return]

        self.addCleanup(end)
        return peer  # type: ignore[no-any-return]

    def get(self, path: str, method: str = "GET", **headers: str) -> Deferred[Any]:
        """(status, body, headers) of one request over a real socket."""

        def ask() -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read(), answer.headers
            finally:
                connection.close()

        return deferToThread(ask)

    async def figures(self) -> Any:
        status, body, _ = await self.get("/status.json")
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def put(self, count: int) -> Deferred[Any]:
        sink: Any = self.gateway.sink
        return sink.put(  # type: ignore[no-any-return]
            MessageBatch("lumberjack", "s", 0, count=count, fields=[{}] * count,
                         body=[b"x"] * count, message_id=list(range(count)))
        )  # fmt: skip


class Figures(Served):
    async def test_figures_of_a_connection_are_shown_while_it_lives__FC_03(self) -> None:
        await self.serve()
        peer = await self.peer(self.server_port)
        peer.transport.write(WINDOW + EVENT)  # type: ignore[union-attr]
        await peer.until(ACK)
        before = time.time_ns() // 1000
        figures = await self.figures()
        self.assertTrue(before <= figures["at"] <= time.time_ns() // 1000)
        shown = figures["protocols"]["lumberjack"]
        self.assertEqual(shown["connections"], 1)
        self.assertEqual(sum(shown["states"].values()), 1)
        self.assertEqual(shown["counters"]["connections_total"], 1)
        self.assertEqual(shown["counters"]["windows"], 1)
        self.assertEqual([one["protocol"] for one in figures["sessions"]], ["lumberjack"])
        self.assertEqual(figures["sessions_total"], 1)
        self.assertIn("127.0.0.1:", figures["sessions"][0]["peer"])

    async def test_the_queue_and_its_consumers_are_shown(self) -> None:
        await self.serve()
        await self.put(3)
        await deferToThread(QueueReader(self.directory).register, "spark")
        await deferToThread(QueueReader(self.directory).commit, "spark", 1)
        told = {"state": "running", "updated_at": time.time(), "lag_rows": 7, "rows": 5}
        place = status_path(self.directory, "spark")
        await deferToThread(write_status, place, told)
        queue = (await self.figures())["queue"]
        self.assertEqual(queue["end_offset"], 3)
        self.assertEqual(queue["left_bytes"], queue["max_bytes"] - queue["stored_bytes"])
        [consumer] = queue["consumers"]
        self.assertEqual((consumer["name"], consumer["behind_messages"]), ("spark", 2))
        [later] = read_figures(self.directory, time.time() + 60.0)["consumers"]
        self.assertGreaterEqual(later["still_seconds"], 59.9)
        self.assertEqual(queue["damaged"], [])
        [bridge] = queue["bridges"]
        self.assertEqual((bridge["consumer"], bridge["lag_rows"]), ("spark", 7))

    async def test_faults_are_shown_by_address_and_limits_with_their_option(self) -> None:
        await self.serve()
        peer = await self.peer(self.server_port)
        peer.transport.write(b"GET / HTTP/1.1\r\n\r\n")  # type: ignore[union-attr]
        await peer.gone
        long = await self.peer(self.server_port)
        long.transport.write(WINDOW + b"2J\0\0\0\x01\xff\xff\xff\xff")  # type: ignore[union-attr]
        await long.gone
        figures = await self.figures()
        found = {
            (one["address"], one["reason"]): one["times"] for one in figures["offenders"]["worst"]
        }
        self.assertEqual(found["127.0.0.1", "version"], 1)
        met = figures["protocols"]["lumberjack"]["limits_met"]
        self.assertEqual(met, {"json-bytes": 1})
        limit = figures["limits"]["lumberjack"]["json-bytes"]
        self.assertEqual(limit["unit"], "bytes")

    async def test_sessions_are_searched_by_protocol_state_and_text(self) -> None:
        await self.serve()
        peers = [await self.peer(self.server_port) for _ in range(3)]
        peers[0].transport.write(b"2W\0\0\0\x02" + EVENT)  # type: ignore[union-attr]
        await peers[0].until(ACK)
        port = peers[1].transport.getHost().port  # type: ignore[union-attr]
        for query, wanted in (
            ("", 3), ("?protocol=lumberjack", 3), ("?protocol=umq", 0),
            ("?state=CLOSED", 0), (f"?text=127.0.0.1:{port}", 1),
            ("?state=EMPTY&text=LUMBERJACK-2", 3),
        ):  # fmt: skip
            status, body, _ = await self.get(f"/sessions.json{query}")
            answer = json.loads(body)
            self.assertEqual(status, 200)
            self.assertEqual((answer["found"], len(answer["sessions"])), (wanted, wanted), query)
            self.assertEqual(answer["sessions_total"], 3)

    async def test_a_disk_that_hangs_is_told_and_not_asked_twice(self) -> None:
        self.patch(site_figures, "QUEUE_SECONDS", 0.01)
        self.patch(site_figures, "KEPT_SECONDS", 0.0)
        await self.serve()
        await self.put(3)
        await deferToThread(QueueReader(self.directory).register, "spark")
        while (await self.figures())["queue"]["unreadable"]:
            pass
        hangs, asked = threading.Event(), []

        def read(*arguments: Any) -> Any:
            asked.append(hangs.wait(60))
            return read_figures(*arguments)

        self.patch(site_figures, "read_figures", read)
        for _ in range(2):
            queue = (await self.figures())["queue"]
            self.assertEqual(queue["unreadable"], "the disk does not answer within 3 s")
            self.assertEqual(queue["end_offset"], 3)
            self.assertEqual([one["name"] for one in queue["consumers"]], ["spark"])
        hangs.set()
        while (await self.figures())["queue"]["unreadable"]:
            self.assertEqual(asked, [True] * len(asked))

    async def test_without_a_queue_nothing_is_called_safe(self) -> None:
        await self.serve(queue=False)
        figures = await self.figures()
        self.assertIsNone(figures["queue"])
        self.assertFalse(figures["safe"]["ok"])
        self.assertTrue(figures["healthy"]["ok"])

    async def test_health_fails_with_the_reason_when_nothing_can_be_acknowledged(self) -> None:
        await self.serve()
        sink: Any = self.gateway.sink
        await deferToThread(sink.writer.close)
        status, body, _ = await self.get("/healthz")
        self.assertEqual(status, 503)
        self.assertIn(b"Nothing can be acknowledged: the queue is closed", body)
        status, body, _ = await self.get("/healthz", "HEAD")  # as load balancers ask
        self.assertEqual((status, body), (503, b""))

    async def test_prometheus_reads_the_metrics(self) -> None:
        await self.serve()
        await self.put(2)
        await deferToThread(QueueReader(self.directory).register, "spark")
        peer = await self.peer(self.server_port)
        peer.transport.write(WINDOW + EVENT)  # type: ignore[union-attr]
        await peer.until(ACK)
        [factory] = self.gateway.factories
        for _ in range(3):
            factory.counters["seen"] += 1  # as a class of a user's does
        factory.counters["seen:late"] += 5
        factory.counters["no name"] += 1
        self.gateway.factories *= 2  # two servers of a protocol are added up
        status, body, _ = await self.get("/metrics")
        self.assertEqual(status, 200, body)
        families = {one.name: one for one in text_string_to_metric_families(body.decode())}
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families.values()
            for sample in family.samples
        }
        self.assertEqual(samples["msgproto_healthy", ()], 1)
        self.assertEqual(samples["msgproto_queue_end_offset", ()], 3)
        self.assertEqual(samples["msgproto_queue_messages_total", ()], 3)
        latency = families["msgproto_acknowledgement_seconds"]
        self.assertEqual(latency.type, "histogram")
        buckets = [one for one in latency.samples if one.name.endswith("_bucket")]
        edges = [f"{step}e{power}" for power in range(-4, 2) for step in (1, 2.5, 5)]
        self.assertEqual(
            [float(one.labels["le"]) for one in buckets], [*map(float, edges), 100, inf]
        )
        counts = [one.value for one in buckets]
        self.assertEqual((counts, counts[-1]), (sorted(counts), 2))
        came = ("msgproto_protocol_accepted_connections_total", (("protocol", "lumberjack"),))
        self.assertEqual(samples.get(came), 2, [one for one in samples if "_protocol_" in one[0]])
        own = ("msgproto_protocol_seen_total", (("protocol", "lumberjack"),))
        self.assertEqual(samples.get(own), 6)
        late = (("protocol", "lumberjack"), ("reason", "late"))
        self.assertEqual(samples.get(("msgproto_protocol_seen_by_reason_total", late)), 10)
        lag = ("msgproto_queue_consumer_behind_messages", (("consumer", "spark"), ("table", "")))
        self.assertIn(lag, samples)
        for family in families.values():
            self.assertTrue(family.name.startswith("msgproto_"))
        counted = [name[9:] for name, family in families.items() if family.type == "counter"]
        words = (
            "queue_messages queue_failed_messages queue_groups queue_append_seconds queue_stalls"
            " queue_disk_errors queue_trimmed_segments bridge_rows bridge_rejected_rows"
            " bridge_batches bridge_failed_batches bridge_error_rows messages received_bytes faults"
            " limits_met"
        )
        self.assertEqual([one for one in counted if "protocol_" not in one], words.split())
        self.assertNotIn("unknown", {family.type for family in families.values()})

    async def test_the_broker_is_asked_through_the_status_endpoint_too(self) -> None:
        await self.serve(TOKEN)
        token_file = self.mktemp()
        Path(token_file).write_text(TOKEN)
        broker = GatewayBroker(f"http://127.0.0.1:{self.port}", token_file)
        with self.assertRaisesRegex(QueueError, "this gateway has no broker"):
            await deferToThread(broker.queues)
        again = await deferToThread(broker.reload)
        self.assertRegex(again["done"][-1], "^status: the token of /")
        for authority, why in (("nowhere", "No such file"), (token_file, "no usable certificate")):
            with self.assertRaisesRegex(ConfigurationError, f"--tls-ca {authority}: .*{why}"):
                GatewayBroker("https://h", token_file, authority=authority)


class Page(Served):
    async def test_the_page_is_whole_and_loads_nothing_from_elsewhere(self) -> None:
        await self.serve()
        status, page, headers = await self.get("/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["content-security-policy"])
        guards = ("x-content-type-options", "referrer-policy", "cache-control", "content-type")
        said = ["nosniff", "no-referrer", "no-cache", "text/html; charset=utf-8"]
        self.assertEqual([headers[name] for name in guards], said)
        self.assertNotIn("unsafe", headers["content-security-policy"])
        for name in ("page.css", "page.js"):
            self.assertIn(name.encode(), page)
            self.assertEqual((await self.get(f"/{name}"))[0], 200)
        self.assertNotIn(b"http", page.replace(b"http-equiv", b""))

    async def test_a_stream_brings_samples_and_listeners_are_bounded(self) -> None:
        self.patch(site_http, "SAMPLE_SECONDS", 0.1)
        self.patch(site_figures, "KEPT_SECONDS", 0.01)
        self.patch(counters, "SAMPLE_SECONDS", 0.01)
        await self.serve()
        peers = [await self.peer(self.port) for _ in range(LISTENERS_MAX)]
        for peer in peers:
            peer.transport.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")  # type: ignore[union-attr]
            await peer.until(b"data: {")
            self.assertNotIn(b'"sessions":', peer.nbytes)
        self.assertEqual((await self.get("/events"))[0], 503)
        peers[0].nbytes = b""
        await peers[0].until(b"data: {")
        # Nor do 32 pages that never read keep others out for good.
        self.patch(site_http, "STALLED_SECONDS", 0.0)
        first = next(iter(self.site._events._listeners.values()))
        first.pauseProducing()
        first.resumeProducing()
        self.assertEqual((await self.get("/events"))[0], 503, "they read")
        first.pauseProducing()
        newcomer = await self.peer(self.port)
        newcomer.transport.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")  # type: ignore[union-attr]
        await newcomer.until(b"data: {")
        await peers[0].gone
        await self.gateway.stopService()
        await peers[1].until(b"\r\n0\r\n\r\n")
        flow = re.findall(rb'"at": \[([\d, ]+)\]', peers[1].nbytes)
        at = [int(one) for told in flow for one in told.split(b",")]
        self.assertEqual(at, sorted({*at}), "each sample of the flow is sent once")

    async def test_a_page_that_comes_after_the_last_has_gone_has_samples_too(self) -> None:
        await self.serve()
        for _ in range(2):
            page = await self.peer(self.port)
            page.transport.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")  # type: ignore[union-attr]
            await page.until(b"data: {")
            page.transport.abortConnection()  # type: ignore[union-attr]
            self.assertEqual((await self.get("/healthz"))[0], 200)  # by then it is seen


class Hostile(Served):
    timeout = 240

    def endless_body(self) -> None:
        """The gateway has to close before it is 16 GiB."""
        head = b"POST /reload HTTP/1.1\r\nHost: localhost\r\nX-Msgproto: 1\r\n"
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection,
            self.assertRaises(ConnectionError),
        ):
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(1 << 21):
                connection.sendall(b"2000\r\n" + b"b" * 0x2000 + b"\r\n")

    async def test_a_shipper_and_a_scraper_go_on_beside_an_endless_request__FC_03(self) -> None:
        await self.serve()
        shipper, sent = await self.peer(self.server_port), 0
        self.site.timeOut = 1.0
        attack = deferToThread(self.endless_body)
        while not attack.called:
            shipper.nbytes = b""
            shipper.transport.write(WINDOW + EVENT)  # type: ignore[union-attr]
            await shipper.until(ACK)
            sent += 1
        await attack
        self.assertEqual((await self.get("/healthz"))[0], 200)
        [factory], sink = self.gateway.factories, cast(Any, self.gateway.sink)
        self.assertEqual((factory.traffic.messages, factory.counters["faults"]), (sent, 0))
        self.assertEqual(sink.writer.end, sent)

    async def test_who_asks_by_https_where_there_is_no_tls_is_not_kept_waiting(self) -> None:
        await self.serve()
        self.site.timeOut = None
        browser = await self.peer(self.port)
        browser.transport.write(b"\x16\x03\x01\x02\x00\x01")  # type: ignore[union-attr]
        await browser.gone


class Access(Served):
    async def test_a_token_is_wanted_of_everything_but_healthz(self) -> None:
        await self.serve(TOKEN)
        for path in ("/", "/status.json", "/metrics", "/events", "/broker/queues", "/page.js"):
            status, body, headers = await self.get(path)
            self.assertEqual(status, 401, path)
            self.assertTrue(headers["www-authenticate"].startswith("Basic "))
            self.assertEqual(headers["content-type"], "application/json")
            self.assertNotIn(TOKEN.encode(), body)
        self.assertEqual((await self.get("/healthz"))[0], 200)

    async def test_the_token_is_taken_as_bearer_and_as_a_password_of_any_user(self) -> None:
        await self.serve(TOKEN)
        for wanted, scheme, user, token in (
            (200, "Bearer", "", TOKEN),
            (200, "Basic", "anybody:", TOKEN),
            (200, "basic", ":", TOKEN),
            (401, "Bearer", "", TOKEN[:-1]),
            (401, "Basic", "anybody:", TOKEN + "x"),
            (401, "Digest", "", TOKEN),
            (401, "Basic", "", ""),
        ):
            text = user + token
            if scheme.lower() == "basic":
                text = base64.b64encode(text.encode()).decode()
            status, _, _ = await self.get("/status.json", Authorization=f"{scheme} {text}")
            self.assertEqual(status, wanted, (scheme, user))
        self.assertEqual((await self.get("/status.json", Authorization="Basic é"))[0], 401)
        self.assertEqual((await self.get(f"/status.json?token={TOKEN}"))[0], 401)

    async def test_a_page_of_another_name_cannot_ask_without_a_token(self) -> None:
        await self.serve()
        for host, wanted in (
            ("evil.example", 403), ("127.0.0.1:1", 200), ("[::1]:1", 200), ("localhost", 200),
        ):  # fmt: skip
            status, body, _ = await self.get("/status.json", Host=host)
            # What a command says of a gateway behind a proxy: it had been "no gateway".
            error = json.loads(body).get("error", "")
            self.assertEqual("has to name it (Host) by an address" in error, status == 403)
            self.assertEqual(status, wanted, host)

    async def test_without_a_token_nobody_sees_or_moves_messages(self) -> None:
        """Every user of this machine can connect there, and to the control socket one alone."""
        operators = (("POST", "/reload"), ("GET", "/broker/peek"), ("POST", "/broker/purge"),
                     ("POST", "/broker/requeue"))  # fmt: skip
        await self.serve()
        for method, path in operators:
            target = f"{path}?space=a&name=b&to=c"
            status, body, _ = await self.get(target, method, **{"X-Msgproto": "1"})
            self.assertEqual(status, 403, path)
            self.assertIn("name the queue's directory instead", json.loads(body)["error"])
        await self.gateway.stopService()
        await self.serve(TOKEN)
        shown = {"X-Msgproto": "1", "Authorization": f"Bearer {TOKEN}"}
        for method, path in operators:
            status, _, _ = await self.get(f"{path}?space=a&name=b&to=c", method, **shown)
            self.assertEqual(status, 200 if path == "/reload" else 404, path)


class Rules(SynchronousTestCase):
    def test_beyond_this_machine_it_wants_tls_and_a_token(self) -> None:
        local = r"tcp:0:interface=\:\:1", "tcp:0:interface=localhost"
        for endpoint in (LOOPBACK, *local, "unix:x"):
            Gateway(Clock()).showStatus(endpoint)
        keys = self.mktemp()
        os.mkdir(keys)
        for endpoint, token in (
            ("tcp:0", None), ("tcp:0", "file"), ("tcp:0:interface=10.0.0.1", "file"),
            (f"tls:{keys}:0", None),
        ):  # fmt: skip
            with self.assertRaisesRegex(ConfigurationError, "needs TLS .* and a token"):
                Gateway(Clock()).showStatus(endpoint, token)

    def test_a_token_is_not_short_and_its_file_is_there(self) -> None:
        with self.assertRaisesRegex(ConfigurationError, "token is given, and no status endpoint"):
            Gateway(Clock()).showStatus(None, "nowhere")
        with self.assertRaisesRegex(ConfigurationError, "cannot read the token file"):
            Gateway(Clock()).showStatus(LOOPBACK, "nowhere")
        file = Path(self.mktemp())
        file.write_text("x" * 15 + "\n" + "x" * 40)
        with self.assertRaisesRegex(ConfigurationError, "at least 16 characters"):
            Gateway(Clock()).showStatus(LOOPBACK, str(file))
        file.write_text("x" * 16)
        Gateway(Clock()).showStatus(LOOPBACK, str(file))

    def test_what_is_wrong_is_said_in_the_first_line(self) -> None:
        fine: dict[str, Any] = {
            "directory": "q", "damaged_messages": 0, "refusal": None, "stalled_because": None,
            "unreadable": None,
            "consumers": [{"name": "spark", "behind_messages": 0, "still_seconds": 0.0}],
        }  # fmt: skip
        late = {"name": "spark", "behind_messages": 9, "still_seconds": 60.0}
        self.assertTrue(safe_and_landing(fine).ok)
        for change, words in (
            ({"damaged_messages": 4}, "acknowledged: msgproto queue verify q says"),
            ({"stalled_because": "no room"}, "no room"),
            ({"refusal": "the queue is closed"}, "the queue is closed"),
            ({"unreadable": "OSError"}, "cannot be read"),
            ({"consumers": []}, "no consumer"),
            ({"consumers": [late]}, "spark is 9 messages behind"),
        ):  # fmt: skip
            verdict = safe_and_landing({**fine, **change})  # type: ignore[dict-item]
            self.assertFalse(verdict.ok)
            self.assertIn(words, verdict.why)

    def test_of_ten_thousand_sessions_some_are_shown_and_all_are_counted(self) -> None:
        from twisted_msgproto.net.site.figures import GatewayFigures

        class Session:
            established = True

            def snapshot(self) -> dict[str, object]:
                looked.append(self)
                return {"client_id": "<script>" * 1000, "held_bytes": 1}

        looked: list[Session] = []

        clock: Any = Clock()
        options = LUMBERJACK.Options()
        options.read([])
        gateway = Gateway(clock)
        factory = gateway.makeFactory(options)
        for _ in range(10_000):
            session = Session()
            factory.liveConnections[session] = ""
        factory.counters["seen"] = 10_000
        for number in range(1000):
            factory.counters[f"fault:z{number}"] = 1
        factory.counters["fault:json-bytes"] = 2
        factory.counters["limit:unread-seconds"] = 1
        for number in range(60):
            gateway.shared.offenders.note("umq", f"10.0.0.{number}", "version", 0.0)
        factory.counters["displaced"] = 3
        factory.counters["turned_away:connections"] = 4
        found: list[Any] = []
        gathering = GatewayFigures(gateway, clock)
        maybeDeferred(gathering.summary).addCallback(found.append)
        clock.advance(0.001)
        first = found.pop()
        self.assertNotIn("sessions", first)
        clock.advance(0.99)
        maybeDeferred(gathering.summary).addCallback(found.append)
        self.assertIs(found.pop(), first, "one second old at most")
        self.assertEqual(looked, [], "a scrape shows no session")
        clock.advance(1.0)
        maybeDeferred(gathering.latest).addCallback(found.append)
        clock.advance(0.001)
        self.assertEqual(len(looked), SESSIONS_SHOWN_MAX)
        [figures] = found
        self.assertEqual(figures["protocols"]["lumberjack"]["counters"]["seen"], 10_000)
        self.assertEqual(figures["protocols"]["lumberjack"]["states"], {"ESTABLISHED": 10_000})
        faults = figures["protocols"]["lumberjack"]["faults"]
        self.assertEqual((len(faults), sum(faults.values())), (201, 1002), "reasons are bounded")
        met = {"json-bytes": 2, "unread-seconds": 1, "connections": 7}
        self.assertEqual(figures["protocols"]["lumberjack"]["limits_met"], met)
        self.assertEqual(len(figures["sessions"]), SESSIONS_SHOWN_MAX)
        self.assertEqual(figures["sessions"][0]["client_id"], "<script>" * 25 + "…")
        self.assertEqual(len(figures["offenders"]["worst"]), 50)
        self.assertLess(len(json.dumps(figures)), 200_000)
