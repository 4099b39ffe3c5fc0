"""Both sides of MTL have these limits (``MT-29``)."""

from __future__ import annotations

from typing import Final

from ...core.broker import LIMITS as BROKER_LIMITS
from ...core.limits import Limit
from ..wire import control

QUEUE_LIMITS: Final = ("queue-age", "queue-idle", "dead-letters", "broker-memory", "broker-pin")
"""The broker has these limits under the same names; the others have names of their own here."""

PEER_MESSAGES: Final = 1000
"""libzmq holds no more messages for one peer, each way."""

SESSION_LEASES: Final = 64
"""A session has no more leases; a further request gets 403."""

LEASE_SECONDS: Final = 30.0
"""A lease that nobody uses by then ends (``MT-11``)."""

BURST: Final = 256
"""Contents that an unconfirmed reader is sent between two looks at its socket."""

SHARED_LIMITS: Final = (
    *control.LIMITS,
    Limit("content-octets", 8 << 20, "octets", "of one frame; libzmq cuts off who sends more", 1),
    Limit("heartbeat", 5.0, "s", "a silent data flow is pinged at this interval (MT-21)", 0.001),
    Limit("liveness", 15.0, "s", "a peer that is silent for this long is gone (MT-21)", 0.002),
)

SERVER_LIMITS: Final = (
    *SHARED_LIMITS,
    Limit(
        "peer-octets",
        256 << 20,
        "octets",
        "libzmq holds for one peer, each way, at content-octets a message; one message at least",
        1,
    ),
    Limit("sessions", 10_000, "sessions", "open at a time; a further Open gets 403", 1),
    Limit("session-idle", 300.0, "s", "a session without any traffic ends (MT-30)", 0.001),
    Limit("authentication", 30.0, "s", "a session that is not authenticated by then ends", 0.001),
    Limit("login-delay", 1.0, "s", "from a failed login's arrival to its answer"),
    Limit("prefetch", 100, "contents", "unconfirmed ones a reader may hold (MT-27)", 1),
    Limit("queues", 1024, "queues", "of the queue profile, without those of dead letters", 1),
    Limit(
        "queue-contents",
        10_000,
        "contents",
        "in one queue: above it writers wait for Confirm, above twice as many they get Reject",
        1,
    ),
    Limit(
        "queue-octets",
        256 << 20,
        "octets",
        "in one queue: above it writers wait for Confirm, above twice as many they get Reject",
        1,
    ),
    Limit("deliveries", 5, "tries", "of one content; then it is a dead letter", 1),
    *[limit for limit in BROKER_LIMITS if limit.name in QUEUE_LIMITS],
)

CLIENT_LIMITS: Final = (
    *SHARED_LIMITS,
    Limit("request-timeout", 2.5, "s", "for a reply; then on a new socket again (MT-28)", 0.001),
    Limit("login-timeout", 12.0, "s", "for the reply to Authorize: servers let logins wait", 0.001),
    Limit("request-tries", 3, "tries", "before a request fails (MT-28)", 1),
    Limit("window", 1000, "contents", "sent by a writer and not confirmed yet", 1),
    Limit(
        "waiting", 10_000, "contents", "which a writer holds back until the server takes more", 1
    ),
    Limit("backlog", 1000, "contents", "a reader keeps for async for; then it reads no more", 1),
    Limit(
        "peer-octets",
        256 << 20,
        "octets",
        "libzmq holds of what the server sends, at content-octets a message; one at least",
        1,
    ),
    Limit("backlog-octets", 16 << 20, "octets", "a reader keeps likewise", 1),
    Limit("renewals", 10, "times", "a flow is renewed in a row, with nothing of it answered", 1),
    Limit("drain", 4.0, "s", "close() waits this long for what is in flight"),
)
