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
SANS = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, Helvetica, Arial, sans-serif"
LANES = ["#0b6e99", "#b4540a", "#4d7c0f", "#7c3aed", "#be123c", "#0f766e", "#92400e", "#475569"]
"""Each target of arrows has a colour of its own; all are dark enough on white."""

DARK = {
    INK: "#e4e7eb",
    PALE: "#a8b3bf",
    GROUND: "#161b22",
    EDGE: "#52606d",
    "#f5f7fa": "#1f2630",
    "#fafbfc": "#1b212a",
    "#e8f1f8": "#17304a",
    "#e3f3e6": "#16382a",
    "#fdf0e1": "#44290f",
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
    family: str = MONOSPACED
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
                f'font-family="{self.family}">',
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


BYTE = 22
"""A byte of a file is this wide."""

BYTES_A_ROW = 32


def octets(drawing: Drawing, y: float, fields: Sequence[tuple[str, int]], fill: str) -> float:
    """Draw the fields of a header, each with its place and as wide as it is long; return the end.

    ``fields`` are names and bytes.  A field that crosses the end of a row is cut in two boxes.
    """
    left, high, at = 20, 44, 0
    for name, length in fields:
        first = True
        while length:
            row, column = divmod(at, BYTES_A_ROW)
            part = min(length, BYTES_A_ROW - column)
            x, top = left + column * BYTE, y + row * (high + 20)
            drawing.box(x, top + 14, part * BYTE, high, fill=fill)
            drawing.text(x + 2, top + 10, str(at), size=10, colour=PALE)
            if first:
                middle = x + part * BYTE / 2
                drawing.text(middle, top + 33, name, middle=True, size=11, bold=True)
                drawing.text(middle, top + 49, f"{length}", middle=True, size=11, colour=PALE)
            at, length, first = at + part, length - part, False
    return y + ((at - 1) // BYTES_A_ROW + 1) * (high + 20)


def queue_format(
    header: Sequence[tuple[str, int]],
    frame: Sequence[tuple[str, int]],
    end: Sequence[tuple[str, int]],
) -> str:
    """Draw a queue's files: segments and their frames, both headers, and the published end."""
    drawing = Drawing(
        "The files of a queue: segments of frames, and the published end", family=SANS
    )
    left, wide = 20, BYTES_A_ROW * BYTE
    drawing.text(left, 34, "00000000000000000000.segment", bold=True, size=14)
    drawing.text(left + 296, 34, "appended to; the next one begins at 64 MiB", colour=PALE)
    blocks = [
        ("header", 90, "#fdf0e1"),
        ("lineage", 80, "#e8f1f8"),
        ("frame", 150, "#e3f3e6"),
        ("frame", 220, "#e3f3e6"),
        ("frame …", 164, "#e3f3e6"),
    ]
    x: float = left
    for name, width, fill in blocks:
        drawing.box(x, 48, width, 40, fill=fill)
        drawing.text(x + width / 2, 72, name, middle=True)
        x += width
    end_of = left + 90 + 80 + 150 + 220
    drawing.line([(end_of, 118), (end_of, 89)], arrow=True, colour=LANES[2])
    drawing.text(end_of, 132, "published end: readers stop here", middle=True, colour=LANES[2])
    y: float = 168
    drawing.text(left, y, "The header of a segment", bold=True, size=14)
    y = octets(drawing, y + 8, header, "#fdf0e1")
    y += 26
    drawing.text(left, y, "A frame: what was encoded together", bold=True, size=14)
    y = octets(drawing, y + 8, frame, "#e3f3e6")
    shares = [("runs: what messages share", 0.4), ("columns: what differs", 0.6)]
    x = left
    for name, share in shares:
        drawing.box(x, y + 2, share * wide, 40)
        drawing.text(x + share * wide / 2, y + 27, name, middle=True)
        x += share * wide
    y += 78
    drawing.text(left, y, "end", bold=True, size=14)
    told = "written over in place after the sync of each group"
    drawing.text(left + 44, y, told, colour=PALE)
    octets(drawing, y + 8, end, "#e8f1f8")
    return drawing.svg()


FLOORS: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "3  programs",
        [
            ("cli", "msgproto's sub-commands"),
            ("gateway", "twistd msgproto: many servers"),
            ("testing extend", "for tests and protocols of users"),
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
    drawing = Drawing("The rooms of twisted_msgproto and what they import", family=SANS)
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
            told = ", ".join(
                "the protocols" if name.startswith("lumberjack") else name.replace(" ", ", ")
                for name in listed
            )
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
