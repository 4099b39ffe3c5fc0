"""Which lines have changed since a revision: for the mutants of one change alone."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

_FILE = re.compile(r"\+\+\+ b/(.*)")
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def lines_of(diff: str) -> dict[Path, set[int]]:
    """Return the numbers of a file's lines that a diff without context adds or changes."""
    changed: defaultdict[Path, set[int]] = defaultdict(set)
    file: Path | None = None
    for line in diff.splitlines():
        if named := _FILE.fullmatch(line):
            file = Path(named[1])
        elif (hunk := _HUNK.match(line)) and file is not None:
            begin, count = int(hunk[1]), int(hunk[2] or 1)
            changed[file].update(range(begin, begin + count))
    return dict(changed)


def since(project: Path, revision: str) -> dict[Path, set[int]]:
    """Return the lines of the package that have changed since ``revision``, by file.

    Raises SystemExit with git's line where there is no such revision.
    """
    words = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", revision, "--"]
    done = subprocess.run([*words, "twisted_msgproto"], cwd=project, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"mutants: {done.stderr.strip().splitlines()[0]}")
    return lines_of(done.stdout)
