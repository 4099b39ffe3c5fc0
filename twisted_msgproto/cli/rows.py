"""A message as one JSON object with the table's column names: ``recv --json``, ``queue dump``.

``body`` is text when it is UTF-8; else ``body_base64`` stands instead.  Each attachment is a text,
or an object ``{"base64": …}``.  Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from twisted_msgproto.core.message import Message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(microseconds: int) -> str:
    """Return microseconds since the epoch as ISO 8601 in UTC, always with six places."""
    moment = EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def row(message: Message) -> dict[str, Any]:
    body = None if message.body is None else text_of(message.body)
    if message.body is not None and body is None:
        body_column: dict[str, Any] = {"body_base64": base64_of(message.body)}
    else:
        body_column = {"body": body}
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
        **body_column,
        "attachments": None
        if attachments is None
        else [
            {"base64": base64_of(data)} if (text := text_of(data)) is None else text
            for data in attachments
        ],
        "truncated": message.truncated,
    }
