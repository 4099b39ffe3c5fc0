"""Which state machines there are, and how they are run."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.states.bridge import Landing
from tests.states.lumberjack import Lumberjack
from tests.states.micromsg2 import MicroMsg2
from tests.states.mtl import Mtl
from tests.states.pairs import states_of
from tests.states.sabc import Sabc
from tests.states.umq import Umq

STEPS = 40
"""An example has at most this many steps."""

STATES: dict[str, Callable[[], type[RuleBasedStateMachine]]] = {
    "bridge": lambda: Landing,
    "lumberjack": lambda: states_of(Lumberjack),
    "micromsg2": lambda: states_of(MicroMsg2),
    "mtl": lambda: states_of(Mtl),
    "sabc": lambda: states_of(Sabc),
    "umq": lambda: states_of(Umq),
}
"""Name → what makes the state machine."""


def run(
    name: str, examples: int, *, fresh: int | None = None, shrink: bool = True, steps: int = STEPS
) -> None:
    """Run so many examples; raises what the first failing one raised.

    They are always the same, or those of the seed ``fresh``.  ``shrink``: search for a small
    example that fails as well, which may need minutes.
    """
    states = STATES[name]()
    if fresh is not None:
        states = seed(fresh)(states)
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=fresh is None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        verbosity=Verbosity.normal,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(states, settings=chosen)
