"""WebSocket as two of the protocols need it: autobahn's Twisted classes, bounded on every side.

autobahn speaks RFC 6455.  This room adds what it leaves open, and is the only place which knows
about its inner life:

* **Factory defaults**: every size, time and count has a bound (:data:`WEBSOCKET_LIMITS`); no web
  page is served to those who do not upgrade, no compression, protocol version 13 only.
* **Origins are explicit**: a browser page from an origin which was not listed is refused with
  403.  Clients which are not browsers send no ``Origin`` and are let in.
* **Reading stops at once**: after :meth:`WebSocketConnection.pauseReading` no further message is
  delivered.  What had been read already waits in one buffer, at most one read and one message
  large, until :meth:`WebSocketConnection.resumeReading`.
* **Writing is bounded**: octets which the peer does not read wait in a queue of our own and are
  fed to the transport as it drains.  Hooks say when the queue crosses its limit, and a peer which
  reads nothing for ``unread-seconds`` is aborted.
* **No exception leaves** through ``dataReceived``: an error of the subclass is logged and closes
  the connection with 1011, an error of autobahn on odd input drops the connection.
* Time comes from the factory's ``reactor`` alone.

A protocol subclasses :class:`WebSocketServerConnection` or :class:`WebSocketClientConnection` and
overrides the hooks ``webSocketOpened``, ``messageReceived``, ``readFinished`` (once after each
read: the place to write one answer for all of it), ``webSocketClosed``, ``outputPaused``,
``outputResumed`` and ``outputDrained``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from random import getrandbits
from typing import TYPE_CHECKING, Any, ClassVar

from autobahn.twisted import websocket as autobahn
from autobahn.websocket.types import ConnectingRequest, ConnectionDeny, ConnectionRequest
from autobahn.websocket.xormasker import create_xor_masker  # type: ignore[attr-defined]
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import shown
from twisted_msgproto.core.limits import Limit, Limits

from ..origins import WebSocketAddress, client_endpoint, origin_of, parse_address, parse_origins
from .unread import Call, Output, PlainTimer, QuietLog

__all__ = [
    "CLOSE_INTERNAL",
    "CLOSE_NORMAL",
    "CLOSE_PROTOCOL",
    "CLOSE_TOO_BIG",
    "WEBSOCKET_LIMITS",
    "BoundedClientFactory",
    "BoundedServerFactory",
    "WebSocketAddress",
    "WebSocketClientConnection",
    "WebSocketConnection",
    "WebSocketServerConnection",
    "client_endpoint",
    "parse_address",
    "parse_origins",
]

CLOSE_NORMAL = 1000
CLOSE_PROTOCOL = 1002
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011

WEBSOCKET_LIMITS: tuple[Limit, ...] = (
    Limit("connections", 10_000, "connections", "of one server at a time", 1),
    Limit("websocket-message-octets", 16 << 20, "octets", "one message, all its frames", 1),
    Limit("websocket-message-frames", 1 << 16, "frames", "fragments of one message", 1),
    Limit("websocket-upgrade-octets", 16 << 10, "octets", "HTTP head before the upgrade", 256),
    Limit("websocket-upgrade-seconds", 10.0, "s", "from connect to upgrade", 0.001),
    Limit("websocket-close-seconds", 5.0, "s", "from our close to the peer's", 0.001),
    Limit("websocket-ping-seconds", 30.0, "s", "between pings; 0 sends none"),
    Limit("websocket-pong-seconds", 30.0, "s", "a ping's answer, or any frame", 0.001),
    Limit("unread-octets", 1 << 20, "octets", "unread output before the producer is paused", 1),
    Limit("unread-seconds", 30.0, "s", "a peer which reads nothing is dropped", 0.001),
)
"""What both WebSocket protocols bound; part of their ``LIMITS`` tables."""

_SLICE = 16384
"""Reads are parsed in slices: autobahn copies its whole buffer twice for each frame in it."""

_MASKED_AS_NUMBER = 1024
"""Up to here one big number is masked faster than a masker is made."""

_PIECES = 256
"""A message which came in more pieces is put together as it comes."""

_CONNECTING, _OPEN, _CLOSING, _CLOSED = (
    autobahn.WebSocketServerProtocol.STATE_CONNECTING,
    autobahn.WebSocketServerProtocol.STATE_OPEN,
    autobahn.WebSocketServerProtocol.STATE_CLOSING,
    autobahn.WebSocketServerProtocol.STATE_CLOSED,
)

log = Logger(namespace="twisted_msgproto.net.wires.websocket")

if TYPE_CHECKING:  # autobahn's attributes come from the class this one is mixed into
    from autobahn.websocket.protocol import WebSocketProtocol as _Mixin
else:
    _Mixin = object


class WebSocketConnection(_Mixin):
    """One WebSocket connection, either side; a mixin in front of autobahn's protocol classes.

    Attributes:
        factory: a :class:`BoundedServerFactory` or :class:`BoundedClientFactory`.
        abort_reason: why this side dropped the connection without a closing handshake, or None.
    """

    log = QuietLog()
    factory: Any
    transport: Any
    abort_reason: str | None = None

    _output: Output | None = None
    _reading_paused = False
    _consuming = False
    _delivered = False
    _ended = False
    _ping: bytes | None = None
    _drop_call: Call | None = None
    _overdue = False  # the server should have dropped the connection by now
    data: Any
    message_data: Any
    frame_data: Any
    _fragments = 0
    closeHandshakeTimeoutCall: Any
    autoPingTimeout: float
    maxFramePayloadSize: int
    serverConnectionDropTimeout = 0  # its timer is autobahn's own; _drop_call takes its place

    # -- hooks ---------------------------------------------------------------------------------

    def webSocketOpened(self) -> None:
        """The upgrade is done: messages may be sent from here on."""

    def messageReceived(self, payload: bytes, binary: bool) -> None:
        """A complete message; a text message is valid UTF-8.  Never called while paused."""

    def readFinished(self) -> None:
        """All messages of one read were delivered; called only if there were any."""

    def webSocketClosed(self, clean: bool, code: int | None, reason: str | None) -> None:
        """The connection is gone.  Called once, also when the upgrade never came about."""

    def outputPaused(self) -> None:
        """More than ``unread-octets`` wait for the peer to read."""

    def outputResumed(self) -> None:
        """The peer has read at least half of it."""

    def outputDrained(self) -> None:
        """The peer has read all that waited, after a time in which it had not."""

    def peerUnreading(self) -> None:
        """The peer read nothing for ``unread-seconds``; drops the connection."""
        self.abort("the peer does not read")

    # -- verbs ---------------------------------------------------------------------------------

    @property
    def opened(self) -> bool:
        """Messages may be sent."""
        return bool(self.state == _OPEN)

    @property
    def unread(self) -> bool:
        """The transport's buffer is full: what is sent now waits."""
        return self._output is not None and self._output.paused

    @property
    def unread_octets(self) -> int:
        """Octets which wait for the transport, beyond the transport's own buffer."""
        return 0 if self._output is None else self._output.octets

    def sendMessages(self, messages: Iterable[tuple[bytes, bool]]) -> None:
        """Send ``(payload, binary)`` messages with one write; silently nothing when not open."""
        if self.state != _OPEN:
            return
        masked = not self.factory.isServer
        self.sendData(
            b"".join(
                [part for payload, binary in messages for part in _frame(payload, binary, masked)]
            )
        )

    def closeWebSocket(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Begin the closing handshake with any code of RFC 6455; aborts if never opened.

        Messages which still arrive are dropped.  Safe to call twice.
        """
        if self.state == _OPEN:
            self._resume_transport()  # a paused connection could not see the peer's answer
            self.sendCloseFrame(code=code, reasonUtf8=_cut(reason), isReply=False)
        elif self.state not in (_CLOSING, _CLOSED):
            self.abort(reason or "closed before the upgrade")

    def abort(self, reason: str) -> None:
        """Drop the connection at once."""
        if self.state != _CLOSED:
            self.abort_reason = reason
            self.wasClean = False
            self.wasNotCleanReason = reason
            self.dropConnection(abort=True)
        elif self._output is not None and self._output.ending:
            self._end(abort=True)

    def pauseReading(self) -> None:
        """Deliver no further message until :meth:`resumeReading`."""
        if not self._reading_paused and self.state == _OPEN:
            self._reading_paused = True
            self.transport.pauseProducing()

    def resumeReading(self) -> None:
        """Deliver what was held back, then read on."""
        if not self._reading_paused:
            return
        self._reading_paused = False
        if not self._consuming and self.data:
            self._consume(b"")
        if not self._reading_paused:
            self._resume_transport(force=True)

    def _resume_transport(self, force: bool = False) -> None:
        if (force or self._reading_paused) and self.state != _CLOSED:
            self._reading_paused = False
            self.transport.resumeProducing()

    # -- from the transport, to autobahn -------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Octets from the transport."""
        if self.state == _CLOSED:
            return
        if self._reading_paused:
            self.data += data
            return
        if (
            self.state == _CONNECTING
            and len(self.data) + len(data) > self.factory.upgrade_octets
            and b"\r\n\r\n" not in self.data[-3:] + data
        ):
            self.abort("the HTTP head is too long")
            return
        self._consume(data)

    def _consume(self, data: bytes) -> None:
        self._consuming = True
        self._delivered = False
        try:
            if len(data) <= _SLICE:
                self.data += data
                self.consumeData()
            else:
                for start in range(0, len(data), _SLICE):
                    if self._reading_paused:
                        self.data += data[start:]
                        break
                    self.data += data[start : start + _SLICE]
                    self.consumeData()
            if self._delivered:
                self._guarded(self.readFinished)
        except Exception:
            # autobahn did not expect this input.  The peer is the cause, so no more than a line.
            log.info(
                "{peer}: dropped, autobahn failed: {error}",
                peer=self.peer,
                error=shown(Failure().getErrorMessage()),
            )
            self.abort("input which could not be parsed")
        finally:
            self._consuming = False

    def consumeData(self) -> None:
        """autobahn's loop over what was read, which stops where reading was paused."""
        if self.state in (_OPEN, _CLOSING):
            while not self._reading_paused and self.state != _CLOSED:
                if self.current_frame is None and not self.inside_message:
                    self._consumeWhole()
                    if self._reading_paused or not self.data:
                        break
                if not self.processData():
                    break
        else:
            super().consumeData()

    def _consumeWhole(self) -> None:
        """Unfragmented messages which are there as a whole: nearly all, without autobahn's detours.

        Stops at anything else, and at anything which is not in order: autobahn says what is wrong.
        """
        data, server, largest = self.data, self.factory.isServer, self.maxFramePayloadSize
        place, size = 0, len(data)
        while size - place >= 2 and not self._reading_paused and self.state == _OPEN:
            opcode, second = data[place], data[place + 1]
            if opcode not in (0x81, 0x82) or (second >= 0x80) is not server:
                break
            length, start = second & 0x7F, place + 2
            if length == 126:
                length, start = int.from_bytes(data[start : start + 2], "big"), start + 2
                if length < 126:
                    break
            elif length == 127:
                break
            mask_end = start + 4 if server else start
            end = mask_end + length
            if end > size or length > largest:
                break
            payload = data[mask_end:end]
            if server and payload:
                payload = _masked(payload, data[start:mask_end])
            if opcode == 0x81 and not payload.isascii():
                try:
                    payload.decode()
                except UnicodeDecodeError:
                    break
            place = end
            if self.autoPingTimeoutCall:
                self._cancelAutoPingTimeoutCall()
            self.onMessage(payload, opcode == 0x82)
        if place:
            self.data = data[place:]

    # -- from autobahn, to the hooks -----------------------------------------------------------

    def _guarded(self, hook: Callable[..., None], *args: object) -> None:
        """Call a hook; an exception is our fault and closes the connection."""
        try:
            hook(*args)
        except Exception:
            log.failure("{peer}: {hook} failed", peer=self.peer, hook=hook.__name__)
            self.closeWebSocket(CLOSE_INTERNAL, "internal error")

    def onOpen(self) -> None:
        """The upgrade is done."""
        self._output = Output(self)
        self.transport.registerProducer(self._output, True)
        self._guarded(self.webSocketOpened)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """A complete message; those which follow our own close are dropped."""
        if self.state == _OPEN:
            self._delivered = True
            self._guarded(self.messageReceived, payload, isBinary)

    def onMessageBegin(self, isBinary: bool) -> None:
        """As autobahn's, and the fragments are counted."""
        self._fragments = 0
        super().onMessageBegin(isBinary)

    def onMessageFrameBegin(self, length: int) -> None:
        """As autobahn's; too many fragments are as bad as too many octets."""
        self._fragments += 1
        super().onMessageFrameBegin(length)
        if self._fragments > self.factory.frames_max and not self.failedByMe:
            self._max_message_size_exceeded(0, 0, "too many fragments")

    def onMessageFrameData(self, payload: bytes) -> None:
        """Kept in few pieces: a list of tiny ones weighs many times what they weigh."""
        if not self.failedByMe:
            self.frame_data.append(payload)
            if len(self.frame_data) > _PIECES:
                self.frame_data = _joined(self.frame_data)

    def onMessageFrameEnd(self) -> None:
        """As autobahn's, with few pieces."""
        if not self.failedByMe:
            pieces = self.message_data
            pieces += self.frame_data
            if len(pieces) > _PIECES:
                self.message_data = _joined(pieces)
        self.frame_data = None

    def onMessageEnd(self) -> None:
        """As autobahn's, without its timings and listeners."""
        if not self.failedByMe:
            self.onMessage(b"".join(self.message_data), self.message_is_binary)
        self.message_data = None

    def onPing(self, payload: bytes) -> None:
        """Answered at once, or, by a peer which does not read, only the last one (RFC 6455)."""
        if self._output is not None and self._output.paused:
            self._ping = payload
        else:
            self.sendPong(payload)  # type: ignore[no-untyped-call]

    def onAutoPingTimeout(self) -> None:
        """No pong: the peer is gone, unless it is we who do not read, or it who reads slowly."""
        if self._reading_paused or (self._output is not None and self._output.paused):
            self.autoPingTimeoutCall = self.factory.reactor.callLater(
                self.autoPingTimeout, self.onAutoPingTimeout
            )
        else:
            super().onAutoPingTimeout()

    def onCloseFrame(self, code: int, reasonRaw: bytes) -> bool | None:
        """The peer's close; a client gives the server some time to drop the connection."""
        answer: bool | None = super().onCloseFrame(code, reasonRaw)
        if not self.factory.isServer and self.state == _CLOSING and self._drop_call is None:
            self._drop_call = self.factory.reactor.callLater(self.factory.close_seconds, self._drop)
        return answer

    def _drop(self) -> None:
        self._drop_call = None
        self._overdue = True
        self.dropConnection(abort=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone: no timer of this connection remains."""
        if self._output is not None:
            self._output.stop()
        for call in (self._drop_call, self.closeHandshakeTimeoutCall):
            if call is not None and call.active():
                call.cancel()
        self._drop_call = self.closeHandshakeTimeoutCall = None
        self._reading_paused = False
        super().connectionLost(reason)  # type: ignore[misc]  # autobahn's Twisted class has it

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """autobahn's last word, once."""
        self._guarded(self.webSocketClosed, wasClean, code, reason)

    # -- from autobahn, to the transport -------------------------------------------------------

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        """Octets to the peer, in order, through the bounded queue."""
        if self._output is None:
            self.transport.write(data)
        else:
            self._output.write(data)

    def sendMessage(
        self,
        payload: bytes,
        isBinary: bool = False,
        fragmentSize: int | None = None,
        sync: bool = False,
        doNotCompress: bool = False,
    ) -> None:
        """autobahn's verb, one frame a message; silently nothing when not open."""
        self.sendMessages(((payload, isBinary),))

    def _drained(self) -> None:
        if self._ping is not None:
            payload, self._ping = self._ping, None
            self.sendPong(payload)  # type: ignore[no-untyped-call]
        if self._output is not None and self._output.ending:
            self._end()
        elif self.state == _OPEN:
            self.outputDrained()

    def _closeConnection(self, abort: bool = False) -> None:
        """Close the transport: at once, or when the peer has read what waits for it.

        After both close frames there is nothing to cut off: a reset could overtake ours, and a
        browser would call the connection unclean.
        """
        output = self._output
        abort = abort and (self._overdue or not self.wasClean)
        if abort or output is None or not (output.paused or output.octets):
            self._end(abort)
        else:
            output.ending = True

    def unregisterProducer(self) -> None:
        """Kept back: the queue goes on draining until :meth:`_end`."""

    def _end(self, abort: bool = False) -> None:
        if self._output is not None:
            self._output.stop()
            if not self._ended:
                self.transport.unregisterProducer()
        self._ended = True
        if abort:
            self.transport.abortConnection()
            return
        self.transport.loseConnection()
        if self._drop_call is None:  # a peer which reads nothing would keep the rest for ever
            factory = self.factory
            self._drop_call = factory.reactor.callLater(
                factory.unread_seconds, self.transport.abortConnection
            )


def _joined(pieces: list[Any]) -> list[Any]:
    """The same octets as one piece, which grows in linear time when it is joined again."""
    whole = pieces[0] if isinstance(pieces[0], bytearray) else bytearray(pieces[0])
    for piece in pieces[1:]:
        whole += piece
    return [whole]


def _frame(payload: bytes, binary: bool, masked: bool) -> tuple[bytes, ...]:
    """One unfragmented data frame (RFC 6455, 5.2), as its parts."""
    opcode = b"\x82" if binary else b"\x81"
    length = len(payload)
    mask_bit = 0x80 if masked else 0
    if length <= 125:
        head = opcode + (mask_bit | length).to_bytes(1, "big")
    elif length <= 0xFFFF:
        head = opcode + struct.pack("!BH", mask_bit | 126, length)
    else:
        head = opcode + struct.pack("!BQ", mask_bit | 127, length)
    if not masked:
        return head, payload
    # The mask only has to differ from frame to frame: it protects proxies from browser scripts,
    # and the one who runs this process can write to the socket as they like.
    mask = getrandbits(32).to_bytes(4, "big")
    return head, mask, _masked(payload, mask) if payload else b""


def _masked(payload: bytes, mask: bytes) -> bytes:
    """``payload`` with the mask applied, or taken off (RFC 6455, 5.3)."""
    length = len(payload)
    if length > _MASKED_AS_NUMBER:
        octets: bytes = create_xor_masker(mask, length).process(payload)
        return octets
    key = (mask * (length // 4 + 1))[:length]
    number = int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")
    return number.to_bytes(length, "little")


def _cut(reason: str) -> bytes:
    """``reason`` as a close frame can carry it: at most 123 octets of whole characters."""
    return reason.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode()


class WebSocketServerConnection(WebSocketConnection, autobahn.WebSocketServerProtocol):
    """The server's side of one connection."""

    peer: Any
    _transport_details: Any

    def onConnect(self, request: ConnectionRequest) -> str | None:
        """Refuse foreign origins, then choose the sub-protocol.

        A client which offers sub-protocols gets the first one the factory knows; one which offers
        none is accepted without.
        """
        if request.origin and not self.factory.origin_allowed(request.origin):
            self.factory.refused_origins += 1
            raise ConnectionDeny(ConnectionDeny.FORBIDDEN, "origin not allowed")
        for name in request.protocols:
            if name in self.factory.protocols:
                return str(name)
        return None


class WebSocketClientConnection(WebSocketConnection, autobahn.WebSocketClientProtocol):
    """The client's side of one connection."""

    peer: Any
    _transport_details: Any

    def onConnecting(self, transport_details: object) -> ConnectingRequest:
        """The upgrade request; an IPv6 address goes into brackets, which autobahn forgets."""
        factory = self.factory
        host = f"[{factory.host}]" if ":" in factory.host else factory.host
        return ConnectingRequest(
            host=host,
            port=factory.port,
            resource=factory.resource,
            headers=factory.headers,
            useragent=factory.useragent,
            origin=factory.origin,
            protocols=factory.protocols,
        )


class _Bounds:
    """What both factories set: all of autobahn's bounds, and ours."""

    isServer: ClassVar[bool]
    reactor: Any

    def bound(self, limits: Limits) -> None:
        """Put ``limits`` (which contain :data:`WEBSOCKET_LIMITS`) in force."""
        self._batched_timer = PlainTimer(self.reactor)
        self.unread_octets = limits.integer("unread-octets")
        self.unread_seconds = limits["unread-seconds"]
        self.upgrade_octets = limits.integer("websocket-upgrade-octets")
        self.close_seconds = limits["websocket-close-seconds"]
        self.frames_max = limits.integer("websocket-message-frames")
        self.refused_connections = 0
        self.refused_origins = 0
        octets = limits.integer("websocket-message-octets")
        options: dict[str, Any] = {
            "maxFramePayloadSize": octets,
            "maxMessagePayloadSize": octets,
            "failByDrop": False,
            "openHandshakeTimeout": limits["websocket-upgrade-seconds"],
            "closeHandshakeTimeout": limits["websocket-close-seconds"],
            "autoPingInterval": limits["websocket-ping-seconds"],
            "autoPingTimeout": limits["websocket-pong-seconds"],
            "tcpNoDelay": True,
        }
        if self.isServer:
            options |= {
                "versions": [13],
                "webStatus": False,
                "maxConnections": limits.integer("connections"),
                # Origins are compared exactly in onConnect, where a refusal is a 403.
                "allowedOrigins": ["*"],
                "allowNullOrigin": True,
            }
        self.setProtocolOptions(**options)  # type: ignore[attr-defined]


class BoundedServerFactory(_Bounds, autobahn.WebSocketServerFactory):
    """Makes server connections; needs no URL, so it listens on any endpoint.

    Attributes:
        refused_connections: refused because ``connections`` were there.
        refused_origins: browser pages from origins which are not listed.
    """

    protocol = WebSocketServerConnection
    noisy = False

    def __init__(
        self,
        reactor: object,
        limits: Limits,
        *,
        origins: Sequence[str] = (),
        protocols: Sequence[str] = (),
    ) -> None:
        """``origins`` as :func:`parse_origins` takes them; ``protocols`` are sub-protocol names.

        Raises ConfigurationError for what is no origin.
        """
        super().__init__(  # type: ignore[no-untyped-call]
            reactor=reactor, protocols=list(protocols), server=""
        )
        self.origins = parse_origins(origins)
        self.bound(limits)

    def origin_allowed(self, origin: str) -> bool:
        """May a page from ``origin`` (the header's text) connect?"""
        if "*" in self.origins:
            return True
        try:
            return origin_of(origin) in self.origins
        except ValueError:
            return False

    def buildProtocol(self, address: Any) -> WebSocketServerConnection | None:
        """A connection, or None (which closes it) above ``connections``."""
        if self.countConnections >= self.maxConnections:
            self.refused_connections += 1
            return None
        connection: Any = super().buildProtocol(address)
        return connection  # type: ignore[no-any-return]


class BoundedClientFactory(_Bounds, autobahn.WebSocketClientFactory):
    """Makes client connections to one ``ws://`` or ``wss://`` address."""

    protocol = WebSocketClientConnection
    noisy = False

    def __init__(
        self,
        reactor: object,
        limits: Limits,
        url: str,
        *,
        origin: str | None = None,
        protocols: Sequence[str] = (),
    ) -> None:
        """``url`` as :func:`parse_address` takes it; ``origin`` only to play a browser."""
        parse_address(url)
        super().__init__(  # type: ignore[no-untyped-call]
            reactor=reactor, url=url, origin=origin, protocols=list(protocols), useragent=None
        )
        self.bound(limits)
