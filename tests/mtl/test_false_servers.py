"""Servers in memory which answer wrongly, late, twice, never, or go away: what a client does.

Those that are wrong are none of ours (:mod:`.false_server`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, ensureDeferred
from twisted.logger import capturedLogs, formatEvent

from tests.contract.cases import Mtl
from tests.contract.world import ContractCase, World
from tests.mtl.false_server import FalseCase, command, content, response
from tests.mtl.plain import CONFIRM, CONTENT, LEASE, REJECT
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused, TimedOut
from twisted_msgproto.mtl import MtlReader
from twisted_msgproto.testing import SafeSink


class Pipelined(FalseCase):
    def test_a_flow_which_was_asked_for_after_a_profile_is_not_of_the_one_before(self) -> None:
        """MT-09"""
        client = self.ready()
        before = self.got(client.writer(["a"]))
        selected, after = client.profile("ingest"), client.writer(["a"])
        self.got(selected)
        self.assertEqual((before.stands, self.successResultOf(after).stands), (False, True))


class Away(FalseCase):
    def away(self) -> Callable[[], None]:
        """The server answers nothing from now on, until this is called."""
        answers, obey = dict(self.server.answers), self.server.obey
        self.server.answers = dict.fromkeys(answers, lambda body: [])
        self.server.obey = lambda kind, sequence: []  # type: ignore[method-assign]

        def back() -> None:
            self.server.answers, self.server.obey = answers, obey  # type: ignore[method-assign]
            self.server.asked.clear()

        return back

    def test_a_flow_that_was_lost_is_renewed_once_when_its_server_is_back__MT_28(self) -> None:
        """It asked for a lease because it was lost, and got one because all was begun anew, too."""
        client = self.ready()
        writer, reader = self.got(client.writer(["a"])), self.got(client.reader(["b"]))
        for seconds in (15, 18, 21, 24, 27, 30):
            back = self.away()
            self.wait(seconds)
            back()
            leases = self.server.leases
            self.wait(8)
            self.assertEqual(self.server.leases, leases + 2, self.server.asked)
            self.assertEqual([flow.snapshot()["state"] for flow in (writer, reader)], ["OPEN"] * 2)

    def test_a_flow_that_stood_goes_on_trying_a_data_port_that_is_silent__MT_28(self) -> None:
        client = self.ready()
        writer = self.got(client.writer(["a"]))
        self.server.obey = lambda kind, sequence: []  # type: ignore[method-assign]
        self.wait(40)
        del self.server.obey  # type: ignore[method-assign]
        self.wait(10)
        self.assertEqual(writer.snapshot()["state"], "OPEN")


class NoDescriptors(FalseCase):
    """The system has no socket left for a while."""

    def test_nobody_waits_for_ever_and_what_stood_comes_back__MT_28(self) -> None:
        """A flow for which no socket could be made was never renewed, and its verbs never fired."""
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            command(CONFIRM, sequence, b"\0") if kind == CONTENT else response(sequence, 200)
        ]
        service = self.service()
        service.startService()
        self.pump()
        writer = self.got(service.writer(["a"]))
        self.network.full = True
        asked = service.writer(["b"])
        self.wait(10)
        self.assertIn("Too many open files", str(self.failureResultOf(asked, TimedOut).value))
        self.network.away = True
        sent = writer.send("a", b"x")
        self.wait(40)
        self.assertNoResult(sent)
        self.assertEqual(service.state, "down")
        self.network.full = self.network.away = False
        self.wait(60)
        self.successResultOf(sent)
        self.assertEqual(service.state, "up")
        self.got(service.stopService())


class Wrongly(FalseCase):
    def test_a_summon_that_comes_to_nothing_ends_the_flow(self) -> None:
        """HO-23: it is asked again on other leases, but not for ever."""
        for answers, kind in (([], TimedOut), ([403], Refused)):
            client = self.ready(limits={"renewals": 3})
            reader = self.got(client.reader(["a"]))
            before = self.server.leases
            self.server.obey = lambda kind, sequence, codes=answers: [  # type: ignore[misc]
                response(sequence, code) for code in ([200] if kind == LEASE else codes)
            ]
            summoned, ended = reader.summon("a"), reader.whenEnded()
            self.wait(120)
            self.failureResultOf(summoned, kind)
            self.assertIsInstance(self.successResultOf(ended), kind)
            self.assertEqual(self.server.leases - before, 3)
            del self.server.obey  # type: ignore[method-assign]

    def test_a_late_confirm_is_not_that_of_another_content(self) -> None:
        """MT-19, MT-20: the server numbers anew for each lease, so the number was used again."""
        client = self.ready()
        got: list[Any] = []
        reader = self.got(client.reader(["a"], "full", got.append))
        self.got(reader.summon("a"))
        self.server.send(content(1, b"first"))
        self.pump()
        obey = self.server.obey

        def forgetful(kind: int, sequence: int) -> list[list[bytes]]:
            self.server.obey = obey  # type: ignore[method-assign]
            return [response(sequence, 403)]

        self.server.obey = forgetful  # type: ignore[method-assign]
        self.got(reader.summon("b"))
        self.server.send(content(1, b"second"))
        self.pump()
        self.assertEqual([one.body for one in got], [b"first", b"second"])
        self.assertGreater(got[1].sequence, got[0].sequence)
        self.server.got.clear()
        reader.confirm(got[0].sequence)
        reader.confirm(got[0].sequence, multiple=True)
        self.pump()
        self.assertEqual(self.server.got, [])
        reader.confirm(got[1].sequence)
        self.pump()
        self.assertEqual(self.server.got, [(CONFIRM, 1)])

    def test_whatever_a_server_says_every_verb_fires_once(self) -> None:
        """HO-03, HO-23: random answers, on both flows, and no exception in a log."""
        for seed in range(60):
            self._whatever(random.Random(seed))

    def _whatever(self, source: random.Random) -> None:
        client = self.client(limits={"renewals": 2})
        fired: list[Any] = []
        asked: list[Deferred[Any]] = []

        def ask(deferred: Deferred[Any]) -> Deferred[Any]:
            asked.append(deferred)
            deferred.addBoth(fired.append)
            if source.random() < 0.1:
                deferred.addBoth(lambda _: source.choice(asked).cancel())
            return deferred

        def answer(body: Any) -> Any:
            good = (source.choice((200, 201, 202)), {"profiles": ["x"], "port": 5050, "lease": "t"})
            odd = {
                "mechanisms": ["X", 1],
                "challenge": source.choice(("", "eA==", 7)),
                "port": source.choice((1 << 20, -1, "x")),
                "lease": source.choice(("", None)),
            }
            bad = (source.choice((200, 201, 202, 400, 401, 402, 403, 404, 500)), odd)
            return [source.choice((good, good, bad)) for _ in range(source.choice((0, 1, 1, 1, 2)))]

        for verb in self.server.answers:
            self.server.answers[verb] = answer

        def obey(kind: int, sequence: int) -> list[list[bytes]]:
            frames = [
                response(sequence + source.choice((0, 0, 0, 1)), source.choice((200, 200, 403))),
                command(CONFIRM, sequence, source.choice((b"\0", b"\1", b"\2"))),
                command(REJECT, sequence, source.choice((b"\0\0", b"\1\1"))),
                content(source.randrange(10)),
                [source.randbytes(source.randrange(12)), source.randbytes(3)],
                [bytes([CONTENT])],
            ]
            return source.choices(frames, k=source.choice((0, 1, 1, 2)))

        self.server.obey = obey  # type: ignore[method-assign]
        flows: list[Any] = []
        for _ in range(60):
            verbs: list[Any] = [
                lambda: client.open("h"),
                lambda: client.profile("p"),
                lambda: client.authorize(lambda names: None),
                lambda: client.whenEstablished(),
                lambda: client.writer(["a"], source.choice(("full", "none"))),
                lambda: client.reader(["a"], source.choice(("full", "none"))),
            ]
            if flows:
                flow = source.choice(flows)
                verbs += [flow.whenEnded]
                verbs += (
                    [partial(flow.summon, "a"), partial(flow.dismiss, "a")]
                    if flow.reads
                    else [partial(flow.send, "a", b"x"), partial(flow.sendMany, "a", [b"y", b"z"])]
                )
            made = ask(source.choice(verbs)())
            made.addCallback(
                lambda _: flows.extend(f for f in client.flows.values() if f not in flows)
            )
            self.clock.advance(source.choice((0, 0, 0.5, 4)))
            if source.random() < 0.2 and self.server.peer:
                self.server.send([source.randbytes(source.randrange(12)), b""])
        ask(client.close())
        self.wait(8)
        self.assertEqual(len(fired), len(asked))
        self.assertEqual(client.flows, {})


ANEW = ["Open", "Authorize", "Profile", "Writer"]


class Refusing(FalseCase):
    """A server that forgets a session, and refuses one of the steps with which it begins anew."""

    def test_the_peer_s_reason_is_the_user_s_and_a_later_session_stands__RD_25(self) -> None:
        """MT-03, MT-07, MT-28: it was 409 for ever."""

        class Cycle:
            mechanism, finished = "X", True

            def respond(self, challenge: bytes | None) -> bytes:
                return b""

        for verb, code in (
            ("Open", 403), ("Open", 404), ("Authorize", 401), ("Authorize", 403),
            ("Profile", 400), ("Writer", 403), ("Writer", 404),
        ):  # fmt: skip
            self.setUp()
            self.begins_anew(verb, code, Cycle())

    def test_a_server_that_asks_who_we_are_refuses_a_stranger__HO_11__MT_07(
        self,
    ) -> None:
        self.server.answers["Open"] = lambda body: [(401, {"mechanisms": ["X"]})]
        service = self.service()
        waiting = service.whenEstablished()
        service.startService()
        self.pump()
        self.assertEqual(self.failureResultOf(waiting, Refused).value.code, 401)
        self.got(service.stopService())

    def begins_anew(self, verb: str, code: int, cycle: Any) -> None:
        offered: Any = (401, {"mechanisms": ["X"]})
        good = {**self.server.answers, "Open": lambda body: [offered]}
        reached, refusing = 0, False

        def answer(body: Any, name: str) -> Any:
            nonlocal reached
            at = ANEW.index(name)
            if refusing and name == verb:
                return [(code, {"reason": "the house is full"})]
            if at > reached:
                return [(409, {"reason": "not now"}) if reached else offered]
            reached = at + 1
            return good[name](body)

        for name in ANEW:
            self.server.answers[name] = partial(answer, name=name)
        service = self.service(credentials=lambda names: cycle)
        service.startService()
        self.pump()
        writer, other = (self.got(service.writer([name])) for name in "ab")
        reached, refusing = 0, True
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 403)
        ]
        flows = [writer] if verb == "Writer" else [writer, other]  # one lease is refused, or all
        sent, ended = writer.send("a", b"x"), [flow.whenEnded() for flow in flows]
        self.pump()
        for error in (self.failureResultOf(sent).value, *map(self.successResultOf, ended)):
            self.assertIsInstance(error, Refused)
            self.assertEqual((str(error), error.code), ("the house is full", code))
        self.assertEqual(service.state, "up" if verb == "Writer" else "refused")
        refusing = False
        del self.server.obey  # type: ignore[method-assign]
        self.wait(60)
        self.assertTrue(self.got(service.writer(["a"])).stands, (verb, code))
        stopped = service.stopService()
        self.wait(10)
        self.successResultOf(stopped)


class Closing(FalseCase):
    def test_contents_without_confirm_are_sent_or_refused(self) -> None:
        """HO-23: what was too many was thrown away together."""
        client = self.ready(limits={"unsent-bytes": 10 * (640 + 8)})
        writer = self.got(client.writer(["a"], "none"))
        sent = [writer.send("a", b"%d" % number) for number in range(12)]
        for one in sent[:10]:
            self.successResultOf(one)
        for one in sent[10:]:
            self.failureResultOf(one, LimitExceeded)
        self.pump()
        self.assertEqual([kind for kind, _ in self.server.got[1:]], [CONTENT] * 10)
        self.failureResultOf(writer.send("a", bytes(10 * 640)), LimitExceeded)
        self.successResultOf(writer.send("a", b"there is room again"))
        self.pump()
        writer.link.wire.socket.unreadBytes = 9 * 640
        self.failureResultOf(writer.send("a", bytes(640)), LimitExceeded)

    def test_one_name_is_no_list_of_names(self) -> None:
        """MT-10: its characters were leased, and each content was refused."""
        client = self.ready()
        for verb in (client.reader, client.writer):
            with self.assertRaisesRegex(TypeError, "resources: a list of names is expected"):
                verb("orders")
        self.assertEqual(client.flows, {})

    def test_a_lease_that_cannot_be_asked_for_makes_no_flow(self) -> None:
        """MT-29: its link was kept for as long as the factory, and counted as a connection."""
        client = self.ready()
        for verb in (client.reader, client.writer):
            self.failureResultOf(verb(["x" * 255] * 300), LimitExceeded)
        self.failureResultOf(client.open("x" * 70_000), LimitExceeded)
        self.assertEqual((client.flows, client.factory.counters["connections_total"]), ({}, 1))
        self.got(ensureDeferred(client.factory.enter(client)))
        self.assertEqual(self.server.asked[-1], "Open")  # it has no profile

    def test_a_lease_for_which_nobody_waits_any_more_is_not_renewed(self) -> None:
        """MT-29: it was, for ever, with every session to come."""
        client = self.ready()
        leased = client.writer(["a"])
        leased.cancel()
        self.failureResultOf(leased, CancelledError)
        self.pump()
        self.assertEqual((client.flows, client.link.machine.snapshot()["leases"]), ({}, 0))
        self.server.obey = lambda kind, sequence: []  # type: ignore[method-assign]
        leased = client.writer(["a"])
        self.pump()
        (flow,) = client.flows.values()
        flow.link.wire.socket.unread = 1
        self.got(client.close())  # nothing of a flow that is not open is waited for
        self.failureResultOf(leased, ConnectionClosed)

    def test_an_end_waits_for_what_a_flow_without_confirm_has_to_send_but_not_for_ever(
        self,
    ) -> None:
        """HO-05, HO-12"""
        client = self.ready(limits={"drain": 2.0})
        writer = self.got(client.writer(["a"], "none"))
        self.got(writer.send("a", b"x"))
        writer.link.wire.socket.unread = 1
        closed = client.close()
        self.wait(1)
        self.assertNoResult(closed)
        self.wait(2)
        self.successResultOf(closed)

    def test_a_flow_that_drains_takes_no_more_and_ends_when_all_is_answered(self) -> None:
        client = self.ready()
        writer = self.got(client.writer(["a"]))
        sent, ended = writer.send("a", b"x"), writer.whenEnded()
        writer.drain()
        self.failureResultOf(writer.send("a", b"y"), ConnectionClosed)
        self.pump()
        self.assertNoResult(ended)
        self.server.send(command(CONFIRM, self.server.got[-1][1], b"\0"))
        self.got(sent)
        self.assertIsInstance(self.got(ended), ConnectionClosed)
        asked = client.open("another")
        client.close()
        self.got(asked)


class Hurried(FalseCase):
    """A server grants leases and ends each of them at once."""

    def ends_at_once(self, kind: int, sequence: int) -> list[list[bytes]]:
        """A content without its sequence: the flow is given up."""
        answers = [response(sequence, 200)]
        return [*answers, [b"\5", b"x"]] if kind == LEASE else answers

    def test_leases_that_end_at_once_are_asked_for_less_and_less_often__NB_07(self) -> None:
        """The client asked again at once, for ever: its process did nothing else."""
        client = self.ready()
        reader = self.got(client.reader(["a"]))
        self.server.obey = self.ends_at_once  # type: ignore[method-assign]
        before = self.server.leases
        self.server.send([b"\5", b"x"])
        self.pump()
        self.assertEqual(self.server.leases - before, 10)
        self.wait(600)
        self.assertLess(self.server.leases - before, 40)
        self.assertTrue(reader.stands)
        del self.server.obey  # type: ignore[method-assign]
        self.wait(60)
        asked = self.server.leases
        self.got(reader.summon("a"))
        self.wait(10)
        self.assertEqual(self.server.leases, asked)

    def test_a_server_that_is_of_use_under_each_lease_is_asked_again_at_once__NB_07(self) -> None:
        """A gateway that was killed twenty times in a minute was left alone for a minute."""
        client = self.ready()
        writer = self.got(client.writer(["a"]))
        taken: set[int] = set()

        def obey(kind: int, sequence: int) -> list[list[bytes]]:
            if kind == CONTENT and self.server.leases not in taken:
                taken.add(self.server.leases)
                return [command(CONFIRM, sequence, b"\0")]
            return [response(sequence, 403 if kind == CONTENT else 200)]

        self.server.obey = obey  # type: ignore[method-assign]
        before = self.server.leases
        for _ in range(20):
            sent = [writer.send("a", b"x"), writer.send("a", b"y")]
            self.pump()
            for one in sent:
                self.successResultOf(one)
        self.assertGreater(self.server.leases - before, 11)
        writer.close()
        reader = self.got(client.reader(["a"]))
        self.got(reader.summon("a"))
        before = self.server.leases
        for number in range(20):
            self.server.send(content(1, b"%d" % number), [b"\5", b"x"])
            came = ensureDeferred(reader.__anext__())
            reader.confirm(0)  # would be sent in the turn in which the flow is lost
            self.assertEqual(self.got(came).body, b"%d" % number)
        self.assertEqual(self.server.leases - before, 20)

    def test_a_flow_that_is_closed_while_it_waits_for_a_lease_asks_for_none__NB_07(self) -> None:
        client = self.ready()
        reader = self.got(client.reader(["a"]))
        self.server.obey = self.ends_at_once  # type: ignore[method-assign]
        self.server.send([b"\5", b"x"])
        self.pump()
        before = self.server.leases
        reader.close()
        self.wait(100)
        self.assertEqual(self.server.leases, before)


class Deaf(FalseCase):
    """A server pings, and reads none of the answers."""

    def test_answers_that_a_server_does_not_read_have_a_bound__NB_02(self) -> None:
        """They waited for ever, as many as it wanted; it was heard, so nobody missed anything."""
        client = self.ready(limits={"unsent-bytes": 10 * 256, "window": 5})
        for confirm, lost in (("full", []), ("none", ["26 contents with confirm none were lost"])):
            writer = self.got(client.writer(["a"], confirm))
            socket = writer.link.wire.socket
            socket.unread = 25
            self.server.send(command(8, 0))
            self.pump()
            self.assertIs(writer.link.wire.socket, socket)
            socket.unread = 26
            leases = self.server.leases
            self.server.send(command(8, 0))
            with capturedLogs() as lines:
                self.pump()
            texts = [formatEvent(line).partition(" with their")[0] for line in lines]
            self.assertEqual([text for text in texts if "contents" in text], lost)
            self.assertIsNot(writer.link.wire.socket, socket)
            self.assertTrue(socket.closed)
            self.assertEqual(self.server.leases, leases + 1)
            self.assertTrue(writer.stands)


class Reading(FalseCase):
    def reader(self, **options: Any) -> MtlReader:
        client = self.ready(**options)
        reader = self.got(client.reader(["a"]))
        self.got(reader.summon("a"))
        return reader  # type: ignore[no-any-return]

    def taking(self, reader: MtlReader, got: list[bytes]) -> Deferred[None]:
        async def take() -> None:
            async for one in reader:
                got.append(one.body)
                reader.confirm(one.sequence)

        return ensureDeferred(take())

    def arrive(self, *numbers: int) -> None:
        self.server.send(*(content(number, b"%d" % number) for number in numbers))
        self.pump()

    def test_iteration_raises_what_has_ended_the_flow_early__HO_08(self) -> None:
        reader, got = self.reader(limits={"renewals": 1}), list[bytes]()
        taken, ended = self.taking(reader, got), reader.whenEnded()
        lost: list[Exception] = []
        reader.lost = lost.append
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 200 if kind == LEASE else 403)
        ]
        reader.summon("b").addErrback(lambda failure: None)
        self.pump()
        error = self.successResultOf(ended)
        self.assertIsInstance(error, Refused)
        self.assertIs(self.failureResultOf(taken, Refused).value, error)
        self.assertEqual(lost, [error])

    def test_hooks_of_a_reader_that_raise_are_logged_and_end_nothing(self) -> None:
        client, got = self.ready(), list[Any]()

        def received(content: Any) -> None:
            got.append(content.body)
            raise ZeroDivisionError

        def lost(error: Exception) -> None:
            raise ZeroDivisionError

        reader = self.got(client.reader(["a"], "full", received))
        reader.lost = lost
        self.got(reader.summon("a"))
        self.arrive(1, 2)
        hasty = self.got(client.reader([], "full", lambda one: [got.append(3), hasty.close()]))
        self.arrive(3, 4)  # it hears nothing more
        self.assertEqual(got, [b"1", b"2", 3])
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 403)
        ]
        self.server.answers["Reader"] = lambda body: [(404, {"reason": "gone"})]
        reader.summon("b").addErrback(lambda failure: None)
        self.pump()
        self.assertEqual(client.flows, {})
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 3)
        self.failures.clear()

    def test_a_time_out_loses_nothing(self) -> None:
        """HO-08: neither while it waits nor in the turn in which the content comes."""
        reader = self.reader()
        first = ensureDeferred(reader.__anext__()).addTimeout(1.0, self.clock)
        self.wait(2)
        self.failureResultOf(first, TimeoutError)
        second = ensureDeferred(reader.__anext__())
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.arrive(1)
        self.assertEqual(self.got(ensureDeferred(reader.__anext__())).body, b"1")

    def test_who_takes_nothing_is_sent_no_more_and_keeps_its_place(self) -> None:
        """HO-08, MT-21, MT-29, NB-02: the socket is not read, and the flow pings meanwhile."""
        reader, got = self.reader(limits={"backlog-bytes": 100_000}), list[bytes]()
        sent = [b"%d" % number * 30_000 for number in range(10, 40)]
        for number, body in enumerate(sent, 1):
            self.server.send(content(number, body))
            self.pump()
        self.assertEqual(len(reader.link.wire.socket.inbox), len(sent) - 2)
        leases = self.server.leases
        reader.link.wire.socket.ended()  # all that it sent before is still to be read
        self.wait(200)
        self.assertEqual(self.server.leases, leases)
        first = self.got(ensureDeferred(reader.__anext__()))  # more than half is left
        self.assertEqual(len(reader.link.wire.socket.inbox), len(sent) - 2)
        self.taking(reader, got)
        self.pump()
        self.assertEqual([first.body, *got], sent)
        self.wait(60)  # the server is silent, and read again: now that means something
        self.assertGreater(self.server.leases, leases)
        reader.close()

    def begin_anew(self, client: Any) -> None:
        """The server forgets the session: all leases are renewed."""
        answers = iter([[(401, dict[str, Any]())]])
        self.server.answers["Writer"] = lambda body: next(answers, None) or self.server.lease(body)
        self.got(client.writer(["z"]))

    def test_who_takes_nothing_reads_no_new_connection_either(self) -> None:
        client = self.ready(limits={"backlog-bytes": 1})
        reader = self.got(client.reader(["a"]))
        self.arrive(1)
        self.begin_anew(client)
        self.assertEqual(len(reader.link.wire.socket.inbox), 1)  # the answer to its lease
        self.assertEqual(self.got(ensureDeferred(reader.__anext__())).body, b"1")
        self.assertEqual(reader.snapshot()["state"], "OPEN")

    def test_a_flow_that_was_rejected_is_not_renewed_with_its_session(self) -> None:
        client = self.ready()
        writer = self.got(client.writer(["a"]))
        self.server.obey = (
            lambda kind, sequence: [  # type: ignore[method-assign]
                command(REJECT, sequence, b"\0\0") if kind == CONTENT else response(sequence, 200)
            ][: kind in (CONTENT, LEASE)]
        )
        sent, ended = writer.send("a", b"x"), writer.whenEnded()
        self.pump()
        self.failureResultOf(sent, Refused)
        self.assertTrue(writer.stands)
        self.begin_anew(client)
        self.assertIsInstance(self.got(ended), Refused)


class ComingBack(ContractCase):
    case = Mtl()

    def standing(self, sink: Any = None, **options: Any) -> tuple[World, Any]:
        world = self.world(sink or SafeSink())
        service = self.case.service(world, **options)
        service.startService()
        world.wait(1)
        self.assertEqual(service.state, "up")
        self.addCleanup(self.end, world, service)
        return world, service

    def end(self, world: World, service: Any) -> None:
        stopped = service.stopService()
        world.wait(10)
        self.successResultOf(stopped)

    def test_a_client_without_flows_looks_for_its_server_once_it_is_missed(self) -> None:
        world, service = self.standing()
        self.case.away(world)
        asked = service.writer(["events"])
        world.wait(4)
        self.assertEqual(service.state, "connecting")
        waiting = service.whenEstablished()
        world.wait(12)
        self.failureResultOf(asked, TimedOut)
        world.wait(60)
        self.assertIn(service.state, ("connecting", "down"))
        self.case.back(world)
        world.wait(80)
        self.assertEqual(service.state, "up")
        self.successResultOf(waiting)
        again = service.reader(["events"])
        world.wait(1)
        self.failureResultOf(again, Refused)  # the profile is for writers: the server says so

    def test_one_flow_serves_a_resource_and_another_follows_when_it_has_ended(self) -> None:
        world, service = self.standing()
        sent = [service.send("events", b"%d" % number) for number in range(3)]
        other = service.send("others", b"x")
        world.wait(1)
        for one in (*sent, other):
            self.successResultOf(one)
        self.assertEqual(len(service.session.flows), 2)
        for flow in list(service.session.flows.values()):
            flow.close()
        sent = [service.send("events", b"again"), service.send("events", b"and again")]
        sent[0].cancel()
        self.failureResultOf(sent[0], CancelledError)
        world.wait(1)
        self.successResultOf(sent[1])
        self.assertEqual(len(service.session.flows), 1)

    def test_it_writes_to_more_resources_than_a_session_has_leases(self) -> None:
        """MT-10, MT-29: from the 65th on each content was refused, for ever."""
        sink = SafeSink()
        world, service = self.standing(sink)
        names = [f"resource {number}" for number in range(100)]
        for _ in range(2):
            sent = [service.send(name, name.encode()) for name in names]
            world.wait(1)
            for one in sent:
                self.successResultOf(one)
        self.assertEqual(len(service.session.flows), 33)
        rows = [message for batch in sink.batches for message in batch]
        self.assertEqual(sorted(row.destination for row in rows), sorted(2 * names))
        self.assertTrue(all(row.body == row.destination.encode() for row in rows))

    def test_a_lease_which_is_refused_fails_all_who_wait_for_it(self) -> None:
        world, service = self.standing()
        sent = [service.send("", b"x") for _ in range(2)]
        world.wait(1)
        for one in sent:
            self.failureResultOf(one, Refused)
