"""Lumberjack's machines: bytes in, events out; no I/O, no clock.

A :class:`Reader` receives events, a :class:`Writer` sends them.  The others here are what they
return, beside :class:`~twisted_msgproto.core.errors.Fault`.
"""

from ..terms import (
    DataReceived,
    JsonReceived,
    KeptAlive,
    PartAcknowledged,
    WindowAcknowledged,
)
from .receiving import Reader
from .sending import Writer

__all__ = [
    "DataReceived",
    "JsonReceived",
    "KeptAlive",
    "PartAcknowledged",
    "Reader",
    "WindowAcknowledged",
    "Writer",
]
