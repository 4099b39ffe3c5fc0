"""``msgproto``: a table of sub-commands, each imported when asked for; errors are one line."""

import argparse
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.tools.processes import Launcher
from twisted_msgproto import __version__, cli
from twisted_msgproto.core.errors import ConfigurationError, QueueLocked


def planted(monkeypatch: pytest.MonkeyPatch, result: object) -> None:
    module = ModuleType("planted", "Does nothing.")
    module.SUMMARY = "nothing"  # type: ignore[attr-defined]
    module.configure = lambda parser: parser.add_argument("--number", type=int)  # type: ignore[attr-defined]

    def run(arguments: object) -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planted", module)
    monkeypatch.setattr(cli, "available", lambda: ["demo"])
    monkeypatch.setattr(cli, "COMMANDS", {"demo": "planted"})


def test_without_a_sub_command_it_lists_them_and_says_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    assert "send" in capsys.readouterr().out


def test_help_names_every_sub_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    for name in cli.available():
        assert re.search(rf"^  {name} +{re.escape(cli.load(name).SUMMARY)}$", told, re.M)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_sub_command_and_every_action_of_it_prints_its_help(name: str) -> None:
    whole = cli.Parser(prog=f"msgproto {name}")
    cli.load(name).configure(whole)
    for parser in parsers(whole):
        told = parser.format_help()
        assert told.startswith(f"usage: {parser.prog}")
        assert "%" not in re.sub(r"\d+ %", "", told), "a percent sign that argparse did not read"


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


def test_help_survives_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr(cli, "load", load)
    assert cli.main(["--help"]) == 0
    assert "(pyspark is not installed: pip install 'twisted-msgproto[spark]')" in (
        capsys.readouterr().out
    )


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
        "for name in cli.available():\n"
        "    cli.load(name)\n"
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
            "send: the following arguments are required: PROTOCOL; see msgproto send",
        ),
        (["demo", "--messages", "x"], "demo: --messages is a whole number from 1 on, not 'x'; see"),
        (["gatway"], "unknown sub-command 'gatway' (did you mean 'gateway'?)"),
    ],
)
def test_what_was_mistyped_is_one_line_that_says_what_was_meant(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(words)
    except SystemExit as ended:
        status = int(str(ended.code))
    said = capsys.readouterr().err
    assert status == 2
    assert text in said
    assert said.count("\n") == 1
