"""The machines of both sides turn bytes into events; they need no I/O and no clock."""

from .receiving import Reader
from .sending import Packer, Writer

__all__ = ["Packer", "Reader", "Writer"]
