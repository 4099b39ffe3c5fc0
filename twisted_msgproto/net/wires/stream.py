"""Byte streams are TCP, TLS and UNIX sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.interfaces import IAddress, ISSLTransport, ITCPTransport

from ..memory import Clock, Ledger
from . import Wire
from .output import Output, flushing_write


class StreamWire(Wire):
    """A Twisted transport as a wire.

    Attributes:
        write: writes bytes; short ones are with the system when it returns.
        output: what the peer has not read yet.
    """

    write: Callable[[bytes], None]  # a function of its own: it is called for every answer
    _answered = False  # whether the transport ends only when the peer has answered that: TLS
    _held_changed: Callable[[], None] | None = None  # on TLS
    _closing = False  # such a transport was asked to end

    def __init__(
        self,
        transport: Any,
        clock: Clock,
        unread_seconds: float,
        read_bytes: int,
        stalled: Callable[[], None],
        changed: Callable[[bool], None],
        ledger: Ledger | None = None,
        held: Callable[[], None] | None = None,
    ) -> None:
        """Make a wire; one read returns at most ``read_bytes``, and ``held()`` is called when
        :attr:`held` changes.  :class:`Output` describes the other arguments.
        """
        self._transport = transport
        tell_rest = getattr(transport, "tellRest", None)
        if tell_rest is not None:  # TLS, perhaps behind a proxy
            self._held_changed = held
            tell_rest(self._rests)
        self.output: Output = Output(
            transport, clock, unread_seconds, stalled, changed=changed, ledger=ledger
        )
        self.write = flushing_write(transport, self.output.write)
        self.output.readAtMost(read_bytes)
        if ISSLTransport.providedBy(transport):
            # TLS does not end before its producer has gone, and ours stays as long as the
            # connection: an application that asks the transport for the end asks us.  What its
            # hook leads to is written first, as on TCP.
            closing = partial(clock.callLater, 0, self.close, False)
            transport.loseConnection = closing  # type: ignore[method-assign]
            self._answered = True
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)

    def _rests(self, nbytes: int) -> None:
        self.held = nbytes
        if self._held_changed is not None:
            self._held_changed()

    def readAtMost(self, nbytes: int) -> None:
        """From now on, one read returns at most ``nbytes``; TLS reads as it is used to."""
        self.output.readAtMost(nbytes)

    def watch(self) -> None:
        """Begin to observe whether the peer reads.

        TLS writes nothing before its hand-shake is done; that must not count as a peer that does
        not read, so call this afterwards.
        """
        self.output.watch()

    def close(self, fault: bool) -> None:
        """Let out what was written, then close the transport.

        TLS is read until it has ended: it waits for the peer's last words, and nobody else does.
        """
        if self._answered and not self._closing:
            self._closing = True
            self._transport.resumeProducing()
        self.output.close()

    def abort(self) -> None:
        self._transport.abortConnection()

    def established(self) -> None:
        """A byte stream has no messages that could be larger now."""

    def pauseProducing(self) -> None:
        if not self._closing:
            self._transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._transport.resumeProducing()

    @property
    def full(self) -> bool:  # type: ignore[override]
        return self.output.full

    @property
    def waiting(self) -> int:
        return self.output.nbytes

    def takenAt(self, now: float) -> float:
        return self.output.takenAt(now)

    def boundWaiting(self, nbytes: float) -> None:
        self.output.most_waiting = nbytes

    def getPeer(self) -> IAddress:
        address: IAddress = self._transport.getPeer()
        return address

    def getHost(self) -> IAddress:
        address: IAddress = self._transport.getHost()
        return address

    def stop(self) -> None:
        self.output.stop()
