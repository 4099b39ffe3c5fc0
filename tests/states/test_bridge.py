"""Planted bugs of queue and bridge that need certain steps in a row: the model must see each."""

from __future__ import annotations

import errno

import pytest

from tests.states.bugs import releases_before_it_commits, start_believes_a_sync
from tests.states.landing import Site
from tests.states.pairs import Wrong


def started(segment_octets: int = 600) -> Site:
    site = Site(segment_octets, rows_max=1000)
    site.start_gateway()
    site.start_bridge()
    site.append([2])
    return site


def die_while_landing() -> None:
    for changes in range(1, 8):
        site = started()
        site.cut(site.table_disk, changes, lambda site=site: site.run_bridge(1))  # type: ignore[misc]
        site.start_bridge()
        site.finish()


def fail_at_the_start_after_dying() -> None:
    for changes in range(1, 5):
        # Room for both groups: a start copies a segment in which nothing was published yet.
        site = started(segment_octets=6000)
        site.cut(site.queue_disk, changes, lambda site=site: site.append([2]))  # type: ignore[misc]
        if site.log is None:
            site.queue_disk.fail_next("sync", errno.EIO, ".segment")
            site.start_gateway()
        site.finish()


def test_a_bridge_that_releases_before_it_commits_is_caught() -> None:
    die_while_landing()
    with releases_before_it_commits(), pytest.raises(Wrong, match="released to"):
        die_while_landing()


def test_a_start_that_believes_the_second_sync_is_caught() -> None:
    fail_at_the_start_after_dying()
    with start_believes_a_sync(), pytest.raises(Wrong, match="damaged"):
        fail_at_the_start_after_dying()
