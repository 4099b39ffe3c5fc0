"""State machines in which nothing may go wrong, and planted bugs which must."""

from __future__ import annotations

import pytest

from tests.states.bugs import BUGS
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
