"""The drawn machines are the tables: ``python -m tests.docs.test_machines`` draws them anew."""

from __future__ import annotations

import importlib
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pytest

from twisted_msgproto.core.machine import Table, mermaid

PAGES = Path(__file__).parent.parent.parent / "docs" / "machines"


class Drawn(NamedTuple):
    """A page: its title, and where table and first state are: ``module:TABLE:Enum.STATE``."""

    title: str
    where: str

    def page(self) -> str:
        module, table, initial = self.where.split(":")
        found = importlib.import_module(f"twisted_msgproto.{module}")
        transitions: Table[Enum] = getattr(found, table)
        kind, state = initial.split(".")
        diagram = mermaid(transitions, getattr(found, kind)[state])
        return (
            f"# {self.title}\n\nDrawn from `twisted_msgproto.{module}.{table}`;"
            " `python -m tests.docs.test_machines` draws it anew.\n\n"
            f"```mermaid\n{diagram}```\n"
        )


DRAWN = {
    "sabc-server": Drawn("The sABC server", "sabc.tables:SERVER:Serving.AWAITING"),
    "sabc-client": Drawn("The sABC client", "sabc.tables:CLIENT:Connecting.IDLE"),
}
"""A row for each table; the key names the page."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_machine_is_current(name: str) -> None:
    assert (PAGES / f"{name}.md").read_text() == DRAWN[name].page()


def test_no_page_is_left_over() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} - {"index"} == set(DRAWN)


def draw() -> None:
    PAGES.mkdir(exist_ok=True)
    for name, drawn in DRAWN.items():
        (PAGES / f"{name}.md").write_text(drawn.page())


if __name__ == "__main__":
    draw()
