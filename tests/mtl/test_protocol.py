"""MTL on Twisted: hooks, sinks, back-pressure, SASL, CURVE, clients which survive their server."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

import zmq
from twisted.cred.checkers import (
    AllowAnonymousAccess,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import UsernamePassword
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.threads import deferToThread

from tests.mtl.cases import (
    IMPATIENT,
    LOOPBACK,
    HeldSink,
    MtlCase,
    later,
    reactor,
    run,
    taking,
    until,
)
from tests.tools.processes import launching
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    Refused,
    TimedOut,
)
from twisted_msgproto.core.message import Message, MessageBatch
from twisted_msgproto.mtl import MtlClient, MtlServer, MtlServerFactory, sasl
from twisted_msgproto.mtl.curve import CurveClient, CurveServer, zap_reply
from twisted_msgproto.mtl.machine.client_flow import ClientFlowState
from twisted_msgproto.mtl.machine.profiles import Profile, QueueProfile
from twisted_msgproto.mtl.protocol.client import Received
from twisted_msgproto.mtl.sasl import credentials
from twisted_msgproto.net.authentication import portal_over
from twisted_msgproto.queue import QueueReader


def checkers() -> list[Any]:
    return [InMemoryUsernamePasswordDatabaseDontUse(me=b"secret", you=b"word")]


class Verbs(MtlCase):
    @run
    async def test_all_verbs_from_open_to_close(self) -> None:
        """MT-05, MT-06, MT-09, MT-10, MT-16, MT-17, MT-18, MT-19, MT-23"""
        sink = HeldSink()
        factory = self.server(sink)
        client = self.client(factory.addresses[0])
        self.assertEqual(await client.open("host"), ["test", "queue", "ingest"])
        await client.profile("QUEUE")
        got: list[Received] = []
        reader = await client.reader(["a", "b"], "full", got.append)
        await reader.summon("a")
        writer = await client.writer(["a"])
        await writer.send("a", b"one", {"n": 1, "s": "x"})
        await writer.sendMany("a", [b"two", b"three"])
        await until(lambda: len(got) == 3)
        self.assertEqual([c.body for c in got], [b"one", b"two", b"three"])
        self.assertEqual(got[0].properties, {"n": 1, "s": "x"})
        self.assertEqual((got[0].resource, got[0].sequence), ("a", 1))
        reader.confirm(1)
        reader.reject(3, True, recycle=True)
        await until(lambda: len(got) == 5)
        self.assertEqual([c.body for c in got[3:]], [b"two", b"three"])
        self.assertEqual(got[3].properties, {"mtl-redeliveries": 1})
        reader.confirm(5, multiple=True)
        reader.flush()
        await reader.dismiss("a")
        with self.assertRaises(Refused) as caught:
            await reader.dismiss("a")
        self.assertEqual(caught.exception.code, 400)
        self.assertEqual(writer.room, 1000)
        batch = sink.batches[0]
        self.assertEqual((batch.protocol, batch.kind, batch.client_id), ("mtl", "content", None))
        message = next(iter(batch))
        self.assertEqual(
            message.fields,
            {"n": "1", "s": "x", "mtl-virtual-host": "host", "mtl-profile": "queue"},
        )
        self.assertEqual((message.destination, message.body), ("a", b"one"))
        self.assertTrue(str(message.session).startswith("mtl-"))
        self.assertEqual(factory.snapshot()["sessions"], 1)
        await client.close()
        await client.close()
        with self.assertRaises(ConnectionClosed):
            await client.open("host")
        with self.assertRaises(ConnectionClosed):
            await client.writer(["a"])

    @run
    async def test_refusals_reach_the_deferreds(self) -> None:
        """MT-03, MT-09, MT-10, MT-25"""
        factory = self.server(virtualHosts={"host"})
        client = self.client(factory.addresses[0])
        for deferred, code in (
            (lambda: client.open("elsewhere"), 404),
            (lambda: client.open("host"), None),
            (lambda: client.reader(["a"]), 409),
            (lambda: client.profile("nothing"), 400),
            (lambda: client.profile("test"), None),
            (lambda: client.reader(["resource"], "full"), 501),
            (lambda: client.writer(["other"], "none"), 404),
        ):
            if code is None:
                await deferred()
                continue
            with self.assertRaises(Refused) as caught:
                await deferred()
            self.assertEqual(caught.exception.code, code)
        self.assertEqual(client.flows, {})

    @run
    async def test_unconfirmed_contents_fan_out(self) -> None:
        """MT-25: to readers on sockets of their own, and on one socket with control (MT-12)."""
        for data in (LOOPBACK, None):
            factory = self.server(data=data)
            client = await self.ready(factory, "test")
            got: list[list[bytes]] = [[], []]
            for bodies in got:
                reader = await client.reader(
                    ["resource"], "none", lambda c, bodies=bodies: bodies.append(c.body)
                )
                await reader.summon("resource")
            writer = await client.writer(["resource"], "none")
            await writer.sendMany("resource", [b"%d" % n for n in range(300)])
            await writer.send("resource", b"last")
            await until(lambda got=got: all(len(bodies) == 301 for bodies in got))
            self.assertEqual(got[0], got[1])
            await client.close()

    @run
    async def test_a_long_queue_to_an_unconfirmed_reader_goes_out_in_bursts(self) -> None:
        """MT-27"""
        factory = self.server(limits={"burst": 16})
        client = await self.ready(factory, "queue")
        writer = await client.writer(["a"])
        await writer.sendMany("a", [b"%d" % n for n in range(500)])
        got: list[bytes] = []
        reader = await client.reader(["a"], "none", lambda content: got.append(content.body))
        await reader.summon("a")
        await until(lambda: len(got) == 500)
        self.assertEqual(got, [b"%d" % n for n in range(500)])

    @run
    async def test_what_waits_is_bounded(self) -> None:
        """MT-29"""
        factory = self.server(HeldSink(at_once=False))
        client = await self.ready(factory, "ingest", limits={"window": 2, "waiting": 2})
        writer = await client.writer(["a"])
        waiting = [writer.send("a", b"x") for _ in range(4)]
        for deferred in (writer.send("a", b"x"), writer.sendMany("a", [b"x"])):
            await self.assertFailure(deferred, LimitExceeded)
        many = [self.assertFailure(d, ConnectionClosed) for d in waiting]
        writer.close()
        for deferred in many:
            await deferred

    @run
    async def test_the_verbs_of_a_flow_which_has_ended_fail(self) -> None:
        """MT-28: none waits for ever."""
        factory = self.server()
        client = await self.ready(factory, "queue")
        writer, reader = await client.writer(["a"]), await client.reader(["a"])
        writer.close()
        reader.close()
        for deferred in (
            writer.send("a", b"x"),
            writer.sendMany("a", [b"x"]),
            reader.summon("a"),
            reader.dismiss("a"),
        ):
            self.assertIsInstance(self.failureResultOf(deferred).value, ConnectionClosed)

    @run
    async def test_deferreds_may_be_cancelled(self) -> None:
        """MT-28: what was sent stays sent."""
        factory = self.server()
        client = await self.ready(factory, "queue")
        opening = client.reader(["a"])
        opening.cancel()
        self.failureResultOf(opening)
        asked = client.profile("queue")
        asked.cancel()
        self.failureResultOf(asked)
        writer = await client.writer(["a"])
        sent = writer.send("a", b"x")
        sent.cancel()
        self.failureResultOf(sent)
        await writer.send("a", b"y")


class Hooks(MtlCase):
    @run
    async def test_hooks_of_a_session_in_order(self) -> None:
        """MT-05, MT-18"""
        called: list[str] = []

        class Telling(MtlServer):
            def connectionMade(self) -> None:
                called.append(f"made {self.virtualHost} {self.peer}")

            def sessionEstablished(self) -> None:
                called.append(f"established {self.clientId}")

            def messageReceived(self, message: Message) -> None:
                called.append(f"message {message.body!r}")

            def sessionLost(self, reason: Any) -> None:
                called.append(f"lost {reason.getErrorMessage()}")

        factory = self.server(protocol=Telling)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        await client.open("other")
        self.assertEqual(
            called,
            ["made host 127.0.0.1", "established None", "message b'x'",
             "lost the session ended: reopened", "made other 127.0.0.1", "established None"],
        )  # fmt: skip
        self.assertEqual(len(factory.liveConnections), 1)

    @run
    async def test_a_hook_which_raises_harms_nobody_else(self) -> None:
        """MT-05, MT-24: the sockets which all clients share are read on, on both sides."""

        class Raising(MtlServer):
            def connectionMade(self) -> None:
                raise ValueError("made")

            def sessionEstablished(self) -> None:
                raise ValueError("established")

            def sessionLost(self, reason: Any) -> None:
                raise ValueError("lost")

        factory = self.server(protocol=Raising)
        client = await self.ready(factory, "queue")
        await client.open("again")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 5)
        other = await self.ready(factory, "queue")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        got: list[bytes] = []

        def received(content: Received) -> None:
            got.append(content.body)
            raise ValueError("received")

        def lost(error: Exception) -> None:
            raise ValueError("lost")

        reader = await other.reader(["a"], "full", received)
        reader.lost = lost
        await reader.summon("a")
        writer = await other.writer(["a"])
        await writer.sendMany("a", [b"1", b"2"])
        await until(lambda: len(got) == 2)
        await writer.send("a", b"3")
        await until(lambda: len(got) == 3)
        self.assertEqual(got, [b"1", b"2", b"3"])
        reader._end(ConnectionClosed("test"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 4)
        await writer.send("a", b"4")
        await factory.drain()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)

    @run
    async def test_a_profile_which_raises_does_not_make_the_server_deaf(self) -> None:
        """MT-25: what it was given is not confirmed, and the next client is served."""

        class Raising(Profile):
            name = "raising"

            def summon(self, flow: Any, resource: str) -> bool:
                raise ValueError("summon")

        factory = self.server(profiles=[Raising(), QueueProfile()])
        client = await self.ready(factory, "raising")
        reader = await client.reader(["a", "b", "c"])
        raised: list[Any] = []
        for resource in "abc":  # the later ones find the socket at rest, and wake the reactor
            asked = reader.summon(resource)
            asked.addErrback(lambda failure: None)  # nobody answers
            await until(lambda: raised.extend(self.flushLoggedErrors(ValueError)) or raised)
            raised.clear()
            self.assertIn(factory._data, reactor.getReaders())
        other = await self.ready(factory, "queue")
        writer = await other.writer(["a"])
        await writer.send("a", b"served")

    @run
    async def test_what_is_not_safe_is_refused(self) -> None:
        """MT-19: hooks which raise, hooks which fail, sinks which fail."""

        class Failing(MtlServer):
            def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
                body = next(iter(batch)).body
                if body == b"raise":
                    raise ValueError("no")
                return super().batchReceived(batch)

        sink = HeldSink(at_once=False)
        factory = self.server(sink, protocol=Failing)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        good = writer.send("a", b"good")
        await until(lambda: sink.held)
        bad = writer.send("a", b"bad")
        await until(lambda: len(sink.held) == 2)
        raised = writer.send("a", b"raise")
        await until(lambda: factory.counters["contents"] == 3)
        sink.held[1].errback(OSError("disk"))
        self.assertNoResult(bad)
        sink.held[0].callback(None)
        await good
        for deferred in (bad, raised):
            await self.assertFailure(deferred, Refused)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(factory.counters["unsafe_batches"], 2)

    @run
    async def test_what_follows_lost_content_is_not_taken_and_goes_on_another_flow(self) -> None:
        """MT-19, MT-30: the session's rows have no gap, and nothing waits for ever."""
        sink = HeldSink(at_once=False)
        factory = self.server(sink)
        client = await self.ready(factory, "ingest", limits={"window": 3})
        writer = await client.writer(["a"])
        losses: list[Exception] = []
        writer.lost = losses.append
        sent = [writer.send("a", b"%d" % n) for n in range(3)]
        sent.append(writer.sendMany("a", [b"3", b"4"]))  # these wait for the window
        refused = [self.assertFailure(deferred, Refused) for deferred in sent]
        await until(lambda: sum(batch.count for batch in sink.batches) == 3)
        for held in sink.held:
            held.errback(OSError("disk"))
        for deferred in refused:
            await deferred
        await until(lambda: losses)
        self.assertIsInstance(losses[0], Refused)
        self.assertIn("ended the flow", str(losses[0]))
        for deferred in (writer.send("a", b"x"), writer.sendMany("a", [b"x", b"y"])):
            self.assertIsInstance(self.failureResultOf(deferred).value, ConnectionClosed)
        self.assertEqual(client.flows, {})
        self.assertEqual(factory.machine.snapshot()["writers"], 0)
        sink.at_once, lost, sink.batches = True, sink.batches, []
        writer = await client.writer(["a"])
        await writer.sendMany("a", [b"%d" % n for n in range(5)])
        self.assertEqual(sink.bodies, [b"%d" % n for n in range(5)])
        self.assertEqual({b.session for b in sink.batches}, {b.session for b in lost})
        self.assertEqual(factory.counters["flows_broken"], 1)
        self.assertTrue(self.flushLoggedErrors(OSError))

    @run
    async def test_a_flow_whose_session_begins_anew_while_it_is_doubted_is_over(self) -> None:
        """MT-07, MT-19: the lease which came for it is not used; nothing is sent again."""
        sink = HeldSink(at_once=False)
        factory = self.server(sink)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        losses: list[Exception] = []
        writer.lost = losses.append
        sent = self.assertFailure(writer.send("a", b"0"), Refused)
        writer.machine.doubted = True
        client.renewFlow(writer)
        await sent
        await until(lambda: losses)
        self.assertIsInstance(losses[0], Refused)
        self.assertEqual(client.flows, {})


class BackPressure(MtlCase):
    @run
    async def test_a_full_sink_stops_the_reading_and_nothing_is_lost(self) -> None:
        """MT-27, MT-29: neither is anybody taken for dead meanwhile."""
        sink = HeldSink(at_once=False)
        factory = self.server(sink, limits={"unsafe-octets": 20_000})
        client = await self.ready(factory, "ingest", limits={"window": 5000})
        writer = await client.writer(["a"])
        done = writer.sendMany("a", [b"%04d" % n + bytes(96) for n in range(4000)])
        await until(lambda: sink.held)
        await until(lambda: factory._data._paused)
        before = factory.counters["contents"]
        self.assertLess(before, 1000)
        await later(0.6)  # longer than what a silent peer has
        self.assertEqual(factory.counters["contents"], before)
        self.assertEqual(factory.machine.snapshot()["writers"], 1)
        sink.at_once = True
        while sink.held:
            sink.held.pop(0).callback(None)
        await done
        self.assertEqual(sink.bodies, [b"%04d" % n + bytes(96) for n in range(4000)])

    @run
    async def test_a_turn_reads_no_more_than_some_octets(self) -> None:
        """MT-24, MT-29: large contents come in small batches."""
        sink = HeldSink()
        factory = self.server(sink, limits={"peer-messages": 20})
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.sendMany("a", [bytes(1 << 20)] * 30)
        self.assertEqual(len(sink.bodies), 30)
        self.assertLessEqual(max(len(batch) for batch in sink.batches), 4)
        self.assertEqual(factory._data.socket.get(zmq.RCVHWM), 20)

    @run
    async def test_draining_confirms_what_arrived(self) -> None:
        """MT-19"""
        sink = HeldSink(at_once=False)
        factory = self.server(sink)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        sent = writer.send("a", b"x")
        await until(lambda: sink.held)
        drained = factory.drain()
        await later(0.02)
        self.assertNoResult(drained)
        sink.held[0].callback(None)
        await drained
        await sent
        self.assertIs(factory.drain(), drained)

    @run
    async def test_draining_ends_in_time(self) -> None:
        """MT-29"""
        sink = HeldSink(at_once=False)
        factory = self.server(sink, limits={"drain": 0.05})
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        sent = self.assertFailure(writer.send("a", b"x"), ConnectionClosed)
        await until(lambda: sink.held)
        await factory.drain()
        sink.held[0].callback(None)
        await client.close()
        await sent

    def test_draining_what_never_listened(self) -> None:
        """MT-29"""
        self.successResultOf(MtlServerFactory().drain())


class Authentication(MtlCase):
    def authenticating(self, *more: Any, **options: Any) -> MtlServerFactory:
        return self.server(portal=portal_over([*checkers(), *more]), **options)

    @run
    async def test_scram_plain_and_anonymous(self) -> None:
        """MT-07, MT-08"""
        factory = self.authenticating(AllowAnonymousAccess())
        self.assertEqual(factory.machine._mechanisms, ("SCRAM-SHA-256", "PLAIN", "ANONYMOUS"))
        for credential, user in (
            (credentials("me", "secret"), "me"),
            (lambda names: sasl.PlainClient("you", "word"), "you"),
            (credentials(), None),
        ):
            client = self.client(factory.addresses[0])
            self.assertEqual(await client.open("host"), [])
            self.assertEqual(await client.authorize(credential), ["test", "queue", "ingest"])
            (session,) = factory.liveConnections
            self.assertEqual(session.clientId, user)
            await client.open("again")
            await client.authorize(credential)
            await client.close()
            await until(lambda: not self._sweep(factory))

    def _sweep(self, factory: MtlServerFactory) -> int:
        for session in factory.machine.sessions():
            factory.settle(factory.machine.peer_lost(session.peer, reactor.seconds()))
        return len(factory.liveConnections)

    @run
    async def test_unknown_users_cannot_be_told_from_wrong_passwords(self) -> None:
        """MT-08: the same steps, the same salt each time, the same answer."""
        factory = self.authenticating()
        seen = {}
        for user, password in (("me", "wrong"), ("nobody", "secret")):
            for make in (sasl.ScramClient, sasl.PlainClient):
                client = self.client(factory.addresses[0])
                await client.open("host")
                steps: list[Any] = []
                cycle = make(user, password)

                class Watched:
                    mechanism = cycle.mechanism
                    finished = True

                    def respond(
                        self, challenge: bytes | None, cycle: Any = cycle, steps: Any = steps
                    ) -> bytes:
                        steps.append(None if challenge is None else challenge.count(b","))
                        return bytes(cycle.respond(challenge))

                with self.assertRaises(Refused) as caught:
                    await client.authorize(lambda names, watched=Watched: watched())
                seen.setdefault(make, []).append(
                    (steps, caught.exception.code, str(caught.exception))
                )
                await client.close()
        for answers in seen.values():
            self.assertEqual(answers[0], answers[1])

    @run
    async def test_attempts_are_limited_for_each_name(self) -> None:
        """MT-08: then even the right password is of no use, and others are not concerned."""
        factory = self.authenticating(limits={"login-failures": 3})
        for mechanism in (sasl.PlainClient, sasl.ScramClient):
            for password in ("no", "no", "no", "secret"):
                client = self.client(factory.addresses[0])
                await client.open("host")
                with self.assertRaises(Refused):
                    await client.authorize(lambda names, m=mechanism, p=password: m("me", p))
                await client.close()
        client = self.client(factory.addresses[0])
        await client.open("host")
        self.assertEqual(len(await client.authorize(credentials("you", "word"))), 3)

    @run
    async def test_a_client_authenticates_again_by_itself(self) -> None:
        """MT-07: its flows get leases again, and nothing is lost."""
        sink = HeldSink()
        factory = self.authenticating(sink=sink)
        client = self.client(factory.addresses[0], limits={"liveness": 0.2})
        await client.open("host")
        await client.authorize(credentials("me", "secret"))
        await client.profile("queue")
        got: list[bytes] = []
        reader = await client.reader(["a"], "full", taking(got, lambda: reader))
        await reader.summon("a")
        writer = await client.writer(["a"])
        for number in range(4):
            await writer.send("a", b"%d" % number)
            (session,) = factory.liveConnections
            session.withdrawAuthentication()
        await until(lambda: len(set(got)) == 4)
        self.assertEqual(sorted(set(got)), [b"0", b"1", b"2", b"3"])
        self.assertEqual(sink.batches[-1].client_id, "me")

    @run
    async def test_a_broken_response_is_a_failed_attempt(self) -> None:
        """MT-08"""
        factory = self.authenticating()
        for mechanism, response in (
            ("PLAIN", b""), ("PLAIN", b"a\0b"), ("PLAIN", b"other\0me\0secret"),
            ("PLAIN", b"\0\xff\0x"), ("PLAIN", b"\0\0x"), ("SCRAM-SHA-256", b"n,,x"),
            ("SCRAM-SHA-256", b"\xff"), ("PLAIN", b"\0" + b"x" * 256 + b"\0x"),
            ("SCRAM-SHA-256", b"n,,n=" + b"x" * 256 + b",r=abc"),
        ):  # fmt: skip
            client = self.client(factory.addresses[0])
            await client.open("host")

            class Broken:
                finished = True

                def __init__(self, mechanism: str, response: bytes) -> None:
                    self.mechanism, self.response = mechanism, response

                def respond(self, challenge: bytes | None) -> bytes:
                    return self.response

            with self.assertRaises(Refused) as caught:
                await client.authorize(lambda names, m=mechanism, r=response: Broken(m, r))
            self.assertEqual(caught.exception.code, 401)
            await client.close()

    @run
    async def test_a_broken_checker_is_our_trouble_and_a_failed_attempt(self) -> None:
        """MT-08"""

        class Broken(sasl.SaslMechanism):
            name = "BROKEN"

            def begin(self, login: Any) -> Any:
                raise RuntimeError("broken")

        factory = self.server(portal=portal_over(checkers()), mechanisms=[Broken()])
        client = self.client(factory.addresses[0])
        await client.open("host")
        cycle = sasl.AnonymousClient()
        cycle.mechanism = "BROKEN"  # type: ignore[misc]
        with self.assertRaises(Refused):
            await client.authorize(lambda names: cycle)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    @run
    async def test_a_login_which_comes_too_late_is_undone(self) -> None:
        """MT-08: its session has ended meanwhile."""
        waiting: list[Deferred[Any]] = []
        undone: list[str] = []

        class Slow(sasl.SaslMechanism):
            name = "SLOW"

            def begin(self, login: Any) -> Any:
                class Cycle(sasl.SaslCycle):
                    def respond(self, response: bytes) -> Any:
                        waiting.append(Deferred())
                        return waiting[-1]

                return Cycle()

        factory = self.server(portal=portal_over(checkers()), mechanisms=[Slow()])
        client = self.client(factory.addresses[0])
        await client.open("host")
        cycle = sasl.AnonymousClient()
        cycle.mechanism = "SLOW"  # type: ignore[misc]
        asked = self.assertFailure(client.authorize(lambda names: cycle), ConnectionClosed)
        await until(lambda: waiting)
        self._sweep(factory)
        from twisted_msgproto.net.authentication import LoggedIn

        login = LoggedIn("late", None, lambda: undone.append("late"))
        waiting[0].callback(sasl.Authenticated(login))
        self.assertEqual(undone, ["late"])
        await client.close()
        await asked

    @run
    async def test_a_mechanism_of_ones_own(self) -> None:
        """MT-08: on both sides, with a challenge; whoever fails is told nothing."""

        class Riddle(sasl.SaslMechanism):
            name = "RIDDLE"

            def begin(self, login: sasl.Login) -> sasl.SaslCycle:
                class Cycle(sasl.SaslCycle):
                    user = b""

                    def respond(
                        self, response: bytes
                    ) -> Deferred[sasl.Challenge | sasl.Authenticated]:
                        if not self.user:
                            self.user = response
                            return succeed(sasl.Challenge(b"what is it?"))
                        if response != b"time":
                            raise sasl.SaslRefused("wrong")
                        return login(
                            UsernamePassword(self.user, b"secret"), self.user.decode()
                        ).addCallback(sasl.Authenticated)

                return Cycle()

        class Guess:
            mechanism = "RIDDLE"

            def __init__(self, user: bytes, guess: bytes) -> None:
                self.says = [user, guess]
                self.heard: list[bytes | None] = []

            @property
            def finished(self) -> bool:
                return not self.says

            def respond(self, challenge: bytes | None) -> bytes:
                self.heard.append(challenge)
                return self.says.pop(0)

        factory = self.authenticating(mechanisms=[Riddle()])
        self.assertEqual(factory.machine._mechanisms, ("RIDDLE",))
        for user, guess, good in (
            (b"me", b"time", True), (b"me", b"a shoe", False), (b"nobody", b"time", False),
        ):  # fmt: skip
            client = self.client(factory.addresses[0])
            cycle = Guess(user, guess)
            await client.open("host")
            asked = client.authorize(lambda names, cycle=cycle: cycle)  # type: ignore[misc]
            if good:
                self.assertEqual(len(await asked), 3)
                self.assertEqual([s.clientId for s in factory.liveConnections], ["me"])
            else:
                error = await self.assertFailure(asked, Refused)
                self.assertEqual(error.code, 401)
            self.assertEqual(cycle.heard, [None, b"what is it?"])
            await client.close()

    def test_plain_is_for_protected_transports_unless_forced(self) -> None:
        """MT-08"""
        portal = portal_over(checkers())
        plain = [sasl.Plain()]
        off = ["tcp://0.0.0.0:*"]
        factory = MtlServerFactory(portal=portal, mechanisms=plain, insecure=True)
        with self.assertRaisesRegex(ConfigurationError, "no mechanism is left"):
            factory.listen(off)
        factory = MtlServerFactory(portal=portal, insecure=True)
        self.addCleanup(factory.drain)
        factory.listen(off)
        self.assertEqual(factory.machine._mechanisms, ("SCRAM-SHA-256",))
        forced = MtlServerFactory(portal=portal, insecure=True, forcePlain=True)
        self.addCleanup(forced.drain)
        forced.listen(off)
        self.assertEqual(forced.machine._mechanisms, ("SCRAM-SHA-256", "PLAIN"))

    def test_clients_choose_the_strongest_and_reveal_nothing_unasked(self) -> None:
        """MT-08"""
        choose = credentials("me", "x")
        self.assertIsInstance(choose(["PLAIN", "SCRAM-SHA-256"]), sasl.ScramClient)
        self.assertIsNone(choose(["PLAIN", "ANONYMOUS"]))
        self.assertIsInstance(credentials("me", "x", reveal=True)(["PLAIN"]), sasl.PlainClient)
        self.assertIsNone(credentials()(["PLAIN"]))
        for cycle in (sasl.PlainClient("a", "b"), sasl.AnonymousClient()):
            cycle.respond(None)
            with self.assertRaises(ValueError):
                cycle.respond(b"challenge")
        scram = sasl.ScramClient("a", "b")
        scram.respond(None)
        with self.assertRaises(ValueError):
            scram.respond(b"nonsense")
        scram = sasl.ScramClient("a", "b")
        scram.respond(None)
        with self.assertRaises(ValueError):
            scram.respond(None)

    @run
    async def test_the_last_response_of_scram_is_empty(self) -> None:
        """MT-08"""
        factory = self.authenticating()
        client = self.client(factory.addresses[0])
        await client.open("host")
        inner = sasl.ScramClient("me", "secret")

        class Chatty:
            mechanism = inner.mechanism
            finished = True

            def respond(self, challenge: bytes | None) -> bytes:
                return inner.respond(challenge) or b"thanks"

        with self.assertRaises(Refused):
            await client.authorize(lambda names: Chatty())


class Curve(MtlCase):
    def keys(self) -> tuple[CurveServer, CurveClient]:
        public, secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return (
            CurveServer(secret, {client_public: "robot"}),
            CurveClient(public, client_public, client_secret),
        )

    @run
    async def test_the_right_key_comes_in_from_anywhere_and_names_the_client(self) -> None:
        """MT-30, MT-31: with any identity; sessions and leases are bound to the key."""
        server_keys, client_keys = self.keys()
        sink = HeldSink()
        factory = self.server(
            sink, curve=server_keys, listen=["tcp://0.0.0.0:*"], data="tcp://0.0.0.0:*"
        )
        address = factory.addresses[0].replace("0.0.0.0", "127.0.0.1")
        client = self.client(address, curve=client_keys)
        await client.open("host")
        await client.profile("queue")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        self.assertEqual(sink.batches[0].client_id, "robot")
        got: list[bytes] = []
        reader = await client.reader(["a"], "full", lambda content: got.append(content.body))
        await reader.summon("a")
        await until(lambda: got == [b"x"])

    @run
    async def test_wrong_keys_and_no_keys_get_nowhere(self) -> None:
        """MT-31: and the next client is served."""
        server_keys, client_keys = self.keys()
        factory = self.server(curve=server_keys)
        public, secret = zmq.curve_keypair()
        impatient: dict[str, object] = {"request-timeout": 0.15}
        for keys in (
            None,
            client_keys._replace(public=public, secret=secret),  # not authorised
            client_keys._replace(server=public),  # another server
        ):
            client = self.client(factory.addresses[0], curve=keys, limits=impatient)
            await self.assertFailure(client.open("host"), TimedOut)
            await client.close()
        self.assertEqual(factory.counters["requests"], 0)
        client = self.client(factory.addresses[0], curve=client_keys)
        await client.open("host")

    @run
    async def test_a_lease_is_of_no_use_under_another_key(self) -> None:
        """MT-11, MT-30: even with the identity of its owner."""
        server_keys, owner = self.keys()
        public, secret = zmq.curve_keypair()
        server_keys.authorized[public] = "thief"  # type: ignore[index]
        factory = self.server(curve=server_keys)
        client = await self.ready(factory, "ingest", curve=owner)
        asked: list[Any] = []
        client._settle = asked.extend  # type: ignore[method-assign, assignment]
        number = client.machine.writer(["a"], "full", reactor.seconds())
        client._look()
        await until(lambda: asked)
        self.assertEqual(asked[0].number, number)
        thief = self.client(
            factory.addresses[0], curve=owner._replace(public=public, secret=secret)
        )
        answers: list[list[bytes]] = []
        socket = thief.dataSocket(answers.extend, asked[0].port)
        token = asked[0].token.encode()
        socket.sendAll([[b"\1" + bytes(8) + bytes([len(token)]) + token, b""]])
        await until(lambda: answers)
        self.assertEqual(answers, [[b"\2" + bytes(8), b"403"]])

    def test_off_this_machine_needs_curve_or_insecure(self) -> None:
        """MT-31: control and data alike."""
        for control, data in (
            (["tcp://0.0.0.0:*"], LOOPBACK), ([LOOPBACK], "tcp://*:*"),
            ([LOOPBACK, "tcp://[::]:*"], None),
        ):  # fmt: skip
            with self.assertRaisesRegex(ConfigurationError, "--insecure"):
                MtlServerFactory().listen(control, data)
        self.server(listen=["tcp://0.0.0.0:*"], data=None, insecure=True)

    def test_zap_requests_are_answered_by_the_key(self) -> None:
        """MT-31"""
        from zmq.utils import z85

        public, _ = zmq.curve_keypair()
        request = [
            b"id",
            b"",
            b"1.0",
            b"7",
            b"mtl",
            b"127.0.0.1",
            b"",
            b"CURVE",
            z85.decode(public),
        ]
        head = [b"id", b"", b"1.0", b"7"]
        good = [*head, b"200", b"OK", public, b""]
        bad = [*head, b"400", b"not authorized", b"", b""]
        self.assertEqual(zap_reply(request, {public: "x"}), good)
        self.assertEqual(zap_reply(request, {}), bad)
        for place, octets in ((2, b"2.0"), (4, b"other"), (7, b"NULL")):
            changed = [octets if at == place else part for at, part in enumerate(request)]
            self.assertEqual(zap_reply(changed, {public: "x"})[4], b"400")
        self.assertEqual(zap_reply(request[:8], {public: "x"})[4], b"400")
        self.assertEqual(zap_reply([*request, b"x"], {public: "x"})[4], b"400")
        # Without CURVE keys say nothing.
        self.assertEqual(zap_reply(request, None), bad)
        plain = [*request[:7], b"NULL"]
        self.assertEqual(zap_reply(plain, None), [*head, b"200", b"OK", b"", b""])
        self.assertEqual(zap_reply(plain, {public: "x"}), bad)
        self.assertEqual(zap_reply(plain[:7], None), bad)


class Survival(MtlCase):
    @run
    async def test_a_server_which_does_not_answer_fails_the_request(self) -> None:
        """MT-28: three sockets of 0.2 s here; a plain ROUTER sees what a plain REQ sends."""
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        self.addCleanup(context.destroy, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client = self.client(f"tcp://127.0.0.1:{port}", limits=IMPATIENT)
        await self.assertFailure(client.open("host"), TimedOut)
        requests = []
        while router.poll(100):
            requests.append(router.recv_multipart())
        self.assertEqual(len(requests), 3)
        self.assertEqual(len({identity for identity, *_ in requests}), 3)
        for _, empty, command, body in requests:
            self.assertEqual((empty, command), (b"", b"Connection.Open"))
            self.assertEqual(json.loads(body)["virtual-host"], "host")

    @run
    async def test_flows_survive_a_server_which_is_started_again(self) -> None:
        """MT-21, MT-28: contents arrive at least once, the reader summons again."""
        sink = HeldSink()
        first = self.server(sink)
        control, data = first.addresses
        client = await self.ready(first, "queue", limits=IMPATIENT)
        got: list[bytes] = []
        reader = await client.reader(["a"], "full", taking(got, lambda: reader))
        await reader.summon("a")
        writer = await client.writer(["a"])
        await writer.send("a", b"before")
        await until(lambda: got == [b"before"])
        await first.drain()
        sent = writer.send("a", b"between")
        await until(lambda: client._renewals)  # it has given up once, and tries again later
        second = self.server(sink, listen=[control], data=data)
        await sent
        await writer.send("a", b"after")
        await until(lambda: {b"between", b"after"} <= set(got))
        self.assertEqual(second.machine.snapshot()["readers"], 1)

    @run
    async def test_flows_survive_a_server_which_stands_still(self) -> None:
        """MT-21, MT-28: its process is stopped; both sides take each other for dead, then go on."""
        path = Path(self.mktemp())
        path.mkdir(parents=True)
        with launching(path) as launch:
            server = launch(
                *("mtl", "-e", "tcp://127.0.0.1:*", "--queue", "queue"),
                *("--limit", "heartbeat=0.1", "--limit", "liveness=0.6"),
                module="twisted",
            )
            address = await deferToThread(server.address, "mtl")
            client = self.client(address, limits={**IMPATIENT, "window": 10})
            await client.open("host")
            await client.profile("ingest")
            writer = await client.writer(["a"])
            await writer.sendMany("a", [b"%d" % n for n in range(20)])
            server.signal(signal.SIGSTOP)
            sent = writer.sendMany("a", [b"%d" % n for n in range(20, 40)])
            await until(lambda: writer.machine.state is ClientFlowState.LOST)
            self.assertNoResult(sent)
            server.signal(signal.SIGCONT)
            await sent
            await writer.send("a", b"40")
            await client.close()
        reader = QueueReader(path / "queue")
        rows = [r for batch in reader.read(0, reader.end()) for r in batch.to_pylist()]
        sessions: dict[str, list[int]] = {}
        for row in rows:
            sessions.setdefault(row["session"], []).append(int(row["body"]))
        self.assertEqual({n for numbers in sessions.values() for n in numbers}, set(range(41)))
        for numbers in sessions.values():
            for place, number in enumerate(numbers[1:]):
                self.assertLessEqual(number, max(numbers[: place + 1]) + 1)

    @run
    async def test_a_client_which_is_not_persistent_gives_up(self) -> None:
        """MT-28"""
        factory = self.server()
        client = await self.ready(factory, "ingest", limits=IMPATIENT, persistent=False)
        writer = await client.writer(["a"])
        lost: list[Exception] = []
        writer.lost = lost.append
        idle = await client.writer(["b"])
        await factory.drain()
        await self.assertFailure(writer.send("a", b"x"), TimedOut)
        await until(lambda: not client.flows)
        self.assertEqual([type(error) for error in lost], [TimedOut])
        self.assertIs(idle.machine.state.name, "CLOSED")

    @run
    async def test_a_lease_which_is_refused_later_ends_the_flow(self) -> None:
        """MT-07"""
        factory = self.server()
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        lost: list[Exception] = []
        writer.lost = lost.append
        factory.machine.limits = factory.limits.replace({"session-leases": 1})
        for flow in list(factory.machine._flows.values()):
            factory.settle(factory.machine.peer_lost(flow.peer, reactor.seconds()))
        factory.machine.limits = factory.limits.replace({"session-leases": 1})
        other = await client.writer(["b"])
        await self.assertFailure(writer.send("a", b"x"), Refused)
        await until(lambda: lost)
        self.assertEqual([type(error) for error in lost], [Refused])
        await other.send("b", b"y")

    @run
    async def test_a_peer_which_left_is_noticed_when_it_is_pinged(self) -> None:
        """MT-21, MT-24: ROUTER_MANDATORY says that nobody has the identity any more."""
        factory = self.server(limits={"heartbeat": 0.05, "liveness": 1000})
        client = await self.ready(factory, "ingest")
        await client.writer(["a"])
        await client.close()
        await until(lambda: factory.machine.snapshot()["writers"] == 0)
        self.assertGreaterEqual(factory.counters["peers_lost"], 1)

    @run
    async def test_a_reader_which_takes_nothing_loses_its_place(self) -> None:
        """MT-27, MT-29: what waits for it is bounded in octets and in time."""
        factory = self.server(limits={"unread-seconds": 0.2, "liveness": 1000})
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        req = context.socket(zmq.REQ)
        req.connect(factory.addresses[0])

        async def ask(command: str, body: object) -> Any:
            req.send_multipart([f"Connection.{command}".encode(), json.dumps(body).encode()])
            await until(lambda: req.poll(0))
            return json.loads(req.recv_multipart()[1])

        mtl = {"name": "MTL", "version": 1}
        await ask("Open", {"protocol": mtl, "virtual-host": "host"})
        await ask("Profile", {"profile": "test"})
        lease = (await ask("Reader", {"resources": [], "confirm": "none"}))["lease"].encode()
        deaf = context.socket(zmq.DEALER)
        deaf.set(zmq.RCVHWM, 1)
        deaf.set(zmq.RCVBUF, 4096)
        deaf.connect(factory.addresses[1])
        deaf.send_multipart([b"\1" + bytes(8) + bytes([len(lease)]) + lease, b""])
        deaf.send_multipart([b"\3" + bytes(8) + b"\x08resource", b""])
        await until(lambda: factory.machine.counters["responses:200"] == 2)
        client = await self.ready(factory, "test")
        writer = await client.writer(["resource"], "none")
        body = bytes(200_000)
        while factory.machine.snapshot()["readers"]:
            await writer.send("resource", body)
            await later(0.001)
        self.assertGreater(factory.machine.profiles["test"].counters["missed"], 0)
        self.assertEqual(factory._data.unread, 0)


class Addresses(MtlCase):
    def test_ipc_takes_control_and_data(self) -> None:
        """MT-12, MT-31"""
        path = self.mktemp()
        factory = self.server(listen=[f"ipc://{path}"], data=None)
        self.assertEqual(factory.machine.data_port, 0)
        self.assertEqual(factory.addresses, [f"ipc://{path}"])

        async def talk() -> None:
            client = await self.ready(factory, "ingest")
            writer = await client.writer(["a"])
            await writer.send("a", b"x")

        return ensureDeferred(talk())  # type: ignore[return-value]

    def test_an_address_in_use_is_the_operators_trouble(self) -> None:
        """MT-24"""
        factory = self.server()
        other = MtlServerFactory()
        with self.assertRaisesRegex(ConfigurationError, "cannot listen on"):
            other.listen([factory.addresses[0]])
        self.successResultOf(other.drain())

    def test_what_is_no_address_is_said_at_once(self) -> None:
        """MT-24"""
        for address in ("tcp:5049", "tcp://127.0.0.1", "tcp://:1", "tcp://h:99999", "udp://h:1",
                        "ipc://", "", "tcp://127.0.0.1:x"):  # fmt: skip
            with self.assertRaises(ConfigurationError):
                MtlServerFactory().listen([address])
            with self.assertRaises(ConfigurationError):
                MtlClient(address)
        client = self.client("ipc:///tmp/x")
        with self.assertRaises(ConfigurationError):
            client._control.connect("tcp://not a host:5")


def test_a_response_of_plain_is_what_rfc_4616_says() -> None:
    """MT-08"""
    assert base64.b64encode(sasl.PlainClient("tim", "tanstaaftanstaaf").respond(None)) == (
        b"AHRpbQB0YW5zdGFhZnRhbnN0YWFm"
    )
