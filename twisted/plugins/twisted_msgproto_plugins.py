"""The servers of twisted_msgproto for ``twistd``: a line each, dotted strings only.

Nothing of ours is imported here: twistd reads this file at every start, whatever it is to run.
"""

from twisted.application.service import ServiceMaker

lumberjack = ServiceMaker(
    "Lumberjack",
    "twisted_msgproto.lumberjack.service",
    "A Lumberjack server: acknowledges a shipper's events when they are safe.",
    "lumberjack",
)
umq = ServiceMaker(
    "UMQ",
    "twisted_msgproto.umq.service",
    "A UMQ server: calls, topics, callbacks and attributes over WebSocket.",
    "umq",
)
msgproto = ServiceMaker(
    "msgproto gateway",
    "twisted_msgproto.gateway",
    "All message servers of one gateway.toml in one process, over one durable queue.",
    "msgproto",
)
