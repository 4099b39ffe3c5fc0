"""The older names of :mod:`twisted_msgproto.testing.pairs`."""

from twisted_msgproto.testing import MemoryTransport as End
from twisted_msgproto.testing import Pair as Line
from twisted_msgproto.testing.pairs import FULL_OCTETS

__all__ = ["FULL_OCTETS", "End", "Line"]
