"""A state machine is a table: ``{state: {event class: next state}}``.

The table says what is legal; what to do about it is ordinary code in the machine that owns the
table.  The exhaustive tests walk the table, the diagrams in ``docs/machines`` are drawn from it and
the text of an error comes from it, so none of them can drift from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar


class State(Enum):
    """Base class of a machine's states; each state is equal to itself alone.

    Enum hashes the name in Python code.  The transition table is consulted for every event, so
    states are hashed by identity instead, in C.
    """

    if not TYPE_CHECKING:  # checkers take an enum.s attribute for a member
        __hash__ = object.__hash__


S = TypeVar("S", bound=State)

Table = Mapping[S, Mapping[type, S]]
"""Every state of the enum is a key; an event class absent from its row is illegal there."""


class IllegalTransition(Exception):
    """This event may not happen in this state."""

    def __init__(self, state: State, event: type) -> None:
        super().__init__(f"{event.__name__} is not allowed in state {state.name}")
        self.state = state
        self.event = event


class Machine(Generic[S]):
    """A state, and the table of where each event leads.

    Attributes:
        table: the transitions; shared by all machines of a kind, never changed.
        state: where this machine stands now.
    """

    __slots__ = ("state", "table")

    def __init__(self, table: Table[S], initial: S) -> None:
        self.table: Table[S] = table
        self.state: S = initial

    def step(self, event: type) -> None:
        """Follow ``event``; IllegalTransition (and no change) if the table does not allow it."""
        try:
            self.state = self.table[self.state][event]
        except KeyError:
            raise IllegalTransition(self.state, event) from None

    def try_step(self, event: type) -> bool:
        """Follow ``event`` and return True; return False (and change nothing) if it is illegal."""
        target = self.table[self.state].get(event)
        if target is None:
            return False
        self.state = target
        return True

    def refusal(self, event: type) -> str:
        """Return what to say about ``event`` when the table does not allow it here."""
        return str(IllegalTransition(self.state, event))


def events(table: Table[S]) -> list[type]:
    return list(dict.fromkeys(event for row in table.values() for event in row))
