"""Answers which leave at once: a peer waits for its ack before it sends more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import ISSLTransport, IWriteDescriptor


def prompt_write(transport: Any) -> Callable[[bytes], None]:
    """``transport.write``, but for one which hands the octets to the system before it returns.

    A transport keeps what it is given until the next turn of the reactor finds its socket writable,
    as it nearly always is.  For a short answer that costs three system calls more, and a turn.
    What the system does not take stays with the transport, and so does an error: the reactor meets
    it in the next turn.  A transport which is no socket itself (TLS) writes as it is used to.
    """
    own_socket = bool(IWriteDescriptor.providedBy(transport))
    if ISSLTransport.providedBy(transport) or not own_socket:
        plain: Callable[[bytes], None] = transport.write
        return plain

    def write(octets: bytes) -> None:
        transport.write(octets)
        if transport.connected and not transport.disconnecting:
            transport.doWrite()

    return write


__all__ = ["prompt_write"]
