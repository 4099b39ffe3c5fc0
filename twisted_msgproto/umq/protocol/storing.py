"""A UMQ session makes batches for its sink of what it receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...core.message import MessageBatch
from ..terms import AttributeSet, CallbackReceived, CallReceived
from ..wire import base36
from .exchange import plain

if TYPE_CHECKING:
    from .answering import Answering

PROTOCOL: Final = "umq"


Call = CallReceived | CallbackReceived


class Gathered:
    """What came in one read and goes to the sink.

    Attributes:
        runs: the kind, the events of that kind that came one after the other, and those of them
            that are calls whose answers wait for the sink.  The order of arrival stays.
    """

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[tuple[str, list[Any], list[Call]]] = []

    def add(self, kind: str, event: Any, waits: bool = False) -> None:
        runs = self.runs
        if not runs or runs[-1][0] != kind:
            runs.append((kind, [], []))
        _, events, calls = runs[-1]
        events.append(event)
        if waits:
            calls.append(event)

    def take(self) -> list[tuple[str, list[Any], list[Call]]]:
        runs, self.runs = self.runs, []
        return runs


def batch_of(session: Answering, kind: str, events: list[Any]) -> MessageBatch:
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
    given = [getattr(event, "attachments", None) for event in events]
    attachments = [plain(entries) if entries else [] for entries in given]
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
