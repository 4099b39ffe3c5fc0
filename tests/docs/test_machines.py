"""The drawn machines are those in the code (FC-04).

The signatures on the page of interfaces are those of the code.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.drawings import CHARACTER
from tests.docs.embedded import PAGES, PROJECT, filled, shown
from tests.docs.machines import (
    DIRECTORY,
    DOCS,
    general,
    initial,
    page,
    pictures,
    tables,
)
from twisted_msgproto import registry


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_protocol_has_its_machines_drawn_as_they_are(protocol):
    drawn = (DIRECTORY / f"{protocol}.md").read_text()
    assert drawn == page(protocol), "run python -m tests.docs.machines"
    for name, picture in pictures(protocol):
        assert (DIRECTORY / name).read_text() == picture, "run python -m tests.docs.machines"


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_a_picture_names_every_state_and_event_FC_04(protocol):
    drawn = dict(pictures(protocol))
    assert len(drawn) == len(list(tables(protocol)))
    for (_, _, table), picture in zip(tables(protocol), drawn.values(), strict=True):
        told = set(re.findall(r"\w+", " ".join(re.findall(r">([^<]+)</text>", picture))))
        assert {event.__name__ for row in table.values() for event in row} <= told
        assert {state.name for state, row in table.items() if row} <= told
        assert_texts_are_within(picture)


def assert_texts_are_within(picture):
    root = ElementTree.fromstring(picture)
    width, height = float(root.get("width")), float(root.get("height"))
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        half = len(text.text) * CHARACTER * int(text.get("font-size")) / 12
        left = float(text.get("x")) - (half / 2 if text.get("text-anchor") else 0)
        right = float(text.get("x")) + (half / 2 if text.get("text-anchor") else half)
        assert left >= 0 and right <= width and float(text.get("y")) < height, text.text


def test_the_pictures_of_the_tour_and_of_the_house_are_as_drawn_FC_04():
    for name, picture in general().items():
        assert (DOCS / name).read_text() == picture, "run python -m tests.docs.machines"
        assert_texts_are_within(picture)
    for by_hand in ("way.svg", "house.svg", "queue-format.svg"):
        assert_texts_are_within((DOCS / by_hand).read_text())


def test_the_house_shows_every_room():
    shown = (DOCS / "house.svg").read_text()
    package = Path(registry.__file__).parent
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert [room for room in rooms if not re.search(rf"[ >]{room}[ <]", shown)] == []


def test_no_page_shows_the_source_of_a_picture_FC_04():
    for file in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        assert "```mermaid" not in file.read_text(), file


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_state_of_a_table_is_a_row_and_every_target_a_state(protocol):
    for _, name, table in tables(protocol):
        states = set(type(next(iter(table))))
        assert set(table) == states, name
        assert {target for row in table.values() for target in row.values()} <= states, name


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_every_state_of_a_table_can_be_reached(protocol):
    for _, name, table in tables(protocol):
        reached, waiting = set(), [initial(table)]
        while waiting:
            state = waiting.pop()
            if state not in reached:
                reached.add(state)
                waiting += table[state].values()
        # A state which one side never has is an empty row of its table.
        assert not any(table[state] for state in set(table) - reached), name


# ── The files that pages show are those of the examples ──

SHOWING = [page for page in PAGES if shown(page)]


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.stem)
def test_a_page_shows_the_files_as_they_are(page: Path) -> None:
    text = page.read_text()
    assert filled(text) == text, "run python -m tests.docs.embedded"


def test_the_page_of_a_new_protocol_is_short_and_names_each_file() -> None:
    text = (PROJECT / "docs" / "sixth-protocol.md").read_text()
    assert len(text.splitlines()) <= 150
    example = PROJECT / "examples" / "lines"
    files = {str(path.relative_to(PROJECT)) for path in example.rglob("*.py")}
    assert {name for name in files if name not in text} == set()


PAGE = PROJECT / "docs" / "interfaces.md"
BLOCK = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def signatures(text: str) -> dict[str, str]:
    """The bases of each class, and the arguments, result and kind of each method."""
    found = {}
    for kind in ast.parse(text).body:
        if isinstance(kind, ast.ClassDef):
            found[kind.name] = ", ".join(map(ast.unparse, kind.bases))
            for method in kind.body:
                if isinstance(method, ast.FunctionDef):
                    words = [ast.unparse(one) for one in method.decorator_list]
                    returns = method.returns and ast.unparse(method.returns)
                    found[f"{kind.name}.{method.name}"] = (
                        f"{'property' if 'property' in words else 'def'}"
                        f" ({ast.unparse(method.args)}) -> {returns}"
                    )
    return found


def test_the_page_has_the_signatures_of_the_code_and_is_short() -> None:
    text = PAGE.read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 10 and len(text.splitlines()) <= 250
    for file, block in blocks:
        code, shown = signatures((PROJECT / file).read_text()), signatures(block)
        assert len(shown) > 1
        assert shown == {name: code.get(name) for name in shown}, file
