"""Clients come back with these services: they keep one session at a time, for as long as the
service runs.

:class:`Comeback` has what the ``XClientService`` of every protocol shares: the state, waiting for a
session, the verbs that wait for one, growing intervals, the report of a refusal, the orderly end.
:class:`ClientComeback` builds on Twisted's ``ClientService``, for protocols on a Twisted
transport::

    service = SabcClientService(endpoint, SabcClientFactory("me", "secret"))
    service.watch(print)                     # connecting, up, down, refused
    service.startService()
    response = await service.request(b"Hola")
    await service.close()
"""

from ..factory import tls_refusal
from .client import ClientComeback
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
