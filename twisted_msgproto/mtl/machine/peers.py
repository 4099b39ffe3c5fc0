"""Who a message came from: the name of its connection, and what is known of that connection.

A ZeroMQ identity does not name a connection: it may have another owner at once when its owner has
left.  So a connection's name is its identity together with a serial that is never given again
(``MT-30``).  Names are never logged or shown.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SERIAL_OCTETS: Final = 8

AUTOMATIC_OCTETS: Final = 5
"""Of an identity that a ROUTER has made up; its first octet is 0."""


class Peer(NamedTuple):
    """What is known of a connection.

    Attributes:
        address: the network address at its other end, without the port; "" if it is not known.
        key: the CURVE key that it has proved; empty where there is none.
    """

    address: str = ""
    key: bytes = b""


UNKNOWN: Final = Peer()


def connection_name(identity: bytes, serial: int) -> bytes:
    return identity + serial.to_bytes(SERIAL_OCTETS, "big")


def is_automatic(name: bytes) -> bool:
    """The connection's identity is one that a ROUTER makes up."""
    return len(name) == AUTOMATIC_OCTETS + SERIAL_OCTETS and name[0] == 0
