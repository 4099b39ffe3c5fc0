"""Messages travel inside the package as a :class:`MessageBatch`, never one by one.

A protocol makes one batch per read (per kind of message), a sink makes it safe, the queue writes
it as columns, Spark reads it as columns.  Values that every message of a batch shares stand in
the batch once.  :class:`Message` is only a view of one row, made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, ClassVar

Fields = Mapping[str, str]
"""The named text values of one message are what the table's ``fields`` column holds."""


@dataclass(slots=True, frozen=True)
class Message:
    """One message, with the table's columns as attributes (the queue adds ``gateway`` and
    ``offset`` later).

    ``received_at`` is in microseconds since 1970-01-01 UTC by the clock of the gateway.
    """

    protocol: str
    kind: str
    received_at: int
    peer: str | None = None
    session: str | None = None
    client_id: str | None = None
    message_id: int | str | None = None
    destination: str | None = None
    fields: Fields | None = None
    body: bytes | None = None
    attachments: Sequence[bytes] | None = None
    truncated: bool = False


@dataclass(slots=True)
class MessageBatch:
    """The messages of one connection, one read and one kind, as columns.

    The first six attributes are shared by all messages of the batch.  Each column is a sequence of
    ``count`` entries, or None where no message of the batch has a value (``truncated``: None means
    False throughout).  A column is a list or packed (:mod:`.packed`): whoever wants to add to one
    makes a list of it.  A batch may not be changed once a sink has received it.

    ``envelope`` is what a broker's queue needs beside the body to deliver the message again after
    a restart: its address and properties as they came (``docs/queue-format.md``).  The durable
    queue keeps it; :class:`Message`, the table and every reader do without it.  A row has one only
    when it is for a broker's queue.

    ``nbytes`` says how much the batch counts against memory limits while it waits for the disk: the
    payload bytes as they came from the wire.  It is a measure for limits, not an exact size.
    ``weight`` is what it counts beside them, for what was read into many small objects.
    """

    protocol: str
    kind: str
    received_at: int
    peer: str | None = None
    session: str | None = None
    client_id: str | None = None
    count: int = 0
    nbytes: int = 0
    message_id: Sequence[int] | Sequence[str | None] | None = None
    destination: Sequence[str | None] | None = None
    fields: Sequence[Fields | None] | None = None
    body: Sequence[bytes | None] | None = None
    attachments: Sequence[Sequence[bytes] | None] | None = None
    truncated: Sequence[bool] | None = None
    envelope: Sequence[bytes | None] | None = None
    weight: int = 0

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "message_id",
        "destination",
        "fields",
        "body",
        "attachments",
        "truncated",
    )

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Message]:
        """Return each message in order of arrival, as a :class:`Message` view.

        ValueError if a column does not have ``count`` values.
        """
        columns: list[Iterable[Any]] = []
        for name in self.COLUMNS:
            column = getattr(self, name)
            if column is None:
                column = repeat(False if name == "truncated" else None)
            elif len(column) != self.count:
                raise ValueError(f"{name} has {len(column)} values for {self.count} messages")
            columns.append(column)
        # A packed column is cut out at once here, not value by value.
        return islice(map(Message, *map(repeat, _shared(self)), *columns), self.count)

    def message(self, row: int) -> Message:
        """Return the message at ``row`` (0 ≤ row < count); IndexError beyond."""
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of a batch of {self.count}")
        values = {
            name: column[row]
            for name in self.COLUMNS
            if (column := getattr(self, name)) is not None
        }
        return Message(*_shared(self), **values)


_shared = attrgetter("protocol", "kind", "received_at", "peer", "session", "client_id")
