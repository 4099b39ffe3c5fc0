"""The crash test finds what it is there for: each of these bugs loses or repeats a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.queue.broker_files.test_crashes import years
from twisted_msgproto.queue import Disk
from twisted_msgproto.queue.broker_files import names, settled
from twisted_msgproto.queue.broker_files.marks import Marks
from twisted_msgproto.queue.broker_files.overflow import OverflowLog
from twisted_msgproto.queue.broker_files.settled import SettledFile
from twisted_msgproto.queue.broker_files.state import BrokerState

SEEDS = 60
"""A planted bug shows within so many worlds."""


def replaced_without_sync(disk: Disk, path: str, octets: bytes) -> None:
    """A small file which is renamed before its octets are safe."""
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.new")
    file = disk.open(beside, write=True)
    file.write(0, [octets])
    disk.rename(beside, path)
    disk.sync_directory(directory)


def names_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "replace_whole", replaced_without_sync)


def settled_without_sync(patch: pytest.MonkeyPatch) -> None:
    whole = SettledFile.write

    def write(self: Any, group: Any, marks: Any) -> None:
        if self._file is not None:
            self._file.sync = lambda: None
        whole(self, group, marks)

    patch.setattr(SettledFile, "write", write)


def gone_before_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerState, "_free", lambda self, first: True)


def copies_that_are_no_longer_needed_come_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OverflowLog, "spans", lambda self: [chunk.span for chunk in self])


def nothing_is_settled_of_what_was_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Marks, "live", lambda self, places: len(places) if self.of(places[0]) is not None else 0
    )
    patch.setattr(OverflowLog, "current", lambda self, frame: True)


def moves_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settled, "_moved", lambda moved: b"")


def groups_are_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settled, "taken", lambda groups, marks: 0)


def the_log_is_taken_for_done_before_it_was_read(patch: pytest.MonkeyPatch) -> None:
    scan = BrokerState._scan

    def without_count(self: Any, found: Any, first: int) -> None:
        scan(self, found, first)
        self._marks.begun(first).outstanding = 0

    patch.setattr(BrokerState, "_scan", without_count)


BUGS = [
    names_without_sync,
    settled_without_sync,
    gone_before_copied,
    copies_that_are_no_longer_needed_come_again,
    nothing_is_settled_of_what_was_copied,
    moves_are_forgotten,
    groups_are_not_read,
    the_log_is_taken_for_done_before_it_was_read,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in range(SEEDS):
        try:
            years(seed)
            years(seed, faults=True)
        except (AssertionError, KeyError):
            return
    pytest.fail(f"{SEEDS} worlds did not show it")
