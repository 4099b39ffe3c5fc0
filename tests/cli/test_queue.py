"""``msgproto queue ls|verify|dump|consumers|trim``: what an operator sees."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.processes import msgproto
from tests.tools.queues import batch, put
from twisted_msgproto import MessageBatch
from twisted_msgproto.cli import main
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.queue.consumers import write_status
from twisted_msgproto.queue.flight_server import QueueFlightServer
from twisted_msgproto.spark.report import status_path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A queue of nine messages in several segments, the last one with every column."""
    writer = QueueWriter(tmp_path / "q", segment_bytes=1)
    for number in range(0, 8, 2):
        put(writer, batch(number, 2))
    put(
        writer,
        MessageBatch(
            "umq",
            "call",
            1_700_000_000_123_456,
            peer="tcp:127.0.0.1:1",
            session="s",
            client_id="c",
            count=1,
            message_id=["m"],
            destination=["d"],
            fields=[{"k": "ü"}],
            body=[b"\xff"],
            attachments=[[b"text", b"\xfe"]],
            truncated=[True],
        ),
    )
    writer.close()
    return tmp_path / "q"


def spoil(directory: Path, name: str) -> None:
    octets = bytearray((directory / name).read_bytes())
    octets[-9] ^= 1
    (directory / name).write_bytes(octets)


def test_ls_shows_segments_offsets_and_consumers(directory: Path) -> None:
    QueueReader(directory).commit("spark", 5)
    sizes = [path.stat().st_size for path in sorted(directory.glob("*.segment"))]
    assert msgproto("queue", "ls", directory).splitlines() == [
        f"queue {QueueReader(directory).queue_id}",
        f"offsets 0 to 9, {sum(sizes)} bytes",
        *(
            f"segment {lo:020d}.segment offsets {lo} to {min(lo + 2, 9)}, {size} bytes"
            for lo, size in zip(range(0, 10, 2), sizes, strict=True)
        ),
        "consumer spark has committed 5, 4 behind",
    ]
    facts = json.loads(msgproto("queue", "ls", "--json", directory))
    assert (facts["begin"], facts["end"], facts["losses"]) == (0, 9, 0)
    assert facts["queue_id"] == QueueReader(directory).queue_id
    assert facts["consumers"] == {"spark": 5}
    assert facts["bytes"] == sum(sizes)
    assert [part["begin"] for part in facts["segments"]] == [0, 2, 4, 6, 8]
    (directory / f"{8:020d}.segment").unlink()
    QueueWriter(directory).close()
    assert "published messages were lost 1 times\n" in msgproto("queue", "ls", directory)


def test_of_several_queues_in_a_directory_each_is_shown_below_its_name(tmp_path: Path) -> None:
    for name in ("1", "2"):
        writer = QueueWriter(tmp_path / name)
        put(writer, batch(0, 2))
        writer.close()
    heads = re.findall(r"^(\S+):$", msgproto("queue", "ls", tmp_path), re.M)
    assert heads == [f"{tmp_path}/1", f"{tmp_path}/2"]
    shown = [json.loads(line) for line in msgproto("queue", "ls", "--json", tmp_path).splitlines()]
    assert [facts["directory"] for facts in shown] == heads
    spoil(tmp_path / "1", f"{0:020d}.segment")
    assert msgproto("queue", "verify", tmp_path, status=1).count(", intact\n") == 1


def test_a_queue_is_looked_into_while_it_is_locked(directory: Path) -> None:
    """INTERFACES: reading a queue never needs its lock; trim refuses a locked queue."""
    writer = QueueWriter(directory)
    for action in ("ls", "verify", "dump"):
        assert main(["queue", action, str(directory)]) == 0
    error = msgproto("queue", "trim", directory, status=2)
    assert error.count("\n") == 1
    assert "open for writing already (process" in error
    assert ": in use: " in msgproto("queue", "mend", directory)
    writer.close()


def test_verify_counts_what_is_whole_and_names_what_is_damaged(directory: Path) -> None:
    assert "9 messages in 5 groups" in msgproto("queue", "verify", directory)
    spoil(directory, f"{2:020d}.segment")
    shown = msgproto("queue", "verify", directory, status=1)
    assert f"{QueueReader(directory).queue_id} offsets 2 to 4 (2 messages)" in shown
    assert "7 messages in 4 groups" in shown
    assert re.match(rf"{2:020d}.segment at \d+: \d+ damaged bytes .*, offsets 2 to 4\n", shown)
    facts = json.loads(msgproto("queue", "verify", "--json", directory, status=1))
    assert (facts["damaged"], facts["messages"], facts["groups"]) == ([[2, 4]], 7, 4)
    assert (facts["directory"], facts["bytes"] > 0) == (str(directory), True)
    QueueWriter(directory).close()
    assert "damaged offsets 2 to 4 (2 messages)" in msgproto("queue", "ls", directory)


def test_verify_says_what_it_could_not_look_at__NB_12(directory: Path) -> None:
    (directory / "end").unlink()
    shown = msgproto("queue", "verify", directory, status=3)
    assert "not looked at: the file 'end' is missing" in shown
    assert "9 messages in 5 groups" in shown
    assert "not all could be looked at" in shown
    assert (
        "'end'"
        in json.loads(msgproto("queue", "verify", "--json", directory, status=3))["unseen"][0]
    )
    spoil(directory, f"{2:020d}.segment")
    assert main(["queue", "verify", str(directory)]) == 1


def test_dump_prints_a_row_a_line_with_the_table_s_columns(directory: Path) -> None:
    lines = [json.loads(line) for line in msgproto("queue", "dump", directory).splitlines()]
    assert [line["offset"] for line in lines] == list(range(9))
    assert lines[0] == {
        "gateway": QueueReader(directory).queue_id,
        "offset": 0,
        "received_at": "2023-11-14T22:13:20.000000Z",
        "protocol": "lumberjack",
        "peer": "tcp:127.0.0.1:1",
        "session": None,
        "client_id": None,
        "kind": "json",
        "message_id": "0",
        "destination": None,
        "fields": None,
        "body": "body 0",
        "attachments": None,
        "truncated": False,
    }
    last = lines[-1]
    assert last["received_at"] == "2023-11-14T22:13:20.123456Z"
    assert (last["body_base64"], "body" in last) == ("/w==", False)
    assert (last["fields"], last["truncated"]) == ({"k": "ü"}, True)
    assert '"ü"' in msgproto("queue", "dump", "--from", "8", directory)
    assert "text" in str(last["attachments"][0])
    assert "/g==" in str(last["attachments"][1])


@pytest.mark.parametrize(
    ("segment", "options", "kept", "missing"),
    [
        (2, [], [0, 1, 4, 5, 6, 7, 8], ["2 to 4 (2 messages)"]),
        (0, [], [2, 3, 4, 5, 6, 7, 8], ["0 to 2 (2 messages)"]),
        (8, [], [0, 1, 2, 3, 4, 5, 6, 7], ["8 to 9 (1 messages)"]),
        (2, ["--to", "2"], [0, 1], []),
        (2, ["--from", "3", "--to", "5"], [4], ["3 to 4 (1 messages)"]),
    ],
)
def test_dump_says_which_messages_are_damaged(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    segment: int,
    options: list[str],
    kept: list[int],
    missing: list[str],
) -> None:
    """Only the damaged records' rows are missing, reported by range; never in silence."""
    spoil(directory, f"{segment:020d}.segment")
    assert main(["queue", "dump", *options, str(directory)]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["offset"] for line in shown.out.splitlines()] == kept
    queue_id = QueueReader(directory).queue_id
    assert shown.err.splitlines() == [
        f"msgproto queue: damaged: queue {queue_id} offsets {text}" for text in missing
    ]


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from", "3"], [3, 4, 5, 6, 7, 8]),
        (["--to", "3"], [0, 1, 2]),
        (["--from", "3", "--to", "5"], [3, 4]),
        (["--from", "5", "--to", "3"], []),
        (["--to", "99", "--from", "8"], [8]),
        (["--count", "2"], [0, 1]),
        (["--count", "0"], []),
    ],
)
def test_dump_takes_a_range(directory: Path, options: list[str], offsets: list[int]) -> None:
    lines = [
        json.loads(line) for line in msgproto("queue", "dump", *options, directory).splitlines()
    ]
    assert [line["offset"] for line in lines] == offsets


def test_trim_removes_what_every_consumer_has_committed(directory: Path) -> None:
    assert "removed 0 segments" in msgproto("queue", "trim", directory)
    reader = QueueReader(directory)
    reader.commit("spark", 9)
    reader.commit("gone", 2)
    assert "removed 1 segments; the queue begins at offset 2" in msgproto(
        "queue", "trim", str(directory)
    )
    reader.forget("gone")
    assert "the queue begins at offset 8" in msgproto("queue", "trim", directory)
    spoil(directory, f"{8:020d}.segment")
    assert "offsets 8 to 9" in msgproto("queue", "trim", directory)


@pytest.mark.parametrize("action", ["ls", "verify", "dump", "trim"])
def test_what_is_no_queue_is_one_line(tmp_path: Path, action: str) -> None:
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file", "."):
        error = msgproto("queue", action, tmp_path / name, status=2)
        assert error.count("\n") == 1
        assert "the queue" in error or "no queue in" in error
    assert not (tmp_path / "nowhere").exists()


def test_a_disk_error_is_one_line(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: QueueReader) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(QueueReader, "begin", broken)
    assert "cannot read the queue" in msgproto("queue", "ls", directory, status=2)


# -- consumers ------------------------------------------------------------------------------------


@pytest.fixture(params=["directory", "flight"])
def place(request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """Where the queue is found: its directory, or its running gateway."""
    if request.param == "directory":
        yield str(directory)
        return
    server = QueueFlightServer(str(directory), "grpc://127.0.0.1:0")
    yield server.address
    server.close()


def consumers(place: str, *options: str, status: int = 0) -> str:
    return msgproto("queue", "consumers", place, *options, status=status)


def test_consumers_are_listed_with_when_they_moved(
    directory: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(time=lambda: 1_700_036_100.0)
    monkeypatch.setattr("twisted_msgproto.cli.consumers.time", now)
    assert "has no consumer; nothing of it is trimmed" in consumers(place)
    reader = QueueReader(directory)
    reader.commit("done", 9)
    reader.commit("dead", 5)
    for name in ("done", "dead"):
        os.utime(directory / "consumers" / name, (1_700_000_100, 1_700_000_100))
    status = {"state": "ended", "rests_until": now.time() + 86_393, "updated_at": now.time() - 60}
    write_status(status_path(directory, "done"), status)  # which an address does not tell
    rests = "; rests, its next run is due within 24 h" if place == str(directory) else ""
    dead, done = consumers(place).splitlines()
    moved = "last moved 2023-11-14 22:15:00+00:00"
    assert done == f"consumer done has committed 9, 0 behind, {moved}{rests}"
    assert dead == f"consumer dead has committed 5, 4 behind, {moved}; stands still for 10 h"
    facts = json.loads(consumers(place, "--json"))
    assert facts["queue_id"] == reader.queue_id
    assert [(one["name"], one["offset"], one["behind_messages"]) for one in facts["consumers"]] == [
        ("dead", 5, 4),
        ("done", 9, 0),
    ]
    assert [one["moved"] for one in facts["consumers"]] == [1_700_000_100_000_000] * 2
    assert [one["still_seconds"] for one in facts["consumers"]] == [36_000.0, 0.0]


def test_a_dead_consumer_is_forgotten_while_the_gateway_writes(directory: Path, place: str) -> None:
    """TB-12: it could only be forgotten with the gateway stopped, and filled the disk meanwhile."""
    writer = QueueWriter(directory, segment_bytes=1)
    reader = QueueReader(directory)
    reader.register("dead")
    reader.commit("live", 9)
    assert consumers(place, "--forget", "dead").startswith(
        "consumer live has committed 9, 0 behind"
    )
    put(writer, batch(100))
    writer.close()
    assert reader.begin() == 9
    (status := directory / "bridges" / "dead.json").parent.mkdir()
    status.write_text("{}")  # of a bridge that was forgotten by half
    assert "no consumer 'dead'" in consumers(place, "--forget", "dead", "--yes", status=2)
    assert not status.exists()
    # One which lives makes itself known again.
    consumers(place, "--forget", "live")
    reader.commit("live", 10)
    assert reader.consumers() == {"live": 10}


def test_a_consumer_is_set_to_an_offset_which_the_queue_has(directory: Path, place: str) -> None:
    reader = QueueReader(directory)
    reader.commit("spark", 9)
    assert "consumer spark has committed 4, 5 behind" in consumers(place, "--reset", "spark", "4")
    for name, offset, text in (
        ("spark", "10", "ends at offset 9"),
        ("spark", "x", "a place is an offset, earliest, latest, or a time such as .*, not 'x'"),
        ("sparc", "4", "no consumer 'sparc' of the queue .*; there are: spark"),
    ):
        assert re.search(text, consumers(place, "--reset", name, offset, status=2))
    writer = QueueWriter(directory)
    writer.close()
    reader.commit("spark", 4)
    assert main(["queue", "trim", str(directory)]) == 0
    assert "begins at 4" in consumers(place, "--reset", "spark", "3", status=2)
    assert reader.consumers() == {"spark": 4}


def test_a_consumer_is_set_to_a_place_in_words_or_to_a_time(directory: Path, place: str) -> None:
    reader = QueueReader(directory)
    reader.commit("mine", 5)
    for word, offset in (
        ("latest", 9),
        ("earliest", 0),
        ("2023-11-14T22:13:20.123456Z", 8),
        ("2023-11-14T22:13:20.000003", 4),
        ("2023-11-14T23:13:20+01:00", 0),
        ("2020-01-01", 0),
    ):
        assert f"consumer mine has committed {offset}," in consumers(
            place, "--reset", "mine", word
        ), word
    assert "no message received at or after 2023-11-15; latest is its end" in (
        consumers(place, "--reset", "mine", "2023-11-15", status=2)
    )
    assert reader.consumers() == {"mine": 0}


@pytest.mark.parametrize(
    "change", [("--reset", "spark-0a1b2c3d", "9"), ("--forget", "spark-0a1b2c3d")]
)
def test_a_bridges_consumer_is_changed_only_by_those_who_know_what_it_means(
    directory: Path, place: str, change: tuple[str, ...]
) -> None:
    """Exactly once is kept by the table's log; the mark says what the gateway may remove."""
    reader = QueueReader(directory)
    reader.commit("spark-0a1b2c3d", 4)
    said = consumers(place, *change, status=2)
    assert said.count("\n") == 1
    assert "is that of a bridge into a table: what has landed stands in the table's own log" in said
    assert "have not landed" in said
    assert "say --yes" in said
    assert reader.consumers() == {"spark-0a1b2c3d": 4}
    consumers(place, *change, "--yes")
    left = {} if change[0] == "--forget" else {"spark-0a1b2c3d": 9}
    assert reader.consumers() == left


def test_a_bridge_is_known_by_its_status_under_any_name(directory: Path) -> None:
    QueueReader(directory).commit("events", 4)
    path = status_path(directory, "events")
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"consumer": "events", "state": "running"}')
    assert "is that of a bridge" in consumers(
        str(directory), "--reset", "events", "latest", status=2
    )
    consumers(str(directory), "--reset", "events", "latest", "--yes")


def test_what_is_trimmed_while_a_consumer_is_set_back_is_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = QueueReader(directory)
    reader.commit("spark", 9)
    commit = QueueReader.commit

    def slow(self: QueueReader, *arguments: Any) -> None:
        msgproto("queue", "trim", directory)
        commit(self, *arguments)

    monkeypatch.setattr(QueueReader, "commit", slow)
    assert "offset 2 of the queue" in consumers(str(directory), "--reset", "spark", "2", status=2)


def test_a_gateway_which_is_not_there_is_one_line() -> None:
    shown = consumers("grpc://127.0.0.1:1", status=2)
    assert "is not to be reached" in shown
    assert shown.count("\n") == 1
