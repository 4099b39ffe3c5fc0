"""``msgproto recv``: a message a line, an end after ``--count``; with a protocol of its own."""

import json
import signal
import subprocess
import sys

import pytest

from tests.tools.processes import PATIENCE_SECONDS, Launched, Launcher, environment
from twisted_msgproto.cli.recv import as_line
from twisted_msgproto.core.message import Message

COMMAND = """
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.core.message import Message

DEFAULT_ENDPOINT = "tcp:127.0.0.1:1"

async def recv(reactor, options, show):
    if options.endpoint == "refuse":
        raise Refused("no such topic")
    try:
        for n in range(0 if options.endpoint == "silent" else 5):
            show(Message("fake", "topic", 0, destination=options.destination, body=b"%d" % n))
        if options.endpoint == "ends":
            return
        await Deferred()
    finally:
        await deferLater(reactor, 0, print, "unsubscribed", flush=True)
"""

MAIN = """
import sys
from twisted_msgproto import cli, registry
registry.PROTOCOLS["fake"] = registry.Registered("fake", "Fake", "fake", {}, {})
sys.exit(cli.main(["recv", "fake", *sys.argv[1:]]))
"""


@pytest.fixture
def fake(launch: Launcher) -> Launcher:
    package = launch.directory / "fake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "command.py").write_text(COMMAND)
    return launch


def recv(fake: Launcher, *words: str) -> Launched:
    return fake.command([sys.executable, "-c", MAIN, *words])


def test_it_ends_after_the_count_and_in_peace(fake: Launcher) -> None:
    program = recv(fake, "--count", "3", "--destination", "news")
    assert program.wait() == 0
    assert program.lines == ["news\t0", "news\t1", "news\t2", "unsubscribed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_count_it_goes_on_until_a_signal(fake: Launcher, number: signal.Signals) -> None:
    program = recv(fake)
    program.line("4")
    program.signal(number)
    assert program.wait() == 130
    assert program.lines == ["0", "1", "2", "3", "4", "unsubscribed"]


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["ends"], 0, "unsubscribed"),
        (["ends", "--count", "6"], 1, "msgproto recv: 5 of 6 messages came"),
        (["refuse"], 1, "msgproto recv: no such topic"),
        (["silent", "--timeout", "0.1"], 1, "msgproto recv: no message came within 0.1 s"),
        (
            ["--count", "9", "--timeout", "0.1"],
            1,
            "msgproto recv: 5 of 9 messages came: no more came within 0.1 s",
        ),
        (["--timeout", "0.1"], 0, "unsubscribed"),
    ],
)
def test_how_a_peer_ends_is_a_status_and_a_line(
    fake: Launcher, words: list[str], status: int, line: str
) -> None:
    """Without a count nobody is told how many were wanted: what came in the time is enough."""
    program = recv(fake, *words)
    assert program.wait() == status
    assert program.lines[-1].startswith(line)
    shown = ["0", "1", "2", "3", "4"] if words[0] not in ("silent", "refuse") else []
    assert program.lines[: len(shown)] == shown


@pytest.mark.parametrize("protocol", ["umq", "mtl"])
def test_a_reader_which_has_had_enough_ends_it_although_nothing_comes__HO_21(
    launch: Launcher, protocol: str
) -> None:
    """``msgproto recv … | true``: the pipe breaks, and nobody will ever send anything."""
    endpoint = "tcp:0:interface=127.0.0.1" if protocol == "umq" else "tcp://127.0.0.1:*"
    serving = launch(protocol, "-e", endpoint, module="twisted")
    with subprocess.Popen(
        [sys.executable, "-m", "twisted_msgproto", "recv", protocol, serving.address(protocol)],
        cwd=launch.directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(PATIENCE_SECONDS) == 128 + signal.SIGPIPE


def test_properties_are_shown_on_demand() -> None:
    message = Message("micromsg2", "message", 0, destination="d", body=b"b", fields={"a": "1\n"})
    shown = as_line(message, as_json=False, properties=True)
    assert shown == 'd\t{"a": "1\\n"}\tb'


def test_json_lines_have_the_tables_columns(fake: Launcher) -> None:
    program = recv(fake, "--count", "1", "--json", "--destination", "news")
    assert program.wait() == 0
    assert json.loads(program.lines[0]) == {
        "received_at": "1970-01-01T00:00:00.000000Z",
        "protocol": "fake",
        "peer": None,
        "session": None,
        "client_id": None,
        "kind": "topic",
        "message_id": None,
        "destination": "news",
        "fields": None,
        "body": "0",
        "attachments": None,
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("body", "shown"), [(b"a\x1b[2Jb\nc", r"a\x1b[2Jb\nc"), (b"\xff", r"\xff"), (None, "")]
)
def test_what_a_peer_sent_cannot_steer_the_terminal(body: bytes | None, shown: str) -> None:
    assert as_line(Message("umq", "topic", 0, body=body), as_json=False) == shown
