"""Every shell command of the documents runs in a test, or a table says why it does not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from tests.docs.quarter import PAGE as QUICK_START
from tests.docs.shell import BLOCK, Command, Terminal, commands
from tests.docs.test_examples import PAGES
from tests.tools.certificates import Authority
from tests.tools.endpoints import reserved
from tests.tools.processes import PROJECT, START_SECONDS, Launched, Launcher, environment
from twisted_msgproto import cli, registry
from twisted_msgproto.gateway import Configuration

TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text())
NOT_RUN = {begins: why for rows in TABLE.values() for begins, why in rows.items()}
TOLD = [*PAGES, PROJECT / "CONTRIBUTING.md"]

RUN_BELOW = {
    "docs/protocols/lumberjack.md": "twistd -n lumberjack -e tcp:",
    "docs/protocols/micromsg2.md": "twistd -n micromsg2 -e tcp:",
    "docs/protocols/umq.md": "twistd -n umq -e tcp:",
    "docs/protocols/sabc.md": "twistd -n sabc -e tcp:",
    "docs/javascript.md": "twistd -n umq -e tcp:",
    "docs/operations.md": "twistd -n lumberjack -e tcp:",
}
"""Pages whose block that begins so is run by a test below, whole."""


WHOLE = PROJECT / "docs" / "tls-and-users.md"
"""A page whose commands are run below, one after another."""


def blocks(page: Path) -> Iterator[list[Command]]:
    for found in BLOCK.finditer(page.read_text()):
        yield list(commands(found[0]))


def block_that_runs(name: str) -> list[Command]:
    (block,) = (
        block
        for block in blocks(PROJECT / name)
        if any(command.text.startswith(RUN_BELOW[name]) for command in block)
    )
    return [command for command in block if not rows_of(command.text)]


def rows_of(text: str) -> list[str]:
    return [begins for begins in NOT_RUN if text.startswith(begins)]


def all_commands() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(PROJECT)), command.text)
        for page in TOLD
        for command in commands(page.read_text())
    ]


def test_every_command_runs_in_a_test_or_has_a_row_that_says_why_not() -> None:
    run = {command.text for command in commands(QUICK_START.read_text())}
    run |= {command.text for name in RUN_BELOW for command in block_that_runs(name)}
    run |= {command.text for command in commands(WHOLE.read_text()) if not rows_of(command.text)}
    run |= {"msgproto queue verify /var/spool/msgproto"}  # at the end of each of these blocks
    neither = [row for row in all_commands() if row[1] not in run and not rows_of(row[1])]
    assert neither == [], "run them, or add a row to tests/docs/commands.toml"


def test_every_row_of_the_table_has_a_command_and_names_tests_that_exist() -> None:
    told = [text for _, text in all_commands()]
    assert [row for row in NOT_RUN if not any(text.startswith(row) for text in told)] == []
    for why in NOT_RUN.values():
        for name in re.findall(r"tests/[\w/.]+\w", why):
            assert (PROJECT / name).exists(), name


def test_the_readme_shows_commands_of_the_quick_start() -> None:
    run = {command.text for command in commands(QUICK_START.read_text())}
    shown = {command.text for command in commands((PROJECT / "README.md").read_text())}
    assert {text for text in shown if not text.startswith("./run ")} <= run


def calls(text: str) -> Iterator[list[str]]:
    """The words of each ``msgproto`` and ``twistd`` in a command line."""
    for part in re.split(r"[|&]", text):
        words = shlex.split(re.split(r"\s[<>]\s", part)[0])
        name = words[0].rpartition("/")[2] if words else ""
        if words[:1] == ["./run"] and words[1] in cli.COMMANDS and words[1:] != ["check"]:
            yield ["msgproto", *words[1:]]
        elif name in ("msgproto", "twistd"):
            yield [name, *words[1:]]


CALLS = sorted({tuple(call) for _, text in all_commands() for call in calls(text)})


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_the_words_of_a_command_are_understood(
    monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]
) -> None:
    """Names of sub-commands, options and protocols are those that the programs know."""
    if call[0] == "twistd":
        name = call[2]
        if name in registry.PROTOCOLS:
            options = registry.part(name, "service", "Options")()
            try:
                options.parseOptions(list(call[3:]))
            except SystemExit as told:
                # Files and classes of the reader are not here; words that are wrong are told first.
                assert re.search(r"No such file|my\.app", str(told)), told
        else:
            assert name in ("msgproto", "lines")
        return
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: 0)
    assert cli.main(call[1:]) == 0, f"{' '.join(call)} is not understood"


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_BELOW)
def test_the_commands_of_a_page_run(launch: Launcher, name: str) -> None:
    """With a free port, and the queue in a directory of the test."""
    first, *rest = block_that_runs(name)
    server = launch(*server_words(launch, first.text), module="twisted")
    protocol = first.text.split()[2]
    port = server.port(protocol)
    for command in rest:
        words = [re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", word)
                 for word in shlex.split(command.text)[1:]]  # fmt: skip
        ended = launch.run(*words, seconds=START_SECONDS)
        assert ended.returncode == 0, ended.stderr
    assert server.end() == -signal.SIGTERM, server.output
    if "--queue" in first.text:
        verified = launch.run("queue", "verify", launch.directory / "spool")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def server_words(launch: Launcher, text: str) -> list[str]:
    """What follows ``twistd -n``, with a port and a directory of the test."""
    words = shlex.split(text)[2:]
    words = [re.sub(r"^tcp:\d+(:.*)?$", "tcp:0:interface=127.0.0.1", word) for word in words]
    return [str(launch.directory / "spool") if word.startswith("/var/spool") else word
            for word in words]  # fmt: skip


@pytest.fixture
def ports() -> Iterator[dict[str, str]]:
    """The ports that pages name, and free ones for them."""
    named = [*map(str, range(5044, 5051)), "8480"]
    with reserved(len(named)) as free:
        yield dict(zip(named, map(str, free), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_the_page_about_tls_and_users_runs_from_its_first_command_to_its_last(
    launch: Launcher, ports: Mapping[str, str]
) -> None:
    """With free ports, localhost as the name, and a directory of the test."""
    here, page = launch.directory / "srv", WHOLE.read_text()
    here.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    places = {"/srv/msgproto": str(here), "gw1.example": "localhost", **ports}

    def here_and_now(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    def serve(endpoint: str) -> Launched:
        file = (here / "gateway.toml").read_text()
        file = re.sub(r"(?<=\[lumberjack\]\n)(.*\n)endpoint = .*", rf"\1{endpoint}", file)
        (here / "gateway.toml").write_text(file)
        terminal.run(Command(f"msgproto gateway --config {here}/gateway.toml"))
        (gateway,) = terminal.running.values()
        terminal.running.clear()
        return gateway

    def served() -> str:
        """The certificate that a new connection is shown."""
        words = ["openssl", "s_client", "-connect", here_and_now("gw1.example:5044")]
        shown = subprocess.run(
            [*words, "-servername", "localhost"], input="", capture_output=True, text=True
        )
        return re.findall(r"-----BEGIN CERTIFICATE.*?END CERT", shown.stdout, re.DOTALL)[0]

    terminal = Terminal(launch, environment(PATH=path))
    (restricted, from_directory) = (
        here_and_now(text).splitlines()[1] for text in re.findall(r"(?s)```toml\n(.*?)```", page)
    )
    gateway: Launched | None = None
    for command in commands(page):
        if command.text.startswith(("chmod", "certbot")):
            continue
        if "--tls-cert" in command.text:
            assert gateway is not None
            gateway.end()
            gateway = serve(here_and_now(restricted))
            plain = here_and_now(command.text).partition(" --tls-cert")[0]
            assert launch.command(["sh", "-c", plain], env=terminal.env).wait() == 1
        if command.stays:
            gateway = serve(here_and_now('endpoint = ["ssl:5044:privateKey=tls/gw1.example.pem"]'))
            continue
        before = served() if "reload" in command.text else ""
        terminal.run(Command(here_and_now(command.text)))
        if before:
            assert served() != before
        if command.text.startswith("msgproto init"):
            file = (here / "gateway.toml").read_text()
            file = re.sub(rf"\b({'|'.join(ports)})\b", lambda found: places[found[0]], file)
            file = file.replace("[mtl]", "[mtl]\nendpoint = 'tcp://127.0.0.1:*'")
            (here / "gateway.toml").write_text(file)
    dumped = launch.run("queue", "dump", str(here / "queue")).stdout
    assert dumped.count("CN=web-1") == 1
    # certbot's files, and the script that it runs
    assert gateway is not None
    gateway.end()
    gateway = serve(here_and_now(from_directory))
    before = served()
    (script,) = re.findall(r"(?s)```bash\n(.*?)```", page)
    renewed, lineage = here / "renewed", launch.directory / "live"
    renewed.write_text(here_and_now(script))
    renewed.chmod(0o700)
    lineage.mkdir()
    pair = Authority(lineage).server()
    pair.key.rename(lineage / "privkey.pem")
    pair.cert.rename(lineage / "fullchain.pem")
    hook = [str(renewed)]
    assert launch.command(hook, env={**terminal.env, "RENEWED_LINEAGE": str(lineage)}).wait() == 0
    assert served() != before
    assert stat.S_IMODE((here / "tls" / "localhost.pem").stat().st_mode) == 0o640
    gateway.end()


def files_shown() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(PROJECT)), text)
        for page in PAGES
        for text in re.findall(r"^```(?:toml|ini)\n(.*?)^```$", page.read_text(), re.M | re.S)
    ]


@pytest.mark.parametrize(("name", "text"), files_shown())
def test_a_file_that_a_page_shows_can_be_read(name: str, text: str) -> None:
    tables = tomllib.loads(text)
    if text.startswith("# gateway.toml"):
        assert list(Configuration(tables).servers)
