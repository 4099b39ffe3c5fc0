"""TB-15: a queue forgets what a stream of one's own made durable, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.conftest import identity, messages, write
from tests.tools.disks import StepDisk
from twisted_msgproto.core.errors import ConfigurationError, QueueError, QueueMismatch
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark import release, releasing

pytest.importorskip("pyspark")


def checkpoint_of(directory: Path, queue: Path, *offsets: int, committed: int) -> Path:
    """A checkpoint as Spark writes it: a batch for each offset, the first ``committed`` done."""
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    for number, offset in enumerate(offsets):
        place = {identity(queue): {"offset": offset}}
        text = f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(place)}'
        (directory / "offsets" / str(number)).write_text(text)
        if number < committed:
            (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return directory


def marks(queue: Path) -> dict[str, int]:
    return QueueReader(queue).consumers()


def test_the_last_committed_batch_is_released_not_a_planned_one(
    queue: Path, tmp_path: Path
) -> None:
    before = checkpoint_of(tmp_path / "b", queue, 300, committed=0)
    assert release(before, str(queue), "night") == {}
    assert marks(queue) == {}
    checkpoint = checkpoint_of(tmp_path / "c", queue, 300, 600, 900, committed=2)
    assert release(checkpoint, str(queue), "night") == {identity(queue): 600}
    assert marks(queue) == {"night": 600}


def test_output_and_checkpoint_are_durable_before_the_mark_moves(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", queue, 300, 600, committed=1)
    happened: list[str] = []

    class Noted(StepDisk):
        def step(self, operation: str, path: str) -> None:
            assert operation in ("sync", "sync directory") and path.startswith(str(checkpoint))
            happened.append(f"synced with mark {marks(queue).get('night', 0)}")

    def sync() -> None:
        happened.append(f"output synced with mark {marks(queue).get('night', 0)}")
        # A batch which is committed now is not covered by this call.
        (checkpoint / "commits" / "1").write_text("v1\n{}")

    monkeypatch.setattr(releasing, "OS_DISK", Noted())
    assert release(checkpoint, str(queue), "night", sync=sync) == {identity(queue): 300}
    assert happened[0] == "output synced with mark 0"
    assert len(happened) >= 6 and set(happened[1:]) == {"synced with mark 0"}


def test_an_output_which_cannot_be_made_durable_releases_nothing(
    queue: Path, tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", queue, 300, committed=1)

    def broken() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError):
        release(checkpoint, str(queue), "night", sync=broken)
    assert marks(queue) == {}


def test_what_is_no_checkpoint_or_another_queues_is_one_line(queue: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no checkpoint of Spark"):
        release(tmp_path, str(queue), "night")
    other = tmp_path / "other"
    write(other, messages(0, 3))
    checkpoint = checkpoint_of(tmp_path / "c", other, 3, committed=1)
    with pytest.raises(QueueError, match="does not know queue"):
        release(checkpoint, str(queue), "night")
    assert marks(queue) == {}
    with pytest.raises(ConfigurationError, match="no offsets of the source msgproto at number 1"):
        release(checkpoint, str(other), "night", source=1)
    planned = checkpoint / "offsets" / "0"
    planned.write_text(planned.read_text().replace("}\n", '}\n{"another": "source"}\n', 1))
    assert release(checkpoint, str(other), "night", source=1) == {identity(other): 3}
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n12")
    with pytest.raises(ConfigurationError, match="no offsets of the source msgproto at number 0"):
        release(checkpoint, str(other), "night")
    beyond = checkpoint_of(tmp_path / "b", queue, 9999, committed=1)
    with pytest.raises(QueueMismatch):
        release(beyond, str(queue), "night")


def test_a_queue_which_joined_later_is_registered_and_the_others_are_released(
    queue: Path, tmp_path: Path
) -> None:
    joined = tmp_path / "joined"
    write(joined, messages(0, 3))
    checkpoint = checkpoint_of(tmp_path / "c", queue, 300, committed=1)
    assert release(checkpoint, f"{queue},{joined}", "night") == {identity(queue): 300}
    assert (marks(queue), marks(joined)) == ({"night": 300}, {"night": 0})


def test_a_name_that_the_queue_does_not_know_yet_is_told(
    queue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = checkpoint_of(tmp_path / "c", queue, 300, committed=1)
    QueueReader(queue).register("night")
    assert release(checkpoint, str(queue), "night") == {identity(queue): 300}
    with pytest.raises(QueueError):
        release(checkpoint, str(queue), "no/name")
    assert capsys.readouterr().err == ""
    release(checkpoint, str(queue), "nigth")
    line = f"queue {identity(queue)}: 'nigth' is a new consumer; so far it knew: night\n"
    assert capsys.readouterr().err.endswith(line)
