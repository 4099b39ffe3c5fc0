"""A process that is forked from one with the packages behaves as one that is started as usual."""

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


OUTER = """
import json, os, subprocess, sys
command = [sys.executable, "-m", "probe"]
pipe = subprocess.PIPE
ended = subprocess.run([*command, *sys.argv[1:]], input="input", capture_output=True, text=True)
waits = subprocess.Popen([*command, "0"], stdin=pipe, stdout=pipe, start_new_session=True)
waits.poll(); before = waits.returncode; session = os.getsid(waits.pid) == waits.pid
waits.kill()
other = subprocess.run(["sh", "-c", "exit 4"]).returncode
print(json.dumps([ended.returncode, ended.stdout, ended.stderr.splitlines()[-1],
                  before, session, waits.wait(60), waits.poll(), other]))
print(type(waits).__name__)
"""


@pytest.mark.parametrize("how", ["0", "3", "text", "raise", "kill", "interrupt"])
def test_what_it_starts_is_as_if_it_had_been_started_as_usual(tmp_path: Path, how: str) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "outer.py").write_text(OUTER)
    command = [sys.executable, "-m", "outer", how, "a word"]
    env, pipe = environment(PROBE="set"), subprocess.PIPE
    forked = begun(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stderr=pipe)
    said, kind = forked.communicate("", 60)[0].splitlines()
    usual = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert json.loads(said) == json.loads(usual.stdout.splitlines()[0])
    assert json.loads(said)[3:] == [None, True, -9, -9, 4]
    assert (kind, usual.stdout.splitlines()[1]) == ("Nested", "Popen")


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "PYTHONHASHSEED"])
def test_what_decides_at_a_start_starts_a_process_as_usual(tmp_path: Path, name: str) -> None:
    env = {**environment(), name: "" if name == "LD_PRELOAD" else "0"}
    command = [sys.executable, "-m", "twisted_msgproto", "--version"]
    process = begun(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL)
    assert isinstance(process, subprocess.Popen)
    process.communicate()
