"""What unfinished messages of all connections take together has one bound (NB-02)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import zmq
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from tests.mtl.cases import HeldSink, MtlCase, run, until
from tests.mtl.endless import until_cut_off
from tests.mtl.plain import Plain
from tests.mtl.test_unfinished import FRAME, MESSAGES, World, needs_linux
from twisted_msgproto.mtl.zeromq.allocated import AGAIN_SECONDS, WORK_OCTETS, Allocated
from twisted_msgproto.mtl.zeromq.descriptors import shut_down
from twisted_msgproto.mtl.zeromq.together import (
    ALLOWED_OCTETS,
    BUFFER_OCTETS,
    CONNECTION_OCTETS,
    FRAME_TIMES,
    FREED_SECONDS,
    FREEING_SECONDS,
    HURRY_SECONDS,
    LEFT_SECONDS,
    LITTLE_OCTETS,
    LOOK_SECONDS,
    WEIGHED_PER_TURN,
    Rank,
    Together,
    Weight,
)
from twisted_msgproto.mtl.zeromq.unfinished import Octets
from twisted_msgproto.net import OctetBudget
from twisted_msgproto.net.ledger import MIN_RATE
from twisted_msgproto.net.memory import FEW_OCTETS

MEBI = 1 << 20
LIMIT = 256 * MEBI


class Router:
    """A ROUTER whose connections weigh what the test says."""

    def __init__(self, **weights: Weight) -> None:
        self.weights: list[Weight | None] = list(weights.values())
        self.names = list(weights)
        self.cut: list[str] = []
        self.unseen = 0
        self.weighed = 0

    @property
    def connections(self) -> int:
        return len(self.weights)

    def descriptors(self) -> list[int]:
        return list(range(len(self.weights)))

    def weigh(self, descriptor: int) -> Weight | None:
        self.weighed += 1
        return self.weights[descriptor]

    def make_room(self, descriptor: int, octets: int) -> None:
        assert self.weights[descriptor] is not None
        self.weights[descriptor] = None
        self.cut.append(self.names[descriptor])


class Bounded:
    """Routers of one process, and what it has allocated beside what their connections cost."""

    def __init__(self, *routers: Router) -> None:
        self.clock = Clock()
        self.budget = OctetBudget()
        self.budget.bound(LIMIT, LIMIT, 1.0, self.clock)
        self.routers = routers
        self.together = Together.of(self.budget, self.clock)
        for router in routers:
            self.together.add(router)
        self.clock.advance(1.0)

    def look(self, mebi: float) -> list[str]:
        """Look when so many MiB are allocated: who was cut off."""
        connections = sum(router.connections for router in self.routers)
        allocated = int(mebi * MEBI) + connections * CONNECTION_OCTETS
        self.budget.allocated = lambda: allocated
        self.clock.advance(LOOK_SECONDS)
        self.together.look()
        for router in self.routers:
            router.cut, cut = [], router.cut
            if cut:
                return cut
        return []


def stranger(most: float, honest: float = 0) -> Weight:
    return Weight(Rank.STRANGER, 1, int(most * MEBI), int(honest * MEBI))


def stands(most: float, honest: float = 0) -> Weight:
    return Weight(Rank.STANDS, 2, int(most * MEBI), int(honest * MEBI))


def heard(most: float, honest: float = 0) -> Weight:
    return Weight(Rank.HEARD, 3, int(most * MEBI), int(honest * MEBI))


def begun(mebi: float, late: float = 0, rank: Rank = Rank.STANDS, coming: float = 0) -> Weight:
    """A large message that has begun, in one frame: it costs what it has."""
    octets = int(mebi * MEBI)
    return Weight(rank, octets, octets, octets, octets, late, coming * MEBI)


class Case(NamedTuple):
    """Who holds something, what is allocated in MiB, what the ledger holds, and who is cut off."""

    weights: dict[str, Weight]
    allocated: float
    cut: list[str]
    held: float = 0
    unseen: float = 0


CASES = {
    "there is no more than may be": Case({"a": stranger(999)}, 256, []),
    "there is more than may be": Case({"a": stranger(999)}, 257, ["a"]),
    "what others hold counts": Case({"a": stranger(999)}, 157, ["a"], held=100),
    "what others hold counts up to the limit": Case({"a": stranger(999)}, 156, [], held=100),
    "some is allowed in any case": Case({"a": stranger(999)}, 64, [], held=256),
    "some is allowed in any case, and no more": Case({"a": stranger(999)}, 65, ["a"], held=256),
    "honest peers explain it": Case({"a": stands(999, 8), "b": stands(999, 16)}, 280, []),
    "honest peers do not explain all": Case({"a": stands(999, 8), "b": heard(1, 16)}, 281, ["a"]),
    "peers of ipc may explain it": Case({"a": stranger(999)}, 300, [], unseen=44),
    "nobody has begun anything": Case({}, 900, []),
    "only strangers are cut off for what nobody of these can hold": Case(
        {"a": heard(10), "b": stranger(1), "c": stranger(1), "d": stands(31)}, 300, ["b", "c"]
    ),
    "those who have can hold so much": Case({"a": stranger(10), "b": stands(34)}, 300, ["a", "b"]),
    "who may hold most is first": Case(
        {"a": stranger(100), "b": stranger(300), "c": stranger(200)}, 300, ["b"]
    ),
    "until the rest fits": Case(
        {"a": stranger(200), "b": stranger(200), "c": stranger(200), "d": stranger(200)},
        512,
        ["a", "b"],
    ),
    "strangers are first": Case(
        {"a": heard(400), "b": stands(400), "c": stranger(1), "d": stranger(100)},
        300,
        ["d", "c", "b"],
    ),
    "honest octets have a bound": Case(
        {"a": begun(100, 1), "b": begun(100, 2), "c": begun(100, 0), "d": begun(100, 1.5)},
        400,
        ["b", "d"],
    ),
    "up to it nobody is cut off": Case({"a": begun(156, 9), "b": begun(100, 9)}, 256, []),
    "what comes until the next look counts": Case(
        {"a": begun(100, coming=30), "b": begun(80, 1, coming=30), "c": begun(77)}, 257, ["b"]
    ),
    "what comes until the next look may be held": Case(
        {"a": begun(100, coming=30), "b": begun(80, 1, coming=30), "c": begun(16)}, 257, []
    ),
    "what others hold counts, too": Case(
        {"a": begun(100, 1), "b": begun(100, 2)}, 201, ["b"], held=100
    ),
    "of those who are as late the largest is first": Case(
        {"a": begun(100), "b": begun(101), "c": begun(56)}, 257, ["b"]
    ),
    "strangers are cut off first, however late others are": Case(
        {"a": begun(200, 9), "b": begun(100, 0, Rank.STRANGER)}, 300, ["b"]
    ),
    "who has begun nothing is not cut off for it": Case(
        {"a": stands(999, 999), "b": begun(256), "c": begun(1, 1)}, 257, ["c"]
    ),
    "who was heard is last": Case({"a": heard(400), "b": stands(1)}, 300, ["b", "a"]),
}


@pytest.mark.parametrize("name", CASES)
def test_who_is_cut_off(name: str) -> None:
    """NB-02"""
    case = CASES[name]
    router = Router(**case.weights)
    router.unseen = int(case.unseen * MEBI)
    bounded = Bounded(router)
    bounded.budget.held.held = int(case.held * MEBI)
    assert bounded.look(case.allocated) == case.cut
    assert bounded.clock.getDelayedCalls() == []


def test_what_was_cut_off_may_not_be_free_at_the_next_look() -> None:
    """NB-02: it is left out of the account, except that of strangers."""
    names = "abcdefg"
    router = Router(**{name: stands(400) for name in names})
    bounded = Bounded(router)
    # Each of seven is taken to hold 43 MiB, and each of six 50.
    assert bounded.look(301) == ["a", "b"]
    assert bounded.look(301) == []
    assert bounded.look(301) == ["c"]
    assert bounded.look(350) == ["d"]
    router.weights += [stranger(400)]
    router.names += ["x"]
    assert bounded.look(300) == ["x"]
    assert bounded.look(256) == []
    assert bounded.look(300) == ["e"]


def test_what_connections_held_that_were_cut_off_is_returned_to_the_system() -> None:
    """NB-02: whenever libzmq has freed some; pieces of it would stay with the process for ever."""
    bounded = Bounded(Router(a=stranger(400), b=begun(300)))
    returned: list[int] = []
    bounded.budget.release = lambda: returned.append(1)
    assert bounded.look(800) == ["a", "b"]
    assert returned == []
    for allocated, count in ((800, 0), (500, 1), (500, 1), (200, 2), (210, 2), (100, 3), (100, 3)):
        assert bounded.look(allocated) == []
        assert len(returned) == count
    # Later it is honest traffic that frees memory, and needs it again.
    bounded.clock.advance(FREEING_SECONDS)
    bounded.look(90)
    assert len(returned) == 3


def test_nothing_is_returned_to_the_system_where_nobody_knows_what_was_freed() -> None:
    """NB-02"""
    bounded = Bounded(Router(a=stranger(400)))
    bounded.budget.release = lambda: pytest.fail("nothing is known to be free")
    assert bounded.look(800) == ["a"]
    bounded.budget.allocated = lambda: None
    bounded.clock.advance(LOOK_SECONDS)
    bounded.together.look()


def test_newcomers_are_turned_away_while_what_was_left_behind_is_too_much() -> None:
    """NB-02: whole messages of who was cut off wait to be read, and others would send more."""
    router = Router(a=stands(10), b=stranger(10))
    bounded = Bounded(router)
    bounded.look(200)
    assert not bounded.together.full
    assert bounded.look(400) == ["b"]
    assert bounded.together.full
    bounded.clock.advance(0.8)
    assert bounded.together.full
    bounded.clock.advance(0.3)
    assert not bounded.together.full
    bounded.look(400)
    assert bounded.together.full
    # After a minute it is taken to be somebody else's.
    bounded.clock.advance(LEFT_SECONDS)
    bounded.look(400)
    assert not bounded.together.full


def test_nobody_is_turned_away_for_what_nobody_has_left_behind() -> None:
    """NB-02: an operator's own sink may have threads that hold as much as they like."""
    bounded = Bounded(Router(a=stands(10)))
    assert bounded.look(4000) == []
    assert not bounded.together.full


def test_nothing_is_weighed_before_there_is_too_much() -> None:
    """NB-02: what libzmq takes of a connection does not count."""
    router = Router(**{f"c{number}": stranger(1) for number in range(5000)})
    bounded = Bounded(router)
    assert bounded.look(256) == []
    assert router.weighed == 0
    # Nobody tells: another C library, or another program's process.
    bounded.budget.allocated = lambda: None
    bounded.clock.advance(1)
    bounded.together.look()
    assert router.weighed == 0


class Asked:
    """What there is in octets, what other threads have worked in seconds, and who was asked."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.exact: int | None = 0
        self.all: int | None = None
        self.worked: float | None = None
        self.asked: list[str] = []
        budget = OctetBudget()
        budget.allocated, budget.allocated_at_most = self._exact, self._all
        budget.worked = lambda: self.worked
        self.allocated = Allocated(budget, self.clock)

    def _exact(self) -> int | None:
        self.asked.append("exact")
        return self.exact

    def _all(self) -> int | None:
        self.asked.append("all")
        return self.all

    def at_most(self, enough: float) -> tuple[float | None, list[str]]:
        """The answer, and which questions it needed."""
        self.asked.clear()
        return self.allocated.at_most(enough), list(self.asked)


def test_what_libzmq_has_is_found_out_only_where_all_threads_may_have_too_much__NB_02() -> None:
    asked = Asked()
    assert asked.at_most(100) == (0, ["all", "exact"])
    # What all threads have is not asked again at once: both questions walk over free pieces.
    asked.all, asked.exact = 100, 101
    assert asked.at_most(100) == (101, ["exact"])
    asked.clock.advance(AGAIN_SECONDS)
    assert asked.at_most(100) == (100, ["all"])
    assert asked.at_most(100) == (100, ["all"])
    assert asked.at_most(99) == (101, ["all", "exact"])
    asked.exact = None
    assert asked.at_most(100) == (None, ["exact"])


def test_threads_that_have_hardly_worked_have_hardly_allocated_anything__NB_02() -> None:
    asked = Asked()
    asked.worked, asked.all = 10.0, 1000
    second = WORK_OCTETS
    assert asked.at_most(second) == (1000, ["all"])
    asked.worked = 10.5
    assert asked.at_most(second) == (1000 + second / 2, [])
    asked.worked, asked.exact, asked.all = 11.0, 7000, 2 * second
    # An exact answer may leave out what is counted as soon as there is more of it.
    assert asked.at_most(second) == (7000, ["all", "exact"])
    assert asked.at_most(second) == (7000 + FEW_OCTETS, [])
    asked.worked = 11.5
    assert asked.at_most(second) == (7000 + FEW_OCTETS + second / 2, [])
    asked.worked = 12.0
    assert asked.at_most(second) == (7000, ["exact"])
    # An answer of nobody is none.
    asked.exact = None
    assert asked.at_most(0) == (None, ["exact"])
    assert asked.at_most(2 * second - 1) == (None, ["exact"])


def test_what_is_asked_about_libzmq_is_enough_to_see_too_much__NB_02() -> None:
    """Below that nobody is asked anew, and what libzmq has is called little where it is known."""
    bounded = Bounded(Router(a=stranger(999)))
    together, expected = bounded.together, CONNECTION_OCTETS
    told = {"worked": 0.0, "allocated": 0}
    bounded.budget.worked = lambda: told["worked"]
    bounded.budget.allocated_at_most = lambda: expected

    def look(worked: float) -> bool | None:
        bounded.clock.advance(LOOK_SECONDS)
        told["worked"] = worked
        bounded.budget.allocated = lambda: expected + LIMIT + 1
        together.look()
        return together.little

    assert look(1.0) is True
    bounded.budget.allocated_at_most = lambda: None
    assert look(1.0 + LITTLE_OCTETS / WORK_OCTETS) is True
    assert look(1.0 + (LITTLE_OCTETS + 1) / WORK_OCTETS) is None
    assert look(1.0 + LIMIT / WORK_OCTETS) is None
    assert bounded.routers[0].cut == []
    assert look(1.0 + (LIMIT + 1) / WORK_OCTETS) is False
    assert bounded.routers[0].cut == ["a"]


def test_while_libzmq_frees_what_was_cut_off_it_is_measured_whoever_else_has_little__NB_02() -> (
    None
):
    bounded = Bounded(Router(a=stranger(400)))
    returned: list[int] = []
    bounded.budget.release = lambda: returned.append(1)
    bounded.budget.allocated_at_most = lambda: None
    assert bounded.look(800) == ["a"]
    bounded.budget.allocated_at_most = lambda: 0
    bounded.look(500)
    assert returned == [1]
    bounded.clock.advance(FREEING_SECONDS)
    bounded.look(200)
    assert bounded.together.little
    assert returned == [1]


def test_thousands_are_weighed_in_turns_and_all_routers_are_one() -> None:
    """NB-02, NB-07: however many others there are, who holds most is found in a look."""
    idle, busy = Router(), Router(a=stranger(50), b=stranger(400))
    idle.weights = [None] * 9999
    bounded = Bounded(idle, busy)
    assert bounded.look(300) == []
    assert idle.weighed + busy.weighed == WEIGHED_PER_TURN
    # It is under way already.
    bounded.together.look()
    assert len(bounded.clock.getDelayedCalls()) == 1
    later: list[float] = []
    call_later = bounded.clock.callLater
    bounded.clock.callLater = lambda delay, *what: later.append(delay) or call_later(delay, *what)  # type: ignore
    bounded.clock.advance(0)
    assert later == [0] * 9
    assert (busy.cut, idle.weighed + busy.weighed) == (["b"], 10_001)
    assert bounded.clock.getDelayedCalls() == []


def test_servers_of_a_process_measure_once_a_look() -> None:
    """NB-02: each ROUTER asks, ten times a second."""
    bounded = Bounded(Router(a=stranger(999)))
    assert Together.of(bounded.budget, bounded.clock) is bounded.together
    asked: list[int] = []
    bounded.budget.allocated = lambda: asked.append(1)  # type: ignore[func-returns-value]
    for _ in range(10):
        bounded.clock.advance(LOOK_SECONDS / 10)
        bounded.together.look()
    bounded.clock.advance(LOOK_SECONDS)
    bounded.together.look()
    assert len(asked) == 3


def test_the_last_router_ends_what_is_under_way() -> None:
    """NB-02: no timer is left, and no router without connections is weighed."""
    router, other = Router(), Router()
    router.weights = [None] * 2000
    bounded = Bounded(router, other)
    bounded.look(300)
    assert len(bounded.clock.getDelayedCalls()) == 1
    bounded.together.remove(router)
    bounded.together.remove(router)
    assert len(bounded.clock.getDelayedCalls()) == 1
    bounded.together.remove(other)
    assert bounded.clock.getDelayedCalls() == []


# ── what a connection weighs ────────────────────────────────────────────────────────────────────


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def weigh(world: World, descriptor: int) -> Weight | None:
    assert descriptor in world.unfinished.descriptors()
    return world.unfinished.weigh(descriptor)


def test_what_a_connection_may_hold(world: World) -> None:
    """NB-02: of what came since its last whole message and was taken by libzmq."""
    descriptor = world.join()
    assert weigh(world, descriptor) is None
    world.octets[descriptor] = Octets(5000, 0, 0, 3)
    most = 5000 * FRAME_TIMES + 3 * BUFFER_OCTETS
    assert weigh(world, descriptor) == Weight(Rank.STRANGER, 5000, most, 5000)
    world.unfinished.named(b"a", descriptor)
    world.read(b"a")
    # Some of the next one may be there already.
    assert weigh(world, descriptor) == Weight(Rank.HEARD, 5000, most, 10_000)
    assert weigh(world, descriptor) is None
    world.octets[descriptor] = Octets(7000, 0, 0, 4)
    most = 2000 * FRAME_TIMES + BUFFER_OCTETS
    # Nobody sees how much of it is the beginning of a large frame.
    assert weigh(world, descriptor) == Weight(Rank.STANDS, 2000, most, 2000 + FRAME)
    world.waiting[descriptor] = 1500
    weight = weigh(world, descriptor)
    assert weight is not None
    assert weight.octets == 500
    world.waiting[descriptor] = 2000
    assert weigh(world, descriptor) is None


def test_what_an_honest_peer_may_hold_while_reading_is_paused(world: World) -> None:
    """NB-02, MT-27: each of its whole messages may keep what it was read into."""
    descriptor = world.join()
    world.octets[descriptor] = Octets(5000, 0, 0, 3)
    world.unfinished._paused = lambda: True
    weight = weigh(world, descriptor)
    assert weight is not None
    assert weight.honest == 5000 + (MESSAGES + 2) * BUFFER_OCTETS


def test_what_is_of_a_message_that_is_not_complete_for_certain(world: World) -> None:
    """NB-02: all that came, once everything complete was read; and how late its sender is."""
    descriptor = world.join()
    world.unfinished.named(b"a", descriptor)

    def weighed(octets: int) -> tuple[int, float]:
        world.octets[descriptor] = Octets(octets, 0, 0, 0)
        weight = weigh(world, descriptor)
        assert weight is not None
        return weight.begun, weight.late

    world.read(b"a")
    assert weighed(5000) == (0, 0)
    assert weighed(7000) == (0, 0)
    assert world.reads == 1
    # The ROUTER was not read meanwhile, so the message may be complete.
    world.clock.advance(1)
    assert weighed(8000) == (0, 0)
    assert world.reads == 1
    world.unfinished.read_to_end()
    assert weighed(8000) == (3000, pytest.approx(1 - 1000 / MIN_RATE))
    world.unfinished.read_to_end()
    world.clock.advance(1)
    assert weighed(9000) == (4000, pytest.approx(2 - 2000 / MIN_RATE))
    # Being ahead does not count: who is fast first and stops then is late as soon.
    world.unfinished.read_to_end()
    assert weighed(9000 + 10 * MIN_RATE) == (4000 + 10 * MIN_RATE, 0)
    world.unfinished.read_to_end()
    world.clock.advance(1)
    assert weighed(9000 + 10 * MIN_RATE) == (4000 + 10 * MIN_RATE, 1)
    # While it is not read, complete messages wait.
    world.unfinished._paused = lambda: True
    assert weighed(9000 + 10 * MIN_RATE) == (0, 0)
    world.unfinished._paused = lambda: False
    assert weighed(9000 + 10 * MIN_RATE) == (0, 0)
    world.unfinished.read_to_end()
    assert weighed(9000 + 10 * MIN_RATE) == (4000 + 10 * MIN_RATE, 0)
    world.read(b"a")
    world.unfinished.read_to_end()
    assert weighed(10_000 + 10 * MIN_RATE) == (0, 0)


def test_how_much_comes_of_a_message_until_others_were_freed(world: World) -> None:
    """NB-02: as fast as it grew since the last look, however long ago that was."""
    descriptor = world.join()
    world.unfinished.named(b"a", descriptor)

    def coming(octets: int, seconds: float) -> float:
        world.clock.advance(seconds)
        world.unfinished.read_to_end()
        world.octets[descriptor] = Octets(octets, 0, 0, 0)
        weight = weigh(world, descriptor)
        assert weight is not None
        return weight.coming

    world.read(b"a")
    assert coming(1000, 0) == 0
    assert coming(9000, 0) == 0
    looks = FREED_SECONDS / LOOK_SECONDS
    assert coming(9500, LOOK_SECONDS) == pytest.approx(500 * looks)
    assert coming(11_500, 2 * LOOK_SECONDS) == pytest.approx(1000 * looks)
    # Two looks may be nearer to one another; what comes of a sudden is not taken for a rate.
    assert coming(11_600, HURRY_SECONDS / 2) == pytest.approx(100 * FREED_SECONDS / HURRY_SECONDS)
    assert coming(11_600, LOOK_SECONDS) == 0
    # No honest message is larger than this, however fast it grows.
    largest = world.unfinished.largest
    assert coming(1000 + largest - 50, LOOK_SECONDS) == 50
    assert coming(1000 + largest + 500, LOOK_SECONDS) == 0


def test_while_there_is_too_much_it_looks_more_often_unless_that_takes_too_long__NB_02() -> None:
    router = Router(a=heard(1))
    bounded = Bounded(router)
    bounded.budget.allocated_at_most = lambda: None
    assert bounded.together.interval == LOOK_SECONDS
    for mebi, connections, interval in (
        (257, 1, HURRY_SECONDS),
        (256, 1, LOOK_SECONDS),
        (257, 1000, HURRY_SECONDS),
        (257, 2000, 2 * HURRY_SECONDS),
        (257, 2500, LOOK_SECONDS),
        (257, 9999, LOOK_SECONDS),
        (0, 1000, LOOK_SECONDS),
    ):
        router.weights = [None] * connections
        bounded.look(mebi)
        bounded.clock.pump([0] * 10)
        assert bounded.together.interval == interval, (mebi, connections)
    # What is asked sooner than half of the interval is answered by the look before.
    router.weights = [None]
    bounded.look(257)
    weighed = router.weighed
    for part, more in ((0.4, 0), (0.2, 1), (0.4, 1), (0.2, 2)):
        bounded.clock.advance(part * HURRY_SECONDS)
        bounded.together.look()
        assert router.weighed == weighed + more


def test_the_next_look_comes_when_it_is_due__NB_02() -> None:
    class Hurried:
        full = False
        little = None
        min_rate = MIN_RATE
        looks = 0
        interval = LOOK_SECONDS

        def add(self, router: Any) -> None:
            """Bound it."""

        remove = add

        def look(self) -> None:
            self.looks += 1
            self.interval = HURRY_SECONDS

    together: Any = Hurried()
    world = World(together)
    world.join()
    for seconds in (LOOK_SECONDS, HURRY_SECONDS, HURRY_SECONDS):
        before = together.looks
        world.clock.advance(seconds - 0.001)
        assert together.looks == before
        world.clock.advance(0.001)
        assert together.looks == before + 1
    # It may end itself by what it finds.
    together.look = world.unfinished.shutdown
    world.clock.advance(HURRY_SECONDS)
    world.close()


def test_what_waited_in_the_kernel_at_the_mark_counts_when_libzmq_takes_it(world: World) -> None:
    """NB-02: nobody hides 2 MiB, which may be 64 MiB in libzmq, behind a whole message."""
    descriptor = world.join()
    world.unfinished.named(b"a", descriptor)
    world.octets[descriptor] = Octets(90_000, 0, 0, 0)
    world.waiting[descriptor] = 80_000
    world.read(b"a")
    weight = weigh(world, descriptor)
    assert weight is not None
    assert weight.octets == 10_000
    assert weigh(world, descriptor) is None
    world.octets[descriptor] = Octets(95_000, 0, 0, 0)
    world.waiting[descriptor] = 5_000
    weight = weigh(world, descriptor)
    assert weight is not None
    assert weight.octets == 80_000


def test_who_sent_a_message_of_too_many_frames_is_a_stranger_for_good(world: World) -> None:
    """NB-02: of up to 34 such messages that wait whole, nobody knows how much was read."""
    descriptor = world.join()
    world.unfinished.named(b"a", descriptor)
    world.octets[descriptor] = Octets(1000, 0, 0, 0)
    world.read(b"a")
    world.look()
    world.unfinished.too_many_frames(b"a")
    world.octets[descriptor] = Octets(9000, 0, 0, 0)
    for _ in range(3):
        world.read(b"a")
        world.look()
        expected = Weight(Rank.STRANGER, 8000, 8000 * FRAME_TIMES, 0)
        assert weigh(world, descriptor) == expected
        world.unfinished.too_many_frames(b"a")
    world.unfinished.too_many_frames(b"gone")


def test_heartbeats_are_nothing_unfinished(world: World) -> None:
    """NB-02"""
    descriptor = world.join()
    world.clock.advance(100)
    world.came(descriptor, 900, 700, 100)
    assert weigh(world, descriptor) is None


def test_who_has_gone_weighs_nothing(world: World) -> None:
    """NB-02: and what the system does not tell."""
    descriptor = world.join()
    world.octets[descriptor] = None
    assert weigh(world, descriptor) is None
    world.looked.clear()
    assert world.unfinished.weigh(99_999) is None
    world.unfinished.make_room(99_999, 1)
    assert (world.told, world.looked) == ([], [])


@needs_linux
def test_what_waits_in_the_kernel_of_who_is_cut_off_is_thrown_away() -> None:
    """NB-02: libzmq would read on for up to 2 MiB, which may cost 64 MiB each, from all who were
    cut off, while they connect again; but never what follows a gap.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
        with near, far:
            near.setblocking(False)
            sent = 0
            while True:
                try:
                    sent += near.send(bytes(65_536))
                except BlockingIOError:
                    break
            assert far.recv(1000) == bytes(1000)
            assert shut_down(far.fileno(), near.getsockname(), at_once=True)
            far.settimeout(10)
            assert far.recv(1000) == b""


# ── on real sockets ─────────────────────────────────────────────────────────────────────────────


@needs_linux
class OnSockets(MtlCase):
    """A budget that says that too much is allocated while a hostile client is connected."""

    timeout = 60

    @run
    async def test_a_hostile_client_is_cut_off_and_an_honest_one_is_not(self) -> None:
        """NB-02: at a fraction of what it may send of one message."""
        budget = OctetBudget()
        sink = HeldSink()
        factory = self.server(sink, budget=budget, limits={"process-held-octets": ALLOWED_OCTETS})
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        port = int(factory.addresses[1].rpartition(":")[2])
        router = factory._data.unfinished
        stood = router.connections

        def allocated() -> int:
            """As libzmq has it: 21 times what comes in tiny frames."""
            came = sum((router.weigh(one) or NO_WEIGHT).octets for one in router.descriptors())
            return 21 * came + CONNECTION_OCTETS * factory.snapshot()["connections"]

        budget.allocated = allocated
        with capturedLogs() as logged:
            for _ in range(2):
                endless = deferToThread(until_cut_off, "127.0.0.1", port, 1)
                while not endless.called:
                    await writer.sendMany("a", [bytes(100_000), b"x"])
                await endless
            await until(lambda: factory.counters["faults"] >= 2)
        told = "fault:endless-message", "limit:process-held-octets", "faults"
        self.assertEqual([factory.counters[name] for name in told], [2, 2, 2])
        lines = [formatEvent(event) for event in logged]
        lines = [line for line in lines if "127.0.0.1: cut off: " in line]
        self.assertTrue(lines[0].endswith(f"(process-held-octets is {ALLOWED_OCTETS})"), lines)
        await until(lambda: router.connections == stood)
        await writer.send("a", b"y")
        self.assertEqual(sink.bodies[-1], b"y")

    @run
    async def test_who_sends_a_message_of_too_many_frames_is_remembered(self) -> None:
        """NB-02: nothing of it is kept, and whoever sends whole ones of ours is not meant."""
        factory = self.server(HeldSink())
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        router = factory._data.unfinished
        with Plain(factory.addresses[0]) as plain:
            dealer = plain._socket(zmq.DEALER)
            dealer.connect(factory.addresses[1])
            read = router._read
            dealer.send_multipart([b"x"] * 8)
            dealer.send_multipart([b"x"] * 9)
            await until(lambda: router._read >= read + 2)
        self.assertEqual([seen.many is None for seen in router._seen.values()].count(False), 1)

    @run
    async def test_newcomers_are_turned_away_and_others_are_served(self) -> None:
        """NB-02: with a line that names the option; they connect again by themselves."""
        sink = HeldSink()
        factory = self.server(sink)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        full = True
        self.patch(Together, "full", property(lambda self: full))
        other = self.client(factory.addresses[0])
        opened = other.open("host")
        await until(lambda: factory.counters["turned_away:process-held-octets"] >= 1)
        await writer.send("a", b"x")
        full = False
        await opened
        self.assertEqual(sink.bodies, [b"x"])


NO_WEIGHT = Weight(Rank.STRANGER, 0, 0, 0)
