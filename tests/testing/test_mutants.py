"""Mutants of one change alone: which lines count, and that no other line is mutated."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.changed import lines_of, since
from tests.mutants.sampling import sample

DIFF = """\
diff --git a/twisted_msgproto/a.py b/twisted_msgproto/a.py
index 1..2 100644
--- a/twisted_msgproto/a.py
+++ b/twisted_msgproto/a.py
@@ -3 +3 @@ def f():
-    old
+    new
@@ -9,2 +8,0 @@
-    gone
-    gone
@@ -20,0 +19,3 @@
+    one
+    two
+    three
--- a/twisted_msgproto/b.py
+++ /dev/null
@@ -1,2 +0,0 @@
-x = 1
-y = 2
"""


def test_lines_that_a_diff_adds_count_and_those_that_it_removes_do_not() -> None:
    assert lines_of(DIFF) == {Path("twisted_msgproto/a.py"): {3, 19, 20, 21}}


def git(project: Path, *words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.invalid")
    subprocess.run(["git", *who, *words], cwd=project, check=True, capture_output=True)


def test_lines_that_have_changed_since_a_revision_are_found(tmp_path: Path) -> None:
    package = tmp_path / "twisted_msgproto"
    package.mkdir()
    file = package / "a.py"
    file.write_text("a = 1\nb = 2\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "a")
    file.write_text("a = 1\nb = 3\nc = 4\n")
    (tmp_path / "elsewhere.py").write_text("d = 5\n")
    assert since(tmp_path, "HEAD") == {Path("twisted_msgproto/a.py"): {2, 3}}


@dataclass(frozen=True)
class Here:
    """What a sample needs of a mutant."""

    file: Path
    line: int
    column: int
    change: str = ""


HERE = [
    Here(Path("a"), line, column, change) for line in (1, 2) for column in (3, 4) for change in "xy"
]


def test_no_line_but_the_changed_ones_is_mutated() -> None:
    assert {here.line for here in sample(HERE, 40, 1, {Path("a"): {2}})} == {2}
    assert sample(HERE, 40, 1, {}) == sample(HERE, 40, 1, {Path("b"): {1}}) == []
    assert {here.line for here in sample(HERE, 40, 1)} == {1, 2}


def test_a_sample_has_one_mutant_of_a_place_and_is_the_same_for_the_same_seed() -> None:
    whole = sample(HERE, 40, 1)
    assert len(whole) == len({(here.line, here.column) for here in whole}) == 4
    assert len(sample(HERE, 3, 1)) == 3
    assert sample(HERE, 3, 7) == sample(HERE, 3, 7)


def test_a_revision_that_is_not_there_is_one_plain_line(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(SystemExit, match=r"^mutants: fatal: .*nowhere"):
        since(tmp_path, "nowhere")
