"""The limits of each factory as types, from their tables: ``python -m tests.docs.limits``.

A mapping whose names are not known before the program runs goes through the factory's
``defaultLimits``.
"""

from typing import TypedDict

EveryLimits = TypedDict(
    "EveryLimits",
    {
        "connections": int,
        "connections-per-address": int,
        "drain": float,
        "handshake": float,
        "min-rate": int | str,
        "process-held-bytes": int | str,
        "process-session-bytes": int | str,
        "process-unsafe-bytes": int | str,
        "unread-seconds": float,
        "unsafe-bytes": int | str,
    },
    total=False,
)

_LumberjackLimits = TypedDict(
    "_LumberjackLimits",
    {
        "compressed-bytes": int | str,
        "compressed-windows": int,
        "data-bytes": int | str,
        "inflated-bytes": int | str,
        "inflated-ratio": int | str,
        "json-bytes": int | str,
        "slice-bytes": int | str,
        "window": int,
    },
    total=False,
)


class LumberjackLimits(EveryLimits, _LumberjackLimits):
    pass


_LumberjackServerLimits = TypedDict(
    "_LumberjackServerLimits",
    {
        "idle-ack": float,
        "idle-close": float,
        "keepalive": float,
    },
    total=False,
)


class LumberjackServerLimits(LumberjackLimits, _LumberjackServerLimits):
    pass


_LumberjackClientLimits = TypedDict(
    "_LumberjackClientLimits",
    {
        "timeout": float,
        "ttl": float,
        "unsent-bytes": int | str,
        "unsent-events": int,
        "window-bytes": int | str,
    },
    total=False,
)


class LumberjackClientLimits(LumberjackLimits, _LumberjackClientLimits):
    pass


_MicroMsg2Limits = TypedDict(
    "_MicroMsg2Limits",
    {
        "ack-count": int,
        "ack-wait": float,
        "broker-memory-bytes": int | str,
        "broker-queues": int,
        "checked-json-bytes": int | str,
        "command-bytes": int | str,
        "dead-letters": int,
        "frame-payload-bytes": int | str,
        "idle-ack": float,
        "idle-close": float,
        "payload-bytes": int | str,
        "properties-bytes": int | str,
        "queue-age": float,
        "queue-bytes": int | str,
        "queue-idle": float,
        "queue-messages": int,
        "subscriber-bytes": int | str,
        "subscriber-messages": int,
        "subscriptions": int,
        "tries": int,
        "unsent-bytes": int | str,
        "unsent-messages": int,
        "withheld-bytes": int | str,
        "withheld-seconds": float,
    },
    total=False,
)


class MicroMsg2Limits(EveryLimits, _MicroMsg2Limits):
    pass


MicroMsg2ServerLimits = MicroMsg2Limits

MicroMsg2ClientLimits = MicroMsg2Limits

_SabcLimits = TypedDict(
    "_SabcLimits",
    {
        "connect-seconds": float,
        "header-block-bytes": int | str,
        "login-address-failures": int,
        "login-delay": float,
        "login-failures": int,
        "login-rate": float,
        "message-bytes": int | str,
        "outstanding-requests": int,
        "part-bytes": int | str,
        "response-seconds": float,
        "session-seconds": float,
        "unfinished-messages": int,
        "unread-bytes": int | str,
        "websocket-ping-seconds": float,
        "websocket-upgrade-seconds": float,
    },
    total=False,
)


class SabcLimits(EveryLimits, _SabcLimits):
    pass


SabcServerLimits = SabcLimits

_SabcClientLimits = TypedDict(
    "_SabcClientLimits",
    {
        "unsent-bytes": int | str,
    },
    total=False,
)


class SabcClientLimits(SabcLimits, _SabcClientLimits):
    pass


_UmqLimits = TypedDict(
    "_UmqLimits",
    {
        "announcements": int,
        "attachment-bytes": int | str,
        "attachment-seconds": float,
        "attachments": int,
        "attachments-bytes": int | str,
        "attributes": int,
        "attributes-bytes": int | str,
        "backlog-bytes": int | str,
        "call-seconds": float,
        "callbacks": int,
        "calls": int,
        "calls-bytes": int | str,
        "hello-seconds": float,
        "login-address-failures": int,
        "login-delay": float,
        "login-failures": int,
        "login-rate": float,
        "own-calls": int,
        "own-subscriptions": int,
        "payload-characters": int,
        "topic-queue-bytes": int | str,
        "topics": int,
        "unread-bytes": int | str,
        "waiting-messages": int,
        "websocket-message-bytes": int | str,
        "websocket-ping-seconds": float,
        "websocket-upgrade-seconds": float,
    },
    total=False,
)


class UmqLimits(EveryLimits, _UmqLimits):
    pass


UmqServerLimits = UmqLimits

_UmqClientLimits = TypedDict(
    "_UmqClientLimits",
    {
        "unsent-bytes": int | str,
    },
    total=False,
)


class UmqClientLimits(UmqLimits, _UmqClientLimits):
    pass


_MtlLimits = TypedDict(
    "_MtlLimits",
    {
        "content-bytes": int | str,
        "control-bytes": int | str,
        "heartbeat": float,
        "liveness": float,
        "peer-bytes": int | str,
    },
    total=False,
)


class MtlLimits(EveryLimits, _MtlLimits):
    pass


_MtlServerLimits = TypedDict(
    "_MtlServerLimits",
    {
        "authentication": float,
        "broker-memory-bytes": int | str,
        "broker-queues": int,
        "dead-letters": int,
        "login-address-failures": int,
        "login-delay": float,
        "login-failures": int,
        "login-rate": float,
        "prefetch": int,
        "queue-age": float,
        "queue-bytes": int | str,
        "queue-idle": float,
        "queue-messages": int,
        "session-idle": float,
        "sessions": int,
        "tries": int,
    },
    total=False,
)


class MtlServerLimits(MtlLimits, _MtlServerLimits):
    pass


_MtlClientLimits = TypedDict(
    "_MtlClientLimits",
    {
        "backlog-bytes": int | str,
        "login-timeout": float,
        "renewals": int,
        "request-timeout": float,
        "request-tries": int,
        "unsent-bytes": int | str,
        "window": int,
    },
    total=False,
)


class MtlClientLimits(MtlLimits, _MtlClientLimits):
    pass


ReconnectLimits = TypedDict(
    "ReconnectLimits",
    {
        "refused-first": float,
        "refused-most": float,
        "retry-first": float,
        "retry-most": float,
        "steady-seconds": float,
        "waiting-bytes": int | str,
        "waiting-seconds": float,
        "waiting-verbs": int,
    },
    total=False,
)
