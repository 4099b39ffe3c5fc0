"""Behind a proxy (``haproxy:`` endpoints) the first octets of a connection say whose it is.

Twisted reads that header, and raises whatever Python raises for a header that is none; the reactor
then logs a traceback for each such connection.  Here it is a fault of the peer's: it is counted,
told in a line that is summed up with others, and the connection ends.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from twisted.logger import Logger
from twisted.protocols.haproxy._info import ProxyInfo
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._v2parser import V2Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory

from .factory import SessionFactory, host_of, peer_name

log = Logger(namespace="twisted_msgproto.net.proxied")

Given = TypeVar("Given")

FAULT: Final = "proxy"


HEADER_OCTETS_MAX: Final = 16 << 10
"""A binary header (version 2) has at most this many octets, as many as HAProxy's buffers have by
default: a client's certificate fits.  The length field would allow 64 KiB, and the ledger does not
count the octets of a header.
"""

LENGTH: Final = slice(14, 16)
"""A binary header contains its length here, without its own first 16 octets."""


class LineParser(V1Parser):
    """A reader of version 1 which takes the short form of an unknown peer, too.

    Load balancers send it when they look whether a server is well.
    """

    @classmethod
    def parse(cls, line: bytes) -> ProxyInfo:
        return super().parse(line + b" " if line == b"PROXY UNKNOWN" else line)


class ProxiedConnection(HAProxyProtocolWrapper):
    """The header in front of one connection; what follows it is handed on."""

    factory: Any
    transport: Any

    def dataReceived(self, data: bytes) -> None:
        if self._proxyInfo is not None:
            self.wrappedProtocol.dataReceived(data)
            return
        if (  # Twisted's reader wants these octets with the first read
            self._parser is None
            and data.startswith(V2Parser.PREFIX)
            and 16 + int.from_bytes(data[LENGTH]) > HEADER_OCTETS_MAX
        ):
            self._refuse()
            return
        if self._parser is None and data.startswith(V1Parser.PROXYSTR):
            self._parser = LineParser()
        ends = self.disconnecting
        try:
            super().dataReceived(data)
        except Exception:
            if self._proxyInfo is not None:  # it is the server's own fault
                raise
            self._refuse()
        else:
            info = self._proxyInfo
            if info is not None:  # the header itself would be kept as long as the connection
                self._proxyInfo = ProxyInfo(b"", info.source, info.destination)
            elif self.disconnecting and not ends:
                self._refuse()

    def _refuse(self) -> None:
        sessions = self.factory.wrappedFactory
        if not isinstance(sessions, SessionFactory):  # WebSocket carries those of another one
            sessions = getattr(sessions, "sessions", None)
        if isinstance(sessions, SessionFactory):
            address = self.transport.getPeer()
            sessions.countFault(FAULT)
            sessions.writeOf(
                log,
                host_of(address),
                "{peer}: closed: it does not begin as a proxy does (PROXY protocol), and this"
                " endpoint is haproxy:",
                reason=FAULT,
                peer=peer_name(address),
            )
        self.transport.abortConnection()


def heeding_proxies(factory: Given) -> Given:
    """Return ``factory`` as it was given to a reactor; if it is that of a ``haproxy:`` endpoint,
    its connections are :class:`ProxiedConnection`.
    """
    inner: Any = factory
    while inner is not None and not isinstance(inner, HAProxyWrappingFactory):
        inner = getattr(inner, "wrappedFactory", None)
    if inner is not None:
        inner.protocol = cast(Any, ProxiedConnection)
        inner.noisy = False
    return factory
