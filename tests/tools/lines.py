"""The older names of :mod:`twisted_msgproto.testing.pairs`."""

from twisted_msgproto.testing.pairs import FULL_OCTETS
from twisted_msgproto.testing.pairs import MemoryTransport as End
from twisted_msgproto.testing.pairs import Pair as Line

__all__ = ["FULL_OCTETS", "End", "Line"]
