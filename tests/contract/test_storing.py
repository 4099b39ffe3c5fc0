"""What is acknowledged is safe; hooks and sinks which fail harm their own session alone."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from math import inf, nan
from typing import Any

import pytest
from twisted.internet.defer import AlreadyCalledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent

from tests.contract.cases import CONNECTED
from tests.contract.sending import ENDPOINTS
from tests.contract.world import World, only, over_all
from tests.doubles import HeldSink
from twisted_msgproto.core.errors import ConfigurationError, QueueError
from twisted_msgproto.lumberjack import LumberjackClientFactory, LumberjackServerFactory
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ServerFactory
from twisted_msgproto.mtl import MtlClientFactory, MtlServerFactory
from twisted_msgproto.sabc import SabcClientFactory, SabcServerFactory
from twisted_msgproto.testing import SafeSink
from twisted_msgproto.umq import Hub, UmqClientFactory, UmqServerFactory


class Boom(BaseException):
    """What an application's code may raise."""


class Storing:
    def test_a_message_is_acknowledged_once_it_is_safe(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink)
        sent = world.join().send(b"one")
        world.pump()
        self.assertNoResult(sent)
        self.assertEqual([message.body.strip(b'{}":m') for message in sink.messages], [b"one"])
        traffic = world.factory.traffic
        self.assertEqual((traffic.messages, sum(traffic.latencies)), (1, 0))
        world.wait(0.02, 0.02)
        sink.safe()
        world.pump()
        self.successResultOf(sent)
        self.assertEqual(sum(traffic.latencies), 1)
        self.assertAlmostEqual(traffic.waited, 0.02)

    def test_what_is_safe_at_once_waited_for_nothing(self: Any) -> None:
        world = self.world(SafeSink())
        self.soon(world, world.join().send(b"one"), 1)
        self.assertEqual(world.factory.traffic.latencies[0], 1)

    def test_a_disk_error_is_one_line_and_a_counter_and_no_acknowledgement(self: Any) -> None:
        """HO-27"""
        sink = HeldSink()
        world = self.world(sink)
        peer = world.join()
        sent = peer.send(b"one")
        world.pump()
        sink.fail(QueueError("no space left in /queue"))
        world.wait(5)
        self.failureResultOf(sent)
        self.flushLoggedErrors(QueueError)
        self.assertEqual(world.tracebacks, [])
        told = [line for line in world.lines(LogLevel.error) if "no space left" in line]
        self.assertEqual(len(told), 1, world.lines())
        self.assertEqual(world.factory.counters["unsafe_batches"], 1)
        self.assertEqual(sum(world.factory.traffic.latencies), 0)

    def test_many_batches_of_a_session_which_the_disk_loses_are_one_line(self: Any) -> None:
        """HO-27"""
        sink = HeldSink()
        world = self.world(sink)
        world.case = self.case.wide()
        peer = world.join()
        sent = []
        for number in range(3):
            sent.append(peer.send(b"%d" % number))
            world.pump()
        self.assertEqual(len(sink.waiting), 3)
        sink.waiting.pop().errback(QueueError("no space left in /queue"))
        if self.case.name != "mtl":  # the others each have a connection, which is read no more
            self.assertEqual(peer.server.snapshot()["not_read_because"], "draining")
        while sink.waiting:
            sink.fail(QueueError("no space left in /queue"))
        world.wait(5)
        for one in sent:
            self.failureResultOf(one)
        self.flushLoggedErrors(QueueError)
        told = [line for line in world.lines(LogLevel.error) if "no space left" in line]
        self.assertEqual(len(told), 1, world.lines())

    def test_what_was_not_stored_ends_this_session_and_no_other(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink)
        bad, good = world.join(), world.join()
        lost, kept = bad.send(), None
        world.pump()
        sink.fail(QueueError("no space left"))
        world.wait(5)
        self.failureResultOf(lost)
        kept = good.send()
        world.pump()
        sink.safe()
        world.pump()
        self.successResultOf(kept)
        self.flushLoggedErrors(QueueError)

    def test_over_budget_nobody_is_read_until_there_is_room(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink, process_unsafe_bytes=1)
        peers = [world.join() for _ in range(3)]
        sent = [peer.send(b"first") for peer in peers]
        world.pump()
        sent += [peer.send(b"second") for peer in peers]
        world.pump()
        self.assertLessEqual(len(sink.messages), len(peers))
        for _ in range(2 * len(peers)):
            sink.safe()
            world.pump()
        for one in sent:
            self.successResultOf(one)


class Hooks:
    """An application's hook misbehaves: its own session feels it, as documented, and no other."""

    def two(self: Any, hook: Any, **options: Any) -> tuple[World, Any, Any]:
        """Two clients; ``hook`` sees what the first one sends, the other's messages pass."""

        def seen(server: Any, message: Any) -> Any:
            return hook(server, message) if b"bad" in (message.body or b"") else None

        world = self.world(SafeSink(), hooks={"message": seen}, **options)
        return world, world.join(), world.join()

    def unharmed(self: Any, world: World, other: Any) -> None:
        self.soon(world, other.send(b"good"), 2)

    def test_a_hook_that_raises_is_logged_and_answered_as_a_failure(self: Any) -> None:
        """Also what would end a program: as with all that the reactor calls, it ends nothing."""

        def raises(server: Any, message: Any) -> None:
            raise kind("in a hook")

        async def raises_later(server: Any, message: Any) -> None:
            raise kind("in a hook")

        for kind in (Boom, SystemExit, KeyboardInterrupt):
            for hook in (raises, raises_later):
                world, bad, good = Hooks.two(self, hook)
                self.soonFails(world, bad.send(b"bad"), seconds=5)
                self.assertEqual(len(self.flushLoggedErrors(kind)), 1)
                Hooks.unharmed(self, world, good)

    def test_a_message_is_as_good_as_what_the_deferred_of_its_hook_says(self: Any) -> None:
        """Fired twice, of which Twisted tells the application, it is acknowledged once."""
        for say in ("callback", "errback", "cancel"):
            waiting: list[Deferred[None]] = []

            def later(server: Any, message: Any, waiting: Any = waiting) -> Deferred[None]:
                waiting.append(Deferred())
                return waiting[-1]  # type: ignore[no-any-return]

            world, bad, good = Hooks.two(self, later)
            sent = bad.send(b"bad")
            world.pump()
            self.assertNoResult(sent)
            if say == "callback":
                waiting[0].callback(None)
                self.assertRaises(AlreadyCalledError, waiting[0].callback, None)
            else:
                waiting[0].errback(Boom("later")) if say == "errback" else waiting[0].cancel()
            world.wait(5)
            (self.successResultOf if say == "callback" else self.failureResultOf)(sent)
            self.assertEqual(len(self.flushLoggedErrors(Boom)), say == "errback")
            self.flushLoggedErrors()
            Hooks.unharmed(self, world, good)

    def unacknowledged(self: Any, world: World, sent: Any, name: str) -> None:
        """It is not acknowledged, and one line of the log has the name of whose fault it is."""
        world.wait(5)
        self.failureResultOf(sent)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        (event,) = world.tracebacks
        self.assertIn(name, formatEvent(event))

    def test_a_hook_for_messages_returns_nothing_else__RD_05(self: Any) -> None:
        """Not what looks like yes or no; only where the hook is asked for an answer it may."""
        asked = self.case.hook != "messageReceived"
        for value in (3, True, False, object(), *(() if asked else ("yes", b"yes", []))):

            def odd(server: Any, message: Any, value: Any = value) -> Any:
                return value

            world, bad, good = Hooks.two(self, odd)
            Hooks.unacknowledged(self, world, bad.send(b"bad"), self.case.hook)
            Hooks.unharmed(self, world, good)

    def test_a_hook_for_batches_returns_nothing_else__RD_05(self: Any) -> None:
        for value in (3, True, False, "yes", b"yes", object(), []):

            def batchReceived(server: Any, batch: Any, value: Any = value) -> Any:
                return value if any(b"bad" in (message.body or b"") for message in batch) else None

            world = self.world(SafeSink(), hooks={"batchReceived": batchReceived})
            bad, good = world.join(), world.join()
            Hooks.unacknowledged(self, world, bad.send(b"bad"), ".batchReceived returned")
            Hooks.unharmed(self, world, good)

    def test_a_sink_returns_nothing_else__RD_05(self: Any) -> None:
        for value in (3, True, "yes"):

            class OddSink(SafeSink):
                def put(self, batch: Any, value: Any = value) -> Any:
                    return value

            for hooks in ({}, {"messageReceived": lambda server, message: None}):
                world = self.world(OddSink(), hooks=hooks)
                sent = world.join().send(b"bad")
                Hooks.unacknowledged(self, world, sent, "OddSink.put returned")

    def test_hooks_and_sinks_may_be_coroutines__RD_05(self: Any) -> None:
        class Coroutine(SafeSink):
            async def put(self, batch: Any) -> Any:
                return await SafeSink.put(self, batch)

        async def hook(server: Any, message: Any) -> None:
            return None

        for hooks in ({}, {"message": hook}):
            world = self.world(sink := Coroutine(), hooks=hooks)
            self.soon(world, world.join().send(b"one"), 2)
            self.assertEqual(len(sink.messages), 1)

    def test_a_hook_that_never_fires_holds_up_its_own_message_alone(self: Any) -> None:
        world, bad, good = Hooks.two(self, lambda server, message: Deferred())
        sent = bad.send(b"bad")
        world.wait(5)
        self.assertNoResult(sent)
        Hooks.unharmed(self, world, good)
        self.ignore(sent)

    @only(*CONNECTED)
    def test_a_hook_may_close_the_connection_from_inside(self: Any) -> None:
        ends = [
            lambda server: server.transport.loseConnection(),
            lambda server: server.transport.abortConnection(),
        ]
        for end in ends:
            world, bad, good = Hooks.two(self, lambda server, message, end=end: end(server))
            sent = bad.send(b"bad")
            world.wait(20)
            self.assertTrue(bad.gone)
            self.assertTrue(sent.called)
            self.ignore(sent)
            self.assertEqual(world.tracebacks, [])
            Hooks.unharmed(self, world, good)


over_all(globals(), Storing, Hooks)

UMQ_CLIENT = functools.partial(UmqClientFactory, "ws://server/")
STORE = (
    *(LumberjackServerFactory, MicroMsg2ServerFactory, SabcServerFactory, UmqServerFactory),
    *(MtlServerFactory, MicroMsg2ClientFactory, SabcClientFactory, UMQ_CLIENT),
)
SERVERS = (LumberjackServerFactory, MicroMsg2ServerFactory, *STORE[2:5])
OTHERS = (LumberjackClientFactory, MtlClientFactory)


class NoPut:
    put = "not a function"


def name_of_factory(value: Any) -> str:
    return str(getattr(getattr(value, "func", value), "__name__", value))


@pytest.mark.parametrize(
    "sink", ["queue", 3, object(), SafeSink, NoPut()], ids=["text", "3", "object", "class", "put"]
)
@pytest.mark.parametrize("factory", STORE, ids=name_of_factory)
def test_a_factory_takes_no_sink_but_one_that_stores__RD_05(factory: Any, sink: Any) -> None:
    """RD-05"""
    with pytest.raises(TypeError, match=r"^sink: an object with a method put is expected, not "):
        factory(sink=sink, clock=Clock())


@pytest.mark.parametrize(
    ("name", "value", "factories"),
    [
        *(("limits", value, (*STORE, *OTHERS)) for value in (3, "drain=4", [], [("drain", 4)])),
        ("clock", 3, (*STORE, *OTHERS)),
        ("shared", 3, SERVERS),
        ("wallClock", 1.7e9, SERVERS),
        *(("portal", value, STORE[2:5]) for value in ("users", 3, [])),
        *(("authoriser", value, STORE[1:5]) for value in ("rules", 3, lambda access: True)),
        *(("methods", value, (UmqServerFactory, UMQ_CLIENT)) for value in ({}, Hub(), "add")),
        *((name, "mtl", STORE[4:5]) for name in ("profiles", "virtualHosts", "curve")),
        *((name, "no", STORE[4:5]) for name in ("insecure", "forcePlain")),
        *((name, "mtl", OTHERS[1:]) for name in ("credentials", "curve")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_argument_of_a_wrong_type_is_told_at_once__RD_05(
    name: str, value: Any, factories: Any
) -> None:
    for factory in factories:
        with pytest.raises(TypeError, match=f"^{name}: .* is expected, not {type(value).__name__}"):
            factory(**{"clock": Clock(), name: value})


def numbers() -> list[Any]:
    """Every numeric argument of what connects and serves, and of all factories, by signature."""
    found = []
    for name in ("lumberjack", "micromsg2", "sabc", "umq", "mtl"):
        module = importlib.import_module(f"twisted_msgproto.{name}")
        for word, maker in sorted(vars(module).items()):
            if word in ("connect", "serve") or word.endswith(("Factory", "Service", "Shipper")):
                for argument, parameter in inspect.signature(maker).parameters.items():
                    if parameter.annotation in ("int", "float"):
                        wrong = [nan, -inf, -1, True, False, "3", b"3", None]
                        wrong += [inf, 3.7] * (parameter.annotation == "int")
                        label = f"{name}-{word}-{argument}"
                        found.append(pytest.param(name, maker, argument, wrong, id=label))
    return found


@pytest.mark.parametrize(("protocol", "maker", "name", "wrong"), numbers())
def test_a_number_that_cannot_be_is_told_at_once__RD_05(
    protocol: str, maker: Any, name: str, wrong: list[Any]
) -> None:
    first = {"connect": (ENDPOINTS[protocol],), "LumberjackShipper": (Clock(), ENDPOINTS[protocol])}
    for value in wrong:
        with pytest.raises((TypeError, ConfigurationError, ValueError)) as told:
            maker(*first.get(maker.__name__, ()), **{name: value})
        assert re.match(rf"{name}: a .*number.* is expected, not|.* not ", str(told.value))
        assert "supported" not in str(told.value)


def test_each_protocol_has_such_numbers__RD_05() -> None:
    assert {param.values[0] for param in numbers()} == set(ENDPOINTS) - {"sabc-ws"}
