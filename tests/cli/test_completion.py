"""``msgproto completion``: the shells themselves run what is printed."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from twisted_msgproto.cli import available, load, main


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        with pytest.MonkeyPatch.context() as patch, (directory / shell).open("w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    return directory


def completed(scripts: Path, *words: str, where: Path | None = None) -> list[str]:
    program = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_msgproto
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", scripts / "bash", "msgproto", *words],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_every_sub_command_is_offered(scripts: Path) -> None:
    assert completed(scripts, "") == [name for name in available()]
    assert completed(scripts, "ga") == ["gateway"]
    assert completed(scripts, "--v") == ["--version"]


def test_every_option_of_every_sub_command_is_offered(scripts: Path) -> None:
    for name in ("send", "recv", "gateway", "bridge", "reload"):
        parser = argparse.ArgumentParser()
        load(name).configure(parser)
        flags = {
            flag
            for action in parser._actions
            if action.help != argparse.SUPPRESS
            for flag in action.option_strings
        }
        assert set(completed(scripts, name, "-")) == flags, name


def test_actions_and_their_options_are_offered(scripts: Path) -> None:
    assert completed(scripts, "queue", "t") == ["tail", "trim"]
    assert completed(scripts, "queue", "tail", "-f", "--pro") == ["--protocol"]
    assert completed(scripts, "queue", "ls", "--pro") == []
    assert completed(scripts, "completion", "") == ["bash", "fish", "zsh"]


def test_values_are_offered(scripts: Path, tmp_path: Path) -> None:
    assert completed(scripts, "send", "lum") == ["lumberjack"]
    assert completed(scripts, "queue", "tail", "--protocol", "m") == ["micromsg2", "mtl"]
    assert completed(scripts, "queue", "tail", "--protocol", "=", "um") == ["umq"]
    assert completed(scripts, "bridge", "--start", "") == ["begin"]
    (tmp_path / "my queue").mkdir()
    (tmp_path / "my.pem").touch()
    for words in (("queue", "ls", "my"), ("send", "--tls-ca", "my")):
        offered = completed(scripts, *words, where=tmp_path)
        assert {"my queue", "my.pem"} <= set(offered)
    assert completed(scripts, "send", "--window", "", where=tmp_path) == []


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
    program = f'source {scripts / "fish"}; complete -C "msgproto queue t"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", program], capture_output=True, text=True, timeout=60
    )
    names = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert names == ["tail", "trim"], done.stderr
