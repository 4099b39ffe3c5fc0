"""A process which was told to end ends, whatever holds its interpreter."""

from __future__ import annotations

import signal
import sys

from tests.tools.processes import Launcher

BRIDGE = """
import ctypes, signal, sys, time
from twisted_msgproto.spark.lateness import killed_when_late
wishes = []
signal.signal(signal.SIGTERM, lambda *_: wishes.append(1))
signal.signal(signal.SIGUSR1, lambda *_: None)
with killed_when_late((signal.SIGTERM,), float(sys.argv[2])):
    print("ready", flush=True)
    while sys.argv[1] == "held":  # again: a signal ends the call, where delta-rs goes on waiting
        ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock, as delta-rs does
    while not wishes:
        time.sleep(0.01)
print("ended in order", flush=True)
"""


def test_a_bridge_whose_interpreter_is_held_ends_after_a_signal__TB_10(launch: Launcher) -> None:
    """TB-10: SIGTERM waited for an object store which did not answer."""
    process = launch.command([sys.executable, "-c", BRIDGE, "held", "0.5"])
    process.line("ready")
    process.signal(signal.SIGUSR1)
    process.signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGKILL
    process.line(r"bridge: killed \(pid \d+\): it had not ended 0.5 s after")


def test_a_bridge_which_ends_in_time_is_left_alone(launch: Launcher) -> None:
    process = launch.command([sys.executable, "-c", BRIDGE, "free", "600"])
    process.line("ready")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.output.endswith("ended in order")
