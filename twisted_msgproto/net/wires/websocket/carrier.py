"""Bound autobahn's protocol classes, whose internals are known here alone, on every side."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

from autobahn.twisted import websocket as autobahn
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import ConnectionClosed, shown
from twisted_msgproto.core.reasons import TLS_HERE, speaks_tls

from ...factory import host_of, peer_name, tls_refusal
from ...turns import TURN_SECONDS, next_read_bytes
from .. import WebSocketBroken, Wire
from ..stream import Output, flushing_write
from .frames import (
    BINARY,
    CLOSE_INTERNAL,
    CLOSE_PROTOCOL,
    CLOSE_TOO_BIG,
    PING,
    PONG_SECONDS,
    TEXT,
    Control,
    FrameReader,
    Keepalive,
    QuietLog,
    Refusal,
    close_reason,
    frame,
    log,
    opcode_of,
)

_FIRST_STRETCH, _STRETCH_MIN, _STRETCH_MAX = 128, 8, 512
"""So many messages or fragments are processed before the clock is read: at first, least and most.
The rest waits for the next turn if this one is over: 64 KiB of tiny ones would need 60 ms.
"""

_UNTIMED_BYTES: Final = 1 << 10  # of a read that is not timed: the clock costs microseconds

LONG_HEAD: Final = "the HTTP head is too long"

_EMPTY_PING: Final = bytes((PING, 0))

_FOR_UPGRADE: Final = re.compile(
    "_wskey|allow.+|flash.+|http_.+|maxConnections|openHandshakeTimeout|serveFlash.+|tcpNoDelay"
    "|perMessageCompression(Accept|Offers)|trustX.+|utf8validator|versions|webStatus"
    "|websocket_(extensions|key|origin|protocols)"
)

_NEVER_QUEUED: Final[deque[Any]] = deque(maxlen=0)  # shared: an empty one weighs 760 bytes

_CONNECTING, _OPEN, _CLOSING, _CLOSED = (
    autobahn.WebSocketServerProtocol.STATE_CONNECTING,
    autobahn.WebSocketServerProtocol.STATE_OPEN,
    autobahn.WebSocketServerProtocol.STATE_CLOSING,
    autobahn.WebSocketServerProtocol.STATE_CLOSED,
)

if TYPE_CHECKING:  # autobahn's attributes come from the class this one is mixed into
    from autobahn.websocket.protocol import WebSocketProtocol as _Mixin
else:
    _Mixin = object


class Carrier(_Mixin):
    """One WebSocket connection, either side, as a mixin in front of autobahn's classes."""

    log: QuietLog = QuietLog()
    factory: Any
    transport: Any
    session: Any
    link: Any
    wire: Wire  # what the session sees of this
    send: Callable[[bytes], None]  # short ones are with the system when it returns
    output: Output
    oversize: bool = False  # the peer began a message above the limit

    _encrypted = 0  # bytes that TLS holds because reading is paused
    _upgraded = False
    _arrived: list[Any]  # messages that the session has not been given yet
    _alone = True  # what comes belongs to no session yet, so each message is given by itself
    _reader: FrameReader
    _reading_paused = False
    _consuming = False
    _readAtMost = _steps = _FIRST_STRETCH  # of messages and fragments; what is left of this one
    _looked: float  # at the time spent, when the stretch began
    _turn_ends: float
    _rest_call: Any = None  # what was read goes on then
    _ping: bytes | None = None
    _drop_call: Any = None
    _broken = ""  # how the peer broke WebSocket
    _loss: Failure  # what the transport said when it was lost
    _overdue = False  # the server should have dropped the connection by now
    data: Any  # what came and was not read yet
    closeHandshakeTimeoutCall: Any
    serverConnectionDropTimeout = 0  # its timer is autobahn's own; _drop_call takes its place

    # ── what the wire asks for ──────────────────────────────────────────────────────────────────

    def established(self) -> None:
        """The session stands: messages come in their full size, those of one read together."""
        self._alone = False
        self._reader.bytes_max = self.factory.message_bytes

    def closeWebSocket(self, code: int, reason: str = "") -> None:
        """Begin the closing handshake, or abort if never opened."""
        if self.state == _OPEN:
            if self._reading_paused:  # it could not see the peer's answer
                self._resume_transport()
            self.sendCloseFrame(code=code, reasonUtf8=close_reason(reason), isReply=False)
            self._reader.drop()
        elif self.state not in (_CLOSING, _CLOSED):
            self.abort(reason or "closed before the upgrade")

    def abort(self, reason: str) -> None:
        if self.state != _CLOSED:
            self.wasClean = False
            self.wasNotCleanReason = reason
            self.dropConnection(abort=True)
        else:
            self.transport.abortConnection()

    def pauseReading(self) -> None:
        if not self._reading_paused and self.state == _OPEN:
            self._reading_paused = True
            self.transport.pauseProducing()

    def resumeReading(self) -> None:
        if not self._reading_paused:
            return
        self._reading_paused = False
        self._keepalive.excuse()
        if self._rest_call is None:
            self._read_on()

    def _read_on(self) -> None:
        if (self.data or self._reader.answer) and not self._consuming:
            self._consume(b"")
        if not self._held_back:
            self._resume_transport()

    @property
    def _held_back(self) -> bool:
        return self._reading_paused or self._rest_call is not None

    def _lookBack(self) -> float:
        now: float = self.factory.sessions.spent()
        took, self._looked = now - self._looked, now
        done = self._readAtMost - max(self._steps, 0)
        if self._steps <= 0 or took > TURN_SECONDS:
            self._readAtMost = next_read_bytes(done, took, _STRETCH_MIN, _STRETCH_MAX)
        return now

    def _stretchEnds(self) -> None:
        if self._turn_ends < inf and self._lookBack() >= self._turn_ends:
            self._rest()
        self._steps = self._readAtMost

    def _rest(self) -> None:
        self._rest_call = self.factory.reactor.callLater(0, self._rested)
        self.transport.pauseProducing()

    def _rested(self) -> None:
        self._rest_call = None
        if not self._reading_paused and self.state != _CLOSED:
            self._read_on()

    def _resume_transport(self) -> None:
        if self.state != _CLOSED:
            self._reading_paused = False
            self.transport.resumeProducing()

    # ── from the transport, to autobahn ─────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        self._arrived = []
        factory = self.factory
        full, first = factory.message_bytes, factory.first_bytes
        self._reader = FrameReader(
            factory.isServer, factory.wire.nbytes, full if first is None else min(first, full)
        )
        self.output = Output(
            self.transport,
            factory.reactor,
            factory.unread_seconds,
            self._stalled,
            most=factory.unread_bytes,
            changed=self._outputChanged,
            drained=self._drained,
            ledger=factory.sessions.outputLedger,
        )
        self.send = flushing_write(self.transport, self.output.write)
        tell_rest = getattr(self.transport, "tellRest", None)
        if tell_rest is not None:
            tell_rest(self._encryptedRest)
        self._keepalive = Keepalive(
            factory.reactor, factory.ping_seconds, self._ask, self._lookGone
        )
        self.link.wire = self.wire = factory.wire(self)
        if factory.sessions.turnWatch is not None:
            peer = self.transport.getPeer()
            whose = {"peer": peer_name(peer), "host": host_of(peer)}
            factory.sessions.turnWatch.measure(
                self, "dataReceived", "resumeReading", **whose, transport=self.transport
            )
        super().connectionMade()  # type: ignore[misc]  # autobahn's Twisted class has it
        factory.connectionBegun(self)

    def dataReceived(self, data: bytes) -> None:
        if self.state == _CLOSED:
            return
        self._keepalive.heard = True  # whoever sends anything lives, a large message too
        if self._reading_paused or self._rest_call is not None:
            self.data += data
            self._countRest()
            return
        if self.state == _CONNECTING and self.factory.isServer and speaks_tls(self.data + data):
            self.factory.spokeTls(self.transport.getPeer())
            self.abort(TLS_HERE)
            return
        if (
            self.state == _CONNECTING
            and len(self.data) + len(data) > self.factory.upgrade_bytes
            and b"\r\n\r\n" not in self.data[-3:] + data
        ):
            self._neverUpgrades(LONG_HEAD)
            self.abort(LONG_HEAD)
            return
        self._consume(data)

    def _neverUpgrades(self, why: str, limit: str = "") -> None:
        """The peer did not become one of WebSocket, and it is the cause."""

    def _consume(self, data: bytes) -> None:
        self._consuming = True
        timed = len(self.data) + len(data) > _UNTIMED_BYTES
        if timed:
            self._looked = now = self.factory.sessions.spent()
            self._turn_ends = now + TURN_SECONDS
        else:
            self._turn_ends = inf
        self._steps = self._readAtMost
        try:
            if self.data:
                data = self.data + data
                self.data = b""
            self.data = data
            self.consumeData()
            if self._arrived or (
                self._reader.held != self.wire.held and self._upgraded and not self._reading_paused
            ):
                self._handOn()
            if self._reading_paused:
                self._countRest()
            if timed and self._readAtMost - self._steps > _STRETCH_MIN:
                self._lookBack()
        except Exception:
            # autobahn did not expect this input.  The peer is the cause, so no more than a line.
            self.factory.sessions.writeOf(
                log,
                host_of(self.transport.getPeer()),
                "{peer}: dropped, autobahn failed: {error}",
                reason="websocket",
                peer=self.peer,
                error=shown(Failure().getErrorMessage()),
            )
            self.abort("input which could not be parsed")
        finally:
            self._consuming = False

    def _encryptedRest(self, nbytes: int) -> None:
        self._encrypted = nbytes
        self._countRest()

    def _countRest(self) -> None:
        rest = self._encrypted + (len(self.data) if self._reading_paused else 0)
        held = self._reader.held + rest
        if held != self.wire.held and self._upgraded and self.state == _OPEN:
            self.wire.held = held
            self._guarded(self.link.heldChanged)

    def consumeData(self) -> None:
        """Read frames; autobahn, which calls this too, sees the upgrade alone.

        The session receives all messages in front of a ping, a Close and what is refused: that must
        not be seen before them, and our answers have to precede a Close.
        """
        if self.state not in (_OPEN, _CLOSING):
            super().consumeData()
            return
        reader = self._reader
        while not self._reading_paused and self._rest_call is None and self.state != _CLOSED:
            if self._steps <= 0:
                self._stretchEnds()
                continue
            if reader.answer is not None:
                answer, reader.answer = reader.answer, None
                self._answer(answer)
                continue
            most = 1 if self._alone else self._steps
            self.data, count = reader.read(self.data, self._arrived, most, self.state == _OPEN)
            self._steps -= count
            if self._arrived and (self._alone or not reader.starved):
                self._handOn()
            if reader.starved:
                break

    def _answer(self, answer: Control | Refusal) -> None:
        if isinstance(answer, Refusal):
            if answer.code == CLOSE_TOO_BIG:
                self.oversize = True
                if self.state == _OPEN:
                    self._guarded(self.link.oversized)
            else:
                self._broken = self._broken or answer.text
            self.closeWebSocket(answer.code, answer.text)
        elif answer.opcode == PING:
            self.onPing(answer.payload)
        else:
            code = int.from_bytes(answer.payload[:2], "big") if answer.payload else None
            self.onCloseFrame(code, answer.payload[2:] or None)

    # ── from autobahn, to the session ───────────────────────────────────────────────────────────

    def _handOn(self) -> None:
        arrived, self._arrived = self._arrived, []
        self.wire.held = self._reader.held
        if self.state == _OPEN:
            try:
                self.link.received(arrived)
            except Exception:
                self._failed("received")

    def _guarded(self, hook: Callable[..., None], *args: object) -> None:
        try:
            hook(*args)
        except Exception:
            self._failed(hook.__name__)

    def _failed(self, hook: str) -> None:
        log.failure("{peer}: {hook} failed", peer=self.peer, hook=hook)
        self.closeWebSocket(CLOSE_INTERNAL, "internal error")

    def onOpen(self) -> None:
        self._forgetUpgrade()
        self.output.watch()
        self._upgraded = True
        self._keepalive.start()
        self._guarded(self.session.makeConnection, self.wire)
        self.factory.connectionUpgraded(self)

    def _forgetUpgrade(self) -> None:
        """Drop what only the upgrade needed, 3.7 KB; a dict does not shrink, so it is new."""
        attributes = self.__dict__.items()
        self.__dict__ = {name: one for name, one in attributes if not _FOR_UPGRADE.fullmatch(name)}
        self.__dict__["send_queue"] = _NEVER_QUEUED

    def onPing(self, payload: bytes) -> None:
        """Answer a ping at once; of a peer that does not read, only the last one (RFC 6455)."""
        if self.output.full:
            self._ping = payload
        else:
            self.sendPong(payload)  # type: ignore[no-untyped-call]

    def _ask(self) -> None:
        if self.state == _OPEN:
            server = self.factory.isServer
            self.send(_EMPTY_PING if server else b"".join(frame(PING, b"", True)))

    def _lookGone(self) -> None:
        """No pong came: drop the peer, unless we do not read, or it still takes what is before."""
        if not self._reading_paused and not self._takes(PONG_SECONDS):
            self.abort("the peer did not answer a ping")

    def onCloseHandshakeTimeout(self) -> None:
        """Drop the peer if it sent no Close, unless it still reads what we wrote before ours."""
        if self.state == _CLOSING and self._takes(self.factory.close_seconds):
            self.closeHandshakeTimeoutCall = self.factory.reactor.callLater(
                self.factory.close_seconds, self.onCloseHandshakeTimeout
            )
        else:
            super().onCloseHandshakeTimeout()

    def _takes(self, seconds: float) -> bool:
        output, now = self.output, self.factory.reactor.seconds()
        return output.full or (output.movedAt > 0 and now < output.movedAt + seconds)

    def onCloseFrame(self, code: Any, reasonRaw: Any) -> bool | None:
        answer: bool | None = super().onCloseFrame(code, reasonRaw)
        if not self.factory.isServer and self.state == _CLOSING and self._drop_call is None:
            self._drop_call = self.factory.reactor.callLater(self.factory.close_seconds, self._drop)
        return answer

    def _drop(self) -> None:
        self._overdue = True
        self.dropConnection(abort=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.output.stop()
        self._keepalive.stop()
        for call in (self._drop_call, self.closeHandshakeTimeoutCall, self._rest_call):
            if call is not None and call.active():
                call.cancel()
        self._drop_call = self.closeHandshakeTimeoutCall = self._rest_call = None
        self._reading_paused = False  # who resumes later finds nothing to deliver
        self._reader.drop()
        self.factory.connectionGone(self, reason)
        self._loss = reason
        super().connectionLost(reason)  # type: ignore[misc]  # autobahn's Twisted class has it

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        why = self.wasNotCleanReason or reason or str(code)
        if not self._upgraded:
            error = tls_refusal(self._loss) or ConnectionClosed(f"no WebSocket: {why}")
            self._guarded(self.link.neverConnected, error)
        else:
            lost: Exception = ConnectionDone() if wasClean else ConnectionLost(why)
            if self._broken:
                lost = WebSocketBroken(self._broken)
            self._guarded(self.session.connectionLost, Failure(lost))

    # ── from autobahn, to the transport ─────────────────────────────────────────────────────────

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        self.send(data)

    def _closeConnection(self, abort: bool = False) -> None:
        """Close the transport; after both close frames no reset may overtake ours."""
        if abort and (self._overdue or not self.wasClean):
            self.transport.abortConnection()
        elif self._upgraded:
            self.output.close()
        else:
            self.transport.loseConnection()
            if self._drop_call is None:  # a peer that reads nothing would keep it for ever
                self._drop_call = self.factory.reactor.callLater(
                    self.factory.unread_seconds, self.transport.abortConnection
                )

    def unregisterProducer(self) -> None:
        """Do nothing: what waits continues to drain until the transport is closed."""

    # ── from the output that waits ─────────────────────────────────────────────────────────────

    def _outputChanged(self, paused: bool) -> None:
        if self._upgraded:
            self.link.outputChanged(paused)

    def _drained(self) -> None:
        if self._ping is not None:
            payload, self._ping = self._ping, None
            self.sendPong(payload)  # type: ignore[no-untyped-call]
        if self.state == _OPEN:
            self.link.outputDrained()

    def _stalled(self) -> None:
        if self.state == _OPEN:
            self._guarded(self.link.unread)
        self.abort("the peer does not read")


# ── the session's side ──────────────────────────────────────────────────────────────────────────


Message = str | bytes


class WebSocketWire(Wire):
    """One WebSocket connection, either side: messages are ``str`` and ``bytes``, in lists."""

    nbytes: ClassVar[bool] = False

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.output = carrier.output
        self._masked = not carrier.factory.isServer
        self.disconnecting = False

    def write(self, messages: Iterable[Any]) -> None:
        masked, as_text = self._masked, self.nbytes
        parts: list[bytes] = []
        for message in messages:
            if type(message) is str:
                parts += frame(TEXT, message.encode(), masked)
            else:
                parts += frame(opcode_of(message) if as_text else BINARY, message, masked)
        carrier = self._carrier
        if parts and carrier.state == carrier.STATE_OPEN:
            carrier.send(b"".join(parts))

    def close(self, fault: bool = False) -> None:
        """Begin the closing handshake behind what was written."""
        self.disconnecting = True
        carrier = self._carrier
        if not fault:
            carrier.closeWebSocket(carrier.factory.close_code)
        else:
            carrier.closeWebSocket(CLOSE_TOO_BIG if carrier.oversize else CLOSE_PROTOCOL)

    def abort(self) -> None:
        self.disconnecting = True
        self._carrier.abort("the session was given up")

    def established(self) -> None:
        self._carrier.established()

    def pauseProducing(self) -> None:
        self._carrier.pauseReading()

    def resumeProducing(self) -> None:
        self._carrier.resumeReading()

    def stop(self) -> None:
        """The connection is lost: the carrier has seen to it."""

    def getPeer(self) -> IAddress:
        return self._carrier.transport.getPeer()  # type: ignore[no-any-return]

    def getHost(self) -> IAddress:
        return self._carrier.transport.getHost()  # type: ignore[no-any-return]

    # As Twisted's transports call them, for those who have one wire among many.

    def loseConnection(self) -> None:
        self.close()

    def abortConnection(self) -> None:
        self.abort()


class ByteWire(WebSocketWire):
    """Sends frames in UTF-8 as text and all others as binary; both are received as ``bytes``."""

    nbytes = True
