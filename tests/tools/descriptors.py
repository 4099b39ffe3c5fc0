"""Open files and accepted connections, as the operating system counts them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DESCRIPTORS = "/proc/self/fd"


@contextmanager
def no_file_stays_open() -> Iterator[None]:
    """Fail if this process has other open files afterwards than before; skip without Linux."""
    if not os.path.isdir(DESCRIPTORS):
        pytest.skip(f"{DESCRIPTORS} is missing: Linux counts open files there")
    before = sorted(os.listdir(DESCRIPTORS))
    yield
    assert sorted(os.listdir(DESCRIPTORS)) == before


SPARE_FILES = 200
"""A process opens this many files beside its connections."""


def need_files(count: int) -> None:
    """Let this process and those it starts open this many files; fail if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.fail(f"{count} open files are needed, ulimit -n allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def accepted(port: int) -> int:
    """Return how many connections to this port a process has accepted: see proc(5)."""
    found = 0
    for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:]):
        state, inode = fields[3], fields[9]
        # Established; what still waits to be accepted belongs to no process, and has no inode.
        if fields[1].endswith(f":{port:04X}") and state == "01" and inode != "0":
            found += 1
    return found
