"""``msgproto send sabc … --call TEXT``: one request from the shell, its answer as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.processes import Launched, Launcher

SERVER = """
import base64, json
from twisted_msgproto.sabc import Response, SabcServer

class Server(SabcServer):
    def requestReceived(self, message):
        body = message.body
        if body == b"binary":
            return Response(b"\\xff\\x00", {"kind": "octets"})
        if body == b"text":
            return "grüße"
        if body == b"break":
            raise ValueError("no")
        given = json.loads(body)
        return Response(json.dumps({"sum": sum(given)}).encode(), dict(message.fields))
"""


@pytest.fixture
def server(launch: Launcher) -> Launched:
    (launch.directory / "adding.py").write_text(SERVER)
    (launch.directory / "passwords").write_text("me:right\n")
    return launch(
        *("sabc", "-e", "tcp:0:interface=127.0.0.1", "--websocket", "tcp:0:interface=127.0.0.1"),
        *("--class", "adding:Server"),
        module="twisted",
    )


def test_an_answer_is_a_line_of_json(launch: Launcher, server: Launched, tmp_path: Path) -> None:
    tcp = server.address("sabc")
    websocket = server.line(r"listening on (ws://[^\s\"]+)")[1] + "/"
    for place in (tcp, websocket):
        words = ["send", "sabc", place, "--property", "a=b", "--call"]
        ended = launch.run(*words, "[1, 2]")
        assert (ended.returncode, ended.stderr) == (0, "")
        answer = json.loads(ended.stdout)
        assert answer["body"] == {"sum": 3}
        assert answer["fields"]["a"] == "b"
    assert json.loads(launch.run(*words, "text", "--json").stdout)["body"] == "grüße"
    binary = json.loads(launch.run(*words, "binary").stdout)
    assert binary["body_base64"] == "/wA="
    assert binary["fields"]["kind"] == "octets"
    failed = launch.run(*words, "break")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.count("\n") == 1
    for more, text in (
        (["--args", "x"], "sabc has no --args: the text of --call is the request's body"),
        (["--window", "3"], "call sabc has no --window"),
    ):
        ended = launch.run(*words, "x", *more)
        assert ended.returncode == 2
        assert text in ended.stderr
