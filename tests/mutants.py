"""``python -m tests.mutants ROOM [--sample N] [--seed S]``: which small errors do tests miss?

ROOM is a directory or file below ``twisted_msgproto``.  Errors, *mutants*, are planted one by one
in a scratch copy, and the quick tests that execute the statement run in forks of this process: the
room's, those of ``--tests``, and of the nets over several rooms those that concern this one.
"""

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

PACKAGE = "twisted_msgproto"
NETS = ("tests/contract", "tests/sim", "tests/states", "tests/fuzz/test_fuzz.py")
WORDS = {
    "core": ("test_a_broker_is", "lumberjack-0"),
    "net": ("tests/contract", "websocket", "lumberjack-0"),
    "queue": ("bridge", "lumberjack-0", "micromsg2-0"),
    "table": ("both_sides[bridge]", "second_sync"),
}  # room → what the names of tests in the nets contain that concern it; else the room's name
MORE = {
    "cli": "contract/test_log_in contract/test_send net/test_figures spark/test_report "
    "spark/test_flight test_gateway test_gateway_access test_registry test_several_gateways",
    "core": "net/test_memory net/test_logs test_gateway test_gateway_own lumberjack/test_wire",
    "mtl": "contract/test_lifetimes",
    "net": "test_gateway test_gateway_own test_gateway_access test_several_gateways test_registry "
    "lumberjack/test_tls micromsg2/test_subscriptions mtl/test_authentication umq/test_session "
    "umq/test_topics cli/test_broker cli/test_status cli/test_no_permission",
    "queue": "spark/test_report",
    "spark": "table/test_dead_letters table/test_readers",
    "table": "cli/test_table",
}  # room → tests elsewhere, to which protocols and commands lend themselves, of what it has
PROCESSES = "tests/tools/processes.py"  # whoever runs this starts some
WARM = ("pytest", "hypothesis.stateful", "coverage", "pyarrow", "twisted.trial.unittest")
OPTIONS = "-q -p no:cacheprovider --same --worlds 80 --fuzz 1000 -o timeout=0 -m 'not slow'"
MUTANT_SECONDS = 30.0  # of all its tests, at most

PAIRS = "Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, LShift RShift, BitOr BitAnd, Mult FloorDiv"
BOTH = [pair.split() for pair in f"{PAIRS}, Break Continue".split(", ")]
SWAPS = {"Lt": "LtE GtE", "LtE": "Lt Gt", "Gt": "GtE LtE", "GtE": "Gt Lt", "Div": "Mult"}
SWAPS |= dict(BOTH) | {b: a for a, b in BOTH}
PASSIVE = ("if TYPE_CHECKING:", "Limit(", "raise NotImplementedError")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Place = tuple[int, int, str]
Mutant = tuple[Place, range, Callable[[], Any]]  # lines of its statement; changes the tree


def others(node: Any, parent: ast.AST, field: str, function: str) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place."""
    yield from (getattr(ast, to)() for to in SWAPS.get(type(node).__name__, "").split())
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
    match node:  # without a name's or an attribute's first assignment all would fail
        case ast.Assign(targets=[ast.Name() | ast.Tuple()]) | ast.Expr(value=ast.Constant()):
            return
        case ast.AugAssign() | ast.Delete() | ast.Expr() | ast.Raise():
            yield ast.Pass()
        case ast.Assign() if function != "__init__":
            yield ast.Pass()


def mutants(parent: Any, lines: range = range(1), function: str = "") -> Iterator[Mutant]:
    """Yield the mutants of a tree, always in the same order; plant one after all were made."""
    function = parent.name if isinstance(parent, ast.FunctionDef) else function
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            head = ast.unparse(node)[:40] if isinstance(node, ast.If | ast.Call | ast.Raise) else ""
            passive = field in ("annotation", "returns") or head.startswith(PASSIVE)
            if not isinstance(node, ast.AST) or passive:
                continue
            at: Any = node if hasattr(node, "lineno") else parent
            place = getattr(at, "lineno", 0), getattr(at, "col_offset", 0), type(node).__name__
            if isinstance(node, ast.stmt | ast.ExceptHandler):
                block: Any = node  # of which, unless it is a function, the head alone
                head_ends = "body" in node._fields and not isinstance(node, FUNCTIONS)
                ends = block.body[0].lineno if head_ends else block.end_lineno + 1
                lines = range(node.lineno, ends)
            if field == "decorator_list":
                whole = range(parent.lineno, parent.end_lineno + 1)
                yield place, whole, partial(value.pop, index)
                continue
            put: Any = partial(setattr, parent, field)
            put = partial(value.__setitem__, index) if isinstance(value, list) else put
            for other in others(node, parent, field, function):
                yield place, lines, partial(put, other)
            yield from mutants(node, lines, function)


class Tests:
    """The tests that concern a room, as a plug-in of pytest that runs in forks of this process."""

    def __init__(self, room: str, more: list[str]) -> None:
        own = [f"tests/{room}"] if Path("tests", room).is_dir() else []
        self.own = (*more, *own, *(f"tests/{name}.py" for name in MORE.get(room, "").split()))
        self.words, self.failed = WORDS.get(room, (room,)), ""
        self.modules = [
            ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            for file in sorted(Path(PACKAGE, room).rglob("*.py"))
        ]
        self.seconds: defaultdict[str, float] = defaultdict(float)
        all_ = [*self.own, *([] if room in ("cli", "spark") else NETS)]
        _, self.took = self.run(
            [*all_, f"--cov={PACKAGE}", "--cov=tests/tools", "--cov-context=test"], 3600.0
        )
        if not self.took:  # it has 1e9 for what fails without a mutant
            raise SystemExit(Path("output.txt").read_text()[-3000:])
        self.executed: Any = importlib.import_module("coverage").CoverageData()
        self.executed.read()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for module in self.modules:  # or only the test that is first to import it would execute it
            importlib.import_module(module)
        for item in [item for item in items if not item.nodeid.startswith(self.own)]:
            name = item.nodeid.lower()  # classes of the contract have a protocol's title
            if "planted" in name or not any(word in name for word in self.words):
                items.remove(item)

    def pytest_collectreport(self, report: Any) -> None:  # a file may run the room's code by then
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.pytest_collectreport(report)
        self.seconds[report.nodeid] += 1e9 if report.failed else report.duration

    def run(self, words: list[str], seconds: float) -> tuple[str, dict[str, float]]:
        """Run pytest in a process group of its own; return what failed first, and all times."""
        (answer := Path.cwd() / "answer.json").unlink(missing_ok=True)
        if not (child := os.fork()):
            os.setsid()
            signal.alarm(int(seconds))
            os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
            os.dup2(1, 2)
            with contextlib.suppress(BaseException):
                status = importlib.import_module("pytest").main(words, plugins=[self])
                failed = self.failed or (f"(pytest ended with {status})" if status else "")
                answer.write_text(json.dumps((failed, self.seconds)))
            os._exit(1)
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return json.loads(answer.read_text()) if answer.exists() else ("(no end)", {})

    def use(self, file: Path, statement: range) -> set[str]:
        """Return the contexts of all lines that have the name which a statement gives."""
        name = re.split(r"[:= ]", file.read_text().splitlines()[statement.start - 1].strip())[0]
        found: set[str] = set()
        for each in Path(PACKAGE).rglob("*.py"):
            if name in (text := each.read_text()):
                lines = self.executed.contexts_by_lineno(str(each))
                for at, line in enumerate(text.splitlines(), 1):
                    found.update(lines.get(at, ()) if re.search(rf"\b{name}\b", line) else ())
        return found - {""}

    def of(self, file: Path, statement: range) -> list[str]:
        """Return the tests that execute a statement, quick ones first; of what is executed while it
        is imported, those that execute a line with its name.

        Behind them stand the room's that run processes, in which nobody measures.
        """
        lines = self.executed.contexts_by_lineno(str(file))
        apart = self.executed.contexts_by_lineno(PROCESSES)
        contexts = {test for line in statement for test in lines.get(line, ())}
        if lines and not contexts:  # in processes or a library's threads
            lines |= {-at: on for at, on in apart.items()}
        every = {one for some in lines.values() for one in some if one.endswith("|run")}
        contexts = contexts - {""} or (contexts and self.use(file, statement)) or every
        names = {one.split("|")[0] for one in contexts} & self.took.keys() or set(self.took)
        more = {one.split("|")[0] for some in apart.values() for one in some} & self.took.keys()
        quick = sorted(
            names | {name for name in more if name.startswith(self.own)},
            key=lambda name: (name not in names, self.took[name]),
        )
        totals = accumulate(self.took[name] for name in quick)
        some = [name for name, sum_ in zip(quick, totals, strict=True) if sum_ < MUTANT_SECONDS]
        return sorted(some, key=lambda name: (name not in names, file.stem not in name))


def run(room: str, sample: int, seed: int, tests: list[str]) -> int:
    """Try a sample of a room's mutants here, in the scratch copy; return 1 if any survived."""
    every: defaultdict[tuple[Path, Place], list[int]] = defaultdict(list)
    for file in sorted(Path(PACKAGE, room).rglob("*.py")) or [Path(PACKAGE, room)]:
        for number, (place, _, _) in enumerate(mutants(ast.parse(file.read_text()))):
            every[file, place].append(number)
    plugin = Tests(room.split("/")[0], tests)
    source, killed, proven = random.Random(seed), 0, {"(no end)"}
    drawn = source.sample(sorted(every), min(sample, len(every)))
    for at, (file, number) in enumerate([(one[0], source.choice(every[one])) for one in drawn], 1):
        tree = ast.parse(text := file.read_text())
        before, (place, lines, plant) = ast.unparse(tree), list(mutants(tree))[number]
        plant()
        while some := plugin.of(file, lines):
            file.write_text(ast.unparse(tree))
            failed, _ = plugin.run(["-x", *some], 20.0 + 5.0 * MUTANT_SECONDS)
            file.write_text(text)
            if failed in plugin.took.keys() - proven and plugin.run([failed], 60.0)[0]:
                plugin.took[failed] = 1e9  # it fails in a fork whatever the code is
                continue
            proven.add(failed)
            break
        else:
            failed = ""
        killed += bool(failed)
        print(f"{at} {file}:{place[0]}", f"killed by {failed}" if failed else "SURVIVED")
        changes = zip(before.splitlines(), ast.unparse(tree).splitlines(), strict=False)
        print(*next((f"  - {a}\n  + {b}" for a, b in changes if a != b), ""), sep="", flush=True)
    print(f"killed {killed} of {len(drawn)}")
    return int(killed < len(drawn))


def main() -> int:
    """Copy the project, and try mutants in the copy."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("room", metavar="ROOM", help="a directory or file of the package")
    parser.add_argument("--sample", type=int, default=40, help="so many mutants; default 40")
    parser.add_argument("--seed", type=int, default=1, help="which ones; default 1")
    parser.add_argument("--tests", nargs="*", default=[], help="these tests besides the room's")
    arguments = parser.parse_args()
    project = Path(__file__).resolve().parents[1]
    left = shutil.ignore_patterns(".*", "node_modules", "_build", "__pycache__", "*.egg-info")
    with tempfile.TemporaryDirectory(prefix="msgproto-mutants-") as directory:
        shutil.copytree(project, scratch := Path(directory, "copy"), ignore=left, symlinks=True)
        os.chmod(directory, 0o755)  # tests are other users, too
        os.chdir(scratch)
        sys.path.insert(0, str(scratch))
        os.environ.update(PYTHONPATH=str(scratch), PYTEST_ADDOPTS=OPTIONS)
        for name in WARM:
            importlib.import_module(name)
        return run(**vars(arguments))


if __name__ == "__main__":
    sys.exit(main())
