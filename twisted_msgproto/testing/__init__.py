"""Tools for people who test a protocol, a subclass, a hook or a sink of their own.

They need neither a network nor a running reactor, and no particular test runner: a test says when
octets move, when time passes, when a batch is safe and when the disk fails.

* :class:`Pair`: a server's and a client's protocol, connected in memory.
* :class:`Clock`: time which passes when the test says so, for any number of pairs.
* :class:`HeldSink`, :class:`SafeSink`: sinks which make batches safe by hand, or at once.
* :func:`splits`: all the ways in which a stream of octets may arrive.
* :class:`BrokenDisk`: a disk which runs full or fails at a given step (``testing.disks``).

The disk needs pyarrow, as the queue does, and is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clock import Clock
from .pairs import MemoryTransport, Pair
from .sinks import HeldSink, SafeSink
from .streams import splits

if TYPE_CHECKING:
    from .disks import BrokenDisk

__all__ = ["BrokenDisk", "Clock", "HeldSink", "MemoryTransport", "Pair", "SafeSink", "splits"]


def __getattr__(name: str) -> Any:
    """Import what needs an extra only when somebody asks for it."""
    if name == "BrokenDisk":
        from .disks import BrokenDisk

        return BrokenDisk
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
