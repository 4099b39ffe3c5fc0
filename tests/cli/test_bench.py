"""``msgproto bench`` against real servers of all five protocols."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater

from tests.tools.processes import Launched, Launcher, msgproto
from twisted_msgproto.cli import bench
from twisted_msgproto.queue import QueueReader

LOOPBACK = "tcp:0:interface=127.0.0.1"
SERVERS = {name: LOOPBACK for name in ("lumberjack", "micromsg2", "sabc", "umq")}
SERVERS["mtl"] = "tcp://127.0.0.1:*"


def served(launch: Launcher, protocol: str) -> Launched:
    words = [protocol, "-e", SERVERS[protocol], "--queue", "spool"]
    return launch(*words, module="twisted")


@pytest.mark.parametrize("protocol", SERVERS)
def test_what_is_told_is_what_the_server_has(launch: Launcher, protocol: str) -> None:
    """The size and the clients are those that were asked for, and every message is in the queue."""
    address = served(launch, protocol).address(protocol)
    words = ("--clients", "3", "--seconds", "0.5", "--size", "200", "--window", "20", "--json")
    ended = launch.run("bench", protocol, address, *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    reader = QueueReader(launch.directory / "spool")
    rows = [body for batch in reader.read(0, reader.end()) for body in batch["body"].to_pylist()]
    sessions = {
        one for batch in reader.read(0, reader.end()) for one in batch["session"].to_pylist()
    }
    assert told["sent"] == told["acknowledged"] == len(rows) > 0
    assert told["bytes"] == sum(map(len, rows)) == 200 * len(rows)
    assert len(sessions) == 3
    assert told["messages_per_second"] == pytest.approx(len(rows) / told["seconds"], rel=0.01)
    assert told["bytes_per_second"] == pytest.approx(told["bytes"] / told["seconds"], rel=0.01)
    assert 0 < told["latency_p50_seconds"] <= told["latency_p99_seconds"]
    assert told["errors"] == {}


def test_a_rate_is_of_all_clients_together(launch: Launcher) -> None:
    address = served(launch, "sabc").address("sabc")
    words = ("--clients", "4", "--seconds", "0.5", "--rate", "40")
    ended = launch.run("bench", "sabc", address, *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = re.fullmatch(
        r"(\d+) of \1 messages acknowledged in \d\.\d\d s, 4 clients: .+ bytes/s\n"
        r"acknowledged after p50 \S+ ms, p99 \S+ ms\n",
        ended.stdout,
    )
    assert told is not None, ended.stdout
    assert int(told[1]) <= 20  # never more than are due


def test_clients_that_fail_are_counted_and_the_others_go_on(launch: Launcher) -> None:
    server = launch("sabc", "-e", LOOPBACK, "--limit", "connections=2", module="twisted")
    words = ("--clients", "3", "--seconds", "0.2", "--json")
    ended = launch.run("bench", "sabc", server.address("sabc"), *words)
    assert ended.returncode == 1
    told = json.loads(ended.stdout)
    assert told["acknowledged"] == told["sent"] > 0
    assert sum(told["errors"].values()) == 1
    assert ended.stderr.startswith("msgproto bench: 1 of 3 clients failed: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["sabc", "tcp:127.0.0.1:1"], 1, "1 of 1 clients failed: nobody listens at "),
        (["sabc", "tcp:127.0.0.1:1", "--pipelining", "2"], 2, "send sabc has no --pipelining"),
        (["sabc", "nonsense", "--clients", "2"], 2, "not an endpoint: 'nonsense'"),
        (["nothing"], 2, "unknown protocol 'nothing'"),
    ],
)
def test_what_cannot_be_is_one_line(
    launch: Launcher, words: list[str], status: int, line: str
) -> None:
    ended = launch.run("bench", *words)
    assert (ended.returncode, ended.stdout) == (status, "")
    (told,) = ended.stderr.splitlines()
    assert told.startswith(f"msgproto bench: {line}")


def planted(monkeypatch: pytest.MonkeyPatch, sending: Any, steps: Sequence[float] = ()) -> None:
    """Let clients send like this on a clock that goes on by these steps; then Ctrl-C ends them."""

    def driven(work: Any, *rest: object) -> None:
        running = Deferred.fromCoroutine(work(clock := Clock()))
        clock.pump(steps)
        if not running.called:
            running.cancel()
            assert running.called
            raise KeyboardInterrupt

    command = SimpleNamespace(send=sending, DEFAULT_ENDPOINT="tcp:h:1")
    monkeypatch.setattr(bench, "command_of", lambda protocol, verb: command)
    monkeypatch.setattr(bench, "why_not", driven)


@pytest.mark.parametrize(
    ("verb", "timed", "more"),
    [
        ("acknowledged", (1.23, 3.23), "acknowledged after p50 1.23e+03 ms, p99 3.23e+03 ms"),
        ("written", (None, None), "the server was not asked to acknowledge: nobody knows what"),
    ],
)
def test_parts_of_a_batch_are_counted_and_timed_each_for_itself(
    monkeypatch: pytest.MonkeyPatch, verb: str, timed: tuple[float | None, ...], more: str
) -> None:
    taken: list[bytes] = []

    async def sending(clock: Clock, options: object, messages: Any, progress: Any) -> None:
        taken.extend(await messages.some(5))
        progress.sent(1)
        progress.sent(4)
        for seconds, count in ((1.2345678, 2), (2.0, 2)):
            clock.advance(seconds)
            getattr(progress, verb)(count)
        clock.advance(8.0)
        assert await messages.some(1) == []

    planted(monkeypatch, sending)
    words = ("bench", "lumberjack", "--size", "100")
    told, _ = msgproto(*words, "--json", status=1).splitlines()
    figures = json.loads(told)
    whole = len(taken[0])
    assert [len(one) for one in taken] == [whole] * 5
    assert (figures["sent"], figures["bytes"], figures["seconds"]) == (5, 4 * whole, 3.234568)
    assert figures["messages_per_second"] == 1.2
    assert figures["bytes_per_second"] == round(4 * whole / 3.2345678, 1)
    assert (figures["latency_p50_seconds"], figures["latency_p99_seconds"]) == timed
    first, second, last = msgproto(*words, status=1).splitlines()
    done = 4 if verb == "acknowledged" else 0
    rate = f"1 messages/s, {figures['bytes_per_second']:.0f} bytes/s"
    assert first == f"{done} of 5 messages acknowledged in 3.23 s, 1 client: {rate}"
    assert second.startswith(more)
    assert last.startswith(f"msgproto bench: 4 of 5 messages were {verb}: the command ended before")


def test_with_a_rate_each_message_is_sent_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """From when all are connected; more at once after a pause, though no more than the window."""
    sent: list[tuple[float, int]] = []
    connecting = iter([0.0, 0.25])

    async def sending(clock: Clock, options: object, messages: Any, progress: Any) -> None:
        await deferLater(clock, next(connecting))  # an error for the third, which is not waited for
        while some := await messages.some(2):
            sent.append((clock.seconds(), len(some)))
            progress.sent(len(some))
            if clock.seconds() == 0.75:
                await deferLater(clock, 0.625)
            progress.acknowledged(len(some))

    planted(monkeypatch, sending, [0.125] * 18)
    words = ("--clients", "3", "--seconds", "1.5", "--rate", "12")
    told = msgproto("bench", "lumberjack", *words, status=1)
    assert told.startswith("12 of 12 messages acknowledged in")
    assert "\nmsgproto bench: 1 of 3 clients failed: " in told
    each = [(0.25, 1), (0.5, 1), (0.75, 1), (1.375, 2), (1.5, 1)]
    assert sorted(sent) == sorted(each * 2)


@pytest.mark.parametrize(
    ("count", "line"),
    [(2, "0 of 4 messages were acknowledged: interrupted"), (0, "nothing was sent: interrupted")],
)
def test_ctrl_c_is_told_with_what_was_done_so_far(
    monkeypatch: pytest.MonkeyPatch, count: int, line: str
) -> None:
    """It was told as clients that failed."""

    async def sending(clock: Clock, options: object, messages: Any, progress: Any) -> None:
        for _ in range(count):
            progress.sent(len(await messages.some(1)))
        await Deferred()

    planted(monkeypatch, sending)
    words = ("bench", "lumberjack", "--clients", "2")
    *shown, last = msgproto(*words, status=130).splitlines()
    assert (len(shown), last) == (bool(count), f"msgproto bench: {line}")
    figures = json.loads(msgproto(*words, "--json", status=130).splitlines()[0])
    assert (figures["seconds"], figures["messages_per_second"], figures["errors"]) == (0, 0, {})
