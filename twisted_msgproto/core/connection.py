"""A machine is one side of one connection, without I/O and without a clock.

All machines have these methods, whatever their protocol::

    events = machine.receive(inputs, now)     # what the transport read
    …                                         # deal with the events, in order
    write(machine.outputs())                  # after every call
    arm(machine.deadline)                     # after every call: when to call advance()

Duties of the caller, in this order:

1. ``connection_made(now)`` when the connection stands; then ``receive(inputs, now)`` with what was
   read, and deal with its events in order; call it again with nothing while the machine is
   ``unfinished``, between other work.  Call ``ended(now)`` when the peer will send no more.
2. Call ``made_safe(position, now)`` when the sink has made safe what the event with this position
   brought, and ``not_safe(position, now)`` when it never will.  Positions may become safe in any
   order.
3. After every call write ``outputs()``; when the machine is ``finished`` close the connection after
   that.
4. Call ``advance(now)`` when the time ``deadline`` comes.  If there is nothing to do yet, the
   deadline moves to a later time.
5. Call ``paused(now)`` when reading from the peer stops and ``resumed(now)`` when it starts again:
   the peer's silence means nothing in between.
6. Call ``drain(now)`` to end in order: everything owed to the peer is sent, then the machine is
   ``finished``.
7. Call ``lost(now)`` when the connection is gone.  After it there are no outputs and no deadline.

``now`` is in seconds, by any clock that does not run backwards.  Each of these calls returns
events.  A peer's fault is the last event of all, a :class:`~.errors.Fault`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from .deadlines import Deadlines, ManyDeadlines

Inputs = TypeVar("Inputs")
Outputs = TypeVar("Outputs")
Event = TypeVar("Event")


@dataclass(slots=True)
class WorkLost:
    """The connection is gone: ``work`` of ours will not be answered on it, oldest first.

    The protocol decides what ``work`` contains: the waiters, batches or numbers that its verbs
    accepted or returned.  Nobody knows whether the peer has done it.
    """

    work: list[Any]


class Connection(ABC, Generic[Inputs, Outputs, Event]):
    """Base class of one side of a connection; the module's documentation says how to use it.

    A protocol's machine sets its deadlines by name, and maps each name to the method for it in
    ``timely``::

        timely = {"handshake": Session._handshake_expired, …}

    The method is called with ``now`` and with the list to append events to.  It sets its deadline
    again if there is nothing to do yet.

    Attributes:
        deadlines: what is to be done when; ``deadlines.next`` is the same as ``deadline``.
        counters: plain integers for metrics.
    """

    __slots__ = ("_paused",)  # a machine of which there are very many has slots alone

    timely: ClassVar[Mapping[Any, Callable[[Any, float, list[Any]], None]]] = {}

    deadlines: Deadlines | ManyDeadlines[Any]
    counters: Any
    _paused: bool  # the peer is not read, or does not read us

    # ── what comes in ───────────────────────────────────────────────────────────────────────────

    def connection_made(self, now: float) -> list[Event]:
        """Note that the connection is established: the peer's time to begin runs from ``now``."""
        return []

    @abstractmethod
    def receive(self, inputs: Inputs, now: float) -> list[Event]:
        """Read what arrived at ``now``: bytes, or the list of frames of one read.

        However the peer's bytes are cut, the events say the same in the same order.
        """

    def ended(self, now: float) -> list[Event]:
        """The peer has shut its sending side: answer what came, then be ``finished``."""
        return self.drain(now)

    def made_safe(self, position: Any, now: float) -> list[Event]:
        """Note that what the event with this ``position`` brought is safe; acknowledgements may be
        due.

        Raises ValueError for a position that no event had, and for one that was answered already.
        """
        raise ValueError(f"no event had the position {position!r}")

    def not_safe(self, position: Any, now: float) -> list[Event]:
        """What the event with this ``position`` brought never will be safe, nor acknowledged.

        ValueError as ``made_safe``.
        """
        raise ValueError(f"no event had the position {position!r}")

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    @property
    def deadline(self) -> float | None:
        """Return when to call ``advance``; None: not before another call was made."""
        return None if self.finished else self.deadlines.next

    def advance(self, now: float) -> list[Event]:
        """Do what is due at ``now``."""
        events: list[Event] = []
        deadlines = self.deadlines
        if deadlines.next is not None and deadlines.next <= now:
            for key in deadlines.due(now):
                if self.finished:
                    break
                self._due(key, now, events)
        return events

    def _due(self, key: Any, now: float, events: list[Event]) -> None:
        self.timely[key](self, now, events)

    def paused(self, now: float) -> list[Event]:
        """The peer is not read, or cannot read us: its silence means nothing from now on."""
        self._paused = True
        return []

    def resumed(self, now: float) -> list[Event]:
        """The peer is read again: it has all its time from now on."""
        return []

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def drain(self, now: float) -> list[Event]:
        """End in order: accept no more, send what is owed, then become ``finished``."""

    @abstractmethod
    def lost(self, now: float) -> list[Event | WorkLost]:
        """The connection is gone: no output and no deadline is left.

        :class:`WorkLost` says what of ours was not answered, if anything; a second call returns
        nothing.
        """

    # ── what goes out, and what the caller may look at ──────────────────────────────────────────

    @abstractmethod
    def outputs(self) -> Outputs:
        """Return what is to be written now, and forget it."""

    @property
    def unfinished(self) -> bool:
        """More can be read without more input: call ``receive`` with nothing soon."""
        return False

    @property
    @abstractmethod
    def finished(self) -> bool:
        """There is nothing more to do: close the connection once ``outputs()`` are written."""

    @property
    def input_weight(self) -> int:
        """Return how many bytes incomplete messages are held in."""
        return 0

    @property
    def objects(self) -> int:
        """Return how many of the bytes of ``input_weight`` did not come: they are the weight of the
        objects.  A peer that makes us hold these has not sent them, so they are no progress.
        """
        return 0

    @property
    def no_partial_input(self) -> bool:
        """Whether ``input_weight`` is 0 and the machine is not ``unfinished``."""
        return not self.input_weight and not self.unfinished

    @property
    @abstractmethod
    def state(self) -> Any:
        """Return the state of this side."""

    @abstractmethod
    def snapshot(self) -> dict[str, object]:
        """Return the state as plain values without secrets, for status pages and for people."""
