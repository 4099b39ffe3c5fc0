"""These tools test a protocol, a subclass, a hook or a sink of your own.

They need neither a network nor a running reactor, and no particular test runner: a test says when
bytes move, when time passes, when a batch is safe and when the disk fails.

* :class:`Pair` connects a server's and a client's protocol in memory.
* :class:`Clock` lets time pass when the test says so, for any number of pairs.
* :class:`HeldSink` and :class:`SafeSink` make batches safe by hand, or at once.
* :func:`splits` cuts a stream of bytes in all the ways it may arrive.
* :class:`BrokenDisk` runs full or fails at the step the test chooses.

The disk needs pyarrow, as the queue does, so it is imported only when it is used.
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
    """Import the disk when it is first used, since it needs the extra ``queue``."""
    if name == "BrokenDisk":
        from .disks import BrokenDisk

        return BrokenDisk
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
