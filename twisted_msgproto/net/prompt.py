"""Answers that leave at once: a peer waits for its ack before it sends more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import ISSLTransport, IWriteDescriptor


def prompt_write(
    transport: Any, waits: Callable[[bytes], None] | None = None
) -> Callable[[bytes], None]:
    """Return a ``write`` for ``transport`` that hands the bytes to the system before it returns.

    A transport keeps bytes until the next turn of the reactor finds its socket writable, as it
    nearly always is.  For a short answer that costs three system calls more, and a turn. After the
    first byte that the system does not accept, or an error, everything is left to the transport:
    its peer reads more slowly than we write, or is gone.

    Nobody else may write to the transport.  One that is no socket itself (TLS) writes as it is used
    to.  ``waits`` is called with what the system does not accept; by default that is
    ``transport.write``.
    """
    plain: Callable[[bytes], None] = transport.write if waits is None else waits
    own_socket = bool(IWriteDescriptor.providedBy(transport))
    if ISSLTransport.providedBy(transport) or not own_socket:
        return plain
    send: Callable[[bytes], int] = transport.getHandle().send
    prompt = True  # the transport has been given nothing yet

    def write(data: bytes) -> None:
        nonlocal prompt
        if prompt and data:
            try:
                data = data[send(data) :]
            except OSError:  # full, broken or closed: the transport knows what to do
                prompt = False
            else:
                prompt = not data
        if data:
            plain(data)

    return write
