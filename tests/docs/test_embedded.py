"""The files that pages show are those of the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.embedded import PAGES, PROJECT, filled, shown

SHOWING = [page for page in PAGES if shown(page)]


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.stem)
def test_a_page_shows_the_files_as_they_are(page: Path) -> None:
    for name, text in shown(page).items():
        assert text == (PROJECT / name).read_text(), name
    assert filled(page.read_text()) == page.read_text()


def test_the_sixth_protocol_is_shown_whole() -> None:
    example = PROJECT / "examples" / "lines"
    files = {str(path.relative_to(PROJECT)) for path in example.rglob("*.py")}
    names = set(shown(PROJECT / "docs" / "sixth-protocol.md"))
    assert names == files | {"examples/lines/pyproject.toml"}


def test_some_pages_show_files() -> None:
    assert {page.stem for page in SHOWING} == {"extending", "javascript", "sixth-protocol"}
