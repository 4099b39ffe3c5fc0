"""``msgproto recv``: a message a line, an end after ``--count``; with a protocol of its own."""

import json
import signal
import subprocess
import sys

import pytest

from tests.tools.processes import PATIENCE_SECONDS, Launched, Launcher, environment
from twisted_msgproto.cli.recv import as_line
from twisted_msgproto.cli.rows import iso_time, row
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


def test_without_a_count_it_goes_on_until_ctrl_c(fake: Launcher) -> None:
    program = recv(fake)
    program.line("4")
    program.signal(signal.SIGINT)
    assert program.wait() == 130
    assert program.lines == ["0", "1", "2", "3", "4", "unsubscribed"]


def test_a_peer_which_ends_in_peace(fake: Launcher) -> None:
    assert recv(fake, "ends").wait() == 0


def test_a_peer_which_ends_before_the_count(fake: Launcher) -> None:
    program = recv(fake, "ends", "--count", "6")
    assert program.wait() == 1


def test_a_refusal_is_one_line(fake: Launcher) -> None:
    program = recv(fake, "refuse")
    assert program.wait() == 1
    assert program.lines == ["msgproto recv: no such topic"]


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


def test_without_a_count_nobody_is_told_how_many_were_wanted(fake: Launcher) -> None:
    program = recv(fake, "silent", "--timeout", "0.1")
    assert program.wait() == 1
    assert program.lines[-1] == "msgproto recv: no message came within 0.1 s"


def test_less_than_wanted_within_the_time_is_a_failure(fake: Launcher) -> None:
    program = recv(fake, "--count", "9", "--timeout", "0.1")
    assert program.wait() == 1
    assert program.lines[-1] == "msgproto recv: 5 of 9 messages came: no more came within 0.1 s"


def test_what_came_within_the_time_is_enough_without_a_count(fake: Launcher) -> None:
    program = recv(fake, "--timeout", "0.1")
    assert program.wait() == 0
    assert program.lines == ["0", "1", "2", "3", "4", "unsubscribed"]


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


def test_octets_which_are_no_text_are_base64() -> None:
    message = Message("umq", "call", 1, body=b"\xff", attachments=[b"text", b"\xfe"])
    told = row(message)
    assert "body" not in told
    assert told["body_base64"] == "/w=="
    assert told["attachments"] == ["text", {"base64": "/g=="}]


def test_numbers_and_fields_are_the_tables() -> None:
    told = row(Message("mtl", "content", 1, message_id=7, fields={"a": "b"}))
    assert (told["message_id"], told["fields"], told["body"]) == ("7", {"a": "b"}, None)


def test_times_have_six_places_and_a_zone() -> None:
    assert iso_time(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert iso_time(-1) == "1969-12-31T23:59:59.999999Z"


@pytest.mark.parametrize(
    ("body", "shown"), [(b"a\x1b[2Jb\nc", r"a\x1b[2Jb\nc"), (b"\xff", r"\xff"), (None, "")]
)
def test_what_a_peer_sent_cannot_steer_the_terminal(body: bytes | None, shown: str) -> None:
    assert as_line(Message("umq", "topic", 0, body=body), as_json=False) == shown
