"""``msgproto``: a table of sub-commands, each imported when asked for; errors are one line.

``msgproto completion``: the shells themselves run what is printed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.tools.processes import Launcher, environment
from twisted_msgproto import __version__, cli
from twisted_msgproto.core.errors import ConfigurationError, QueueLocked


def planted(monkeypatch: pytest.MonkeyPatch, result: object) -> None:
    @click.command()
    @click.option("--number", type=int)
    def run(number: int | None) -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    module = ModuleType("planted")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "twisted_msgproto.cli.demo", module)


def test_without_a_sub_command_it_lists_them_and_says_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    assert "send" in capsys.readouterr().out


def test_help_names_every_sub_command_and_imports_none_of_them(
    launch: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys\n"
        "from twisted_msgproto import cli\n"
        "assert cli.main(['--help']) == 0\n"
        "print([n for n in sys.modules if n.startswith(('twisted_msgproto.cli.', 'twisted.'))])"
    )
    told = launch.command([sys.executable, "-c", code])
    assert told.wait() == 0, told.output
    assert told.lines[-1] == "[]"
    for name, summary in cli.COMMANDS.items():
        words = r"\s+".join(map(re.escape, summary.split()))
        assert re.search(rf"^  {name} +{words}$", told.output, re.M), name


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_sub_command_and_every_action_of_it_prints_its_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: msgproto {name} ")
    assert not re.search(r"^  \w+ *$", told.partition("Actions:")[2], re.M)
    assert "``" not in told
    for action in re.findall(r"^  (\w+) +\w", told.partition("Actions:")[2], re.M):
        assert cli.main([name, action, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: msgproto {name} {action} ")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"msgproto {__version__}\n"


def test_an_unknown_sub_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fly"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("msgproto: unknown sub-command 'fly'; known: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("status", [0, 1, 7])
def test_the_exit_status_is_the_sub_commands(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    planted(monkeypatch, status)
    assert cli.main(["demo", "--number", "3"]) == status


@pytest.mark.parametrize(
    "error", [ConfigurationError("no\nsuch  port"), QueueLocked("no\nsuch port")]
)
def test_an_operators_fault_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    planted(monkeypatch, error)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == "msgproto demo: no such port\n"


def test_a_missing_extra_is_one_line_which_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(monkeypatch, ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.flight"))
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == (
        "msgproto demo: pyarrow is not installed: pip install 'twisted-msgproto[queue]'\n"
    )


def test_a_module_of_our_own_which_is_missing_is_a_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted(monkeypatch, ModuleNotFoundError("No module named 'x'", name="twisted_msgproto.x"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])


def test_ctrl_c_has_the_shells_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, KeyboardInterrupt())
    assert cli.main(["demo"]) == 130


def test_a_reader_that_went_away_is_no_traceback(launch: Launcher) -> None:
    code = "import sys; from twisted_msgproto import cli; sys.exit(cli.main(['--help']))"
    shell = launch.command(["sh", "-c", f'{sys.executable} -c "{code}" | true; echo ended'])
    assert shell.wait() == 0
    assert shell.lines == ["ended"]


def test_python_m_is_the_same_command(launch: Launcher) -> None:
    ended = launch.run("--version")
    assert (ended.returncode, ended.stdout) == (0, f"msgproto {__version__}\n")


def test_importing_a_sub_command_starts_no_reactor_and_no_spark(launch: Launcher) -> None:
    code = (
        "import sys, importlib\n"
        "from twisted_msgproto import cli\n"
        "for name in cli.COMMANDS:\n"
        "    importlib.import_module(f'twisted_msgproto.cli.{name}')\n"
        "    heavy = {'twisted.internet.reactor', 'pyspark', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
    )
    told = launch.command([sys.executable, "-c", code])
    assert told.wait() == 0, told.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gateway", "--confg", "x"], "gateway: unknown option --confg (did you mean '--config'?)"),
        (["queue", "tal", "q"], "queue: 'tal' is none of ls, verify, dump, tail, consumers, trim"),
        (["queue", "tal", "q"], "(did you mean 'tail'?); see msgproto queue --help"),
        (["queue", "tail", "q", "--folow"], "unknown option --folow (did you mean '--follow'?)"),
        (
            ["send"],
            "send: Missing argument 'PROTOCOL'; see msgproto send --help",
        ),
        (
            ["demo", "--messages", "x"],
            "a whole number from 1 on is expected, not 'x'",
        ),
        (
            ["demo", "--messages", "0"],
            "a whole number from 1 on is expected, not '0'",
        ),
        (["gatway"], "unknown sub-command 'gatway' (did you mean 'gateway'?)"),
        (["send", "umq", "--compress", "10"], "a whole number from 0 to 9 is expected, not '10'"),
        (["send", "umq", "--compress", "-1"], "a whole number from 0 to 9 is expected, not '-1'"),
        (["send", "umq", "--protocol-version", "3"], "a whole number from 1 to 2 is expected"),
        (["send", "umq", "--timeout", "0"], "a number of seconds, more than 0, is expected"),
        (["send", "umq", "--timeout", "nan"], "a number of seconds, more than 0, is expected"),
        (["send", "umq", "--property", "=x"], "NAME=VALUE is expected, not '=x'"),
        (["queue", "tail", "q", "-n", "-1"], "a whole number from 0 on is expected, not '-1'"),
        (["queue"], "msgproto queue: Missing command"),
        (["status", "--json", "--watch"], "--json, --watch and --grafana exclude each other"),
        (
            ["queue", "consumers", "q", "--forget", "a", "--reset", "a", "0"],
            "msgproto queue consumers: --forget and --reset exclude each other; see msgproto queue",
        ),
        (["table", "expire", "t"], "it needs one of --before DAY and --keep AGE"),
        (["table", "expire", "t", "--before", "d", "--keep", "1d"], "it needs one of --before DAY"),
    ],
)
def test_what_was_mistyped_is_one_line_that_says_what_was_meant(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_the_gateway_is_what_twistd_runs_with_all_that_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("twisted.scripts.twistd.run", lambda: ran.append(sys.argv[1:]))
    monkeypatch.setattr(sys, "argv", ["msgproto"])
    said = ["--config=g.toml", "--queue=q", "--limit=a=1", "--limit=b=2", "--set=status.x=y"]
    said += ["--log-sessions", "--json-log", "--show-config"]
    assert cli.main(["gateway", *said]) == 0
    assert ran == [["--nodaemon", "--pidfile=", "msgproto", *said]]
    assert cli.main(["gateway", "-c", "g.toml"]) == 0
    assert ran[1:] == [["--nodaemon", "--pidfile=", "msgproto", "--config=g.toml"]]


def test_one_of_the_options_that_exclude_each_other_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["status", "--grafana"]) == 0
    assert capsys.readouterr().out.startswith("{")


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


@pytest.mark.parametrize("words", ["--help", "--version", "doctor --help"])
@pytest.mark.parametrize(
    ("output", "said"),
    [
        (">&-", ""),
        (">/dev/full", "msgproto: cannot write the output: No space left on device\n"),
    ],
    ids=["closed", "full"],
)
def test_an_output_that_cannot_be_written_is_one_line(words: str, output: str, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m twisted_msgproto {words} {output}', sys.executable],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.stderr, done.returncode) == (said, 2 if said else 0)
