"""``msgproto send`` as people use it: real processes, a real server, honest counts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.tools.endpoints import reserved
from tests.tools.processes import PATIENCE_SECONDS, Launched, Launcher, environment, msgproto
from twisted_msgproto import Message, cli
from twisted_msgproto.cli import send
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.cli.recv import as_line
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.net.clients.command_types import RecvOptions, SendOptions
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.registry import PROTOCOLS

LOOPBACK = "tcp:0:interface=127.0.0.1"


@pytest.fixture
def server(launch: Launcher) -> Launched:
    return launch("lumberjack", "-e", LOOPBACK, "--queue", "spool", module="twisted")


def bodies(directory: Path) -> list[bytes]:
    reader = QueueReader(directory)
    return [
        body.as_py()
        for batch in reader.read(reader.begin(), reader.end())
        for body in batch.column("body")
    ]


@pytest.mark.parametrize("options", [[], ["--window", "7", "--compress", "9"], ["--compress", "0"]])
def test_lines_of_stdin_are_acknowledged_and_in_the_queue(
    launch: Launcher, server: Launched, options: list[str]
) -> None:
    lines = [json.dumps({"n": n}) for n in range(100)]
    address = server.address("lumberjack")
    ended = launch.run("send", "lumberjack", address, *options, stdin="\n".join(lines))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("sent 100, acknowledged 100 in ")
    assert bodies(launch.directory / "spool") == [line.encode() for line in lines]


def test_made_up_messages_and_the_counts_as_json(launch: Launcher, server: Launched) -> None:
    address = server.address("lumberjack")
    words = ["send", "lumberjack", address, "--count", "1234", "--size", "200", "--json"]
    ended = launch.run(*words)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["sent"], told["acknowledged"]) == (1234, 1234)
    assert told["seconds"] > 0
    assert ended.stderr == ""
    came = bodies(launch.directory / "spool")
    assert len(set(came)) == 1234
    assert {len(body) for body in came} == {200}


def test_nothing_to_send_is_no_failure(launch: Launcher, server: Launched) -> None:
    ended = launch.run("send", "lumberjack", server.address("lumberjack"), stdin="")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("sent 0, acknowledged 0")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lumberjack", "nonsense"], "not an endpoint: 'nonsense'"),
        (["lumberjack", "tcp:127.0.0.1"], "HOST:PORT expected, not '127.0.0.1'"),
        (["lumberjack", "tls:h:1", "--tls-ca", "nothing.pem"], "cannot read nothing.pem"),
        (
            ["sabc", "tcp:h:1", "--user", "me", "--password-file", "no"],
            "cannot read the password file",
        ),
        (["umq", "ws://h:1", "--call", "x", "--window", "5"], "call umq has no --window"),
        (["mtl", "tcp:127.0.0.1:5", "--count", "1"], "not a ZeroMQ address"),
    ],
)
def test_an_operators_fault_is_one_line(launch: Launcher, words: list[str], complaint: str) -> None:
    ended = launch.run("send", *words)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_line_above_a_limit_is_for_the_operator_to_change(
    launch: Launcher,
) -> None:
    serving = launch("sabc", "-e", LOOPBACK, module="twisted")
    words = ["send", "sabc", serving.address("sabc")]
    ended = launch.run(*words, stdin="short\n" + "x" * (2 << 20) + "\n")
    assert ended.returncode == 2
    # On a busy machine a line of progress may stand before it.
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("sent ")]
    assert len(lines) == 1
    assert lines[0].startswith("msgproto send: 1 of 2 messages were acknowledged: message 2: ")


def test_pythons_developer_mode_shows_the_traceback(launch: Launcher) -> None:
    words = ["-m", "twisted_msgproto", "send", "sabc", "tcp:127.0.0.1:1", "--count=1"]
    shown = launch.command([sys.executable, "-X", "dev", *words])
    assert (shown.wait(), "Traceback" in shown.output) == (1, True)


def test_a_call_has_a_deadline_too(launch: Launcher) -> None:
    server = launch("umq", "-e", LOOPBACK, module="twisted")
    url = server.address("umq").replace("tcp:", "ws://")
    server.signal(signal.SIGSTOP)
    words = ["send", "umq", url, "--call", "x", "--timeout"]
    ended = launch.run(*words, "0.2")
    assert ended.returncode == 1
    waits = launch(*words, "60")
    server.signal(signal.SIGCONT)
    assert waits.wait() == 3
    told = "the server has no such method, it gave the call to its application"
    assert told in waits.output
    assert (
        ended.stderr
        == "msgproto send: the server did not answer for 0.2 s (--timeout S waits longer)\n"
    )


NO_LOG_INS = ": the protocol has no log-ins; --tls-cert FILE and --tls-key"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("send lumberjack --destination x", "; it is for micromsg2, umq, mtl"),
        ("send lumberjack --user x", NO_LOG_INS),
        ("send lumberjack --property a=b", ""),
        ("send micromsg2 --compress 3", ""),
        ("send sabc --ttl 5", "; it is for lumberjack"),
        ("send umq --host x:1", ""),
        ("send mtl --tls-cert x", ""),
        ("send mtl --replace-invalid", ""),
        ("recv umq --filter a=b", ""),
    ],
)
def test_an_option_which_a_protocol_has_not_is_told_with_the_reason__HO_17__RD_27(
    words: str, reason: str
) -> None:
    told = msgproto(*words.split(), status=2)
    verb, protocol, option, *_ = words.split()
    assert told.startswith(f"msgproto {verb}: {verb} {protocol} has no {option}{reason}")
    assert told.count("\n") == 1


def test_a_protocol_without_recv_says_so() -> None:
    told = msgproto("recv", "lumberjack", "tcp:h:1", status=2)
    assert told == "msgproto recv: lumberjack has no recv\n"


def test_a_line_which_cannot_be_sent_is_named_and_those_before_it_arrive__HO_02(
    launch: Launcher, server: Launched
) -> None:
    command = f"printf 'one\\n\\n\\377\\nfour\\n' | {{}} {server.address('lumberjack')}"
    ended = shell(launch, command.format(f"{sys.executable} -m twisted_msgproto send lumberjack"))
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "msgproto send: 1 of 1 messages were acknowledged: line 3 cannot be sent: it is not UTF-8"
    )
    assert ended.stderr.count("\n") == 1
    assert bodies(launch.directory / "spool") == [b'{"message": "one"}']


def test_what_websocket_cannot_carry_is_one_line__HO_21(launch: Launcher) -> None:
    serving = launch("sabc", "--websocket", LOOPBACK, module="twisted")
    url = serving.address("sabc").replace("tcp:", "ws://") + "/"
    command = f"printf '\\0x\\n' | {sys.executable} -m twisted_msgproto send sabc {url}"
    ended = shell(launch, command)
    assert ended.returncode == 2
    assert ended.stderr.startswith("msgproto send: line 1 cannot be sent: it begins with NUL")
    assert ended.stderr.count("\n") == 1


def test_a_method_which_the_server_has_not_is_told_with_a_status_of_its_own__HO_09(
    launch: Launcher,
) -> None:
    serving = launch("umq", "-e", LOOPBACK, "--queue", "spool", module="twisted")
    words = ["send", "umq", serving.address("umq"), "--call", "mispelt", "--args", "1"]
    ended = launch.run(*words)
    assert (ended.returncode, ended.stdout) == (3, "")
    told = "msgproto send: the server has no such method, it stored the call\n"
    assert ended.stderr == told


def shell(launch: Launcher, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=launch.directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def planted(monkeypatch: pytest.MonkeyPatch, sending: object, **more: object) -> None:
    def driven(work: Callable[[object], Coroutine[Any, Any, None]], *rest: object) -> None:
        with pytest.raises(StopIteration):
            work(Clock()).send(None)

    command = SimpleNamespace(send=sending, DEFAULT_ENDPOINT="tcp:h:1", **more)
    monkeypatch.setattr(send, "command_of", lambda protocol, verb: command)
    monkeypatch.setattr(send, "why_not", driven)


@pytest.mark.parametrize(
    ("counts", "status", "line"),
    [
        ((5, 5, 0), 0, ""),
        ((5, 0, 5), 0, ""),
        ((5, 4, 0), 1, "4 of 5 messages were acknowledged: the command ended before the rest was"),
        ((5, 0, 3), 1, "3 of 5 messages were written: the command ended before the rest was"),
        ((4, 4, 0), 1, "4 of 5 messages were acknowledged: the command ended before the rest was"),
        ((0, 0, 0), 1, "nothing was sent: the command ended before the rest was"),
        ((3, 2, 0), 130, "2 of 5 messages were acknowledged: interrupted"),
    ],
)
def test_the_status_and_the_line_follow_the_counts_whatever_the_protocol_says(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    counts: tuple[int, int, int],
    status: int,
    line: str,
) -> None:
    async def claim(reactor: object, options: object, messages: object, progress: Counted) -> None:
        progress.sent(counts[0])
        progress.acknowledged(counts[1])
        progress.written(counts[2])
        if status == 130:
            raise KeyboardInterrupt

    planted(monkeypatch, claim)
    assert cli.main(["send", "lumberjack", "--count", "5"]) == status
    told = capsys.readouterr()
    assert line in told.err
    assert ("the server was not asked to acknowledge" in told.out) == (counts[2] > 0)


@pytest.mark.parametrize(
    ("sent", "as_json", "line"),
    [
        (0, False, "it is too long"),
        (0, True, "nothing was sent: it is too long"),
        (2, False, "1 of 5 messages were acknowledged: it is too long"),
        (2, True, "1 of 5 messages were acknowledged: it is too long"),
    ],
)
def test_what_the_operator_has_to_change_is_told_with_the_counts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sent: int,
    as_json: bool,
    line: str,
) -> None:
    async def refusing(reactor: object, options: object, some: object, progress: Counted) -> None:
        if sent:
            progress.sent(sent)
            progress.acknowledged(1)
            progress.note("stored as x")
        raise ConfigurationError("it is too long")

    planted(monkeypatch, refusing)
    times = iter([5.0, 7.2345678])
    monkeypatch.setattr(send, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert cli.main(["send", "lumberjack", "--count", "5", *["--json"] * as_json]) == 2
    told = capsys.readouterr()
    assert told.err == f"msgproto send: {line}\n"
    if as_json:
        counts = {"sent": sent, "acknowledged": sent // 2, "seconds": 2.234568}
        assert json.loads(told.out) == counts | ({"notes": ["stored as x"]} if sent else {})
    else:
        assert told.out == ("sent 2, acknowledged 1 in 2.23 s (0/s); stored as x\n" if sent else "")


def test_all_words_up_to_the_next_option_are_arguments_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def call(
        reactor: object, options: object, method: str, arguments: list[str]
    ) -> tuple[str, bool]:
        return f"{method} {arguments}", True

    planted(monkeypatch, None, call=call)
    for words, told in (
        (
            ["--call", "add", "--args", "1", "-2", '{"a": 3}', "--user", "me"],
            ["1", "-2", '{"a": 3}'],
        ),
        (["--call", "add", "--args", "--user", "me"], []),
        (["--call", "add"], []),
    ):
        assert msgproto("send", "umq", "ws://h", *words) == f"add {told}\n"
    for words, line in (
        (["--args", "1"], "--args go with --call METHOD"),
        (["--size", "1"], "--size goes with --count N"),
    ):
        assert msgproto("send", "umq", "ws://h", *words, status=2) == f"msgproto send: {line}\n"
    for more in ("--count", "--size"):
        line = msgproto("send", "umq", "ws://h", "--call", "add", more, "1", status=2)
        assert line == f"msgproto send: {more} does not go with --call\n"


@pytest.mark.parametrize(
    ("why", "status", "line"), [("it is away", 1, "it is away"), (None, 3, "stored")]
)
def test_a_call_that_was_not_carried_out_says_so(
    monkeypatch: pytest.MonkeyPatch, why: str | None, status: int, line: str
) -> None:
    async def call(*arguments: object) -> tuple[str, bool]:
        return "stored", False

    def driven(work: Callable[[object], Coroutine[Any, Any, None]], *rest: object) -> str | None:
        if why is None:
            with pytest.raises(StopIteration):
                work(Clock()).send(None)
        return why

    planted(monkeypatch, None, call=call)
    monkeypatch.setattr(send, "why_not", driven)
    told = msgproto("send", "umq", "ws://h", "--call", "add", status=status)
    assert told == f"msgproto send: {line}\n"


@pytest.mark.parametrize(
    ("octets", "password"),
    [
        (b"secret\n", "secret"),
        (b"secret\r\nmore", "secret"),
        ("se\u2028cr\x0cet".encode(), "se\u2028cr\x0cet"),
        (b"", ""),
    ],
)
def test_a_password_is_the_first_line_of_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, octets: bytes, password: str
) -> None:
    """Only a line end ends it: a form feed or a line separator may be part of it."""
    file = tmp_path / "password"
    file.write_bytes(octets)
    told: list[str | None] = []

    async def noting(reactor: object, options: SendOptions, *rest: object) -> None:
        told.append(options.password)
        assert (options.count, options.size) == (1, 300)

    planted(monkeypatch, noting)
    words = ["sabc", "tcp:h:1", "--count", "1", "--user", "me", "--password-file", str(file)]
    cli.main(["send", *words])
    assert told == [password]


# ── ``msgproto recv``: a message a line, an end after ``--count``; with a protocol o ──

COMMAND = """
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionLost
from twisted.internet.task import deferLater
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.core.message import Message

DEFAULT_ENDPOINT = "tcp:127.0.0.1:1"
RECV_OPTIONS = {"destination", "ready"}

async def recv(reactor, options, show):
    fail(RuntimeError("nobody handles it"))
    if options.endpoint == "refuse":
        raise Refused("no such topic")
    if options.endpoint == "tcp:cut:1":
        options.ready()
        raise ConnectionLost
    try:
        for n in range(0 if options.endpoint == "silent" else 5):
            show(Message("fake", "topic", 0, destination=options.destination, body=b"%d" % n))
        if options.endpoint == "ends":
            return
        await Deferred()
    finally:
        if options.endpoint == "stays":
            await Deferred()
        await deferLater(reactor, 0, print, "unsubscribed", flush=True)
"""

MAIN = """
import sys
from twisted_msgproto import cli, registry
from twisted_msgproto.cli import clients
if "stays" in sys.argv:
    clients.STOP_SECONDS = 0
registry.PROTOCOLS["fake"] = registry.Registered("fake", "Fake", "fake", {}, {})
sys.exit(cli.main(["recv", "fake", *sys.argv[1:]]))
"""


@pytest.fixture
def fake(launch: Launcher) -> Launcher:
    package = launch.directory / "fake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "command.py").write_text(COMMAND)
    (launch.directory / "receives.py").write_text(MAIN)
    return launch


def recv(fake: Launcher, *words: str) -> Launched:
    return fake(*words, module="receives")


def test_it_ends_after_the_count_and_in_peace(fake: Launcher) -> None:
    program = recv(fake, "--count", "3", "--destination", "news")
    assert program.wait() == 0
    assert program.lines == ["news\t0", "news\t1", "news\t2", "unsubscribed"]


@pytest.mark.parametrize("kind", ["tcp", "path"])
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        *(("send", name) for name in PROTOCOLS),
        *(("recv", name) for name in PROTOCOLS if name != "lumberjack"),
    ],
)
def test_that_nobody_listens_is_said_however_soon_it_has_to_be__RD_43(
    launch: Launcher, verb: str, name: str, kind: str
) -> None:
    """ZeroMQ tries again without end, and --timeout was to be longer."""
    with reserved(1) as (port,):
        address = f"tcp:127.0.0.1:{port}" if kind == "tcp" else "unix:nobody"
        if name == "mtl":
            address = f"tcp://127.0.0.1:{port}" if kind == "tcp" else "ipc://nobody"
        more = {"micromsg2": ["--destination=a"], "sabc": ["--user=u"], "umq": ["--user=u"]}
        done = launch.run(verb, name, address, "--count=1", "--timeout=1", *more.get(name, []))
    assert done.returncode == 1
    assert address in done.stderr
    known = "nobody listens|no such socket|no connection can be made|nobody answers"
    assert re.search(known, done.stderr)
    assert "--timeout" not in done.stderr


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGINT, []), (signal.SIGTERM, []), (signal.SIGINT, ["stays"])]
)
def test_without_a_count_it_goes_on_until_a_signal(
    fake: Launcher, number: signal.Signals, words: list[str]
) -> None:
    program = recv(fake, *words)
    program.line("4")
    program.signal(number)
    assert program.wait() == 130
    assert program.lines == ["0", "1", "2", "3", "4", *["unsubscribed"] * (not words)]


NO_MORE = "no more came within 3 s, and nobody answers at tcp:h:1; is the server running?"
NOBODY = NO_MORE.replace("more", "message")


@pytest.mark.parametrize(
    ("words", "count", "agreed", "line"),
    [
        ([], 0, False, ""),
        (["--count=2"], 1, False, "1 of 2 messages came: the server ended it"),
        (["--count=2"], 2, False, ""),
        (["--count=2", "--timeout=3"], 2, False, ""),
        (["--timeout=3"], 1, False, ""),
        (["--timeout=3"], 0, False, NOBODY),
        (["--timeout=3"], 0, True, "no message came within 3 s"),
        (["--timeout=3", "--count=2"], 0, False, f"0 of 2 messages came: {NO_MORE}"),
        (["--timeout=3", "--count=2"], 1, False, "1 of 2 messages came: no more came within 3 s"),
        (["--timeout=3", "--until-empty"], 0, True, ""),
    ],
)
def test_too_few_messages_are_told(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    count: int,
    agreed: bool,
    line: str,
) -> None:
    async def receiving(clock: Clock, options: RecvOptions, show: Callable[..., None]) -> None:
        if agreed and options.ready is not None:
            options.ready()
        for number in range(count):
            show(Message("fake", "topic", 0, body=b"%d" % number, fields={"a": "b"}))

    def driven(work: Callable[[Any], Coroutine[Any, Any, None]], *rest: Any) -> None:
        running = Deferred.fromCoroutine(work(clock := Clock()))
        clock.advance(0)
        assert running.called
        assert clock.getDelayedCalls() == []
        assert bool(rest[1]()) == (agreed or count > 0)

    command = SimpleNamespace(
        recv=receiving, DEFAULT_ENDPOINT="tcp:h:1", RECV_OPTIONS={"ready", "destination"}
    )
    for name, stand_in in (("command_of", lambda *of: command), ("why_not", driven)):
        monkeypatch.setattr(f"twisted_msgproto.cli.recv.{name}", stand_in)
    assert cli.main(["recv", "umq", *words, "--properties"]) == bool(line)
    told = capfd.readouterr()
    assert told.out.splitlines() == [f'{{"a": "b"}}\t{number}' for number in range(count)]
    assert told.err == (f"msgproto recv: {line}\n" if line else "")


CUT_OFF = "msgproto recv: the connection was lost: the server, or something on the way"


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["ends"], 0, "unsubscribed"),
        (["ends", "--count", "6"], 1, "msgproto recv: 5 of 6 messages came"),
        (["refuse"], 1, "msgproto recv: no such topic"),
        (["tcp:cut:1"], 1, CUT_OFF),
        (["tcp:cut:1", "--until-empty"], 1, CUT_OFF),
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
    shown = ["0", "1", "2", "3", "4"] if words[0] not in ("silent", "refuse", "tcp:cut:1") else []
    assert program.lines[: len(shown)] == shown
    assert "nobody handles it" not in program.output
    assert "if it speaks TLS" not in program.output, "it has agreed"


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
    message = Message("micromsg2", "message", 0, destination="d", body=b"b", fields={"ä": "1\n"})
    shown = as_line(message, as_json=False, properties=True)
    assert shown == 'd\t{"ä": "1\\n"}\tb'
    assert '"fields": {"ä": "1\\n"}' in as_line(message, as_json=True)


def test_json_lines_have_the_tables_columns(fake: Launcher) -> None:
    program = recv(fake, "--count", "1", "--json", "--destination", "news")
    assert program.wait() == 0
    shown = json.loads(program.lines[0])
    assert (shown["received_at"], shown["kind"]) == ("1970-01-01T00:00:00.000000Z", "topic")
    assert (shown["destination"], shown["body"], shown["attachments"]) == ("news", "0", None)


@pytest.mark.parametrize(
    ("body", "shown"), [(b"a\x1b[2Jb\nc", r"a\x1b[2Jb\nc"), (b"\xff", r"\xff"), (None, "")]
)
def test_what_a_peer_sent_cannot_steer_the_terminal(body: bytes | None, shown: str) -> None:
    assert as_line(Message("umq", "topic", 0, body=body), as_json=False) == shown


# ── ``send`` and servers which are not ours: how a connection ends, and what TLS has ──

websockets = pytest.importorskip("websockets", reason="pip install websockets")
from websockets.sync.server import serve  # noqa: E402


def umq_answer(message: str | bytes) -> str | None:
    """What a UMQ server says to a client's message: welcome, and a result for each call."""
    assert isinstance(message, str)
    kind, number = message[0], message[1:].partition(":")[0]
    return {"H": f"W{number}:welcome", "C": f"R{number}:ok"}.get(kind)


def sabc_answer(message: str | bytes) -> str | None:
    text = message if isinstance(message, str) else message.decode()
    if text.startswith("CONNECT\r\n"):
        return "CONNECTED\r\nsession-id::s\r\n\r\n\0"
    if text.startswith("DISCONNECT\r\n"):
        return None
    number = re.search(r"\r\nmsg-id::(\S+)", text)
    assert number is not None
    return f"MESSAGE\r\nsession-id::s\r\nref-msg-id::{number[1]}\r\n\r\n\0"


@pytest.mark.parametrize(("protocol", "answer"), [("umq", umq_answer), ("sabc", sabc_answer)])
def test_it_ends_with_a_closing_handshake__HO_18(
    launch: Launcher, protocol: str, answer: Callable[[str | bytes], str | None]
) -> None:
    """The foreign server is that of the package ``websockets``, in a thread."""
    ends: list[tuple[type[BaseException], int | None]] = []

    def handle(connection: Any) -> None:
        try:
            while True:
                told = answer(connection.recv())
                if told is None:
                    connection.close()
                else:
                    connection.send(told)
        except websockets.exceptions.ConnectionClosed as end:
            ends.append((type(end), connection.protocol.close_code))

    server = serve(handle, "127.0.0.1", 0, compression=None, close_timeout=60)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
        ended = launch.run("send", protocol, url, "--count", "5", "--json")
    finally:
        server.shutdown()
        thread.join()
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["acknowledged"] == 5
    assert ends == [(websockets.exceptions.ConnectionClosedOK, 1000)]
