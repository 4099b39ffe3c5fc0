"""Every shell command of the documents runs in a test, or a table says why it does not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import click
import pytest

from tests.docs.quarter import PAGE as QUICK_START
from tests.docs.shell import BLOCK, Command, commands
from tests.docs.test_examples import PAGES
from tests.tools.certificates import Authority
from tests.tools.endpoints import reserved
from tests.tools.loops import landed_offsets
from tests.tools.processes import (
    PATIENCE_SECONDS,
    PROJECT,
    START_SECONDS,
    Launched,
    Launcher,
    environment,
)
from twisted_msgproto import cli, registry
from twisted_msgproto.gateway import Configuration
from twisted_msgproto.lumberjack import LumberjackClient
from twisted_msgproto.micromsg2 import MicroMsg2Client
from twisted_msgproto.mtl import MtlClient
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.sabc import SabcClient
from twisted_msgproto.umq import UmqClient

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


SYMPTOMS = PROJECT / "docs" / "troubleshooting.md"
"""A page whose remedies are run below, each after what it is for."""

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
    run |= {command.text for command in commands(SYMPTOMS.read_text())}
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
    named = [*map(str, range(5044, 5051)), "5144", "8480"]
    with reserved(len(named)) as free:
        yield dict(zip(named, map(str, free), strict=True))


def typed(launch: Launcher, text: str, status: int = 0) -> str:
    """Run a command to its end, as it is typed, and return what it printed; ours are forked."""
    ours = re.fullmatch(r"(?:echo (.+) \| )?msgproto ([^<|]+)(?:< (\S+))?", text)
    if ours is None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = launch.command(["sh", "-c", text], env=environment(PATH=path))
        assert done.wait() == status, done.output
        return done.output
    words = shlex.split(ours[2])
    # A bridge is its own worker here: Java would take its time.
    module, words = (
        ("tests.tools.dying", ["--here", *words])
        if words[0] == "bridge"
        else ("twisted_msgproto", words)
    )
    echoed = "".join(f"{word}\n" for word in shlex.split(ours[1] or ""))
    stdin = (launch.directory / ours[3]).read_text() if ours[3] else echoed
    ended = launch.run(*words, module=module, stdin=stdin, seconds=START_SECONDS)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def replaced(text: str, names: Mapping[str, str]) -> str:
    """Replace all names at once: a free port may have another name of the page in its digits."""
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_the_page_about_tls_and_users_runs_from_its_first_command_to_its_last(
    launch: Launcher, ports: Mapping[str, str]
) -> None:
    """With free ports, localhost as the name, and a directory of the test."""
    here, page = launch.directory / "srv", WHOLE.read_text()
    here.mkdir()
    places = {"/srv/msgproto": str(here), "gw1.example": "localhost", **ports}

    def here_and_now(text: str) -> str:
        return replaced(text, places)

    def serve(endpoint: str) -> Launched:
        file = (here / "gateway.toml").read_text()
        file = re.sub(r"(?<=\[lumberjack\]\n)(.*\n)endpoint = .*", rf"\1{endpoint}", file)
        (here / "gateway.toml").write_text(file)
        gateway = launch("gateway", "--config", here / "gateway.toml")
        gateway.line("lumberjack listening")
        return gateway

    def served() -> str:
        """The certificate that a new connection is shown."""
        words = ["openssl", "s_client", "-connect", here_and_now("gw1.example:5044")]
        shown = subprocess.run(
            [*words, "-servername", "localhost"], input="", capture_output=True, text=True
        )
        return re.findall(r"-----BEGIN CERTIFICATE.*?END CERT", shown.stdout, re.DOTALL)[0]

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
            typed(launch, plain, status=1)
        if command.stays:
            gateway = serve(here_and_now('endpoint = ["ssl:5044:privateKey=tls/gw1.example.pem"]'))
            continue
        before = served() if "reload" in command.text else ""
        typed(launch, here_and_now(command.text))
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
    typed(launch, f"RENEWED_LINEAGE={lineage} {renewed}")
    assert served() != before
    assert stat.S_IMODE((here / "tls" / "localhost.pem").stat().st_mode) == 0o640
    gateway.end()


# -- troubleshooting -------------------------------------------------------------------------------


GATEWAY_FILE = """
[queue]
directory = "queue"
[lumberjack]
endpoint = "tcp:5044:interface=127.0.0.1"
[sabc]
endpoint = "ssl:5046:interface=127.0.0.1:privateKey=tls/gw1.example.pem"
auth = "passwords:users"
"""
SERVE = "msgproto gateway --config /srv/msgproto/gateway.toml"
LUMBERJACK = "lumberjack tcp:127.0.0.1:5044"
SABC = "sabc tls:gw1.example:5046 --tls-ca /srv/msgproto/ca.pem --user ada --password-file password"


class Scene:
    """The directory of a gateway, which stands for the page's /srv/msgproto."""

    def __init__(self, launch: Launcher, ports: Mapping[str, str]) -> None:
        self.launch, self.here = launch, launch.directory / "srv"
        self.names = {
            "/srv/msgproto": str(self.here),
            "gw1.example": "localhost",
            **ports,
        }
        self.run("msgproto init /srv/msgproto --tls gw1.example")
        (launch.directory / "password").write_text("secret\n")
        self.run("msgproto passwd /srv/msgproto/users ada < password")
        self.write(GATEWAY_FILE)

    def write(self, text: str) -> None:
        (self.here / "gateway.toml").write_text(self.text(text))

    def text(self, text: str) -> str:
        return replaced(text, self.names)

    def start(self, text: str) -> Launched:
        return self.launch(*shlex.split(self.text(text))[1:])

    def serve(self) -> Launched:
        gateway = self.start(SERVE)
        gateway.line("sabc listening")
        return gateway

    def run(self, text: str, status: int = 0) -> str:
        """Run a command to its end; a gateway until it listens."""
        if text.startswith("msgproto gateway") and not status:
            gateway = self.start(text)
            gateway.line("sabc listening")
            return gateway.output
        return typed(self.launch, self.text(text), status)

    def send(self, words: str = LUMBERJACK, status: int = 0) -> str:
        return self.run(f"echo hello | msgproto send {words}", status)


def nobody(scene: Scene) -> Iterator[str]:
    yield scene.send(status=1)
    scene.send()


def port_in_use(scene: Scene) -> Iterator[str]:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(scene.text("5044"))))
        other.listen()
        yield scene.run(SERVE, status=2)
        scene.send("lumberjack tcp:127.0.0.1:5144")


def queue_in_use(scene: Scene) -> Iterator[str]:
    first = scene.serve()
    yield scene.run(SERVE, status=2)
    first.end()
    scene.serve()


def not_trusted(scene: Scene) -> Iterator[str]:
    scene.serve()
    yield scene.send(SABC.replace("--tls-ca /srv/msgproto/ca.pem ", ""), status=1)


def without_tls(scene: Scene) -> Iterator[str]:
    scene.serve()
    yield scene.send("sabc tcp:gw1.example:5046 --user ada --password-file password", status=1)


def refused(scene: Scene) -> Iterator[str]:
    scene.serve()
    scene.run("echo forgotten | msgproto passwd /srv/msgproto/users ada")
    yield scene.send(SABC, status=1)
    scene.send(SABC)


def no_certificate(scene: Scene) -> Iterator[str]:
    (scene.here / "keys").mkdir()
    scene.write(GATEWAY_FILE.replace("ssl:5046:interface=127.0.0.1:privateKey=tls/gw1.example.pem",
                                     "tls:keys:5046"))  # fmt: skip
    checked = scene.run("msgproto check /srv/msgproto/gateway.toml")
    scene.serve()
    pair = (scene.here / "tls" / "localhost.pem").read_text()
    key, begin, certificate = pair.partition("-----BEGIN CERTIFICATE")
    (scene.launch.directory / "key.pem").write_text(key)
    (scene.launch.directory / "certificate.pem").write_text(begin + certificate)
    yield checked
    scene.send(SABC)


def not_allowed(scene: Scene) -> Iterator[str]:
    rules = "[[access]]\nallow = {}\n"
    scene.write(GATEWAY_FILE + rules.format("'call'"))
    gateway = scene.serve()
    scene.send(status=1)
    gateway.line("may not publish")
    scene.write(GATEWAY_FILE + rules.format("['call', 'publish']"))
    yield gateway.output
    scene.send()


def nothing_lands(scene: Scene) -> Iterator[str]:
    scene.serve()
    scene.send()
    yield scene.run("msgproto status /srv/msgproto/queue")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "nothing lands" in (told := status_of(scene)):  # figures are a second old at most
        assert time.monotonic() < deadline, told
    assert landed_offsets(scene.here / "table").popitem()[1] == [0]


def full(scene: Scene) -> Iterator[str]:
    small = '"queue"\nmax-bytes = "1MiB"\nsegment-bytes = "64KiB"'
    scene.write(GATEWAY_FILE.replace('"queue"', small))
    scene.serve()
    scene.send()
    reader = QueueReader(scene.here / "queue")
    reader.commit("old", 0)
    waiting = scene.start(f"msgproto send {LUMBERJACK} --count 3000 --size 500 --window 50")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "waiting for 'old'" not in (told := status_of(scene)):
        assert time.monotonic() < deadline, told
    yield told
    while waiting.process.poll() is None:  # a bridge that lands
        reader.commit("bridge", reader.end())
        time.sleep(0.05)
    assert waiting.wait() == 0, waiting.output


def status_of(scene: Scene) -> str:
    return scene.launch.run("status", str(scene.here / "queue")).stdout


SCENES = {
    "A client finds nobody": nobody,
    "The gateway ends at once: the port is in use": port_in_use,
    "The gateway ends at once: its queue is in use": queue_in_use,
    "TLS: the certificate is not trusted": not_trusted,
    "The connection is closed, and the server speaks TLS": without_tls,
    "A log-in is refused": refused,
    "Every TLS hand-shake is refused": no_certificate,
    "A client may not publish": not_allowed,
    "Everything is acknowledged, and nothing lands": nothing_lands,
    "Clients wait, because the queue is full": full,
}


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", SYMPTOMS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_symptom_of_the_page_is_played() -> None:
    assert [*SCENES, "Something else"] == list(sections())


@pytest.mark.slow
@pytest.mark.parametrize("symptom", SCENES)
def test_a_symptom_looks_as_the_page_shows_it_and_its_remedy_ends_it(
    launch: Launcher, ports: dict[str, str], symptom: str
) -> None:
    scene = Scene(launch, ports)
    playing = SCENES[symptom](scene)
    told = next(playing)
    (shown,) = re.findall(r"(?s)```text\n(.*?)\n```", sections()[symptom])
    pattern = ".*".join(map(re.escape, scene.text(shown).split("…")))
    assert re.search(pattern, told), told
    for command in commands(sections()[symptom]):
        scene.run(command.text)
    assert next(playing, None) is None


def test_what_the_page_about_symptoms_begins_with(launch: Launcher) -> None:
    """``doctor`` and ``status``, beside a gateway that runs."""
    begin = SYMPTOMS.read_text().partition("## ")[0]
    assert launch.run("init", "here").returncode == 0
    for command in commands(begin):
        words = shlex.split(command.text.replace("/srv/msgproto", "here"))
        assert launch.run(*words[1:]).returncode in (0, 2 if "status" in words else 0)


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


LIMIT = re.compile(r"`([a-z]+(?:-[a-z]+)*-(?:bytes|octets|seconds|messages))`")


@pytest.mark.parametrize(
    "page", sorted((PROJECT / "docs/protocols").glob("*.md")), ids=attrgetter("stem")
)
def test_a_protocols_page_names_limits_that_exist(page: Path) -> None:
    known = LIMIT.findall((PROJECT / "docs/limits.md").read_text())
    assert sorted(set(LIMIT.findall(page.read_text())) - set(known)) == []


def test_every_client_has_what_the_page_about_clients_says() -> None:
    table = (PROJECT / "docs/clients.md").read_text().partition("| every client has |")[2]
    members = re.findall(r"^\| `(\w+)", table.partition("\n\n")[0], re.M)
    assert "close" in members
    clients = (LumberjackClient, MicroMsg2Client, SabcClient, UmqClient, MtlClient)
    assert [(one, name) for one in clients for name in members if not hasattr(one, name)] == []
