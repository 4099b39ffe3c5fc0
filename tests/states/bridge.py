"""The queue and the bridge: what applications, disks, machines and operators may do to both."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.states.landing import DIRECTORY, Site
from twisted_msgproto.queue.format import segment_name

GROUPS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
"""Batches of a group, by their messages."""

CHANGES = st.integers(0, 8)
"""Changes of a disk before a process ends."""

SEEDS = st.integers(0, 2**16)

QUEUE_FAULTS = [
    (step, errno.EIO, name)
    for step in ("write", "sync", "truncate", "rename", "sync_directory")
    for name in ("", ".segment")
]

TABLE_FAULTS = [
    (step, number)
    for step in ("write", "sync", "link", "sync_directory")
    for number in (errno.EIO, errno.ENOSPC)
]


def _has_log(self: Landing) -> bool:
    return self.site.log is not None


def _has_no_log(self: Landing) -> bool:
    return self.site.log is None


def _has_published(self: Landing) -> bool:
    """The newest segment ends with rows, and the file ``end`` says so.

    Where the disk was full, a write that failed or a start may have left bytes behind them that
    are no record.
    """
    log, disk = self.site.log, self.site.queue_disk
    if log is None or any(line.startswith("left ") for line in log.recovery.lines):
        return False
    paths = [f"{DIRECTORY}/{segment_name(first)}" for first in log.firsts]
    if sum(len(disk.bytes_of(path)) for path in paths) != log.nbytes:
        return False
    return log.end > log.firsts[-1] and not log.publish_failures


def _has_bridge(self: Landing) -> bool:
    return self.site.bridge is not None


def _has_bridge_and_light(self: Landing) -> bool:
    """An operator asks nothing of a queue whose gateway has not started since a power loss."""
    return _has_bridge(self) and not self.site.dark


class Landing(RuleBasedStateMachine):
    """See the module; the model is in :class:`~tests.states.landing.Site`."""

    site: Site

    @initialize(segment=st.sampled_from([600, 2000, 10**6]), rows=st.sampled_from([1, 3, 1000]))
    def begin(self, segment: int, rows: int) -> None:
        self.site = Site(segment, rows)
        self.site.start_gateway()
        self.site.start_bridge()

    # ── the gateway ─────────────────────────────────────────────────────────────────────────────

    @precondition(_has_log)
    @rule(counts=GROUPS)
    def append(self, counts: list[int]) -> None:
        self.site.append(counts)

    @precondition(_has_log)
    @rule(counts=GROUPS, changes=st.integers(0, 6), sync_fails=st.booleans())
    def die_while_appending(self, counts: list[int], changes: int, sync_fails: bool) -> None:
        """The next start may fail, too."""
        self._cut_queue(changes, lambda: self.site.append(counts))
        if self.site.log is None and sync_fails:
            self.start_gateway(sync_fails)

    @precondition(_has_log)
    @rule(ending=st.booleans())
    def trim(self, ending: bool) -> None:
        self.site.trim(ending=ending)

    @precondition(_has_log)
    @rule(changes=st.integers(0, 6))
    def die_while_trimming(self, changes: int) -> None:
        self._cut_queue(changes, lambda: self.site.trim(ending=True))

    @precondition(_has_log)
    @rule()
    def kill_gateway(self) -> None:
        self.site.kill_gateway()

    @precondition(_has_no_log)
    @rule(sync_fails=st.booleans())
    def start_gateway(self, sync_fails: bool) -> None:
        if sync_fails:
            self.site.queue_disk.fail_next("sync", errno.EIO, ".segment")
        self.site.start_gateway()

    @precondition(_has_no_log)
    @rule(changes=CHANGES)
    def die_while_starting(self, changes: int) -> None:
        self._cut_queue(changes, self.site.start_gateway)

    @precondition(_has_published)
    @rule(nbytes=st.integers(1, 40))
    def destroy_published_rows(self, nbytes: int) -> None:
        self.site.destroy(nbytes)

    def _cut_queue(self, changes: int, work: Callable[[], None]) -> None:
        self.site.cut(self.site.queue_disk, changes, work)

    # ── the bridge ──────────────────────────────────────────────────────────────────────────────

    @precondition(_has_bridge)
    @rule(batches=st.integers(1, 3))
    def land(self, batches: int) -> None:
        self.site.run_bridge(batches)

    @precondition(_has_bridge)
    @rule(changes=CHANGES)
    def die_while_landing(self, changes: int) -> None:
        """There is something to land, where the gateway is up."""
        site = self.site
        if site.log is not None:
            site.append([1])
        site.cut(site.table_disk, changes, lambda: site.run_bridge(2))

    @precondition(_has_bridge)
    @rule()
    def release(self) -> None:
        self.site.send_marks()

    @precondition(_has_bridge)
    @rule()
    def kill_bridge(self) -> None:
        self.site.bridge = None

    @precondition(lambda self: self.site.bridge is None)
    @rule()
    def start_bridge(self) -> None:
        self.site.start_bridge()

    @precondition(_has_bridge_and_light)
    @rule(share=st.sampled_from([0.0, 0.5, 1.0]))
    def reset(self, share: float) -> None:
        self.site.reset(share)

    # ── machines and disks ──────────────────────────────────────────────────────────────────────

    @rule(seed=SEEDS, which=st.sampled_from(["queue", "table", "both"]))
    def lose_power(self, seed: int, which: str) -> None:
        source = random.Random(seed)
        self.site.lose_power(source, queue=which != "table", table=which != "queue")

    @rule(fault=st.sampled_from(QUEUE_FAULTS))
    def queue_disk_fails(self, fault: tuple[str, int, str]) -> None:
        self.site.queue_disk.fail_next(*fault)

    @rule(fault=st.sampled_from(TABLE_FAULTS))
    def table_disk_fails(self, fault: tuple[str, int]) -> None:
        self.site.table_disk.fail_next(*fault)

    @rule(room=st.integers(0, 800), queue=st.booleans())
    def fill_disk(self, room: int, queue: bool) -> None:
        disk = self.site.queue_disk if queue else self.site.table_disk
        disk.capacity = disk.used() + room

    @rule()
    def mend_disks(self) -> None:
        self.site.queue_disk.mend()
        self.site.table_disk.mend()

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    @invariant()
    def nothing_is_lost_or_ahead(self) -> None:
        self.site.check()

    def teardown(self) -> None:
        if hasattr(self, "site"):
            self.site.finish()
