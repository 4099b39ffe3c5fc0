"""Mutants: of one change alone which lines count; and what is kept of the samples of a room."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants import report
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


def sampled(seed: int, killed: int, nothing: int, survivors: int) -> report.Sample:
    """What became of a sample whose mutants are told by numbers."""
    return {
        **{"seed": seed, "all": 900, "tried": killed + nothing + survivors},
        **{"killed": killed, "killed_at_first": killed},
        "nothing": [["a.py", f"n{number}", ""] for number in range(nothing)],
        "survivors": [["a.py", f"s{number}", ""] for number in range(survivors)],
    }


def test_samples_are_kept_side_by_side_and_a_seed_is_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is killed after tests were written was not killed at first."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    assert report.fresh_seed("core") == 1
    assert report.record("core", sampled(2, 5, 0, 1))
    assert report.record("core", sampled(1, 4, 1, 1))
    assert report.record("mtl", sampled(1, 3, 0, 0))
    assert not report.record("core", sampled(2, 6, 0, 0))
    assert {
        room: [(one["seed"], one["killed_at_first"]) for one in samples]
        for room, samples in report.known().items()
    } == {"core": [(1, 4), (2, 5)], "mtl": [(1, 3)]}
    assert (report.fresh_seed("core"), report.fresh_seed("mtl")) == (3, 2)


def test_the_page_shows_each_sample_and_the_sums_of_a_seed() -> None:
    rooms = {"core": [sampled(1, 4, 1, 1), sampled(2, 5, 0, 0)], "mtl": [sampled(1, 3, 0, 0)]}
    assert report.table_of(rooms)[2:] == [
        "| 1 | `core` | 900 | 6 | 1 | 4 | 80.0 % | 1 |",
        "| 1 | `mtl` | 900 | 3 | 0 | 3 | 100.0 % | 0 |",
        "| 1 | all of these |  | 9 | 1 | 7 | 87.5 % | 1 |",
        "| 2 | `core` | 900 | 5 | 0 | 5 | 100.0 % | 0 |",
        "| 2 | all of these |  | 5 | 0 | 5 | 100.0 % | 0 |",
    ]


@dataclass(frozen=True)
class Tried:
    """A verdict, and what its mutant has to say."""

    before: str
    by: str
    file: str = "a.py"

    @property
    def mutant(self) -> Tried:
        return self

    def change(self, source: str) -> tuple[str, str]:
        return self.before, ""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("A = 64 << 10", "A = 65 << 10", "chosen"),
        ("A = 64 << 10", "A = 64 << 9", "chosen"),
        ("A = 64 << 10", "A = -1 << 10", "chosen"),
        ("A = 64 << 10", "A =  1 << 10", "chosen"),
        ("A = 64 << 10", "A = 0 << 10", ""),
        ("A = 64 << 10", "A = 64 >> 10", ""),
        ("A = 64 << 10", "pass", ""),
        ("A = 65 << 10", "A = 64 << 10", ""),
        ("C = (a.b, 0x80)", "C = (a.b, 127)", "hexadecimal"),
        ("C = (a.b, 0x80)", "C = (a.c, 0x80)", ""),
        ("B = 1", "B = 2", "this one"),
        ("B = 1", "B = 3", ""),
    ],
)
def test_a_number_that_was_chosen_may_be_another_one_and_not_0(
    before: str, after: str, why: str
) -> None:
    rows = {
        ("a.py", "A = 64 << 10", report.CHOSEN): "chosen",
        ("a.py", "C = (a.b, 0x80)", report.CHOSEN): "hexadecimal",
        ("a.py", "B = 1", "B = 2"): "this one",
    }
    assert report.reason(("a.py", before, after), rows) == why
    assert report.reason(("b.py", before, after), rows) == ""


def test_a_survivor_that_is_killed_now_was_not_killed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that is no more does not count."""
    monkeypatch.setattr(report, "PROJECT", tmp_path)
    monkeypatch.setattr(report, "reasons", lambda: {("a.py", "s1", ""): "why"})
    (tmp_path / "a.py").touch()
    before = sampled(2, 5, 0, 4)
    killed = {"s0": "test", "s1": "", "s2": ""}  # s3 is gone
    verdicts = [Tried(name, by) for name, by in killed.items()]
    assert report.tried_again(before, verdicts) == {
        **before,
        **{"tried": 8, "killed": 6, "killed_at_first": 5},
        **{"nothing": [["a.py", "s1", ""]], "survivors": [["a.py", "s2", ""]]},
    }
