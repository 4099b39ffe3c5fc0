"""MTL on Twisted and ZeroMQ: :mod:`.server`, :mod:`.client` and its :mod:`.flows`."""

from .client import MtlClient
from .flows import MtlFlow, MtlReader, MtlWriter
from .server import MtlServer, MtlServerFactory

__all__ = ["MtlClient", "MtlFlow", "MtlReader", "MtlServer", "MtlServerFactory", "MtlWriter"]
