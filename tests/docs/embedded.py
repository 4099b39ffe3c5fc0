"""Puts the files of examples into the pages that show them: ``python -m tests.docs.embedded``.

A page shows a file as a fenced block whose first line names it after the language.
"""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
PAGES = sorted((PROJECT / "docs").glob("*.md"))
SHOWN = re.compile(r"^(```\w+ ([\w.-]+/[\w./-]+)\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def shown(page: Path) -> dict[str, str]:
    """The files which a page shows, and their text as it stands there."""
    return {found[2]: found[3] for found in SHOWN.finditer(page.read_text())}


def filled(text: str) -> str:
    return SHOWN.sub(lambda found: found[1] + (PROJECT / found[2]).read_text() + found[4], text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
