"""State machines in which nothing may go wrong, and planted bugs which must.

Planted bugs of queue and bridge that need certain steps in a row: the model must see each.
"""

from __future__ import annotations

import errno

import pytest

from tests.states.bugs import BUGS, releases_before_it_commits, start_believes_a_sync
from tests.states.landing import Site
from tests.states.pairs import Wrong
from tests.states.running import STATES, run
from tests.tools.measures import SHORT

PLANTED_TIMES = 20
"""A planted bug has this many times the examples of the short form: its first one ends them."""

COSTS = {"bridge": 2}
"""An example of this state machine costs as much as so many of another."""


@pytest.mark.parametrize("name", sorted(STATES))
def test_nothing_goes_wrong_whatever_happens_to_both_sides(
    name: str, request: pytest.FixtureRequest
) -> None:
    """LJ-06, LJ-09, LJ-11, LJ-13, MM-13, MM-19, MM-21, SA-16, UM-09, MT-19, MT-20, NB-06.

    The examples are others in each run, and the same with ``--same``; ``--states`` sets how many.
    """
    examples = request.config.getoption("--states") // COSTS.get(name, 1)
    run(name, examples, fresh=request.config.getoption("--seed"))


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug: str) -> None:
    """It is caught by an example that is always the same, and ends the run."""
    name, plant = BUGS[bug]
    with plant(), pytest.raises(AssertionError):
        run(name, PLANTED_TIMES * SHORT["states"], shrink=False)


def started(segment_bytes: int = 600) -> Site:
    site = Site(segment_bytes, rows_max=1000)
    site.start_gateway()
    site.start_bridge()
    site.append([2])
    return site


def die_while_landing() -> None:
    for changes in range(1, 10):
        site = started()
        site.cut(site.table_disk, changes, lambda site=site: site.run_bridge(1))  # type: ignore[misc]
        site.start_bridge()
        site.finish()


def fail_at_the_start_after_dying() -> None:
    for changes in range(1, 5):
        # Room for both groups: a start copies a segment in which nothing was published yet.
        site = started(segment_bytes=6000)
        site.cut(site.queue_disk, changes, lambda site=site: site.append([2]))  # type: ignore[misc]
        if site.log is None:
            site.queue_disk.fail_next("sync", errno.EIO, ".segment")
            site.start_gateway()
        site.finish()


def test_a_bridge_that_releases_before_it_commits_is_caught() -> None:
    die_while_landing()
    with releases_before_it_commits(), pytest.raises(Wrong, match="released to"):
        die_while_landing()


def test_a_start_that_believes_the_second_sync_is_caught() -> None:
    fail_at_the_start_after_dying()
    with start_believes_a_sync(), pytest.raises(Wrong, match="damaged"):
        fail_at_the_start_after_dying()
