"""UMQ's machines: the messages of a WebSocket in, events out; no I/O, no clock.

:class:`Client` and :class:`Server` are the two sides.  The others here are what they return, beside
:class:`~twisted_msgproto.core.errors.Fault`.
"""

from ..terms import (
    AttachmentArrived,
    AttachmentsAnnounced,
    AttributeSet,
    AttributeUnset,
    CallbackReceived,
    CallExpired,
    CallReceived,
    CallsSafe,
    ErrorReceived,
    FatalReceived,
    HelloReceived,
    MemoryLimitExceeded,
    ResultReceived,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
    WelcomeReceived,
)
from .sides import (
    Client,
    Server,
)

__all__ = [
    "AttachmentArrived",
    "AttachmentsAnnounced",
    "AttributeSet",
    "AttributeUnset",
    "CallExpired",
    "CallReceived",
    "CallbackReceived",
    "CallsSafe",
    "Client",
    "ErrorReceived",
    "FatalReceived",
    "HelloReceived",
    "MemoryLimitExceeded",
    "ResultReceived",
    "Server",
    "TopicClosed",
    "TopicUnsubscribed",
    "TopicUpdated",
    "WelcomeReceived",
]
