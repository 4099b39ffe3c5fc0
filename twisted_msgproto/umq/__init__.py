"""UMQ has symmetric calls, callbacks, topics and attributes with attachments, over WebSocket.

Read in this order: wire, terms, machine, protocol, application, service.
"""

from .application import Hub, MethodRegistry, Remote, RemoteError, call_method
from .machine.sides import Client, Server
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
    refusal,
)
from .protocol.reconnect import Renewed, UmqClientService
from .protocol.session import UmqSession
from .protocol.sides import (
    UmqClient,
    UmqClientFactory,
    UmqServer,
    UmqServerFactory,
    connect,
)
from .protocol.topics import Subscription, Topic

__all__ = [
    "AttachmentLost",
    "AttachmentStream",
    "CallFailed",
    "Client",
    "Hub",
    "MethodRegistry",
    "NoSuchMethod",
    "Remote",
    "RemoteError",
    "Renewed",
    "Reply",
    "Request",
    "Server",
    "SessionRefused",
    "Stored",
    "Subscription",
    "Topic",
    "UmqClient",
    "UmqClientFactory",
    "UmqClientService",
    "UmqServer",
    "UmqServerFactory",
    "UmqSession",
    "Update",
    "call_method",
    "connect",
    "refusal",
]
