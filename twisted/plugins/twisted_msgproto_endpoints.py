"""Endpoint strings of twisted_msgproto: ``mtls:``, TLS with client certificates.

Nothing of ours is imported before such a string is read.
"""

from twisted.internet.interfaces import IStreamServerEndpointStringParser
from twisted.plugin import IPlugin
from zope.interface import implementer


@implementer(IPlugin, IStreamServerEndpointStringParser)
class _MTLSParser:
    """``mtls:PORT:privateKey=FILE:certKey=FILE:caCerts=FILE:verify=force_peer``."""

    prefix = "mtls"

    def parseStreamServer(self, reactor, *args, **kwargs):  # type: ignore[no-untyped-def]
        """As IStreamServerEndpointStringParser."""
        from twisted_msgproto.net.tls import mtls_endpoint

        return mtls_endpoint(reactor, *args, **kwargs)


mtls = _MTLSParser()
