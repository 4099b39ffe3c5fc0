"""A process that is forked from one with the packages behaves as one that is started as usual.

The archive of Spark's classes is made once for each Java and Spark, or done without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tools import java_classes, warm
from tests.tools.processes import begun, environment

PROBE = """
import json, os, signal, sys
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("PROBE"), sys.stdin.read(),
                  __name__, signal.getsignal(signal.SIGINT) is signal.default_int_handler]))
print("told", file=sys.stderr)
how = sys.argv[1]
if how == "text": sys.exit("a line")
if how == "raise": raise KeyError("gone")
if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
if how == "interrupt": raise KeyboardInterrupt
sys.exit(int(how))
"""


@pytest.mark.parametrize("how", ["0", "3", "text", "raise", "kill", "interrupt"])
def test_it_has_the_words_place_variables_streams_and_status_of_a_usual_one(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "probe", how, "a word"]
    env = environment(PROBE="set")
    pipe = subprocess.PIPE
    forked = begun(command, cwd=tmp_path, env=env, stdin=pipe, stderr=pipe)
    assert isinstance(forked, warm.Forked)
    output, errors = forked.communicate("input", 60)
    usual = subprocess.run(
        command, cwd=tmp_path, env=env, input="input", capture_output=True, text=True
    )
    assert (forked.wait(), output) == (usual.returncode, usual.stdout)
    assert json.loads(output)[:2] == [[how, "a word"], str(tmp_path)]
    assert errors.splitlines()[0] == "told"
    assert errors.splitlines()[-1] == usual.stderr.splitlines()[-1]
    assert not os.path.exists(f"/proc/{forked.pid}")


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "PYTHONHASHSEED"])
def test_what_decides_at_a_start_starts_a_process_as_usual(tmp_path: Path, name: str) -> None:
    env = {**environment(), name: "" if name == "LD_PRELOAD" else "0"}
    command = [sys.executable, "-m", "twisted_msgproto", "--version"]
    process = begun(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL)
    assert isinstance(process, subprocess.Popen)
    process.communicate()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The Spark of each archive that is made; of none, where Java makes none."""
    stamps: list[str] = []

    def make(environment: Mapping[str, str]) -> None:
        wanted = java_classes.wanted_stamp()
        assert wanted is not None
        stamps.append(wanted)
        if wanted != "a Java that makes none":
            java_classes.ARCHIVE.touch()

    monkeypatch.setattr(java_classes, "ARCHIVE", tmp_path / "classes.jsa")
    monkeypatch.setattr(java_classes, "STAMP", tmp_path / "classes.txt")
    monkeypatch.setattr(java_classes, "make", make)
    return stamps


def test_it_is_made_once_for_each_java_and_spark(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stamp in ("4.1", "4.1", "4.2", "4.2"):
        monkeypatch.setattr(java_classes, "wanted_stamp", lambda stamp=stamp: stamp)
        assert java_classes.main([]) == 0
    assert made == ["4.1", "4.2"]
    assert f"-XX:SharedArchiveFile={java_classes.ARCHIVE} " in java_classes.options()


def test_without_it_java_starts_the_usual_way(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "wanted_stamp", lambda: "a Java that makes none")
    assert [java_classes.main([]), java_classes.main([])] == [1, 1]
    assert java_classes.options() == java_classes.QUICK


def test_without_java_or_spark_there_is_nothing_to_make(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "wanted_stamp", lambda: None)
    assert (java_classes.main([]), made) == (0, [])
