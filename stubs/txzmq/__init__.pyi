# The bases of our classes; everything else is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...

class ZmqFactory:
    reactor: Any
    context: Any
    connections: set[Any]
    ioThreads: int
    lingerPeriod: int
    def shutdown(self) -> None: ...

class ZmqConnection:
    socketType: int | None
    allowLoopbackMulticast: bool
    multicastRate: int
    highWaterMark: int
    tcpKeepalive: int
    tcpKeepaliveCount: int
    tcpKeepaliveIdle: int
    tcpKeepaliveInterval: int
    identity: bytes | None
    socket: Any
    factory: Any
    fd: int
    read_scheduled: Any
    def __init__(
        self, factory: Any, endpoint: Any = ..., identity: bytes | None = ...
    ) -> None: ...
    def addEndpoints(self, endpoints: Any) -> None: ...
    def doRead(self) -> None: ...
    def shutdown(self) -> None: ...
