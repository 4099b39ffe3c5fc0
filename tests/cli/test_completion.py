"""``msgproto completion``: the shells themselves run what is printed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twisted_msgproto import cli

MSGPROTO = Path(sys.executable).with_name("msgproto")

BASH = """
source "$1"; shift
compopt() { COMPREPLY+=("(a path)"); }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_msgproto_completion "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        with pytest.MonkeyPatch.context() as patch, (directory / shell).open("w") as file:
            patch.setattr("sys.stdout", file)
            assert cli.main(["completion", shell]) == 0
    return directory


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], [*cli.COMMANDS]),
        (["ga"], ["gateway"]),
        (["--v"], ["--version"]),
        (["reload", "--"], ["--token-file", "--tls-ca", "--json", "--help"]),
        (["queue", "t"], ["tail", "trim"]),
        (["queue", "tail", "-f", "--pro"], ["--protocol"]),
        (["queue", "ls", "--pro"], []),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["send", "lum"], ["lumberjack"]),
        (["queue", "tail", "--protocol", "um"], ["umq"]),
        (["bridge", "--start", ""], ["begin"]),
        (["queue", "ls", "my"], ["(a path)"]),
        (["send", "--tls-ca", "my"], ["(a path)"]),
        (["send", "--window", ""], []),
    ],
    ids=lambda words: " ".join(words) or "nothing",
)
def test_bash_offers_what_may_stand_there(
    scripts: Path, words: list[str], offered: list[str]
) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", scripts / "bash", MSGPROTO, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if line] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_its_script(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: apt-get install {shell}")
    done = subprocess.run(
        [shell, "-n", scripts / shell], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
def test_fish_offers_the_same(scripts: Path) -> None:
    program = f"set PATH {MSGPROTO.parent} $PATH; source {scripts / 'fish'}"
    program += '; complete -C "msgproto queue t"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", program], capture_output=True, text=True, timeout=60
    )
    names = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert names == ["tail", "trim"], done.stderr
