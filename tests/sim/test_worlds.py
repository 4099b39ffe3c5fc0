"""Seeded worlds in which nothing may go wrong, and planted bugs which must."""

import pytest

from tests.sim.adapters import ADAPTERS, BUGS
from tests.sim.world import Violation, World

SHARES = 4
"""The worlds of a protocol are tested in so many parts, which can run side by side."""

BUG_SEEDS_MAX = 400
"""A planted bug must show within so many worlds."""


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("protocol", sorted(ADAPTERS))
def test_nothing_acknowledged_is_lost_in_any_world(protocol, share, request):
    """LJ-07, LJ-11, LJ-13, LJ-14, LJ-15, LJ-18, LJ-20: under cuts, crashes and broken disks.

    Raise the number with ``--worlds``; replay a seed with ``python -m tests.sim --seed N``.
    """
    worlds = request.config.getoption("--worlds")
    for seed in range(share, worlds, SHARES):
        try:
            World(seed, ADAPTERS[protocol]()).run()
        except Violation as violation:
            pytest.fail(f"{protocol}, seed {seed}: {violation}")


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug):
    """A world which does not catch it proves nothing."""
    protocol, plant = BUGS[bug]
    for seed in range(BUG_SEEDS_MAX):
        with plant():
            try:
                World(seed, ADAPTERS[protocol]()).run()
            except Violation:
                return
    pytest.fail(f"{bug} was not caught in {BUG_SEEDS_MAX} worlds")


def test_a_seed_replays_to_the_octet():
    first, second = (World(11, ADAPTERS["lumberjack"]()).run() for _ in range(2))
    assert first.consumer.rows() == second.consumer.rows()
    assert first.clock.now == second.clock.now
    assert [first.disk.octets_of(path) for path in first.disk.paths()] == [
        second.disk.octets_of(path) for path in second.disk.paths()
    ]
