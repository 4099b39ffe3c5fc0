"""Puts the files of examples into the pages that show them: ``python -m tests.docs.embedded``.

A page shows a file as a fenced block whose first line names it after the language.  Further words
name what of it is shown, such as ``Server.take``: a class, a function, a method or a value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
PAGES = sorted((PROJECT / "docs").glob("*.md"))
SHOWN = re.compile(
    r"^(```\w+ ([\w.-]+/[\w./-]+)((?: [\w.]+)*)\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL
)


def shown(page: Path) -> set[str]:
    """The files which a page shows, as a whole or in part."""
    return {found[2] for found in SHOWN.finditer(page.read_text())}


def filled(text: str) -> str:
    return SHOWN.sub(lambda found: found[1] + wanted(found[2], found[3].split()) + found[5], text)


def wanted(name: str, parts: list[str]) -> str:
    """What a block of a page has; each method stands below the first line of its class."""
    text = (PROJECT / name).read_text()
    if not parts:
        return text
    body, within, told = ast.parse(text).body, "", []
    for part in parts:
        *kind, last = part.split(".")
        if told:
            told.append("" if kind == [within] else "\n")
        if kind and kind[0] != within:
            told.append(lines(text, one(body, kind[0])).partition("\n")[0])
        within = kind[0] if kind else ""
        told.append(lines(text, one(one(body, within).body if kind else body, last)))
    return "\n".join(told) + "\n"


def one(body: list[ast.stmt], name: str) -> ast.stmt:
    """The statement that gives something this name; KeyError if there is none."""
    return {named: statement for statement in body for named in names(statement)}[name]


def names(statement: ast.stmt) -> Iterator[str]:
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    yield from (target.id for target in targets if isinstance(target, ast.Name))
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name


def lines(text: str, statement: ast.stmt) -> str:
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    return "\n".join(text.splitlines()[first - 1 : statement.end_lineno])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
