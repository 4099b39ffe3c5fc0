"""The sinks of :mod:`twisted_msgproto.testing`; ``safe`` is the older name of ``release``."""

from __future__ import annotations

from twisted_msgproto import testing
from twisted_msgproto.testing import SafeSink


class HeldSink(testing.HeldSink):
    """Keeps batches and their Deferreds until the test says that they are safe or never will be."""

    safe = testing.HeldSink.release


__all__ = ["HeldSink", "SafeSink"]
