"""Draws the documents' pictures as SVG: ``python -m tests.docs.machines`` writes them all.

The pictures are text with lines: they need no browser script and no font of their own.  They have a
ground of their own, and are dark where the reader's system is.
"""

from __future__ import annotations

import re
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
MONOSPACED = "DejaVu Sans Mono, Menlo, Consolas, monospace"
LANES = ["#0b6e99", "#b4540a", "#4d7c0f", "#7c3aed", "#be123c", "#0f766e", "#92400e", "#475569"]
"""Each target of arrows has a colour of its own; all are dark enough on white."""

DARK = {
    INK: "#e4e7eb",
    PALE: "#a8b3bf",
    GROUND: "#161b22",
    EDGE: "#52606d",
    "#f5f7fa": "#1f2630",
    "#fafbfc": "#1b212a",
    "#0b6e99": "#5cc3f0",
    "#b4540a": "#f5a35c",
    "#4d7c0f": "#a3d65c",
    "#7c3aed": "#b79cff",
    "#be123c": "#ff8fa3",
    "#0f766e": "#4fd1c5",
    "#92400e": "#e8b27a",
    "#475569": "#b0bccb",
}
"""What each colour becomes in dark pictures."""


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
        size: int = 12,
    ) -> None:
        style = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{style}>'
            f"{escape(text)}</text>"
        )
        self.reach(x + CHARACTER * size / 12 * len(text), y)

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = "#f5f7fa"
    ) -> None:
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
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>')

    def reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def dark(self) -> str:
        """Return the rules that turn the colours of this picture into dark ones."""
        used = {GROUND, *re.findall(r'(?:fill|stroke)="(#\w+)"', "".join(self.parts))}
        return "".join(
            f'[{name}="{colour}"]{{{name}:{DARK[colour]}}}'
            for colour in sorted(used & set(DARK))
            for name in ("fill", "stroke")
        )

    def svg(self) -> str:
        width, height = round(self.width + 16), round(self.height + 16)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img" '
                f'font-family="{MONOSPACED}">',
                f"<title>{escape(self.title)}</title>",
                f"<style>@media (prefers-color-scheme: dark) {{{self.dark()}}}</style>",
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
