"""MTL uses ZeroMQ through these modules; here are its addresses and CURVE's keys (``MT-31``).

Importing txzmq installs the default reactor; it is imported when the first socket is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import zmq

from ...core.errors import ConfigurationError

# ── Addresses ─────────────────────────────────────────────────────────────────────────────────────


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
    """Return the TCP port of an address; 0 where there is none."""
    port = address.rpartition(":")[2]
    return int(port) if address.startswith("tcp://") and port.isdecimal() else 0


def with_port(address: str, port: int) -> str:
    """Return the address on the same host with another port; the same address for port 0 or no
    TCP.
    """
    if not port or not address.startswith("tcp://"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def data_beside(control: Sequence[str], data: str) -> list[str]:
    """Return where data listens: at ``data``, and on its port at every other host of ``control``.

    A client looks for the data port at the host where it found the control port (``MT-12``).
    """
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


class CurveServer(NamedTuple):
    """A server's secret key, and the public keys (Z85) of those who may connect, with names."""

    secret: bytes
    authorized: Mapping[bytes, str]


class CurveClient(NamedTuple):
    """A client's keys and the public key of the server it wants (all Z85)."""

    server: bytes
    public: bytes
    secret: bytes


def zap_reply(
    parts: Sequence[bytes], authorized: Mapping[bytes, str] | None, metadata: bytes = b""
) -> list[bytes]:
    """Return the answer to a ZAP request: envelope, version, request id, status, text, user,
    metadata.

    ``authorized`` None: whoever comes without a mechanism may connect.  ``metadata`` is for the
    messages of who is let in.
    """
    from zmq.utils import z85

    head, rest = list(parts[:4]), list(parts[7:])
    if len(parts) >= 8 and parts[2] == b"1.0" and parts[4] == ZAP_DOMAIN:
        if authorized is None and rest == [b"NULL"]:
            return [*head, b"200", b"OK", b"", metadata]
        if authorized is not None and len(rest) == 2 and rest[0] == b"CURVE":
            key = z85.encode(rest[1])
            if key in authorized:
                return [*head, b"200", b"OK", key, metadata]
    return [*head, b"400", b"not authorized", b"", b""]


def who_asks(parts: Sequence[bytes]) -> str:
    """Return the address that a ZAP request is about; "" on ipc."""
    address = parts[5].decode("utf-8", "replace") if len(parts) > 5 else ""
    return "" if address.startswith("localhost:") else address


def who_is_refused(parts: Sequence[bytes]) -> tuple[str, str]:
    """Return the address that a refused ZAP request is about, and what is wrong with it."""
    from zmq.utils import z85

    address = who_asks(parts)
    if len(parts) == 9 and parts[7] == b"CURVE" and len(parts[8]) == 32:
        key = z85.encode(parts[8]).decode()
        return address, f"its CURVE key {key} is not in the file of --curve-authorized"
    return address, "it has no CURVE key"


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────


def read_secret_key(path: str) -> bytes:
    """Return a secret key: 40 characters of Z85 in a file of their own, or a certificate of
    pyzmq's.

    Raises ConfigurationError.
    """
    text = _read(path)
    if "secret-key" in text:
        text = text.partition("secret-key")[2].partition('"')[2].partition('"')[0]
    return _key(text.strip(), path)


def read_key(path: str) -> bytes:
    """Return a key alone in a file, or the public key of a certificate of pyzmq's;
    ConfigurationError.
    """
    text = _read(path)
    if "public-key" in text:
        text = text.partition("public-key")[2].partition('"')[2].partition('"')[0]
    return _key(text.strip(), path)


def public_key(secret: bytes) -> bytes:
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
        if words and not (words[0].startswith("#") and len(words[0]) != KEY_TEXT_BYTES):
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
    data = text.encode()
    try:
        zmq.curve_public(data)
    except (zmq.ZMQError, ValueError, AssertionError):
        raise ConfigurationError(f"{path}: no key of 40 characters in Z85") from None
    return data


# ── Bounds ──────────────────────────────────────────────────────────────────────────────────────


def messages_within(nbytes: int, frame_bytes: int, most: int) -> int:
    """Return how many messages, ``most`` at most, weigh at most ``nbytes``; one in any case."""
    return max(1, min(most, nbytes // frame_bytes))


@dataclass(slots=True)
class Bounds:
    """What bounds a socket: bytes of a frame, what a peer may leave unread, times in seconds.

    libzmq counts what it holds for a peer in messages, whatever they weigh.  So ``peer_messages``,
    for each direction, are no more than may have the largest frame each.  ``received_messages``
    replaces it for what comes, since what goes out is bounded elsewhere on a client (None: it does
    not).
    """

    frame_bytes: int
    peer_messages: int = 1000
    unread_messages: int = 10_000
    unread_bytes: int = 16 << 20
    unread_seconds: float = 30.0
    handshake_seconds: float = 10.0
    received_messages: int | None = None
