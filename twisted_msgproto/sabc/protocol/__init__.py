"""sABC on Twisted.  Read exchange, verbs, session, sides, reconnecting."""

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
