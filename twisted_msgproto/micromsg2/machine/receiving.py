"""Receive messages: new or repeated, in parts or complete, refused or good (``MM-12`` … ``MM-14``,
``MM-22``, ``MM-28``, ``MM-31``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...core.limits import Limits
from ...core.machine import ReceiveWindow
from ..terms import PARTS_MAX, Counters, MessagesReceived
from ..wire.frames import (
    LIMIT_EXCEEDED,
    PROTOCOL_ERROR,
    SEQUENCES,
    Messages,
    Part,
    after,
    steps_between,
)
from ..wire.texts import NO_PROPERTIES, BadText, Parsed, Properties, parse_properties
from .extensions import Broken, Extension

REPEATS_KNOWN_MIN: Final = 1024
"""At least this many of the last numbers are known as repeats when they come again (``MM-13``)."""

_NOTHING: Final[Mapping[str, str]] = {}


class _Said(NamedTuple):
    fields: Mapping[str, str]  # for the table
    notes: Mapping[str, str]  # by extensions' names


_SILENCE: Final = _Said(_NOTHING, _NOTHING)
_ALL_EMPTY: Final[list[Parsed]] = []

SENDERS_OWN: Final = "property:"
"""No property's name has a colon, nor has that of a field which an extension adds."""


@dataclass(slots=True)
class _Payload:
    """A payload that has begun (``MM-31``): unread until its end, its properties weigh less."""

    first: Part
    said: _Said
    repeat: bool
    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    nbytes: int = 0
    last: int = 0  # number of the last part
    numbered: bool | None = None  # each part has its own number; None: only one part has come


class _Whole(NamedTuple):
    """A complete payload; ``numbers`` is how many of the peer's it took."""

    message: Part
    read: Parsed
    said: _Said
    numbers: int


def _with(fields: Mapping[str, str], said: _Said) -> Mapping[str, str]:
    return {**fields, **said.fields} if said.fields else fields


class Inbox:
    """What has arrived in a session, up to the events that are returned."""

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        refused: Callable[[int, str], None],
        reserved: frozenset[str],
    ) -> None:
        """``refused(sequence, why)`` hears of bodies; properties in ``reserved`` are renamed."""
        self.window: ReceiveWindow[None] = ReceiveWindow()  # numbers of whole payloads
        self.count: int | None = None  # agreed, in flight; None: numbers are ignored (MM-13)
        self.annotating: Sequence[tuple[int, Extension]] = ()
        self.objecting: Sequence[Extension] = ()  # may refuse a body (MM-28)
        self.repeat_seen: bool = False  # one came that the newest ack covers
        self._bytes_max = limits.integer("payload-bytes")
        self._parts_max = max(PARTS_MAX, self._bytes_max >> 18)
        self._counters = counters
        self._refused = refused
        self._reserved = reserved
        self._sliced = 0  # position up to which slices reach
        self._last = 0  # number that came last
        self._batch: MessagesReceived | None = None  # messages that are not in an event yet
        self._payload: _Payload | None = None

    @property
    def held_bytes(self) -> int:
        payload = self._payload
        return 0 if payload is None else payload.nbytes + len(payload.first.properties)

    @property
    def in_parts(self) -> bool:
        return self._payload is not None

    def take(self) -> MessagesReceived | None:
        batch = self._batch
        if batch is not None:
            batch.position = self._sliced = self.window.slice()
            self._batch = None
        return batch

    def slice_refused(self) -> int | None:
        """Return the position of refused bodies behind the last slice, if there are any."""
        if self.window.received == self._sliced:
            return None
        self._sliced = self.window.slice()
        return self._sliced

    def receive_run(self, run: Messages) -> None:
        reads, weight = None, 0
        judged: dict[bytes, str | None] = {}
        if self._payload is None:  # or the first of them is only the last part of a body
            if self.objecting:
                judged = {body: self._objection(body) for body in run.payloads}
            if all(one is None for one in judged.values()):
                reads, weight = self._read_all(run.properties)
        if reads is None or (self.count is not None and not self._follow(run.sequences)):
            columns = (run.sequences, run.destinations, run.properties, run.payloads)
            for message in map(Part, *columns):
                whole = self._whole(message)
                if whole is not None:
                    self._judge(whole, judged)
            return
        self._receive(len(run.sequences))
        notes: list[Mapping[str, str]] = []
        if reads is _ALL_EMPTY:
            properties: list[Properties] = [NO_PROPERTIES] * len(run.sequences)
            fields = [_NOTHING] * len(run.sequences)
        else:
            self._counters.untyped += sum([read.untyped for read in reads])
            properties = [read.properties for read in reads]
            fields = [read.fields for read in reads]
        if self.annotating:
            # Asked for each message: what an extension says may hold for one only.
            said = [self._say() for _ in fields]
            fields = [_with(*row) for row in zip(fields, said, strict=True)]
            notes = [each.notes for each in said]
        batch = self._batch
        if batch is None:
            batch = self._batch = MessagesReceived()
        batch.sequences += run.sequences
        batch.destinations += run.destinations
        batch.fields += fields
        batch.bodies += run.payloads
        batch.texts += run.properties
        batch.properties += properties
        batch.nbytes += run.nbytes
        batch.weight += weight
        batch.notes += notes

    def _objection(self, body: bytes) -> str | None:
        objections = (extension.objection(body) for extension in self.objecting)
        return next((one for one in objections if one is not None), None)

    def _parse(self, text: bytes) -> Parsed:
        parsed = parse_properties(text)
        if self._reserved.isdisjoint(parsed.fields):
            return parsed
        names = {name: SENDERS_OWN + name for name in self._reserved}
        fields = {names.get(name, name): value for name, value in parsed.fields.items()}
        return parsed._replace(fields=fields)

    def _read_all(self, texts: list[bytes]) -> tuple[list[Parsed] | None, int]:
        if not any(texts):
            return _ALL_EMPTY, 0
        try:
            said = {text: self._parse(text) for text in dict.fromkeys(texts)}
        except BadText:
            return None, 0
        return [said[text] for text in texts], sum([each.weight for each in said.values()])

    def _read(self, text: bytes) -> Parsed:
        try:
            return self._parse(text)
        except BadText as error:
            raise Broken(PROTOCOL_ERROR, str(error)) from None

    def _say(self) -> _Said:
        if not self.annotating:
            return _SILENCE
        fields: dict[str, str] = {}
        notes: dict[str, str] = {}
        for _, extension in self.annotating:
            added = extension.fields()
            fields.update(added)
            note = extension.note(added)
            if note is not None:
                notes[extension.name] = note
        return _Said(fields, notes)

    def _follow(self, sequences: Sequence[int]) -> bool:
        first = sequences[0]
        last = first + len(sequences) - 1
        if first != self._last + 1 or sequences != list(range(first, last + 1)):
            return False  # after a wrap they come one by one
        self._last = last
        return True

    def _is_repeat(self, sequence: int) -> bool:
        """Return False for the next number; raise Broken for one that is new, or too old."""
        following = after(self._last)
        if sequence == following:
            return False
        assert self.count is not None
        back = steps_between(sequence, self._last)
        known = min(self.window.received, max(self.count, REPEATS_KNOWN_MIN))
        if sequence not in SEQUENCES or back >= known:
            raise Broken(PROTOCOL_ERROR, f"message {sequence}, expected {following}")
        self._counters.repeats += 1
        self.repeat_seen |= self.window.received - back <= self.window.acknowledged
        return True

    def _whole(self, message: Part) -> _Whole | None:
        if self._payload is not None:
            return self.receive_part(message, last=True)
        if self.count is not None and self._is_repeat(message.sequence):
            return None
        read = self._read(message.properties)
        self._last = message.sequence
        return _Whole(message, read, self._say(), 1)

    def _receive(self, numbers: int, messages: int | None = None) -> None:
        window = self.window
        window.received += numbers
        self._counters.received += numbers if messages is None else messages
        if self.count is not None and window.received - window.acknowledged > self.count:
            over = window.unacknowledged - self.count
            self._counters.over_window += min(numbers, over)

    def _judge(self, whole: _Whole, judged: Mapping[bytes, str | None]) -> None:
        """Keep a payload unless an extension refuses its body; then it counts as settled."""
        message, read = whole.message, whole.read
        body = message.payload
        objection = judged[body] if body in judged else self._objection(body)
        if objection is None:
            self._keep(whole)
            return
        self._receive(whole.numbers, 1)
        self._counters.untyped += read.untyped
        self._counters.bad_payloads += 1
        self._refused(message.sequence, objection)

    def _keep(self, whole: _Whole) -> None:
        message, read, said, numbers = whole
        self._receive(numbers, 1)
        self._counters.untyped += read.untyped
        batch = self._batch
        if batch is None:
            batch = self._batch = MessagesReceived()
        batch.sequences.append(message.sequence)
        batch.destinations.append(message.destination)
        batch.bodies.append(message.payload)
        batch.texts.append(message.properties)
        batch.nbytes += len(message.payload) + len(message.properties)
        batch.weight += read.weight
        batch.properties.append(read.properties)
        batch.fields.append(_with(read.fields, said))
        if self.annotating:
            batch.notes.append(said.notes)

    # ── parts ───────────────────────────────────────────────────────────────────────────────────

    def receive_part(self, part: Part, *, last: bool) -> _Whole | None:
        """Receive a frame of a payload (``MM-31``); return that once it is complete and new."""
        payload = self._payload
        if payload is None:
            repeat = self.count is not None and self._is_repeat(part.sequence)
            self._read(part.properties)  # they have to be good now
            payload = self._payload = _Payload(part, self._say(), repeat)
        else:
            self._check_number(payload, part.sequence)
        payload.last = part.sequence
        payload.count += 1
        payload.nbytes += len(part.payload)
        self._check_bounds(payload, last)
        if not payload.repeat:
            payload.parts.append(part.payload)
        if not last:
            return None
        self._payload = None
        return None if payload.repeat else self._finish(payload)

    @staticmethod
    def _check_number(payload: _Payload, sequence: int) -> None:
        """The second part decides for its payload: the same number for all, or one for each."""
        same, following = payload.last, after(payload.last)
        if payload.numbered is None and sequence in (same, following):
            payload.numbered = sequence == following
        if sequence != (following if payload.numbered else same):
            raise Broken(PROTOCOL_ERROR, f"message {sequence} between the parts of {same}")

    def _check_bounds(self, payload: _Payload, last: bool) -> None:
        parts_max, bytes_max = self._parts_max, self._bytes_max
        if payload.count > parts_max:
            raise Broken(LIMIT_EXCEEDED, f"more than {parts_max} parts")
        if payload.nbytes > bytes_max:
            raise Broken(LIMIT_EXCEEDED, f"more bytes than payload-bytes={bytes_max}")
        if self.count is None or last or payload.repeat or not payload.numbered:
            return
        if payload.count >= self.count:
            text = f"{payload.count} parts of a payload fill the window, and it is not complete"
            raise Broken(LIMIT_EXCEEDED, text)

    def _finish(self, payload: _Payload) -> _Whole:
        """The last part has come: destination, properties and type are the first part's."""
        self._last = payload.last
        whole = Part(
            payload.first.sequence,
            payload.first.destination,
            payload.first.properties,
            b"".join(payload.parts),
        )
        read = self._read(whole.properties)
        return _Whole(whole, read, payload.said, payload.count if payload.numbered else 1)
