"""``./run``: sets up once, says what it does, and then is the sub-command.

What installs the world runs for real in continuous integration; here pip and Java are scripts.
"""

import ast
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

PROJECT = Path(__file__).parent.parent
RUN = PROJECT / "run"

PYPROJECT = """
[build-system]
requires = ["setuptools"]
[project]
name = "x"
version = "1"
dependencies = ["a>=1"]
description = "text"
[project.optional-dependencies]
all = ["b"]
[dependency-groups]
test = ["pytest>=8"]
long = ["checker>=2"]
[tool.ruff]
line-length = 100
"""


def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    loader = SourceFileLoader("run_script", str(RUN))
    spec = spec_from_loader("run_script", loader)
    assert spec is not None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with its root in ``tmp_path`` and no Java to be found."""
    module: ModuleType = loaded(monkeypatch)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "setup.py").touch()
    (tmp_path / "twisted_msgproto").mkdir()
    (tmp_path / "twisted_msgproto" / "scan.c").touch()
    venv = tmp_path / ".venv"
    for name, value in {
        "ROOT": tmp_path,
        "VENV": venv,
        "PYTHON": venv / "bin" / "python",
        "STAMP": venv / "installed.json",
        "LOG": venv / "install.log",
        "FOREIGN": tmp_path / "foreign",
        "CLIENTS": tmp_path / "clients",
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "java_places", lambda: [])
    return module


class World:
    def __init__(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run
        self.done: list[str] = []
        self.java = True
        monkeypatch.setattr(run, "make_venv", self.make_venv)
        monkeypatch.setattr(run, "install", self.install)
        monkeypatch.setattr(run, "has_java", lambda: self.java)
        monkeypatch.setattr(run, "java_places", lambda: ["java"] if self.java else [])

    def make_venv(self) -> None:
        self.done.append("venv")
        shutil.rmtree(self.run.VENV, ignore_errors=True)
        self.run.PYTHON.parent.mkdir(parents=True)
        self.run.PYTHON.touch()

    def install(self, extras: set[str]) -> None:
        self.done.append("install " + ",".join(sorted(extras)))

    def since(self) -> list[str]:
        done, self.done = self.done, []
        return done


@pytest.fixture
def world(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(run, monkeypatch)


@pytest.mark.parametrize(
    ("name", "old", "new", "again"),
    [
        ("pyproject.toml", "", "", []),
        ("pyproject.toml", "text", "other", []),
        ("pyproject.toml", "100", "99", []),
        ("pyproject.toml", "a>=1", "a>=2", ["install all"]),
        ("pyproject.toml", "pytest>=8", "pytest>=9", ["install all"]),
        ("twisted_msgproto/scan.c", "", "/* changed */", ["install all"]),
        (".venv/installed.json", sys.version.split()[0], "3.11.0", ["venv", "install all"]),
        (".venv/installed.json", '"root": "/', '"root": "/elsewhere/', ["venv", "install all"]),
    ],
)
def test_the_set_up_happens_once_and_again_after_a_change_that_matters(
    world: World, name: str, old: str, new: str, again: list[str]
) -> None:
    world.run.set_up()
    assert world.since() == ["venv", "install all"]
    file = world.run.ROOT / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    world.run.set_up()
    assert world.since() == again


def test_a_set_up_which_broke_off_is_done_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(world.run, "install", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.run.set_up()
    world.since()
    world.run.set_up()
    assert world.since() == ["venv", "install all"]


def test_without_java_the_extra_java_comes_too_and_stays(world: World) -> None:
    world.run.set_up()
    assert world.since() == ["venv", "install all"]
    world.java = False
    world.run.set_up()
    assert world.since() == ["install all,java"]
    world.run.set_up()
    assert world.since() == []
    world.java = True
    (world.run.ROOT / "pyproject.toml").write_text(PYPROJECT.replace("a>=1", "a>=2"))
    world.run.set_up()
    assert world.since() == ["install all,java"]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_environment_that_is_a_link_is_refused_and_what_it_leads_to_stays(
    world: World, tmp_path: Path
) -> None:
    """Clearing it would empty the environment of another checkout."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "installed.json").write_text("{}")
    world.run.VENV.symlink_to(other)
    with pytest.raises(world.run.Stop, match="is a symbolic link, and nothing was changed"):
        world.run.set_up()
    assert world.since() == []
    assert (other / "installed.json").exists()


def test_pip_which_fails_ends_with_its_last_words(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script(run.PYTHON, "echo collecting; echo 'no such package' >&2; exit 1")
    with pytest.raises(run.Stop, match=r"all it said is in .*install\.log"):
        run.install({"all"})
    assert "  pip: no such package\n" in capsys.readouterr().err
    assert run.LOG.read_text() == "collecting\nno such package\n"


def test_a_failed_set_up_and_ctrl_c_are_one_line_and_a_status(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, status, line in (
        (world.run.Stop("it is so"), 1, "run: it is so\n"),
        (KeyboardInterrupt(), 130, "run: interrupted"),
    ):
        monkeypatch.setattr(world.run, "install", Mock(side_effect=error))
        assert world.run.main(["demo"]) == status
        told = capsys.readouterr().err
        assert told.startswith(line) and told.count("\n") == 1


@pytest.mark.parametrize("form", ["test", "long"])
def test_the_long_form_alone_installs_what_no_other_needs(
    world: World, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Where it is missing, tests of the long form are skipped, and say so."""
    monkeypatch.chdir(world.run.ROOT)
    started, became = Mock(return_value=Mock(returncode=0)), Mock()
    monkeypatch.setattr(world.run.subprocess, "run", started)
    monkeypatch.setattr(world.run.os, "execve", became)
    world.run.main([form])
    installed = [call.args[0] for call in started.mock_calls if "checker>=2" in call.args[0]]
    assert len(installed) == (form == "long")
    assert ("--long" in became.mock_calls[0].args[1]) is (form == "long")


@pytest.mark.parametrize(
    ("home", "path", "found"),
    [("17", None, True), ("11", "21", True), ("11", None, False), (None, "1.8", False)],
)
def test_java_is_looked_for_in_java_home_and_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, path: str | None, found: bool
) -> None:
    run = loaded(monkeypatch)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    if home:
        script(tmp_path / "home/bin/java", f"echo 'openjdk version \"{home}.0.1\"'")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    if path:
        script(tmp_path / "path/java", f"echo 'openjdk version \"{path}.0.1\"'")
    assert run.has_java() is found


def test_the_sub_command_takes_its_place_in_the_environment(world: World) -> None:
    """The exit status and the output are the sub-command's; PATH begins with the environment's.

    What is imported is compiled once, whatever the environment says.
    """
    copied = world.run.ROOT / "run"
    (world.run.ROOT / "tests" / "core").mkdir(parents=True)
    shutil.copy(RUN, copied)
    world.run.set_up()
    script(world.run.PYTHON, 'echo "$@"; echo "$PATH"; echo "$PYTHONDONTWRITEBYTECODE"; exit 7')
    path = world.run.ROOT / "java-path"
    script(path / "java", "echo 'openjdk version \"21\"'")
    paths = f"{path}:{os.environ['PATH']}"
    for arguments, run in (
        (["queue", "ls"], "-m twisted_msgproto queue ls"),
        (["check", "gateway.toml"], "-m twisted_msgproto check gateway.toml"),
        (["check"], "-m tests.check"),
        (["quick", "core", "-k", "x"], "-m pytest -q -m not slow tests/core -k x"),
    ):
        ended = subprocess.run(
            [sys.executable, str(copied), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert (ended.returncode, ended.stderr) == (7, "")
        words, path_line, unwritten = ended.stdout.splitlines()
        assert words == run
        assert path_line.startswith(str(world.run.VENV / "bin"))
        assert unwritten == ""


def test_it_is_stdlib_only_and_an_old_python_can_read_it_far_enough_to_complain() -> None:
    tree = ast.parse(RUN.read_text(), feature_version=(3, 7))
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert names <= sys.stdlib_module_names
    check = next(i for i, node in enumerate(tree.body) if isinstance(node, ast.If))
    before = [node for node in tree.body[:check] if not isinstance(node, ast.Expr)]
    assert [ast.unparse(node) for node in before] == ["import sys"]
