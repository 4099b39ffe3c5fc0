"""A gateway keeps the memory which it has used."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from twisted.internet import reactor

from twisted_msgproto.net import gateway

READS = """
import os, resource, sys, tempfile
from twisted_msgproto.net.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

came = tempfile.TemporaryFile()
came.write(bytes(600 << 10))
came.flush()

def read():
    # As a socket is read: room for 1 MiB, of which only 600 KiB are used.
    return os.pread(came.fileno(), 1 << 20, 0)

for _ in range(8):
    read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(setting: str) -> int:
    """How many pages the kernel had to give to a process which reads a hundred times."""
    done = subprocess.run(
        [sys.executable, "-c", READS, setting],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back so eagerly"
)
def test_a_process_which_keeps_its_memory_needs_no_new_pages_for_each_read() -> None:
    """A read touches 150 pages."""
    assert faults("default") > 100 * 100
    assert faults("keep") < 100


def test_a_gateway_keeps_its_memory_when_it_starts_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever makes services in a process of another kind is left alone until he starts one."""
    kept: list[bool] = []
    monkeypatch.setattr(gateway, "keep_freed_memory", lambda: kept.append(True))
    service = gateway.Gateway(reactor)
    assert kept == []
    service.startService()
    assert kept == [True]
    service.stopService()


LASTING = """
import gc, sys
from twisted_msgproto.net.memory import share_processor, spare_lasting_objects

share_processor()
assert sys.getswitchinterval() <= 0.001

before = len(gc.get_objects())
spare_lasting_objects()
print(gc.get_freeze_count() > before // 2, len(gc.get_objects()) < before // 2)
"""


def test_the_collector_passes_over_what_was_there_at_the_start__NB_07() -> None:
    """NB-07: a full collection would look at it all in the middle of some turn."""
    ended = subprocess.run(
        [sys.executable, "-c", LASTING], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "True True\n"
