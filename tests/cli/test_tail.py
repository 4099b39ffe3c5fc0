"""``msgproto queue tail``: the last messages of a queue, and those that arrive."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.tools.processes import Launcher, environment, msgproto
from tests.tools.queues import batch, put
from twisted_msgproto import MessageBatch
from twisted_msgproto.cli import main
from twisted_msgproto.cli.tail import Tail
from twisted_msgproto.core.errors import QueueMismatch
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.queue.flight_server import QueueFlightServer


def call(number: int, destination: str, body: bytes = b"x") -> MessageBatch:
    return MessageBatch(
        "umq", "call", 1_700_000_000_000_000 + number, count=1,
        message_id=[str(number)], destination=[destination], body=[body],
    )  # fmt: skip


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[QueueWriter]:
    """A queue whose every group is a segment, with Lumberjack's and UMQ's messages in turn."""
    made = QueueWriter(tmp_path / "q", segment_bytes=1)
    for number in range(0, 40, 2):
        put(made, batch(number, 1))
        put(made, call(number, "orders.new" if number % 4 else "nëws", b"\xff\x1b"))
    yield made
    made.close()


@pytest.fixture(params=["directory", "flight"])
def place(request: pytest.FixtureRequest, writer: QueueWriter, tmp_path: Path) -> Iterator[str]:
    if request.param == "directory":
        yield str(tmp_path / "q")
        return
    server = QueueFlightServer(str(tmp_path / "q"), "grpc://127.0.0.1:0")
    yield server.address
    server.close()


def shown(capsys: pytest.CaptureFixture[str], place: str, *words: str) -> list[str]:
    assert main(["queue", "tail", place, *words]) == 0
    return capsys.readouterr().out.splitlines()


def offsets(lines: list[str]) -> list[int]:
    return [int(line.partition("\t")[0]) for line in lines]


def test_the_last_messages_are_shown_a_line_each(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offsets(shown(capsys, place)) == list(range(30, 40))
    assert offsets(shown(capsys, place, "-n", "1000")) == list(range(40))
    assert shown(capsys, place, "-n", "0") == []
    lumberjack, umq = shown(capsys, place, "-n", "2")
    assert lumberjack == "38\t2023-11-14T22:13:20.000038Z\tlumberjack\t-\tbody 38"
    assert umq.split("\t")[2:] == ["umq", "orders.new", r"\xff\x1b"]


def test_all_are_shown_of_more_than_are_read_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = QueueWriter(tmp_path / "q")
    for first in range(0, 3000, 100):
        put(made, batch(first, 100))
    put(made, MessageBatch("lumberjack", "data", 0, count=1, fields=[{"a": "ü\n"}]))
    made.close()
    lines = shown(capsys, str(tmp_path / "q"), "-n", "2500")
    assert offsets(lines) == list(range(501, 3001))
    assert lines[-1].endswith('\t{"a": "ü\\n"}')


def test_messages_are_chosen_by_protocol_and_destination(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offsets(shown(capsys, place, "--protocol=umq", "-n3")) == [35, 37, 39]
    assert offsets(shown(capsys, place, "--destination=nëws", "-n3")) == [29, 33, 37]
    assert offsets(shown(capsys, place, "--destination=ord*", "--destination=x", "-n2")) == [35, 39]
    assert '"nëws"' in shown(capsys, place, "--destination=nëws", "-n1", "--json")[0]
    assert shown(capsys, place, "--protocol=mtl") == []
    both = shown(capsys, place, "--protocol=mtl", "--protocol=lumberjack", "-n1", "--json")
    assert json.loads(both[0])["offset"] == 38
    assert json.loads(both[0])["body"] == "body 38"


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    for words, text in (
        ([str(tmp_path / "none")], "no queue in"),
        (["grpc://127.0.0.1:1"], "is not to be reached"),
    ):
        error = msgproto("queue", "tail", *words, status=2)
        assert error.count("\n") == 1
        assert text in error
    QueueWriter(tmp_path / "q").close()
    assert "no protocol 'lumberjak' (did you mean 'lumberjack'?)" in msgproto(
        "queue", "tail", str(tmp_path / "q"), "--protocol=lumberjak", status=2
    )


def test_nothing_is_open_while_a_message_is_printed(writer: QueueWriter, tmp_path: Path) -> None:
    """A reader of our output that stops reading must not keep what the gateway has removed."""
    writer.close()
    tail = Tail(QueueReader(tmp_path / "q"), lambda *_: True, lambda _: None)
    for _ in tail.last(40):
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        assert not [path for path in opened if path.endswith(".segment") and "/q/" in path]
        break
    else:
        raise AssertionError("nothing was shown")


def test_what_was_removed_meanwhile_is_named_and_passed_over(
    writer: QueueWriter, tmp_path: Path
) -> None:
    said: list[str] = []
    reader = QueueReader(tmp_path / "q")
    tail = Tail(reader, lambda *_: True, said.append)
    assert list(tail.last(0)) == []
    for number in range(50, 56):
        put(writer, batch(number))
    writer.close()
    reader.commit("all", 43)
    assert main(["queue", "trim", str(tmp_path / "q")]) == 0
    assert [offset for offset, _ in tail.more()] == [43, 44, 45]
    assert said == ["offsets 40 to 43 were removed before they were shown"]
    assert [offset for offset, _ in tail.more()] == []


def test_what_is_removed_while_the_last_are_looked_for_is_left_out(
    writer: QueueWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.close()
    reader = QueueReader(tmp_path / "q")
    reader.commit("all", 38)
    begin, trim = QueueReader.begin, partial(msgproto, "queue", "trim", tmp_path / "q")
    monkeypatch.setattr(QueueReader, "begin", lambda self: (begin(self), trim())[0])
    assert [offset for offset, _ in Tail(reader, lambda *_: True, print).last(9)] == [38, 39]


def test_a_queue_restored_from_a_copy_is_followed_from_its_end(
    writer: QueueWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    shutil.copytree(tmp_path / "q", tmp_path / "copy")
    put(writer, batch(50, 3))
    writer.close()
    tail, late = (Tail(QueueReader(tmp_path / "q"), lambda *_: True, said.append) for _ in "ab")
    assert [offset for offset, _ in tail.last(1)] == [42]
    begin, looks = QueueReader.begin, list[int]()

    def restored(self: QueueReader) -> int:
        looks.append(begin(self))
        assert len(looks) < 9, "it is looked at for ever"
        if len(looks) == 1:
            shutil.rmtree(tmp_path / "q")
            (tmp_path / "copy").rename(tmp_path / "q")
        return looks[-1]

    monkeypatch.setattr(QueueReader, "begin", restored)
    with pytest.raises(QueueMismatch, match="which ends at 40"):
        list(late.last(9))
    end, ends = QueueReader.end, [99]
    monkeypatch.setattr(QueueReader, "end", lambda self: ends.pop() if ends else end(self))
    with pytest.raises(QueueMismatch, match="which ends at 40"):
        list(tail.more())
    assert list(tail.more()) == []
    assert said == ["the queue ends at offset 40 now: messages above it were lost"]


def test_damage_is_named_and_passed_over(writer: QueueWriter, tmp_path: Path) -> None:
    path = tmp_path / "q" / f"{38:020d}.segment"
    octets = bytearray(path.read_bytes())
    octets[-9] ^= 1
    path.write_bytes(octets)
    said: list[str] = []
    tail = Tail(QueueReader(tmp_path / "q"), lambda *_: True, said.append)
    assert [offset for offset, _ in tail.last(5)] == [34, 35, 36, 37, 39]
    assert said == ["offsets 38 to 39 cannot be read: they are damaged"]


def test_it_follows_across_segments_until_it_is_interrupted(
    launch: Launcher, writer: QueueWriter, place: str
) -> None:
    tail = launch("queue", "tail", place, "-f", "-n1", "--protocol=lumberjack")
    tail.line(r"^38\t")
    for number in range(100, 105):
        put(writer, batch(number))
        put(writer, call(number, "nëws"))
        tail.line(rf"\tlumberjack\t-\tbody {number}$")
    tail.signal(signal.SIGINT)
    assert tail.wait() == 130
    assert len(tail.lines) == 6
    assert "Traceback" not in tail.output


def test_it_ends_when_nobody_reads_it_any_more_also_while_nothing_comes(
    writer: QueueWriter, tmp_path: Path
) -> None:
    tail = subprocess.Popen(
        [sys.executable, "-m", "twisted_msgproto", "queue", "tail", "-f", "-n1", tmp_path / "q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=""),
    )
    assert tail.stdout is not None
    assert tail.stderr is not None
    try:
        assert tail.stdout.readline().startswith(b"39\t")
        tail.stdout.close()
        assert tail.wait(60) == 128 + signal.SIGPIPE
        assert tail.stderr.read() == b""
    finally:
        tail.kill()
        tail.stderr.close()


def test_it_waits_for_a_gateway_that_is_away(
    launch: Launcher, writer: QueueWriter, tmp_path: Path
) -> None:
    server = QueueFlightServer(str(tmp_path / "q"), "grpc://127.0.0.1:0")
    try:
        tail = launch("queue", "tail", server.address, "-f", "-n1")
        tail.line(r"^39\t")
        server.close()
        tail.line("is not to be reached.*; trying again")
        put(writer, batch(200))
        server = QueueFlightServer(str(tmp_path / "q"), server.address)
        tail.line("body 200$")
        tail.line("the gateway answers again")
    finally:
        server.close()
