"""ZeroMQ sockets in the reactor, bounded: what txzmq gives, with a limit on everything.

txzmq reads until its socket is empty, however long that takes, and libzmq's own defaults have no
bounds.  Here a turn of the reactor reads at most :data:`READS_PER_TURN` messages, high-water marks
and the size of a frame are set, what a peer does not read waits in a bounded queue, and reading can
be paused.  Importing txzmq installs the default reactor, so that happens when the first socket is
made, not when this module is imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import zmq

from ..core.errors import ConfigurationError

READS_PER_TURN: Final = 256
"""Messages; measured: the reactor stands still for at most some tens of milliseconds."""

READ_OCTETS_PER_TURN: Final = 4 << 20
"""After so many octets a turn reads no further message, either."""

RETRY_SECONDS: Final = 0.02
"""How often a peer whose pipe was full is tried again: ROUTER does not say when it has room."""

LINGER_MILLISECONDS: Final = 500
"""How long a closed socket goes on sending what waits in it."""

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"mtl"
KEY_TEXT_OCTETS: Final = 40

Received = Callable[[list[list[bytes]]], None]


class CurveServer(NamedTuple):
    """A server's secret key, and the public keys (Z85) of those who may connect, with names."""

    secret: bytes
    authorized: Mapping[bytes, str]


class CurveClient(NamedTuple):
    """A client's keys and the public key of the server it wants (all Z85)."""

    server: bytes
    public: bytes
    secret: bytes


@dataclass(slots=True)
class Bounds:
    """What bounds a socket: octets of a frame, what a peer may leave unread, times in seconds."""

    frame_octets: int
    peer_messages: int = 1000  # which libzmq holds for one peer in each direction
    unread_messages: int = 10_000
    unread_octets: int = 16 << 20
    unread_seconds: float = 30.0
    handshake_seconds: float = 10.0


class _Backlog:
    """What one peer has not taken yet."""

    __slots__ = ("messages", "octets", "since")

    def __init__(self, since: float) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.octets = 0
        self.since = since


# ── Addresses ───────────────────────────────────────────────────────────────────────────────────


def check_address(address: str) -> None:
    """Raise ConfigurationError unless this is a ZeroMQ address of TCP or of this machine."""
    parts = urlsplit(address)
    if parts.scheme in ("ipc", "inproc") and address.partition("://")[2]:
        return
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    good = port in ("*", "0") or (port.isdecimal() and int(port) < 65536)
    if not address.startswith("tcp://") or not colon or not host or not good:
        raise ConfigurationError(
            f"not a ZeroMQ address: {address!r}; tcp://HOST:PORT or ipc://PATH is expected"
        )


def is_local(address: str) -> bool:
    """Only this machine can reach this address."""
    if not address.startswith("tcp://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host in ("localhost", "lo"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def port_of(address: str) -> int:
    """The TCP port of an address; 0 where there is none."""
    port = address.rpartition(":")[2]
    return int(port) if address.startswith("tcp://") and port.isdecimal() else 0


def with_port(address: str, port: int) -> str:
    """The address on the same host with another port; the same address for port 0 or no TCP."""
    if not port or not address.startswith("tcp://"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


# ── Sockets ─────────────────────────────────────────────────────────────────────────────────────


@cache
def _txzmq() -> Any:
    """The module, imported late, with the classes of ours which derive from its own."""
    import txzmq

    class Factory(txzmq.ZmqFactory):  # type: ignore[misc]
        lingerPeriod = LINGER_MILLISECONDS

    class Connection(_Bounded, txzmq.ZmqConnection):  # type: ignore[misc]
        tcpKeepalive = 1
        tcpKeepaliveCount = 3
        tcpKeepaliveIdle = 60
        tcpKeepaliveInterval = 20

    class Router(Connection):
        socketType = zmq.ROUTER

    class Dealer(Connection):
        socketType = zmq.DEALER

    return Factory, Router, Dealer


class _Bounded:
    """Reads in slices, sends without blocking; mixed into txzmq's connection."""

    socket: Any
    factory: Any
    read_scheduled: Any
    socketType: int

    def __init__(
        self,
        factory: Any,
        received: Received,
        bounds: Bounds,
        *,
        lost: Callable[[bytes], None] = lambda peer: None,
        blocked: Callable[[bytes, bool], None] = lambda peer, full: None,
        with_keys: bool = False,
        prepare: Callable[[Any], None] = lambda socket: None,
    ) -> None:
        """Make a socket without an endpoint.

        ``received(messages)`` is called once for each read.  ``lost(peer)``: the peer is not there
        or left too much unread; ``blocked(peer, full)``: its pipe is full, or has room again.
        ``with_keys``: the first frame becomes the identity bound to the peer's CURVE key.
        ``prepare(socket)`` sets more options before anything is connected.
        """
        self._received = received
        self._bounds = bounds
        self._lost = lost
        self._blocked = blocked
        self._with_keys = with_keys
        self._prepare = prepare
        self._paused = False
        self._backlogs: dict[bytes, _Backlog] = {}
        self._retry: Any = None
        self.highWaterMark = bounds.peer_messages
        super().__init__(factory)  # type: ignore[call-arg]
        socket = self.socket
        socket.set(zmq.MAXMSGSIZE, bounds.frame_octets)
        if self.socketType == zmq.ROUTER:
            socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.HANDSHAKE_IVL, int(bounds.handshake_seconds * 1000))
        prepare(socket)

    def bind(self, address: str) -> str:
        """Listen; the address with the port which was chosen.  ConfigurationError if it cannot."""
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot listen on {address}: {error.strerror}") from None
        last: bytes = self.socket.get(zmq.LAST_ENDPOINT)
        return last.rstrip(b"\0").decode()

    def connect(self, address: str) -> None:
        """Connect; ConfigurationError if the address is none."""
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot connect to {address}: {error.strerror}") from None

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def doRead(self) -> None:
        """Read one slice; more in the next turn."""
        if self.read_scheduled is not None:
            if self.read_scheduled.active():
                self.read_scheduled.cancel()
            self.read_scheduled = None
        if self._paused or self.factory is None or self.socket is None:
            return
        messages, more = self._slice()
        if more:
            self._readSoon()
        if messages:
            self._received(messages)

    def _slice(self) -> tuple[list[list[bytes]], bool]:
        """Some messages, and whether there may be more."""
        messages: list[list[bytes]] = []
        receive = self._receiveWithKey if self._with_keys else self.socket.recv_multipart
        octets = 0
        try:
            while len(messages) < READS_PER_TURN and octets < READ_OCTETS_PER_TURN:
                parts = receive(zmq.NOBLOCK)
                messages.append(parts)
                octets += len(parts[-1])
        except zmq.Again:
            return messages, False
        return messages, True

    def _receiveWithKey(self, flags: int) -> list[bytes]:
        from .machine.sessions import bound_identity

        frames = self.socket.recv_multipart(flags, copy=False)
        key = frames[0].get("User-Id").encode()
        identity, *rest = (frame.bytes for frame in frames)
        return [bound_identity(identity, key), *rest]

    def _readSoon(self) -> None:
        if self.read_scheduled is None and self.factory is not None:
            self.read_scheduled = self.factory.reactor.callLater(0, self.doRead)

    def pauseProducing(self) -> None:
        """Read no more for now; libzmq's buffers fill up, and then the peers wait."""
        self._paused = True

    def resumeProducing(self) -> None:
        """Read again."""
        self._paused = False
        self._readSoon()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def sendAll(self, messages: Sequence[list[bytes]]) -> None:
        """Send, or queue what a peer cannot take now; order per peer is kept."""
        for parts in messages:
            peer = parts[0] if self.socketType == zmq.ROUTER else b""
            backlog = self._backlogs.get(peer)
            if backlog is not None:
                self._wait(peer, backlog, parts)
            elif not self._sent(peer, parts):
                backlog = self._backlogs[peer] = _Backlog(self.factory.reactor.seconds())
                self._wait(peer, backlog, parts)
                self._blocked(peer, True)
        # Touching the socket may have swallowed the edge which says that there is something.
        self._readSoon()

    def _sent(self, peer: bytes, parts: list[bytes]) -> bool:
        """The socket took it, or its peer is not there; False: there is no room now."""
        if self._with_keys:
            from .machine.sessions import plain_identity

            parts = [plain_identity(parts[0]), *parts[1:]]
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lost(peer)
        return True

    def _wait(self, peer: bytes, backlog: _Backlog, parts: list[bytes]) -> None:
        backlog.messages.append(parts)
        backlog.octets += sum(map(len, parts))
        bounds = self._bounds
        if len(backlog.messages) > bounds.unread_messages or backlog.octets > bounds.unread_octets:
            self._giveUp(peer)
        elif self._retry is None:
            self._retry = self.factory.reactor.callLater(RETRY_SECONDS, self._tryAgain)

    def _giveUp(self, peer: bytes) -> None:
        if self._backlogs.pop(peer, None) is not None:
            self._lost(peer)

    def _tryAgain(self) -> None:
        self._retry = None
        now = self.factory.reactor.seconds()
        for peer, backlog in list(self._backlogs.items()):
            messages = backlog.messages
            for _ in range(READS_PER_TURN):
                if not messages or not self._sent(peer, messages[0]):
                    break
                backlog.octets -= sum(map(len, messages.popleft()))
                backlog.since = now
            if self._backlogs.get(peer) is not backlog:
                continue
            if not messages:
                del self._backlogs[peer]
                self._blocked(peer, False)
            elif backlog.since + self._bounds.unread_seconds <= now:
                self._giveUp(peer)
        if self._backlogs and self._retry is None:
            self._retry = self.factory.reactor.callLater(RETRY_SECONDS, self._tryAgain)
        self._readSoon()

    @property
    def unread(self) -> int:
        """Messages which wait for peers."""
        return sum(len(backlog.messages) for backlog in self._backlogs.values())

    def shutdown(self) -> None:
        """Close the socket; what libzmq has goes on being sent for a moment."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._backlogs.clear()
        if self.read_scheduled is not None:
            if self.read_scheduled.active():
                self.read_scheduled.cancel()
            self.read_scheduled = None
        if self.factory is not None:
            super().shutdown()  # type: ignore[misc]


class Sockets:
    """A ZeroMQ context in a reactor; makes sockets and closes them all."""

    def __init__(self, reactor: Any) -> None:
        factory, self._router, self._dealer = _txzmq()
        self._factory = factory()
        self._factory.reactor = reactor
        self._zap: Any = None

    def router(self, received: Received, bounds: Bounds, **options: Any) -> Any:
        """A ROUTER socket; the arguments are those of :class:`_Bounded`."""
        return self._router(self._factory, received, bounds, **options)

    def dealer(self, received: Received, bounds: Bounds, curve: CurveClient | None) -> Any:
        """A DEALER socket.

        It comes back when its connection is lost, with another identity: whoever it talks to does
        not know it any more.  (libzmq could be told not to come back, but then it throws away what
        had arrived before the end: measured.)
        """

        def prepare(socket: Any) -> None:
            if curve is not None:
                socket.curve_serverkey = curve.server
                socket.curve_publickey = curve.public
                socket.curve_secretkey = curve.secret

        return self._dealer(self._factory, received, bounds, prepare=prepare)

    def authenticate(self, curve: CurveServer) -> Callable[[Any], None]:
        """Answer ZAP requests for these keys; what to do with each socket before it listens.

        The User-Id of a connection becomes its public key in Z85.
        """
        self._zap = self._router(self._factory, self._answerZap(curve), Bounds(1 << 16))
        self._zap.bind(ZAP_ADDRESS)

        def prepare(socket: Any) -> None:
            socket.curve_secretkey = curve.secret
            socket.curve_publickey = zmq.curve_public(curve.secret)
            socket.curve_server = True
            socket.zap_domain = ZAP_DOMAIN

        return prepare

    def _answerZap(self, curve: CurveServer) -> Received:
        def received(messages: list[list[bytes]]) -> None:
            self._zap.sendAll([zap_reply(parts, curve.authorized) for parts in messages])

        return received

    def shutdown(self) -> None:
        """Close all sockets and end the context."""
        if self._factory.context is not None:
            self._factory.shutdown()


def zap_reply(parts: Sequence[bytes], authorized: Mapping[bytes, str]) -> list[bytes]:
    """The answer to a ZAP request: envelope, version, request id, status, text, user, metadata."""
    from zmq.utils import z85

    head, key = list(parts[:4]), b""
    if len(parts) == 9 and parts[2] == b"1.0" and parts[4] == ZAP_DOMAIN and parts[7] == b"CURVE":
        key = z85.encode(parts[8])
    if key in authorized:
        return [*head, b"200", b"OK", key, b""]
    return [*head, b"400", b"not authorized", b"", b""]


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────


def read_secret_key(path: str) -> bytes:
    """A secret key: 40 characters of Z85 in a file of their own, or a certificate of pyzmq's.

    Raises ConfigurationError.
    """
    text = _read(path)
    if "secret-key" in text:
        text = text.partition("secret-key")[2].partition('"')[2].partition('"')[0]
    return _key(text.strip(), path)


def read_key(path: str) -> bytes:
    """A key alone in a file, or the public key of a certificate of pyzmq's; ConfigurationError."""
    text = _read(path)
    if "public-key" in text:
        text = text.partition("public-key")[2].partition('"')[2].partition('"')[0]
    return _key(text.strip(), path)


def public_key(secret: bytes) -> bytes:
    """The public key of a secret one."""
    found: bytes = zmq.curve_public(secret)
    return found


def read_authorized_keys(path: str) -> dict[bytes, str]:
    """Public keys, one in a line, each with a name if one follows; ``#`` begins a comment.

    Raises ConfigurationError.
    """
    keys = {}
    for line in _read(path).splitlines():
        words = line.split(maxsplit=1)
        # Z85 may hold a "#": only one at a line's beginning or after a blank is a comment.
        if words and not (words[0].startswith("#") and len(words[0]) != KEY_TEXT_OCTETS):
            name = words[1].partition(" #")[0].strip() if len(words) > 1 else ""
            key = _key(words[0], path)
            keys[key] = name or words[0]
    if not keys:
        raise ConfigurationError(f"{path}: no key may connect")
    return keys


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigurationError(f"cannot read {path}: {reason}") from None


def _key(text: str, path: str) -> bytes:
    octets = text.encode()
    try:
        zmq.curve_public(octets)
    except (zmq.ZMQError, ValueError, AssertionError):
        raise ConfigurationError(f"{path}: no key of 40 characters in Z85") from None
    return octets
