"""The page draws the machine of each protocol's sessions, by the table that the machine follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

Drawing = dict[str, Any]
"""``states``: their names, in the table's order; ``moves``: ``from``, ``to`` and ``events``, for
each two states that a move leads between.
"""


def drawing(table: Mapping[Any, Mapping[type, Any]]) -> Drawing:
    """Return what has to be drawn of a transition table.

    A session begins in the first state that leads anywhere; states that no move reaches are left
    out, since the other side of the connection has those.
    """
    first = next(state for state, row in table.items() if row)
    reached = {first}
    waiting = deque([first])
    moves: dict[tuple[str, str], list[str]] = {}
    while waiting:
        state = waiting.popleft()
        for event, target in table[state].items():
            if target not in reached:
                reached.add(target)
                waiting.append(target)
            if target is not state:
                moves.setdefault((state.name, target.name), []).append(event.__name__)
    return {
        "states": [state.name for state in table if state in reached],
        "moves": [
            {"from": source, "to": target, "events": events}
            for (source, target), events in moves.items()
        ],
    }


def drawings(factories: Iterable[Any]) -> dict[str, Drawing]:
    """Return the drawing of each protocol whose factory names a table (``stateTable``)."""
    tables = {factory.protocolName: factory.stateTable for factory in factories}
    return {name: drawing(table) for name, table in tables.items() if table is not None}
