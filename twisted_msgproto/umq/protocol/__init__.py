"""UMQ on Twisted.  Read exchange, session (with verbs, answering, storing, topics), sides."""

from .session import LIMITS
from .sides import (
    IUmqIdentity,
    UmqClient,
    UmqClientFactory,
    UmqRealm,
    UmqServer,
    UmqServerFactory,
    connect,
)
from .storing import PROTOCOL

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
