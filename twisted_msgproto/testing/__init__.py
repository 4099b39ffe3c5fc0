"""These tools test a protocol, a subclass, a hook or a sink of your own.

They need neither a network nor a running reactor, and no particular test runner: a test says when
bytes move, when time passes, when a batch is safe and when the disk fails.

* :class:`Pair` connects a server's and a client's protocol in memory.
* :class:`Clock` lets time pass when the test says so, for any number of pairs.
* :class:`HeldSink` and :class:`SafeSink` make batches safe by hand, or at once.
* :func:`splits` cuts a stream of bytes in all the ways it may arrive.
* :class:`BrokenDisk` runs full or fails at the step the test chooses.
"""

from .disks import BrokenDisk
from .pairs import Clock, MemoryTransport, Pair, splits
from .sinks import HeldSink, SafeSink

__all__ = ["BrokenDisk", "Clock", "HeldSink", "MemoryTransport", "Pair", "SafeSink", "splits"]
