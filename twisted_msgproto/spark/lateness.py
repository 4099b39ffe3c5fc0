"""A bridge that was told to end does end, also while something holds its interpreter.

Threads and their deadlines help against what hangs while Python runs.  Delta-rs' file system does
not let it run: it keeps the interpreter's lock while it waits for an object store, so no thread and
no function for signals has its turn for as long as the store says nothing.  A small process beside
the bridge is told of a signal by the operating system itself, and kills a bridge that is late.
Nothing is lost by that: a bridge may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

LATE_SECONDS = 4.5
"""A bridge that still runs this long after a signal is killed: within five seconds it is gone."""

WATCH = """
import os, select, sys, time
reader, pid, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
signals = set(map(int, sys.argv[4:]))
deadline = None
while True:
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        break
    if select.select([reader], [], [], left)[0]:
        numbers = os.read(reader, 64)
        if not numbers:
            sys.exit()
        if deadline is None and signals & set(numbers):
            deadline = time.monotonic() + seconds
os.kill(pid, 9)
print(f"bridge: killed (pid {pid}): it had not ended {seconds} s after it was told to; what it "
      "did not commit lands at the next start", file=sys.stderr, flush=True)
"""
"""This is the program of the process beside the bridge.  Its pipe brings the numbers of signals and
ends with the bridge; it needs nothing but the standard library."""


@contextlib.contextmanager
def killed_when_late(
    signals: tuple[signal.Signals, ...], seconds: float = LATE_SECONDS
) -> Iterator[None]:
    """Has this process killed when it is in this block ``seconds`` after one of ``signals``.

    For the main thread of a process that has functions of its own for these signals.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-I", "-S", "-c", WATCH, str(reader), str(os.getpid()), str(seconds)]
    watch = subprocess.Popen(
        [*command, *(str(int(number)) for number in signals)],
        pass_fds=[reader],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-C is for the bridge
    )
    os.close(reader)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        watch.wait()
