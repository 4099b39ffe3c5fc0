"""Each requirement and each found defect that a test names has its line in ``requirements.md``.

``python -m tests.test_requirements`` writes the file again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS / "requirements.md"
ID = re.compile(r"(?<![A-Za-z0-9])(?:LJ|MM|SA|UM|MT|HO|NB|BK|TB|FC|RD)[-_]\d\d(?!\d)")

HEAD = """# Requirements and their tests

LJ, MM, SA, UM and MT are the requirements of the five specifications; HO, NB, BK, TB, FC and RD are
defects that were found by trying. Written by `python -m tests.test_requirements`.

"""


def page() -> str:
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(TESTS.rglob("test_*.py")):
        for name in ID.findall(file.read_text()):
            found[name.replace("_", "-")].add(str(file.relative_to(TESTS)))
    lines = (f"* {name}: {', '.join(sorted(found[name]))}\n" for name in sorted(found))
    return HEAD + "".join(lines)


def test_the_page_lists_every_requirement_that_a_test_names() -> None:
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
