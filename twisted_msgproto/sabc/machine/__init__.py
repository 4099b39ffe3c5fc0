"""sABC's machines.  Read sides, receiving (with incoming) and sending (with outgoing)."""

from .sides import Client, Server

__all__ = ["Client", "Server"]
