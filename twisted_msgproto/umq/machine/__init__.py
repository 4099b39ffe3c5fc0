"""UMQ's machines.  Read sides, receiving (with arriving and attachments) and sending."""

from .sides import UNDECIDED, Client, Server

__all__ = ["UNDECIDED", "Client", "Server"]
