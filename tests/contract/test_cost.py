"""What one message costs: calls of this package's functions until it is acknowledged."""

from __future__ import annotations

import pytest

from tests.contract.cases import CASES, Case
from tests.contract.world import World
from tests.tools.calls import Calls, counting_calls
from tests.tools.sinks import SafeSink
from twisted_msgproto.net.authorising import Rules

MESSAGES = 5
"""Counted together, after as many which are not: timers are set by then."""

CALLS_MAX = {"lumberjack": 33, "micromsg2": 35, "sabc": 30, "sabc-ws": 46, "umq": 48, "mtl": 46}
"""On the server's side, for one message in and its acknowledgement out, with a sink which is safe
at once.  What becomes cheaper lowers its figure; none is raised; Lumberjack's has
3 calls of the link which all share."""


def measured(case: Case, authoriser: object = None) -> Calls:
    """What the server does for some messages, which come one by one."""
    world = World(case, SafeSink())
    world.factory.authoriser = authoriser
    peer = world.join()
    calls = Calls()
    try:
        for _ in range(MESSAGES):
            peer.send(b"x")
            world.pump()
        for _ in range(MESSAGES):
            sent = peer.send(b"x")
            with counting_calls(calls):
                assert case.read(world, peer)
            world.pump()
            assert sent.called
    finally:
        world.close()
    return calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_message_takes_no_more_calls_than_it_may(case: Case) -> None:
    calls = measured(case)
    assert calls.count / MESSAGES <= CALLS_MAX[case.name], calls.where.most_common()


AUTHORISED_MAX = 5
"""So many more calls a message takes where an authoriser was asked about it before."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_that_is_remembered_costs_little(case: Case) -> None:
    rules = Rules.of([{"deny": "*", "user": "eve"}, {"allow": "*"}])
    calls = measured(case, rules)
    most = CALLS_MAX[case.name] + AUTHORISED_MAX
    assert calls.count / MESSAGES <= most, calls.where.most_common()
    assert "allows" not in repr(calls.where)
