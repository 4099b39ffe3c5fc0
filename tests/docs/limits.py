"""Writes ``docs/limits.md`` and ``net/limit_types.py`` from the tables of limits:
``python -m tests.docs.limits``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from twisted_msgproto import registry
from twisted_msgproto.core.limits import Limit, amount
from twisted_msgproto.net.clients.reconnect import RECONNECT_LIMITS
from twisted_msgproto.net.factory import COMMON_LIMITS

PROJECT = Path(__file__).parent.parent.parent
PAGE = PROJECT / "docs" / "limits.md"
TYPES = PROJECT / "twisted_msgproto" / "net" / "limit_types.py"

TYPES_HEAD = """\
\"\"\"The limits of each factory as types, from their tables: ``python -m tests.docs.limits``.

A mapping whose names are not known before the program runs goes through the factory's
``defaultLimits``.
\"\"\"

from typing import TypedDict

"""

INTRODUCTION = """\
# Limits

Everything that a peer can make a server hold or wait for has a limit. `--limit NAME=VALUE` changes
one on the command line; in a gateway.toml `[limits]` holds for every server that has a limit of
that name, and `limit = { NAME = VALUE }` in a server's table for that server alone.
`twistd NAME --help` prints the same tables. In a program it is `limits={"unsafe-bytes": 1 << 20}`;
a variable with such a dict is declared as `limits: UmqServerLimits = {…}`, or a type checker
refuses it (`XServerLimits`, `XClientLimits` of each protocol's package).

A value is a plain number of the unit: `--limit unsafe-bytes=1048576`. The ids in brackets name the
clauses of the [protocol pages](protocols/lumberjack.md). A limit that is met is an event, a counter
and a line that names the option.

Of [several gateways on one machine](several-gateways.md#limits) each has all of its limits.
"""


def table(limits: Iterable[Limit]) -> Iterator[str]:
    yield "| name | default | what it bounds |"
    yield "|---|---|---|"
    for limit in limits:
        text = limit.reason.replace("|", "\\|")
        yield f"| `{limit.name}` | {amount(limit.default, limit.unit)} | {text} |"


def page() -> str:
    lines = [INTRODUCTION, "## Every server", "", *table(COMMON_LIMITS)]
    for name, row in registry.PROTOCOLS.items():
        options = registry.part(name, "service", "Options")
        _, own = options.limitTables().values()
        lines += ["", f"## {row.title}", "", *table(own)]
    return "\n".join(lines) + "\n"


def types() -> str:
    """Return a module with a TypedDict for each factory and service; sizes may have their unit.

    What all factories have stands in it once, and what both sides of a protocol have.
    """
    tables: dict[str, dict[str, set[str]]] = {}
    for name in registry.PROTOCOLS:
        package = import_module(f"twisted_msgproto.{name}")
        for side in ("Server", "Client"):
            factory = next(
                found for kind, found in vars(package).items() if kind.endswith(f"{side}Factory")
            )
            kind = factory.__name__.removesuffix(f"{side}Factory")
            limits = set(map(annotated, factory.defaultLimits({}).table.values()))
            tables.setdefault(kind, {})[side] = limits
    both = {kind: sides["Server"] & sides["Client"] for kind, sides in tables.items()}
    every = set.intersection(*both.values())
    parts = [TYPES_HEAD, *typed("EveryLimits", every)]
    for kind, sides in tables.items():
        parts += typed(f"{kind}Limits", both[kind] - every, "EveryLimits")
        for side, limits in sides.items():
            parts += typed(f"{kind}{side}Limits", limits - both[kind], f"{kind}Limits")
    parts += typed("ReconnectLimits", set(map(annotated, RECONNECT_LIMITS)))
    return "".join(parts).rstrip() + "\n"


def annotated(limit: Limit) -> str:
    kind = type(limit.default).__name__
    sized = kind == "int" and limit.unit.partition("/")[0] == "bytes"
    return f'"{limit.name}": {kind}{" | str" * sized}'


def typed(title: str, limits: set[str], base: str = "") -> Iterator[str]:
    """Yield a TypedDict with these and what ``base`` has; names have hyphens, so it takes two."""
    own = f"_{title}" if base else title
    if limits:
        yield f'{own} = TypedDict(\n    "{own}",\n    {{\n'
        yield from (f"        {limit},\n" for limit in sorted(limits))
        yield "    },\n    total=False,\n)\n\n" + "\n" * bool(base)
    if base and limits:
        yield f"class {title}({base}, {own}):\n    pass\n\n\n"
    elif base:
        yield f"{title} = {base}\n\n"


if __name__ == "__main__":
    TYPES.write_text(types())
    PAGE.write_text(page())
