"""A message as one JSON object with the table's column names: ``recv --json``, ``queue dump``.

An octet column is text when it is UTF-8; else ``NAME_base64`` stands instead (attachments one by
one).  Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from twisted_msgproto.core.message import Message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(microseconds: int) -> str:
    """Microseconds since the epoch as ISO 8601 in UTC, always with six places."""
    moment = EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def octets_as(name: str, octets: bytes | None) -> dict[str, Any]:
    """``{name: text}``, or ``{name_base64: …}`` for octets which are not UTF-8."""
    if octets is None:
        return {name: None}
    try:
        return {name: octets.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(octets).decode()}


def row(message: Message) -> dict[str, Any]:
    """The row of this message, without the columns which only a queue gives."""
    attachments = message.attachments
    return {
        "received_at": iso_time(message.received_at),
        "protocol": message.protocol,
        "peer": message.peer,
        "session": message.session,
        "client_id": message.client_id,
        "kind": message.kind,
        "message_id": None if message.message_id is None else str(message.message_id),
        "destination": message.destination,
        "fields": None if message.fields is None else dict(message.fields),
        **octets_as("body", message.body),
        "attachments": None
        if attachments is None
        else [octets_as("body", octets) for octets in attachments],
        "truncated": message.truncated,
    }
