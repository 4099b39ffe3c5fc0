"""The machines of both sides turn octets into events; they need no I/O and no clock."""

from .parcels import Packer
from .receiving import Reader
from .sending import Writer

__all__ = ["Packer", "Reader", "Writer"]
