"""MTL on Twisted and ZeroMQ: :mod:`.server` and :mod:`.client`."""

from .client import MtlClient, MtlFlow, MtlReader, MtlWriter
from .server import MtlServer, MtlServerFactory

__all__ = ["MtlClient", "MtlFlow", "MtlReader", "MtlServer", "MtlServerFactory", "MtlWriter"]
