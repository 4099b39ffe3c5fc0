"""ZeroMQ sockets in the reactor, bounded: what txzmq gives, with a limit on everything.

txzmq reads until its socket is empty, however long that takes, and libzmq's own defaults have no
bounds.  Here a turn of the reactor reads at most :data:`.READS_PER_TURN` messages, high-water marks
and the size of a frame are set, what a peer does not read waits in a bounded queue, and reading can
be paused.  Importing txzmq installs the default reactor, so that happens when the first socket is
made, not when this module is imported.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import count
from typing import Any, Final

import zmq
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from zmq.utils import z85

from ...net.peers import CROWDED
from . import (
    EVENT,
    IN_PROCESS,
    ZAP_DOMAIN,
    Bounds,
    Connections,
    CurveClient,
    CurveServer,
    address_of,
    metadata,
    shut_down,
    standing,
    who_asks,
    zap_reply,
)
from .bounded import Bounded, Routed, Routing
from .unfinished import EveryUnfinished, Unfinished

LINGER_MILLISECONDS: Final = 500
"""How long a closed socket goes on sending what waits in it."""

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"

Received = Callable[[list[list[bytes]]], None]

TROUBLES: Final[Mapping[int, str]] = {
    zmq.EVENT_CONNECTED: "it has accepted the connection, and says nothing",
    zmq.EVENT_CONNECT_RETRIED: "no connection can be made",
    zmq.EVENT_DISCONNECTED: "it ends the connection",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the hand-shake fails: it may have another CURVE key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the hand-shake fails: other keys, or another protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not let us in",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "it has accepted the connection, and says nothing",
}
"""What libzmq tells of a connection that we make → what may be the trouble."""


CONNECTIONS: Final = (zmq.EVENT_CONNECTED, zmq.EVENT_DISCONNECTED)

HAND_SHAKES: Final = TROUBLES.keys() - {*CONNECTIONS, zmq.EVENT_CONNECT_RETRIED}

SERVER: Final = b"server"

ENDLESS: Final = "it sends a message that does not end"

MISMATCH: Final = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
"""What a failed hand-shake says where one side has CURVE and the other has not."""


def refusal(kind: int, value: int, curve: bool) -> str:
    """Return what is wrong for good, so that libzmq does not try again; else ""."""
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it does not know our CURVE key" if curve else "it does not let us in"
    if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MISMATCH:
        return "it has no CURVE, and we have keys" if curve else "it wants CURVE keys"
    return ""


class Watched:
    """What a DEALER knows of its connection."""

    refused: Callable[[str], None] = staticmethod(lambda text: None)  # for good
    ended: Callable[[], None] = staticmethod(lambda: None)  # it stood; more may be read
    monitor: Any
    socket: Any
    _readSoon: Callable[[], None]
    curved = False
    _failed = False  # the last hand-shake has
    _shaken = False
    _trouble = ""
    _endless = False  # the server has sent a message that did not end

    @property
    def trouble(self) -> str:
        self.monitor.readAll()
        return ENDLESS if self._endless else self._trouble

    def takenAt(self, now: float) -> float:
        return self.unfinished.moved_at(SERVER)

    def __init__(
        self,
        factory: Any,
        received: Any,
        bounds: Bounds,
        *,
        every: EveryUnfinished,
        **options: Any,
    ) -> None:
        """``every`` cuts off a server whose message has no end: libzmq keeps it in memory."""
        self.unfinished: Unfinished = Unfinished(every, bounds, self._cutOff, self._readSoon)
        super().__init__(factory, received, bounds, **options)  # type: ignore[call-arg]

    def _cutOff(self, host: str, nbytes: int) -> None:
        self._endless = True

    def _deliver(self, messages: list[list[bytes]]) -> None:
        self.unfinished.read([[SERVER]])
        super()._deliver(messages)  # type: ignore[misc]

    def _readOn(self) -> None:
        self.unfinished.read_to_end()

    def shutdown(self) -> None:
        if self.monitor is not None:  # it may know of a connection which nobody has asked it for
            self.refused, self.ended = Watched.refused, Watched.ended
            self.monitor.readAll()
        if not self._shaken:  # whom what waits is for is not there: its end would hold us up
            self.socket.set(zmq.LINGER, 0)
        self.unfinished.shutdown()
        super().shutdown()  # type: ignore[misc]

    def happened(self, messages: list[list[bytes]]) -> None:
        for event, where in messages:
            kind, value = EVENT.unpack(event)
            if kind in CONNECTIONS:
                self.unfinished.happened([[event, where]])
                self.unfinished.named(SERVER, value)
            text = refusal(kind, value, self.curved)
            if text:
                self._trouble = text
                self.refused(text)
                return
            if kind == zmq.EVENT_DISCONNECTED and self._shaken:
                self.ended()
            self._shaken = kind == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if kind in HAND_SHAKES:
                self._trouble = TROUBLES[kind]
                self._failed = kind != zmq.EVENT_HANDSHAKE_SUCCEEDED
            # It ends the connection and tries again after each failure, which says less than that.
            elif not self._failed and (
                kind != zmq.EVENT_CONNECT_RETRIED or self._trouble in ("", TROUBLES[kind])
            ):
                self._trouble = TROUBLES[kind]


# ── Admission ─────────────────────────────────────────────────────────────────────────────────────


EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

LEFT: Final = ""
TOO_SLOW: Final = "its hand-shake took longer than the limit handshake allows"
OTHER_PROTOCOL: Final = (
    "it does not speak ZMTP 3: it is a ZeroMQ before version 4, or no ZeroMQ at all"
)


class Strangers:
    """Connections of which no message was read yet: how many of them ended without a hand-shake.

    libzmq ends a connection of ZMTP 1 or 2, or of another protocol, without an event of its own, as
    it tells every end.  Nor does it say which connection its ZAP request is about: only the address
    is known.  So the ends of an address without a reason are told as soon as they are more than
    were asked about.
    """

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._standing: dict[int, str] = {}  # descriptor → address
        self._open: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()  # without a reason
        self._asked: Counter[str] = Counter()

    def accepted(self, descriptor: int, address: str) -> None:
        self._standing[descriptor] = address
        self._open[address] += 1

    def asked(self, address: str) -> None:
        if self._open[address]:
            self._asked[address] += 1

    def heard(self, descriptor: int) -> None:
        self._gone(descriptor, self._asked, -1)

    def ended(self, descriptor: int, reason: str | None) -> None:
        """It has ended, for a reason that was told or need not be; None: libzmq says none."""
        self._gone(descriptor, self._ended, 1 if reason is None else 0)

    def _gone(self, descriptor: int, counter: Counter[str], change: int) -> None:
        address = self._standing.pop(descriptor, None)
        if address is None:
            return
        self._open[address] -= 1
        counter[address] += change
        while self._ended[address] > self._asked[address]:
            self._ended[address] -= 1
            self._tell(address, OTHER_PROTOCOL)
        if not self._open[address]:
            del self._open[address], self._ended[address], self._asked[address]


class ConnectionAdmission:
    """The connections of one server, through all its sockets."""

    def __init__(
        self,
        limit: int,
        per_address: int,
        turned_away: Callable[[str], None],
        refused: Callable[[str, str], None] = lambda address, text: None,
        eviction: Callable[[str, Mapping[int, str]], int | None] = lambda address, connections: (
            None
        ),
    ) -> None:
        """``limit`` connections in all, ``per_address`` of one address (0: any number).

        ``turned_away(limit)`` is called with the name of the limit, ``refused(address, text)`` for
        who may not connect for another reason.  ``eviction(address, connections)`` returns the
        descriptor that is closed for a newcomer, or None; it is asked when nearly all that may
        connect have.
        """
        self._eviction = eviction
        self.refused = refused
        self.connections: dict[int, str] = {}  # descriptor → address; "" on ipc
        self._limit = limit
        self._per_address = per_address
        self._turned_away = turned_away
        self._listeners: dict[int, object] = {}  # by descriptor
        self._failing: dict[object, str] = {}  # by listener: why its next connection ends
        self.strangers: Strangers = Strangers(self._tell)

    def happened(
        self, messages: list[list[bytes]], listener: object = None, *, curve: bool = False
    ) -> list[list[bytes]]:
        """Follow everything that libzmq has to say now of the connections of one ``listener``.

        Listeners are asked one after the other.  So the end of a connection may be told after
        another listener has accepted one at the same descriptor; that one stays.  Tell of
        hand-shakes that have failed, and return the events that are about descriptors: libzmq tells
        of the descriptor right after the failure.
        """
        rest: list[list[bytes]] = []
        new: dict[int, str] = {}
        for message in messages:
            kind, descriptor = EVENT.unpack(message[0])
            if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failing[listener] = failed_hand_shake(descriptor, curve)
                continue
            if kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # Who only looks whether somebody listens is no fault.
                self._failing[listener] = TOO_SLOW if descriptor == errno.EAGAIN else LEFT
                continue
            rest.append(message)
            reason = self._failing.pop(listener, None)
            if new.pop(descriptor, None) is not None:
                # Nobody can say any more whose it was, and libzmq has not asked about it.
                self._tell("", OTHER_PROTOCOL if reason is None else reason)
            if self._listeners.get(descriptor) is listener:
                self._tell(self.connections.get(descriptor, ""), reason or LEFT)
                self._forget(descriptor, reason)
            if kind == zmq.EVENT_ACCEPTED:
                new[descriptor] = os.fsdecode(message[1])
        for descriptor, endpoint in new.items():
            self._accepted(descriptor, endpoint, listener)
        return rest

    def _tell(self, address: str, text: str) -> None:
        if text != LEFT:
            self.refused(address, text)

    def _forget(self, descriptor: int, reason: str | None = LEFT) -> None:
        self._listeners.pop(descriptor, None)
        self.strangers.ended(descriptor, reason)
        self.connections.pop(descriptor, None)

    def _accepted(self, descriptor: int, endpoint: str, listener: object) -> None:
        address = ""
        try:
            with standing(descriptor, endpoint) as connection:
                if connection is not None:
                    self._forget(descriptor)  # the end of its former owner is told later
                    address = address_of(connection)
                    if len(self.connections) >= self._limit * CROWDED:
                        self._evict(address)
                    limit = self._exceeded(address)
                    if limit:
                        connection.shutdown(socket.SHUT_RDWR)
                        self._turned_away(limit)
                        return
                    self.connections[descriptor] = address
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return  # nobody can look whose it is
            # Else it has gone already, and its end is told later.
        if self._listeners.setdefault(descriptor, listener) is listener:
            self.strangers.accepted(descriptor, address)

    def _evict(self, address: str) -> None:
        silent = self._eviction(address, self.connections)
        if silent is not None:
            where = self.connections[silent]
            self._forget(silent)
            shut_down(silent, (where,))

    def _exceeded(self, address: str) -> str:
        if len(self.connections) >= self._limit:
            return "connections"
        most = self._per_address
        if address and most and [*self.connections.values()].count(address) >= most:
            return "connections-per-address"
        return ""


def failed_hand_shake(error: int, curve: bool) -> str:
    """Return what is wrong with a peer whose hand-shake ended with this error of libzmq's."""
    if error == MISMATCH:
        return (
            "it has no CURVE keys, and --curve-key wants them"
            if curve
            else ("it wants CURVE, and there is no --curve-key")
        )
    if error == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "it has another public key for this server than that of --curve-key"
    return "its hand-shake is none of ZeroMQ's"


# ── Sockets ─────────────────────────────────────────────────────────────────────────────────────


@cache
def _txzmq() -> Any:
    """Return our classes above txzmq's, which is imported late."""
    import txzmq

    class Factory(txzmq.ZmqFactory):
        lingerPeriod = LINGER_MILLISECONDS

    class Connection(Bounded, txzmq.ZmqConnection):
        tcpKeepalive = 1
        tcpKeepaliveCount = 3
        tcpKeepaliveIdle = 60
        tcpKeepaliveInterval = 20

    class Router(Routing, Connection):
        socketType = zmq.ROUTER

    class Admission(Connection):
        socketType = zmq.ROUTER

    class Dealer(Watched, Connection):
        socketType = zmq.DEALER

    class Monitor(Connection):
        socketType = zmq.PAIR

    return Factory, Router, Admission, Dealer, Monitor


class Sockets:
    def __init__(self, reactor: Any) -> None:
        factory, self._router, self._admission, self._dealer, self._monitor = _txzmq()
        self._factory = factory()
        self._factory.reactor = reactor
        self.connections: Connections = Connections()
        self._numbers = count()
        self._every = EveryUnfinished(reactor)

    def router(self, received: Routed, bounds: Bounds, **options: Any) -> Any:
        return self._router(
            self._factory, received, bounds, connections=self.connections, **options
        )

    def dealer(self, received: Received, bounds: Bounds, curve: CurveClient | None) -> Any:
        """Return a DEALER socket; ZMQError where the system has no more of them.

        It comes back with another identity when its connection is lost.  (If libzmq is told not to,
        it throws away what had arrived before the end: measured.)
        """

        def prepare(connection: Any) -> None:
            socket = connection.socket
            connection.curved = curve is not None
            if curve is not None:
                socket.curve_serverkey = curve.server
                socket.curve_publickey = curve.public
                socket.curve_secretkey = curve.secret
            address = f"inproc://dealer-{next(self._numbers)}"
            try:
                socket.monitor(address, sum(TROUBLES))
                monitor = self._monitor(self._factory, connection.happened, IN_PROCESS)
            except zmq.ZMQError:
                connection.shutdown()
                raise
            monitor.connect(address)
            connection.monitor = monitor

        return self._dealer(self._factory, received, bounds, every=self._every, prepare=prepare)

    def admit(
        self,
        admission: ConnectionAdmission,
        curve: CurveServer | None,
        keys: Callable[[], Mapping[bytes, str]],
    ) -> Callable[[Any], None]:
        """Let in only who may connect; what to do with each ROUTER before it listens.

        Connections go through ``admission`` and get their serials here.  With ``curve`` they need
        one of ``keys()``, which in Z85 becomes the connection's User-Id.
        """
        monitors: list[Any] = []
        routers: list[Any] = []

        def happened(router: Any, messages: list[list[bytes]]) -> None:
            told = admission.happened(messages, router, curve=curve is not None)
            for event, _ in told:
                # Whoever had the descriptor, also if it was given to somebody else by now.
                self.connections.disconnected(EVENT.unpack(event)[1])
            router.unfinished.happened(told)

        def asked(messages: list[list[bytes]]) -> None:
            # libzmq has told of a connection before it asks about it, and nothing goes through it
            # before the answer: so whoever is turned away is gone by then, and whoever had its
            # descriptor before is known to have ended.
            for monitor in monitors:
                monitor.readAll()
            for parts in messages:
                admission.strangers.asked(who_asks(parts))
            # Who comes with an identity is ignored, and never told, while the ROUTER has it still;
            # it lets go of it when it has read on to the end of what its owner sent.  Read here,
            # libzmq's thread is asked to end that before it is told to let the newcomer in.
            for router in routers:
                router.doRead()
            admit = self.connections.admit
            authorized = None if curve is None else keys()
            replies = [zap_reply(parts, authorized, metadata(admit())) for parts in messages]
            zap.sendAll(replies)
            for parts, reply in zip(messages, replies, strict=True):
                if reply[4] != b"200":  # who has no CURVE where it is wanted has failed before
                    key = z85.encode(parts[8]).decode()
                    text = f"its CURVE key {key} is not in the file of --curve-authorized"
                    admission.refused(who_asks(parts), text)

        self.connections.heard = admission.strangers.heard
        zap = self._admission(self._factory, asked, IN_PROCESS)
        zap.bind(ZAP_ADDRESS)

        def prepare(router: Any) -> None:
            routers.append(router)
            socket = router.socket
            socket.zap_domain = ZAP_DOMAIN
            if curve is not None:
                socket.curve_secretkey = curve.secret
                socket.curve_publickey = zmq.curve_public(curve.secret)
                socket.curve_server = True
            address = f"inproc://door-{socket.fd}"
            socket.monitor(address, EVENTS)
            monitor = self._monitor(self._factory, partial(happened, router), IN_PROCESS)
            monitor.connect(address)
            router.monitor = monitor
            monitors.append(monitor)

        return prepare

    def shutdown(self) -> Deferred[None]:
        """Close all; fires when others can listen there: peers may read for half a second."""
        context, reactor = self._closeAll(), self._factory.reactor
        return deferToThreadPool(reactor, reactor.getThreadPool(), context.term)

    def giveUp(self) -> None:
        """Close all of them, to which nothing was written: others can listen there at once."""
        self._closeAll().term()

    def _closeAll(self) -> Any:
        context, self._factory.context = self._factory.context, None
        for connection in sorted(self._factory.connections, key=lambda one: one.monitor is None):
            connection.shutdown()
        return context
