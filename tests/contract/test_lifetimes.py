"""``connect`` and ``serve`` of all five protocols, over real sockets and through public names."""

from __future__ import annotations

import re
import socket
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, DeferredQueue, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.tools.processes import Launcher
from twisted_msgproto import lumberjack, micromsg2, mtl, sabc, umq
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    QueueLocked,
    Refused,
    TimedOut,
)
from twisted_msgproto.net import DurableSink
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.testing import HeldSink, SafeSink


class Accepting(umq.UmqServer):
    def requestReceived(self, message: Any) -> str:
        return "stored"


async def _write(client: Any, body: bytes) -> None:
    writer = await client.writer(["q"])
    await writer.send("q", body)


class Face(NamedTuple):
    """A protocol: where it is served, its settings, and one message that is answered."""

    name: str
    module: Any
    at: str
    served: dict[str, Any]
    connected: dict[str, Any]
    send: Callable[[Any, bytes], Any]

    def serve(self, at: Any = None, **options: Any) -> Any:
        own = {} if "factory" in options else self.served
        return self.module.serve(at or self.at, **{**own, **options})

    def connect(self, to: Any, **options: Any) -> Any:
        return self.module.connect(to, **{**self.connected, **options})

    def named(self, kind: str) -> Any:
        title = {"lumberjack": "Lumberjack", "micromsg2": "MicroMsg2"}
        return getattr(self.module, title.get(self.name, self.name.capitalize()) + kind)


TCP = "tcp:0:interface=127.0.0.1"
FACES = [
    Face("lumberjack", lumberjack, TCP, {}, {}, lambda c, body: c.send(b'{"x":"%s"}' % body)),
    Face("micromsg2", micromsg2, TCP, {}, {}, lambda c, body: c.send("q", body)),
    Face("sabc", sabc, TCP, {}, {}, lambda c, body: c.request(body)),
    Face("umq", umq, TCP, {"server": Accepting}, {}, lambda c, body: c.call(body.decode())),
    Face("mtl", mtl, "tcp://127.0.0.1:*", {}, {"profile": "ingest"}, _write),
]
BY_NAME = {face.name: face for face in FACES}


def address_of(face: Face, port: int) -> str:
    return {"umq": f"ws://127.0.0.1:{port}/", "mtl": f"tcp://127.0.0.1:{port}"}.get(
        face.name, f"tcp:127.0.0.1:{port}"
    )


def closed_address(face: Face) -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return address_of(face, bound.getsockname()[1])


def rows(directory: Path) -> int:
    reader = QueueReader(directory)
    return reader.end() - reader.begin()


def reached(face: Face, address: str) -> tuple[Any, Any]:
    """What a service takes to come to this address: where, and a factory."""
    if face.name == "mtl":
        return address, mtl.MtlClientFactory(profile="ingest")
    port = int(address.rstrip("/").rpartition(":")[2])
    made = face.named("ClientFactory")
    factory = made(address) if face.name == "umq" else made()
    return TCP4ClientEndpoint(reactor, "127.0.0.1", port), factory


def with_each(check: Callable[[Any, Face], Any]) -> Any:
    """A test that does the same with every protocol."""

    async def test(self: Any) -> None:
        for face in FACES:
            try:
                await check(self, face)
            except BaseException as error:
                error.add_note(face.name)
                raise

    return test


class Lifetimes(TestCase):
    timeout = 120

    def queue(self) -> Path:
        directory = Path(self.mktemp())
        directory.parent.mkdir(parents=True, exist_ok=True)
        return directory

    @with_each
    async def test_a_block_serves_and_connects_and_leaves_nothing_behind(self, face: Face) -> None:
        directory = self.queue()
        async with face.serve(queue=directory) as server:
            assert isinstance(server.factory, face.named("ServerFactory"))
            for address in server.addresses:
                async with face.connect(address) as client:
                    assert isinstance(client, face.named("Client"))
                    await face.send(client, b"one")
                    assert client.established
                assert not client.established
            with pytest.raises(QueueLocked):
                await face.serve(queue=directory)
        await server.whenClosed()
        assert rows(directory) == len(server.addresses)
        DurableSink(directory).close()
        [address, *_] = server.addresses
        where = re.escape(address) if face.name != "mtl" else None
        with pytest.raises(ConnectionClosed if where else TimedOut, match=where):
            await face.connect(address, **({} if where else {"limits": {"request-timeout": 0.2}}))

    async def test_ipv6_and_both_kinds_are_served(self) -> None:
        """[::] takes callers of both; whose the message is says which."""
        for face in FACES:
            tcp = face.name != "mtl"
            own = r"tcp6:0:interface=\:\:1" if tcp else "tcp://[::1]:*"
            both = "tcp6:0" if tcp else "tcp://[::]:*"
            more = {} if tcp else {"insecure": True}
            for at, hosts in ((own, ("[::1]",)), (both, ("[::1]", "127.0.0.1"))):
                sink = SafeSink()
                async with face.serve(at, sink=sink, **more) as server:
                    for host in hosts:
                        address = re.sub(r"\[.*\]", host, server.addresses[0])
                        async with face.connect(address) as client:
                            await face.send(client, b"one")
                peers = {str(message.peer) for message in sink.messages}
                assert len(peers) == len(hosts), (face.name, at, peers)

    @with_each
    async def test_awaiting_gives_what_is_closed_by_hand(self, face: Face) -> None:
        sink = SafeSink()
        server = await face.serve(sink=sink)
        client = await face.connect(server.addresses[0])
        await face.send(client, b"one")
        assert len(sink.messages) == 1
        await client.close()
        closed = server.whenClosed()
        await server.close()
        await closed
        await server.close()

    @with_each
    async def test_nothing_begins_at_the_call(self, face: Face) -> None:
        directory = self.queue()
        face.serve(queue=directory)
        connecting = face.connect(closed_address(face))
        assert not directory.exists()
        with pytest.raises(AttributeError, match="await connect"):
            connecting.close()

    @with_each
    async def test_it_is_begun_once(self, face: Face) -> None:
        serving = face.serve()
        with pytest.raises(RuntimeError, match="it listens once it is entered"):
            list(serving.addresses)
        async with serving as server:
            with pytest.raises(RuntimeError, match="again"):
                await serving
            connecting = face.connect(server.addresses[0])
            async with connecting:
                with pytest.raises(RuntimeError, match="again"):
                    await connecting

    @with_each
    async def test_a_client_knows_its_server_from_the_first_hook_on(self, face: Face) -> None:
        peers: list[str] = []
        kind = face.named("Client")
        made = {"connectionMade": lambda client: peers.append(client.peer)}
        async with (
            face.serve() as server,
            face.connect(server.addresses[0], client=type("Own", (kind,), made)) as client,
        ):
            assert peers == [client.peer]
            assert "127.0.0.1:" in client.peer

    @with_each
    async def test_a_mistake_is_told_at_the_call(self, face: Face) -> None:
        server, client = face.named("ServerFactory")(), None
        client = umq.UmqClientFactory("ws://h/") if face.name == "umq" else None
        client = client or face.named("ClientFactory")()
        good = closed_address(face)
        for options in ({"limits": {"drain": 1}}, {"sink": SafeSink()}, {"queue": "x"}):
            with pytest.raises(TypeError, match="beside factory"):
                face.module.serve(face.at, factory=server, **options)
        for options in (
            {"limits": {"drain": 1}},
            {"client": type("C", (face.named("Client"),), {})},
        ):
            with pytest.raises(TypeError, match="beside factory"):
                face.module.connect(good, factory=client, **options)
        usual = signature(face.module.serve).parameters.values()
        empty: Any = {one.name: [] for one in usual if one.default == ()}
        face.module.serve(face.at, factory=server, **empty)
        with pytest.raises(TypeError, match="sink and queue"):
            face.serve(sink=SafeSink(), queue=self.queue())
        with pytest.raises(TypeError, match="a method put"):
            face.serve(sink=object())
        with pytest.raises(TypeError, match="the class SafeSink: pass an instance"):
            face.serve(sink=SafeSink)
        with pytest.raises(TypeError, match="allows"):
            face.serve(authoriser=object())
        with pytest.raises(TypeError, match="server is a subclass of"):
            face.serve(server=object)
        with pytest.raises(TypeError, match="client is a subclass of"):
            face.connect(good, client=object)
        with pytest.raises(TypeError):
            face.serve(unknown=1)
        for wrong in ("nowhere", "tcp:x"):
            with pytest.raises(ConfigurationError):
                face.serve(wrong)
            with pytest.raises(ConfigurationError):
                face.connect(wrong)
        for no_host in ("tcp:/h:1", "tls:my_host:1", "ws://my_host:1/"):
            with pytest.raises(ConfigurationError):
                face.connect(no_host)
        for call in (face.serve, lambda **options: face.connect(good, **options)):
            with pytest.raises(ConfigurationError, match="drian"):
                call(limits={"drian": 1})

    @with_each
    async def test_an_address_in_use_is_told_and_the_queue_is_free(self, face: Face) -> None:
        async with face.serve() as server:
            taken = server.addresses[0].rstrip("/").rpartition(":")[2]
            at = f"tcp:{taken}:interface=127.0.0.1"
            at = server.addresses[0] if face.name == "mtl" else at
            directory = self.queue()
            with pytest.raises(ConfigurationError, match=r"in use|listens"):
                await face.serve(at, queue=directory)
        async with face.serve(queue=directory):
            pass

    @with_each
    async def test_a_server_that_is_silent_is_not_waited_for(self, face: Face) -> None:
        if face.name == "lumberjack":
            return  # a reader says nothing before it acknowledges
        ends: list[Deferred[None]] = []

        class Silent(Protocol):
            def connectionMade(self) -> None:
                ends.append(Deferred())
                self.end = ends[-1]

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                self.end.callback(None)

        silent = reactor.listenTCP(0, Factory.forProtocol(Silent), interface="127.0.0.1")
        with pytest.raises(TimedOut) as caught:
            await face.connect(address_of(face, silent.getHost().port), timeout=0.2)
        assert isinstance(caught.value, TimeoutError)
        await silent.stopListening()
        await gatherResults(ends)

    @with_each
    async def test_a_blocks_exception_is_kept_and_the_end_is_in_order(self, face: Face) -> None:
        sink = HeldSink()
        with pytest.raises(KeyError, match="mine"):
            async with (
                face.serve(sink=sink) as server,
                face.connect(server.addresses[0]) as client,
            ):
                sent = Deferred.fromCoroutine(_sent(face, client))
                await _held(sink)
                reactor.callLater(0.05, sink.waiting[0].callback, None)
                raise KeyError("mine")
        assert await sent == "answered"

    @with_each
    async def test_a_cancelled_block_ends_at_once(self, face: Face) -> None:
        async def block(address: str, reached: Any, last: Any) -> None:
            async with face.connect(address) as client:
                reached.callback([Deferred.fromCoroutine(_sent(face, client))])
                await last

        for leaves in (False, True):
            sink, reached, last = HeldSink(), Deferred[Any](), Deferred[None]()
            async with face.serve(sink=sink, limits={"drain": 1}) as server:
                running = block(server.addresses[0], reached, last)
                await _cancelled(running, reached, sink, last if leaves else None)

    @with_each
    async def test_a_cancelled_server_drains_and_the_second_time_it_is_cut_off(
        self, face: Face
    ) -> None:
        for again, ends in product((False, True), repeat=2):
            sink, ready, last = HeldSink(), Deferred[Any](), Deferred[None]()

            async def block(sink: Any = sink, ready: Any = ready, last: Any = last) -> None:
                async with face.serve(sink=sink, limits={"drain": 60}) as server:
                    ready.callback(server)
                    await last

            running = Deferred.fromCoroutine(block())
            server = await ready
            client = await face.connect(server.addresses[0], limits={"drain": 1})
            sent = Deferred.fromCoroutine(_sent(face, client))
            await _held(sink)
            if ends:
                last.callback(None)
            running.cancel()
            await deferLater(reactor, 0.05)
            assert not running.called or isinstance(running.result, Deferred)
            if again:
                running.cancel()
            else:
                sink.waiting[0].callback(None)
            with pytest.raises(CancelledError):
                await running
            if again:
                client.abort()
            assert await sent == ("ConnectionClosed" if again else "answered")
            await server.whenClosed()
            await client.close()

    @with_each
    async def test_a_generator_that_is_closed_aborts_without_waiting(self, face: Face) -> None:
        directory = self.queue()

        async def both() -> AsyncIterator[Any]:
            async with (
                face.serve(queue=directory) as server,
                face.connect(server.addresses[0]) as client,
            ):
                yield server, client

        generator = both()
        server, client = await anext(generator)
        await generator.aclose()
        await server.whenClosed()
        assert not client.established
        DurableSink(directory).close()

    @with_each
    async def test_an_attempt_that_asyncio_cannot_await_leaves_nothing(self, face: Face) -> None:
        async with face.serve() as server:
            attempting: Any = face.connect(server.addresses[0]).__aenter__()
            attempting.send(None)
            with pytest.raises(RuntimeError, match="bad yield"):
                attempting.throw(RuntimeError("Task got bad yield: <Deferred>"))
            async with face.connect(server.addresses[0]):
                assert len(server.factory.liveConnections) == 1

    @with_each
    async def test_an_attempt_that_is_cancelled_leaves_nothing(self, face: Face) -> None:
        if face.name in ("lumberjack", "mtl"):
            return
        made, lost = DeferredQueue[None](), DeferredQueue[None]()

        class Watched(Protocol):
            def connectionMade(self) -> None:
                made.put(None)

            def connectionLost(self, reason: Any) -> None:
                lost.put(None)

        class Stubborn:
            """Goes on at another address, whatever is wrong with the first one."""

            def connect(self, factory: Any) -> Any:
                there = TCP4ClientEndpoint(reactor, "127.0.0.1", silent.getHost().port)
                return Deferred[Any]().addErrback(lambda _: there.connect(factory))

        silent = reactor.listenTCP(0, Factory.forProtocol(Watched), interface="127.0.0.1")
        stubborn = [Stubborn()] if face.name != "umq" else []  # that takes addresses alone
        for to in (address_of(face, silent.getHost().port), *stubborn):
            attempting = Deferred.fromCoroutine(face.connect(to).__aenter__())
            if isinstance(to, str):
                await made.get()
            attempting.cancel()
            with pytest.raises(CancelledError):
                await attempting
            await lost.get()
        await silent.stopListening()

    async def test_endpoints_serve_as_their_strings_do(self) -> None:
        for face in FACES[:3]:
            at = [TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1"), TCP]
            async with face.serve(at) as server:
                assert len(server.addresses) == 2
                port = int(server.addresses[0].rpartition(":")[2])
                to = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
                async with face.connect(to) as client:
                    assert client.established

    @with_each
    async def test_a_service_in_a_block_starts_and_closes(self, face: Face) -> None:
        async with face.serve() as server:
            where, factory = reached(face, server.addresses[0])
            async with face.named("ClientService")(where, factory) as service:
                session = await service.whenEstablished()
                await face.send(session, b"one")
            assert service.state == "down"

    @with_each
    async def test_a_client_calls_its_hooks_in_order(self, face: Face) -> None:
        """They may be coroutine functions; what they raise is logged and harms nobody."""
        hooks = ["connectionMade", "sessionEstablished", "sessionLost", "connectionLost"]
        called: list[tuple[str, bool]] = []

        def hook(name: str, coroutine: bool) -> Any:
            def note(session: Any, *reason: object) -> None:
                called.append((name, session.established))
                raise ZeroDivisionError

            async def later(session: Any, *reason: object) -> None:
                note(session)

            return later if coroutine else note

        for coroutine in (False, True):
            named = {name: hook(name, coroutine) for name in hooks}
            made = type("Noting", (face.named("Client"),), named)
            async with (
                face.serve() as server,
                face.connect(server.addresses[0], client=made) as client,
            ):
                assert client.established
        assert called == list(zip(hooks, [False, True, False, False], strict=True)) * 2
        assert len(self.flushLoggedErrors(ZeroDivisionError)) == 8

    @with_each
    async def test_a_factory_that_was_drained_is_not_served_again(self, face: Face) -> None:
        kind = face.named("ServerFactory")
        begun = {"__post_init__": kind.__init__}  # a dataclass has no hash
        factory = dataclass(type("Theirs", (kind,), begun))()
        async with face.serve(factory=factory):
            pass
        with pytest.raises(ConfigurationError, match="make a new one"):
            await face.serve(factory=factory)
        if face.name == "sabc":
            endpoint = TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1")
            with pytest.raises(ConfigurationError, match="make a new one"):
                await endpoint.listen(factory.webSocketFactory())

    @with_each
    async def test_a_hook_of_its_session_stops_a_service(self, face: Face) -> None:
        """What the hook has sent is finished; MTL has no profile yet, so nothing can be sent."""
        sends = face.name != "mtl"
        assert await _stopped_by("connectionMade", face, sends=False) == []
        assert await _stopped_by("sessionEstablished", face, sends) == ["answered"] * sends

    @with_each
    async def test_services_share_a_factory_and_start_again_while_they_end(
        self, face: Face
    ) -> None:
        async with face.serve() as server:
            where, factory = reached(face, server.addresses[0])
            one, other = (face.named("ClientService")(where, factory) for _ in range(2))
            one.startService()
            other.startService()
            session = await other.whenEstablished()
            await face.send(await one.whenEstablished(), b"one")
            await one.stopService()
            await face.send(session, b"two")
            for service in (one, other):  # at the end of an attempt, and at that of a session
                service.startService()
                stopped = service.stopService()
                service.startService()
                waiting = service.whenEstablished()
                service.stopService()
                with pytest.raises(ConnectionClosed):
                    await waiting
                service.startService()
                await face.send(await service.whenEstablished(), b"three")
                await stopped
                await service.stopService()
            assert not session.established

    @with_each
    async def test_a_service_that_is_started_while_it_ends_takes_verbs_at_once(
        self, face: Face
    ) -> None:
        async with face.serve() as server:
            service = face.named("ClientService")(*reached(face, server.addresses[0]))
            service.startService()
            await service.whenEstablished()
            stopped = service.stopService()
            service.startService()
            await face.send(service, b"one")
            await stopped
            await service.stopService()

    @with_each
    async def test_a_service_comes_back_from_a_session_that_was_given_up(self, face: Face) -> None:
        async with face.serve() as server:
            where, factory = reached(face, server.addresses[0])
            limits = {"retry-first": 0.01}
            async with face.named("ClientService")(where, factory, limits=limits) as service:
                session, gone = await service.whenEstablished(), Deferred[Any]()
                service.watch(lambda state, gone=gone: gone.called or gone.callback(state))
                session.abort()
                assert await gone in ("down", "connecting")
                await face.send(await service.whenEstablished(), b"one")
                service.abort()  # leaves no timer behind

    @with_each
    async def test_a_service_takes_the_string_that_connect_takes(self, face: Face) -> None:
        sabc_too = {"websocket": TCP} if face.name == "sabc" else {}
        async with face.serve(**sabc_too) as server:
            for address in server.addresses:
                _, factory = reached(face, address)
                async with face.named("ClientService")(address, factory) as service:
                    await face.send(await service.whenEstablished(), b"one")
        if face.name != "mtl":
            nonsense = "ws://h/" if face.name in ("lumberjack", "micromsg2") else "nonsense"
            for wrong, error in (
                (nonsense, ConfigurationError),
                ("tcp:/h:1", ConfigurationError),
                (5, TypeError),
            ):
                with pytest.raises(error, match="endpoint"):
                    face.named("ClientService")(wrong, factory)

    @with_each
    async def test_a_service_whose_block_is_cancelled_does_not_wait_for_answers(
        self, face: Face
    ) -> None:
        async def block(where: Any, factory: Any, begun: Any, last: Any) -> None:
            async with face.named("ClientService")(where, factory) as service:
                session = await service.whenEstablished()
                begun.callback([Deferred.fromCoroutine(_sent(face, session))])
                await last

        for leaves in (False, True):
            sink, begun, last = HeldSink(), Deferred[Any](), Deferred[None]()
            async with face.serve(sink=sink, limits={"drain": 1}) as server:
                running = block(*reached(face, server.addresses[0]), begun, last)
                await _cancelled(running, begun, sink, last if leaves else None)

    async def test_what_is_no_function_is_told_at_the_call(self) -> None:
        wrong: Any = "x"
        async with (
            umq.serve(TCP) as server,
            umq.connect(server.addresses[0]) as session,
            umq.UmqClientService(*reached(BY_NAME["umq"], server.addresses[0])) as service,
        ):
            for one in (session, service):
                for functions in ((wrong,), (str, wrong)):
                    with pytest.raises(TypeError, match=r"a function of .* is expected, not str"):
                        one.subscribe(*functions)
            with pytest.raises(TypeError, match="a function of a Request is expected, not str"):
                session.registerCallback(wrong)
        async with (
            mtl.serve("tcp://127.0.0.1:*") as server,
            mtl.connect(server.addresses[0], profile="queue") as client,
        ):
            with pytest.raises(TypeError, match="a function of a Received is expected, not str"):
                client.reader(["q"], received=wrong)

    @with_each
    async def test_wrong_settings_are_refused_at_the_call(self, face: Face) -> None:
        for wrong in ("x", None, [5], True):
            with pytest.raises(TypeError, match="timeout: a number"):
                face.connect(closed_address(face), timeout=wrong)
        for seconds in (0, -1, float("nan")):
            with pytest.raises(ConfigurationError, match="timeout is more than 0"):
                face.connect(closed_address(face), timeout=seconds)
        for factory in (5, "x", object(), Factory()):
            with pytest.raises(TypeError, match=r"factory: one of the class .*ServerFactory"):
                face.serve(factory=factory)
            with pytest.raises(TypeError, match=r"factory: one of the class .*ClientFactory"):
                face.module.connect(closed_address(face), factory=factory)
        for nowhere in ([], ()):
            with pytest.raises(ConfigurationError, match="one endpoint at least"):
                face.module.serve(nowhere)
        for directory in ("", b"a\0b"):
            with pytest.raises(ConfigurationError, match="a queue is a directory"):
                face.serve(queue=directory)
        for wrong in (5, None):
            for call in (face.connect, face.module.serve):
                with pytest.raises(
                    TypeError, match=f"(endpoint|text|address).* not {type(wrong).__name__}"
                ):
                    call(wrong)

    async def test_wrong_settings_of_one_protocol_are_refused_at_the_call(self) -> None:
        url = "ws://127.0.0.1:1/"
        address = "tcp://127.0.0.1:1"
        for call in (
            lambda: micromsg2.connect("tcp:127.0.0.1:1", proposal=5),  # type: ignore[arg-type]
            lambda: micromsg2.serve(TCP, proposal="x"),  # type: ignore[arg-type]
            lambda: micromsg2.serve(TCP, brokerQueues="jobs"),
            lambda: sabc.connect("tcp:127.0.0.1:1", headers=5),  # type: ignore[arg-type]
            lambda: sabc.connect(url, origin=5),  # type: ignore[arg-type]
            lambda: sabc.serve(TCP, origins=[5]),  # type: ignore[list-item]
            lambda: umq.connect(url, origin=5),  # type: ignore[arg-type]
            lambda: umq.serve(TCP, origins=[5]),  # type: ignore[list-item]
            lambda: mtl.connect(address, virtualHost=5),  # type: ignore[arg-type]
            lambda: mtl.connect(address, profile=5),  # type: ignore[arg-type]
            lambda: mtl.connect(address, credentials="x"),  # type: ignore[arg-type]
            lambda: mtl.connect(address, curve=5),  # type: ignore[arg-type]
            lambda: mtl.serve("tcp://127.0.0.1:*", curve="x"),  # type: ignore[arg-type]
            lambda: mtl.serve("tcp://127.0.0.1:*", virtualHosts="x"),
            lambda: mtl.serve("tcp://127.0.0.1:*", profiles=["x"]),  # type: ignore[list-item]
        ):
            with pytest.raises(TypeError):
                call()
        for origin in ("http://a\r\nX-User: root", "é"):
            for module in (sabc, umq):
                with pytest.raises(ConfigurationError, match="printable ASCII"):
                    module.connect(url, origin=origin)
        for address in ("tcp://127.0.0.1:٣٣", "tcp://[::1"):
            with pytest.raises(ConfigurationError, match="not a ZeroMQ address"):
                mtl.connect(address)

    @with_each
    async def test_a_queue_that_cannot_be_opened_is_a_configuration_error(self, face: Face) -> None:
        directory = self.queue()
        directory.write_text("a file")
        with pytest.raises(ConfigurationError, match="no directory"):
            await face.serve(queue=directory)

    @with_each
    async def test_a_cancelled_connect_is_cancelled_while_the_name_is_resolved(
        self, face: Face
    ) -> None:
        async with face.serve() as server:
            connecting = Deferred.fromCoroutine(face.connect(server.addresses[0]).__aenter__())
            connecting.cancel()
            with pytest.raises(CancelledError):
                await connecting

    async def test_umq_calls_methods_by_their_names(self) -> None:
        methods = umq.MethodRegistry()

        @methods.register
        def add(a: int, b: int) -> int:
            return a + b

        async with (
            umq.serve(TCP, methods=methods) as server,
            umq.connect(server.addresses[0]) as client,
        ):
            assert await client.remote.add(1, 2) == add(1, 2)

    async def test_umq_says_stored_for_a_method_that_nobody_has__UM_17(self) -> None:
        """A mistyped name is no success, with a queue and no methods either."""
        async with (
            umq.serve(TCP, sink=SafeSink()) as server,
            umq.connect(server.addresses[0]) as client,
        ):
            assert await umq.call_method(client, "vistied", 1) == umq.Stored(durable=True)
            with pytest.raises(umq.NoSuchMethod):
                await client.subscribe(lambda id: f'["vistied", "{id}"]').whenStarted()
            assert (await client.call("any text")).payload == ""

    async def test_umq_has_topics_by_name_as_the_command_has(self) -> None:
        """A server with a queue and no methods answered ``subscribe`` with Stored."""
        async with (
            umq.serve(TCP, sink=SafeSink()) as server,
            umq.connect(server.addresses[0]) as client,
        ):
            prices = client.subscribe(lambda id: f'["subscribe", "prices", "{id}"]')
            assert (await prices.whenStarted()).payload == "true"
            assert await client.remote.publish("prices", "5") == 1
            assert (await anext(prices)).payload == "5"

    async def test_sabc_is_served_on_websocket_too(self) -> None:
        async with sabc.serve(TCP, websocket=TCP, sink=SafeSink()) as server:
            assert [one.partition(":")[0] for one in server.addresses] == ["tcp", "ws"]
            async with sabc.connect(server.addresses[1], clientId="me") as client:
                await client.request(b"x")
                assert server.factory.sessionsOf("me")

    async def test_mtl_takes_one_socket_for_both(self) -> None:
        at = f"ipc://{Path(self.mktemp()).absolute()}"[:100]
        Path(at.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True)
        async with (
            mtl.serve(at, sink=SafeSink(), data=at) as server,
            mtl.connect(server.addresses[0], profile="ingest") as client,
        ):
            await _write(client, b"x")
        with pytest.raises(ConfigurationError, match="CURVE"):
            mtl.serve("tcp://0.0.0.0:*")

    async def test_a_log_in_that_is_refused_is_refused(self) -> None:
        class Closed(sabc.SabcServer):
            def authorise(self, request: Any) -> Any:
                raise Refused("not you", 403)

        async with sabc.serve(TCP, server=Closed) as server:
            with pytest.raises(Refused, match="not you"):
                await sabc.connect(server.addresses[0])


async def _cancelled(
    block: Coroutine[Any, Any, None],
    begun: Deferred[Any],
    sink: HeldSink,
    last: Deferred[None] | None,
) -> None:
    """Cancel a block whose message is held, or as it is left after its ``last``; what waits for its
    acknowledgement is told.
    """
    running = Deferred.fromCoroutine(block)
    (sent,) = await begun
    await _held(sink)
    if last is not None:
        last.callback(None)
    running.cancel()
    with pytest.raises(CancelledError):
        await running
    assert await sent == "ConnectionClosed"


async def _held(sink: HeldSink) -> None:
    """The message is on its way to the sink."""
    while not sink.waiting:
        await deferLater(reactor, 0.01)


async def _stopped_by(hook: str, face: Face, sends: bool) -> list[str]:
    """Stop a service in this hook of its session; return what became of what was sent there."""
    stopped, sent = Deferred[Any](), []

    def stop(session: Any) -> None:
        if sends:
            sent.append(Deferred.fromCoroutine(_sent(face, session)))
        service.stopService().addCallback(lambda _: session).chainDeferred(stopped)

    async with face.serve() as server:
        where, factory = reached(face, server.addresses[0])
        factory.protocol = type("Stopping", (face.named("Client"),), {hook: stop})
        service = face.named("ClientService")(where, factory)
        service.startService()
        session = await stopped
        assert (service.state, service.session) == ("down", None)
        with pytest.raises(ConnectionClosed):
            await session.whenEstablished()
        return [await one for one in sent]


async def _sent(face: Face, client: Any) -> str:
    try:
        await face.send(client, b"one")
    except Exception as error:
        return type(error).__name__
    return "answered"


PROGRAM = """
    import sys
    {install}
    from twisted.internet.defer import Deferred
    from twisted_msgproto import {name}
    {extra}

    async def main(reactor=None):
        async with {name}.serve({at!r}, queue=sys.argv[1]{served}) as server:
            async with {name}.connect(server.addresses[0]{connected}) as client:
                await ({send})
                print("ready", flush=True)
                await server.whenClosed()
        print("left", flush=True)
        return "result"

    {run}
"""
SENDS = {
    "lumberjack": "client.send(b'{}')",
    "micromsg2": "client.send('q', b'x')",
    "sabc": "client.request(b'x')",
    "umq": "client.call('x')",
    "mtl": "write(client)",
}
EXTRA = {
    "umq": """
    class Own(umq.UmqServer):
        def requestReceived(self, message):
            return 'x'
""",
    "mtl": """
    async def write(client):
        writer = await client.writer(['q'])
        await writer.send('q', b'x')
""",
}
REACT = """
    from twisted.internet.task import react
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
"""
ASYNCIO = """
    import asyncio
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    from twisted.internet import asyncioreactor
    asyncioreactor.install(loop)
"""
AS_FUTURE = """
    from twisted.internet import reactor

    async def outer():
        assert await Deferred.fromCoroutine(main()).asFuture(loop) == "result"

    reactor.callWhenRunning(lambda: loop.create_task(outer()))
    reactor.run()
"""


def program(face: Face, *, under_asyncio: bool) -> str:
    return textwrap.dedent(
        PROGRAM.format(
            install=ASYNCIO if under_asyncio else "",
            name=face.name,
            extra=EXTRA.get(face.name, ""),
            at=face.at,
            served=", server=Own" if face.name == "umq" else "",
            connected=", profile='ingest'" if face.name == "mtl" else "",
            send=SENDS[face.name],
            run=AS_FUTURE if under_asyncio else REACT,
        )
    )


@pytest.mark.parametrize(
    ("name", "under_asyncio"), [*((name, False) for name in BY_NAME), ("sabc", True)]
)
def test_sigterm_ends_a_program_in_order(launch: Launcher, name: str, under_asyncio: bool) -> None:
    """Nobody cancels the program then: the reactor asks who has something to finish."""
    queue = launch.directory / "queue"
    (launch.directory / "program.py").write_text(
        program(BY_NAME[name], under_asyncio=under_asyncio)
    )
    running = launch(queue, module="program")
    running.line("ready")
    assert running.end() == 0, running.output
    assert running.lines == ["ready", "left"]
    assert rows(queue) == 1
    DurableSink(queue).close()
