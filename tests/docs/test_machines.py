"""The drawn machines are those in the code."""

import pytest

from tests.docs.machines import DIRECTORY, initial, page, tables
from twisted_msgproto import registry


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_protocol_has_its_machines_drawn_as_they_are(protocol):
    drawn = (DIRECTORY / f"{protocol}.md").read_text()
    assert drawn == page(protocol), "run python -m tests.docs.machines"


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_protocol_has_a_table_for_each_side(protocol):
    assert len(list(tables(protocol))) >= 2


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_state_of_a_table_is_a_row_and_every_target_a_state(protocol):
    for _, name, table in tables(protocol):
        states = set(type(next(iter(table))))
        assert set(table) == states, name
        assert {target for row in table.values() for target in row.values()} <= states, name


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_state_of_a_table_can_be_reached(protocol):
    for _, name, table in tables(protocol):
        reached, waiting = set(), [initial(table)]
        while waiting:
            state = waiting.pop()
            if state not in reached:
                reached.add(state)
                waiting += table[state].values()
        # A state which one side never has is an empty row of its table.
        assert not any(table[state] for state in set(table) - reached), name
