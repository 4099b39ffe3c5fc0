"""UMQ has symmetric calls, callbacks, topics and attributes with attachments, over WebSocket.

Read in this order: wire, terms, machine, protocol, application, service.
"""

from ..net.limit_types import UmqClientLimits, UmqServerLimits
from .application import Hub, MethodRegistry, Remote, RemoteError, call_method
from .protocol.calls import (
    AttachmentLost,
    AttachmentStream,
    CallFailed,
    NoSuchMethod,
    Reply,
    Request,
    SessionRefused,
    Stored,
    Update,
)
from .protocol.reconnect import Renewed, UmqClientService
from .protocol.session import UmqSession
from .protocol.sides import (
    UmqClient,
    UmqClientFactory,
    UmqServer,
    UmqServerFactory,
    connect,
    serve,
)
from .protocol.topics import Subscription, Topic
from .terms import AttachmentFailure
from .wire import Code

__all__ = [
    "AttachmentFailure",
    "AttachmentLost",
    "AttachmentStream",
    "CallFailed",
    "Code",
    "Hub",
    "MethodRegistry",
    "NoSuchMethod",
    "Remote",
    "RemoteError",
    "Renewed",
    "Reply",
    "Request",
    "SessionRefused",
    "Stored",
    "Subscription",
    "Topic",
    "UmqClient",
    "UmqClientFactory",
    "UmqClientLimits",
    "UmqClientService",
    "UmqServer",
    "UmqServerFactory",
    "UmqServerLimits",
    "UmqSession",
    "Update",
    "call_method",
    "connect",
    "serve",
]
