"""``--json-log``: every line of the log is one JSON object."""

from __future__ import annotations

import io
import json
import signal
import sys
from typing import Any

import pytest
from twisted.logger import Logger
from twisted.python.failure import Failure

from tests.tools.processes import Launcher
from twisted_msgproto.core.jsonlog import json_line
from twisted_msgproto.net.jsonlog import JsonLog, line_of

LOOPBACK = "tcp:0:interface=127.0.0.1"
TWISTD = ("-c", "from twisted.scripts.twistd import run; run()", "--nodaemon", "--pidfile=")


def test_fields_follow_the_line_itself() -> None:
    line = json_line(0.5, "warn", "x", "a\nb", {"peer": "p", "none": None, "n": 1, "o": [1]})
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500000Z",
        "level": "warn",
        "source": "x",
        "text": "a\nb",
        "peer": "p",
        "n": 1,
        "o": "[1]",
    }


def observed(emit: Any) -> dict[str, Any]:
    file = io.StringIO()
    log = Logger(namespace="twisted_msgproto.umq", observer=JsonLog(file))
    emit(log)
    [line] = file.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_event_of_ours_has_its_fields_and_its_protocol() -> None:
    one = observed(lambda log: log.warn("{peer}: closed", peer="tcp:1", reason="frame-type"))
    assert (one["text"], one["level"]) == ("tcp:1: closed", "warn")
    assert (one["protocol"], one["peer"], one["event"]) == ("umq", "tcp:1", "frame-type")


def test_what_a_peer_sent_cannot_begin_another_line() -> None:
    one = observed(lambda log: log.warn("{text}", text='"}\n{"level": "forged'))
    assert one["text"] == '"} {"level": "forged'


def test_a_failure_has_its_traceback() -> None:
    def emit(log: Logger) -> None:
        try:
            raise ValueError("no good")
        except ValueError:
            log.failure("it failed", Failure())

    one = observed(emit)
    assert one["error"] == "ValueError: no good"
    assert "Traceback" in one["traceback"]


def test_a_full_disk_ends_nothing() -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    JsonLog(Full())({"log_format": "x", "log_time": 1.0})
    assert json.loads(line_of({"log_format": "x", "log_time": 1.0}))["text"] == "x"


@pytest.mark.parametrize("how", ["twistd", "twist", "gateway", "logfile"])
def test_processes_log_like_this_from_their_first_line_to_their_last(
    launch: Launcher, how: str
) -> None:
    here = launch.directory
    words = ["-e", LOOPBACK, "--log-sessions", "--json-log"]
    if how == "twistd":
        server = launch.command([sys.executable, *TWISTD, "lumberjack", *words])
    elif how == "twist":
        server = launch("lumberjack", *words, module="twisted")
    elif how == "logfile":
        server = launch.command([sys.executable, *TWISTD, "--logfile=x.log", "lumberjack", *words])
    else:
        (here / "g.toml").write_text(f'[lumberjack]\nendpoint = "{LOOPBACK}"\n')
        server = launch("gateway", "--config=g.toml", "--log-sessions", "--json-log")
    if how == "logfile":
        # Its file is read as a terminal would be: what stands in it is printed by this one.
        file = launch.command(["tail", "-F", "-n", "+1", "x.log"])
        address = "tcp:127.0.0.1:" + file.line(r"listening on tcp:127.0.0.1:(\d+)")[1]
    else:
        address = server.address("lumberjack")
    assert launch.run("send", "lumberjack", address, "--count=3").returncode == 0
    (file if how == "logfile" else server).line("session ended")
    if how == "logfile":
        server.signal(signal.SIGUSR1)
    server.end()
    text = (
        server.output
        if how != "logfile"
        else "".join(path.read_text() for path in here.glob("x.log*"))
    )
    objects = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "source", "text"} <= one.keys() for one in objects)
    [ended] = [one for one in objects if one.get("event") == "session ended"]
    assert (ended["protocol"], ended["messages"]) == ("lumberjack", 3)
    assert ended["peer"].startswith("127.0.0.1:")
    assert ended["why"] == "the peer closed the connection"
    if how == "logfile":
        assert (here / "x.log.1").exists(), "SIGUSR1 rotates it"
