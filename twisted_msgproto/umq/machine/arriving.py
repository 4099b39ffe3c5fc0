"""The peer's messages wait here for their attachments, and for each other.

:class:`Arriving` stands between :class:`.sending.Speaker` and :class:`.receiving.Peer`.
"""

from __future__ import annotations

from ...core.kept import KEPT_WEIGHT_OCTETS, Kept
from ...core.limits import Limits
from ...core.machine import State
from ..terms.events import STREAMABLE, Attachment, AttachmentsAnnounced, Event, Message
from ..terms.states import Counters, Faulted
from ..wire import Fatal, Frame, UmqFault, encode
from .attachments import Announcement, Filled, Key, Ordered
from .sending import Speaker
from .weights import attachments_octets, text_octets


def _event_octets(event: Event) -> int:
    texts = [getattr(event, name, "") for name in ("payload", "name", "value")]
    attachments = getattr(event, "attachments", ())
    return KEPT_WEIGHT_OCTETS + sum(map(text_octets, texts)) + attachments_octets(attachments)


class Arriving(Speaker):
    """The half of a machine that keeps the peer's messages until their attachments are there, and
    the order of delivery (``UM-04``, ``UM-19``).
    """

    fault: UmqFault | None = None
    _paused = False
    _barrier: list[Event] | None = None  # what waits for W's attachments
    _behind_barrier = 0  # octets of it

    def __init__(
        self, initial: State, limits: Limits | None, now: float, every: Kept | None = None
    ) -> None:
        super().__init__(initial, limits, now, every)
        self._attachment_seconds = self._limits["attachment-seconds"]
        self.counters = Counters()
        self._incoming_since = now  # of the last announcement or filled slot

    @property
    def held(self) -> int:
        """Return octets of messages that wait for attachments, with those that are there and with
        the objects that all this is made of.
        """
        return self._incoming.octets + self._incoming.objects + self._behind_barrier

    @property
    def objects(self) -> int:
        return self._incoming.objects

    @property
    def whole(self) -> bool:
        return not (self._incoming.waiting or self._incoming.announcements)

    def _fail(self, fault: UmqFault, events: list[Event]) -> None:
        self._machine.step(Faulted)
        self._out.append(encode(Fatal("0", f"{fault.code.value} {fault.text}")))
        self._end()
        self.fault = fault
        events.append(fault)

    def _end(self) -> None:
        super()._end()
        self._lift_barrier()

    def _give(self, event: Event, events: list[Event]) -> None:
        """Return the event to the caller, unless W's attachments are still to come (``UM-07``)."""
        barrier = self._barrier
        if barrier is None:
            events.append(event)
            return
        barrier.append(event)
        self._behind_barrier += _event_octets(event)
        if self._behind_barrier > self._limits["attachments-octets"] and not self.closed:
            text = "what waits for the attachments of W is above its limit"
            self._fail(UmqFault("attachments-octets", text), events)

    def _lift_barrier(self) -> list[Event]:
        """Return what has waited for W's attachments, or for our own yes."""
        waited, self._barrier = self._barrier, None
        self._behind_barrier = 0
        return waited or []

    def _emit(self, message: Ordered, events: list[Event]) -> None:
        raise NotImplementedError

    # ── attachments in ──────────────────────────────────────────────────────────────────────────

    def _deliver(
        self, message: Message, count: int, key: Key | None, events: list[Event]
    ) -> Announcement | None:
        """Deliver ``message``: now, or when ``count`` attachments are there and its turn comes."""
        if count:
            announcement = self._announce(message, count, key, events)
            if announcement is not None and isinstance(message, STREAMABLE):
                self._give(AttachmentsAnnounced(message, count), events)
            return announcement
        if key is None or not self._behind(message, key, events):
            self._emit(message, events)
        return None

    def _behind(self, message: Ordered, key: Key, events: list[Event]) -> bool:
        """Does ``message`` have to wait for an earlier one's attachments (``UM-04``)?"""
        incoming = self._incoming
        if not incoming.waiting or not incoming.queued(message, key):
            return False
        if incoming.waiting > self._limits["waiting-messages"]:
            text = "too many messages wait for attachments"
            self._fail(UmqFault("waiting-messages", text), events)
        else:
            self._too_much_waits(events)
        return True

    def _too_much_waits(self, events: list[Event]) -> bool:
        if self._incoming.octets <= self._limits["attachments-octets"]:
            return False
        text = "what waits for attachments is above its limit"
        self._fail(UmqFault("attachments-octets", text), events)
        return True

    def _announce(
        self, message: Message | None, count: int, key: Key | None, events: list[Event]
    ) -> Announcement | None:
        if len(self._incoming) >= self._limits["announcements"]:
            text = "too many messages with attachments to come"
            self._fail(UmqFault("announcements", text), events)
            return None
        if not len(self._incoming):
            self._incoming_since = self.clock
            self.deadlines.no_later("attachment", self.clock + self._attachment_seconds)
        announcement = self._incoming.announce(message, count, key)
        return None if self._too_much_waits(events) else announcement

    def _discard(self, frame: Frame, events: list[Event]) -> None:
        """A message that nobody gets still owns its slots (``UM-04``)."""
        if frame.attachments:
            self._announce(None, frame.attachments, None, events)

    def _fill(self, attachment: Attachment, events: list[Event]) -> None:
        incoming = self._incoming
        if not len(incoming):
            self._fail(UmqFault("stray", "an attachment which no message announced"), events)
            return
        self._incoming_since = self.clock
        self.counters.attachments += 1
        filled = incoming.fill(attachment)
        if not self._too_much_waits(events):
            self._give_filled(filled, events)

    def _give_filled(self, filled: Filled, events: list[Event]) -> None:
        for message in filled.ready:
            self._emit(message, events)
        for arrived in filled.arrived:
            self._give(arrived, events)

    def stream(self, message: Message) -> list[Event]:
        """Have ``message`` now and its attachments one by one (``UM-19``).

        For a message that an AttachmentsAnnounced brought; nothing happens if it is complete.
        Returns the events that this brings.
        """
        events: list[Event] = []
        self._give_filled(self._incoming.stream(message), events)
        return events

    # ── while the peer is not read, and when nothing comes ──────────────────────────────────────

    def paused(self, now: float) -> list[Event]:
        self._paused = True
        return []

    def resumed(self, now: float) -> list[Event]:
        self._paused = False
        if len(self._incoming) and not self.closed:
            self._incoming_since = now
            self.deadlines.no_later("attachment", now + self._attachment_seconds)
        return []

    def _attachment_expired(self, now: float, events: list[Event]) -> None:
        if self._paused or not len(self._incoming):
            return
        deadline = self._incoming_since + self._attachment_seconds
        if now < deadline:
            self.deadlines.set("attachment", deadline)
        else:
            text = f"no attachment for {self._attachment_seconds:g} s"
            self._fail(UmqFault("attachment-seconds", text), events)
