"""Types and style: what mypy and ruff say of the whole project is nothing.

``./run check``: one line for each check that holds, and the findings of those that do not.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from mypy.build import BuildResult, build
from mypy.main import process_options
from mypy.nodes import TypeInfo

from tests.check import main

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "twisted_msgproto"

PROTOCOLS = ["lumberjack", "micromsg2", "sabc", "umq", "mtl"]
MACHINES = [f"{protocol}.machine" for protocol in PROTOCOLS]
PUBLIC = [*PROTOCOLS, *MACHINES, "net", "queue", "spark", "testing", "extend"]

HIDING = re.compile(r"\s*class\b.*# type: ignore(?!\[)|\s*class\b.*# type: ignore\[.*misc")
TWO_BASES_WITH_THE_SAME_METHODS = ["core/packed.py"]
"""Their ignore is for methods which both bases define; neither base is Any."""


@pytest.fixture(scope="module")
def checked() -> Iterator[BuildResult]:
    """What mypy makes of the package, with pyproject.toml's settings.

    The cache is left aside: it does not keep which classes have a base of type Any.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PROJECT)
        sources, options = process_options([], stdout=StringIO(), stderr=StringIO())
        options.incremental = False
        yield build(sources, options)


@pytest.mark.xdist_group("types")
def test_the_types_hold(checked: BuildResult) -> None:
    assert checked.errors == []


@pytest.mark.xdist_group("types")
def test_no_class_has_a_base_of_type_any(checked: BuildResult) -> None:
    """HO-28: below such a base nothing is checked."""
    blind = [
        info.fullname
        for name, tree in checked.files.items()
        if name.split(".")[0] == "twisted_msgproto"
        for info in classes(tree.names)
        if info.fallback_to_any
    ]
    assert blind == []


def test_no_class_statement_hides_its_bases() -> None:
    """HO-28: an ignore there would hide a base of type Any; classes in functions have no names."""
    lines = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text().splitlines()
        if HIDING.match(line)
    ]
    assert [line.split(":")[0] for line in lines] == TWO_BASES_WITH_THE_SAME_METHODS, lines


def classes(names: Any) -> Iterator[TypeInfo]:
    """The classes of a scope which are defined in it, and those within them."""
    for symbol in names.values():
        if isinstance(symbol.node, TypeInfo) and not symbol.module_hidden:
            if symbol.node.module_name.split(".")[0] != "twisted_msgproto":
                continue
            yield symbol.node
            if symbol.node.names is not names:
                yield from classes(symbol.node.names)


@pytest.mark.parametrize("words", [["check", "."], ["format", "--check", "."]], ids=lambda w: w[0])
def test_the_style_holds(words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ruff", *words], cwd=PROJECT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("package", ["", *PUBLIC])
def test_whatever_a_package_offers_says_what_it_is(package: str) -> None:
    room = importlib.import_module(f"twisted_msgproto.{package}".rstrip("."))
    assert {*room.__all__} <= {*dir(room)}, "help() and completion do not show these"
    offered = {name: getattr(room, name) for name in room.__all__}
    classes = {name: it for name, it in offered.items() if inspect.isclass(it)}
    asked = {name: it for name, it in offered.items() if inspect.isfunction(it)} | classes
    for name, one in classes.items():
        methods = [m for m, it in vars(one).items() if inspect.isfunction(it) and m[0] != "_"]
        asked |= {f"{name}.{method}": getattr(one, method) for method in methods}
    assert [name for name, it in asked.items() if not inspect.getdoc(it)] == []


@pytest.mark.parametrize("package", PUBLIC)
def test_no_argument_by_name_is_of_any_kind(package: str) -> None:
    """An editor shows what may stand there; ``**options: Any`` shows nothing."""
    room = importlib.import_module(f"twisted_msgproto.{package}")
    open_to_all = [
        f"{name}.{method}"
        for name in room.__all__
        for method, function in [("", getattr(room, name)), *members(getattr(room, name))]
        if inspect.isfunction(function)
        for argument in inspect.signature(function).parameters.values()
        if argument.kind is argument.VAR_KEYWORD and argument.annotation == "Any"
    ]
    assert open_to_all == []


def members(one: object) -> list[tuple[str, object]]:
    """Return the public methods of a class of ours, with those of its bases of ours."""
    if not inspect.isclass(one):
        return []
    return [
        (method, getattr(function, "__func__", function))
        for base in one.__mro__
        if base.__module__.startswith("twisted_msgproto")
        for method, function in vars(base).items()
        if method[0] != "_" or method in ("__init__", "__init_subclass__")
    ]


MODULE = [sys.executable, "-m"]


def test_a_check_that_fails_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"platform": [*MODULE, "platform"], "absent": [*MODULE, "tests.absent"]}) == 1
    platform, found, absent = capsys.readouterr().out.splitlines()
    assert platform.startswith("platform: ok (")
    assert "tests.absent" in found
    assert absent.startswith("absent: failed (")
