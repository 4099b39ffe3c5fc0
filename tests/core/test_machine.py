"""The table machine, on a small table of its own."""

from enum import auto
from itertools import product

import pytest

from twisted_msgproto.core.machine import IllegalTransition, Machine, State, events, mermaid


class Door(State):
    OPEN = auto()
    SHUT = auto()
    LOCKED = auto()


class Push:
    pass


class Pull:
    pass


class Turn:
    pass


TABLE = {
    Door.OPEN: {Push: Door.SHUT, Pull: Door.OPEN},
    Door.SHUT: {Pull: Door.OPEN, Turn: Door.LOCKED},
    Door.LOCKED: {},
}


@pytest.mark.parametrize(("state", "event"), list(product(Door, [Push, Pull, Turn])))
def test_every_state_and_event_is_decided_by_the_table(state, event):
    machine = Machine(TABLE, state)
    target = TABLE[state].get(event)
    if target is None:
        with pytest.raises(IllegalTransition) as raised:
            machine.step(event)
        assert (raised.value.state, raised.value.event) == (state, event)
        assert str(raised.value) == machine.refusal(event)
        assert not machine.try_step(event)
        assert machine.state is state
    else:
        machine.step(event)
        assert machine.state is target
        again = Machine(TABLE, state)
        assert again.try_step(event)
        assert again.state is target


def test_an_error_names_the_event_and_the_state():
    assert Machine(TABLE, Door.LOCKED).refusal(Push) == "Push is not allowed in state LOCKED"


def test_events_are_listed_once_in_order_of_appearance():
    assert events(TABLE) == [Push, Pull, Turn]


def test_the_diagram_shows_every_transition_and_joins_parallel_ones():
    table = {Door.OPEN: {Push: Door.SHUT, Turn: Door.SHUT, Pull: Door.OPEN}, Door.SHUT: {}}
    assert mermaid(table, Door.OPEN) == (
        "stateDiagram-v2\n"
        "    [*] --> OPEN\n"
        "    OPEN --> SHUT: Push, Turn\n"
        "    OPEN --> OPEN: Pull\n"
    )
