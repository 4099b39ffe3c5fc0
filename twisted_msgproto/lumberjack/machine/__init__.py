"""Both sides' machines: octets in, events out.  No I/O, no clock."""

from .parcels import Packer
from .receiving import Reader
from .sending import Writer

__all__ = ["Packer", "Reader", "Writer"]
