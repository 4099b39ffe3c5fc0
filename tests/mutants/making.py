"""Mutants: every place of a file at which one of the operators makes one.

Most operators are cosmic-ray's; one is ours, because cosmic-ray removes no statements, and another
leaves out exceptions with a dot in their name, which cosmic-ray cannot replace.
"""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator

NAMES = (
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("NumberReplacer", "RemoveDecorator", "ZeroIterationForLoop"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in (
            *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
            *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt"),
            *("Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
        )
    ),
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in (
            *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv"),
            *("Pow_Mul", "RShift_LShift", "LShift_RShift"),
            *("BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr"),
        )
    ),
)
"""cosmic-ray's operators that are used: of each comparison its border and its opposite.  The others
mostly make what raises TypeError at once.
"""


class RemoveStatement(Operator):  # type: ignore[misc]
    """Replaces a statement with ``pass``: a call, an assignment to an attribute or item, a raise.

    An assignment to a name stays: to remove it is a NameError and shows nothing.  So does a raise
    in a method that every subclass replaces.
    """

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Yield the statement's position."""
        if node.type == "simple_stmt" and self._removable(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    @staticmethod
    def _removable(statement: Any) -> bool:
        if statement.type == "expr_stmt":
            target, sign = statement.children[0], statement.children[1]
            if sign.type in ("annassign",):
                return False
            if getattr(sign, "value", "=") != "=" or sign.type == "augassign":
                return True
            function = parso.tree.search_ancestor(statement, "funcdef")
            beginning = function is not None and function.name.value == "__init__"
            return target.type in ("atom_expr", "power") and not beginning
        if statement.type == "raise_stmt":
            return "NotImplementedError" not in statement.get_code()
        return statement.type in ("atom_expr", "power", "del_stmt")

    def mutate(self, node: Any, index: int) -> Any:
        """Return the line with ``pass`` in the statement's place."""
        prefix = node.get_first_leaf().prefix
        node.children[0] = parso.parse(f"{prefix}pass")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return what it does."""
        return (Example("f(x)\n", "pass\n"), Example("a.b += 1\n", "pass\n"))


class PlainExceptionReplacer(ExceptionReplacer):  # type: ignore[misc]
    """Replaces the exceptions of a handler whose names have no dot."""

    @staticmethod
    def _name_nodes(node: Any) -> list[Any]:
        caught = node.children[1]
        several = caught.children[1] if caught.type == "atom" else caught
        nodes = several.children[::2] if several.type == "testlist_comp" else [several]
        return [one for one in nodes if one.type == "name"]


@cache
def operators() -> dict[str, Any]:
    """Return the operators by name."""
    found = {name: get_operator(f"core/{name}")() for name in NAMES}
    own = {"ExceptionReplacer": PlainExceptionReplacer(), "RemoveStatement": RemoveStatement()}
    return {**found, **own}


@dataclass(frozen=True)
class Mutant:
    """One small error: ``file`` is relative to the project, ``line`` counts from 1."""

    file: Path
    operator: str
    occurrence: int
    line: int
    column: int

    def code(self, source: str) -> str:
        """Return the mutated code."""
        mutated: str = mutate_code(source, operators()[self.operator], self.occurrence)
        return mutated

    def change(self, source: str) -> tuple[str, str]:
        """Return the lines before and after, without blanks around them.

        If a line with the same text stands elsewhere in the file, both say in which function it is.
        """
        before, after = [], []
        for line in difflib.ndiff(source.splitlines(), self.code(source).splitlines()):
            if line.startswith("- "):
                before.append(line[2:].strip())
            elif line.startswith("+ "):
                after.append(line[2:].strip())
        where = place_of(source, self.line)
        return " ".join(before) + where, " ".join(after) + where


def place_of(source: str, line: int) -> str:
    """Return ``  # in FUNCTION`` for a line whose text stands repeatedly in a file; "" for others.

    The second one of a function has ``, 2`` behind it.
    """
    lines = [text.strip() for text in source.splitlines()]
    same = [number for number, text in enumerate(lines, 1) if text == lines[line - 1]]
    if len(same) == 1:
        return ""
    functions = _functions(source)
    name = functions.get(line, "")
    number = [one for one in same if functions.get(one, "") == name].index(line) + 1
    return f"  # in {name or 'the module'}" + (f", {number}" if number > 1 else "")


@cache
def _functions(source: str) -> dict[int, str]:
    """Return the innermost function or class of each line that is in one."""
    found: dict[int, str] = {}

    def look(node: ast.AST, within: tuple[str, ...]) -> None:
        for one in ast.iter_child_nodes(node):
            inner = within
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = *within, one.name
                begin = min((each.lineno for each in one.decorator_list), default=one.lineno)
                found.update(
                    dict.fromkeys(range(begin, (one.end_lineno or 0) + 1), ".".join(inner))
                )
            look(one, inner)

    look(ast.parse(source), ())
    return found


def _passive(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what makes no mutant: annotations, imports for the type checker alone, options of
    decorators, which say that a dataclass is frozen or has slots, and rows of limits: they are
    data, and ``docs/limits.md`` is compared with them.
    """
    for node in ast.walk(tree):
        yield from getattr(node, "decorator_list", ())
        for name in ("annotation", "returns"):
            if isinstance(found := getattr(node, name, None), ast.AST):
                yield found
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Limit":
            yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield node


def all_mutants(root: Path, file: Path) -> list[Mutant]:
    """Return every mutant of a file."""
    source = (root / file).read_text()
    passive = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in _passive(ast.parse(source))
    ]
    counts: Counter[str] = Counter()
    mutants = []
    for node in ast_nodes(parso.parse(source)):
        for name, operator in operators().items():
            for start, _ in operator.mutation_positions(node):
                if not any(begin <= start < end for begin, end in passive):
                    mutants.append(Mutant(file, name, counts[name], *start))
                counts[name] += 1
    return mutants


def mutants_of(root: Path, files: Iterable[Path]) -> Iterator[Mutant]:
    """Yield every mutant of some files."""
    for file in files:
        yield from all_mutants(root, file)


def found_again(root: Path, file: Path, changes: Iterable[tuple[str, str]]) -> list[Mutant]:
    """Return the mutants of a file that make these changes, each a line before and after."""
    source = (root / file).read_text()
    lines = source.splitlines()
    wanted = set(changes)
    found: dict[tuple[str, str], Mutant] = {}
    for mutant in all_mutants(root, file):
        line = lines[mutant.line - 1].strip()
        if any(line in before for before, _ in wanted):
            change = mutant.change(source)
            if change in wanted:
                found.setdefault(change, mutant)
    return list(found.values())


def statement_lines(source: str, line: int) -> set[int]:
    """Return the lines of the innermost statement at ``line``; of a block its head alone."""
    best: tuple[int, int] | None = None
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            continue
        begin = getattr(node, "lineno", None) or node.pattern.lineno  # type: ignore[union-attr]
        end = getattr(node, "end_lineno", None) or begin
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            end = max(begin, body[0].lineno - 1)
        if begin <= line <= end and (best is None or begin >= best[0]):
            best = begin, end
    return set(range(best[0], best[1] + 1)) if best else {line}
