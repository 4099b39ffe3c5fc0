"""Draws the documents' pictures and ``docs/machines``: ``python -m tests.docs.machines``.

Transition tables are found in every module of a protocol's package: a table is an upper-case name
whose value maps states (members of one Enum) to rows.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from struct import Struct, calcsize
from types import ModuleType
from typing import Any

import grimp

from tests.core.broker.world import QUEUED
from tests.docs import drawings
from twisted_msgproto import registry
from twisted_msgproto.queue import format as formats

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
        and all(inspect.isclass(event) for row in value.values() for event in row)
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


def rooms_imports() -> dict[str, set[str]]:
    """Return which rooms of the package each room imports; a module at its top is a room, too."""
    found: dict[str, set[str]] = {}
    graph = grimp.build_graph("twisted_msgproto", cache_dir=None)
    for module in graph.modules:
        room = module.split(".")[1:2] or ["__init__"]
        for name in graph.find_modules_directly_imported_by(module):
            found.setdefault(room[0], set()).update(name.split(".")[1:2])
    return {room: used - {room} for room, used in found.items()}


FIELDS = {
    "header": (
        [formats.SEGMENT_HEADER, formats.CHECKSUM],
        "magic,version,size,queue id,seed,first offset,zero,CRC-32",
    ),
    "frame": (
        [formats.FRAME_HEADER],
        "marker,CRC header,CRC payload,payload size,first offset,messages,runs size",
    ),
    "end": (
        [formats.END, formats.CHECKSUM],
        "magic,end,segment,bytes in it,CRC-32",
    ),
}
"""The layouts that the queue's code reads and writes, and what their fields are called."""


def fields(layouts: Iterable[Struct], names: str) -> list[tuple[str, int]]:
    """Return the fields of layouts that follow each other: names and bytes."""
    kinds = re.findall(r"\d+s|[A-Z]", "".join(layout.format.lstrip("<") for layout in layouts))
    sizes = [calcsize(f"<{kind}") for kind in kinds]
    return list(zip(names.split(","), sizes, strict=True))


def general() -> dict[str, str]:
    """Return the pictures that belong to no protocol, by file name below docs/."""
    letter = drawings.machine(QUEUED, initial(QUEUED), "The broker: what may happen to a message")
    return {
        "house.svg": drawings.house(rooms_imports()),
        "queue-format.svg": drawings.queue_format(
            **{name: fields(layouts, names) for name, (layouts, names) in FIELDS.items()}
        ),
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
