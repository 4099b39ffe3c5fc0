"""Measures how our docstrings and pages read: ``python -m tests.docs.docstrings``.

The figures are per directory of the package, and ``docstrings.toml`` has a bound for each:

* ``which``: how often the word occurs in 1,000 words of docstrings.
* ``fragments``: of 100 docstrings, those whose first sentence has no verb of its own.
* ``vague``: verbs that fit everything (look, take, give, settle, go on), in 1,000 words.
* ``riddles``: phrases that stopped readers, in docstrings, comments and pages.

``--list ROOM`` prints every hit in that directory (``pages``: on the pages); ``--lower`` lowers the
bounds to today's figures and never raises one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
PACKAGE = PROJECT / "twisted_msgproto"
BOUNDS = Path(__file__).with_name("docstrings.toml")

USERS_PAGES = [
    PROJECT / "README.md",
    *(page for page in sorted((PROJECT / "docs").rglob("*.md")) if "_build" not in page.parts),
]
"""Pages for people who use the package; CONTRIBUTING.md is for those who carry on with it, and so
is the page of the mutants, which quotes code.
"""

RIDDLES = {
    "not whole": "name the thing: an incomplete message, an unfinished window",
    r"who(ever)? holds (the )?most": "say: the connection that uses the most memory",
    r"(of |for )?so (many|much) (?!(more|less|that|as)\b)": "say: this many, at most N",
    r"so long (?!(as|that)\b)": "say: for this many seconds",
    "without a word": "say: closed without having sent anything",
    r"to go on instead": "say: to deliver instead",
    r"\(mostly one\)": "say when there is more than one",
    r"whom it concerns": "name the reader",
}
"""Patterns, and what to write instead."""

METAPHORS = r"\b(house|rooms|room's|doors?|floors?)\b"
"""The house is a picture for contributors, who find it in CONTRIBUTING.md."""

VAGUE = re.compile(
    r"\b(looks?|looked|takes?|took|taken|gives?|gave|given|settles?|settled|go(es)? on|went on)\b",
    re.IGNORECASE,
)

ENGLISH = {
    name: frozenset(text.split())
    for name, text in tomllib.loads(Path(__file__).with_name("english.toml").read_text()).items()
}
"""Lists of words, which say what they are for."""


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring of a module, class, function or attribute, and where it stands."""

    path: Path
    line: int
    text: str


@dataclass(slots=True)
class Figures:
    """What has been counted in one room; ``found`` names each hit."""

    docstrings: int = 0
    words: int = 0
    which: int = 0
    fragments: int = 0
    vague: int = 0
    riddles: int = 0
    found: list[str] = field(default_factory=list)

    def rates(self) -> dict[str, float]:
        """The figures which are bounded."""
        return {
            "which": 1000 * self.which / max(self.words, 1),
            "fragments": 100 * self.fragments / max(self.docstrings, 1),
            "vague": 1000 * self.vague / max(self.words, 1),
            "riddles": self.riddles,
        }

    def note(self, kind: str, path: Path, line: int, text: str) -> None:
        """Count one hit of a kind."""
        setattr(self, kind, getattr(self, kind) + 1)
        shown = " ".join(text.split())
        self.found.append(f"{path.relative_to(PROJECT)}:{line}: {kind}: {shown[:110]}")


def docstrings(path: Path, text: str) -> Iterator[Docstring]:
    """Yield every docstring of a file, including those below attributes and constants."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(found))):
                    yield Docstring(path, statement.lineno, found)


def comments(path: Path, text: str) -> Iterator[Docstring]:
    """Yield every comment of a file."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Docstring(path, token.start[0], token.string)


def words(text: str) -> list[str]:
    """The words of a text."""
    return re.findall(r"[A-Za-z]+(?:'[a-z]+)?", text)


def first_sentence(text: str) -> str:
    """The text up to its first full stop, semicolon or question mark; code stands for a noun."""
    plain = re.sub(r"``.*?``|`.*?`", "code", text.strip(), flags=re.DOTALL)
    return re.split(r"(?<=[.;?!])\s|:\s|\n\s*\n", plain, maxsplit=1)[0]


def base_of(word: str) -> str:
    """``carries`` → ``carry``, ``passes`` → ``pass``, ``keeps`` → ``keep``."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith("es") and word[:-2] in ENGLISH["verbs"]:
        return word[:-2]
    return word[:-1]


def is_finite(word: str, before: str) -> bool:
    """Whether ``word`` is a verb that makes a sentence, as far as the word ``before`` tells."""
    if word in ENGLISH["finite"]:
        return True
    if word.endswith("s") and base_of(word) in ENGLISH["verbs"]:
        return word not in ENGLISH["nouns"] or before in ENGLISH["subjects"]
    if word in ENGLISH["verbs"]:
        return before in ENGLISH["plural_subjects"] or (before.endswith("s") and before != "this")
    return word.endswith("ed") and before in ENGLISH["subjects"] | ENGLISH["plural_subjects"]


def is_noun_or_verb(word: str, before: str) -> bool:
    """Whether a form such as ``checks`` is a verb here, after a subject such as ``A server``."""
    return word in ENGLISH["nouns"] and before not in ENGLISH["before_a_noun"]


def is_sentence(text: str) -> bool:
    """Whether the first sentence of ``text`` has a verb outside its subordinate clauses.

    This is a heuristic: a list of verbs, and one verb for each word which begins a clause.
    """
    found = [word.lower() for word in words(first_sentence(text))]
    if not found:
        return False
    first, second = found[0], found[1] if found[1:] else ""
    if first in ENGLISH["verbs"] and (second != "of" or first not in ENGLISH["nouns_too"]):
        return True
    if (
        first.endswith("s")
        and base_of(first) in ENGLISH["verbs"]
        and second in ENGLISH["after_a_verb"]
    ):
        return True
    pairs = list(zip(["", *found], found, strict=False))
    finite = sum(is_finite(word, before) for before, word in pairs)
    if first in ENGLISH["determiners"]:
        finite += any(is_noun_or_verb(word, before) for before, word in pairs[2:])
    clauses = sum(begins_clause(word, before) for before, word in pairs)
    return finite > clauses


def begins_clause(word: str, before: str) -> bool:
    """Whether a clause begins here; ``at that time`` and ``That …`` begin none."""
    if word == "that":
        return before not in {"", "at", "of", "in", "for", "from", "by", "with", "to", "after"}
    return word in ENGLISH["clauses"]


def riddle(text: str) -> str | None:
    """The first phrase of ``text`` which stops a reader."""
    plain = " ".join(text.split())
    for pattern in RIDDLES:
        if match := re.search(pattern, plain, re.IGNORECASE):
            return match[0]
    return None


def measure(figures: Figures, path: Path, source: str) -> None:
    """Count what stands in one file of the package."""
    for docstring in docstrings(path, source):
        found = words(docstring.text)
        figures.docstrings += 1
        figures.words += len(found)
        for _ in range(sum(word.lower() == "which" for word in found)):
            figures.note("which", path, docstring.line, docstring.text)
        for _ in VAGUE.findall(docstring.text):
            figures.note("vague", path, docstring.line, docstring.text)
        if not is_sentence(docstring.text):
            figures.note("fragments", path, docstring.line, docstring.text)
    texts = (*docstrings(path, source), *comments(path, source)) if riddle(source) else ()
    for text in texts:
        if riddle(text.text):
            figures.note("riddles", path, text.line, text.text)


def room_of(path: Path) -> str:
    """The directory of the package in which a file stands; ``package`` for its top."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "package"


def measured() -> dict[str, Figures]:
    """The figures of every room."""
    rooms: dict[str, Figures] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        measure(rooms.setdefault(room_of(path), Figures()), path, path.read_text())
    return rooms


def pages() -> Figures:
    """What users' pages have: riddles, and pictures of the house."""
    figures = Figures()
    for page in USERS_PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            plain = re.sub(r"`.*?`", "code", line)
            if riddle(plain) or re.search(METAPHORS, plain, re.IGNORECASE):
                figures.note("riddles", page, number, line)
    return figures


def bounds() -> dict[str, dict[str, float]]:
    """The most that each room may have of each figure."""
    return tomllib.loads(BOUNDS.read_text())


def total(rooms: dict[str, Figures]) -> Figures:
    """The figures of the whole package."""
    whole = Figures()
    for figures in rooms.values():
        for name in ("docstrings", "words", "which", "fragments", "vague", "riddles"):
            setattr(whole, name, getattr(whole, name) + getattr(figures, name))
    return whole


def lowered(rooms: dict[str, Figures], old: dict[str, dict[str, float]]) -> str:
    """``docstrings.toml`` with each bound at today's figure, or where it was if that is lower."""
    lines = [
        "# At most: `which` and vague verbs in 1,000 words, fragments of 100 docstrings, riddles.",
        "# `python -m tests.docs.docstrings --lower` lowers these; nobody raises them.",
    ]
    for room in sorted(rooms):
        before = old.get(room, {})
        lines += ["", f"[{room}]"]
        for name, value in rooms[room].rates().items():
            lines.append(f"{name} = {min(ceil(value * 10) / 10, before.get(name, 1e9)):g}")
    return "\n".join(lines) + "\n"


def above(rooms: dict[str, Figures], allowed: dict[str, dict[str, float]]) -> list[str]:
    """What is above its bound; a room without a row may have nothing."""
    return [
        f"{room}: {name} {value:.1f}, at most {allowed.get(room, {}).get(name, 0):g}"
        for room, figures in rooms.items()
        for name, value in figures.rates().items()
        if value > allowed.get(room, {}).get(name, 0)
    ]


def table(rooms: dict[str, Figures]) -> str:
    """The figures as a table for people."""
    lines = [
        f"{'room':12}{'docstrings':>11}{'words':>8}{'which':>7}{'fragments':>11}{'vague':>7}{'riddles':>9}"
    ]
    for room, figures in [*sorted(rooms.items()), ("together", total(rooms))]:
        rates = figures.rates()
        lines.append(
            f"{room:12}{figures.docstrings:>11}{figures.words:>8}{rates['which']:>7.1f}"
            f"{rates['fragments']:>9.1f} %{rates['vague']:>7.1f}{figures.riddles:>9}"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the figures; 1 if something is above its bound."""
    rooms = measured()
    if arguments[:1] == ["--list"]:
        for room in arguments[1:] or sorted(rooms):
            print("\n".join(rooms[room].found if room != "pages" else pages().found))
        return 0
    if arguments == ["--lower"]:
        BOUNDS.write_text(lowered({**rooms, "pages": pages()}, bounds()))
    elif arguments:
        print(__doc__, file=sys.stderr)
        return 2
    print(table(rooms))
    failures = above({**rooms, "pages": pages()}, bounds())
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
