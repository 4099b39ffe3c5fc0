"""After any crash every acknowledged message that is not settled is in its queue.

A message that was settled may come again only if that was after the last group that was written.

The crash test finds what it is there for: each of these bugs loses or repeats a message.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.queue.broker_files.world import NAMES, World
from twisted_msgproto.core.errors import QueueFull
from twisted_msgproto.queue import Disk
from twisted_msgproto.queue.broker_files import names, settled
from twisted_msgproto.queue.broker_files.marks import Marks
from twisted_msgproto.queue.broker_files.overflow import OverflowLog
from twisted_msgproto.queue.broker_files.settled import SettledFile
from twisted_msgproto.queue.broker_files.state import BrokerState

DEAD = NAMES[0].dead


def story(world: World) -> None:
    """Everything that a broker does to its files, more than once."""
    world.publish()
    world.publish()
    world.try_some()
    world.settle_some(0.4)
    world.tend()
    world.move_some(DEAD)
    world.publish()
    world.consume()
    world.trim()  # the log may go, but for what waits
    world.settle_some(0.3)
    world.tend()  # copies it
    world.trim()
    world.publish()
    world.tend()
    world.settle_some(0.6)
    world.move_some(NAMES[1])
    world.tend()
    for _ in range(4):
        world.publish()
        world.settle_some(0.3)
        world.consume()
        world.trim()
        world.tend()
    world.publish(12)
    world.consume()
    world.trim()
    world.tend()
    world.trim()
    world.settle_some(0.5)
    world.tend()


def changes_of(seed: int) -> int:
    world = World(random.Random(seed))
    before = world.disk.changes
    story(world)
    return world.disk.changes - before


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_a_crash_before_any_change_of_the_disk_loses_nothing(power: bool) -> None:
    changes = changes_of(1)
    assert changes > 100
    for cut in range(0, changes, 1 if power else 3):  # a kill loses nothing that was written
        world = World(random.Random(1))
        with world.cut_after(cut):
            story(world)
        world.source = random.Random(cut)
        world.crash(power=power)
        world.publish()
        world.settle_some()
        world.tend()
        world.close()


FAULTS = [
    (operation, number, name)
    for operation in ("write", "sync", "rename", "sync_directory", "open")
    for number in (errno.ENOSPC, errno.EIO)
    for name in ("settled", "broker/log", "names", ".segment", "broker")
]


def years(seed: int, *, faults: bool = False) -> World:
    """Several lives, in which anything happens; each ends anywhere.

    With ``faults`` the disk fails now and then.
    """
    source = random.Random(seed)
    world = World(source, pin=source.choice([0, 1600]))
    deeds = (
        *(world.publish, world.publish, world.settle_some, world.try_some, world.tend, world.tend),
        *(world.consume, world.trim, world.trim),
        lambda: world.move_some(source.choice([DEAD, *NAMES])),
    )
    for _ in range(6):
        with world.cut_after(source.randint(0, 160)):
            for _ in range(20):
                if faults and source.random() < 0.3:
                    operation, number, name = source.choice(FAULTS)
                    world.disk.fail_next(operation, number, name, source.randint(1, 3))
                with contextlib.suppress(OSError, QueueFull):
                    source.choice(deeds)()
        world.disk.mend()
        world.crash(power=source.random() < 0.7)
    return world


@pytest.mark.parametrize("seed", [*range(30), 180])
def test_crash_after_crash_loses_nothing(seed: int) -> None:
    over(years(seed))


COMES_BACK = pytest.param(
    281,
    marks=pytest.mark.xfail(
        strict=True,
        reason="""A segment of copies is removed, the directory's sync fails, and the process is
        killed: its name was only in memory.  The next start finds no copies and forgets their
        marks; its own sync succeeds without the removal, as that of the system may.  A loss of
        power brings the copies back, and they are given again.  Only marks that are kept for
        ever, of all that is not waiting, would tell.""",
    ),
)


@pytest.mark.parametrize("seed", [*range(15), COMES_BACK, 119, 270])
def test_crash_after_crash_on_a_disk_that_fails_loses_nothing(seed: int) -> None:
    over(years(seed, faults=True))


def over(world: World) -> None:
    """Once everything is settled, nothing of it is left."""
    world.settle(sorted(world.there))
    world.tend()
    world.consume()
    world.tidy(3)
    assert len(world.log.firsts) == 1
    assert len(world.copies()) == 1
    world.close()


SEEDS = 60
"""A planted bug shows within so many worlds."""


def replaced_without_sync(disk: Disk, path: str, nbytes: bytes) -> None:
    """A small file which is renamed before its bytes are safe."""
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.new")
    file = disk.open(beside, write=True)
    file.write(0, [nbytes])
    disk.rename(beside, path)
    disk.sync_directory(directory)


def names_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "replace_file", replaced_without_sync)


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
        Marks,
        "live",
        lambda self, ids: len(ids) if self.of(ids[0]) is not None else 0,
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
