"""What seldom happens to the machines of MTL, and the defaults of its profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.mtl.broker import FULL, NONE, OPEN, Broker, bodies, contents, control_peer, write
from tests.mtl.test_client_flow import Flowing, reader
from twisted_msgproto.core.broker import Letter, QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.broker.terms import TooManyQueues
from twisted_msgproto.core.kept import Kept
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.mtl.application import IngestProfile, QueueProfile
from twisted_msgproto.mtl.machine import Profile
from twisted_msgproto.mtl.machine.flows import ReadingFlow, Stored, WritingFlow
from twisted_msgproto.mtl.machine.queues import QueueReader, QueuesInMemory, broker_limits
from twisted_msgproto.mtl.machine.server import Arrival, Channel
from twisted_msgproto.mtl.terms.events import (
    AuthenticationRequested,
    FlowGivenUp,
    FlowSuspended,
)
from twisted_msgproto.mtl.terms.limits import SERVER_LIMITS
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.mtl.wire.data import (
    Confirm,
    Content,
    Dismiss,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
)

LIMITS = Limits.of(SERVER_LIMITS)


# ── a client's flow ─────────────────────────────────────────────────────────────────────────────


def test_an_ill_formed_content_is_rejected_once__MT_13() -> None:
    flowing = reader()
    header = data.encode(Content(7, "a"))[0]
    for expected in ([Reject(7)], []):
        assert flowing.flow.receive([[header[:-1], b""]], flowing.now) == []
        assert flowing.sent == expected


def test_a_paused_flow_does_not_miss_the_answer_to_its_lease__MT_21() -> None:
    flowing = Flowing(True, request_timeout=10, request_tries=1)
    flowing.flow.renew("lease", 0.0)
    flowing.flow.paused(0.0)
    assert flowing.wait(100) == []
    flowing.flow.resumed(flowing.now)
    assert [type(event) for event in flowing.wait(10)] == [FlowSuspended]


def test_each_command_has_its_own_time_for_an_answer__MT_18() -> None:
    flowing = reader(request_timeout=10, request_tries=1, heartbeat=100, liveness=1000)
    flowing.flow.summon("a", flowing.now)
    flowing.now += 5
    flowing.flow.summon("b", flowing.now)
    first = next(one for one in flowing.sent if isinstance(one, Summon))
    flowing.get(Response(first.sequence, 200))
    assert flowing.wait(9) == []
    assert [type(event) for event in flowing.wait(1.5)] == [FlowSuspended]


def test_after_a_probe_out_of_turn_the_next_one_has_all_its_time__MT_21() -> None:
    flowing = Flowing(False, liveness=15, heartbeat=100)
    flowing.open()
    flowing.write(1)
    sequence = next(one.sequence for one in flowing.sent if isinstance(one, Content))
    flowing.now = 10.0
    flowing.get(Reject(sequence))
    (probe,) = flowing.sent
    assert isinstance(probe, Summon)
    flowing.get(Response(probe.sequence, 400))
    assert flowing.wait(6.0) == []  # the deadline of the former one, 15 s, has passed
    assert flowing.sent == []
    flowing.get(Ping())
    assert [type(one) for one in flowing.sent] == [data.Pong]
    flowing.wait(9.5)
    assert any(isinstance(one, Summon) for one in flowing.sent)


# ── profiles ────────────────────────────────────────────────────────────────────────────────────


def test_a_profile_that_overrides_nothing_recycles_what_its_reader_leaves__MT_26() -> None:
    called: list[Any] = []

    class Plain(Profile):
        name = "plain"

        def rejected(self, flow: Any, found: list[Any], recycle: bool) -> None:
            called.append((found, recycle))

        def dismiss(self, flow: Any, resource: str) -> None:
            called.append(resource)

    plain = Plain()
    broker = Broker([plain])
    broker.leave(broker.reader(profile="plain"))
    broker.wait(LIMITS["session-idle"] + 1)
    assert called == [([], True), "a"]
    assert plain.envelopes(None, ["a"], [b""]) is None  # type: ignore[arg-type]


def test_a_profile_hears_whenever_its_reader_may_have_space__MT_26() -> None:
    ready: list[int] = []

    class Giving(Profile):
        name = "giving"

        def ready(self, flow: Any) -> None:
            ready.append(flow.last_sent)
            if flow.last_sent < 5 and flow.room > 0:
                flow.send("a", Stored(b"\0" * 4, b"x"))

    broker = Broker([Giving()], limits={"prefetch": 1})
    reader = broker.reader(profile="giving")
    assert ready == [0]
    broker.command(reader, Confirm(1))
    broker.command(reader, Reject(2))
    assert ready == [0, 1, 2]
    broker.server.blocked(reader)
    broker.server.unblocked(reader, broker.now)
    assert ready == [0, 1, 2, 3]


def test_a_profile_which_fails_twice_ends_a_flow_once__MT_26() -> None:
    profile = QueueProfile(LIMITS)
    broker = Broker([profile])
    broker.reader()
    (flow,) = broker.server._flows.values()
    for _ in range(2):
        profile.end_flow(flow, ValueError("it cannot"))
    assert broker.server.counters["flows_failed"] == 1
    assert len(broker.server.take_profile_errors()) == 2


class Durable(QueuesInMemory):
    """Says that it is durable: what comes is kept with its envelope, and is not published again."""

    durable = True


def test_a_profile_says_that_content_waits_for_a_reader__MT_20() -> None:
    profile = QueueProfile(LIMITS)
    broker = Broker([profile])
    broker.reader()
    (flow,) = broker.server._flows.values()
    woken: list[None] = []
    name = profile.queue("test", "a")
    profile.wake = lambda: woken.append(None)
    sent = QueueReader(flow, profile).push(  # type: ignore[arg-type]
        name, [Letter(1, 10, head("mtl", name), b"body", 0.0)]
    )
    assert sent is flow.grant.confirm
    assert woken == [None]


def test_a_durable_broker_has_envelopes_and_nothing_is_published_twice__BK_01() -> None:
    queues = Durable(broker_limits(LIMITS))
    profile = QueueProfile(LIMITS, broker=queues, space="shared")
    profile.serve(QueuesInMemory(broker_limits(LIMITS)))  # there is one already
    later = QueueProfile(LIMITS)
    later.serve(queues, "shared")
    later.serve(QueuesInMemory(broker_limits(LIMITS)))
    assert (later._broker, later._space) == (queues, "shared")
    broker = Broker([profile])
    write(broker, 1)
    assert queues.machine.knows(QueueName("shared", "a"))
    assert bodies(broker.command(broker.reader())) == []
    (flow,) = [one for one in broker.server._flows.values() if hasattr(one, "window")]
    (envelope,) = profile.envelopes(flow, ["a"], [b"table"]) or [None]  # type: ignore[arg-type]
    assert envelope is not None and envelope.endswith(b"table")
    assert queues.snapshot() == queues.machine.snapshot()


def test_a_queue_that_finds_no_room_after_another_went_is_refused__BK_05() -> None:
    class Full(QueuesInMemory):
        tries = 0

        def declare(self, name: QueueName, *, kept: bool = False) -> None:
            self.tries += 1
            raise TooManyQueues("full")

        def reclaim(self, spaces: str) -> bool:
            return True

    queues = Full(broker_limits(LIMITS))
    profile = QueueProfile(LIMITS, broker=queues)
    broker = Broker([profile])
    writing = broker.flow("Writer")
    assert Confirm(1, True) not in broker.command(writing, *contents(1))
    assert queues.tries == 2
    assert profile.counters["too_many_queues"] == 1


def test_all_that_one_call_may_not_do_is_done_by_the_next_ones__NB_07() -> None:
    class Busy:
        left = 3
        events = 0

        @property
        def unfinished(self) -> bool:
            return self.left > 0

        def go_on(self) -> None:
            self.left -= 1

        def take_events(self) -> None:
            self.events += 1

    queues, busy = QueuesInMemory(broker_limits(LIMITS)), Busy()
    queues.machine = busy  # type: ignore[assignment]
    queues._do(lambda: None)
    assert (busy.left, busy.events) == (0, 1)


def test_a_message_of_another_protocol_has_the_properties_that_are_shared__BK_01() -> None:
    profile = QueueProfile(LIMITS)
    asked: list[Any] = []

    def foreign(envelope: Any) -> dict[str, Any]:
        asked.append(envelope)
        return {"shared": "yes"}

    profile.foreign = foreign
    name = profile.queue("host", "a")
    ((content, table),) = profile.given(name, [Letter(1, 10, head("umq", name), b"body", 0.0)])
    assert len(asked) == 1
    assert content.body == b"body"
    assert b"shared" in table


def test_a_flow_that_has_summoned_nothing_is_sent_nothing() -> None:
    profile = QueueProfile(LIMITS)
    broker = Broker([profile])
    peer = broker.flow("Reader")
    (flow,) = broker.server._flows.values()
    profile.ready(flow)  # type: ignore[arg-type]
    assert broker.got(peer) == []


# ── the server ──────────────────────────────────────────────────────────────────────────────────


def test_the_state_of_the_server_is_open_then_draining_then_closed() -> None:
    broker = Broker()
    server, states = broker.server, [broker.server.state]
    server.drain(broker.now)
    states.append(server.state)
    server.lost(broker.now)
    states.append(server.state)
    assert states == ["open", "draining", "closed"]
    assert server.receive(Arrival(Channel.CONTROL, [[b"x", b""]]), broker.now) == []
    assert not server.counters


def test_the_older_name_of_receive_does_the_same() -> None:
    for name in ("old", "new"):
        broker = Broker()
        peer = broker.flow("Writer")
        parts = [[peer, *data.encode(Ping())]]
        if name == "old":
            broker.collect(broker.server.receive(Arrival(Channel.DATA, parts), broker.now))
        else:
            broker.receive(Channel.DATA, *parts)
        assert broker.got(peer) == [data.Pong()]


def test_names_of_resources_are_forgotten_when_there_are_too_many__MT_18(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twisted_msgproto.mtl.machine.receiving.NAMES_REMEMBERED", 2)
    broker = Broker()
    peer = broker.flow("Writer", ["a", "b", "c"])
    for number, resource in enumerate("abcab", 1):
        broker.command(peer, *contents(number, resource=resource))
    (flow,) = broker.server._flows.values()
    assert 1 <= len(flow.names) <= 2  # type: ignore[attr-defined]
    assert not broker.dropped


def test_what_a_session_may_not_use_is_no_lease__MT_12() -> None:
    broker = Broker(may=lambda session, reads, resource: reads)
    peer = broker.session()
    asked = {"resources": ["a"], "confirm": FULL}
    assert broker.ask(peer, "Reader", asked)[0] == 202
    code, reply = broker.ask(peer, "Writer", asked)
    assert code == 403
    assert "not allowed to publish to a" in str(reply)


def test_where_a_lease_names_no_resource_each_one_is_asked_for__MT_18() -> None:
    broker = Broker(may=lambda session, reads, resource: resource == "a")
    peer = broker.flow("Writer", [])
    got = broker.command(peer, *contents(1, resource="b"))
    assert got == [Reject(1)]
    assert broker.command(peer, *contents(2, resource="a")) == []  # until it is safe
    peer = broker.flow("Writer", [], NONE)
    assert broker.command(peer, *contents(2, resource="b")) == [Response(2, 403)]


@pytest.mark.parametrize("reading", [True, False])
def test_who_may_only_read_or_only_write_is_asked_for_just_that__MT_16__MT_18(
    reading: bool,
) -> None:
    broker = Broker(may=lambda session, reads, resource: reads is reading)
    reader, writer = broker.flow("Reader", []), broker.flow("Writer", [])
    code = 200 if reading else 400
    assert broker.command(reader, Summon(2, "a")) == [Response(2, code)]
    assert broker.command(writer, *contents(3)) == ([Reject(3)] if reading else [])


def test_what_is_due_of_what_has_ended_in_the_same_moment_changes_nothing__MT_21() -> None:
    broker = Broker([IngestProfile()])
    peer = broker.session("ingest")
    (session,) = broker.server._sessions.values()
    token = broker.lease(peer, "Writer")
    grant = broker.server._leases[token]
    broker.connect(broker.lease(peer, "Writer"))
    (flow,) = broker.server._flows.values()
    broker.server.close(broker.now)
    counted = dict(broker.server.counters)
    for key in (session, flow, grant):
        broker.server._due(key, broker.now + 1000, [])
    broker.server._watch(session)
    assert dict(broker.server.counters) == counted
    assert broker.server.deadline is None


def test_an_ill_formed_content_of_a_flow_whose_peer_has_left_is_counted__MT_13() -> None:
    broker = Broker()
    peer = write(broker, 1)
    (flow,) = broker.server._flows.values()
    flow.lost_at = broker.now
    header = data.encode(Content(2, "a"))[0]
    broker.receive(Channel.DATA, [peer, header[:-1], b""])
    assert sum(broker.dropped.values()) == 1


def test_behind_a_content_that_could_not_be_read_sequences_rise__MT_13__MT_18() -> None:
    broker = Broker()
    peer = write(broker, 1)
    header = data.encode(Content(5, "a"))[0]
    broker.receive(Channel.DATA, [peer, header[:-1], b""])
    assert broker.got(peer) == [Reject(5)]
    for number, answers in ((4, [Reject(4)]), (5, [Reject(5)]), (6, [])):
        assert broker.command(peer, *contents(number)) == answers
    broker.safe(broker.events[-1])
    assert broker.got(peer) == [Confirm(6, True)]


def test_a_flow_of_which_something_is_answered_is_not_given_up__MT_28() -> None:
    """Only leases in a row without any answer are in vain."""
    in_vain = [FlowSuspended, FlowSuspended, FlowGivenUp]
    for answered, ends in ((True, [FlowSuspended] * 5), (False, in_vain)):
        flowing = reader(renewals=2)
        flowing.flow.summon("a", 0.0)
        (summon,) = flowing.sent
        flowing.get(Response(summon.sequence, 200))
        flowing.flow.summon("b", 0.0)
        lost = []
        while len(lost) < len(ends):
            for command in flowing.sent:
                if not isinstance(command, Summon):
                    continue
                if command.resource == "b":
                    lost += flowing.get(Response(command.sequence, 403))
                elif answered:
                    flowing.get(Response(command.sequence, 200))
            flowing.flow.renew("new", flowing.now)
            (lease,) = flowing.sent
            flowing.get(Response(lease.sequence, 200))
        assert [type(event) for event in lost] == ends


# ── what is left behind ─────────────────────────────────────────────────────────────────────────


def test_a_drained_server_with_idle_flows_is_finished_and_so_is_one_that_was_lost__MT_30() -> None:
    broker = Broker()
    broker.reader()
    writer = broker.flow("Writer")
    broker.server.drain(broker.now)
    assert broker.server.finished
    broker.command(writer, *contents(1))
    assert not broker.server.finished
    broker.safe(broker.events[-1])
    assert broker.server.finished
    lost = Broker()
    lost.reader()
    lost.server.lost(lost.now)
    assert lost.server.finished


def test_of_a_flow_that_has_ended_nothing_is_kept__MT_30__NB_02() -> None:
    broker = Broker()
    reader, writer = broker.reader(confirm=NONE), broker.flow("Writer")
    flows = [broker.server._flows[peer] for peer in (reader, writer)]
    broker.command(writer, *contents(*range(1, 300)))
    broker.server.made_safe(broker.events[-1].place, broker.now)  # type: ignore[union-attr]
    assert broker.server._stirred and broker.server._exhausted
    for peer in (reader, writer):
        broker.server.peer_lost(peer, broker.now)
    assert not broker.server._stirred and not broker.server._exhausted
    reading, writing = flows
    assert isinstance(reading, ReadingFlow) and isinstance(writing, WritingFlow)
    assert reading.blocked and not reading.summoned
    assert not writing.names


def test_what_a_reader_had_is_another_one_s_when_it_has_ended__MT_30__NB_02() -> None:
    broker = Broker()
    peer = broker.reader()
    flow = broker.server._flows[peer]
    assert isinstance(flow, ReadingFlow)
    write(broker, 1)
    assert len(flow.unconfirmed) == 1
    broker.collect(broker.server.peer_lost(peer, broker.now))
    assert not flow.unconfirmed
    other = broker.flow("Reader")
    assert bodies(broker.command(other, Summon(2, "a"))) == [b"1"]


def test_of_a_server_that_was_lost_nothing_is_due_and_nothing_is_sent__MT_30() -> None:
    broker = Broker()
    reader, writer = broker.reader(), broker.flow("Writer")
    broker.command(writer, *contents(1))
    broker.server.receive(Arrival(Channel.CONTROL, [[reader, b"", b"x", b"{}"]]), broker.now)
    broker.server.made_safe(broker.events[-1].place, broker.now)  # type: ignore[union-attr]
    broker.server.lost(broker.now)
    assert broker.server.outputs() == ([], [])
    assert broker.server.deadline is None
    assert not broker.server._stirred


def test_who_was_sent_a_content_is_not_pinged_for_a_while__MT_21() -> None:
    broker = Broker()
    reader, writer = broker.reader(), broker.flow("Writer")

    def pings(seconds: float) -> int:
        broker.command(reader, Pong())
        broker.command(writer, Pong())
        broker.wait(seconds)
        return broker.got(reader).count(Ping())

    assert pings(4.0) == 0
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [b"1"]
    assert pings(4.5) == 0
    assert pings(1.6) == 1
    assert [pings(6.0) for _ in range(3)] == [1, 1, 1]


def test_a_request_and_a_lease_that_is_shown_keep_a_session__MT_30() -> None:
    broker = Broker()
    peer = broker.session()
    broker.wait(290)
    token = broker.lease(peer, "Reader")
    broker.wait(20)
    flow = broker.connect(token)
    broker.collect(broker.server.peer_lost(flow, broker.now))
    broker.wait(290)
    assert broker.ask(peer, "Reader", {"resources": ["a"], "confirm": FULL})[0] == 202
    broker.wait(302)
    assert broker.ask(peer, "Reader", {"resources": ["a"], "confirm": FULL})[0] == 401


def test_after_a_cycle_the_next_one_may_have_another_mechanism__MT_07() -> None:
    broker = Broker(mechanisms=["X", "Y"])
    peer = control_peer(1)
    assert broker.ask(peer, "Open", OPEN)[0] == 401
    for mechanism in ("X", "Y", "X"):
        assert broker.ask_raw(peer, b"", b"Connection.Authorize", authorizes(mechanism)) == []
        asked = broker.events[-1]
        assert isinstance(asked, AuthenticationRequested)
        assert (asked.mechanism, asked.first) == (mechanism, True)
        broker.collect(broker.server.authorize(asked.session, "user", broker.now))
        assert broker.to(peer)[0][1] == b"201"


def authorizes(mechanism: str) -> bytes:
    return json.dumps({"mechanism": mechanism, "response": ""}).encode()


def test_a_refusal_of_a_session_that_has_ended_is_not_owed__MT_08() -> None:
    broker = Broker(mechanisms=["X"])
    peer = control_peer(1)
    broker.ask(peer, "Open", OPEN)
    broker.ask_raw(peer, b"", b"Connection.Authorize", authorizes("X"))
    asked = broker.events[-1]
    assert isinstance(asked, AuthenticationRequested)
    broker.server.refuse(asked.session, broker.now)
    broker.server.peer_lost(peer, broker.now)
    assert not broker.server._refusals
    broker.wait(5)
    assert broker.to(peer) == []


def test_leases_that_nobody_used_end_once_with_their_session__MT_11() -> None:
    every = Kept(1_000_000)
    broker = Broker(every=every)
    peer = broker.session()
    broker.lease(peer, "Reader")
    broker.ask(peer, "Profile", {"profile": "test"})
    assert every.octets == 0
    broker.ask(peer, "Profile", {"profile": "queue"})
    broker.lease(peer, "Reader")
    broker.server.peer_lost(peer, broker.now)
    assert every.octets == 0
    assert not broker.server._leases


def test_what_was_dismissed_counts_no_more_when_its_flow_ends__NB_02() -> None:
    every = Kept(1_000_000)
    broker = Broker(every=every)
    stays = broker.reader()
    assert broker.server._flows[stays].octets > 0
    before = every.octets
    reader = broker.reader("b")
    broker.command(reader, Dismiss(3, "b"))
    broker.server.peer_lost(reader, broker.now)
    assert every.octets == before


def test_a_queue_in_memory_stays_when_nobody_uses_it_only_where_that_was_asked_for__BK_05() -> None:
    queues = QueuesInMemory(broker_limits(LIMITS))
    queues.declare(QueueName("shared", "passing"))
    queues.declare(QueueName("shared", "stays"), kept=True)
    assert [queue.kept for queue in queues.machine.queues()] == [False, True]


WITH_TIME: dict[str, Callable[[Broker, bytes, Any, float], object]] = {
    "receive": lambda it, peer, event, now: it.server.receive(Arrival(Channel.DATA, []), now),
    "made_safe": lambda it, peer, event, now: it.server.made_safe(event.place, now),
    "not_safe": lambda it, peer, event, now: it.server.not_safe(event.place, now),
    "refill": lambda it, peer, event, now: it.server.refill(now),
    "unblocked": lambda it, peer, event, now: it.server.unblocked(peer, now),
    "peer_lost": lambda it, peer, event, now: it.server.peer_lost(peer, now),
    "left": lambda it, peer, event, now: it.server.left([peer], now),
    "close": lambda it, peer, event, now: it.server.close(now),
    "advance": lambda it, peer, event, now: it.server.advance(now),
    "paused": lambda it, peer, event, now: it.server.paused(now),
    "resumed": lambda it, peer, event, now: it.server.resumed(now),
}
"""Each call of the server's machine that is told the time, with a peer and contents that wait."""


@pytest.mark.parametrize("name", WITH_TIME)
def test_whatever_is_called_counts_from_the_time_that_it_was_told__MT_21(name: str) -> None:
    broker = Broker()
    peer = write(broker, 1, safe=False)
    WITH_TIME[name](broker, peer, broker.events[-1], broker.now + 7)
    assert broker.server._now == broker.now + 7


def test_who_answers_a_log_in_says_when__MT_07__MT_30() -> None:
    """A session has its time to authenticate again from then on."""
    for answer in ("authorize", "refuse", "challenge"):
        broker = Broker(mechanisms=["X"])
        peer = control_peer(1)
        assert broker.ask(peer, "Open", OPEN)[0] == 401
        body = json.dumps({"mechanism": "X", "response": ""}).encode()
        broker.receive(Channel.CONTROL, [peer, b"", b"Connection.Authorize", body])
        (asked,) = [one for one in broker.events if isinstance(one, AuthenticationRequested)]
        more: dict[str, Any] = {"authorize": ("user",), "refuse": (), "challenge": (b"x",)}
        getattr(broker.server, answer)(asked.session, *more[answer], broker.now + 7)
        assert broker.server._now == broker.now + 7, answer
        broker.collect(broker.server.withdraw(asked.session, broker.now + 8))
        assert broker.server._now == broker.now + 8, answer


def test_what_cannot_be_read_of_a_content_keeps_its_flow__MT_13__MT_21() -> None:
    """Its peer stands, and is not pinged for a while."""
    broker = Broker()
    peer = write(broker, 1)
    header = data.encode(Content(5, "a"))[0]
    for _ in range(20):
        broker.wait(4.0)
        broker.receive(Channel.DATA, [peer, header[:-1], b""])
    broker.wait(4.0)
    assert broker.got(peer) == [Reject(5)] * 20


def test_flows_that_end_for_a_content_without_a_sequence_are_counted__MT_13() -> None:
    broker = Broker()
    peer = write(broker, 1)
    broker.receive(Channel.DATA, [peer, data.encode(Content(5, "a"))[0][:3], b""])
    assert broker.server.counters["flows_broken"] == 1
    assert broker.server.snapshot()["writers"] == 0


def test_a_confirm_that_was_withheld_is_sent_once__MT_19__MT_27() -> None:
    """Not once more when something behind it is lost."""
    broker = Broker(limits={"queue-contents": 2})
    writer = broker.flow("Writer")
    for number in (1, 2, 3, 4):
        broker.command(writer, *contents(number))
    for event in broker.events[-4:-1]:
        broker.safe(event)
    lost = broker.events[-1]
    assert broker.got(writer) == [Confirm(1, True), Confirm(2, True)]
    broker.command(broker.reader(), Confirm(1), Confirm(2))
    assert broker.got(writer) == [Confirm(3, True)]
    assert broker.server._withheld == {}
    broker.safe(lost, False)
    assert broker.got(writer) == [Reject(4, True)]


def test_of_a_writer_whose_contents_have_become_an_event_nothing_waits__NB_02() -> None:
    """Else it would be kept when it has ended, and be asked for contents at every read."""
    broker = Broker()
    peer = write(broker, 1)
    assert broker.server._written == {}
    broker.collect(broker.server.peer_lost(peer, broker.now))
    assert broker.server._written == {}


def test_a_session_whose_log_in_was_withdrawn_has_its_time_for_another__MT_07__MT_30() -> None:
    broker = Broker()
    broker.session()
    broker.wait(100)
    (session,) = broker.server.sessions()
    broker.collect(broker.server.withdraw(session, broker.now))
    limit = broker.limits["authentication"]
    broker.wait(limit - 1)
    assert broker.server.sessions() == [session]
    broker.wait(2)
    assert broker.server.sessions() == []


def test_a_reader_to_which_nothing_can_be_sent_is_counted_and_ends__MT_26() -> None:
    profile = QueueProfile(LIMITS)
    broker = Broker([profile])
    flow = broker.server._flows[broker.reader()]
    assert isinstance(flow, ReadingFlow)
    profile.failed(flow, RuntimeError("at work"))
    assert profile.counters["failed"] == 1
    assert broker.server.counters["flows_failed"] == 1
    assert broker.server.snapshot()["readers"] == 0


def test_who_logs_in_anew_has_no_lease_of_before__MT_07__MT_11() -> None:
    broker = Broker(mechanisms=["X"])
    peer = control_peer(1)
    assert broker.ask(peer, "Open", OPEN)[0] == 401

    def authorize() -> None:
        body = json.dumps({"mechanism": "X", "response": ""}).encode()
        broker.receive(Channel.CONTROL, [peer, b"", b"Connection.Authorize", body])
        asked = broker.events[-1]
        assert isinstance(asked, AuthenticationRequested)
        broker.collect(broker.server.authorize(asked.session, "user", broker.now))
        broker.to(peer)

    authorize()
    assert broker.ask(peer, "Profile", {"profile": "queue"})[0] == 200
    reader = broker.connect(broker.lease(peer, "Reader"))
    unused = broker.lease(peer, "Reader")
    assert broker.server.snapshot()["readers"] == 1
    authorize()
    assert broker.server.snapshot()["readers"] == 0
    assert broker.command(reader, Summon(2, "a")) == [Response(2, 403)]
    assert broker.command(reader, data.Lease(3, unused)) == [Response(3, 403)]


def test_a_reader_that_goes_after_all_sessions_were_closed_has_not_gone_with_them__MT_30() -> None:
    orderly: list[bool] = []

    class Noting(Profile):
        name = "noting"

        def gone(self, flow: Any, contents: list[Any], ordered: bool = False) -> None:
            orderly.append(ordered)

    broker = Broker([Noting()])
    broker.reader(profile="noting")
    broker.collect(broker.server.close(broker.now))
    peer = broker.reader(profile="noting")
    broker.collect(broker.server.peer_lost(peer, broker.now))
    assert orderly == [True, False]


def test_a_content_keeps_the_session_although_its_flow_has_ended__MT_30() -> None:
    broker = Broker()
    peer = write(broker, 1)
    for _ in range(40):
        broker.wait(5)
        broker.command(peer, Pong())
    broker.command(peer, *contents(2))
    broker.collect(broker.server.peer_lost(peer, broker.now))
    broker.wait(broker.limits["session-idle"] - 1)
    assert len(broker.server.sessions()) == 1
    broker.wait(2)
    assert broker.server.sessions() == []


def test_queues_in_memory_keep_nothing_of_what_a_call_has_told__NB_02() -> None:
    profile = QueueProfile(LIMITS)
    broker = Broker([profile])
    queues = profile._broker
    assert isinstance(queues, QueuesInMemory)
    reader = broker.reader()
    for number in (1, 2, 3):
        write(broker, number)
        assert bodies(broker.got(reader)) == [b"%d" % number]
        broker.command(reader, Confirm(number))
        assert queues.machine.take_events() == []
        assert not queues.machine.unfinished
