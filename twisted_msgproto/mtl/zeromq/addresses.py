"""Check ZeroMQ addresses: their ports, and whether only this machine can reach them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from ...core.errors import ConfigurationError


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
