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
micromsg2 = ServiceMaker(
    "MicroMsg2",
    "twisted_msgproto.micromsg2.service",
    "A MicroMsg2 server: takes messages in, and serves topics and queues to subscribers.",
    "micromsg2",
)
sabc = ServiceMaker(
    "sABC",
    "twisted_msgproto.sabc.service",
    "An sABC server on TCP and WebSocket: answers requests when they are safe.",
    "sabc",
)
umq = ServiceMaker(
    "UMQ",
    "twisted_msgproto.umq.service",
    "A UMQ server: calls, topics, callbacks and attributes over WebSocket.",
    "umq",
)
mtl = ServiceMaker(
    "MTL",
    "twisted_msgproto.mtl.service",
    "An MTL broker on ZeroMQ: control and data flows, profiles, confirmed content.",
    "mtl",
)
msgproto = ServiceMaker(
    "msgproto gateway",
    "twisted_msgproto.gateway",
    "All message servers of one gateway.toml in one process, over one durable queue.",
    "msgproto",
)
