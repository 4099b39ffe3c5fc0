"""Mutants of one change alone: which lines count, and that no other line is mutated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.changed import lines_of, since
from tests.mutants.making import sample

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


def test_only_lines_that_have_changed_since_a_revision_are_mutated(tmp_path: Path) -> None:
    package = tmp_path / "twisted_msgproto"
    package.mkdir()
    file = package / "a.py"
    file.write_text("a = 1\nb = 2\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "a")
    file.write_text("a = 1\nb = 3\nc = 4\n")
    (tmp_path / "elsewhere.py").write_text("d = 5\n")
    changed = since(tmp_path, "HEAD")
    assert changed == {Path("twisted_msgproto/a.py"): {2, 3}}
    mutants = sample(tmp_path, changed, 40, 1, changed)
    assert {mutant.line for mutant in mutants} == {2, 3}
    assert sample(tmp_path, changed, 40, 1, {}) == []
    assert {mutant.line for mutant in sample(tmp_path, changed, 40, 1)} == {1, 2, 3}


def test_a_revision_that_is_not_there_is_one_plain_line(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(SystemExit, match=r"^mutants: fatal: .*nowhere"):
        since(tmp_path, "nowhere")
