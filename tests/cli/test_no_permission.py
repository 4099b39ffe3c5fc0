"""What an operator may not read or write is one line with the file and the remedy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.processes import PROJECT, environment

# Also root has no rights then but those of the files' modes.
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]

COMMANDS = {
    "init": ["init", "closed/x"],
    "init there": ["init", "closed"],
    "doctor": ["doctor", "--queue", "closed/queue"],
    "check": ["check", "closed/g.toml"],
    "gateway": ["gateway", "--config=closed/g.toml"],
    "gateway with a queue": ["gateway", "--config=g.toml", "--queue=closed/queue"],
    "queue ls": ["queue", "ls", "closed/queue"],
    "queue verify": ["queue", "verify", "closed/queue"],
    "queue dump": ["queue", "dump", "closed/queue"],
    "queue tail": ["queue", "tail", "closed/queue"],
    "queue consumers": ["queue", "consumers", "closed/queue"],
    "queue trim": ["queue", "trim", "closed/queue"],
    "queue mend": ["queue", "mend", "closed/queue"],
    "broker ls": ["broker", "ls", "closed/queue"],
    "status": ["status", "closed/queue"],
    "reload": ["reload", "closed/queue"],
    "flight": ["flight", "--queue=closed/queue"],
    "table counts": ["table", "counts", "closed/table"],
    "table verify": ["table", "verify", "closed/table"],
    "bridge": ["bridge", "--queue=closed/queue", "--table=table"],
    "passwd": ["passwd", "closed/users", "me", "--delete"],
    "send": ["send", "lumberjack", "tls:127.0.0.1:1", "--tls-ca=closed/ca.pem"],
    "send with a password": [
        "send",
        "sabc",
        "tcp:127.0.0.1:1",
        "--user=a",
        "--password-file=closed/p",
    ],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "g.toml").write_text('[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    (tmp_path / "closed").mkdir(mode=0o000)
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_every_command_says_in_one_line_what_it_may_not_use(
    directory: Path, words: list[str]
) -> None:
    """RD-14"""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv of util-linux is missing")
    done = subprocess.run(
        [*POWERLESS, sys.executable, "-m", "twisted_msgproto", *words],
        cwd=directory,
        env=environment(PYTHONPATH=str(PROJECT)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode in (1, 2)
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) <= 1 or words[0] == "gateway", said
    assert "closed" in said
    assert "ermission denied" in said or "may not use" in said


def test_a_user_who_is_not_there_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """RD-14"""
    words = [sys.executable, "-m", "twisted_msgproto", "init", "here", "--user=nosuchuser"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert "useradd --system nosuchuser" in done.stderr
    assert not (tmp_path / "here").exists()
