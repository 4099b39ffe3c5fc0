"""What of a peer stays here weighs this much."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import Final

from ..terms.events import Attachment

ATTACHMENT_OCTETS: Final = 48
"""An attachment that is kept needs this much beside its octets: thousands may be empty."""


def text_octets(text: str) -> int:
    """Return what a text occupies: for one character beyond ASCII all can have four octets each."""
    return len(text) if text.isascii() else getsizeof(text)


def attachments_octets(attachments: Iterable[Attachment]) -> int:
    return sum(map(attachment_octets, attachments))


def attachment_octets(attachment: Attachment) -> int:
    """Return what an attachment occupies: its octets, or the text that came in its place."""
    return len(attachment) if isinstance(attachment, bytes) else text_octets(attachment.text)
