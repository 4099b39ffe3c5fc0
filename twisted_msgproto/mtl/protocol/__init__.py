"""MTL on Twisted and ZeroMQ: :mod:`.server`, :mod:`.client` and its :mod:`.flows`."""

from .client import MtlClient, MtlClientFactory
from .flows import MtlFlow, MtlReader, MtlWriter
from .server import MtlServer, MtlServerFactory

__all__ = [
    "MtlClient",
    "MtlClientFactory",
    "MtlFlow",
    "MtlReader",
    "MtlServer",
    "MtlServerFactory",
    "MtlWriter",
]
