"""Every verb of every client: each failure comes through its Deferred, which fires exactly once.

What the verbs are stands in :mod:`.verbs`; here each is walked through what can happen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail, maybeDeferred
from twisted.python.failure import Failure

from tests.contract.cases import BOTH_WAYS, CASES, CONNECTED, Endpoint
from tests.contract.test_reconnect import Parts
from tests.contract.verbs import (
    ENDS,
    HOOKS,
    INSIDE,
    LOCAL,
    OF_ONE_SESSION,
    VERBS,
    WRONG,
    Verb,
    document,
)
from tests.contract.world import only, over_all
from tests.doubles import HeldSink
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    NotStored,
    ProtocolViolation,
    QueueFull,
    Refused,
    TimedOut,
)
from twisted_msgproto.micromsg2 import MessageRefused
from twisted_msgproto.mtl import MtlReader, MtlWriter
from twisted_msgproto.net import Session
from twisted_msgproto.net.clients.client import ClientLink
from twisted_msgproto.net.clients.reconnect import ReconnectingService
from twisted_msgproto.net.session import Linked, SessionLink
from twisted_msgproto.testing import SafeSink

VOCABULARY = (ConnectionClosed, LimitExceeded, NotStored, ProtocolViolation, Refused, TimedOut)
"""What a failed verb may say of the peer, the connection and limits."""

PATIENCE_SECONDS = 130
"""Every wait of every client has ended by then."""

SHORT = {
    "lumberjack": {"timeout": 20},
    "micromsg2": {"ack_wait": 20},
    "sabc": {"response_seconds": 20},
    "sabc-ws": {"response_seconds": 20},
    "umq": {"call_seconds": 20},
    "mtl": {"request_timeout": 4, "request_tries": 3, "liveness": 10, "renewals": 2},
}
"""Deadlines of a client; those which are off by default are on."""


REFUSED = ("reader", "callback")
"""The profile of the server has no readers, and it has registered no callback."""


class Told:
    """What the Deferred of one verb has said.

    Attributes:
        times: how often it has fired.
        result: what it has fired with.
    """

    def __init__(self, verb: Verb, call: Callable[[Any], Any], of: Any) -> None:
        self.times = 0
        self.result: Any = None
        try:
            deferred = call(of)
        except Exception as error:
            raise AssertionError(f"{verb} raised {error!r}") from error
        assert isinstance(deferred, Deferred), f"{verb} gave {deferred!r}"
        self.verb = verb
        self.deferred = deferred.addBoth(self._told)

    def _told(self, result: Any) -> None:
        self.times += 1
        self.result = result

    @property
    def error(self) -> Any:
        assert self.times == 1, f"{self.verb} has fired {self.times} times"
        assert isinstance(self.result, Failure), f"{self.verb} gave {self.result!r}"
        return self.result.value

    def failed(self, *kinds: type[BaseException]) -> None:
        assert isinstance(self.error, kinds), f"{self.verb}: {self.error!r}"

    def fired(self) -> None:
        """It has fired once, with whatever a person would understand."""
        assert self.times == 1, f"{self.verb} has fired {self.times} times"
        if isinstance(self.result, Failure):
            self.failed(*VOCABULARY)


class Walking:
    def walk(self: Any, *of: str, **which: bool) -> Iterator[Verb]:
        for verb in VERBS[self.case.name]:
            if verb.of in of and all(
                bool(getattr(verb, name)) is yes for name, yes in which.items()
            ):
                yield verb

    def standing(self: Any, verb: Verb, sink: Any = None, **limits: Any) -> tuple[Any, Any, Any]:
        """A world, a client whose session stands, and the object whose verb it is."""
        world = self.world(SafeSink() if sink is None else sink)
        peer = world.join(**{**SHORT[self.case.name], **limits})
        return world, peer, self.object(world, peer, verb)

    def object(self: Any, world: Any, peer: Any, verb: Verb) -> Any:
        if verb.of != "reader":
            return peer.writer if verb.of == "writer" else peer.client
        self.ignore(peer.client.profile("queue"))  # it closes the flows of the one before
        leased = peer.client.reader(["q"])
        world.wait(1)
        return self.successResultOf(leased)

    def deafen(self: Any, world: Any, peer: Any) -> None:
        if peer.line is None:
            world.network.away = True
        else:
            peer.line.server.deaf = True

    def in_flight(self: Any, verb: Verb, **limits: Any) -> tuple[Any, Any, Any, Told]:
        """The verb was called, and the server does not answer."""
        world, peer, one = self.standing(verb, **limits)
        self.deafen(world, peer)
        told = Told(verb, verb.call, one)
        world.pump()
        return world, peer, one, told

    def clean(self: Any, world: Any) -> None:
        self.assertEqual(world.tracebacks, [])


FLOWS = ("writer", "reader")
CLIENTS = ("client", *FLOWS)


class Calling(Walking):
    """When a verb is called at a bad time, or with what cannot be sent."""

    def test_before_the_session_stands(self: Any) -> None:
        for verb in self.walk("client"):
            world = self.world(SafeSink())
            peer = world.case.meeting(world)
            told = Told(verb, verb.call, peer.client)
            peer.cut()
            world.wait(1)
            told.fired()
            self.clean(world)

    def test_when_the_session_was_closed(self: Any) -> None:
        for verb in self.walk(*CLIENTS):
            world, peer, one = self.standing(verb)
            closed = peer.client.close()
            Told(verb, verb.call, one).failed(ConnectionClosed)
            world.wait(6)
            self.successResultOf(closed)
            Told(verb, verb.call, one).failed(ConnectionClosed)
            self.clean(world)

    def test_while_the_session_is_being_closed(self: Any) -> None:
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, one, before = self.in_flight(verb)
            closed = peer.client.close()
            told = Told(verb, verb.call, one)
            world.wait(60)
            told.failed(ConnectionClosed)
            before.failed(*VOCABULARY)
            self.assertRegex(str(before.error), "before everything was answered|flow was closed")
            self.successResultOf(closed)

    def test_when_the_connection_was_lost(self: Any) -> None:
        for verb in self.walk(*CLIENTS):
            world, peer, one = self.standing(verb)
            peer.cut()
            world.wait(1)
            Told(verb, verb.call, one).failed(ConnectionClosed)
            self.clean(world)

    def test_when_it_was_given_up(self: Any) -> None:
        """A verb behind ``abort()`` was called written, or waited for the loss."""
        for verb in self.walk(*CLIENTS):
            world, peer, one = self.standing(verb)
            peer.client.abort()
            Told(verb, verb.call, one).failed(ConnectionClosed)
            world.wait(1)
            self.clean(world)
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, one, told = self.in_flight(verb)
            peer.client.abort()
            peer.client.abort()
            world.wait(1)
            told.failed(ConnectionClosed)
            self.successResultOf(peer.client.close())
            Told(verb, verb.call, one).failed(ConnectionClosed)
            self.clean(world)

    def test_with_more_than_our_limits_allow(self: Any) -> None:
        """HO-13, HO-23: that Deferred fails alone, and nothing is written."""
        for verb in self.walk(*CLIENTS, large=True):
            world, peer, one = self.standing(verb)
            world.wait(1)
            before = peer.bytes_written
            told = Told(verb, verb.large, one)
            # Parts are counted as they come; UMQ's subscribe takes back what it has not asked for.
            if not {"many", "subscribe"} & set(verb.large.__code__.co_names):
                self.assertEqual(peer.bytes_written, before, verb)
            world.wait(1)
            told.failed(LimitExceeded)
            good = Told(verb, verb.call, one)
            world.wait(3)
            good.fired()
            self.assertFalse(peer.gone, verb)
            self.clean(world)

    @only("sabc", "sabc-ws")
    def test_with_more_than_the_peer_has_announced(self: Any) -> None:
        """HO-01"""
        for verb in self.walk("client", large=True):
            world = self.world(SafeSink(), message_bytes=20_000)
            peer = world.join()
            told = Told(verb, verb.large, peer.client)
            world.wait(1)
            told.failed(LimitExceeded)
            self.assertIn("20000", str(told.error))
            self.assertFalse(peer.gone)

    def test_with_a_wrong_type(self: Any) -> None:
        """It is told at the call; some of these were written, some left the session half closed."""
        world = self.world(SafeSink())
        peer = world.join(**SHORT[self.case.name])
        world.wait(1)
        for number, call in enumerate(WRONG[self.case.name]):
            before = peer.bytes_written
            told = self.soonFails(world, maybeDeferred(call, peer.client), TypeError, ValueError)
            self.assertNotIn("has no attribute", told.getErrorMessage(), number)
            self.assertEqual(peer.bytes_written, before, number)
        self.soon(world, peer.send(document()))
        self.assertTrue(peer.stands)
        self.clean(world)

    def test_with_what_cannot_be_written(self: Any) -> None:
        for verb in self.walk(*CLIENTS, odd=True):
            world, peer, one = self.standing(verb)
            world.wait(1)
            before = peer.bytes_written
            told = Told(verb, verb.odd, one)
            if verb.name != "subscribe":  # UMQ takes back what it has not asked for
                self.assertEqual(peer.bytes_written, before, verb)
            told.failed(ValueError)
            self.assertNotIsInstance(told.error, LimitExceeded)
            good = Told(verb, verb.call, one)
            world.wait(3)
            good.fired()
            self.assertFalse(peer.gone, verb)
            self.clean(world)


class Waiting(Walking):
    @property
    def impatient(self: Any) -> dict[str, Any]:
        """By default a flow of MTL which stood once waits for its server for ever."""
        return {"persistent": False} if self.case.name == "mtl" else {}

    def test_the_server_never_answers(self: Any) -> None:
        for verb in self.walk(*CLIENTS, answered=True):
            world, _, _, told = self.in_flight(verb, **self.impatient)
            world.wait(PATIENCE_SECONDS, 2.0)
            told.failed(TimedOut)
            self.clean(world)

    @only(*CONNECTED)
    def test_the_server_answers_late(self: Any) -> None:
        """A time-out of one call alone: its answer comes later, and harms nobody."""
        for verb in self.walk("client", answered=True):
            world, peer, _, told = self.in_flight(verb)
            world.wait(60)  # where the whole session is late it ends when nobody reads its end
            told.failed(TimedOut)
            peer.line.server.deaf = False
            world.wait(5)
            self.clean(world)
            if not peer.gone:
                good = Told(verb, verb.call, peer.client)
                world.wait(5)
                good.fired()

    def answer(self: Any, verb: Verb) -> tuple[Any, Any, Told, bytes]:
        """The bytes of the server's answer, which did not leave."""
        world, peer, _, told = self.in_flight(verb)
        server, client = peer.line.server, peer.line.client
        client.deaf = True
        server.deaf = False
        world.pump()
        octets = bytes(server.buffer)
        server.buffer.clear()
        client.deaf = False
        self.assertEqual(told.times, 0)
        self.assertTrue(octets, verb)
        return world, peer, told, octets

    @only(*CONNECTED)
    def test_the_server_answers_twice(self: Any) -> None:
        for verb in self.walk("client", answered=True):
            world, peer, told, octets = self.answer(verb)
            peer.line.server.buffer += octets * 2
            world.wait(2)
            told.fired()
            again = Told(verb, verb.call, peer.client)
            world.wait(2)
            again.fired()
            self.clean(world)

    @only(*CONNECTED)
    def test_the_server_answers_wrongly(self: Any) -> None:
        for verb in self.walk("client", answered=True):
            world, peer, told, _ = self.answer(verb)
            peer.line.server.buffer += b"\xff" * 40
            world.wait(30)
            told.failed(ProtocolViolation)
            self.assertTrue(peer.gone)
            self.clean(world)

    @only(*CONNECTED)
    def test_the_server_closes_in_the_middle_of_its_answer(self: Any) -> None:
        for verb in self.walk("client", answered=True):
            for part in (0, 1, 2):
                world, peer, told, octets = self.answer(verb)
                peer.line.server.buffer += octets[: len(octets) * part // 3]
                peer.line.client.read()
                world.pump() if part else None
                peer.line.server.loseConnection()
                world.wait(2)
                told.fired()
                self.clean(world)

    @only(*CONNECTED)
    def test_the_server_closes_at_each_step_of_the_beginning(self: Any) -> None:
        """Cut after so many bytes, from either side."""
        for verb in self.walk("client", answered=True):
            for octets in (0, 1, 30, 90, 200, 400, 700):
                world = self.world(SafeSink())
                peer = world.case.meeting(world)
                standing = Told(verb, lambda one: one.whenEstablished(), peer.client)
                peer.line.server.read(octets) if octets else None
                peer.line.client.read(octets) if octets else None
                told = Told(verb, verb.call, peer.client)
                peer.line.server.loseConnection()
                world.wait(2)
                standing.fired()
                told.fired()
                self.clean(world)

    def test_a_failure_at_the_loss_may_cancel_its_neighbour(self: Any) -> None:
        """HO-03"""
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, one, first = self.in_flight(verb)
            second, third = Told(verb, verb.call, one), Told(verb, verb.call, one)
            first.deferred.addBoth(lambda _, second=second: second.deferred.cancel())
            again: list[Told] = []
            first.deferred.addBoth(
                lambda _, verb=verb, one=one, again=again: again.append(Told(verb, verb.call, one))
            )
            world.pump()
            peer.cut()
            world.wait(1)
            first.fired()
            self.assertEqual(second.times, 1, verb)
            third.fired()
            again[0].failed(ConnectionClosed)
            self.clean(world)

    def test_a_time_out_may_cancel_and_close(self: Any) -> None:
        """HO-03"""
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, one, first = self.in_flight(verb, **self.impatient)
            second = Told(verb, verb.call, one)
            closed: list[Any] = []
            first.deferred.addBoth(lambda _, second=second: second.deferred.cancel())
            first.deferred.addBoth(
                lambda _, peer=peer, closed=closed: closed.append(peer.client.close()) and None
            )
            world.wait(PATIENCE_SECONDS, 2.0)
            first.fired()
            self.assertEqual(second.times, 1, verb)
            self.successResultOf(closed[0])
            self.clean(world)

    def test_it_can_be_cancelled(self: Any) -> None:
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, _, told = self.in_flight(verb)
            told.deferred.cancel()
            told.failed(CancelledError)
            if peer.line is not None:
                peer.line.server.deaf = False
            world.wait(3)
            self.assertEqual(told.times, 1)
            self.clean(world)

    @only(*BOTH_WAYS)
    def test_our_own_sink_fails(self: Any) -> None:
        """What the server sends cannot be stored: the session ends, and says why."""
        for verb in self.walk("client", answered=True):
            sink = HeldSink()
            world = self.world(HeldSink())
            peer = world.case.meeting(world, sink)
            world.pump()
            pushed = peer.push(b"x")
            world.pump()
            self.deafen(world, peer)
            told = Told(verb, verb.call, peer.client)
            sink.fail(QueueFull("no space left on device"))
            peer.line.server.deaf = False
            world.wait(12)
            told.failed(NotStored)
            self.assertIn("no space left", str(told.error))
            self.failureResultOf(peer.client.whenEstablished(), NotStored)
            self.failureResultOf(pushed)
            self.clean(world)

    @only("micromsg2", "sabc", "sabc-ws", "umq", "mtl")
    def test_the_server_says_no(self: Any) -> None:
        for verb in self.walk("client", "writer", answered=True):
            if self.case.name == "mtl" and verb.of == "client":
                continue  # its requests are not an application's to refuse
            if self.case.name == "mtl":
                world = self.world(self.full())
            else:
                world = self.world(SafeSink(), hooks={"message": self.says_no})
            peer = world.join()
            told = Told(verb, verb.call, self.object(world, peer, verb))
            world.wait(3)
            told.failed(Refused)
            self.clean(world)

    @staticmethod
    def says_no(session: Any, message: Any) -> Any:
        raise (MessageRefused if "MicroMsg2" in type(session).__name__ else Refused)("no")

    def full(self: Any) -> Any:
        sink = HeldSink()
        sink.put = lambda batch: fail(QueueFull("no space left on device"))
        return sink


class Closing(Walking):
    """``close()`` and ``whenEstablished()``, which all clients have."""

    def test_twice_and_inside_its_own_callback(self: Any) -> None:
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, _, told = self.in_flight(verb)
            fired: list[int] = []
            more: list[Any] = []
            first, second = peer.client.close(), peer.client.close()
            first.addCallback(lambda _, fired=fired: fired.append(1))
            first.addCallback(
                lambda _, more=more, peer=peer: more.append(peer.client.close()) and None
            )
            second.addCallback(lambda _, fired=fired: fired.append(2))
            world.wait(12)
            self.assertEqual(fired, [1, 2], verb)
            self.successResultOf(more[0])
            told.fired()
            self.clean(world)

    def test_one_close_may_be_cancelled(self: Any) -> None:
        verb = next(self.walk(*FLOWS, "client", answered=True))
        world, peer, _, told = self.in_flight(verb)
        first, second = peer.client.close(), peer.client.close()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        world.wait(12)
        self.successResultOf(second)
        told.fired()
        self.clean(world)

    def test_before_the_session_stands(self: Any) -> None:
        world = self.world(SafeSink())
        peer = world.case.meeting(world)
        self.deafen(world, peer)
        waiting, closed = peer.client.whenEstablished(), peer.client.close()
        world.wait(12)
        self.successResultOf(closed)
        if not waiting.called or isinstance(waiting.result, Failure):
            self.failureResultOf(waiting, *VOCABULARY)
        self.clean(world)

    def test_in_the_callback_of_an_answer(self: Any) -> None:
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, one = self.standing(verb)
            first, second = Told(verb, verb.call, one), Told(verb, verb.call, one)
            closed: list[Any] = []
            first.deferred.addBoth(
                lambda _, closed=closed, peer=peer: closed.append(peer.client.close()) and None
            )
            world.wait(8)
            first.fired()
            second.fired()
            self.successResultOf(closed[0])
            self.clean(world)

    def test_it_is_bounded_by_drain(self: Any) -> None:
        """HO-05: whatever the server does, and whatever is in flight."""
        for verb in self.walk(*CLIENTS, answered=True):
            world, peer, _, told = self.in_flight(verb, drain=3.0)
            closed = peer.client.close()
            world.wait(2.5, 0.5)
            self.assertNoResult(closed)
            world.wait(2.0, 0.5)
            self.successResultOf(closed)
            told.failed(*VOCABULARY)

    def test_who_waits_for_the_session_may_cancel_his_neighbour(self: Any) -> None:
        """HO-03"""
        world = self.world(SafeSink())
        peer = world.case.meeting(world)
        if peer.client.established:  # on a plain byte stream a writer stands at once
            return
        waiting = [peer.client.whenEstablished() for _ in range(3)]
        times = self.times(waiting)
        waiting[0].addCallback(lambda _: waiting[1].cancel())
        peer.cut()
        world.wait(1)
        self.assertEqual(times, [1, 1, 1])
        self.failureResultOf(peer.client.whenEstablished(), ConnectionClosed)


class Coming(Walking, Parts):
    def service(self: Any, world: Any) -> Any:
        """A client of this world which comes back, and ends with the test."""
        service = self.case.service(world)
        self.addCleanup(self.stopped, world, service)
        return service

    def stopped(self: Any, world: Any, service: Any) -> None:
        self.soon(world, service.close(), 12)

    def test_there_is_no_session_and_it_is_stopped(self: Any) -> None:
        for verb in self.walk("service"):
            world = self.serving()
            self.case.away(world)
            service = self.service(world)
            early = Told(verb, verb.call, service)
            service.startService()
            world.wait(2)
            late = Told(verb, verb.call, service)
            self.stopped(world, service)
            for told in (early, late):
                told.failed(ConnectionClosed) if verb.answered else told.fired()
            after = Told(verb, verb.call, service)
            after.failed(ConnectionClosed) if verb.answered else after.fired()
            self.clean(world)

    def test_the_server_refuses(self: Any) -> None:
        for verb in self.walk("service", answered=True):
            world = self.serving()
            self.case.refuse(world)
            service = self.service(world)
            early = Told(verb, verb.call, service)
            service.startService()
            world.wait(20)
            early.failed(Refused)
            Told(verb, verb.call, service).failed(Refused)
            self.stopped(world, service)

    def test_nobody_answers_in_time(self: Any) -> None:
        if self.case.name == "lumberjack":
            return  # it keeps events until they are acknowledged
        for verb in self.walk("service", answered=True):
            world = self.serving()
            self.case.away(world)
            service = self.service(world)
            service.startService()
            told = Told(verb, verb.call, service)
            world.wait(70, 2.0)
            told.failed(TimedOut)
            self.stopped(world, service)

    def test_it_is_done_in_the_session_which_comes(self: Any) -> None:
        for verb in self.walk("service"):
            world = self.serving()
            service = self.service(world)
            told = Told(verb, verb.call, service)
            service.startService()
            world.wait(5)
            if verb.name in REFUSED:
                told.failed(Refused)
            else:
                told.fired()
                self.assertNotIsInstance(told.result, Failure)
            self.stopped(world, service)
            self.clean(world)

    def test_with_what_cannot_be_sent(self: Any) -> None:
        for verb in self.walk("service"):
            for call, kind in ((verb.large, LimitExceeded), (verb.odd, ValueError)):
                if call is None:
                    continue
                world = self.serving()
                service = self.service(world)
                service.startService()
                world.wait(3)
                told = Told(verb, call, service)
                world.wait(3)
                told.failed(kind)
                good = Told(verb, verb.call, service)
                world.wait(3)
                good.fired()
                if verb.name not in REFUSED:
                    self.assertNotIsInstance(good.result, Failure)
                self.stopped(world, service)


class Connecting:
    """What an endpoint's ``connect(factory)`` fires with, whatever the protocol and the wire."""

    def made(self: Any) -> tuple[Any, Any]:
        world = self.world(SafeSink())
        factory = self.case.make_client(world, {})
        factory.protocol = self.case.client_class
        if self.case.name == "sabc-ws":
            factory = factory.webSocketFactory("ws://server:5047/")
        return world, self.successResultOf(Endpoint(self.case, world).connect(factory))

    @only(*CONNECTED)
    def test_it_gives_the_client_when_that_stands__RD_26(self: Any) -> None:
        world, made = Connecting.made(self)
        client = self.soon(world, made.whenEstablished())
        self.assertIsInstance(client, self.case.client_class)
        self.assertIs(self.successResultOf(client.whenEstablished()), client)
        self.soon(world, made.close(), 5)
        self.assertFalse(client.established)

    @only(*CONNECTED)
    def test_it_can_be_given_up_at_any_time__RD_26(self: Any) -> None:
        for stands in (False, True):
            world, made = Connecting.made(self)
            standing = made.whenEstablished()
            if stands:
                world.pump()
            stood = standing.called  # Lumberjack's stands at once
            made.abort()
            world.wait(5)
            if stood:
                self.assertFalse(self.successResultOf(standing).established)
            else:
                self.failureResultOf(standing, ConnectionClosed)
            why = self.failureResultOf(made.whenEstablished(), ConnectionClosed).value
            self.assertIn("the connection was given up", str(why))


over_all(globals(), Calling, Waiting, Closing, Coming, Connecting)


def methods(kind: type) -> set[str]:
    return {
        name
        for name in dir(kind)
        if not name.startswith("_")
        and callable(value := getattr(kind, name))
        and not isinstance(value, type)
    }


KINDS = [
    (case, of, kind)
    for case, kinds in (
        (case, {"client": case.client_class, "service": case.service_class}) for case in CASES
    )
    for of, kind in (
        kinds | ({"reader": MtlReader, "writer": MtlWriter} if case.name == "mtl" else {})
    ).items()
]


@pytest.mark.parametrize(
    ("case", "of", "kind"), KINDS, ids=[f"{case.title}-{of}" for case, of, _ in KINDS]
)
def test_every_public_method_is_in_the_table(case: Any, of: str, kind: type) -> None:
    """A new method is a verb of the table, or the table says what else it is."""
    shared = (ClientLink, ReconnectingService, Session, SessionLink)
    inherited = set().union(*map(methods, shared))
    local = {name.removeprefix(f"{kind.__name__}.") for name in LOCAL}
    found = methods(kind) - inherited - ENDS - HOOKS - INSIDE - local
    assert found == {verb.name for verb in VERBS[case.name] if verb.of == of}


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_a_service_does_what_its_client_does__RD_25(case: Any) -> None:
    """But for what belongs to one session alone; properties, too."""
    ours = {name for name in dir(case.client_class) if not name.startswith("_")}
    figures = {"link", "session", "peer", "address", "clientId", "messageCount", "snapshot"}
    figures |= {"established", "flows"}  # of one connection
    missing = ours - set(dir(case.service_class)) - set(dir(Linked)) - HOOKS - figures
    missing -= {"subscriptions"} if case.name == "micromsg2" else set()  # a service has its own
    assert missing <= set(OF_ONE_SESSION)


def test_every_exception_is_a_method_of_some_client_and_of_no_service__RD_25() -> None:
    for name in OF_ONE_SESSION:
        with_it = [case for case in CASES if hasattr(case.client_class, name)]
        assert not all(hasattr(case.service_class, name) for case in with_it), name


def test_every_entry_of_the_table_is_a_method_of_somebody() -> None:
    every = set().union(*(methods(kind) for _, _, kind in KINDS))
    every |= {f"{kind.__name__}.{name}" for _, _, kind in KINDS for name in methods(kind)}
    assert not (ENDS | HOOKS | INSIDE | set(LOCAL)) - every
