"""Clients that come back: one session at a time, for as long as a service runs.

:class:`Comeback` is what the ``XClientService`` of every protocol has in common: the state, who
waits for a session, the verbs that wait for one, growing intervals, a refusal that is told, the
orderly end.  :class:`ClientComeback` is that over Twisted's ``ClientService``, for protocols on a
Twisted transport::

    service = SabcClientService(endpoint, SabcClientFactory("me", "secret"))
    service.watch(print)                     # connecting, up, down, refused
    service.startService()
    response = await service.request(b"Hola")
    await service.close()
"""

from .client import ClientComeback, tls_refusal
from .service import Comeback
from .terms import COMEBACK_LIMITS, DRAIN_SECONDS, Backoff, ComebackState

__all__ = [
    "COMEBACK_LIMITS",
    "DRAIN_SECONDS",
    "Backoff",
    "ClientComeback",
    "Comeback",
    "ComebackState",
    "tls_refusal",
]
