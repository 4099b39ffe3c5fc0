"""A message as one JSON object with the table's column names: ``recv --json``, ``queue dump``;
and cells below one another.

``body`` is text when it is UTF-8; else ``body_base64`` stands instead.  Each attachment is a text,
or an object ``{"base64": …}``.  Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from twisted_msgproto.core.message import Message

if TYPE_CHECKING:
    import pyarrow as pa

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


AT_ONCE: Final = 64


def messages_of(batch: pa.RecordBatch) -> Iterator[tuple[int, Message]]:
    """Yield the messages of a queue's record batch with their offsets, some made at a time."""
    import pyarrow as pa

    times = batch.column("received_at").cast(pa.int64())
    batch = batch.set_column(batch.schema.get_field_index("received_at"), "received_at", times)
    batch = batch.drop_columns(["gateway"])
    for begin in range(0, batch.num_rows, AT_ONCE):
        for values in batch.slice(begin, AT_ONCE).to_pylist():
            if values["fields"] is not None:
                values["fields"] = dict(values["fields"])
            yield values.pop("offset"), Message(**values)


def columns(rows: Sequence[Sequence[str]], numbers: int = sys.maxsize) -> Iterator[str]:
    """Cells stand below one another, from the cell ``numbers`` on to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        right = map(str.rjust, row[numbers:], widths[numbers:])
        yield "  ".join([*map(str.ljust, row[:numbers], widths), *right]).rstrip()
