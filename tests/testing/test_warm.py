"""A process that is forked from one with the packages behaves as one that is started as usual."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import warm
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
