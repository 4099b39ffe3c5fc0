"""MTL uses ZeroMQ through these modules; here are its addresses, CURVE's keys (``MT-31``), and what
the system and libzmq say of connections.

Importing txzmq installs the default reactor; it is imported when the first socket is made.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import inf
from typing import Any, Final, NamedTuple

import zmq
from zmq.utils import z85

from ...core.errors import ConfigurationError
from ...core.reasons import cannot_listen
from ...net.endpoints import place_for

# ── Addresses ─────────────────────────────────────────────────────────────────────────────────────


def check_address(address: str) -> None:
    """Raise ConfigurationError unless this is a ZeroMQ address of TCP or of this machine."""
    if not isinstance(address, str):
        raise TypeError(f"a ZeroMQ address is a text, not {type(address).__name__}")
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest and "\0" not in address:
        return
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    good = port in ("*", "0") or (port.isascii() and port.isdecimal() and int(port) < 65536)
    good = good and host.startswith("[") == host.endswith("]")
    if not address.startswith("tcp://") or not colon or not host or not good:
        raise ConfigurationError(
            f"not a ZeroMQ address: {address!r}; tcp://HOST:PORT or ipc://PATH is expected"
        )


def choose_family(socket: zmq.Socket[bytes], address: str) -> None:
    """Allow IPv6 for an address of it alone: of a name's two libzmq would try no other."""
    socket.set(zmq.IPV6, address.startswith("tcp://["))


def named(address: str) -> Any:
    """Return the address for pyzmq, whose own errors take a text alone: not every path is one."""
    is_text = address == address.encode("utf-8", "ignore").decode()
    return address if is_text else os.fsencode(address)


def bind(bound: zmq.Socket[bytes], address: str) -> Callable[[], None]:
    """Listen there or raise ConfigurationError; return what removes the socket's file.

    That is for just before it is closed: later the file may be another server's.  ZeroMQ by itself
    removes whatever has its name, takes it from a server that listens, and leaves it behind.
    """
    choose_family(bound, address)
    path = address.removeprefix("ipc://")
    ours = path == address or path.startswith("@")
    try:
        with nullcontext() if ours else place_for(path):
            bound.bind(named(address))
    except (OSError, zmq.ZMQError) as error:
        why = error.strerror if isinstance(error, zmq.ZMQError) else error
        raise ConfigurationError(f"cannot listen on {address}: {cannot_listen(why)}") from None
    if ours or path == "*":  # libzmq removes the one whose name it has chosen
        return lambda: None
    path = os.path.abspath(path)
    made = os.stat(path)

    def remove() -> None:
        with suppress(OSError):
            if os.path.samestat(os.stat(path), made):
                os.unlink(path)

    return remove


def is_local(address: str) -> bool:
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
    port = address.rpartition(":")[2]
    return int(port) if address.startswith("tcp://") and port.isdecimal() else 0


def with_port(address: str, port: int) -> str:
    """Return the address with another port; port 0 and no TCP change nothing."""
    if not port or not address.startswith("tcp://"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def data_endpoint(control: Sequence[str]) -> str | None:
    """Return where data goes when nobody says: to the next port; None: to the control endpoints."""
    if not all(address.startswith("tcp://") for address in control):
        return None
    first, ports = control[0], {port_of(address) for address in control}
    port = port_of(first) + 1
    while port in ports:
        port += 1
    if port == 1 or port > 65535:
        return f"{first.rpartition(':')[0]}:*"
    return with_port(first, port)


def data_beside(control: Sequence[str], data: str) -> list[str]:
    """Return where data listens: at ``data``, and its port on hosts of ``control`` (``MT-12``)."""
    if not data.startswith("tcp://"):
        return [data]
    port = data.rpartition(":")[2]
    tcp = [data, *(address for address in control if address.startswith("tcp://"))]
    hosts = list(dict.fromkeys(address.rpartition(":")[0] for address in tcp))
    for host in hosts:
        if host.removeprefix("tcp://") in ("*", "0.0.0.0", "[::]"):
            return [f"{host}:{port}"]
    return [f"{host}:{port}" for host in hosts]


# ── CURVE: the keys of both sides, and who may connect ────────────────────────────────────────────


ZAP_DOMAIN: Final = b"mtl"
KEY_TEXT_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class CurveServer:
    """A server's secret key, and the public keys of those who may connect, with names.

    A key is 40 bytes of Z85, as ``zmq.curve_keypair()`` returns them.  Raises ConfigurationError
    for another.
    """

    secret: bytes = field(repr=False)
    authorized: Mapping[bytes, str]

    def __post_init__(self) -> None:
        _check_key("secret", self.secret)
        for key in self.authorized:
            _check_key("authorized", key)


@dataclass(frozen=True, slots=True)
class CurveClient:
    """A client's keys and the public key of the server it wants.

    A key is 40 bytes of Z85, as ``zmq.curve_keypair()`` returns them.  Raises ConfigurationError
    for another, and for a pair that is none.
    """

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("server", "public", "secret"):
            _check_key(name, getattr(self, name))
        if zmq.curve_public(self.secret) != self.public:
            raise ConfigurationError("CURVE: public is not the public key of secret")


def _check_key(name: str, key: object) -> None:
    if not (isinstance(key, bytes) and _is_key(key)):
        raise ConfigurationError(f"CURVE: {name}: a key of 40 bytes in Z85 is expected")


def _is_key(data: bytes) -> bool:
    try:
        zmq.curve_public(data)
    except (zmq.ZMQError, ValueError, AssertionError):
        return False
    return True


def zap_reply(
    parts: Sequence[bytes], authorized: Mapping[bytes, str] | None, metadata: bytes = b""
) -> list[bytes]:
    """Return the answer to a ZAP request; ``metadata`` is for the messages of who is let in.

    ``authorized`` None: anybody without a mechanism.  Only libzmq asks: so a request is whole.
    """
    head, mechanism, rest = list(parts[:4]), parts[7], parts[8:]
    if authorized is None and mechanism == b"NULL":
        return [*head, b"200", b"OK", b"", metadata]
    if authorized is not None and mechanism == b"CURVE":
        key = z85.encode(rest[0])
        if key in authorized:
            return [*head, b"200", b"OK", key, metadata]
    return [*head, b"400", b"not authorized", b"", b""]


def who_asks(parts: Sequence[bytes]) -> str:
    """Return the address that a ZAP request is about; "" on ipc."""
    address = parts[5].decode("utf-8", "replace")
    return "" if address.startswith("localhost:") else address


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────


def read_secret_key(path: str) -> bytes:
    """Read a secret key alone in a file, or of pyzmq's certificates; raise ConfigurationError."""
    return _key_of(path, "secret-key")


def read_key(path: str) -> bytes:
    """Read a key alone in a file, or of pyzmq's certificates; raise ConfigurationError."""
    return _key_of(path, "public-key")


def _key_of(path: str, name: str) -> bytes:
    text = _read(path)
    if name in text:
        text = text.partition(name)[2].partition('"')[2].partition('"')[0]
    return _key(text.strip(), path)


def read_authorized_keys(path: str) -> dict[bytes, str]:
    """Read public keys, one a line, with a name if one follows; raise ConfigurationError."""
    keys: dict[bytes, str] = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        words = line.split(maxsplit=1)
        # Z85 may hold a "#": only one at a line's beginning or after a blank is a comment.
        if words and not (words[0].startswith("#") and len(words[0]) != KEY_TEXT_BYTES):
            name = words[1].partition(" #")[0].strip() if len(words) > 1 else ""
            place, name = f"{path}, line {number}", name or words[0]
            known = keys.setdefault(_key(words[0], place), name)
            if known != name:  # rules are about names
                raise ConfigurationError(f"{place}: this key has the name {known!r} above")
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
    data = text.encode()
    if not _is_key(data):
        raise ConfigurationError(f"{path}: no key of 40 characters in Z85, without b'…' around it")
    return data


# ── What the system says ──────────────────────────────────────────────────────────────────────────


TCP_INFO: Final = struct.Struct("=24xI24xI64xQQ16xII")


class TcpInfo(NamedTuple):
    """Of Linux's ``tcp_info`` what :data:`TCP_INFO` reads, in its order."""

    unacknowledged: int = 0  # segments that the other end has not acknowledged
    silent_ms: int = 0  # since data came last
    acknowledged: int = 0  # bytes, by the other end
    received: int = 0  # bytes
    pieces: int = 0  # segments with data that came; libzmq reads once for each, and for each 8 KiB
    segments: int = 0  # with data that were sent


def tcp_info(descriptor: int) -> TcpInfo | None:
    """Return what is known of a TCP connection; None where the system does not tell."""
    with suppress(OSError, AttributeError, struct.error):
        # Not a copy of the descriptor, which would take twice as long; it is never closed here.
        connection = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        finally:
            connection.detach()
        return TcpInfo._make(TCP_INFO.unpack(told))
    return None


def silent_seconds(descriptor: int) -> float | None:
    """Return the seconds since a TCP peer sent anything; None: unknown, or it owes an ack."""
    told = tcp_info(descriptor)
    return None if told is None or told.unacknowledged else told.silent_ms / 1e3


@contextmanager
def standing(descriptor: int, endpoint: str) -> Iterator[socket.socket | None]:
    """Yield this connection; None if the descriptor is another's by now, OSError if nobody's."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection if _belongs(connection, endpoint) else None


def shut_down(
    descriptor: int, peer: tuple[str] | tuple[str, int], *, at_once: bool = False
) -> bool:
    """Shut down the TCP connection with this host, and port; return whether it still existed.

    libzmq still reads the bytes that came before, up to 2 MiB; ``at_once`` discards them.
    """
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        # The descriptor may be somebody else's by now.
        if connection.getpeername()[: len(peer)] == peer:
            connection.shutdown(socket.SHUT_RDWR)
            if at_once:
                throw_away(connection)
            return True
    return False


def waiting_in(descriptor: int) -> int:
    """Return how many bytes wait in the kernel to be read; 0 if there is no such connection."""
    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def throw_away(connection: socket.socket) -> None:
    """Throw away what waits to be read from a TCP connection after its end, in one call.

    Between two libzmq's thread could read what is behind a gap.  Linux copies nothing (MSG_TRUNC).
    """
    if sys.platform == "linux":
        with suppress(OSError):
            waits = waiting_in(connection.fileno())
            connection.recv(waits, socket.MSG_TRUNC | socket.MSG_DONTWAIT)


def address_of(connection: socket.socket) -> str:
    """Return the host at the other end; "" on ipc."""
    inet = connection.family in (socket.AF_INET, socket.AF_INET6)
    return str(connection.getpeername()[0]) if inet else ""


def _belongs(connection: socket.socket, endpoint: str) -> bool:
    here = connection.getsockname()
    if isinstance(here, tuple):
        ports = (here[1], connection.getpeername()[1])
        return endpoint.rpartition(":")[2] in map(str, ports)
    path = here if isinstance(here, str) else "@" + os.fsdecode(here[1:])
    return endpoint == f"ipc://{path}"


# ── Serials ───────────────────────────────────────────────────────────────────────────────────────

# libzmq names a connection by its descriptor.  Another connection may have that descriptor as soon
# as libzmq has closed it, so whatever changes a connection compares addresses before.
#
# So each connection gets a serial in our answer to its ZAP request, which libzmq puts into the
# metadata of all its messages (``MT-30``).  Before each answer the monitors are read until they are
# empty: when a descriptor is told to be disconnected, every serial under it that was given until
# then belongs to a connection that has ended, also one whose messages were not read yet.


EVENT: Final = struct.Struct("=Hi")
"""What a monitor tells: the kind of event, and its value."""

PROPERTY: Final = "X-Connection"
"""A message's metadata has its connection's serial under this name; peers cannot set it."""

DESCRIPTOR: Final = "__fd"
"""libzmq's metadata names the descriptor like this (its option ``ZMQ_SRCFD`` reads it)."""

_LENGTH: Final = struct.Struct(">I")


def metadata(serial: int) -> bytes:
    """Return the metadata of a ZAP reply that assigns this serial."""
    name, value = PROPERTY.encode(), b"%d" % serial
    return bytes([len(name)]) + name + _LENGTH.pack(len(value)) + value


class Connections:
    def __init__(self) -> None:
        # Called with its descriptor when a first message of a connection that stands was read.
        self.heard: Callable[[int], None] = lambda descriptor: None
        self._given = 0
        self._closed: dict[int, int] = {}  # descriptor → the last serial given when it was closed
        self._standing: dict[int, dict[int, Callable[[int], None]]] = {}

    def admit(self) -> int:
        """The serial of a connection that is let in now; the monitors were read before."""
        self._given += 1
        return self._given

    def stands(self, serial: int, descriptor: int, ended: Callable[[int], None]) -> bool:
        """Return whether it stands at its first message; ``ended(serial)`` tells its end."""
        if serial <= self._closed.get(descriptor, 0):
            return False
        self._standing.setdefault(descriptor, {})[serial] = ended
        self.heard(descriptor)
        return True

    def disconnected(self, descriptor: int) -> None:
        """Libzmq has told that the connection at this descriptor has ended."""
        self._closed[descriptor] = self._given
        for serial, ended in self._standing.pop(descriptor, {}).items():
            ended(serial)


# ── Bounds ──────────────────────────────────────────────────────────────────────────────────────


PEER_MESSAGES: Final = 1000
"""libzmq holds no more messages for one peer, each way."""


def messages_within(nbytes: int, frame_bytes: int) -> int:
    """Return how many messages libzmq may hold that weigh at most ``nbytes``; one in any case."""
    return max(1, min(PEER_MESSAGES, nbytes // frame_bytes))


@dataclass(slots=True)
class Bounds:
    """What bounds a socket: bytes of a frame, what a peer may leave unread, times in seconds.

    libzmq counts what it holds for a peer in messages, whatever they weigh.  So ``peer_messages``,
    for each direction, are no more than may have the largest frame each; ``received_messages``
    replaces it for what comes, where what goes out is bounded elsewhere.
    """

    frame_bytes: int
    peer_messages: int = PEER_MESSAGES
    unread_messages: int = sys.maxsize
    unread_bytes: int = sys.maxsize
    unread_seconds: float = inf
    handshake_seconds: float = 10.0
    received_messages: int | None = None


IN_PROCESS: Final = Bounds(sys.maxsize, 0)
"""No bounds: libzmq's own thread, which is at the other end, would wait for us at one."""
