"""Sinks for tests: safe when told to, or counting."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from twisted_msgproto.net.sink import IMessageSink


@implementer(IMessageSink)
class HeldSink:
    """Keeps batches and their Deferreds until the test says that they are safe or never will be."""

    def __init__(self):
        self.batches = []
        self.waiting = []

    def put(self, batch):
        deferred = Deferred()
        self.batches.append(batch)
        self.waiting.append(deferred)
        return deferred

    def safe(self, count=None):
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.pop(0).callback(None)

    def fail(self, error):
        self.waiting.pop(0).errback(error)

    @property
    def messages(self):
        return [message for batch in self.batches for message in batch]


@implementer(IMessageSink)
class SafeSink:
    """Everything is safe at once."""

    def __init__(self):
        self.batches = []

    def put(self, batch):
        self.batches.append(batch)
        return succeed(None)

    @property
    def messages(self):
        return [message for batch in self.batches for message in batch]
