"""UMQ: symmetric calls, callbacks, topics and attributes with attachments, over WebSocket.

Read in this order: wire, states, speaking, peer, machine, session, protocol, service; codec is
optional.
"""

from .codec import MethodRegistry, Remote, RemoteError, call_method
from .comeback import UmqClientService
from .exchange import (
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
from .hub import Hub
from .machine import Client, Server
from .protocol import (
    IUmqIdentity,
    UmqClient,
    UmqClientFactory,
    UmqRealm,
    UmqServer,
    UmqServerFactory,
    connect,
)
from .session import UmqSession
from .topics import Subscription, Topic

__all__ = [
    "AttachmentLost",
    "AttachmentStream",
    "CallFailed",
    "Client",
    "Hub",
    "IUmqIdentity",
    "MethodRegistry",
    "NoSuchMethod",
    "Remote",
    "RemoteError",
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
    "UmqRealm",
    "UmqServer",
    "UmqServerFactory",
    "UmqSession",
    "Update",
    "call_method",
    "connect",
    "refusal",
]
