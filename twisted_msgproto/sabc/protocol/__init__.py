"""sABC on Twisted.  Read exchange, verbs, session, sides, comeback."""

from .sides import (
    ANONYMOUS_CLIENT_ID,
    SabcClient,
    SabcClientFactory,
    SabcServer,
    SabcServerFactory,
    connect,
)

__all__ = [
    "ANONYMOUS_CLIENT_ID",
    "SabcClient",
    "SabcClientFactory",
    "SabcServer",
    "SabcServerFactory",
    "connect",
]
