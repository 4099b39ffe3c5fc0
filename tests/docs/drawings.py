"""Draws the documents' pictures as SVG: ``python -m tests.docs.machines`` writes them all.

The pictures are text with lines: they need no browser script and no font of their own, and have a
white ground, so that they are legible on dark pages as well.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from xml.sax.saxutils import escape

CHARACTER = 7.3
"""A character of 12 px in a monospaced font is this wide, with some spare."""

LINE = 18
"""Lines of text are this far apart."""

INK, PALE, GROUND, EDGE = "#1f2933", "#52606d", "#ffffff", "#9aa5b1"
LANES = ["#0b6e99", "#b4540a", "#4d7c0f", "#7c3aed", "#be123c", "#0f766e", "#92400e", "#475569"]
"""Each target of arrows has a colour of its own; all are dark enough on white."""


@dataclass
class Drawing:
    """An SVG picture in the making; positions and sizes are in pixels."""

    title: str
    width: float = 0
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = INK,
        bold: bool = False,
        middle: bool = False,
        size: int = 12,
    ) -> None:
        """Write one line of text, whose baseline is at ``y``."""
        style = ' font-weight="bold"' if bold else ""
        style += ' text-anchor="middle"' if middle else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{style}>'
            f"{escape(text)}</text>"
        )
        half = CHARACTER * size / 12 * len(text)
        self.reach(x + (half / 2 if middle else half), y)

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = "#f5f7fa"
    ) -> None:
        """Draw a box with round corners."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{fill}" stroke="{EDGE}"/>'
        )
        self.reach(x + width, y + height)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str = PALE,
        arrow: bool = False,
        dashed: bool = False,
    ) -> None:
        """Draw straight lines from point to point, with an arrow head at the last one."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        style = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{style}/>'
        )
        if arrow:
            (x, y), (ax, ay) = points[-1], points[-2]
            dx, dy = (x > ax) - (x < ax), (y > ay) - (y < ay)
            wings = [
                (x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx),
                (x - 8 * dx - 4 * dy, y - 8 * dy - 4 * dx),
            ]
            shape = " ".join(f"{px:g},{py:g}" for px, py in [(x, y), *wings])
            self.parts.append(f'<polygon points="{shape}" fill="{colour}"/>')
        for x, y in points:
            self.reach(x, y)

    def dot(self, x: float, y: float, *, colour: str = INK, radius: float = 3) -> None:
        """Draw a dot."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>')

    def reach(self, x: float, y: float) -> None:
        """Make the picture large enough for the point."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def svg(self) -> str:
        """Return the picture as a file's text."""
        width, height = round(self.width + 16), round(self.height + 16)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img" '
                'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
                f"<title>{escape(self.title)}</title>",
                f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def machine(table: Mapping[Any, Mapping[type, Any]], initial: Enum, title: str) -> str:
    """Draw a transition table: a card for each state, and a lane of arrows to each target.

    A row of a card has the events that lead to the same target; events that change nothing stand
    in a row without an arrow.
    """
    drawing = Drawing(title)
    left, top, characters = 40, 24, 66
    right = left + characters * CHARACTER + 32
    targets = list(
        dict.fromkeys(
            target for state, row in table.items() for target in row.values() if target is not state
        )
    )
    states = [state for state in table if table[state] or state in targets or state is initial]
    lane = {target: right + 26 + 14 * place for place, target in enumerate(targets)}
    colour = {target: LANES[place % len(LANES)] for place, target in enumerate(targets)}
    headers: dict[Any, float] = {}
    leaving: dict[Any, list[float]] = {target: [] for target in targets}
    y: float = top
    for state in states:
        rows: dict[Any, list[str]] = {}
        for event, target in table[state].items():
            rows.setdefault(target, []).append(event.__name__)
        wrapped = {
            target: textwrap.wrap(", ".join(names), characters - 24)
            for target, names in rows.items()
        }
        height = LINE * (1 + sum(map(len, wrapped.values()))) + 14
        drawing.box(left, y, right - left, height)
        headers[state] = y + LINE - 5
        drawing.text(left + 10, y + LINE, state.name, bold=True, colour=colour.get(state, INK))
        at = y + 2 * LINE + 2
        for target, lines in wrapped.items():
            for place, line in enumerate(lines):
                drawing.text(left + 22, at + place * LINE, line)
            if target is state:
                drawing.text(right - 20 * CHARACTER, at, "stays", colour=PALE)
            else:
                name = f"→ {target.name}"
                drawing.text(right - 20 * CHARACTER, at, name, colour=colour[target])
                leaving[target].append(at - 4)
            at += LINE * len(lines)
        y += height + 16
    drawing.dot(left - 24, headers[initial], radius=5)
    drawing.line([(left - 24, headers[initial]), (left - 1, headers[initial])], arrow=True)
    for target, starts in leaving.items():
        x, end = lane[target], headers[target]
        drawing.line([(x, min([*starts, end])), (x, max([*starts, end]))], colour=colour[target])
        for start in starts:
            drawing.line([(right, start), (x, start)], colour=colour[target])
            drawing.dot(x, start, colour=colour[target], radius=2.5)
        drawing.line([(x, end), (right + 1, end)], colour=colour[target], arrow=True)
    return drawing.svg()


@dataclass(frozen=True)
class Station:
    """A station on the way of a message: its name, and what it does in two short lines."""

    name: str
    first: str
    second: str = ""


WAY = [
    Station("sender", "shipper, device,", "service"),
    Station("protocol", "machine: octets in,", "events out"),
    Station("sink", "one batch", "for each read"),
    Station("queue", "on the local disk,", "fdatasync"),
]
LANDING = {
    2: Station("table", "Delta, Parquet,", "SQL"),
    3: Station("bridge", "a process of its", "own, with Spark"),
}
"""The way into the table, below the first row, from right to left."""

FILLS = {"protocol": "#e8f1f8", "sink": "#e8f1f8", "queue": "#e3f3e6", "bridge": "#fdf0e1"}
PROMISES = [
    ("acknowledged = on disk", "", LANES[2]),
    ("wire → queue:", "at least once", LANES[0]),
    ("queue → table:", "exactly once, by (gateway, offset)", LANES[1]),
]


def way() -> str:
    """Draw the way of a message from its sender into the table, and of its acknowledgement back."""
    drawing = Drawing("The way of a message from its sender through the queue into the table")
    wide, high, gap, top = 150, 74, 62, 96
    low = top + high + 84
    lefts = [16 + place * (wide + gap) for place in range(len(WAY))]

    def station(x: float, y: float, what: Station) -> None:
        drawing.box(x, y, wide, high, fill=FILLS.get(what.name, GROUND))
        drawing.text(x + wide / 2, y + 24, what.name, bold=True, middle=True, size=14)
        drawing.text(x + wide / 2, y + 44, what.first, middle=True, colour=PALE)
        drawing.text(x + wide / 2, y + 60, what.second, middle=True, colour=PALE)

    drawing.box(lefts[1] - 8, top - 18, lefts[3] - lefts[1] + wide + 16, high + 52, fill="#fafbfc")
    drawing.text(lefts[1], top + high + 22, "gateway: one process on Twisted", colour=PALE)
    for x, what in zip(lefts, WAY, strict=True):
        station(x, top, what)
    for x, word in zip(lefts, ["octets", "events", "batch"], strict=False):
        start, y = x + wide, top + high / 2
        drawing.line([(start, y), (start + gap - 1, y)], arrow=True, colour=INK)
        drawing.text(start + gap / 2, y - 8, word, middle=True, size=11)
    for place, what in LANDING.items():
        station(lefts[place], low, what)
    down, across = lefts[3] + wide / 2, low + high / 2
    drawing.line([(down, top + high), (down, low - 1)], arrow=True, colour=INK)
    drawing.text(down + 10, low - 14, "Arrow", size=11)
    drawing.line([(lefts[3], across), (lefts[2] + wide + 1, across)], arrow=True, colour=INK)
    drawing.text(lefts[3] - gap / 2, across - 8, "commit", middle=True, size=11)
    sender, up = lefts[0] + wide / 2, 44
    drawing.line(
        [(down, top), (down, up), (sender, up), (sender, top - 1)], arrow=True, colour=LANES[2]
    )
    drawing.text((down + sender) / 2, up - 10, "acknowledgement", middle=True, colour=LANES[2])
    for number, (what, promise, colour) in enumerate(PROMISES):
        y = low + 14 + 26 * number
        drawing.text(16, y, f"{what} {promise}".strip(), bold=True, colour=colour)
    return drawing.svg()


FLOORS: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "3  programs",
        [
            ("cli", "msgproto's sub-commands, benches"),
            ("gateway", "twistd msgproto: many servers"),
            ("testing", "for tests of users of the package"),
        ],
    ),
    (
        "2  Twisted",
        [
            ("lumberjack micromsg2 sabc umq mtl", "a folder for each protocol"),
            ("net", "link, sessions, wires, logins, sink"),
        ],
    ),
    (
        "1  queue and Spark",
        [
            ("spark", "bridge, data source"),
            ("table", "Delta log, commits, verify"),
            ("queue", "files, writer, readers"),
        ],
    ),
    ("0  pure", [("registry", "the list of protocols"), ("core", "machines, messages, limits")]),
]
"""The rooms of the package by floor: who stands higher may import who stands lower."""


def house(imports: Mapping[str, set[str]]) -> str:
    """Draw the rooms by floor; ``imports`` says which rooms each one imports."""
    drawing = Drawing("The rooms of twisted_msgproto and what they import")
    left, wide, high, gap, y = 190, 258, 104, 16, 20
    for floor, rooms in FLOORS:
        drawing.text(16, y + high / 2, floor, bold=True, colour=PALE)
        span = (3 * (wide + gap) - gap * len(rooms)) / len(rooms)
        for place, (names, what) in enumerate(rooms):
            x = left + place * (span + gap)
            drawing.box(x, y, span, high, fill="#e8f1f8" if floor[0] in "23" else "#e3f3e6")
            drawing.text(x + 10, y + 22, names, bold=True, size=13 if len(names) < 20 else 12)
            drawing.text(x + 10, y + 40, what, colour=PALE, size=11)
            used = set().union(*(imports.get(name, set()) for name in names.split()))
            used -= set(names.split())
            listed = [name for _, row in FLOORS for name, _ in row if used & set(name.split())]
            told = ", ".join("the protocols" if " " in name else name for name in listed)
            text = f"imports {told}" if told else "imports nothing of ours"
            for number, line in enumerate(textwrap.wrap(text, int((span - 16) / 6.8))):
                drawing.text(x + 10, y + 60 + 15 * number, line, size=11)
        y += high + gap
    drawing.text(
        left,
        y + 12,
        "Protocols never import each other. Inside one: wire ← terms ← machine are pure;",
        colour=PALE,
    )
    drawing.text(
        left,
        y + 30,
        "protocol and application are on floor 2, service and command (which use cli) on floor 3.",
        colour=PALE,
    )
    return drawing.svg()
