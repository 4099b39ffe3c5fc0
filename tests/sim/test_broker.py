"""Seeded worlds of the broker in which nothing may go wrong, and planted bugs which must."""

from __future__ import annotations

import pytest

from tests.sim.broker import BROKER_BUGS, BrokerWorld
from tests.sim.world import Violation

WORLDS = 0.4
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
    worlds = int(request.config.getoption("--worlds") * WORLDS)
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
