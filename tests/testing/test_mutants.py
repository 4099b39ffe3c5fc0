"""Small errors that are planted to try the tests: which there are, and that they are noticed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import mutants

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("statement", "errors"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("if a:\n    b = 2", {"if not a:\n    b = 2", "if a:\n    b = 3", "if a:\n    b = 1"}),
        ("a.b = not c", {"pass", "a.b = c"}),
        ("for a in b:\n    break", {"for a in ():\n    break", "for a in b:\n    continue"}),
        ("@c\ndef f(a: 3=True):\n    g()", {"def f(a: 3=True):\n    g()"}),
        ("a = Limit('a', 1 + 2)", set()),
        ("raise NotImplementedError", set()),
    ],
)
def test_errors_are_planted_in_code_and_not_in_types_or_limits(
    statement: str, errors: set[str]
) -> None:
    found = set()
    for number in range(sum(1 for _ in mutants(ast.parse(statement)))):
        tree = ast.parse(statement)
        _, _, plant = list(mutants(tree))[number]
        plant()
        found.add(ast.unparse(tree))
    assert errors <= found
    assert errors or not found
    assert statement not in found


@pytest.mark.slow
def test_errors_in_a_file_are_noticed_by_the_quick_tests_of_its_room() -> None:
    command = [sys.executable, "-m", "tests.mutants", "testing/disks.py", "--sample", "2"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "killed 2 of 2", done.stdout + done.stderr
