"""How what a UMQ session receives reaches the sink, and when its calls may be answered."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ...core.message import Message, MessageBatch
from ...net.ingest import tell_not_stored
from ..terms.events import AttributeSet, CallbackReceived, CallReceived
from ..wire import Code, base36
from .exchange import Request, plain
from .part import SessionPart

PROTOCOL: Final = "umq"

Calls = list[CallReceived | CallbackReceived]


class Storing(SessionPart):
    """The part of a session between its events and the factory's sink."""

    def _beginStoring(self) -> None:
        self._gathered: list[tuple[str, list[Any]]] = []  # runs of one kind, not put yet
        self._putting: Calls = []  # those of the batch which is just being put

    def _gather(self, kind: str, event: Any) -> None:
        if self._gathered and self._gathered[-1][0] == kind:
            self._gathered[-1][1].append(event)
        else:
            self._gathered.append((kind, [event]))
        if not self._in_read:
            self._putGathered()

    def _putGathered(self) -> None:
        """One batch for each run of one kind, so that the order of arrival stays."""
        gathered, self._gathered = self._gathered, []
        for kind, events in gathered:
            batch = self._batch(kind, events)
            calls = (
                [event for event in events if self.needsSafety(event)]
                if kind in ("call", "callback")
                else []
            )
            assert self._delivery is not None
            self._putting = calls
            self._delivery.deliver(batch, self._safe, calls)

    def _put(self, batch: MessageBatch) -> Deferred[Any]:
        stored: Deferred[Any] = self.factory.sink.put(batch)
        return stored.addErrback(self._notStored, self._putting)

    def _notStored(self, failure: Failure, calls: Calls) -> Failure:
        """A batch will never be safe: its calls are refused, so that their callers know."""
        if self.machine.opened:
            for event in calls:
                self._streamOf(event)
                self.machine.error(event.id, f"{Code.UNAVAILABLE.value} the call was not stored")
            self._flush()
        return failure

    def _safe(self, calls: Calls) -> None:
        if self.machine.opened:
            for event in calls:
                self._serve(event)
            self._flush()
        self._lookDrained()

    def _notSafe(self, failure: Failure) -> None:
        """A batch will never be safe: the session ends, or it would have a gap."""
        self.count("unsafe_batches")
        tell_not_stored(self.logger, self.peer, failure, self._reason is not None)
        self.closeSession(Code.UNAVAILABLE, "temporarily unavailable")

    def _batch(self, kind: str, events: list[Any]) -> MessageBatch:
        ids: list[str] | None = None
        bodies: list[bytes | None]
        if kind == "attribute":
            destinations = [event.name for event in events]
            bodies = [
                event.value.encode() if isinstance(event, AttributeSet) else None
                for event in events
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
                    methods = self.factory.methods
                    destinations = [
                        None if methods is None else methods.nameIn(event.payload)
                        for event in events
                    ]
        attachments = [plain(getattr(event, "attachments", ())) for event in events]
        octets = sum(len(body) for body in bodies if body is not None)
        octets += sum(len(entry) for entries in attachments for entry in entries)
        return MessageBatch(
            PROTOCOL,
            kind,
            self.factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(events),
            octets,
            message_id=ids,
            destination=destinations,
            body=bodies,
            attachments=attachments,
        )

    def _message(self, kind: str, request: Request) -> Message:
        methods = self.factory.methods
        return Message(
            PROTOCOL,
            kind,
            self.factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            request.id,
            None if methods is None else methods.nameIn(request.payload),
            None,
            request.payload.encode(),
            plain(request.attachments),
        )
