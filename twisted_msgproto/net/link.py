"""A link connects one machine with its wire; every protocol uses it.

A machine decides everything about its protocol; a wire moves bytes or frames.  The link between
them follows the machine's events, writes once for everything that happened, keeps one timer, and
ends the connection.  A protocol maps each event to the method for it in ``actions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any, ClassVar

from twisted.internet.interfaces import ISSLTransport
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger, LogLevel
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure

from ..core.connection import Connection, WorkLost
from ..core.errors import (
    ConnectionClosed,
    Fault,
    PeerError,
    ProtocolViolation,
    TimedOut,
    unquoted,
)
from ..core.reasons import TLS_HERE, speaks_tls
from .counters import CounterPaths
from .deferreds import guarded
from .factory import SessionFactory, host_of, peer_name, tls_refusal
from .logs import NEWS
from .peers import is_address
from .turns import (
    FIRST_READ_BYTES,
    PARTIAL_READ_BYTES,
    READ_BYTES_MIN,
    TIMED_BYTES,
    TURN_SECONDS,
    next_read_bytes,
)
from .wires import Wire
from .wires.stream import StreamWire

Actions = Mapping[type, Callable[[Any, Any], None]]


class Link:
    """One connection's machine and wire, for the protocol that owns it.

    Attributes:
        protocol: what Twisted and the application see of this side; it has the hooks.
        factory: sink, limits, clock and counters come from it.
        machine: decides everything; its ``snapshot()`` tells where the connection stands.
        wire: what the machine's outputs are written to.
        session: the public name of this session.
        peer: the peer's transport address as text.
        address: the peer's host alone; empty where there is none.
        loss: what the transport said when the connection was lost; None while it lives.
        lastHeard: when the peer was heard last, in seconds of the clock.
        closeReason: why the connection has ended, or is being ended by this side; None while it
            lives.  Those hear it who wait for something of this connection.
    """

    log: ClassVar[Logger]
    actions: ClassVar[Actions] = {}
    """Each event of the machine, by its class, with the method that follows it."""

    answerEvents: ClassVar[frozenset[type]] = frozenset()
    """These events answer our own calls: they are followed after our own end as well."""

    counted: ClassVar[CounterPaths | None] = None
    """This says where the counters of a connection stand; without it none are asked for."""

    readBytes: int = 64 << 10
    """One read returns at most this many bytes, and fewer of what is slow to process."""

    faultEnds: ClassVar[str] = "closed"
    """What the line in the log says a peer's fault led to."""

    readsWhileDraining: ClassVar[bool] = False
    """If true, the peer's answers are still wanted after this side has ended."""

    readsWhileUnread: ClassVar[bool] = False
    """What we write does not answer the peer: it is read although it does not read us, or both
    sides could wait for each other."""

    turns: ClassVar[tuple[str, ...]] = ("dataReceived", "received", "_resume", "_followAlone")
    """In calls of these methods a turn of the reactor is spent on the peer's input."""

    timeFaults: ClassVar[frozenset[str]] = frozenset()
    """These are the reasons of faults that mean that the peer did not answer in time."""

    protocol: Any
    factory: SessionFactory
    transport: Any = None
    machine: Connection[Any, Any, Any]
    wire: Wire
    session: str
    peer: str
    address: str
    lastHeard: float
    loss: Failure | None = None
    closeReason: Exception | None = None

    # What most connections never change stands here: an idle one weighs less.
    _ended = False  # the wire was asked to end, or has
    _gone = False  # the connection is lost
    _established = False  # the session stands
    _inputEnded = False  # the peer has shut its sending side
    _pausedFor: frozenset[str] = frozenset()  # reading is
    _held = 0  # bytes of incomplete messages
    _grown_at = 0.0  # when these became more
    _readAtMost = FIRST_READ_BYTES  # bytes that one read may return now
    _resumption: Any = None  # the call that goes on with what is unfinished
    _handshake: Any = None  # the call that ends a TLS hand-shake that takes too long
    _timer: Any = None  # the call that advances the machine
    _timerAt = inf  # when it comes

    def __init__(self, protocol: Any) -> None:
        """``protocol`` has its ``factory``; nothing happens before :meth:`connect`."""
        self.protocol = protocol
        self.factory = protocol.factory

    # ── what a protocol adds ────────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Connection[Any, Any, Any]:
        """Return a new machine for this side."""
        raise NotImplementedError

    def transportSecured(self) -> None:
        """The connection can be used: on TLS its hand-shake is done.  Called once."""

    def workLost(self, work: list[Any], reason: Failure) -> None:
        """The connection is gone, and ``work`` of ours was not answered."""

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone; called once, after the machine was told."""

    def _guarded(self, hook: Callable[..., object], *arguments: object) -> None:
        guarded(self.log, self.peer, hook, *arguments)

    def outputChanged(self, paused: bool) -> None:
        """The peer does not read what we write (True), or reads again."""
        if not paused:
            self.resumeReading("unread-output")
        elif not self.readsWhileUnread:
            self.pauseReading("unread-output")

    def roomFor(self, nbytes: int) -> None:
        """A verb is going to write ``nbytes`` to a peer that does not read: raise LimitExceeded if
        too much waits.  That is for clients; a server's output is counted in the ledger.
        """

    def outputDrained(self) -> None:
        """The peer has read all that waited for it."""

    def takenAt(self, now: float) -> float:
        """Return when the peer took something of ours last; 0.0 where nobody can tell."""
        output = self.wire.output
        return 0.0 if output is None else float(output.takenAt(now))

    def arrivedAt(self, now: float) -> float:
        """Return when a part of an unfinished message came last; 0 if none did."""
        return self._grown_at

    def establish(self) -> None:
        """The session stands: the wire is told."""
        self._established = True
        self.wire.established()

    # ── the beginning ───────────────────────────────────────────────────────────────────────────

    def connect(self, transport: Any) -> None:
        """The connection is made: begin."""
        self._prepare(transport)
        self._follow(self.machine.connection_made(self._now()))
        self.tellConnected()
        self._begin()

    def tellConnected(self) -> None:
        """Tell the application that there is a connection, before it hears anything else."""
        self._guarded(self.protocol.connectionMade)

    def _prepare(self, transport: Any) -> None:
        factory, clock = self.factory, self.factory.clock
        self.transport = transport
        address = transport.getPeer()
        self.peer = peer_name(address)
        self.address = str(getattr(address, "host", ""))
        self.session = next(factory.sessionNames)
        if factory.turnWatch is not None:
            whose = {"peer": self.peer, "host": self.address}
            factory.turnWatch.measure(self, *self.turns, **whose, transport=transport)
        self._now = clock.seconds
        self.lastHeard = self._now()
        self._countersChanged = factory.counters.changed
        self._inputIgnored = False  # no further arrival is followed
        self._following = False  # what happens meanwhile is settled at the end
        self.wire = transport if isinstance(transport, Wire) else StreamWire(self)
        self._write = self.wire.write
        self.machine = self.makeMachine()
        factory.connectionOpened(self.protocol, self.address)
        if self.counted is not None:
            factory.counters.join(self, self.counted)
        if isinstance(self.wire, StreamWire):
            received = self.dataReceived
            secured = isinstance(transport, TLSMemoryBIOProtocol)
            if isinstance(transport.transport if secured else transport, ProtocolWrapper):
                # the PROXY protocol
                received = partial(self._announced, received)
            self.protocol.dataReceived = received  # found on the instance: no call in between

    def _begin(self) -> None:
        """The application knows of the connection, and may have ended it."""
        transport, clock = self.transport, self.factory.clock
        if self._ended:
            return
        if ISSLTransport.providedBy(transport) and not isinstance(transport, Wire):
            seconds = self.factory.limits["handshake"]
            self._handshake = clock.callLater(seconds, self._handshakeExpired)
        else:
            self._secure()

    def handshakeCompleted(self) -> None:
        """TLS stands."""
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
            self._secure()

    def _secure(self) -> None:
        if isinstance(self.wire, StreamWire):
            self.wire.output.watch()
        self.transportSecured()

    def _handshakeExpired(self) -> None:
        self._handshake = None
        self.setCloseReason(TimedOut("no TLS hand-shake in time"))
        if not self._ended:
            self._logFault(Fault("handshake", "no TLS hand-shake in time"))
        self._abort()

    # ── what comes in ───────────────────────────────────────────────────────────────────────────

    def dataReceived(self, data: bytes) -> None:
        """Bytes came from a byte stream."""
        if not self._ended:
            self.lastHeard = now = self._now()
            nbytes = len(data)
            if nbytes < self._readAtMost:
                self._follow(self.machine.receive(data, now))
                # Asking for CPU time twice takes as long as processing many bytes, so the clock
                # has to do.  It also counts what other processes took from us: then the next reads
                # are short and full, so their CPU time is measured, and they may grow again.
                took = self._now() - now
                if took > TURN_SECONDS and nbytes >= TIMED_BYTES:
                    self._setPace(nbytes, took)
            else:
                began = self.factory.spent()
                self._follow(self.machine.receive(data, now))
                self._setPace(nbytes, self.factory.spent() - began)

    def _announced(self, received: Callable[[bytes], None], data: bytes) -> None:
        """Bytes came behind those with which a proxy has said whose connection it is."""
        self.protocol.dataReceived = received
        self._lookWhose()
        if not self._ended and not self.factory.addressKnown(self.protocol, self.address):
            self.setCloseReason(ConnectionClosed("its address has too many connections"))
            self._abort()
        received(data)

    def _lookWhose(self) -> None:
        """Take the client's address once a proxy has said it; it has to be one: it goes into the
        log, and into what is stored.
        """
        address = self.transport.getPeer()
        host = host_of(address)
        if is_address(host):
            self.peer, self.address = peer_name(address), host

    def _setPace(self, nbytes: int, took: float) -> None:
        partial = self._held >= nbytes and not self.machine.unfinished
        most = max(PARTIAL_READ_BYTES if partial else self.readBytes, FIRST_READ_BYTES)
        most = next_read_bytes(nbytes, took, READ_BYTES_MIN, most)
        if most != self._readAtMost:
            self._readAtMost = most
            self.wire.output.readAtMost(most)

    def received(self, inputs: Any) -> None:
        """Inputs of one read came from a wire."""
        if not self._ended:
            self.lastHeard = now = self._now()
            self._follow(self.machine.receive(inputs, now))

    def readConnectionLost(self) -> None:
        """The peer has shut its sending side: answer what came, then close."""
        self._inputEnded = True
        if not self._ended and not self.machine.unfinished:
            self._follow(self.machine.ended(self._now()))

    def writeConnectionLost(self) -> None:
        """Nobody reads what we write any more."""
        self._abort()

    # ── events, and what they led to ────────────────────────────────────────────────────────────

    def _follow(self, events: Iterable[Any]) -> None:
        """Follow events in order, then write, and set timer and pause, once.

        After our own end, or the loss of a batch, no further arrival is followed: what is stored of
        a session has no gap.  Answers to our own calls still are.
        """
        actions, within = self.actions, self._following
        self._following = True
        try:
            for event in events:
                kind = type(event)
                if not self._inputIgnored or kind in self.answerEvents:
                    actions[kind](self, event)
        finally:
            self._following = within
        if not within:
            self._settle()

    def _followAlone(self, events: Iterable[Any]) -> None:
        """Follow in a call of the clock or sink: no transport catches there what is raised."""
        try:
            self._follow(events)
        except BaseException:
            self.log.failure("{peer}: closed: it cannot be served", peer=self.peer)
            self._abort()

    def _settle(self) -> None:
        if self._following:
            return
        if not self._gone:
            self._countersChanged.add(self)
        if self._ended:
            return
        machine = self.machine
        outputs = machine.outputs()
        if outputs:
            self._write(outputs)
        if machine.finished:
            self._end(fault=False)
            return
        if self._held or self.wire.held or not machine.no_partial_input:
            self._hold(machine.input_weight + self.wire.held)
            if machine.unfinished:
                self.pauseReading("decoding")
                self._lookUnfinished()
        self._arm()

    def _arm(self) -> None:
        """Come back at the nearest deadline; an early timer stays: that is cheaper than another."""
        at = self.machine.deadlines.next
        if at is not None and at < self._timerAt:
            self._timerAt = at
            delay = max(0.0, at - self._now())
            if self._timer is None:
                self._timer = self.factory.clock.callLater(delay, self._due)
            else:
                self._timer.reset(delay)

    def _due(self) -> None:
        self._timer, self._timerAt = None, inf
        now, at = self._now(), self.machine.deadlines.next
        if at is not None and at <= now:
            self._followAlone(self.machine.advance(now))
        self._arm()

    def flush(self) -> None:
        """A verb has changed the machine: write what it has to say, and end when it has."""
        self._settle()

    def heldChanged(self) -> None:
        """The wire holds more or less than before, because reading is paused: count it."""
        if not self._ended:
            self._hold(self.machine.input_weight + self.wire.held)

    def _lookUnfinished(self) -> None:
        """Continue in the next turn, unless paused: a read may hold more than one can decode."""
        if self._pausedFor == {"decoding"} and self._resumption is None and not self._ended:
            self._resumption = self.factory.clock.callLater(0, self._resume)

    def _resume(self) -> None:
        self._resumption = None
        if self._ended or self._pausedFor != {"decoding"}:
            return
        self._followAlone(self.machine.receive(self.noInputs, self._now()))
        if not self._ended and not self.machine.unfinished:
            self.resumeReading("decoding")
            if self._inputEnded:
                self._followAlone(self.machine.ended(self._now()))

    noInputs: ClassVar[Any] = b""
    """This input makes a machine continue with what it has; frames come in lists."""

    def pauseReading(self, reason: str) -> None:
        """Do not read while ``reason`` stands; any number of them may stand at a time."""
        if reason not in self._pausedFor:
            self._pausedFor |= {reason}
            if len(self._pausedFor) == 1:
                self.wire.pauseProducing()
            self._readingChanged()

    def resumeReading(self, reason: str) -> None:
        """``reason`` stands no longer: read again unless there is another."""
        if reason in self._pausedFor:
            self._pausedFor = (self._pausedFor - {reason}) or Link._pausedFor
            if not self._pausedFor:
                self.wire.resumeProducing()
            self._readingChanged()

    def _readingChanged(self) -> None:
        if self._ended:
            return
        now = self._now()
        if self._pausedFor:
            if self._held:
                self.factory.shared.held.paused(self, now)
            self._follow(self.machine.paused(now))
            self._lookUnfinished()
        else:
            if self._held:
                self.factory.shared.held.resumed(self, now)
            self._follow(self.machine.resumed(now))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """End as the server stops: accept no more, send what is owed, then close."""
        if not self._ended:
            if not self.readsWhileDraining:
                self.pauseReading("draining")
            self._follow(self.machine.drain(self._now()))

    def setCloseReason(self, error: Exception) -> None:
        """This side ends the connection for ``error``, unless there was a reason before."""
        if self.closeReason is None:
            self.closeReason = error

    def whyLost(self, reason: Failure) -> Exception:
        """Return what those are told who wait for something of a connection that is lost."""
        if self.closeReason is None and isinstance(reason.value, ProtocolViolation):
            return reason.value
        why = " ".join(reason.getErrorMessage().split()) or "no reason given"
        closed = ConnectionClosed(f"the connection was lost: {why}")
        return self.closeReason or tls_refusal(reason) or closed

    def peerError(self, fault: Fault) -> PeerError:
        """Return a fault of the peer as the error that callers are told."""
        kind = TimedOut if fault.reason in self.timeFaults else ProtocolViolation
        return kind(fault.text)

    def peerFaulted(self, fault: Fault) -> None:
        """The peer broke the protocol: one line, a counter, the machine's last words, the end."""
        self.setCloseReason(self.peerError(fault))
        self._logFault(fault, self.faultEnds)
        self._lastWords()
        self._end(fault=True)

    def _logFault(self, fault: Fault, end: str = "closed") -> None:
        self._lookWhose()  # perhaps nothing has come but the proxy's words
        self.factory.countFault(fault.reason, fault.limit)
        self.factory.writeOf(
            self.log,
            self.address,
            f"{{peer}}: {end}: {{text}}{{began}}",
            peer=self.peer,
            text=unquoted(fault.text) + (f": {TLS_HERE}" if speaks_tls(fault.nbytes) else ""),
            began=f" (starts with {fault.nbytes.hex(' ')})" if fault.nbytes else "",
            reason=fault.reason,
        )

    def logNews(self, line: str, reason: str, **fields: object) -> None:
        """Log what the peer did, though it was no fault; ``reason`` is what a sum calls it."""
        self.factory.writeOf(
            self.log,
            self.address,
            line,
            reason=reason,
            topic=NEWS,
            level=LogLevel.info,
            peer=self.peer,
            **fields,
        )

    def unread(self) -> None:
        """Close the connection of a peer that has read nothing for too long; log and count that."""
        if not self._ended:
            seconds = self.factory.limits["unread-seconds"]
            self.setCloseReason(TimedOut(f"the peer took no bytes for {seconds:g} s"))
            self.factory.countFault("unread", "unread-seconds")
            text = "{peer}: closed: it does not read what it is sent"
            self.factory.writeOf(self.log, self.address, text, peer=self.peer, reason="unread")
        self._abort()

    # ── as the ledger's holder ──────────────────────────────────────────────────────────────────

    @property
    def reading(self) -> bool:
        """Whether the connection is read now."""
        return not self._pausedFor

    def holdBack(self, held_back: bool) -> None:
        """The process holds too much: do not read (True), or read again."""
        if held_back:
            self.pauseReading("process-held-bytes")
        elif not self._gone:
            self.resumeReading("process-held-bytes")

    def cutOff(self, nbytes: int, limit: float) -> None:
        """All connections together hold too much, and this one's peer is the latest."""
        if not self._ended:
            text = (
                f"{nbytes} bytes of an unfinished message arrive too slowly while memory is "
                f"short; process-held-bytes is {limit:.0f}"
            )
            self.setCloseReason(ConnectionClosed(f"cut off: {text}"))
            self._logFault(Fault("process-held-bytes", text), "cut off")
            self._abort()

    @property
    def owes(self) -> bool:
        """Whether anything is owed to the peer, or unfinished, so that its place is not free."""
        output = self.wire.output
        waits = self._held or (output and output.full) or not self.machine.no_partial_input
        return bool(self._ended or waits)

    def displace(self) -> None:
        """Close this silent connection: a newcomer has its place."""
        self.setCloseReason(ConnectionClosed("silent while connections were short"))
        self._abort()

    def _hold(self, nbytes: int) -> None:
        if nbytes <= self.factory.shared.held.uncounted:
            nbytes = 0
        if nbytes != self._held:
            if nbytes > self._held:
                self._grown_at = self._now()
            self._held = nbytes
            self.factory.shared.held.hold(self, nbytes, self._now(), objects=self.machine.objects)

    def _lastWords(self) -> None:
        outputs = self.machine.outputs()
        if outputs:
            self._write(outputs)

    def _end(self, fault: bool) -> None:
        self._ended = self._inputIgnored = True
        self._countersChanged.add(self)
        self.wire.close(fault)

    def abort(self) -> None:
        """End the connection at once: what is in flight fails, and what is unwritten is lost."""
        if not self._gone:
            self.setCloseReason(ConnectionClosed("the connection was given up"))
            self._abort()

    def _abort(self) -> None:
        self._ended = self._inputIgnored = True
        self.wire.abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection is gone; a second call does nothing."""
        if self.loss is not None:
            return
        self.loss = reason
        self.closeReason = self.whyLost(reason)
        self._ended = self._inputIgnored = self._gone = True
        try:
            events = self.machine.lost(self._now())
        finally:
            self._giveBack(reason)
        for event in events:
            if isinstance(event, WorkLost):
                self.workLost(event.work, reason)
        self.sessionEnding(reason)

    def _giveBack(self, reason: Failure) -> None:
        self._timerAt = -inf  # nothing is nearer: it is never set again
        self.wire.stop()
        for call in (self._resumption, self._handshake, self._timer):
            if call is not None:
                call.cancel()
        self._resumption = self._handshake = self._timer = None
        self._hold(0)
        factory = self.factory
        factory.shared.paused.pop(self, None)
        try:
            factory.counters.leave(self)
        finally:
            factory.connectionClosed(self.protocol, reason)

    def snapshot(self) -> dict[str, object]:
        """Return where the connection stands, as plain values without secrets."""
        return {
            "session": self.session,
            "peer": self.peer,
            "not_read_because": ", ".join(sorted(self._pausedFor)) or None,
            **self.machine.snapshot(),
        }


Link.actions = {Fault: Link.peerFaulted}
