"""Show people what a demo landed: a few rows of the table, and a chart."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twisted_msgproto.core.errors import escaped

from .rows import text_of

if TYPE_CHECKING:
    import pyarrow as pa

    from twisted_msgproto.spark.table import LandedTable

SHOWN: Final = ("protocol", "kind", "message_id", "destination", "client_id", "received_at")
"""These columns are shown of a row, and the beginning of its body."""

BODY_MAX: Final = 36
"""A body is cut to this many characters."""

CELL_MAX: Final = 26
"""Other texts are shown up to this length."""

BARS_MAX: Final = 60
"""The chart has at most this many columns in time."""

COLOURS: Final = ("#2563eb", "#d97706", "#0d9488", "#9333ea", "#db2777", "#65a30d")


def landed_rows(table: LandedTable, gateway: str, first: int) -> pa.Table:
    import pyarrow.compute as pc

    rows = table.read(["gateway", "offset", "body", *SHOWN])
    mine = pc.and_(
        pc.equal(rows.column("gateway"), gateway), pc.greater_equal(rows.column("offset"), first)
    )
    return rows.filter(mine).sort_by("offset")


def sample(rows: pa.Table) -> Iterator[str]:
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(set(rows.column("protocol").to_pylist())):
        place = rows.column("protocol").index(name).as_py()
        [found[name]] = rows.slice(place, 1).to_pylist()
    texts = [(*SHOWN, "body"), *(_cells(row) for row in found.values())]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for number, cells in enumerate(texts):
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(cells, widths, strict=True)
        ).rstrip()
        if not number:
            yield "  ".join("─" * width for width in widths)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    texts = [_cell(row[name]) for name in SHOWN]
    body = row["body"]
    shown = "" if body is None else text_of(body)
    return (*texts, _cut("(binary)" if shown is None else shown, BODY_MAX))


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S.%f")[:-3]
    return "–" if value is None else _cut(str(value), CELL_MAX)


def _cut(text: str, most: int) -> str:
    return escaped(text if len(text) <= most else f"{text[: most - 1]}…")


def draw(rows: pa.Table, file: Path) -> None:
    """Draw the rows of each protocol by the time when the gateway received them.

    Raises ModuleNotFoundError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted(set(rows.column("protocol").to_pylist()))
    at = [moment.timestamp() for moment in rows.column("received_at").to_pylist()]
    began = min(at)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name, moment in zip(rows.column("protocol").to_pylist(), at, strict=True):
        times[name].append(moment - began)
    figure, (flow, counts) = pyplot.subplots(
        1, 2, figsize=(11, 4), width_ratios=(3, 1), layout="constrained"
    )
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(names))]
    flow.hist(list(times.values()), bins=BARS_MAX, stacked=True, label=names, color=colours)
    flow.set_xlabel("seconds since the first message")
    flow.set_ylabel("messages received and landed")
    flow.legend(frameon=False)
    figure.suptitle(f"{rows.num_rows:,} messages landed in the table, each exactly once")
    bars = counts.barh(names[::-1], [len(times[name]) for name in names[::-1]], color=colours[::-1])
    counts.bar_label(bars, fmt="{:,.0f}", padding=3)
    counts.margins(x=0.25)
    counts.set_xticks([])
    for axes in (flow, counts):
        axes.spines[["top", "right"]].set_visible(False)
    counts.spines["bottom"].set_visible(False)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
