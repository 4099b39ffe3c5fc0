"""A sixth protocol, in a package of its own, is found as ours are: FC-05, guard 5 of the house.

The package is installed into a directory of its own and driven from outside, by the commands which
drive our five.  Its machines and its hooks are tested as a user would, with
``twisted_msgproto.testing``.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import CancelledError
from twisted.internet.protocol import Protocol

from tests.tools.byte_streams import flatten
from tests.tools.processes import PROJECT, START_SECONDS, Launched, Launcher
from twisted_msgproto import extend
from twisted_msgproto.cli import demo
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    QueueError,
    Refused,
    TimedOut,
)
from twisted_msgproto.extend import Authentication
from twisted_msgproto.net import portal_over
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.testing import Clock, HeldSink, Pair, SafeSink, splits

LINES = PROJECT / "examples" / "lines"
LOOPBACK = "tcp:0:interface=127.0.0.1"

OFFERED = "twisted_msgproto.extend"
"""docs/sixth-protocol.md names this module, and nothing else, for people who add one."""


# ── what it consists of ─────────────────────────────────────────────────────────────────────────


def files() -> list[Path]:
    found = [path for path in LINES.rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts and path.suffix != ".cache"]


def test_it_is_one_folder_one_entry_point_and_one_plugin_line() -> None:
    """FC-05"""
    assert {path.relative_to(LINES).parts[0] for path in files()} == {
        "msgproto_lines",
        "pyproject.toml",
        "test_lines.py",
        "twisted",
    }
    project = tomllib.loads((LINES / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {
        "twisted_msgproto.protocols": {"lines": "msgproto_lines:REGISTERED"}
    }
    (plugin,) = (LINES / "twisted" / "plugins").glob("*.py")
    statements = [node for node in ast.parse(plugin.read_text()).body if type(node) is ast.Assign]
    assert len(statements) == 1 and plugin.read_text().count("ServiceMaker(") == 1
    ours = [path for path in PROJECT.rglob("*.py") if "msgproto_lines" in path.name]
    assert [path for path in ours if LINES not in path.parents and ".venv" not in path.parts] == []


def imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("path", sorted(LINES.rglob("*.py")), ids=lambda path: path.name)
def test_it_is_written_against_public_names_alone(path: Path) -> None:
    for module, name in imports(path):
        words = [*module.split("."), name]
        assert module == "__future__" or not any(word.startswith("_") for word in words)
        if module.split(".")[0] == "twisted_msgproto":
            assert module == (OFFERED if path.parent != LINES else "twisted_msgproto.testing")
    own = {
        node.name
        for file in LINES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            assert node.attr in own or assigned(node.attr), node.attr


def assigned(name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for file in LINES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    )


def test_nothing_is_offered_that_it_does_not_use() -> None:
    """But the bases of what it uses: their members stand on their own part of the page."""
    used = {
        name for path in LINES.rglob("*.py") for module, name in imports(path) if module == OFFERED
    }
    bases = {
        base.__name__ for name in used for base in getattr(getattr(extend, name), "__mro__", ())
    }
    assert set(extend.__all__) - bases <= used <= set(extend.__all__)


def test_its_page_names_no_other_module_of_ours() -> None:
    page = (PROJECT / "docs" / "sixth-protocol.md").read_text()
    found = set(re.findall(r"\btwisted_msgproto\.\w+(?:\.\w+)*", page))
    groups = {"twisted_msgproto.protocols", "twisted_msgproto.sinks"}  # of entry points
    assert found - groups <= {OFFERED, "twisted_msgproto.testing"}


def test_its_machine_and_its_entry_point_need_no_twisted() -> None:
    program = """
import sys
from types import ModuleType
package = sys.modules["msgproto_lines"] = ModuleType("msgproto_lines")
package.__path__ = [sys.argv[1]]  # its own file imports all of it
import msgproto_lines.machine
from twisted_msgproto.extend import LOOPBACK, Registered
sys.exit(1 if "twisted" in sys.modules else 0)
"""
    command = [sys.executable, "-c", program, str(LINES / "msgproto_lines")]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


# ── its machines and hooks, with the tools which others have ────────────────────────────────────


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(LINES))
    import msgproto_lines

    return msgproto_lines


class Served:
    def __init__(self, lines: Any, sink: Any = None, **limits: Any) -> None:
        self.lines = lines
        self.clock = Clock()
        self.limits = {name.replace("_", "-"): value for name, value in limits.items()}
        self.server = lines.LinesServerFactory(
            sink, clock=self.clock, wallClock=self.clock.seconds, limits=self.limits
        )
        self.pairs: list[Pair] = []

    def join(self, **hooks: Any) -> Any:
        factory = self.lines.LinesClientFactory(clock=self.clock, limits=self.limits)
        factory.protocol = type("Hooked", (self.lines.LinesClient,), hooks)
        pair = Pair(self.server.buildProtocol, factory.buildProtocol)
        self.pairs.append(pair)
        client = pair.client.protocol
        client.got = []
        client.messageReceived = lambda message: client.got.append(message.body)
        return client

    def settle(self) -> None:
        self.clock.settle(*self.pairs)

    def wait(self, seconds: float) -> None:
        self.clock.wait(seconds, *self.pairs)

    def end(self) -> None:
        for pair in self.pairs:
            pair.cut()
        assert self.clock.getDelayedCalls() == []


def test_the_test_that_its_page_shows_passes(lines: Any) -> None:
    runpy.run_path(str(LINES / "test_lines.py"))["test_an_acknowledgement_waits_for_the_disk"]()


def failure_of(deferred: Any) -> Exception:
    found: list[Any] = []
    deferred.addErrback(found.append)
    return found[0].value  # type: ignore[no-any-return]


BODIES = [b"plain", b"", b"with \\ and \n and \\n", b"\xff\x00", b" spaces "]


def test_any_bytes_can_be_sent_and_come_back_as_they_were(lines: Any) -> None:
    served = Served(lines, sink := SafeSink())
    sender, reader = served.join(), served.join()
    subscribed = reader.subscribe()
    served.settle()
    assert subscribed.called
    sent = [sender.send(body) for body in BODIES]
    served.settle()
    assert all(one.called and one.result is None for one in sent)
    assert reader.got == [message.body for message in sink.messages] == BODIES
    assert [message.message_id for message in sink.messages] == [1, 2, 3, 4, 5]
    served.end()


def test_nothing_is_acknowledged_or_published_before_it_is_safe(lines: Any) -> None:
    served = Served(lines, sink := HeldSink())
    sender, reader = served.join(), served.join()
    reader.subscribe()
    served.settle()
    first = sender.send(b"first")
    served.settle()
    second = sender.send(b"second")
    served.settle()
    sink.waiting[1].callback(None)  # the second alone
    del sink.waiting[1]
    served.settle()
    assert not first.called and not second.called
    sink.release()
    served.settle()
    assert first.called and second.called and set(reader.got) == {b"first", b"second"}
    served.end()


def test_what_is_not_stored_is_not_acknowledged_and_ends_the_connection(lines: Any) -> None:
    served = Served(lines, sink := HeldSink())
    client = served.join()
    sent = client.send(b"x")
    served.settle()
    sink.fail(QueueError("the disk is gone"))
    served.settle()
    assert isinstance(failure_of(sent), ConnectionClosed)
    served.end()


@pytest.mark.parametrize(
    "stream",
    [
        b"put one\nsubscribe\nput two\nput thr\\\\ee\n",
        b"put one\nnonsense\nput two\n",
        b"put one\nput bad \\x\n",
        b"put one\n" + b"put " + b"x" * 100 + b"\nput two\n",
        b"put one\n" + b"x" * 100,
    ],
)
def test_a_stream_says_the_same_wherever_it_is_cut(lines: Any, stream: bytes) -> None:
    from msgproto_lines.machine import Server
    from msgproto_lines.protocol import LinesServerFactory

    limits = LinesServerFactory.defaultLimits({"line-bytes": 64})
    seen = set()
    for pieces in splits(stream):
        machine, flat = Server(limits), []
        for piece in pieces:
            for event in machine.receive(piece, 0.0):
                flat += flatten([event]) if hasattr(event, "bodies") else [event]
        seen.add(repr(flat))
    assert len(seen) == 1, seen


def test_a_fault_of_the_client_is_told_to_it(lines: Any) -> None:
    served = Served(lines)
    client = served.join()
    sent = client.send(b"x")
    client.transport.write(b"nonsense\n")
    later = client.send(b"y")
    served.settle()
    assert sent.result is None
    refused = failure_of(later)
    assert isinstance(refused, Refused) and "put or subscribe" in str(refused)
    assert isinstance(failure_of(client.send(b"z")), Refused)
    assert served.server.counters["fault:line"] == 1
    served.end()


@pytest.mark.parametrize(
    "answer", [b"ack 2\n", b"ack x\n", b"ack 0\n", b"what\n", b"message \\x\n"]
)
def test_a_fault_of_the_server_fails_what_waits(lines: Any, answer: bytes) -> None:
    served = Served(lines, HeldSink())
    client = served.join()
    sent = client.send(b"x")
    served.settle()
    served.pairs[0].server.write(answer)
    served.settle()
    assert isinstance(failure_of(sent), ProtocolViolation)
    served.end()


def test_a_server_which_does_not_answer_is_left(lines: Any) -> None:
    served = Served(lines, HeldSink(), ack_seconds=5)
    client = served.join()
    sent = client.send(b"x")
    served.wait(4)
    assert not sent.called
    served.wait(2)
    assert isinstance(failure_of(sent), TimedOut)
    served.end()


def logging_in(lines: Any, password: str) -> tuple[Served, Any]:
    served = Served(lines, SafeSink())
    checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right")
    served.server.authentication = Authentication(portal_over([checker]), served.server)
    factory = lines.LinesClientFactory("me", password, clock=served.clock)
    served.pairs.append(Pair(served.server.buildProtocol, factory.buildProtocol))
    served.wait(3)
    return served, served.pairs[0]


def test_who_logs_in_is_named_in_what_is_stored(lines: Any) -> None:
    served, pair = logging_in(lines, "right")
    sent = pair.client.protocol.send(b"x")
    served.settle()
    assert sent.called and served.server.sink.messages[0].client_id == "me"
    served.end()


def test_who_does_not_log_in_is_kept_out(lines: Any) -> None:
    served, pair = logging_in(lines, "wrong")
    refused = failure_of(pair.client.protocol.whenEstablished())
    assert isinstance(refused, Refused) and "the log-in is refused" in str(refused)
    assert served.server.counters["login_failures"] == 1
    stranger = Served.join(served)
    sent = stranger.send(b"x")
    served.settle()
    assert "one login is expected" in str(failure_of(sent)) and not served.server.sink.messages
    served.pairs.append(Pair(served.server.buildProtocol, lambda address: Protocol()))
    served.wait(31)
    assert all(pair.server.gone for pair in served.pairs)
    served.end()


def test_limits_are_looked_at_before_anything_is_sent(lines: Any) -> None:
    served = Served(lines, HeldSink(), line_bytes=64, in_flight=2)
    client = served.join()
    assert isinstance(failure_of(client.send(b"x" * 60)), LimitExceeded)
    sent = [client.send(b"x"), client.send(b"y")]
    assert isinstance(failure_of(client.send(b"z")), LimitExceeded)
    served.settle()
    served.end()
    assert all(isinstance(failure_of(one), ConnectionClosed) for one in sent)


def test_a_client_hears_when_its_session_stands_and_when_it_has_ended(lines: Any) -> None:
    served, heard = Served(lines), []
    names = ["connectionMade", "sessionEstablished", "sessionLost", "connectionLost"]

    def noting(name: str) -> Any:
        return lambda client, *reason: heard.append((name, client.established))

    served.join(**{name: noting(name) for name in names})
    assert heard == list(zip(names[:2], [False, True], strict=True))
    drained = served.server.drain()
    served.settle()
    assert drained.called and heard[2:] == [(name, False) for name in names[2:]]
    served.end()


def test_cancelling_is_safe_also_in_a_callback(lines: Any) -> None:
    served = Served(lines, sink := HeldSink())
    client = served.join()
    first, second, third = (client.send(b"%d" % number) for number in range(3))
    first.addCallback(lambda _: second.cancel())
    served.settle()
    sink.release()
    served.settle()
    assert isinstance(failure_of(second), CancelledError)
    assert first.called and third.called and third.result is None
    served.end()


def test_close_waits_for_what_is_on_its_way_and_not_for_ever(lines: Any) -> None:
    served = Served(lines, sink := HeldSink(), drain=4)
    client, other = served.join(), served.join()
    sent, lost = client.send(b"x"), other.send(b"y")
    served.settle()
    closed, late = client.close(), other.close()
    served.wait(1)
    assert not closed.called
    sink.release(1)
    served.wait(1)
    assert sent.result is None and closed.called and not late.called
    served.wait(5)
    assert late.called and isinstance(failure_of(lost), ConnectionClosed)
    assert isinstance(failure_of(client.send(b"z")), ConnectionClosed)
    third = served.join()
    kept = third.send(b"x")
    served.settle()
    drained = served.server.drain()  # so does a server that stops
    served.settle()
    assert not drained.called
    sink.release()
    served.settle()
    assert drained.called and kept.result is None
    served.end()


def test_a_subscriber_which_does_not_read_is_cut_off(lines: Any) -> None:
    served = Served(lines, SafeSink(), unread_bytes=100_000)
    sender, reader = served.join(), served.join()
    reader.subscribe()
    served.settle()
    served.pairs[1].client.deaf = True
    for _ in range(40):
        sender.send(b"x" * 10_000)
        served.settle()
    assert served.pairs[1].server.gone and served.server.subscribers == {}
    assert served.server.counters["fault:unread"] == 1
    assert not served.pairs[0].server.gone
    served.end()


# ── driven from outside ─────────────────────────────────────────────────────────────────────────


def bodies(directory: Path) -> list[bytes | None]:
    reader = QueueReader(directory)
    columns = [one.column("body").to_pylist() for one in reader.read(reader.begin(), reader.end())]
    return [body for column in columns for body in column]


def sent_through(launch: Launcher, address: str, with_sixth: dict[str, str], *words: str) -> Any:
    ended = launch.run(
        "send",
        "lines",
        address,
        *words,
        stdin="one\nt\\wo\n",
        env=with_sixth,
        seconds=START_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_twistd_gateway_send_recv_and_check_find_it(
    launch: Launcher, with_sixth: dict[str, str]
) -> None:
    """FC-05: from the wire into the queue, with no line of ours changed."""
    (launch.directory / "gateway.toml").write_text(
        f'[queue]\ndirectory = "spool"\n[limits]\nline-bytes = 70000\n'
        f'[lines]\nendpoint = ["{LOOPBACK}"]\n[sabc]\nendpoint = ["{LOOPBACK}"]\n'
    )
    checked = launch.run("check", "gateway.toml", env=with_sixth, seconds=START_SECONDS)
    assert checked.stdout.startswith(f"lines: {LOOPBACK}\nsabc: {LOOPBACK}\n"), checked.stderr
    gateway = launch("gateway", "--config", "gateway.toml", env=with_sixth)
    address = gateway.address("lines", seconds=START_SECONDS)
    receiving = launch("recv", "lines", address, "--json", env=with_sixth)
    until_subscribed(address, receiving)
    assert "sent 2, acknowledged 2" in sent_through(launch, address, with_sixth)
    receiving.line("wo", seconds=START_SECONDS)
    receiving.signal(signal.SIGINT)
    assert receiving.wait(seconds=START_SECONDS) == 130, receiving.output
    got = [json.loads(line)["body"] for line in receiving.lines]
    assert [body for body in got if body != "probe"] == ["one", "t\\wo"]
    told = json.loads(sent_through(launch, address, with_sixth, "--count", "3000", "--json"))
    assert (told["sent"], told["acknowledged"]) == (3000, 3000)
    too_long = launch.run(
        *("send", "lines", address, "--count", "1", "--size", "80000"),
        env=with_sixth,
        seconds=START_SECONDS,
    )
    assert too_long.returncode == 1 and "Traceback" not in too_long.stderr
    left = launch("recv", "lines", address, env=with_sixth)
    until_subscribed(address, left)
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(seconds=START_SECONDS) == -signal.SIGTERM
    assert left.wait(seconds=START_SECONDS) == 1 and "has ended the connection" in left.output
    landed = [body for body in bodies(launch.directory / "spool") if body != b"probe"]
    assert landed[:2] == [b"one", b"t\\wo"] and len(landed) == 3002


def until_subscribed(address: str, receiving: Launched) -> None:
    """Put bodies until ``receiving`` shows one: only a subscriber gets what is put."""
    host, port = address.removeprefix("tcp:").split(":")
    deadline = time.monotonic() + START_SECONDS
    with socket.create_connection((host, int(port))) as connection:
        answers = connection.makefile("rb")
        while not receiving.lines:
            assert time.monotonic() < deadline, receiving.output
            connection.sendall(b"put probe\n")
            assert answers.readline().startswith(b"ack ")
            time.sleep(0.02)


@pytest.mark.slow
def test_its_own_twistd_plugin_and_a_subclass_of_it(
    launch: Launcher, with_sixth: dict[str, str]
) -> None:
    (launch.directory / "shouting.py").write_text(
        "from dataclasses import replace\n"
        "from msgproto_lines import LinesServer\n"
        "class Shouting(LinesServer):\n"
        "    def batchReceived(self, batch):\n"
        "        louder = [body.upper() for body in batch.body]\n"
        "        return super().batchReceived(replace(batch, body=louder))\n"
    )
    server = launch(
        *("lines", "-e", LOOPBACK, "--queue", "spool", "--class", "shouting:Shouting"),
        *("--auth", "memory:me:right"),
        module="twisted",
        env=with_sixth,
    )
    (launch.directory / "password").write_text("right\n")
    log_in = ("--user", "me", "--password-file", "password")
    sent_through(launch, server.address("lines", seconds=START_SECONDS), with_sixth, *log_in)
    assert server.end(seconds=START_SECONDS) == -signal.SIGTERM
    assert bodies(launch.directory / "spool") == [b"ONE", b"T\\WO"]


def test_the_demo_has_a_row_of_it(sixth_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole demo runs with this row in tests/cli/test_demo.py."""
    from twisted_msgproto import registry

    monkeypatch.syspath_prepend(str(sixth_site))
    registry.forget()
    try:
        protocols = demo.shown_protocols()
        assert list(protocols) == [*registry.PROTOCOLS, "lines"]
        file = demo.gateway_file(Path("queue"), protocols.values())
        assert f'[lines]\nendpoint = ["{LOOPBACK}"]\n' in file
    finally:
        registry.forget()
