"""A gateway keeps the memory which it has used."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from twisted.internet import reactor

from twisted_msgproto.net import gateway, memory

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


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert memory.keep_freed_memory() is False


THREAD = """
import threading
from twisted_msgproto.net.memory import (
    FEW_OCTETS,
    allocated_by_all,
    allocated_by_threads,
    keep_freed_memory,
)

keep_freed_memory()
before = allocated_by_all()
mine = [bytes(100_000) for _ in range(2_000)]
assert allocated_by_threads() == 0, "what the main thread has allocated"
assert 200e6 < allocated_by_all() - before < 203e6, "what the main thread has allocated as well"
made, leave = threading.Event(), threading.Event()

def allocate(count, free):
    theirs = [bytes(100_000) for _ in range(count)]
    made.set()
    leave.wait()
    del theirs[:free]
    made.set()
    ended.wait()

ended = threading.Event()
threads = [threading.Thread(target=allocate, args=args) for args in ((2_000, 1_000), (100, 0))]
for thread in threads:
    made.clear()
    thread.start()
    made.wait()
assert 200e6 < allocated_by_threads() < 203e6, allocated_by_threads()
assert 210e6 < allocated_by_threads(0) < 214e6, "threads with little count, too"
assert 410e6 < allocated_by_all() - before < 417e6, allocated_by_all()
made.clear()
leave.set()
made.wait()
while not 100e6 < allocated_by_threads() < 103e6:
    pass
assert 310e6 < allocated_by_all() - before < 317e6, allocated_by_all()
ended.set()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc tells of each thread")
def test_what_other_threads_have_worked__NB_02() -> None:
    """What this thread does is not counted, and what another one does is."""
    before, began = memory.worked_by_threads(), time.thread_time()
    while time.thread_time() < began + 0.05:
        pass
    assert memory.worked_by_threads() - before < 0.05
    other = threading.Thread(target=sum, args=(range(3_000_000),))
    other.start()
    other.join()
    assert memory.worked_by_threads() - before > 0.01


def test_what_other_threads_have_allocated() -> None:
    """NB-02: neither what the main thread has, nor what was freed, nor of threads with little."""
    subprocess.run([sys.executable, "-c", THREAD], cwd=Path(__file__).parents[2], check=True)


def test_another_c_library_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """NB-02"""
    monkeypatch.setattr(memory, "_own_library", object)
    assert memory.allocated_by_threads() is None
    assert memory.allocated_by_all() is None


FREED = """
import os
from twisted_msgproto.net.memory import keep_freed_memory, return_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

assert keep_freed_memory()
pieces = [b"x" * (4 << 20) for _ in range(60)]
kept = pieces[::10]
full = resident()
del pieces
before = resident()
assert return_freed_memory()
print(full - before, before - resident())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is free between other pieces"
)
def test_what_is_free_between_other_pieces_is_returned_when_asked__NB_02() -> None:
    """240 MiB were in use, and 24 still are; the end of the heap may keep 64."""
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True)
    before, asked = map(int, done.stdout.split())
    assert before <= 64 < 140 < asked


def test_a_gateway_measures_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """NB-02: and nobody measures another program's, whose threads hold what they like."""
    monkeypatch.setattr(gateway, "keep_freed_memory", lambda: True)
    service = gateway.Gateway(reactor)
    assert service.budget.allocated() is None
    assert service.budget.allocated_at_most() is None
    assert service.budget.worked() is None
    service.startService()
    assert service.budget.allocated is memory.allocated_by_threads
    assert service.budget.allocated_at_most is memory.allocated_by_all
    assert service.budget.worked is memory.worked_by_threads
    returning: list[object] = []
    monkeypatch.setattr(reactor, "callInThread", returning.append)
    service.budget.release()
    assert returning == [memory.return_freed_memory]
    service.stopService()


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
