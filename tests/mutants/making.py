"""Mutants: every small error that can be planted in a file, made in its syntax tree."""

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

_BOTH = (
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or)),
    *((ast.Add, ast.Sub), (ast.LShift, ast.RShift), (ast.BitOr, ast.BitAnd)),
    *((ast.Mult, ast.FloorDiv), (ast.Break, ast.Continue)),
)
SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    **{one: (other,) for pair in _BOTH for one, other in (pair, pair[::-1])},
    **{ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt)},
    **{ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt)},
    **{ast.Div: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.BitXor: (ast.BitOr,)},
}
"""Of each comparison its border and its opposite; what mostly raises TypeError is left out."""


class Mutant(NamedTuple):
    """One small error: where it is, the lines of its statement, and what changes the tree."""

    place: tuple[int, int, str]
    lines: range
    plant: Callable[[], Any]


def _others(node: Any, parent: ast.AST, field: str, function: str) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place."""
    yield from (other() for other in SWAPS.get(type(node), ()))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        is_truth = isinstance(node.value, bool)
        values = (not node.value,) if is_truth else (node.value + 1, node.value - 1)
        yield from map(ast.Constant, values)
    if field in ("test", "ifs", "guard"):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if (type(parent), field) in ((ast.For, "iter"), (ast.ExceptHandler, "type")):
        yield ast.Tuple([], ast.Load())  # no turn of the loop; catches nothing
    if isinstance(node, ast.Assign):  # to remove one to a name would be a NameError
        removable = function != "__init__" and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    elif isinstance(node, ast.Raise):
        removable = "NotImplementedError" not in ast.unparse(node)
    else:
        removable = isinstance(node, ast.AugAssign | ast.Delete) or (
            isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield)
        )
    if removable:
        yield ast.Pass()


def mutants(parent: Any, lines: range = range(1), function: str = "") -> Iterator[Mutant]:
    """Yield the mutants of a tree, always in the same order; plant one after all were made.

    There are none of annotations, imports for types, and rows of limits, which are data.
    """
    function = parent.name if isinstance(parent, ast.FunctionDef) else function
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            head = ast.unparse(node)[:40] if isinstance(node, ast.If | ast.Call) else ""
            passive = field in ("annotation", "returns") or head.startswith("Limit(")
            if not isinstance(node, ast.AST) or passive or "TYPE_CHECKING:" in head:
                continue
            at: Any = node if hasattr(node, "lineno") else parent
            place = getattr(at, "lineno", 0), getattr(at, "col_offset", 0), type(node).__name__
            if isinstance(node, ast.stmt | ast.ExceptHandler):
                body: Any = getattr(node, "body", None)  # of a block its head alone
                end: Any = max(node.lineno + 1, body[0].lineno) if body else node.end_lineno
                lines = range(node.lineno, end + (not body))
            if field == "decorator_list":
                yield Mutant(place, lines, partial(value.pop, index))
                continue
            put: Any = partial(setattr, parent, field)
            put = partial(value.__setitem__, index) if isinstance(value, list) else put
            for other in _others(node, parent, field, function):
                yield Mutant(place, lines, partial(put, other))
            yield from mutants(node, lines, function)
