"""Real processes: twistd sabc, msgproto send and recv, the typed session of the documents."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

from tests.tools.processes import Launched, Launcher
from twisted_msgproto.queue import QueueReader

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocols" / "sabc.md"
ANY = "tcp:0:interface=127.0.0.1"


def serve(launch: Launcher, *options: str | Path) -> tuple[Launched, str, str]:
    """A server on both transports; its process and its two addresses."""
    server = launch("sabc", "-e", ANY, "--websocket", ANY, *options, module="twisted")
    tcp = server.line(r"sabc listening on (tcp:\S+:\d+)")[1]
    ws = server.line(r"sabc listening on (ws://[\w.:]+\d)")[1]
    return server, tcp, ws


def options() -> Any:
    """Those of ``twistd sabc``."""
    (maker,) = [plugin for plugin in getPlugins(IServiceMaker) if plugin.tapname == "sabc"]
    return maker.options()


def rows(directory: Path) -> list[dict[str, object]]:
    reader = QueueReader(directory)
    found = []
    for batch in reader.read(reader.begin(), reader.end()):
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize(
    ("transport", "message_bytes"), [("tcp", 4000), ("ws", 1 << 20), ("tcp", 4 << 20)]
)
def test_a_line_which_the_server_does_not_take_whole_is_no_success(
    launch: Launcher, tmp_path: Path, transport: str, message_bytes: int
) -> None:
    # HO-01: acknowledged means whole
    server, tcp, ws = serve(
        launch, "--queue", tmp_path / "queue", "--limit", f"message-bytes={message_bytes}"
    )
    where = tcp if transport == "tcp" else ws
    line = "x" * 1_500_000
    sent = launch.run("send", "sabc", where, "--json", stdin=f"good\n{line}\n")
    server.end()
    landed = [(row["body"], row["truncated"]) for row in rows(tmp_path / "queue")]
    if message_bytes > len(line):
        assert sent.returncode == 0, sent.stderr
        assert landed == [(b"good", False), (line.encode(), False)]
        return
    assert sent.returncode == 2, sent.stdout
    assert json.loads(sent.stdout)["acknowledged"] < 2
    assert sent.stderr.startswith("msgproto send: ")
    assert sent.stderr.count("\n") == 1
    assert landed == [(b"good", False)]


def typed_session() -> list[tuple[str, bytes]]:
    """The documents' session as ("typed" | "answered", text) in turn."""
    (text,) = re.findall(r"^```text\n(> CONNECT.*?)^```$", PAGE.read_text(), re.M | re.S)
    turns: list[tuple[str, bytes]] = []
    for line in text.splitlines():
        kind = "typed" if line.startswith(">") else "answered"
        shown = (line[2:] if kind == "typed" else line).replace("^@", "\0")
        if not turns or turns[-1][0] != kind:
            turns.append((kind, b""))
        turns[-1] = kind, turns[-1][1] + shown.encode() + b"\n"
    return turns


def test_the_session_of_the_documents(launch: Launcher) -> None:
    # SA-01, SA-02, SA-06, SA-28: typed, line ends as a terminal sends them
    _, tcp, _ = serve(launch, "--lenient")
    host, port = tcp.removeprefix("tcp:").split(":")
    turns = typed_session()
    assert [kind for kind, _ in turns] == ["typed", "answered"] * 3
    session = b""
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for kind, text in turns:
            if kind == "typed":
                connection.sendall(text.replace(b"SESSION", session))
                continue
            came = b""
            while not came.endswith(b"\0"):
                octets = connection.recv(4096)
                assert octets, came
                came += octets
            if not session:
                session = re.search(rb"session-id::(\S+)\r\n", came)[1]  # type: ignore[index]
                assert len(session) >= 22  # SA-09: 128 bits and more
            shown = came.replace(b"\r\n", b"\n").replace(session, b"SESSION") + b"\n"
            assert shown == text
        assert connection.recv(4096) == b""


@pytest.mark.parametrize(
    "words",
    [
        ["--websocket", "nonsense:1"],
        ["--origin", "not an origin"],
        # What holds for every server holds for one that is on WebSocket alone.
        ["--websocket", "tcp:2", "--status", "nonsense:1"],
        ["--websocket", "unix:none", "--reuse-port"],
    ],
)
def test_a_usage_error_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options().parseOptions(words)
    assert str(ended.value).startswith("sabc: ")
    assert "\n" not in str(ended.value)


def test_where_it_listens_by_default() -> None:
    def endpoints(*words: str) -> tuple[list[str], list[str]]:
        given = options()
        given.parseOptions(list(words))
        return given["endpoints"], given["websockets"]

    assert endpoints() == (["tcp:5046:interface=127.0.0.1"], ["tcp:5047:interface=127.0.0.1"])
    assert endpoints("-e", "tcp:1") == (["tcp:1"], [])
    assert endpoints("--websocket", "tcp:2") == ([], ["tcp:2"])
    assert endpoints("-e", "tcp:1", "-e", "tcp:2", "--websocket", "tcp:3")[0] == ["tcp:1", "tcp:2"]


# ── Calls from the shell ────────────────────────────────────────────────────────────────────────

ADDING = """
import json
from twisted_msgproto.sabc import Response, SabcServer

class Server(SabcServer):
    def requestReceived(self, message):
        given = json.loads(message.body)
        return Response(json.dumps({"sum": sum(given)}).encode(), dict(message.fields))
"""


@pytest.fixture
def adding(launch: Launcher) -> Launched:
    (launch.directory / "adding.py").write_text(ADDING)
    (launch.directory / "passwords").write_text("me:right\n")
    return launch(
        *("sabc", "-e", "tcp:0:interface=127.0.0.1", "--websocket", "tcp:0:interface=127.0.0.1"),
        *("--class", "adding:Server"),
        module="twisted",
    )


def test_an_answer_is_a_line_of_json(launch: Launcher, adding: Launched, tmp_path: Path) -> None:
    tcp = adding.address("sabc")
    websocket = adding.line(r"listening on (ws://[^\s\"]+)")[1] + "/"
    for place in (tcp, websocket):
        words = ["send", "sabc", place, "--property", "a=b", "--call"]
        ended = launch.run(*words, "[1, 2]")
        assert (ended.returncode, ended.stderr) == (0, "")
        answer = json.loads(ended.stdout)
        assert answer["body"] == {"sum": 3}
        assert answer["fields"]["a"] == "b"
    failed = launch.run(*words, "no JSON")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.count("\n") == 1
    assert " factory " not in adding.output  # Twisted's
