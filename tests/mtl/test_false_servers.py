"""A client beside servers which answer wrongly, late, twice, never, or close: it says so, and ends.

The server is in memory and none of ours (:mod:`.false_server`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred

from tests.mtl.false_server import FalseCase, command, content, response
from tests.mtl.plain import CONFIRM, CONTENT, LEASE, REJECT
from twisted_msgproto.core.errors import TimedOut
from twisted_msgproto.mtl.protocol.renewing import RENEWAL_SECONDS_MOST, RENEWALS_AT_ONCE


def twice(answer: Any) -> Any:
    return lambda body: answer(body) * 2


class Twice(FalseCase):
    def test_an_answer_which_comes_twice_is_no_answer_to_the_next_request(self) -> None:
        """HO-23: a reply does not say what it answers, but a code belongs to a request."""
        for verb, answer in list(self.server.answers.items()):
            self.server.answers[verb] = twice(answer)
        client = self.client()
        asked = [client.open("host"), client.profile("queue"), client.writer(["a"])]
        self.pump()
        self.assertEqual(self.successResultOf(asked[0]), ["queue", "ingest"])
        self.assertIsNone(self.successResultOf(asked[1]))
        self.assertTrue(self.successResultOf(asked[2]).stands)
        self.assertEqual(client.machine.counters["dropped:another-answer"], 2)

    def test_a_lease_which_comes_twice_is_renewed_where_it_is_of_no_use(self) -> None:
        """MT-11: a lease is good for one data connection."""
        self.server.answers["Writer"] = twice(self.server.lease)
        shown: set[int] = set()

        def obey(kind: int, sequence: int) -> list[list[bytes]]:
            good = kind == LEASE and self.server.leases not in shown
            shown.add(self.server.leases)
            return [response(sequence, 200 if good else 403)]

        self.server.obey = obey  # type: ignore[method-assign]
        client = self.ready()
        flows = [client.writer(["a"]), client.writer(["b"])]
        for flow in flows:
            self.assertTrue(self.got(flow).stands)


class Pipelined(FalseCase):
    def test_a_flow_which_was_asked_for_after_a_profile_is_not_of_the_one_before(self) -> None:
        """MT-09"""
        client = self.ready()
        before = self.got(client.writer(["a"]))
        selected, after = client.profile("ingest"), client.writer(["a"])
        self.got(selected)
        self.assertEqual((before.stands, self.successResultOf(after).stands), (False, True))


class Never(FalseCase):
    def test_a_summon_which_nobody_answers_ends_the_flow(self) -> None:
        """HO-23: it is asked again on other leases, but not for ever."""
        client = self.ready(limits={"renewals": 3})
        reader = self.got(client.reader(["a"]))
        self.server.obey = lambda kind, sequence: (  # type: ignore[method-assign]
            [response(sequence, 200)] if kind == LEASE else []
        )
        summoned, ended = reader.summon("a"), reader.whenEnded()
        self.wait(120)
        self.failureResultOf(summoned, TimedOut)
        self.assertIsInstance(self.successResultOf(ended), TimedOut)
        self.assertEqual(self.server.asked.count("Reader"), 4)


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

    def test_a_flow_that_waits_to_be_renewed_takes_the_lease_that_another_brings__MT_28(
        self,
    ) -> None:
        client = self.ready()
        reader = self.got(client.reader(["a"]))
        back = self.away()
        while client.machine.counters["sockets_dropped"] < 3:
            self.wait(0.25)
        back()  # nothing is asked for a second now
        lease = self.server.answers["Writer"]
        self.server.answers["Writer"] = lambda body: (
            lease(body) if "Open" in self.server.asked else [(401, {})]
        )
        self.got(client.writer(["b"]))
        self.wait(8)
        self.assertEqual(self.server.asked, ["Writer", "Open", "Profile", "Reader", "Writer"])
        self.assertTrue(reader.stands)


class Wrongly(FalseCase):
    def test_a_server_which_forgets_its_leases_at_once_is_given_up(self) -> None:
        """HO-23: 403 to each Summon was a loop without a pause."""
        client = self.ready(limits={"renewals": 3})
        reader = self.got(client.reader(["a"]))
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 200 if kind == LEASE else 403)
        ]
        summoned, ended = reader.summon("a"), reader.whenEnded()
        self.pump()
        self.failureResultOf(summoned, TimedOut)
        self.assertIsInstance(self.successResultOf(ended), TimedOut)
        self.assertLessEqual(self.server.asked.count("Reader"), 5)

    def test_a_reader_which_stood_is_given_up_too(self) -> None:
        """HO-23: what it had summoned is refused again and again."""
        client = self.ready(limits={"renewals": 3})
        reader = self.got(client.reader(["a"]))
        self.got(reader.summon("a"))
        lost: list[Exception] = []
        reader.lost = lost.append
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 200 if kind == LEASE else 403)
        ]
        again = reader.summon("b")
        self.pump()
        self.failureResultOf(again, TimedOut)
        self.assertEqual([type(error) for error in lost], [TimedOut])

    def test_confirms_of_what_was_never_sent_are_no_renewal_of_hope(self) -> None:
        """HO-23, MT-20: the bound on renewals counts what was answered in earnest."""
        client = self.ready(limits={"renewals": 3})
        writer = self.got(client.writer(["a"]))

        def obey(kind: int, sequence: int) -> list[list[bytes]]:
            if kind == LEASE:
                return [response(sequence, 200)]
            return [command(CONFIRM, 1 << 40, b"\1"), response(sequence, 403)]

        self.server.obey = obey  # type: ignore[method-assign]
        sent = writer.send("a", b"x")
        self.pump()
        self.failureResultOf(sent, TimedOut)

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


class Closing(FalseCase):
    def test_a_lease_for_which_nobody_waits_any_more_is_not_renewed(self) -> None:
        """MT-29: it was, for ever, with every session to come."""
        client = self.ready()
        leased = client.writer(["a"])
        leased.cancel()
        self.failureResultOf(leased, CancelledError)
        self.pump()
        self.assertEqual((client.flows, client.machine.snapshot()["leases"]), ({}, 0))

    def test_an_end_waits_for_what_a_flow_without_confirm_has_to_send_but_not_for_ever(
        self,
    ) -> None:
        """HO-05, HO-12"""
        client = self.ready(limits={"drain": 2.0})
        writer = self.got(client.writer(["a"], "none"))
        self.got(writer.send("a", b"x"))
        writer.wire.socket.unread = 1
        closed = client.close()
        self.wait(1)
        self.assertNoResult(closed)
        self.wait(2)
        self.successResultOf(closed)


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
        self.assertEqual(self.server.leases - before, RENEWALS_AT_ONCE)
        self.wait(600)
        self.assertLess(self.server.leases - before, RENEWALS_AT_ONCE + 30)
        self.assertTrue(reader.stands)
        del self.server.obey  # type: ignore[method-assign]
        self.wait(RENEWAL_SECONDS_MOST)
        asked = self.server.leases
        self.got(reader.summon("a"))
        self.wait(10)
        self.assertEqual(self.server.leases, asked)

    def test_a_server_that_takes_something_under_each_lease_is_asked_again_at_once__NB_07(
        self,
    ) -> None:
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
        for _ in range(2 * RENEWALS_AT_ONCE):
            sent = [writer.send("a", b"x"), writer.send("a", b"y")]
            self.pump()
            self.successResultOf(sent[0])
            self.successResultOf(sent[1])
        self.assertGreater(self.server.leases - before, RENEWALS_AT_ONCE + 1)

    def test_a_server_that_brings_something_under_each_lease_is_asked_again_at_once__NB_07(
        self,
    ) -> None:
        client = self.ready()
        reader = self.got(client.reader(["a"]))
        self.server.obey = lambda kind, sequence: [  # type: ignore[method-assign]
            response(sequence, 200)
        ]
        self.got(reader.summon("a"))
        before = self.server.leases
        for number in range(2 * RENEWALS_AT_ONCE):
            self.server.send(content(1, b"%d" % number), [b"\5", b"x"])
            came = ensureDeferred(reader.__anext__())
            self.assertEqual(self.got(came).body, b"%d" % number)
        self.assertEqual(self.server.leases - before, 2 * RENEWALS_AT_ONCE)

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
        client = self.ready(limits={"waiting": 10, "window": 5})
        writer = self.got(client.writer(["a"]))
        socket = writer.wire.socket
        socket.unread = 30
        self.server.send(command(8, 0))
        self.pump()
        self.assertIs(writer.wire.socket, socket)
        socket.unread = 31
        leases = self.server.leases
        self.server.send(command(8, 0))
        self.pump()
        self.assertIsNot(writer.wire.socket, socket)
        self.assertTrue(socket.closed)
        self.assertEqual(self.server.leases, leases + 1)
        self.assertTrue(writer.stands)
