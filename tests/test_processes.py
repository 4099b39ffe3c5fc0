"""``processes = N``: several gateways behind one port, each with a queue of its own (issue 18)."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import (
    CannotListenError,
    ConnectionDone,
    ConnectionRefusedError,
    ProcessTerminated,
)
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.chaos.clients import GoodClients
from tests.tools.certificates import Authority
from tests.tools.five import CLIENTS
from tests.tools.processes import PATIENCE_SECONDS, START_SECONDS, Launched, Launcher, wait_gone
from tests.tools.queues import batch, put
from twisted_msgproto import cli
from twisted_msgproto.cli import status
from twisted_msgproto.core.errors import ConfigurationError, QueueAway, QueueError
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.gateway import Configuration, Options, changed_keys
from twisted_msgproto.net.control.asking import GatewayBroker
from twisted_msgproto.net.factory import COMMON_LIMITS
from twisted_msgproto.net.gateway import CannotStart, Gateway
from twisted_msgproto.net.processes import asking, supervisor
from twisted_msgproto.net.processes.asking import ask
from twisted_msgproto.net.processes.figures import SupervisedFigures, together
from twisted_msgproto.net.processes.former import FORMER_SECONDS, FormerQueues
from twisted_msgproto.net.processes.ports import HeldPorts
from twisted_msgproto.net.processes.shares import OF_THE_GATEWAY, OF_THE_SERVER, Share
from twisted_msgproto.net.processes.supervisor import Plan
from twisted_msgproto.net.processes.worker import Job, State, Worker
from twisted_msgproto.net.status.figures import QUEUE_SECONDS
from twisted_msgproto.net.status.store import NEVER_REFUSES, former_queues
from twisted_msgproto.net.status.verdict import safe_and_landing
from twisted_msgproto.net.trying import BindingReactor
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.queue.below import mend_former, queues_at
from twisted_msgproto.registry import PROTOCOLS, part
from twisted_msgproto.spark.bridge import BridgeOptions
from twisted_msgproto.spark.table import LandedTable

LOOPBACK = "tcp:0:interface=127.0.0.1"


def configured(text: str) -> Configuration:
    return Configuration(tomllib.loads(text))


# ── the file ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("processes = 0\n[lumberjack]", "processes is a whole number from 1 to 64, not 0"),
        ("processes = true\n[lumberjack]", "processes is a whole number .*, not True"),
        (
            "processes = 2\n[lumberjack]\nprocesses = 2",
            r"\[lumberjack\]: processes is 1 or left out, not 2; the number of processes stands"
            " above all tables$",
        ),
        (
            "processes = 2\n[lumberjack]\nprocess-hang-seconds = 5",
            r"\[lumberjack\]: process-hang-seconds stands above all tables$",
        ),
        (
            "process-hang-seconds = 5\n[lumberjack]",
            "process-hang-seconds goes with processes only: write processes = N as well, or leave",
        ),
        (
            "processes = 2\nprocess-hang-seconds = '5 s'\n[lumberjack]",
            "process-hang-seconds is a number from 1 to 86400, or 0 for never, not '5 s'",
        ),
        (
            "processes = 2\nproces-hang-second = 5\n[lumberjack]",
            r"unknown table \[proces-hang-second\] \(did you mean 'process-hang-seconds'\?\)",
        ),
        (
            "processes = 2\n[lumberjack]\n[micromsg2]",
            r"\[micromsg2\]: processes is 2, and its topics and queues are in one process"
            r" \(no-broker = true leaves them out\): write processes = 1 into \[micromsg2\]",
        ),
        ("processes = 3\n[lumberjack]\n[mtl]", r"\[mtl\]: .*: write processes = 1 into \[mtl\]"),
        ("processes = 2\n[umq]", r"\[umq\]: .*hub .*no-hub = true.*: write processes = 1"),
        ("processes = 2\n[mtl]\nprocesses = 1", "every server has processes = 1"),
        (
            "processes = 2\n[lumberjack]\n[queue]\ndirectory = 'q'\nmax-bytes = 2000000",
            "max-bytes is divided by processes, which is 2: it is at least 2097152, not 2000000",
        ),
        (
            "[micromsg2]\nno-broker = true\nbroker-queue = 'orders'",
            "--no-broker excludes --broker-queue",
        ),
    ],
)
def test_what_several_processes_cannot_do_is_refused_with_key_and_remedy(
    text: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        configured(text)


def test_a_server_with_a_broker_runs_in_the_first_process_behind_those_of_all() -> None:
    text = "processes = 2\n[micromsg2]\nprocesses = 1\n[lumberjack]\n[umq]\nno-hub = true"
    configuration = configured(text)
    assert list(configuration.serversOf(Share(0, 2))) == ["lumberjack", "umq", "micromsg2"]
    assert list(configuration.serversOf(Share(1, 2))) == ["lumberjack", "umq"]


def test_what_is_in_force_can_be_read_again() -> None:
    text = "processes = 2\nprocess-hang-seconds = 7\n[mtl]\nprocesses = 1\n[lumberjack]"
    again = configured("\n".join(configured(text).lines()))
    assert (again.processes, again.hang_seconds, again.alone) == (2, 7, {"mtl"})


def test_a_time_of_the_command_line_wins_and_one_that_changes_is_said_to_need_a_start(
    tmp_path: Path,
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("processes = 2\nprocess-hang-seconds = 7\n[lumberjack]\n")
    options = Options()
    options.parseOptions(
        [f"--config={file}", "--set=process-hang-seconds=0", "--log-sessions", "--limit=window=9"]
    )
    assert options["configuration"].hang_seconds == 0
    before = {"processes": 2, "process-hang-seconds": 7}
    assert list(changed_keys(before, {"processes": 2})) == ["process-hang-seconds"]
    assert list(changed_keys(before, before)) == []


def test_check_names_the_file_and_tells_who_runs_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("processes = 2\n[mtl]\nendpoint = 'tcp://127.0.0.1:*'\n")
    assert cli.main(["check", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"msgproto check: {file}: [mtl]: processes is 2")
    assert told.count("\n") == 1
    file.write_text(
        "processes = 2\n[mtl]\nprocesses = 1\nendpoint = 'tcp://127.0.0.1:*'\n"
        f"[lumberjack]\nendpoint = '{LOOPBACK}'\n"
    )
    assert cli.main(["check", str(file)]) == 0
    assert capsys.readouterr().out.startswith("processes: 2; mtl in the first\n")


def test_check_refuses_a_socket_that_processes_cannot_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f"processes = 2\n[lumberjack]\nendpoint = 'unix:{tmp_path}/socket'\n")
    assert cli.main(["check", "--file-only", str(file)]) == 2
    assert "several processes share TCP ports only: set processes = 1" in capsys.readouterr().err


# ── limits ──────────────────────────────────────────────────────────────────────────────────────


def test_what_bounds_the_whole_gateway_is_divided_and_nothing_else() -> None:
    limits = Limits.of(COMMON_LIMITS).replace({"connections": 7, "connections-per-address": 0})
    shares = [Share(number, 3).limits(limits, alone=False) for number in range(3)]
    for name in limits:
        divided = name in OF_THE_GATEWAY | OF_THE_SERVER
        whole, total = limits[name], sum(share[name] for share in shares)
        if divided and whole:
            assert whole <= total < whole + 3, name
        else:
            assert {share[name] for share in shares} == {whole}, name
    assert all(type(share["connections"]) is int for share in shares)


def test_a_server_of_one_process_has_its_connections_alone_and_shares_the_memory() -> None:
    limits = Limits.of(COMMON_LIMITS)
    alone = Share(0, 2).limits(limits, alone=True)
    assert alone["connections"] == limits["connections"]
    assert alone["process-held-octets"] == limits["process-held-octets"] / 2


@pytest.mark.parametrize("name", PROTOCOLS)
def test_guesses_of_all_processes_are_as_rare_as_those_of_one(name: str) -> None:
    limits = part(name, "service", "Options").defaultLimits()
    share = Share(1, 4).limits(limits, alone=False)
    if "login-rate" in limits:
        assert share["login-rate"] * 4 == limits["login-rate"]
        assert share["login-failures"] * 4 == limits["login-failures"]
        assert share["login-delay"] == limits["login-delay"]


def test_room_on_the_disk_is_divided_by_default_too() -> None:
    assert Share(0, 4).queue({"directory": "d"}, 1000) == {"directory": "d", "max-bytes": 250}
    assert Share(0, 4).queue({"max-bytes": 402, "group-octets": 8}, 1000) == {
        "max-bytes": 101,
        "group-octets": 8,
    }


# ── queues in one directory ─────────────────────────────────────────────────────────────────────


def made_queue(directory: Path, first: int, count: int = 3) -> None:
    writer = QueueWriter(directory)
    put(writer, batch(first, count))
    writer.close()


def after_a_power_loss(directory: Path) -> None:
    """A queue of three messages whose published end is older than they are."""
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(QueueWriter(directory)):
        old = (directory / "end").read_bytes()
    made_queue(directory, 0)
    (directory / "end").write_bytes(old)
    assert QueueReader(directory).end() == 0


def test_a_directory_stands_for_the_queues_of_all_processes_also_of_former_ones(
    tmp_path: Path,
) -> None:
    assert queues_at(tmp_path / "none") == [str(tmp_path / "none")]
    for name in ("10", "2", "01", "x"):
        made_queue(tmp_path / name, 0)
    (tmp_path / "3").mkdir()
    below = [str(tmp_path / name) for name in ("2", "10")]
    assert queues_at(tmp_path) == below
    assert BridgeOptions([str(tmp_path)], "t").locations == below
    made_queue(tmp_path, 0)
    assert queues_at(tmp_path) == [str(tmp_path), *below]


def test_a_queue_that_cannot_be_looked_into_is_named_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its messages were not landed, and nobody said so.  A test may be root, whom nothing keeps
    out.
    """
    made_queue(tmp_path / "0", 0)
    made_queue(tmp_path / "1", 0)
    closed = os.fspath(tmp_path / "1")

    def kept_out(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *words: Any, **settings: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(closed + os.sep):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
            return function(path, *words, **settings)

        return called

    monkeypatch.setattr(os, "stat", kept_out(os.stat))
    monkeypatch.setattr(os, "open", kept_out(os.open))
    assert queues_at(tmp_path) == [os.fspath(tmp_path / "0"), closed]
    (first, second) = mend_former([closed])
    assert first.startswith(f"no process has the queue {closed}")
    assert "Permission denied" in second
    assert cli.main(["queue", "ls", os.fspath(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert closed in line and "Permission denied" in line


def test_one_process_publishes_what_former_ones_had_acknowledged_before_a_power_loss(
    tmp_path: Path,
) -> None:
    """Nobody else would: the bridge waited for messages that were never published."""
    for name in ("0", "1"):
        after_a_power_loss(tmp_path / name)
    (tmp_path / "0" / "broker").mkdir()
    gateway: Any = Gateway(MemoryReactorClock(), str(tmp_path))
    with capturedLogs() as logged, contextlib.closing(QueueWriter(tmp_path / "2")):
        gateway.startService()
    gateway.sink.writer.close()
    assert [QueueReader(tmp_path / name).end() for name in ("0", "1")] == [3, 3]
    lines = [event["line"] for event in logged if "line" in event]
    assert sum("no process has the queue" in line for line in lines) == 3
    assert any(f"broker's queues of {tmp_path / '0'} are not delivered" in line for line in lines)
    assert f"queue {tmp_path / '2'} is open for writing already" in lines[-1]


@pytest.mark.parametrize("action", ["ls", "verify", "trim"])
def test_what_is_said_of_several_queues_names_the_directory_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    """An id alone does not tell an operator which directory may be removed."""
    places = [os.fspath(tmp_path / name) for name in "01"]
    for place in places:
        made_queue(Path(place), 0)
    assert cli.main(["queue", action, os.fspath(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == [f"{place}:" for place in places]
    if action != "trim":
        assert cli.main(["queue", action, "--json", os.fspath(tmp_path)]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["directory"] for one in told] == places


def test_what_former_processes_left_has_landed_only_when_a_bridge_has_landed_it(
    tmp_path: Path,
) -> None:
    """The page said that everything has landed, and meant the queues of the processes."""
    made_queue(tmp_path / "1", 0)
    QueueWriter(tmp_path / "2").close()
    places = [os.fspath(tmp_path / name) for name in "12"]
    reader = QueueReader(places[0])

    def told() -> tuple[bool, str]:
        consumers = [{"name": "b", "offset": 4, "behind_messages": 0, "still_seconds": 0.0}]
        queue = {**NEVER_REFUSES, "unreadable": None, "consumers": consumers}
        former = former_queues(places, time.time())
        both = (
            together({0: part_of(True, "Fine.")}, 1, former=former)["safe"],
            safe_and_landing({**queue, "former": former}).as_dict(),
        )
        assert both[0] == both[1]
        return both[0]["ok"], both[0]["why"]

    ok, why = told()
    assert not ok
    assert why.startswith(f"No process has the queue {places[0]}: What was acknowledged is on disk")
    reader.register("b")
    all_is_well = "Everything that was acknowledged is on disk and "
    assert told() == (True, f"{all_is_well}lands; queues that no process has are 3 behind.")
    reader.commit("b", 3)
    assert told() == (True, f"{all_is_well}has landed.")
    (Path(places[1]) / "end").write_bytes(b"spoiled")
    ok, why = told()
    assert not ok and why.startswith(f"No process has the queue {places[1]}: The queue's files")


class Threads(MemoryReactorClock):
    """Its threads do something when they are told to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[tuple[Callable[..., None], Callable[[], Any]]] = []

    def getThreadPool(self) -> Any:
        return SimpleNamespace(callInThreadWithCallback=self.begin)

    def begin(self, told: Callable[..., None], function: Callable[[], Any], *rest: Any) -> None:
        self.work.append((told, function))

    def callFromThread(self, function: Callable[..., None], *rest: Any) -> None:
        function(*rest)

    def end_all(self) -> None:
        for told, function in self.work:
            try:
                told(True, function())
            except ZeroDivisionError:
                told(False, Failure())
        self.work = []


def test_former_queues_are_read_in_a_thread_and_a_disk_that_hangs_is_not_asked_twice(
    tmp_path: Path,
) -> None:
    made_queue(tmp_path / "1", 0)
    reactor, told = Threads(), []
    queues = FormerQueues(reactor, lambda: [os.fspath(tmp_path / "1")])
    for _ in range(2):
        queues.latest().addCallback(told.append)
    assert len(reactor.work) == 1 and not told
    reactor.end_all()
    queues.latest().addCallback(told.append)
    assert [[one["behind_messages"] for one in found] for found in told] == [[3]] * 3
    reactor.advance(FORMER_SECONDS + 1)
    for _ in range(2):
        told.clear()
        queues.latest().addCallback(told.append)
        assert len(reactor.work) == 1 and not told
        reactor.advance(QUEUE_SECONDS + 1)
        ((hangs,),) = told
        assert not hangs["ok"] and "the disk does not answer" in hangs["why"]
    reactor.end_all()
    queues.latest().addCallback(told.append)
    assert "nothing lands" in told[-1][0]["why"]


def test_former_queues_that_cannot_be_read_are_logged_and_shown_as_they_were(
    tmp_path: Path,
) -> None:
    made_queue(tmp_path / "1", 0)
    places, told = [os.fspath(tmp_path / "1")], []
    reactor = Threads()

    def read() -> list[str]:
        if not places:
            raise ZeroDivisionError
        return places

    queues = FormerQueues(reactor, read)
    queues.latest()
    reactor.end_all()
    reactor.advance(FORMER_SECONDS + 1)
    places.clear()
    queues.latest().addCallback(told.append)
    with capturedLogs() as logged:
        reactor.end_all()
        for _ in range(9):  # RD-50: the disk is asked again, and its error is known
            reactor.advance(FORMER_SECONDS + 1)
            queues.latest().addCallback(told.append)
            reactor.end_all()
    assert [[one["behind_messages"] for one in found] for found in told] == [[3]] * 10
    assert [event["log_failure"].type for event in logged] == [ZeroDivisionError]


def test_tail_shows_the_last_of_all_queues_and_whose_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_queue(tmp_path / "0", 0)
    made_queue(tmp_path / "1", 10)
    assert cli.main(["queue", "tail", str(tmp_path), "-n", "4", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4
    assert [row["received_at"] for row in rows] == sorted(row["received_at"] for row in rows)
    places = {(row["process"], row["offset"]) for row in rows}
    assert len(places) == 4
    assert cli.main(["queue", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("all whole") == 2
    assert cli.main(["queue", "dump", str(tmp_path)]) == 2
    assert f"name one of them, such as {tmp_path / '0'}" in capsys.readouterr().err


# ── ports and restarts ──────────────────────────────────────────────────────────────────────────


def test_a_held_port_can_be_shared_and_other_programs_cannot_have_it() -> None:
    held, alone = HeldPorts(), BindingReactor()
    with contextlib.closing(held), contextlib.closing(alone), contextlib.ExitStack() as stack:
        held.listenTCP(0, None, interface="127.0.0.1")
        place = "127.0.0.1", held.ports[0]
        for _ in range(2):
            shared = stack.enter_context(socket.socket())
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(place)
            shared.listen()
        with pytest.raises(CannotListenError, match="in use"):
            alone.listenTCP(place[1], None, interface=place[0])
        with pytest.raises(CannotListenError, match="TCP ports only"):
            held.listenUNIX("nowhere", None)


class Spawning(MemoryReactorClock):
    """Starts no process, and remembers what was to be started."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runs: list[Any] = []
        self.failures: list[OSError] = []

    def spawnProcess(self, protocol: Any, *words: Any, **settings: Any) -> Any:
        if self.failures:
            raise self.failures.pop()
        protocol.signals = []
        protocol.transport = SimpleNamespace(
            pid=7,
            write=lambda octets: None,
            signalProcess=protocol.signals.append,
            closeStdin=lambda: None,
        )
        self.runs.append(protocol)
        return protocol.transport

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the run that was started last."""
        self.runs[-1].processEnded(Failure(ProcessTerminated(signal=number)))


def test_a_process_that_ends_again_and_again_waits_longer_until_it_has_served_a_minute() -> None:
    reactor, states = Spawning(), []
    job = Job(["python"], {}, None, b"")
    worker = Worker(
        1, reactor, lambda n: job, lambda one: states.append(one.state), lambda one, line: None
    )
    worker.start()
    for wait in (0.5, 1, 2, 4, 8, 16, 30, 30):
        reactor.runs[-1].childDataReceived(1, b'{"text": "", "event": "process serves"}\n')
        reactor.end()
        started = len(reactor.runs)
        reactor.advance(wait - 0.01)
        assert (len(reactor.runs), worker.state) == (started, State.WAITING)
        reactor.advance(0.02)
        assert len(reactor.runs) == started + 1
    reactor.runs[-1].childDataReceived(1, b'{"text": "", "event": "process serves"}\n')
    reactor.advance(60.01)
    reactor.end()
    reactor.advance(0.51)
    assert worker.state is State.STARTING
    assert worker.restarts == 9
    assert worker.ended_because == "was ended by signal 9 (SIGKILL)"


# ── figures ─────────────────────────────────────────────────────────────────────────────────────


def part_of(ok: bool, why: str, **more: Any) -> dict[str, Any]:
    verdict = {"ok": ok, "why": why}
    return {
        "safe": verdict,
        "healthy": verdict,
        "queue": None,
        "memory": {"held_octets": 2, "held_limit_octets": None},
        "flow": None,
        "offenders": {"worst": [], "pairs": 0, "forgotten_faults": 0},
        "broker": {"queues": [], "queues_total": 0, "spaces": {}},
        "protocols": {"sabc": {"connections": 1, "faults": {"a": 1}}},
        "sessions": [{"session": "s"}],
        "sessions_total": 1,
        "limits": {},
        **more,
    }


def test_a_gateway_is_healthy_while_one_process_acknowledges_and_safe_while_all_are() -> None:
    good, bad = part_of(True, "Fine."), part_of(False, "Nothing can be acknowledged: full.")
    assert together({0: good, 1: good}, 2)["healthy"]["ok"]
    one = together({0: bad, 1: good}, 2)
    assert one["healthy"]["ok"] and not one["safe"]["ok"]
    assert "1 of 2 processes.  Process 0: Nothing can be" in one["healthy"]["why"]
    assert not together({0: bad, 1: bad}, 2)["healthy"]["ok"]
    assert not together({}, 2)["healthy"]["ok"]
    away = together({1: good}, 2)
    assert away["healthy"]["ok"] and not away["safe"]["ok"]
    assert away["safe"]["why"].startswith("Process 0 does not answer")


def test_a_process_that_is_down_comes_first_in_the_answer_and_says_why() -> None:
    good, bad = part_of(True, "Fine."), part_of(False, "Nothing lands.")
    away = {2: "was ended by signal 9 (SIGKILL) and starts again soon"}
    for parts in ({0: bad, 1: good}, {0: bad, 1: good, 2: good}):  # it may just have answered
        found = together(parts, 3, away)
        assert found["safe"] == {
            "ok": False,
            "why": "Process 2 was ended by signal 9 (SIGKILL) and starts again soon; what it has"
            " acknowledged is on disk.",
        }
        assert found["healthy"]["ok"]
        assert found["healthy"]["why"].startswith("Messages are acknowledged by 1 of 3 processes.")


def test_a_process_that_is_silent_comes_before_one_that_says_what_is_wrong() -> None:
    found = together({0: part_of(False, "Nothing lands.")}, 2)
    assert found["safe"]["why"].startswith("Process 1 does not answer")


def test_nothing_is_said_to_be_on_disk_without_a_queue() -> None:
    found = together({1: part_of(True, "Fine.")}, 2, {0: "starts"}, durable=False)
    assert found["safe"]["why"] == "Process 0 starts."
    assert "disk" not in found["healthy"]["why"]


@pytest.mark.parametrize(
    ("ended_because", "does"), [("", "starts"), ("ended with status 0", "starts again")]
)
def test_a_process_starts_again_only_if_it_has_ended(ended_because: str, does: str) -> None:
    shown = {"number": 0, "state": "starting", "ended_because": ended_because}
    figures = SupervisedFigures(
        MemoryReactorClock(),
        1,
        lambda number, path, query: fail(QueueAway("silent")),
        lambda: {"processes": [shown]},
    )
    found: list[Any] = []
    figures.latest().addCallback(found.append)
    assert found[0]["safe"]["why"] == f"Process 0 {does}; what it has acknowledged is on disk."


def test_an_alert_on_0_sees_a_process_that_does_not_answer() -> None:
    metrics_of = pytest.importorskip("twisted_msgproto.net.status.metrics")
    shown = [{"number": number, "state": "starting", "restarts": 1} for number in (0, 1)]
    for parts in ({}, {1: {**part_of(True, "Fine."), "gateway": {"uptime_seconds": 1.0}}}):
        for one in parts.values():
            one["protocols"] = {}
        metrics = metrics_of.exposition_of_processes({"processes": shown}, parts).decode()
        assert 'msgproto_safe{process="0"} 0.0' in metrics
        assert 'msgproto_healthy{process="0"} 0.0' in metrics
        assert f'msgproto_safe{{process="1"}} {float(bool(parts))}' in metrics


def test_metrics_say_how_far_queues_that_no_process_has_are_behind(tmp_path: Path) -> None:
    metrics_of = pytest.importorskip("twisted_msgproto.net.status.metrics")
    made_queue(tmp_path / "2", 0)
    QueueWriter(tmp_path / "3").close()
    places = [os.fspath(tmp_path / name) for name in "23"]
    former = former_queues(places, time.time())
    own = {"consumers": [], "bridges": [], "former": []}
    alone = {**part_of(True, "Fine."), "gateway": {"uptime_seconds": 1.0}, "protocols": {}}
    shown = [{"number": 0, "state": "serving", "restarts": 0}]
    for metrics in (
        metrics_of.exposition({**alone, "queue": {**own, "former": former}}),
        metrics_of.exposition_of_processes(
            {"processes": shown, "queue": {"former": former}}, {0: {**alone, "queue": own}}
        ),
    ):
        lines = metrics.decode().splitlines()
        for place, behind, lands in zip(places, (3.0, 0.0), (0.0, 1.0), strict=True):
            label = f'{{directory="{place}"}}'
            assert f"msgproto_queue_former_behind_messages{label} {behind}" in lines
            assert f"msgproto_queue_former_landing{label} {lands}" in lines
        assert sum("# TYPE msgproto_queue_former_behind_messages " in line for line in lines) == 1


def test_status_shows_a_gateway_of_which_no_process_answers() -> None:
    """It was a traceback."""
    shown = {
        "number": 0,
        "state": "serving",
        "pid": 7,
        "restarts": 0,
        "ended_because": "",
        "answers": False,
        "sessions": None,
        "behind_messages": None,
    }
    figures = {**together({}, 1), "at": 0, "limits": {}, "processes": [shown]}
    told = list(status.lines(figures))
    assert "queue: not known: no process answers" in told
    assert any(re.match("0 +does not answer +7 ", line) for line in told)
    assert any(line.startswith("memory: 0 octets in messages") for line in told)
    assert not any(figures["memory"].values())


def test_figures_are_added_up_and_sessions_say_their_process() -> None:
    found = together({0: part_of(True, ""), 1: part_of(True, "")}, 2)
    assert found["protocols"]["sabc"] == {"connections": 2, "faults": {"a": 2}}
    assert [one["process"] for one in found["sessions"]] == [0, 1]
    assert (found["memory"]["held_octets"], found["memory"]["held_limit_octets"]) == (4, None)


def test_of_latencies_the_greatest_is_shown_and_rates_are_added_up() -> None:
    def flow(*rates: float) -> dict[str, Any]:
        columns = {"messages_per_second": list(rates), "ack_p99_seconds": list(rates)}
        return {"sample_seconds": 5.0, "at": list(range(len(rates))), "protocols": {"a": columns}}

    parts = {0: part_of(True, "", flow=flow(1.0, 2.0)), 1: part_of(True, "", flow=flow(5.0))}
    shown = together(parts, 2)["flow"]["protocols"]["a"]
    assert shown == {"messages_per_second": [1.0, 7.0], "ack_p99_seconds": [1.0, 5.0]}


def test_a_process_for_which_there_is_no_memory_is_started_later() -> None:
    """It was never started again."""
    reactor = Spawning()
    job = Job(["python"], {}, None, b"")
    worker = Worker(1, reactor, lambda n: job, lambda one: None, lambda one, line: None)
    worker.start()
    reactor.failures = [OSError(errno.EAGAIN, "Resource temporarily unavailable")]
    reactor.end()
    reactor.advance(0.51)
    assert (worker.state, worker.pid) == (State.WAITING, None)
    assert worker.ended_because == "could not be started: Resource temporarily unavailable"
    reactor.advance(1.01)
    assert (worker.state, worker.restarts, len(reactor.runs)) == (State.STARTING, 2, 2)


class Answering(SynchronousTestCase):
    """A supervisor of three processes that start, and what it asks them."""

    def setUp(self) -> None:
        self.reactor = Spawning()
        self.asked: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        self.hanging: dict[str, Deferred[Any]] = {}
        for module in (asking, supervisor):
            self.patch(module, "ask", self.answer)  # type: ignore[no-untyped-call]
        plan = Plan(
            count=3,
            queue=None,
            sockets="sockets",
            job=lambda number, ports: Job(["python"], {}, None, b""),
            gateway=Gateway(self.reactor),
            alone=MultiService(),
            brokers=True,
            hang=20.0,
        )
        self.service = supervisor.Supervisor(self.reactor, plan)
        self.service.startService()

    async def answer(self, reactor: Any, directory: str, path: str, **settings: Any) -> Any:
        self.asked.append((os.path.basename(directory), path))
        number = os.path.basename(directory)
        if number in self.hanging:
            await self.hanging[number]
        if number in self.silent:
            raise QueueAway("it does not answer")
        more = {"gateway": {"uptime_seconds": 1.0}} if path == "status.json" else {}
        return part_of(True, "Fine.", done=["a file"], later=[], found=1, **more)

    def serves(self, *numbers: int) -> None:
        for number in numbers:
            line = b'{"text": "", "event": "process serves"}\n'
            self.reactor.runs[number].childDataReceived(1, line)

    def test_a_process_that_starts_while_files_are_read_again_reads_them_when_it_serves(
        self,
    ) -> None:
        """It may have read them before they changed: a certificate or password of before."""
        self.serves(0, 2)
        self.successResultOf(self.service.reload())
        assert self.asked == [("0", "reload"), ("2", "reload")]
        self.serves(1)
        assert self.asked[2:] == [("1", "reload")]
        self.serves(1)
        assert len(self.asked) == 3

    def test_a_process_that_does_not_answer_keeps_no_other_from_reading_files_again(self) -> None:
        """It may die just then; the others kept what was to be replaced."""
        self.serves(0, 1, 2)
        self.silent = {"1"}
        reloading = self.service.reload()
        failure: Any = self.failureResultOf(reloading, ConfigurationError)  # type: ignore[no-untyped-call]
        assert [number for number, _ in self.asked] == ["0", "1", "2"]
        told = "2 of 3 processes have changed, then: process 1: it does not answer"
        assert str(failure.value) == told

    # ── one of them hangs ───────────────────────────────────────────────────────────────────────

    def hangs(self, number: int) -> None:
        """A process does not answer any more, and is silent after some seconds."""
        self.hanging[str(number)] = Deferred()
        self.turn(8)
        assert self.service._watch.silent(number)
        self.asked.clear()

    def turn(self, seconds: int) -> None:
        self.reactor.pump([1] * seconds)

    def answers_again(self, number: int) -> None:
        self.hanging.pop(str(number)).callback(None)

    def asked_but(self, path: str) -> list[tuple[str, str]]:
        return [one for one in self.asked if one[1] != path]

    def test_figures_come_at_once_without_a_process_that_is_silent(self) -> None:
        """Each page waited 6 s for it."""
        self.serves(0, 1, 2)
        self.hangs(1)
        figures = self.successResultOf(self.service.figures.latest())
        assert self.asked == [("0", "status.json"), ("2", "status.json")]
        assert figures["safe"] == {"ok": False, "why": "Process 1 does not answer."}
        assert figures["healthy"]["ok"]
        assert [one["answers"] for one in figures["processes"]] == [True, False, True]
        assert {one["state"] for one in figures["processes"]} == {"serving"}
        found = self.successResultOf(self.service.figures.search("", "", ""))
        assert found["found"] == 2

    def test_a_reload_passes_over_a_silent_process_which_catches_up_when_it_answers(self) -> None:
        self.serves(0, 1, 2)
        self.hangs(1)
        failure: Any = self.failureResultOf(self.service.reload(), ConfigurationError)  # type: ignore[no-untyped-call]
        assert self.asked == [("0", "reload"), ("2", "reload")]
        told = "process 1: it does not answer, and reads its files again when it does"
        assert str(failure.value) == f"2 of 3 processes have changed, then: {told}"
        self.asked.clear()
        self.answers_again(1)
        assert self.asked == [("1", "reload")]
        self.turn(60)
        assert self.asked_but("alive") == [("1", "reload")]

    def test_one_that_hangs_again_meanwhile_catches_up_later(self) -> None:
        self.serves(0, 1, 2)
        self.hangs(1)
        self.failureResultOf(self.service.reload(), ConfigurationError)  # type: ignore[no-untyped-call]
        self.asked.clear()
        former = self.hanging["1"]
        self.hanging["1"] = Deferred()  # it answers the watch, and hangs before it reads its files
        former.callback(None)
        assert self.asked == [("1", "reload")]
        self.turn(8)
        assert self.service._watch.silent(1)
        self.silent = {"1"}
        with capturedLogs() as logged:
            self.hanging.pop("1").errback(QueueAway("it has not answered for 30 s"))
        assert [event["text"] for event in logged if "text" in event] == [
            "it has not answered for 30 s"
        ]
        self.silent = set()
        self.asked.clear()
        self.turn(8)
        assert self.asked_but("alive") == [("1", "reload")]

    def test_a_process_that_is_silent_for_long_is_killed_and_starts_again(self) -> None:
        self.serves(0, 1, 2)
        self.hangs(1)
        with capturedLogs() as logged:
            self.turn(20)
            assert [run.signals for run in self.reactor.runs] == [[], [signal.SIGKILL], []]
            self.reactor.runs[1].processEnded(
                Failure(ProcessTerminated(signal=signal.SIGKILL))  # type: ignore[no-untyped-call]
            )
        told = [formatEvent(event) for event in logged]
        assert told == [
            "process 1 has not answered for 20 s: it is killed",
            "process 1 was killed because it did not answer for 20 s; it starts again in 0.5 s",
        ]
        figures = self.successResultOf(self.service.figures.latest())
        assert figures["safe"]["why"] == (
            "Process 1 was killed because it did not answer for 20 s and starts again soon."
        )
        self.turn(1)
        worker = self.service.workers[1]
        assert (worker.state, worker.restarts) == (State.STARTING, 1)
        self.asked.clear()
        self.turn(60)  # a start may take as long as it does
        assert "1" not in {number for number, _ in self.asked}
        del self.hanging["1"]
        self.reactor.runs[3].childDataReceived(1, b'{"text": "", "event": "process serves"}\n')
        self.turn(30)
        assert ("1", "alive") in self.asked
        self.reactor.runs[3].processEnded(
            Failure(ProcessTerminated(signal=signal.SIGSEGV))  # type: ignore[no-untyped-call]
        )
        assert worker.ended_because == "was ended by signal 11 (SIGSEGV)"
        assert not self.reactor.runs[0].signals + self.reactor.runs[2].signals

    def test_nobody_is_killed_for_silence_while_all_end(self) -> None:
        self.serves(0, 1, 2)
        self.hangs(1)
        self.service.stopService()
        self.asked.clear()
        self.turn(6)
        self.serves(2)
        assert not self.asked
        assert not any(run.signals for run in self.reactor.runs)

    def test_what_is_asked_of_a_broker_that_is_down_or_silent_is_one_plain_line(self) -> None:
        broker: Any = self.service.broker()

        def told() -> str:
            failure: Any = self.failureResultOf(broker.queues(), QueueAway)  # type: ignore[no-untyped-call]
            return str(failure.value)

        assert told() == "process 0, which has the broker, starts"
        self.serves(0)
        self.silent = {"0"}
        assert told() == "process 0, which has the broker: it does not answer"
        self.silent = set()
        self.hangs(0)
        assert told() == "process 0, which has the broker, does not answer"
        self.reactor.runs[0].processEnded(
            Failure(ProcessTerminated(signal=signal.SIGKILL))  # type: ignore[no-untyped-call]
        )
        assert told() == (
            "process 0, which has the broker, was ended by signal 9 (SIGKILL) and starts again soon"
        )
        assert not self.asked
        assert not self.service._watch.silent(0)  # nobody waits for what does not serve


class Refusing(SynchronousTestCase):
    """A gateway that cannot start."""

    def plan(self, **settings: Any) -> Plan:
        """A plan that counts what is removed again."""
        self.removed: list[str] = []
        return Plan(
            count=2,
            queue=None,
            sockets="sockets",
            job=lambda number, ports: Job(["python"], {}, None, b""),
            gateway=Gateway(Spawning()),
            alone=MultiService(),
            after=lambda: self.removed.append("sockets"),
            **settings,
        )

    def test_a_refused_start_removes_the_directory_of_its_sockets(self) -> None:
        """Each of them left an empty directory among the temporary ones."""

        class Busy(Service):
            def startService(self) -> None:
                raise CannotStart("status: cannot listen")

        def no_queue() -> None:
            raise QueueError("the directory cannot be")

        for settings, parts in (({"before": no_queue}, ()), ({}, (Busy(),))):
            service: Any = supervisor.Supervisor(Spawning(), self.plan(**settings))
            for part_of_it in parts:
                part_of_it.setServiceParent(service)  # type: ignore[no-untyped-call]
            self.assertRaises(CannotStart, service.startService)  # type: ignore[no-untyped-call]
            assert self.removed == ["sockets"]

    def test_no_process_is_said_to_start_again_when_the_start_is_refused(self) -> None:
        reactor = Spawning()
        service = supervisor.Supervisor(reactor, self.plan())
        service.startService()
        with contextlib.redirect_stderr(io.StringIO()) as told, capturedLogs() as logged:
            reactor.end()
        assert "msgproto: process 1 was ended by signal 9" in told.getvalue()
        assert not [line for line in logged if "starts again" in line["log_format"]]
        reactor.advance(60)
        assert len(reactor.runs) == 2


class Asking(SynchronousTestCase):
    """A supervisor asks a process."""

    def test_a_process_that_hangs_is_said_not_to_have_answered(self) -> None:
        """FC-06: it was ``ResponseNeverReceived: [<… CancelledError: >]`` or the like."""
        reactor = MemoryReactorClock()
        place = self.mktemp()  # type: ignore[no-untyped-call]
        asked = Deferred.fromCoroutine(ask(reactor, place, "reload", seconds=30.0))
        reactor.advance(30.5)
        failure: Any = self.failureResultOf(asked, QueueAway)  # type: ignore[no-untyped-call]
        assert str(failure.value) == "it has not answered for 30 s"

    def test_a_process_that_is_gone_is_said_to_have_no_listener(self) -> None:
        """``msgproto broker ls`` said ``ConnectionRefusedError: Connection was refused by …``."""
        reactor = MemoryReactorClock()
        place = self.mktemp()  # type: ignore[no-untyped-call]
        asked = Deferred.fromCoroutine(ask(reactor, place, "alive", seconds=None))
        ((_, factory, _, _),) = reactor.unixClients
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))  # type: ignore[no-untyped-call]
        failure: Any = self.failureResultOf(asked, QueueAway)  # type: ignore[no-untyped-call]
        assert str(failure.value) == "it does not answer: nobody listens on its socket"

    def test_a_process_that_ends_meanwhile_is_said_to_have_closed_the_connection(self) -> None:
        reactor = MemoryReactorClock()
        place = self.mktemp()  # type: ignore[no-untyped-call]
        asked = Deferred.fromCoroutine(ask(reactor, place, "alive", seconds=None))
        ((_, factory, _, _),) = reactor.unixClients
        line = factory.buildProtocol(None)
        line.makeConnection(StringTransport())
        reactor.advance(100_000)  # it has all the time of the world
        assert not asked.called
        line.connectionLost(Failure(ConnectionDone()))
        failure: Any = self.failureResultOf(asked, QueueAway)  # type: ignore[no-untyped-call]
        assert str(failure.value) == "it closed the connection without an answer"


# ── whole processes ─────────────────────────────────────────────────────────────────────────────

FILE = f"""
processes = 2
[queue]
directory = "spool"
[status]
endpoint = "{LOOPBACK}"
[lumberjack]
endpoint = "{LOOPBACK}"
[sabc]
endpoint = "{LOOPBACK}"
websocket = "{LOOPBACK}"
[umq]
no-hub = true
endpoint = "{LOOPBACK}"
[micromsg2]
no-broker = true
endpoint = "{LOOPBACK}"
[[access]]
allow = ["publish", "subscribe", "consume", "call"]
"""

SHARED = ("lumberjack", "micromsg2", "sabc", "umq")
"""The clients of the protocols whose servers several processes can share."""

EACH = 60
"""Messages of each client while processes are killed."""


def started(launch: Launcher, text: str = FILE) -> Launched:
    (launch.directory / "gateway.toml").write_text(text)
    server = launch("gateway", "--config", "gateway.toml")
    server.line(r"\(2 of 2 do\)", seconds=START_SECONDS)
    return server


def stored(queue: Path) -> Counter[bytes]:
    reader = QueueReader(queue)
    rows: Counter[bytes] = Counter()
    for found in reader.read(reader.begin(), reader.end()):
        rows.update(found.column("body").to_pylist())
    return rows


def figures_from_now_on(control: GatewayBroker) -> Any:
    """The gateway's figures of this moment: those of the last second are given to all who ask."""
    asked_at = time.time() * 1e6
    while (figures := control.figures())["at"] < asked_at:
        pass
    return figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_dies_under_load_loses_nothing_and_the_others_go_on(
    launch: Launcher,
) -> None:
    """18.2: kill -9 of each in turn; its clients come back, and the bridge lands both queues."""
    server = started(launch)
    spool = launch.directory / "spool"
    control = GatewayBroker(str(spool))
    clients = GoodClients(launch.directory)
    try:
        for name in SHARED:
            clients.stand(name, server.port(CLIENTS[name].server))
        for number in (0, 1):
            sending = threading.Thread(target=clients.send_all, args=[EACH])
            sending.start()
            before = len(clients.told())
            while len(clients.told()) < before + len(SHARED):
                assert sending.is_alive()
            victim = control.figures()["processes"][number]
            os.kill(victim["pid"], signal.SIGKILL)
            server.line(rf"process {number} was ended by signal 9 \(SIGKILL\); it starts again")
            sending.join()
            server.line(rf"process {number} serves", nth=2, seconds=START_SECONDS)
        figures = figures_from_now_on(control)
        told = clients.told()
    finally:
        clients.close()
    assert [one["restarts"] for one in figures["processes"]] == [1, 1]
    assert figures["healthy"]["ok"], figures["healthy"]
    assert len(told) == len(SHARED) * (2 * EACH + 1), "each was acknowledged in the end"
    page = f"http://127.0.0.1:{server.port('status')}"
    metrics = urlopen(f"{page}/metrics").read().decode()
    for number in "01":
        assert f'msgproto_process_restarts_total{{process="{number}"}} 1.0' in metrics
        assert f'msgproto_connections{{process="{number}",protocol="sabc"}}' in metrics
    assert metrics.count("# TYPE msgproto_connections ") == 1
    assert urlopen(f"{page}/healthz").read().startswith(b"Messages are acknowledged by all 2")
    reloaded = control.reload()
    assert reloaded["done"] == ["msgproto: gateway.toml"]
    server.signal(signal.SIGHUP)
    again = r"msgproto: reload: read again: msgproto: gateway.toml"
    server.line(again, nth=6)  # twice of each process, and of the supervisor
    pids = [one["pid"] for one in figures["processes"]]
    # The bridge begins while a process is down: its queue is landed like the other.
    os.kill(pids[1], signal.SIGSTOP)
    landing = launch(
        *("--here", "bridge", "--queue", spool, "--table", "table", "--once"),
        module="tests.tools.dying",
    )
    assert landing.wait(seconds=START_SECONDS) == 0, landing.output
    os.kill(pids[1], signal.SIGCONT)
    assert server.end() in (0, -signal.SIGTERM), server.output
    assert all(wait_gone(pid) for pid in pids)

    queues = [stored(spool / "0"), stored(spool / "1")]
    both = queues[0] + queues[1]
    assert not told - both.keys()
    # A message that was on its way when its process died came again, over another connection.
    assert sum(both.values()) - len(both) <= 2 * len(SHARED)
    rows = LandedTable(launch.directory / "table").read(["gateway", "offset", "body"])
    assert Counter(rows["body"].to_pylist()) == both
    assert len(set(rows["gateway"].to_pylist())) == 2
    places = list(zip(rows["gateway"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert len(places) == len(set(places))


def sent_raw(line: socket.socket, number: int) -> bytes:
    """Send one event of Lumberjack, and wait for nothing; return its body."""
    body = b'{"raw":%d}' % number
    line.sendall(b"2W\0\0\0\x01" + b"2J\0\0\0\x01" + len(body).to_bytes(4, "big") + body)
    return body


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_hangs_is_killed_and_loses_nothing_and_the_other_goes_on(
    launch: Launcher,
) -> None:
    """Its peers waited for ever, and so did new connections that the kernel gave to it."""
    server = started(launch, FILE.replace("[queue]", "process-hang-seconds = 5\n[queue]", 1))
    spool = launch.directory / "spool"
    control = GatewayBroker(str(spool))
    clients = GoodClients(launch.directory)
    bodies: list[bytes] = []
    with contextlib.ExitStack() as stack:
        stack.callback(clients.close)
        for name in SHARED:
            clients.stand(name, server.port(CLIENTS[name].server))
        place = "127.0.0.1", server.port("lumberjack")
        lines = [
            stack.enter_context(socket.create_connection(place, timeout=PATIENCE_SECONDS))
            for _ in range(CONNECTIONS)
        ]
        for number, line in enumerate(lines):
            bodies.append(sent_raw(line, number))
            assert was_acknowledged(line)
        figures = control.figures()
        while figures["sessions_total"] < CONNECTIONS + len(SHARED):  # kept for a second
            figures = control.figures()
        of_process = {
            one["peer"].rpartition(":")[2]: one["process"]
            for one in figures["sessions"]
            if one["protocol"] == "lumberjack"
        }
        whose = [of_process[str(line.getsockname()[1])] for line in lines]
        assert set(whose) == {0, 1}
        sending = threading.Thread(target=clients.send_all, args=[EACH])
        sending.start()
        before = len(clients.told())
        while len(clients.told()) < before + len(SHARED):
            assert sending.is_alive()
        os.kill(figures["processes"][1]["pid"], signal.SIGSTOP)
        unheard = []
        for number, line in enumerate(lines):
            body = sent_raw(line, CONNECTIONS + number)
            if whose[number]:
                unheard.append(body)
            else:
                bodies.append(body)
                assert was_acknowledged(line), "the other goes on"
        server.line(r"process 1 has not answered for 5 s: it is killed")
        server.line(
            r"process 1 was killed because it did not answer for 5 s; it starts again in 0\.5 s"
        )
        for number, line in enumerate(lines):
            assert not whose[number] or not was_acknowledged(line)
        server.line(r"process 1 serves", nth=2, seconds=START_SECONDS)
        sending.join()
        for number, body in enumerate(unheard, 2 * CONNECTIONS):  # as a shipper does
            line = stack.enter_context(socket.create_connection(place, timeout=PATIENCE_SECONDS))
            bodies.append(sent_raw(line, number))
            assert was_acknowledged(line), body
        figures = figures_from_now_on(control)
        told = clients.told()
    shown = [(one["restarts"], one["ended_because"]) for one in figures["processes"]]
    assert shown == [(0, ""), (1, "was killed because it did not answer for 5 s")]
    assert len(told) == len(SHARED) * (EACH + 1), "each was acknowledged in the end"
    assert server.end() in (0, -signal.SIGTERM), server.output
    both = stored(spool / "0") + stored(spool / "1")
    assert not (told | set(bodies)) - both.keys()
    # Each client had one message on its way to the process that hung.  If it is in the queue, it is
    # there twice, or never acknowledged: UMQ's client is told, and sends another one instead.
    more = both - Counter([*told, *bodies])
    raw = [body for body in more.elements() if body in unheard]
    of_clients = [json.loads(body) for body in more.elements() if body not in unheard]
    assert len(raw) == len(set(raw))
    names = [one["of"] for one in of_clients]
    assert len(names) == len(set(names)) and set(names) <= set(SHARED), more
    last = max(json.loads(body)["n"] for body in told)
    assert all(one == {"of": one["of"], "n": one["n"]} for one in of_clients)
    assert all(1 <= one["n"] <= last for one in of_clients)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bridge_finds_the_queue_of_a_further_process_while_it_runs(launch: Launcher) -> None:
    spool = launch.directory / "spool"
    made_queue(spool / "0", 0)
    words = ("bridge", "--queue", spool, "--table", "table", "--trigger", "200ms")
    landing = launch("--here", *words, module="tests.tools.dying")
    landing.line(r"^batch \d+: ", seconds=START_SECONDS)
    made_queue(spool / "1", 10, 4)
    landing.line(r"/spool/1 is a new queue", seconds=START_SECONDS)
    landing.line(r"^batch \d+: ", nth=2, seconds=START_SECONDS)
    assert landing.end() == 0, landing.output
    rows = LandedTable(launch.directory / "table").read(["gateway"])
    assert sorted(Counter(rows["gateway"].to_pylist()).values()) == [3, 4]
    assert list((spool / "1" / "bridges").glob("*.json")), "its page shows the bridge"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_end_with_their_supervisor_and_a_start_that_cannot_be_is_one_line(
    launch: Launcher,
) -> None:
    """What one process, and a third one, have acknowledged before a power loss, is published."""
    text = f'processes = 2\n[queue]\ndirectory = "spool"\n[lumberjack]\nendpoint = "{LOOPBACK}"\n'
    former = [launch.directory / "spool" / name for name in ("2", "")]
    for place in former:
        after_a_power_loss(place)
    server = started(launch, text)
    for place in former:
        server.line(f"no process has the queue .*{place.relative_to(launch.directory)}; the bridge")
        assert QueueReader(place).end() == 3
    pids = [
        one["pid"] for one in GatewayBroker(str(launch.directory / "spool")).figures()["processes"]
    ]
    second = launch("gateway", "--config", "gateway.toml")
    assert second.wait(seconds=START_SECONDS) == 1
    assert "another gateway has its queues there" in second.lines[-1]
    assert server.kill() == -signal.SIGKILL
    assert all(wait_gone(pid) for pid in pids), "their stdin has ended"


# Three processes as a daemon, over TLS, with a page.
DAEMON = """
processes = 3
[queue]
directory = "spool"
[status]
endpoint = "unix:status"
[lumberjack]
endpoint = "ssl:0:interface=127.0.0.1:privateKey=server.key.pem:certKey=server.cert.pem"
"""

CONNECTIONS = 24
"""The kernel spreads them: three processes have one each, but for one case in five thousand."""


def shaken(port: int) -> ssl.SSLSocket:
    """A connection whose hand-shake is done; nothing is checked."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    return context.wrap_socket(line)


def acknowledged(line: ssl.SSLSocket) -> bool:
    """Send one event of Lumberjack; is it acknowledged?"""
    line.sendall(b"2W\0\0\0\x01" + b"2J\0\0\0\x01\0\0\0\x02{}")
    return was_acknowledged(line)


def was_acknowledged(line: socket.socket) -> bool:
    """Wait for the answer to one event, or the end of the connection."""
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while len(came) < 6 and (more := line.recv(6 - len(came))):
            came += more
    return came == b"2A\0\0\0\x01"


def wait_for(log: Path, text: str, times: int = 1) -> str:
    """Wait until ``text`` is in a file so many times; return what is in it."""
    deadline = time.monotonic() + START_SECONDS
    while (found := log.read_text() if log.exists() else "").count(text) < times:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no daemons here")
def test_a_daemon_of_three_processes_reloads_tls_says_who_is_down_and_ends_with_them(
    launch: Launcher,
) -> None:
    here = launch.directory
    Authority(here).server()
    (here / "gateway.toml").write_text(DAEMON)
    daemon = launch.command(
        [
            *(sys.executable, "-c", "from twisted.scripts.twistd import run; run()"),
            *("--pidfile=gateway.pid", "--logfile=gateway.log"),
            *("msgproto", "--config", "gateway.toml"),
        ]
    )
    assert daemon.wait(seconds=START_SECONDS) == 0, daemon.output
    pid, log = int((here / "gateway.pid").read_text()), here / "gateway.log"
    control = GatewayBroker(str(here / "spool"))
    try:
        told = wait_for(log, "(3 of 3 do)")
        listens = re.search(r"lumberjack listening on ssl:127\.0\.0\.1:(\d+)", told)
        assert listens is not None, told
        port = int(listens[1])
        before = [shaken(port) for _ in range(CONNECTIONS)]
        assert all(map(acknowledged, before))
        processes = control.figures()["processes"]
        assert [(one["state"], one["restarts"]) for one in processes] == [("serving", 0)] * 3
        assert sum(one["sessions"] for one in processes) == CONNECTIONS
        assert all(one["sessions"] for one in processes), processes

        # SIGHUP: each process has the new certificate, and no connection is lost.
        old = before[0].getpeercert(binary_form=True)
        Authority(here).server()
        os.kill(pid, signal.SIGHUP)
        wait_for(log, "msgproto: reload: read again: lumberjack: certificates of")
        after = [shaken(port) for _ in range(CONNECTIONS)]
        new = {line.getpeercert(binary_form=True) for line in after}
        assert len(new) == 1 and old not in new
        assert all(map(acknowledged, before + after))
        processes = control.figures()["processes"]
        while sum(one["sessions"] for one in processes) != 2 * CONNECTIONS:  # kept for a second
            processes = control.figures()["processes"]

        # A process that is down is counted, whether it has ended or starts again.
        victim = processes[1]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_for(log, "process 1 was ended by signal 9 (SIGKILL)")
        figures = control.figures()
        while figures["processes"][1]["pid"] == victim:  # kept for a second
            figures = control.figures()
        if figures["processes"][1]["state"] != "serving":  # it is quick on an idle machine
            assert not figures["safe"]["ok"]
            assert figures["safe"]["why"].startswith("Process 1 ")
        wait_for(log, "process 1 serves", 2)
        pids = [one["pid"] for one in control.figures()["processes"]]
        for line in before + after:
            line.close()
    finally:
        os.kill(pid, signal.SIGTERM)
        assert wait_gone(pid)
    assert all(wait_gone(one) for one in pids)
    assert not (here / "gateway.pid").exists()
    assert "Traceback" not in log.read_text()
    assert sum(sum(stored(here / "spool" / number).values()) for number in "012") == 3 * CONNECTIONS
