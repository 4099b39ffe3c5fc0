"""After a power cut a table and its checkpoint go back to what is durable, and no further."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import identity, messages, write
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark.checkpoint import batch_numbers
from twisted_msgproto.spark.durable import BatchSync
from twisted_msgproto.spark.mend import Mark, boot_id, mend, read_mark, write_mark
from twisted_msgproto.spark.table import LandedTable


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint in which batches 0 to 4 were planned and 0 to 3 are done."""
    directory = tmp_path / "table" / "_checkpoint"
    for kind, count in (("offsets", 5), ("commits", 4), (".bridge", 0)):
        (directory / kind).mkdir(parents=True)
        for batch in range(count):
            (directory / kind / str(batch)).write_text("v1\n{}\n{}")
            (directory / kind / f".{batch}.crc").touch()
    (directory / "metadata").write_text('{"id":"x"}')
    log = tmp_path / "table" / "_spark_metadata"
    log.mkdir()
    for batch in range(5):
        (log / str(batch)).write_text("v1")
    return directory


def batches(checkpoint: Path) -> tuple[list[int], list[int], list[int]]:
    log = checkpoint.parent / "_spark_metadata"
    return (
        batch_numbers(checkpoint / "offsets"),
        batch_numbers(checkpoint / "commits"),
        batch_numbers(log),
    )


def test_a_new_checkpoint_gets_a_mark_before_its_first_batch(tmp_path: Path) -> None:
    (tmp_path / ".bridge").mkdir()
    assert mend(tmp_path, tmp_path, "b1") == []
    assert read_mark(tmp_path) == Mark(-1, "b1")


def test_a_checkpoint_without_a_mark_is_not_ours_to_mend(checkpoint: Path) -> None:
    assert mend(checkpoint, checkpoint.parent, "b1") == []
    assert read_mark(checkpoint) is None
    (checkpoint / ".bridge" / "synced").write_text("{}")
    assert read_mark(checkpoint) is None


def test_in_the_same_run_of_the_machine_nothing_is_taken_back(checkpoint: Path) -> None:
    write_mark(checkpoint, Mark(2, "b1"))
    assert mend(checkpoint, checkpoint.parent, "b1") == []
    assert batches(checkpoint) == ([0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("boot", ["b2", ""])
def test_after_a_new_start_what_lies_after_the_mark_is_taken_back(
    checkpoint: Path, boot: str
) -> None:
    """Whether it looks whole or not; ``""``: the system does not say which run this is."""
    write_mark(checkpoint, Mark(2, "b1"))
    assert mend(checkpoint, checkpoint.parent, boot) == [
        "the machine was started anew: batches 3 to 4 may not be durable and are landed again"
    ]
    assert batches(checkpoint) == ([0, 1, 2], [0, 1, 2], [0, 1, 2])
    assert not (checkpoint / "offsets" / ".3.crc").exists()
    assert read_mark(checkpoint) == Mark(2, boot)
    assert mend(checkpoint, checkpoint.parent, boot) == []


def test_when_nothing_was_durable_all_is_taken_back(checkpoint: Path) -> None:
    write_mark(checkpoint, Mark(-1, "b1"))
    (checkpoint / "metadata").write_bytes(b"\0\0\0")
    mend(checkpoint, checkpoint.parent, "b2")
    assert batches(checkpoint) == ([], [], [])
    assert not (checkpoint / "metadata").exists()


def test_what_is_durable_stays_when_all_of_it_is(checkpoint: Path) -> None:
    write_mark(checkpoint, Mark(4, "b1"))
    assert mend(checkpoint, checkpoint.parent, "b2") == []
    assert batches(checkpoint)[0] == [0, 1, 2, 3, 4]


def test_a_later_compacted_log_goes_and_the_earlier_files_stand_for_it(checkpoint: Path) -> None:
    log = checkpoint.parent / "_spark_metadata"
    (log / "4").rename(log / "4.compact")
    (log / "1").rename(log / "1.compact")
    (log / "0").unlink()
    write_mark(checkpoint, Mark(2, "b1"))
    mend(checkpoint, checkpoint.parent, "b2")
    assert sorted(path.name for path in log.iterdir()) == ["1.compact", "2"]


def test_a_log_with_a_hole_is_refused_in_one_line(checkpoint: Path) -> None:
    (checkpoint.parent / "_spark_metadata" / "1").unlink()
    write_mark(checkpoint, Mark(2, "b1"))
    with pytest.raises(ConfigurationError, match="lacks batch 1, which was durable"):
        mend(checkpoint, checkpoint.parent, "b2")
    assert batches(checkpoint)[0] == [0, 1, 2, 3, 4]


def test_a_delta_tables_checkpoint_only_loses_its_empty_files(checkpoint: Path) -> None:
    (checkpoint.parent / "_delta_log").mkdir()
    write_mark(checkpoint, Mark(1, "b1"))
    (checkpoint / "offsets" / "4").write_bytes(b"")
    (checkpoint / "commits" / "3").write_bytes(b"\0" * 30)
    assert len(mend(checkpoint, checkpoint.parent, "b2")) == 2
    assert batches(checkpoint)[:2] == ([0, 1, 2, 3], [0, 1, 2])


def test_this_machine_says_which_run_it_is() -> None:
    assert boot_id() == boot_id()


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_goes_on_over_emptied_files_and_the_table_is_exact(
    drain: Any, queue: Path, tmp_path: Path
) -> None:
    """A checkpoint of no octets does not keep the bridge from starting."""
    table = tmp_path / "table"
    checkpoint = table / "_checkpoint"
    (checkpoint / ".bridge").mkdir(parents=True)
    mend(checkpoint, table, "b1")
    drain(maxRowsPerTrigger=300)
    BatchSync(table, checkpoint).reach(1)
    write_mark(checkpoint, Mark(1, "b1"))
    # Of what came later, some is empty, some is missing, some is whole.
    for path in (
        checkpoint / "offsets" / "4",
        checkpoint / "commits" / "3",
        table / "_spark_metadata" / "3",
        LandedTable(table).files()[2],
    ):
        path.write_bytes(b"")
    (table / "_spark_metadata" / "4").unlink()
    write(queue, messages(1500, 50))
    broken = shutil.copytree(table, tmp_path / "broken")
    assert drain(table=broken).exception() is not None
    assert len(mend(checkpoint, table, "b2")) == 1
    assert drain().exception() is None
    assert LandedTable(table).offsets() == {identity(queue): [(0, 1550)]}
    assert LandedTable(table).duplicates() == []
