"""Draws the documents' pictures and ``docs/machines``: ``python -m tests.docs.machines``.

Transition tables are found in every module of a protocol's package: a table is an upper-case name
whose value maps states (members of one Enum) to rows.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.core.broker.world import QUEUED
from tests.docs import drawings
from twisted_msgproto import registry
from twisted_msgproto.core.machine import Own

DOCS = Path(__file__).parent.parent.parent / "docs"
DIRECTORY = DOCS / "machines"


def tables(protocol: str) -> Iterator[tuple[ModuleType, str, Mapping[Any, Any]]]:
    """Each transition table of a protocol: the module it stands in, its name, itself."""
    package = importlib.import_module(registry.registered(protocol).package)
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    for row in sorted(found, key=lambda row: row.name):
        module = importlib.import_module(row.name)
        for name, value in vars(module).items():
            if name.isupper() and not name.startswith("_") and is_table(value, module):
                yield module, name, value


def is_table(value: object, module: ModuleType) -> bool:
    """Whether ``value`` is a transition table whose states are defined in ``module``."""
    if not isinstance(value, dict) or not value:
        return False
    states = {type(state) for state in value}
    if len(states) != 1:
        return False
    (state,) = states
    return (
        issubclass(state, Enum)
        and state.__module__ == module.__name__
        and all(isinstance(row, Mapping) for row in value.values())
        and all(
            inspect.isclass(event) or isinstance(event, Own)
            for row in value.values()
            for event in row
        )
        and all(type(target) is state for row in value.values() for target in row.values())
    )


def initial(table: Mapping[Any, Any]) -> Any:
    """Where a machine begins: the first state which leads anywhere (a side may skip some)."""
    return next(state for state, row in table.items() if row)


def picture(protocol: str, name: str) -> str:
    return f"{protocol}-{name.lower()}.svg"


def pictures(protocol: str) -> Iterator[tuple[str, str]]:
    """Yield file name and text of the pictures of a protocol's machines."""
    title = registry.registered(protocol).title
    for _, name, table in tables(protocol):
        drawn = drawings.machine(table, initial(table), f"{title}: the machine {name}")
        yield picture(protocol, name), drawn


def page(protocol: str) -> str:
    title = registry.registered(protocol).title
    lines = [
        f"# Machines of {title}",
        "",
        "`python -m tests.docs.machines` draws these pictures from the transition tables; a test",
        "keeps them equal. A card is a state; its rows are the events that may happen in it. An",
        "event that is not listed is illegal there.",
    ]
    for module, name, table in tables(protocol):
        meaning = (inspect.getdoc(type(initial(table))) or "").splitlines()
        alt = f"State diagram of {name}: each state with its events and where they lead"
        lines += [
            "",
            f"## `{name}` in `{module.__name__}`",
            "",
            *(meaning[:1] or [""]),
            "",
            f"![{alt}]({picture(protocol, name)})",
        ]
    return "\n".join(lines) + "\n"


def general() -> dict[str, str]:
    """Return the pictures that belong to no protocol, by file name below docs/."""
    letter = drawings.machine(QUEUED, initial(QUEUED), "The broker: what may happen to a message")
    return {
        "machines/broker-message.svg": letter,
    }


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, drawn in general().items():
        (DOCS / name).write_text(drawn)
    for protocol in registry.PROTOCOLS:
        (DIRECTORY / f"{protocol}.md").write_text(page(protocol))
        for name, drawn in pictures(protocol):
            (DIRECTORY / name).write_text(drawn)


if __name__ == "__main__":
    main()
