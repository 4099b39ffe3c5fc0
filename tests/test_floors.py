"""House rules of imports: the contracts of ``[tool.importlinter]``, and what they cannot say."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.check import TOOLS
from twisted_msgproto.registry import PROTOCOLS

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "twisted_msgproto"

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}


def linted(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def test_the_contracts_of_imports_are_kept() -> None:
    ended = linted(PROJECT)
    assert ended.returncode == 0, ended.stdout


OURS = "twisted_msgproto"
WRONG = {
    "core": ["import twisted.internet", "import pyarrow", f"from {OURS}.net import sink"],
    "queue": ["from zope import interface"],
    "registry": [f"from {OURS}.net import sink"],
    "spark": [f"from {OURS}.net import sink"],
    "net": ["def f() -> None:\n    import autobahn", f"import {OURS}.table"],
    "cli": ["def g() -> None:\n    import pyspark.sql"],
    "testing": [f"from {OURS}.cli import send"],
    "lumberjack/wire": [f"from {OURS}.lumberjack import machine"],
    "lumberjack/machine": ["import time"],
    "sabc/machine": [f"from {OURS}.sabc import Server"],
    "lumberjack/service": [f"import {OURS}.umq"],
}
"""Room → lines which do not belong there; together they break every contract."""


def test_a_wrong_import_is_seen(tmp_path: Path) -> None:
    """HO-28: also one in a function; none of the contracts is one that cannot be broken."""
    left = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
    shutil.copytree(PACKAGE, tmp_path / "twisted_msgproto", ignore=left)
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    for name, lines in WRONG.items():
        room = tmp_path / OURS / name
        path = room / "wrong.py" if room.is_dir() else room.with_suffix(".py")
        with path.open("a") as file:
            file.write("\n".join(["", *lines, ""]))
    ended = linted(tmp_path)
    assert ended.returncode == 1
    assert " KEPT" not in ended.stdout, ended.stdout
    assert "Could not find" not in ended.stdout


def imports_at_once(path: Path) -> set[str]:
    """The top-level packages which importing this module pulls in (not those inside functions)."""
    tops = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            tops |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            tops.add(node.module.split(".")[0])
    return tops


def modules_imported_at_once(name: str, path: Path) -> set[str]:
    """Our own modules which importing this one runs; not what stands in functions, or for types."""
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            node.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            of = ".".join([*base, *([node.module] if node.module else [])])
            inner = [f"{of}.{alias.name}" for alias in node.names]
            found |= {one if one in MODULES else of for one in inner}
    return found & set(MODULES)


def test_imports_have_no_circle() -> None:
    """Those in functions and for types do not count: nothing runs in the wrong order there."""
    left = {name: modules_imported_at_once(name, path) - {name} for name, path in MODULES.items()}
    while free := {name for name, needed in left.items() if not needed & set(left)}:
        for name in free:
            del left[name]
    assert left == {}, "each of these imports another of them"


def test_zeromq_is_imported_late() -> None:
    # Importing txzmq installs the default reactor.
    for path in FILES:
        assert not imports_at_once(path) & {"txzmq"} or "mtl" not in path.parts, path


def test_no_module_installs_a_reactor_when_it_is_imported() -> None:
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module == "twisted.internet":
                assert "reactor" not in {alias.name for alias in node.names}, path
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
                assert "twisted.internet.reactor" not in names, path


def test_importing_the_package_alone_is_light() -> None:
    code = (
        "import sys, twisted_msgproto\n"
        "heavy = {'twisted.internet.reactor', 'pyspark', 'pyarrow', 'autobahn', 'zmq', 'txzmq'}\n"
        "sys.exit(repr(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_drop_in_directories_of_twisted_are_not_packages() -> None:
    assert not list((PROJECT / "twisted").rglob("__init__.py"))


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "twisted/plugins").glob("*.py")), ids=lambda p: p.name
)
def test_plugin_files_import_nothing_of_ours_until_it_is_needed(path: Path) -> None:
    # twistd reads them at every start, whatever it is to run.
    assert imports_at_once(path) <= {"twisted", "zope"}


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_every_protocol_has_the_same_rooms(name: str) -> None:
    room = PACKAGE.joinpath(*PROTOCOLS[name].package.split(".")[1:])
    for module in ("wire", "machine", "protocol", "service", "command"):
        # A module which outgrew one file is a package of the same name.
        assert (room / f"{module}.py").exists() or (room / module / "__init__.py").exists(), module


HOSTILE = sorted(path for path in PROJECT.glob("tests/**/test_hostile*.py"))


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.parent.name)
def test_hostile_tests_watch_how_long_a_turn_takes__NB_07(path: Path) -> None:
    """NB-07: every module of hostile tests fails if a turn of a server was too long."""
    assert "short_turns" in path.read_text()
