"""The queues of a gateway's processes stand below one directory, in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

from twisted_msgproto.queue.below import is_queue, numbered, queue_of, queues_at
from twisted_msgproto.queue.disk import IDENTITY_FILE


def made(directory: str | Path) -> str:
    """A directory that passes for a queue."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    (Path(directory) / IDENTITY_FILE).touch()
    return str(directory)


def test_queues_are_in_the_order_of_numbers_and_nothing_else_is_one(tmp_path: Path) -> None:
    wanted = [made(queue_of(tmp_path, number)) for number in (0, 2, 10)]
    for name in ("01", "x", "10000"):
        made(tmp_path / name)
    (tmp_path / "3").mkdir()
    assert numbered(tmp_path) == wanted
    assert queues_at(tmp_path) == wanted
    assert not is_queue(tmp_path)


def test_a_queue_stands_for_itself_and_for_those_below_it(tmp_path: Path) -> None:
    below = made(queue_of(tmp_path, 1))
    assert queues_at(made(tmp_path)) == [str(tmp_path), below]


def test_what_is_no_queue_stands_for_itself(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        assert (numbered(place), queues_at(place)) == ([], [str(place)])
