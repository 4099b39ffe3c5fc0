"""``msgproto broker ls|peek|purge|requeue``: what an operator sees."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.net.test_control import message
from tests.tools.disks import Unreadable
from tests.tools.processes import Launcher, msgproto
from tests.tools.queues import batch, put
from twisted_msgproto import MessageBatch
from twisted_msgproto.cli import broker, main
from twisted_msgproto.cli.broker import StoppedBroker
from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.net.site.client import GatewayBroker
from twisted_msgproto.net.site.queue_view import QueueShown
from twisted_msgproto.queue import QueueWriter
from twisted_msgproto.queue.broker_files.settled import SettledFile

NOW = 1_700_000_000.0


class Shelf:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def queues(self) -> list[QueueShown]:
        return [
            QueueShown(space="a", name="orders", waiting=12, in_flight=3, bytes=900, consumers=1),
            QueueShown(space="b", name="orders", waiting=0),
            QueueShown(
                space="b", name="bïlls\n.dead", waiting=1, oldest=int((NOW - 300) * 1e6), tries=5
            ),
        ]

    def peek(self, space: str, name: str, count: int) -> Any:
        self.told.append(("peek", space, name, count))
        return [message(7, b"a\x1b[2Jb", k="ü"), message(8, b"\xff")]

    def purge(self, space: str, name: str) -> int:
        self.told.append(("purge", space, name))
        return 12

    def requeue(self, space: str, name: str, to: str) -> int:
        self.told.append(("requeue", space, name, to))
        return 1


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    monkeypatch.setattr(broker, "opened", lambda *where: shelf)
    monkeypatch.setattr(broker.time, "time", lambda: NOW)
    return shelf


def test_ls_is_a_table(shelf: Shelf) -> None:
    assert msgproto("broker", "ls", "q").splitlines() == [
        "SPACE  QUEUE         WAITING  IN-FLIGHT  BYTES  CONSUMERS  OLDEST  TRIES",
        "a      orders             12          3    900          1       -      0",
        "b      orders              0          0      0          0       -      0",
        r"b      bïlls\n.dead        1          0      0          0   5 min      5",
    ]


def test_ls_as_json(shelf: Shelf) -> None:
    told = msgproto("broker", "ls", "q", "--json")
    assert "bïlls" in told
    assert json.loads(told)["queues"][0] == {
        "space": "a", "name": "orders", "waiting": 12, "in_flight": 3, "bytes": 900,
        "consumers": 1, "oldest": None, "tries": 0,
    }  # fmt: skip


def test_peek_shows_messages_that_cannot_steer_the_terminal(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "peek", "q", "orders", "--space", "a", "--count", "2"]) == 0
    assert shelf.told == [("peek", "a", "orders", 2)]
    assert capsys.readouterr().out.splitlines() == [
        '7\t2023-11-14T22:13:20.000000Z\t1 tries\t{"k": "ü"}\ta\\x1b[2Jb',
        "8\t2023-11-14T22:13:20.000000Z\t1 tries\t{}\t\\xff",
    ]


def test_peek_as_json(shelf: Shelf) -> None:
    told = msgproto("broker", "peek", "q", "orders", "--space", "a", "--json")
    assert '"ü"' in told
    first, second = json.loads(told)["messages"]
    assert first == {
        "message_id": 7, "received_at": "2023-11-14T22:13:20.000000Z", "tries": 1, "bytes": 6,
        "fields": {"k": "ü"}, "body": "a\x1b[2Jb",
    }  # fmt: skip
    assert second["body_base64"] == "/w=="


def test_purge_and_requeue_tell_how_many(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "purge", "q", "orders", "--space", "b"]) == 0
    assert main(["broker", "requeue", "q", "bïlls\n.dead"]) == 0
    assert main(["broker", "requeue", "q", "bïlls\n", "--json"]) == 0
    assert main(["broker", "requeue", "q", "orders", "--space", "a", "--to", "x", "--json"]) == 0
    assert shelf.told == [
        ("purge", "b", "orders"),
        *[("requeue", "b", "bïlls\n.dead", "bïlls\n")] * 2,
        ("requeue", "a", "orders", "x"),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "12 messages of orders are settled",
        r"1 messages of bïlls\n.dead wait in bïlls\n now",
        *['{"count": 1}'] * 2,
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["peek", "q", "orders"], "more than one space has a queue 'orders', say --space: a, b"),
        (["peek", "q", "orders", "--space", "c"], "has no queue 'orders'; these have one: a, b"),
        (["purge", "q", "none"], "there is no queue 'none'"),
        (["requeue", "q", "orders", "--space", "a"], "there is no queue 'orders.dead'"),
    ],
)
def test_what_cannot_be_is_one_line(shelf: Shelf, words: list[str], says: str) -> None:
    (line,) = msgproto("broker", *words, status=2).splitlines()
    assert says in line
    assert not shelf.told


# ── which broker is asked ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[QueueWriter]:
    writer = QueueWriter(tmp_path / "q")
    put(writer, batch(0, 2))
    yield writer
    writer.close()


@pytest.mark.parametrize("words", [["ls"], ["purge", "x"]])
def test_where_no_queue_is_one_line_says_so(tmp_path: Path, words: list[str]) -> None:
    verb, *rest = words
    (line,) = msgproto("broker", verb, tmp_path / "none", *rest, status=2).splitlines()
    assert line.startswith("msgproto broker: ")
    assert os.listdir(tmp_path) == []


def test_what_was_mended_is_told_where_no_gateway_runs(
    writer: QueueWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.close()
    [segment] = (tmp_path / "q").glob("*.segment")
    with segment.open("ab") as file:
        file.write(b"torn")
    assert main(["broker", "ls", str(tmp_path / "q")]) == 0
    told = capsys.readouterr()
    cut = f"cut 4 bytes of an unfinished record from {segment}"
    assert (told.out, told.err) == ("", f"{cut}\nthe broker has no queues\n")


def waiting(queues: Sequence[QueueShown]) -> dict[str, int]:
    return {queue.name: queue.waiting for queue in queues if queue.waiting}


@pytest.mark.parametrize(
    ("verb", "left"),
    [
        (("purge", "micromsg2", "orders"), {"others": 2}),
        (("requeue", "micromsg2", "orders", "others"), {"others": 5}),
        (("requeue", "micromsg2", "orders", "fresh"), {"fresh": 3, "others": 2}),
    ],
)
def test_what_was_answered_survives_a_kill(
    launch: Launcher, tmp_path: Path, verb: tuple[str, ...], left: dict[str, int]
) -> None:
    """RD-57: it was written some times a second, and a kill right after the answer undid it."""
    gateway = launch.command(
        [sys.executable, "-m", "twisted", "micromsg2", "-e", "tcp:0:interface=127.0.0.1",
         "--queue", str(tmp_path / "q"), "--broker-queue=orders", "--broker-queue=others"],
    )  # fmt: skip
    port = gateway.port("micromsg2")
    for name, count in (("orders", 3), ("others", 2)):
        sent = launch.run(
            "send", "micromsg2", f"tcp:127.0.0.1:{port}", f"--destination={name}",
            f"--count={count}",
        )  # fmt: skip
        assert sent.returncode == 0, sent.stderr
    running = GatewayBroker(str(tmp_path / "q"))
    assert waiting(running.queues()) == {"orders": 3, "others": 2}
    count = getattr(running, verb[0])(*verb[1:])
    gateway.kill()
    assert count == 3
    with closing(StoppedBroker(str(tmp_path / "q"))) as stopped:
        assert waiting(stopped.queues()) == left


@pytest.mark.parametrize("verb", [("purge", "tests", "q"), ("requeue", "tests", "q", "other")])
def test_what_a_disk_does_not_keep_is_not_said_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    """RD-57, of a gateway that has stopped: it said so before, and ended well."""
    faults = Unreadable(monkeypatch)
    writer = QueueWriter(tmp_path / "q")
    state = writer.broker()
    state.restored()
    name = QueueName("tests", "q")
    state.declare({name: 0})
    put(
        writer,
        MessageBatch(
            "tests",
            "message",
            int(NOW * 1e6),
            count=2,
            body=[b"x", b"y"],
            envelope=[head("t", name)] * 2,
        ),
    )
    state.close()
    writer.close()
    with closing(StoppedBroker(str(tmp_path / "q"))) as stopped:
        assert waiting(stopped.queues()) == {"q": 2}
        with faults.now("names", "", errno.EIO), pytest.raises(OSError, match="Input/output"):
            stopped.peek("tests", "q", 2)
        (shown,) = stopped.queues()
        peeked = stopped.peek("tests", "q", 2)
        assert [one.body for one in peeked] == [b"x", b"y"]
        assert (shown.space, shown.tries) == ("tests", 0)
        assert [one.bytes for one in stopped.peek("tests", "q", 1)] == [1]
        with pytest.raises(QueueError, match="is for dead letters"):
            stopped.requeue("tests", "q", "x.dead")
        assert stopped.requeue("tests", "q", "q") == 2
        assert shown.oldest == peeked[0].received_at == NOW * 1e6

        def broken(*arguments: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(SettledFile, "write", broken)
        with pytest.raises(QueueError, match=r"cannot write what was changed: .*Input/output"):
            getattr(stopped, verb[0])(*verb[1:])
        monkeypatch.undo()
    QueueWriter(tmp_path / "q").close()  # nothing holds it any more


def test_a_writer_that_is_no_gateway_is_named(writer: QueueWriter, tmp_path: Path) -> None:
    (line,) = msgproto("broker", "ls", tmp_path / "q", status=2).splitlines()
    assert f"process {os.getpid()} writes the queue" in line


def test_a_gateway_that_does_not_answer_is_told(writer: QueueWriter, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(tmp_path / "q" / "control"))
    (line,) = msgproto("broker", "ls", tmp_path / "q", status=2).splitlines()
    assert line.endswith("does not answer: none runs on this queue, or it runs as another version")


def test_at_a_url_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # not listening
        bound.bind(("127.0.0.1", 0))
        assert main(["broker", "ls", f"http://127.0.0.1:{bound.getsockname()[1]}"]) == 2
    assert (
        "does not answer: nobody listens at its address; is the server" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "where",
    ["http://", "http://me:x@h:1", "http://h:1?x=1", "http://[::1", "http://h:99999", "http://h:x"],
)
def test_what_is_no_url_is_told(where: str) -> None:
    assert "http://HOST:PORT expected" in msgproto("broker", "ls", where, status=2)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((-1, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h")),
        *((172_799, "48 h"), (172_800, "2 d")),
    ],
)
def test_ages(seconds: float, shown: str) -> None:
    assert broker.age(seconds) == shown
