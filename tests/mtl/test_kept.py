"""What a broker counts and shows, and what its sessions keep for their clients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.cases import Mtl
from tests.contract.world import ContractCase
from tests.mtl.broker import (
    FULL,
    OPEN,
    Broker,
    Channel,
    Confirm,
    Content,
    Dismiss,
    Reject,
    Response,
    Summon,
    bodies,
    contents,
)
from twisted_msgproto.mtl import machine
from twisted_msgproto.net.memory import SharedState
from twisted_msgproto.testing import SafeSink


def test_a_broker_counts_and_shows_what_was_done__MT_13__MT_14__MT_18__MT_19__MT_21() -> None:
    broker = Broker()

    def figures() -> dict[str, Any]:
        shown = broker.server.snapshot()
        queue: Any = shown.pop("profiles")
        return {**broker.server.counters, **shown, **queue["queue"]}

    def safe(answer: bool = True) -> None:
        broker.safe(broker.events[-1], answer)

    writer, reader = broker.flow("Writer"), broker.flow("Reader")
    broker.command(writer, *contents(1, 2))
    safe()
    broker.command(writer, Content(2, "a"), Content(3, "b"))  # not above the last; not leased
    broker.command(reader, Summon(5, "a"), Confirm(1), Reject(2))
    broker.command(writer, *contents(5))
    safe()
    broker.command(reader, Reject(3, False, True))
    broker.receive(Channel.DATA, [writer, b"x"])
    stood = figures()
    broker.command(writer, *contents(6))
    safe(False)
    broker.command(writer, *contents(7))
    broker.wait(500)
    ended = figures()
    gauges = ("sessions", "readers", "writers", "leases", "broker_subscriptions")
    assert [stood[name] for name in gauges] == [2, 1, 1, 0, 1]
    assert [ended[name] for name in gauges] == [0, 0, 0, 0, 0]
    assert (stood["broker_in_flight"], ended["broker_in_flight"]) == (1, 0)
    expected = {
        **{"requests": 6, "replies:201": 2, "replies:200": 2, "replies:202": 2},
        **{"sessions_total": 2, "flows_total": 2, "responses:200": 3, "responses:403": 1},
        **{"contents": 4, "bytes": 76, "contents_refused": 2, "confirms": 3},
        **{"dropped": 1, "dropped:frames": 1, "flows_broken": 1},
        **{"flows_silent": 1, "confirmed": 1, "rejected": 1, "recycled": 2},
        **{"broker_queues": 1, "broker_published": 3, "broker_delivered": 4, "broker_waiting": 1},
        **{"broker_acknowledged": 1, "broker_rejected": 1, "broker_returned": 2},
    }
    assert {name: ended[name] for name in expected} == expected


BOUND = "process-session-bytes"
LIMIT = 1_000_000
NAMES = [f"{number:03}" + "n" * 247 for number in range(250)]
MANY = {"resources": NAMES, "confirm": FULL}
NAMES_BYTES = sum(map(len, NAMES))


def bounded(limit: float = LIMIT, **options: object) -> tuple[Broker, SharedState]:
    shared = SharedState()
    shared.session_memory.bound(limit)
    return Broker(every=shared.session_memory, **options), shared  # type: ignore[arg-type]


def fill(broker: Broker) -> bytes:
    """A session that has as many leases of many names as it may; at least one."""
    hog = broker.session()
    broker.lease(hog, "Reader", NAMES)
    for _ in range(LIMIT // NAMES_BYTES + 2):
        code, body = broker.ask(hog, "Reader", MANY)
        if code == 403:
            assert body["reason"] == f"too many leases: {BOUND}"
            return hog
        assert code == 202
    pytest.fail("there is no bound")


def test_leases_of_all_sessions_have_one_bound_and_a_good_one_is_served__NB_02() -> None:
    """NB-02, MT-11: who keeps more than its share is refused by name; nobody else is."""
    broker, shared = bounded()
    hog = fill(broker)
    assert broker.events[-1] == machine.LimitMet(BOUND, "lease")
    assert LIMIT // 2 < shared.session_memory.nbytes <= LIMIT
    reader = broker.reader()
    writer = broker.flow("Writer")
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [b"1"]
    # Leases that nobody used have gone.
    broker.wait(31)
    assert broker.ask(hog, "Reader", MANY)[0] == 202


def test_what_a_reader_has_summoned_counts__NB_02() -> None:
    """NB-02, MT-16: what is one too many gets a 400; what was dismissed counts no more."""
    broker, shared = bounded()
    good = broker.reader("b")
    more = broker.connect(broker.lease(broker.session(), "Reader", ()))
    summons = [Summon(10 + number, name) for number, name in enumerate(NAMES[:100])]
    before = shared.session_memory.nbytes
    assert broker.command(more, *summons[:9]) == [
        Response(each.sequence, 200) for each in summons[:9]
    ]
    assert shared.session_memory.nbytes > before + 9 * len(NAMES[0])
    fill(broker)
    shared.session_memory.bound(1)
    answers = broker.command(more, *summons[9:])
    assert answers == [Response(each.sequence, 400) for each in summons[9:]]
    assert broker.events[-1] == machine.LimitMet(BOUND, "resource")
    assert broker.command(good, Dismiss(3, "b"), Summon(4, "b")) == [
        Response(3, 200),
        Response(4, 200),
    ]
    full = shared.session_memory.nbytes
    broker.command(more, *(Dismiss(200 + n, one.resource) for n, one in enumerate(summons[:9])))
    assert full - shared.session_memory.nbytes > 9 * len(NAMES[0])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["lease", "connect", "summon", "dismiss", "write", "leave", "open", "wait"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_nothing_is_kept_in_the_end__NB_02(steps: list[tuple[str, int]]) -> None:
    """NB-02: nothing stays counted, and nothing is taken off twice."""
    broker, shared = bounded(5000)
    sessions = [broker.session() for _ in range(4)]
    numbers = itertools.count(5)
    tokens: list[str] = []
    flows: list[bytes] = []
    for step, which in steps:
        name = NAMES[which % 2]
        match step:
            case "lease":
                way = "Reader" if which % 2 else "Writer"
                asked = {"resources": NAMES[:which], "confirm": FULL}
                tokens.append(str(broker.ask(sessions[which], way, asked)[1].get("lease", "")))
            case "open":
                broker.ask(sessions[which], "Open", OPEN)
                broker.ask(sessions[which], "Profile", {"profile": "queue"})
            case "wait":
                broker.wait(10.0 * which)
            case "connect" if tokens:
                flows.append(broker.shows(tokens.pop(0)))
            case "leave" if flows:
                broker.leave(flows.pop(which % len(flows)))
            case "summon" | "dismiss" | "write" if flows:
                kind = {"summon": Summon, "dismiss": Dismiss, "write": Content}[step]
                broker.command(flows[which % len(flows)], kind(next(numbers), name))
        assert shared.session_memory.nbytes >= 0
    broker.collect(broker.server.lost(broker.now))
    assert (shared.session_memory.nbytes, shared.session_memory.sessions) == (0, 0)


class OfTheProcess(ContractCase):
    case = Mtl()

    def test_the_bound_is_that_of_the_process_and_the_operator_is_told__NB_02(self) -> None:
        world = self.world(SafeSink(), process_session_bytes=1)
        client = world.join().client
        refused: list[Any] = []
        for name in NAMES[:60]:
            client.writer([name]).addErrback(refused.append)
        world.wait(1)
        self.assertIn(BOUND, refused[-1].getErrorMessage())
        self.assertEqual(world.factory.counters[f"turned_away:{BOUND}"], len(refused))
