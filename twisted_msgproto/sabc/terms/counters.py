"""The machines of sABC count in here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a machine has seen, as plain integers."""

    requests: int = 0
    send_only: int = 0
    responses: int = 0
    errors_received: int = 0
    errors_sent: int = 0
    refused_frames: int = 0
    discarded_frames: int = 0
    abandoned_messages: int = 0
    truncated_messages: int = 0
    unknown_responses: int = 0
    odd_expiries: int = 0
