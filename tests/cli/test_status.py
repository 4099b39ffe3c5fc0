"""``msgproto status`` and the options of the status endpoint, with real gateways (``FC-03``)."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.tools.processes import PATIENCE_SECONDS, Launcher, msgproto
from twisted_msgproto.cli import main, status
from twisted_msgproto.cli.status import DEFAULT_URL, lines
from twisted_msgproto.core.errors import QueueAway
from twisted_msgproto.net.site.client import GatewayBroker
from twisted_msgproto.net.site.queue_figures import shown_bridge
from twisted_msgproto.queue import QueueWriter

LOOPBACK = "tcp:0:interface=127.0.0.1"
TOKEN = "a-token-of-some-length"

FIGURES = {
    "at": 5_000_000,
    "safe": {"ok": False, "why": "no"},
    "healthy": {"ok": True, "why": "yes"},
    "queue": None,
    "flow": None,
    "protocols": {},
    "memory": {"waiting_bytes": 1, "held_bytes": 1024, "kept_bytes": 5 << 19},
    "broker": {"queues": []},
    "sessions": [{"protocol": "umq", "state": "OPEN", "client_id": "a\x1b[2J\nb"}],
    "sessions_total": 3,
}


@pytest.mark.slow
def test_status_of_a_gateway_by_its_url_and_by_its_directory(launch: Launcher) -> None:
    queue = launch.directory / "queue"
    token_file = launch.directory / "token"
    token_file.write_text(TOKEN)
    gateway = launch.command(
        [sys.executable, "-m", "twisted", "lumberjack", f"--endpoint={LOOPBACK}",
         f"--queue={queue}", f"--status={LOOPBACK}", f"--status-token={token_file}"],
    )  # fmt: skip
    url = gateway.address("status").replace("tcp:", "http://")
    assert "wants its token: give it with --token-file FILE" in msgproto("status", url, status=2)
    (launch.directory / "other").write_text("another-token-of-some-length")
    assert "another token than the file of --token-file" in msgproto(
        "status", url, "--token-file", str(launch.directory / "other"), status=2
    )
    assert f"there is one in {queue}" in msgproto("status", launch.directory, status=2)
    assert "the queue has no consumer" in msgproto("status", url, "--token-file", token_file)
    figures = json.loads(msgproto("status", queue, "--json"))
    assert figures["protocols"]["lumberjack"]["connections"] == 0
    gateway.end()
    assert TOKEN not in gateway.output
    assert "does not answer" in msgproto("status", queue, status=2)


@pytest.mark.slow
def test_a_status_endpoint_may_be_a_unix_socket(launch: Launcher) -> None:
    page, queue = launch.directory / "page", launch.directory / "queue"
    (launch.directory / "token").write_text(TOKEN)
    for where in ("unix:page", f"unix:{page}"):
        told = launch.run("status", where)
        assert told.returncode == 2
        assert "there is no socket" in told.stderr and "[status] endpoint" in told.stderr
    words = ["micromsg2", f"--endpoint={LOOPBACK}", f"--queue={queue}", "--status=unix:page"]
    gateway = launch(*words, module="twisted")
    gateway.line("status listening")
    assert "PROTOCOL" in launch.run("status", "unix:page").stdout
    assert "it shows figures alone" in launch.run("reload", "unix:page").stderr
    gateway.kill()
    gateway = launch(*words, "--status-token=token", module="twisted")
    gateway.line("status listening")
    for words in (["status"], ["reload"], ["broker", "ls"]):
        for where in ("unix:page", "unix:page:mode=600", str(page)):
            assert "give it with --token-file" in launch.run(*words, where).stderr
            told = launch.run(*words, where, "--token-file", "token")
            assert told.returncode == 0, told.stderr
    gateway.kill()
    assert "nobody listens on page" in launch.run("status", "unix:page").stderr


def test_who_names_no_gateway_and_reaches_none_is_told_how_to_name_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FC-06: a gateway.toml may have no ``[status]``."""
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(status, "DEFAULT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert main(["status"]) == 2
    told = capsys.readouterr().err
    assert "[status]" in told and "msgproto status DIR" in told and told.count("\n") == 1


def test_watch_shows_the_figures_again_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [FIGURES | {"gateway": {}, "safe": {"ok": True, "why": why}} for why in "abö"]
    told[-1]["healthy"] = {"ok": False, "why": "no"}
    asked = Mock(side_effect=[told[0], QueueAway("starts again"), *told[1:]])
    monkeypatch.setattr(GatewayBroker, "figures", asked)

    def sleep(seconds: float) -> None:
        if "OK  ö" in (shown := capsys.readouterr().out):
            raise KeyboardInterrupt
        assert ("OK  " in shown) == (shown != "!!  starts again\n")

    monkeypatch.setattr(status.time, "sleep", sleep)
    assert main(["status", "--watch"]) == 1
    monkeypatch.setattr(GatewayBroker, "figures", lambda gateway: told[-1])
    line = json.dumps(told[-1], ensure_ascii=False)
    assert msgproto("status", "--json", status=1) == f"{line}\n"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("localhost:8480", "for its status endpoint write http://localhost:8480"),
        ("none/such", "there is no such directory"),
        (".", "no queue in"),
        ("several/queue/1", "none runs on this queue"),
        ("several/queue", "has several in it, such as {}/several/queue/1"),
        ("several", "has several in it, such as {}/several/queue/1"),
    ],
)
@pytest.mark.parametrize("command", ["status", "reload"])
def test_what_is_no_directory_of_a_gateway_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    words: str,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        QueueWriter(f"several/queue/{number}").close()
    told = msgproto(command, where, status=2)
    assert words.format(tmp_path) in told and told.count("\n") == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_port_of_another_protocol_is_told(
    scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def answer() -> None:
            line, _ = listening.accept()
            line.recv(1)
            line.sendall(b"this is no HTTP\r\n\r\n")
            line.close()

        answering = threading.Thread(target=answer)
        answering.start()
        assert main(["status", f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"]) == 2
        answering.join()
    words = {"http": "does not speak HTTP", "https": "does not speak TLS there; try http:"}
    assert words[scheme] in capsys.readouterr().err


def refusal(url: str) -> bytes:
    """What a health check answers with 503; it is asked again, as figures may be a second old."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            urlopen(url).close()
        except HTTPError as told:
            with told:
                assert told.code == 503
                return told.read()
    raise AssertionError("it stays healthy")


@pytest.mark.slow
def test_health_and_figures_are_told_while_the_queue_has_no_room(launch: Launcher) -> None:
    """FC-03: that is when an operator asks."""
    file = launch.directory / "gateway.toml"
    file.write_text(
        f'[queue]\ndirectory = "queue"\nmax-bytes = {1 << 20}\n'
        f'[status]\nendpoint = "{LOOPBACK}"\n[lumberjack]\nendpoint = "{LOOPBACK}"\n'
    )
    gateway = launch("gateway", "--config", str(file))
    url = gateway.address("status").replace("tcp:", "http://")
    with urlopen(f"{url}/healthz") as healthy:
        assert healthy.status == 200
    words = ["--count", "5000", "--size", "1000"]
    sender = launch("send", "lumberjack", gateway.address("lumberjack"), *words)
    gateway.line("nothing can be acknowledged")
    assert b"no consumer is registered" in refusal(f"{url}/healthz")
    with urlopen(f"{url}/status.json") as answered:
        assert json.load(answered)["safe"]["ok"] is False
    for waiting in (sender, gateway):  # either would wait for room
        waiting.kill()


def test_what_a_peer_chose_does_not_steer_the_terminal() -> None:
    assert list(lines(FIGURES)) == [
        "!!  no",
        "",
        "queue: none",
        "",
        "PROTOCOL  MESSAGES/S  ACK P99  CONNECTIONS  STATES  FAULTS  LIMITS MET",
        "",
        "memory: 1 bytes in messages that are not safe yet, 1.0 KiB in unfinished messages and"
        " unread output, 2.5 MiB kept for sessions",
        "",
        "PROTOCOL  STATE  PEER  CLIENT       SESSION",
        r"umq       OPEN         a\x1b[2J\nb",
        "and 2 more",
        "",
    ]


def test_flow_and_bridges_stand_in_the_terminal_and_nothing_of_theirs_acts_there() -> None:
    columns = {"messages_per_second": [1.0, 250.4], "ack_p99_seconds": [None, 0.0125]}
    one = {"connections": 2, "states": {"OPEN": 2, "NEW": 1}, "faults": {}, "limits_met": {}}
    bridge = shown_bridge({"consumer": "spark", "state": "away\x1b[2J", "lag_rows": 7}, 0.0)
    bridge["away"] = [{"error": None}, {"error": "the certificate is not one to trust"}]
    other = bridge | {
        "table": "t", "state": "failed", "heard_seconds": 4.6, "rows_per_second": 2.6,
        "gateways": 2, "away": [{"error": "it does not answer"}], "error": "no room",
    }  # fmt: skip
    standing = {"table": None, "behind_messages": 0, "rests_seconds": 0.0}
    queue = {
        "directory": "q", "begin_offset": 0, "end_offset": 25, "waiting_messages": 0,
        "left_bytes": 3 << 29, "max_bytes": 10 << 30, "bridges": [bridge, other],
        "consumers": [
            {**standing, "name": "all", "offset": 3, "behind_messages": 6, "still_seconds": 7_200},
            {**standing, "name": "b", "table": "t", "offset": 9, "rests_seconds": 86_393},
        ],
        "unheld": [{"directory": "a b", "behind_messages": 8}],
    }  # fmt: skip
    waiting = {"space": "s", "name": "orders", "waiting": 4, "in_flight": 1, "consumers": 0}
    shown = FIGURES | {
        "queue": queue, "protocols": {"umq": one, "mtl": one}, "sessions": [],
        "flow": {"protocols": {"umq": columns}}, "broker": {"queues": [waiting] * 21},
    }  # fmt: skip
    before = shown | {"at": 3_000_000, "queue": queue | {"end_offset": 5}}
    assert list(lines(shown, before)) == [
        "!!  no",
        "",
        "queue q: messages 0 to 25, 0 not on disk yet, 1.5 GiB left of 10.0 GiB",
        "10 messages/s",
        "",
        "CONSUMER  COMMITTED  BEHIND  HAS NOT MOVED FOR",
        "all       3          6       2 h",
        "t (b)     9          0       resting, next run within 24 h",
        "",
        "NO GATEWAY HOLDS  BEHIND  UNLESS IT STARTS AGAIN",
        "a b               8       msgproto queue mend 'a b'",
        "",
        "BRIDGE     STATE        HEARD    ROWS/S  BEHIND  GATEWAYS  AWAY  ERROR",
        r"spark      away\x1b[2J  -        -       7       -         2     "
        "the certificate is not one to trust",
        "t (spark)  failed       5 s ago  3       7       2         1     no room",
        "",
        "PROTOCOL  MESSAGES/S  ACK P99  CONNECTIONS  STATES         FAULTS  LIMITS MET",
        "umq       250         12.5 ms  2            2 OPEN, 1 NEW  -       -",
        "mtl       -           -        2            2 OPEN, 1 NEW  -       -",
        "",
        "memory: 1 bytes in messages that are not safe yet, 1.0 KiB in unfinished messages and"
        " unread output, 2.5 MiB kept for sessions",
        "",
        "SPACE  QUEUE   WAITING  IN-FLIGHT  CONSUMERS",
        *["s      orders  4        1          0"] * 20,
        "and 1 more",
        "",
    ]
    for too_early in (shown, FIGURES):
        assert not [line for line in lines(shown, too_early) if line.endswith("messages/s")]


def test_what_answers_and_is_no_gateway_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatewayBroker, "figures", lambda gateway: {"healthy": {"ok": True}})
    for where in ("http://h:1", DEFAULT_URL):
        told = msgproto("status", where, status=2)
        assert told == "msgproto status: what answers there is no status endpoint of a gateway\n"


def test_reload_says_what_was_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, list[str]] = {"done": [], "later": []}
    monkeypatch.setattr(GatewayBroker, "reload", lambda gateway: told)
    assert msgproto("reload", "http://h:1") == "the gateway has no file to read again\n"
    told |= {"done": ["ü.pem"], "later": ["the port"]}
    lines = "read again: ü.pem\nchanged, and in force after the next start: the port\n"
    assert msgproto("reload", "http://h:1") == lines
    assert msgproto("reload", "http://h:1", "--json") == f"{json.dumps(told, ensure_ascii=False)}\n"
