"""What a UMQ session receives as batches for its sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ...core.message import MessageBatch
from ..terms.events import AttributeSet
from ..wire import base36
from .exchange import plain

if TYPE_CHECKING:
    from .answering import Answering

PROTOCOL: Final = "umq"

CALLS: Final = ("call", "callback")
"""The kinds which have an answer."""


class Gathered:
    """What came in one read and goes to the sink.

    Attributes:
        runs: events of one kind which came one after the other; so the order of arrival stays.
    """

    __slots__ = ("_session", "runs")

    def __init__(self, session: Answering) -> None:
        self._session = session
        self.runs: list[tuple[str, list[Any]]] = []

    def add(self, kind: str, event: Any) -> None:
        """One more event."""
        runs = self.runs
        if runs and runs[-1][0] == kind:
            runs[-1][1].append(event)
        else:
            runs.append((kind, [event]))

    def take(self) -> Iterator[tuple[MessageBatch, list[Any]]]:
        """Each batch, and those of its calls whose answers wait for it."""
        session = self._session
        runs, self.runs = self.runs, []
        for kind, events in runs:
            calls: list[Any] = []
            if kind in CALLS:
                calls = [event for event in events if session.needsSafety(event)]
            yield _batch(session, kind, events), calls


def _batch(session: Answering, kind: str, events: list[Any]) -> MessageBatch:
    ids: list[str] | None = None
    bodies: list[bytes | None]
    if kind == "attribute":
        destinations = [event.name for event in events]
        bodies = [
            event.value.encode() if isinstance(event, AttributeSet) else None for event in events
        ]
    else:
        bodies = [event.payload.encode() for event in events]
        if kind == "topic":
            destinations = [base36(event.topic) for event in events]
        else:
            ids = [event.id for event in events]
            if kind == "callback":
                destinations = [base36(event.callback) for event in events]
            else:
                methods = session.factory.methods
                destinations = [
                    None if methods is None else methods.nameIn(event.payload) for event in events
                ]
    attachments = [plain(getattr(event, "attachments", ())) for event in events]
    octets = sum(len(body) for body in bodies if body is not None)
    octets += sum(len(entry) for entries in attachments for entry in entries)
    return MessageBatch(
        PROTOCOL,
        kind,
        session.factory.receivedAt(),
        session.peer,
        session.session,
        session.clientId,
        len(events),
        octets,
        message_id=ids,
        destination=destinations,
        body=bodies,
        attachments=attachments,
    )
