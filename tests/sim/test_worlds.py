"""Seeded worlds in which nothing may go wrong, and planted bugs which must."""

import gc

import pytest

from tests.sim.adapters import BUGS, WORLDS
from tests.sim.broker import BROKER_BUGS, BrokerWorld
from tests.sim.micromsg2 import DURABLE_BUGS, SlowConsumer
from tests.sim.world import Violation, World
from tests.tools.measures import SHORT

SHARES = 4
"""The worlds of a protocol are tested in so many parts, which can run side by side."""

FRESH = SHARES - 1
"""The worlds of this part are others in each run, unless ``--same``; those of the others never."""


LATE = {
    "first-come-first-served": 181,
    "memory-stays-entered": 52,
    "micromsg2-lost-with-their-consumer": 74,
    "mtl-not-safe-is-confirmed": 66,
    "mtl-what-follows-lost-content-is-taken": 142,
    "mtl-what-was-behind-a-reject-is-sent-again": 142,
}
"""Planted bug → the world which showed it first, and is tried first; the others come after it."""


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("protocol", sorted(WORLDS))
def test_nothing_acknowledged_is_lost_in_any_world(protocol, share, request):
    """NB-01, NB-06, LJ-07, LJ-11, LJ-13, LJ-14, LJ-15, LJ-18, LJ-20: under faults.

    Raise the number with ``--long`` or ``--worlds``; ``--seed`` repeats the fresh worlds of another
    run.
    """
    worlds = request.config.getoption("--worlds")
    first = (request.config.getoption("--seed") or 0) if share == FRESH else 0
    for seed in range(first + share, first + worlds, SHARES):
        try:
            World(seed, WORLDS[protocol]()).run()
        except Violation as violation:
            again = f"python -m tests.sim --protocol {protocol} --seed {seed}"
            pytest.fail(f"{again}: {violation}")


@pytest.fixture(scope="module")
def little_garbage():
    """Look through what these tests leave, and not through what was there before: that takes a
    second each time.
    """
    gc.freeze()


@pytest.fixture
def own_errors(little_garbage):
    """Collect what a broken world leaves: its errors are not logged in another test's world."""
    yield
    gc.collect()


@pytest.mark.usefixtures("own_errors")
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug):
    """It is caught by a world which every run has, in the short form as well."""
    protocol, plant = BUGS[bug]
    worlds, late = SHORT["worlds"], LATE.get(bug, 0)
    always = [seed for seed in (*range(late, worlds), *range(late)) if seed % SHARES != FRESH]
    for seed in always:
        with plant():
            try:
                World(seed, WORLDS[protocol]()).run()
            except Violation:
                return
    pytest.fail(f"{bug} was not caught in {len(always)} worlds")


CRASHING = {"crash": 0.05, "events": 12, "fault_seconds": 8.0, "io_error": 0.0, "no_room": 0.0}
"""The options of worlds in which messages wait in a durable queue while the gateway crashes."""
UNREADABLE = CRASHING | {"read_error": 0.2}
"""The same, and some files cannot be read for some seconds."""


@pytest.mark.parametrize("options", [CRASHING, UNREADABLE])
def test_16_what_waits_for_a_slow_consumer_outlives_the_gateway(options):
    """RD-50: also where files cannot be read for a while."""
    for seed in range(10):
        World(seed, SlowConsumer(), **options).run()


@pytest.mark.usefixtures("own_errors")
@pytest.mark.parametrize("bug", sorted(DURABLE_BUGS))
def test_16_a_bug_planted_in_the_durable_half_is_caught(bug):
    for seed in range(10):
        with DURABLE_BUGS[bug]():
            try:
                World(seed, SlowConsumer(), **UNREADABLE).run()
            except Violation:
                return
    pytest.fail(f"{bug} was not caught")


@pytest.mark.parametrize("protocol", ["lumberjack", "mixed"])
def test_a_seed_replays_to_the_byte(protocol):
    first, second = (World(11, WORLDS[protocol]()).run() for _ in range(2))
    assert first.consumer.rows() == second.consumer.rows()
    assert first.clock.now == second.clock.now
    assert [first.disk.bytes_of(path) for path in first.disk.paths()] == [
        second.disk.bytes_of(path) for path in second.disk.paths()
    ]


# ── The broker ────────────────────────────────────────────────────────────────────────────────────


BROKER_PART = 0.4
"""This part of ``--worlds`` is run, half of them with other seeds where the run has one."""

BUG_SEEDS_MAX = 600
"""A planted bug must show within this many worlds."""


@pytest.mark.parametrize("share", range(2))
def test_a_broker_is_a_list_for_each_queue_whatever_happens(
    share: int, request: pytest.FixtureRequest
) -> None:
    """BK-01, BK-02, BK-06, BK-07: with crashes at any moment.

    Raise the number with ``--worlds``; ``--seed`` repeats the fresh worlds of another run.
    """
    first = (request.config.getoption("--seed") or 0) if share else 0
    worlds = int(request.config.getoption("--worlds") * BROKER_PART)
    for seed in range(first + share, first + worlds, 2):
        world = BrokerWorld(seed)
        try:
            world.run()
        except Violation as violation:
            told = "\n".join(world.told)
            again = f"python -m tests.sim --protocol broker --seed {seed}"
            pytest.fail(f"{again}: {violation}\n{world.options}\n{told}")


@pytest.mark.parametrize("bug", sorted(BROKER_BUGS))
def test_a_planted_bug_of_the_broker_is_caught(bug: str) -> None:
    for seed in range(BUG_SEEDS_MAX):
        with BROKER_BUGS[bug]():
            try:
                BrokerWorld(seed).run()
            except Violation:
                return
    pytest.fail(f"{bug} was not caught in {BUG_SEEDS_MAX} worlds")


def test_a_seed_of_the_broker_replays() -> None:
    first, second = (BrokerWorld(7).run() for _ in range(2))
    assert first.told == second.told
    assert first.watched.broker.store.snapshot() == second.watched.broker.store.snapshot()
