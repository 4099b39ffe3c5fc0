"""A client and a server of ours in one process: a line with buffers, a clock, no sockets."""

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.task import Clock

from tests.tools.lines import FULL_OCTETS, End
from twisted_msgproto.umq import (
    UmqClientFactory,
    UmqServerFactory,
)


def masked(message):
    """A message as a client sends it, with a mask of zeros."""
    octets = message.encode() if isinstance(message, str) else message
    size = len(octets)
    if size < 126:
        head = bytes([0x80 | size])
    else:
        head = b"\xfe" + size.to_bytes(2) if size < 65536 else b"\xff" + size.to_bytes(8)
    return (b"\x81" if isinstance(message, str) else b"\x82") + head + bytes(4) + octets


class Pair:
    """Both ends.  ``pump()`` moves octets until nothing moves; ``reading`` may be held back."""

    def __init__(
        self,
        server=None,
        client=None,
        *,
        clock=None,
        connect=True,
        full=FULL_OCTETS,
        url="ws://server:5048/",
    ):
        self.clock = clock or Clock()
        self.server_factory = server or UmqServerFactory(clock=self.clock)
        self.client_factory = client or UmqClientFactory(url, clock=self.clock)
        self.deaf = set()  # ends which do not read, whatever their protocol wants
        self.ends = {"server": End(5048, full), "client": End(40000, full)}
        a, b = self.ends.values()
        a.other, b.other = b, a
        a.protocol = self.server_factory.buildProtocol(b.address)
        b.protocol = self.client_factory.buildProtocol(a.address)
        self.server, self.client = a.protocol.session, b.protocol.session
        for end in (a, b):
            end.protocol.makeConnection(end)
        if connect:
            self.pump()

    def pump(self, size=None):
        """Move octets (at most ``size`` a read) until everything that can has arrived."""
        moved = True
        while moved:
            moved = self.step("server", size) | self.step("client", size)
            for end in self.ends.values():
                if end.closing and not end.buffer and not end.gone:
                    moved = True
                    end.lost(ConnectionAborted() if end.aborted else ConnectionDone())
                    if not end.other.gone:
                        end.other.lost(ConnectionDone())

    def step(self, name, size=None):
        """One read of what ``name`` has to read; whether there was any."""
        end = self.ends[name]
        source = end.other
        if not source.buffer or end.gone or not end.reading or name in self.deaf or end.closing:
            return False
        data = bytes(source.buffer[: size or len(source.buffer)])
        del source.buffer[: len(data)]
        end.protocol.dataReceived(data)
        source.drained()
        return True

    def raw(self, *messages):
        """Have the client say what our own machine would not."""
        self.ends["server"].protocol.dataReceived(b"".join(map(masked, messages)))
        self.pump()

    def advance(self, seconds):
        """Let time pass, and everything move."""
        self.clock.advance(seconds)
        self.pump()

    def close(self):
        """End it; nothing of it may be left over."""
        self.deaf.clear()
        for end in self.ends.values():
            end.abortConnection()
        for end in self.ends.values():
            end.lost(ConnectionDone())
        assert self.clock.getDelayedCalls() == [], self.clock.getDelayedCalls()

    def cut(self):
        """The network goes away at both ends."""
        for end in self.ends.values():
            end.lost(ConnectionAborted())
