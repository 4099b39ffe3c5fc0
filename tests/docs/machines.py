"""Draws ``docs/machines/PROTOCOL.md`` from the tables: ``python -m tests.docs.machines``.

Every module of a protocol's package is looked at; a table is a module's upper-case name whose value
maps states (members of one Enum) to rows.
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

from twisted_msgproto import registry
from twisted_msgproto.core.machine import mermaid

DIRECTORY = Path(__file__).parent.parent.parent / "docs" / "machines"


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
        and all(inspect.isclass(event) for row in value.values() for event in row)
        and all(type(target) is state for row in value.values() for target in row.values())
    )


def initial(table: Mapping[Any, Any]) -> Any:
    """Where a machine begins: the first state which leads anywhere (a side may skip some)."""
    return next(state for state, row in table.items() if row)


def page(protocol: str) -> str:
    """The page of a protocol's machines."""
    title = registry.registered(protocol).title
    lines = [
        f"# Machines of {title}",
        "",
        "Drawn from the transition tables by `python -m tests.docs.machines`; a test keeps this",
        "page equal to them. What an arrow does not show is illegal in that state.",
    ]
    for module, name, table in tables(protocol):
        first = initial(table)
        meaning = (inspect.getdoc(type(first)) or "").splitlines()
        lines += [
            "",
            f"## `{name}` in `{module.__name__}`",
            "",
            *(meaning[:1] or [""]),
            "",
            "```mermaid",
            mermaid(table, first).rstrip("\n"),
            "```",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for protocol in registry.PROTOCOLS:
        (DIRECTORY / f"{protocol}.md").write_text(page(protocol))


if __name__ == "__main__":
    main()
