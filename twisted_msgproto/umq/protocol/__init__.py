"""UMQ on Twisted.  Read exchange, session (with verbs, answering, storing, topics), sides."""

from .sides import (
    LIMITS,
    PROTOCOL,
    IUmqIdentity,
    UmqClient,
    UmqClientFactory,
    UmqRealm,
    UmqServer,
    UmqServerFactory,
    connect,
)

__all__ = [
    "LIMITS",
    "PROTOCOL",
    "IUmqIdentity",
    "UmqClient",
    "UmqClientFactory",
    "UmqRealm",
    "UmqServer",
    "UmqServerFactory",
    "connect",
]
