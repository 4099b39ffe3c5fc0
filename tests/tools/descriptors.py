"""Whether files stay open, as the operating system counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
