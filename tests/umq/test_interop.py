"""UMQ over real sockets: a WebSocket client which is not ours, wss, the server as a process."""

import asyncio
import contextlib
import json
import signal
import ssl
import sys
from pathlib import Path

import pytest
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

websockets = pytest.importorskip("websockets")
from websockets.asyncio.client import connect  # noqa: E402

from tests.tools.certificates import Authority  # noqa: E402

SERVER = Path(__file__).parent / "server.py"


def talk(launch, conversation, *arguments, times=1, **options):
    """Run ``conversation(socket)`` against the test's server process (see server.py).

    With ``times`` above 1 it is ``conversation(socket, number)`` on a new connection each time.
    """
    server = launch.command([sys.executable, str(SERVER), *arguments])
    port = server.port("umq")
    scheme = "wss" if options.get("ssl") else "ws"

    async def run():
        for number in range(times):
            async with connect(
                f"{scheme}://localhost:{port}/", compression=None, max_size=None, **options
            ) as socket:
                told = conversation(socket) if times == 1 else conversation(socket, number)
                result = await asyncio.wait_for(told, 30)
        return result

    return asyncio.run(run())


async def said(socket, *messages):
    for message in messages:
        await socket.send(message)


async def heard(socket, count):
    return [await socket.recv() for _ in range(count)]


async def closed(socket):
    """Everything which is said until the end, and the close code."""
    rest = []
    with contextlib.suppress(websockets.exceptions.ConnectionClosed):
        while True:
            rest.append(await socket.recv())
    return rest, socket.close_code


def test_the_sources_examples_with_a_foreign_client(launch):
    """UM-01 … UM-16: the examples of the source, spoken by another WebSocket library."""

    async def conversation(socket):
        await said(socket, "H1:tok")
        assert await heard(socket, 1) == ["W1:welcome"]
        await said(socket, "C5AX12:How are you?")
        assert await heard(socket, 1) == ["R5AX12:Fine"]
        await said(socket, "C112:Brew coffee")
        assert await heard(socket, 1) == ["E112:418 I'm teapot"]
        await said(socket, "C121:Send me duck.png")
        assert await heard(socket, 2) == ["A1:R121:Sending image/png", b"\x89PNG"]
        await said(socket, "A2:C1AZ4:sum", b"12", "C7:How are you?", "-:Upstream download error")
        assert await heard(socket, 2) == ["R7:Fine", "R1AZ4:2, lost Upstream download error"]
        await said(socket, "C41:Subscribe on 'ABC'. TopicID=9A8Z")
        assert await heard(socket, 3) == ["R41:accepted", "T9A8Z:update1", "T9A8Z:update2"]
        await said(socket, "U9A8Z:", "U9A8Z:")
        assert await heard(socket, 1) == ["D9A8Z:"]
        await said(socket, "S:key=value", "X:nothing", "C42:attributes")
        assert await heard(socket, 1) == ['R42:{"key": "value"}']
        await said(socket, "X:key", "C:attributes")
        assert await heard(socket, 1) == ["R:{}"]
        await said(socket, "C13:I am ready, please send me a work as ID=4454")
        ready, work = await heard(socket, 2)
        assert ready == "R13:accepted"
        assert work.startswith("B1:4454:here is a work. Send me result as ID=")
        done = work.rpartition("=")[2]
        await said(socket, "R1:accepted", f"B88:{done}:Work done")
        assert await heard(socket, 1) == ["R88:Thank you!"]
        await said(socket, "B89:9999:nobody")
        assert await heard(socket, 1) == ["E89:2 callback not found"]
        await said(socket, "T77:who asked?")
        assert await heard(socket, 1) == ["U77:"]

    talk(launch, conversation)


FAULTS = [
    (["C1:before hello"], "F0:3 ", 1002),
    ([b"before hello"], "F0:3 ", 1002),
    (["H:"], "F0:5 ", 1000),
    (["H1:wrong"], "F0:1 rejected", 1000),
    (["A1:H1:tok"], "F0:1 ", 1000),
    (["H1:tok", "H1:tok"], "F0:3 ", 1002),
    (["H1:tok", "nonsense"], "F0:3 ", 1002),
    (["H1:tok", "Z1:"], "F0:4 ", 1002),
    (["H1:tok", "C" + "9" * 8000 + ":"], "F0:3 ", 1002),
    (["H1:tok", b"nobody waits for this"], "F0:3 ", 1002),
    (["H1:tok", "AX:C1:"], "F0:3 ", 1002),
    (["H1:tok", "A1:E1:x"], "F0:3 ", 1002),
    (["H1:tok", "S:no sign"], "F0:3 ", 1002),
    (["H1:tok", "C1:wait", "C01:wait"], "F0:3 ", 1002),
]


def test_faults_are_answered_with_their_code_and_a_close(launch):
    """UM-02, UM-05 … UM-09, UM-15, UM-18, UM-19: as a foreign client sees it."""

    async def conversation(socket, number):
        messages, fatal, code = FAULTS[number]
        await said(socket, *messages)
        rest, close_code = await closed(socket)
        assert rest[-1].startswith(fatal), (messages, rest)
        assert close_code == code, messages

    talk(launch, conversation, times=len(FAULTS))


def test_a_foreign_origin_does_not_come_in(launch):
    """The issue: a browser page from a foreign origin."""

    async def hello(socket):
        await said(socket, "H1:tok")
        return await heard(socket, 1)

    with pytest.raises(websockets.exceptions.InvalidStatus, match="403"):
        talk(launch, hello, "http://mine.example", origin="http://evil.example")
    assert talk(launch, hello, "http://mine.example", origin="http://mine.example") == [
        "W1:welcome"
    ]


@pytest.fixture
def certificate(tmp_path):
    """An authority's certificate, and a server's with its key in one PEM."""
    authority = Authority(tmp_path)
    own = authority.server()
    pem = tmp_path / "server.pem"
    pem.write_text(own.key.read_text() + own.cert.read_text())
    return authority.cert, pem


def test_wss_with_a_foreign_client(launch, certificate):
    """The issue, 1: wss; attachments of a megabyte, both ways."""
    context = ssl.create_default_context(cafile=certificate[0])
    body = bytes(range(256)) * 4096

    async def conversation(socket):
        await said(socket, "H1:tok", "A2:C1:echo", body, body[::-1])
        answers = await heard(socket, 4)
        assert answers == ["W1:welcome", "A2:R1:echo", body, body[::-1]]

    talk(launch, conversation, "--tls", str(certificate[1]), ssl=context)


def test_wss_with_our_client(launch, certificate):
    """The issue: both sides over real sockets with wss; a wrong name or authority is refused."""
    authority, pem = certificate
    endpoint = f"ssl:0:interface=127.0.0.1:privateKey={pem}:certKey={pem}"
    server = launch("umq", "-e", endpoint, module="twisted")
    port = server.port("umq")
    ca = ("--tls-ca", authority)
    sent = launch.run("send", "umq", f"wss://localhost:{port}/", *ca, "--count", "500", "--json")
    assert json.loads(sent.stdout)["acknowledged"] == 500, sent.stderr
    sent = launch.run("send", "umq", f"tls:localhost:{port}", *ca, stdin="one\ntwo\n")
    assert "acknowledged 2" in sent.stdout, sent.stderr
    refused = launch.run("send", "umq", f"wss://localhost:{port}/", stdin="x\n")
    assert refused.returncode != 0 and "Traceback" not in refused.stderr


def test_the_server_as_a_process_with_a_queue(launch, tmp_path):
    """The issue, 5 and 6: twistd umq, msgproto send and recv; what is answered is on disk."""
    server = launch(
        "umq", "-e", "tcp:0:interface=127.0.0.1", "--queue", tmp_path / "queue", module="twisted"
    )
    where = server.address("umq")
    sent = launch.run("send", "umq", where, "--count", "300", "--size", "100", "--json")
    assert json.loads(sent.stdout)["acknowledged"] == 300, sent.stderr
    receiving = launch("recv", "umq", where, "--destination", "news", "--count", "2", "--json")
    while (
        json.loads(
            launch.run(
                "send", "umq", where, "--call", "publish", "--args", "news", '"hel lo"'
            ).stdout
        )
        == 0
    ):
        pass
    launch.run("send", "umq", where, "--call", "publish", "--args", "news", "second")
    assert receiving.wait() == 0
    rows = [json.loads(line) for line in receiving.lines]
    assert [(row["kind"], row["destination"], row["body"]) for row in rows] == [
        ("topic", "news", "hel lo"),
        ("topic", "news", "second"),
    ]
    described = json.loads(launch.run("send", "umq", where, "--call", "methods").stdout)
    assert [entry["name"] for entry in described] == ["methods", "publish", "subscribe"]
    assert server.end() in (0, -signal.SIGTERM)
    dumped = launch.run("queue", "dump", tmp_path / "queue").stdout.splitlines()
    rows = [json.loads(line) for line in dumped]
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    assert len(rows) >= 304 and all(row["kind"] == "call" for row in rows)
    assert {row["destination"] for row in rows} == {None, "subscribe", "publish", "methods"}


@pytest.mark.parametrize(
    "words",
    [["--origin", "nonsense"], ["--limit", "attachments=x"], ["-e", "nonsense"], ["--auth", "x:y"]],
)
def test_usage_errors_of_the_server_are_one_line(words):
    """An operator's fault is one clear line, never a traceback."""
    with pytest.raises(SystemExit) as ended:
        (maker,) = [plugin for plugin in getPlugins(IServiceMaker) if plugin.tapname == "umq"]
        maker.options().parseOptions(words)
    assert len(str(ended.value).splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "umq", "http://localhost/", "--count", "1"),
        ("send", "umq", "ws://localhost:1/", "--call", "x"),
        ("send", "umq", "--args", "x"),
        ("recv", "umq", "ws://localhost:1/", "--destination", ""),
    ],
)
def test_what_cannot_be_is_one_line(launch, arguments):
    ended = launch.run(*arguments)
    assert ended.returncode != 0
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


def test_a_client_logs_in_with_user_and_password(launch, tmp_path):
    """UM-06: strcred checkers, and the identity in the queue."""
    (tmp_path / "passwd").write_text("alice:secret\n")
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    server = launch(
        "umq",
        "-e",
        "tcp:0:interface=127.0.0.1",
        "--queue",
        tmp_path / "queue",
        "--auth",
        f"file:{tmp_path / 'passwd'}",
        module="twisted",
    )
    where = server.address("umq")
    user = ("--user", "alice", "--password-file")
    assert launch.run("send", "umq", where, *user, tmp_path / "right", stdin="x\n").returncode == 0
    for arguments in ((*user, tmp_path / "wrong"), ()):
        refused = launch.run("send", "umq", where, *arguments, stdin="x\n")
        assert refused.returncode == 1 and "rejected" in refused.stderr
    assert server.end() in (0, -signal.SIGTERM)
    rows = launch.run("queue", "dump", tmp_path / "queue").stdout.splitlines()
    assert [json.loads(row)["client_id"] for row in rows] == ["alice"]


def test_recv_shows_calls_and_attributes_and_ends_with_the_server(launch):
    """``msgproto recv umq`` without a destination: what the server pushes."""
    server = launch.command([sys.executable, str(SERVER), "--push"])
    where = server.address("umq")
    received = launch.run("recv", "umq", where, "--user", "tok", "--json")
    assert received.returncode == 0, received.stderr
    rows = [json.loads(line) for line in received.stdout.splitlines()]
    assert [(row["kind"], row["destination"], row["body"]) for row in rows] == [
        ("attribute", "a", "1"),
        ("attribute", "a", None),
        ("call", None, "hello"),
    ]
