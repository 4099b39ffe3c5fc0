"""Lines of the log: as JSON, and those about what peers do, which are limited."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from tests.tools.certificates import Authority
from tests.tools.processes import Launcher
from twisted_msgproto.extend import MsgprotoServerFactory
from twisted_msgproto.net import logs

LOOPBACK = "tcp:0:interface=127.0.0.1"
SOURCE = "twisted_msgproto.test"
TWISTD = ("-c", "from twisted.scripts.twistd import run; run()", "--nodaemon", "--pidfile=")


def observed(emit: Any) -> dict[str, Any]:
    file = io.StringIO()
    log = Logger(namespace="twisted_msgproto.umq", observer=logs.JsonLog(file))
    emit(log)
    [line] = file.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_event_of_ours_has_its_fields_and_its_protocol() -> None:
    one = observed(lambda log: log.warn("{peer}: closed", peer="tcp:1", reason="frame-type"))
    assert (one["text"], one["level"]) == ("tcp:1: closed", "warn")
    assert (one["protocol"], one["peer"], one["event"]) == ("umq", "tcp:1", "frame-type")


def test_the_line_itself_stands_first_and_fields_are_short_and_of_plain_types() -> None:
    file = io.StringIO()
    logs.JsonLog(file)(
        {"log_format": "été\u2028", "log_time": 1_700_000_000.25, "log_namespace": SOURCE,
         "log_level": LogLevel.warn, "none": None, "text": "not this one", "count": 3, "yes": True,
         "share": 0.5, "endless": inf, "long": "x" * 100_000, "list": [1]}
    )  # fmt: skip
    line = file.getvalue()
    assert line.isascii() and line.count("\n") == 1
    fields = json.loads(line)
    assert fields.pop("long") == "x" * 1000
    assert list(fields.items()) == [
        ("time", "2023-11-14T22:13:20.250000Z"),
        ("level", "warn"),
        ("source", SOURCE),
        ("text", "été\u2028"),
        ("count", 3),
        ("yes", True),
        ("share", 0.5),
        ("endless", "inf"),
        ("list", "[1]"),
    ]


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

    logs.JsonLog(Full())({"log_format": "x", "log_time": 1.0})


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
        for nth, name in ((2, "x.log.nocreate"), (3, "x.log.create")):  # as logrotate does
            (here / "x.log").rename(here / name)
            if nth == 3:
                (here / "x.log").touch()
            server.signal(signal.SIGUSR1)
            assert launch.run("send", "lumberjack", address, "--count=3").returncode == 0
            file.line("session ended", nth=nth)
        server.signal(signal.SIGUSR1)
    server.end()
    text = (
        server.output
        if how != "logfile"
        else "".join(path.read_text() for path in here.glob("x.log*"))
    )
    objects = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "source", "text"} <= one.keys() for one in objects)
    ended, *_ = [one for one in objects if one.get("event") == "session ended"]
    assert (ended["protocol"], ended["messages"]) == ("lumberjack", 3)
    assert ended["peer"].startswith("127.0.0.1:")
    assert ended["why"] == "the peer closed the connection"
    if how == "logfile":
        assert "session ended" in (here / "x.log.1").read_text(), "SIGUSR1 rotates it"
        assert not (here / "x.log.2").exists(), "nor does it rotate what logrotate has"


# ── lines of the log about what peers do ────────────────────────────────────────────────────────


EVERY_KIND = """
[queue]
directory = "q"
[status]
endpoint = "unix:page"
[lumberjack]
endpoint = ["{tcp}", "unix:s", "ssl:{tls}", "tls:pems:0:interface=127.0.0.1",
  "mtls:{tls}:caCerts=authority.pem", "haproxy:{tcp}", "haproxy:ssl:{tls}"]
[micromsg2]
endpoint = ["{tcp}", "ssl:{tls}", "haproxy:{tcp}"]
[sabc]
endpoint = ["{tcp}", "ssl:{tls}", "haproxy:{tcp}"]
websocket = ["{tcp}", "ssl:{tls}", "unix:web", "haproxy:{tcp}"]
[umq]
endpoint = ["{tcp}", "ssl:{tls}", "unix:umq", "haproxy:{tcp}"]
[mtl]
endpoint = ["ipc://control", "tcp://127.0.0.1:*"]
"""

PROTOCOLS = ("lumberjack", "micromsg2", "sabc", "umq", "mtl")


@pytest.mark.slow
def test_no_line_has_the_name_of_a_class_or_module__RD_29(launch: Launcher) -> None:
    """Whatever listens, from the first line to the last, with traffic and a reload between."""
    here = launch.directory
    pair = Authority(here).server()
    (here / "pems").mkdir()
    (here / "pems" / "localhost.pem").write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    tls = f"0:privateKey={pair.key.name}:certKey={pair.cert.name}:interface=127.0.0.1"
    (here / "g.toml").write_text(EVERY_KIND.format(tcp="tcp:0:interface=127.0.0.1", tls=tls))
    words = ["gateway", "--config=g.toml", "--log-sessions"]
    for more in ("--json-log", "--queue=other"):
        server = launch(*words, more)
        server.line("status listening")
        for protocol in PROTOCOLS:
            address = server.address(protocol)
            sent = launch.run("send", protocol, address, "--count=1")
            assert sent.returncode == 0, sent.stderr
        server.signal(signal.SIGHUP)
        server.line("reload: read again")
        server.end()
    logged, plain = (server.output.splitlines() for server in launch.started)
    for line in map(json.loads, logged):
        assert re.fullmatch(r"-|stdout|twisted|twisted_msgproto\.[a-z0-9]+", line["source"]), line
    texts = [line["text"] for line in map(json.loads, logged)]
    texts += [
        re.sub(r"^\S+ \[(twisted\.[^]]*|twisted_msgproto\.[a-z0-9]+#\w+)\]", "", line)
        for line in plain
    ]
    for line in texts:
        name = re.search(r"\b[A-Z]\w*[a-z]\w*[A-Z]\w+|\b(twisted|autobahn|zmq)\w*\.\w+", line)
        assert name is None or "reactor class" in line, line
        assert "certificates of haproxy:tcp" not in line


LOG = Logger(namespace="twisted_msgproto.test")
LINES_MAX = 5  # of one address within a minute


class Server(MsgprotoServerFactory):
    protocolName = "lines"
    protocol = Protocol

    def __init__(self) -> None:
        self.time: Any = Clock()
        super().__init__(clock=self.time)

    def says(self, host: str, reason: str = "junk", **more: Any) -> None:
        self.writeOf(LOG, host, "{peer}: closed", reason=reason, peer=host, **more)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is written."""
    written: list[str] = []

    def observe(event: dict[str, object]) -> None:
        if event.get("log_namespace") == "twisted_msgproto.test":
            written.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield written
    globalLogPublisher.removeObserver(observe)


def test_lines_of_one_address_are_limited_and_summed_up_on_time__NB_09(lines: list[str]) -> None:
    """NB-09: also though nobody comes when the minute is over."""
    server = Server()
    for number in range(317):
        server.says("192.0.2.1", reason="tls" if number % 2 else "junk")
        server.time.advance(0.1)
    server.says("192.0.2.2")
    assert lines == ["192.0.2.1: closed"] * LINES_MAX + ["192.0.2.2: closed"]
    lines.clear()
    server.time.advance(60 - 31.8)
    assert lines == []
    server.time.advance(0.2)
    assert lines == [
        "192.0.2.1: … and 312 more like it from this address within 60 s (156 tls, 156 junk)"
    ]
    assert server.time.getDelayedCalls() == []
    for _ in range(LINES_MAX + 1):
        server.says("192.0.2.1")
    assert lines[1:] == ["192.0.2.1: closed"] * LINES_MAX
    server.time.advance(60)
    assert "and 1 more like it" in lines[-1]


def test_sums_are_written_at_the_end_and_nothing_is_left_on_the_clock__NB_09(
    lines: list[str],
) -> None:
    server = Server()
    for _ in range(9):
        server.says("192.0.2.1")
    lines.clear()
    server.drain()
    assert lines == ["192.0.2.1: … and 4 more like it from this address within 60 s (4 junk)"]
    assert server.time.getDelayedCalls() == []


def test_a_flood_of_addresses_is_bounded_in_lines__NB_09(lines: list[str]) -> None:
    server = Server()
    for number in range(1500):
        for _ in range(7 + (number in (499, 500))):
            server.says(f"10.0.{number // 250}.{number % 250}")
    assert len(lines) == 200
    lines.clear()
    server.drain()
    assert len(lines) == 21
    assert lines[0].startswith("10.0.2.0: … and 8 more"), "the most of the last 1000 come first"
    assert "8 more" not in lines[1]
    assert lines[-1] == (
        f"other addresses: … and {1500 * 7 - 200 - 20 * 7 + 1} more like it from other addresses"
        " within 60 s"
    )


def test_one_topic_does_not_hide_another__NB_09(lines: list[str]) -> None:
    """Who sends junk has no login less in the log."""
    server = Server()
    most = {"FAULTS": 5, "LOGINS": 5, "NEWS": 20, "LIMITS": 1, "TURNS": 1, "SESSIONS": 200}
    for name, count in most.items():
        for _ in range(300):
            server.says("192.0.2.1", topic=getattr(logs, name))
        assert len(lines) == count, name
        lines.clear()
    for number in range(2000):
        server.says(f"10.0.{number >> 8}.{number & 255}", topic=logs.SESSIONS)
    assert len(lines) == 2000 - most["SESSIONS"]


def test_each_topic_is_summed_up_in_its_own_time__NB_09(lines: list[str]) -> None:
    server = Server()
    server.says("192.0.2.1")
    server.time.advance(10)
    for topic in (logs.LOGINS, logs.FAULTS):
        for _ in range(LINES_MAX + 1):
            server.says("192.0.2.1", topic=topic)
    for seconds, sums in ((49.9, []), (0.1, ["2"]), (9.9, []), (0.1, ["1"])):
        lines.clear()
        server.time.advance(seconds)
        assert [line.split()[3] for line in lines] == sums
    assert server.time.getDelayedCalls() == []
    for _ in range(2 * LINES_MAX):
        server.says("192.0.2.1")
        server.time.advance(60 / LINES_MAX)
    assert lines[1:] == ["192.0.2.1: closed"] * 2 * LINES_MAX
