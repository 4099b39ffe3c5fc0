"""Docstrings and pages are plain English: what is measured stays below its bound (FC-07)."""

import re
from pathlib import Path

import pytest

from tests.docs.docstrings import (
    PACKAGE,
    Figures,
    above,
    bounds,
    docstrings,
    is_sentence,
    lowered,
    measure,
    measured,
    pages,
    riddle,
)

SENTENCES = [
    "Return the octets that are held.",
    "Failures are remembered for this many addresses; the oldest are dropped.",
    "A server checks this every second.",
    "Checks that octets are a JSON text.",
    "Readers poll the published end.",
    "What a peer sends is not trusted.",
    "If this is true, text is received as octets.",
    "That segment was this long at that time.",
]

FRAGMENTS = [
    "Octets which are held of what is not whole yet.",
    "Of so many addresses and names failures are remembered which come in vain.",
    "How many messages are in flight.",
    "The number of messages.",
    "Limits of a server.",
    "Name of the table.",
    "In octets.",
    "A peer that went without a word while nothing was owed.",
    "``octets`` of ``count`` messages.",
    "",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_has_a_verb_of_its_own(text: str) -> None:
    assert is_sentence(text)


@pytest.mark.parametrize("text", FRAGMENTS[:1] + FRAGMENTS[2:])
def test_a_fragment_has_none_outside_its_clauses(text: str) -> None:
    assert not is_sentence(text)


@pytest.mark.parametrize(
    "text",
    [
        "octets of what is not whole yet",
        "who holds most is cut off",
        "Of so many addresses failures are remembered",
        "becomes a batch (mostly one)",
        "one that went without a word",
    ],
)
def test_phrases_which_stopped_readers_are_known_FC_07(text: str) -> None:
    assert riddle(text)


def test_plain_phrases_are_no_riddles() -> None:
    assert riddle("There are so many that the oldest are dropped, so long as one stays.") is None


def test_every_kind_of_docstring_is_measured(tmp_path: Path) -> None:
    """Of a module, a class, its attributes and functions; comments for riddles alone."""
    path = PACKAGE / "example.py"
    figures = Figures()
    measure(
        figures,
        path,
        '"""Which module."""\n'
        "LIMIT = 1\n"
        '"""Which constant."""\n'
        "class Server:\n"
        '    """Which class."""\n'
        "    def serve(self):\n"
        '        """Which function, which looks."""\n'
        "        # for so many octets\n",
    )
    assert (figures.docstrings, figures.words, figures.which) == (4, 10, 5)
    assert (figures.fragments, figures.vague, figures.riddles) == (4, 1, 1)
    assert len(figures.found) == 11
    assert "twisted_msgproto/example.py:8: riddles" in figures.found[-1]


def test_every_room_is_at_or_below_its_bounds_FC_07() -> None:
    """Mend what ``python -m tests.docs.docstrings --list ROOM`` names; bounds only go down."""
    assert above(measured(), bounds()) == []


def test_a_heading_and_its_rule_have_a_line_each() -> None:
    """A docstring that was filled anew as one paragraph shows its heading within the text."""
    melted = [
        f"{path.relative_to(PACKAGE)}:{found.line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for found in docstrings(path, path.read_text())
        if re.search(r"\w (-{4,}|={4,}) \w", found.text)
    ]
    assert melted == []


def test_pages_have_few_riddles_and_pictures_of_the_house_FC_07() -> None:
    found = pages()
    assert above({"pages": found}, bounds()) == [], found.found


def test_bounds_go_down_and_never_up() -> None:
    figures = Figures(docstrings=100, words=1000, which=3, fragments=2)
    old = {"core": {"which": 5.0, "fragments": 1.0, "vague": 0.0, "riddles": 0.0}}
    new = lowered({"core": figures}, old)
    assert "which = 3\n" in new
    assert "fragments = 1\n" in new
    assert above({"core": figures}, old) == ["core: fragments 2.0, at most 1"]


def test_a_room_without_bounds_may_have_nothing() -> None:
    assert above({"new": Figures(docstrings=1, words=10, which=1)}, {}) == [
        "new: which 100.0, at most 0"
    ]
