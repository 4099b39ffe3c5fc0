"""What the clients of all protocols share: :mod:`.client` is what a person touches."""

from .client import GOODBYE_SECONDS, ClientLink

__all__ = ["GOODBYE_SECONDS", "ClientLink"]
