"""What machines of all protocols are made of: a table of states, and windows.

The table (``{state: {event class: next state}}``) says what is legal; tests walk it, the drawings
and the text of an error come from it.  Windows compare by position in the order of arrival, so
numbers may wrap or restart; safe and acknowledged are two states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar


class State(Enum):
    """Base class of a machine's states; each state is equal to itself alone.

    Enum hashes the name in Python code.  The transition table is consulted for every event, so
    states are hashed by identity instead, in C.
    """

    if not TYPE_CHECKING:  # checkers take an enum.s attribute for a member
        __hash__ = object.__hash__


class Own:
    """What leads a machine on and has no class of its own, as a peer's frames have.

    It stands in a class, which gives it its name: a member of an Enum takes ten times as long to
    find, and there are several for each message.
    """

    __name__: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name.title().replace("_", "")


Happening = type | Own

S = TypeVar("S", bound=State)

Table = Mapping[S, Mapping[Happening, S]]
"""Every state of the enum is a key; what is absent from its row is illegal there."""


def to(state: S, *events: Happening) -> dict[Happening, S]:
    """Return the part of a row in which all these lead to ``state``."""
    return dict.fromkeys(events, state)


class IllegalTransition(Exception):
    """This event may not happen in this state."""

    def __init__(self, state: State, event: Happening) -> None:
        super().__init__(f"{event.__name__} is not allowed in state {state.name}")
        self.state = state
        self.event = event


class Machine(Generic[S]):
    """A state, and the table of where each event leads, which all of a kind share."""

    __slots__ = ("state", "table")

    def __init__(self, table: Table[S], initial: S) -> None:
        self.table: Table[S] = table
        self.state: S = initial

    def step(self, event: Happening) -> None:
        """Follow ``event``; IllegalTransition (and no change) if the table does not allow it."""
        try:
            self.state = self.table[self.state][event]
        except KeyError:
            raise IllegalTransition(self.state, event) from None

    def try_step(self, event: Happening) -> bool:
        """Follow ``event`` and return True; return False (and change nothing) if it is illegal."""
        target = self.table[self.state].get(event)
        if target is None:
            return False
        self.state = target
        return True

    def refusal(self, event: Happening) -> str:
        return str(IllegalTransition(self.state, event))


def events(table: Table[S]) -> list[Happening]:
    return list(dict.fromkeys(event for row in table.values() for event in row))


# ── windows ─────────────────────────────────────────────────────────────────────────────────────


M = TypeVar("M")
A = TypeVar("A")

_NO_FLIGHTS: Final[OrderedDict[int, Any]] = OrderedDict()
_NONE_AHEAD: Final[frozenset[int]] = frozenset()


class SendWindow(Generic[M]):
    """At most ``limit`` messages in flight, in the order of their sending; their numbers differ."""

    __slots__ = ("_flights", "limit")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a window holds at least 1 message, not {limit}")
        self.limit: int = limit
        self._flights: OrderedDict[int, M] = _NO_FLIGHTS  # till the first is sent

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._flights

    @property
    def full(self) -> bool:
        return len(self._flights) >= self.limit

    @property
    def room(self) -> int:
        return max(0, self.limit - len(self._flights))

    def sent(self, sequence: int, message: M) -> None:
        """Put ``message`` into the window; ValueError if it is full or has ``sequence`` already."""
        if self.full:
            raise ValueError(f"the window of {self.limit} is full")
        if sequence in self._flights:
            raise ValueError(f"sequence {sequence} is in flight already")
        if self._flights is _NO_FLIGHTS:
            self._flights = OrderedDict()
        self._flights[sequence] = message

    def sent_run(self, sequences: Sequence[int], messages: Sequence[M]) -> None:
        """As :meth:`sent` for messages in a row: all of them come into the window, or none."""
        flights = self._flights
        if len(sequences) != len(messages):
            raise ValueError(f"{len(sequences)} numbers for {len(messages)} messages")
        if len(flights) + len(sequences) > self.limit:
            raise ValueError(f"the window of {self.limit} is full")
        if not flights.keys().isdisjoint(sequences):
            known = next(number for number in sequences if number in flights)
            raise ValueError(f"sequence {known} is in flight already")
        if flights is _NO_FLIGHTS:
            flights = self._flights = OrderedDict()
        flights.update(zip(sequences, messages, strict=True))

    def acknowledge_up_to(self, sequence: int) -> list[M] | None:
        """Oldest first; None, and nothing is released, if ``sequence`` is not in flight."""
        flights = self._flights
        if sequence not in flights:
            return None
        released = []
        while True:
            number, message = flights.popitem(last=False)
            released.append(message)
            if number == sequence:
                return released

    def acknowledge_one(self, sequence: int) -> M | None:
        return self._flights.pop(sequence, None)

    @property
    def oldest(self) -> M | None:
        return next(iter(self._flights.values()), None)

    def acknowledge_oldest(self) -> M:
        """Release the oldest message alone; KeyError if there is none."""
        return self._flights.popitem(last=False)[1]

    def sequences(self) -> list[int]:
        return list(self._flights)

    def messages(self) -> list[M]:
        return list(self._flights.values())

    def drain(self) -> list[M]:
        messages = self.messages()
        self._flights.clear()
        return messages


class ReceiveWindow(Generic[A]):
    """Messages by position in the order of arrival, and acknowledgements until they are due.

    Duties of the caller, in this order:

    1. ``receive(count)`` for what a read brought;
    2. ``mark(ack)`` wherever the protocol's rule asks for an acknowledgement of all that has
       arrived so far;
    3. ``slice()`` when it hands what arrived to the sink: the position that ends that slice;
    4. ``made_safe(position)`` when the sink says that slice is safe; slices may become safe in any
       order.  It returns the acknowledgements that are due now, in order;
    5. write them.

    Attributes:
        received: messages that ever arrived.
        safe: messages up to this position are all safe.
        acknowledged: messages up to this position have had their acknowledgement returned.
        marked: messages up to this position are covered by a mark.
        waiting: the acknowledgements that wait for the sink with their positions, oldest first;
            read-only.
    """

    __slots__ = ("_open", "_safe_ahead", "acknowledged", "marked", "received", "safe", "waiting")

    def __init__(self) -> None:
        self.received: int = 0
        self.safe: int = 0
        self.acknowledged: int = 0
        self.marked: int = 0
        # Lists, although they are taken from in front: there is a window for each connection, and
        # an empty deque is ten times as large as an empty list.
        self._open: list[int] = []  # ends of slices that are not safe yet, oldest first
        # Ends that became safe before an older slice did.
        self._safe_ahead: frozenset[int] | set[int] = _NONE_AHEAD
        self.waiting: list[tuple[int, A]] = []

    @property
    def unacknowledged(self) -> int:
        return self.received - self.acknowledged

    @property
    def unsafe(self) -> int:
        return self.received - self.safe

    def receive(self, count: int) -> None:
        """So many messages more have arrived."""
        self.received += count

    def mark(self, ack: A, position: int | None = None) -> None:
        """``ack`` is due as soon as all that arrived up to ``position`` is safe.

        ``position`` counts arrivals, as ``received`` does; None means all that has arrived so far.
        Acknowledgements leave in the order of their marks, so positions must not run backwards:
        ValueError for a position before the last mark or beyond what arrived.
        """
        position = self.received if position is None else position
        if not self.marked <= position <= self.received:
            raise ValueError(f"position {position} is not within {self.marked} … {self.received}")
        self.marked = position
        self.waiting.append((position, ack))

    def slice(self) -> int:
        """End a slice after what has arrived so far, and return its position for ``made_safe``."""
        if not self._open or self._open[-1] != self.received:
            self._open.append(self.received)
        return self.received

    def made_safe(self, position: int) -> list[A]:
        """The slice that ends at ``position`` is safe: the acknowledgements that are due now.

        ValueError for a position that ends no open slice: it would acknowledge too much.
        """
        opened, ahead = self._open, self._safe_ahead
        if opened and opened[0] == position:  # as nearly always: in order
            self.safe = opened.pop(0)
            if ahead:
                self._catch_up()
        elif position in ahead or position not in opened:
            raise ValueError(f"no open slice ends at {position}")
        else:
            if not ahead:
                self._safe_ahead = ahead = set()
            assert isinstance(ahead, set)
            ahead.add(position)
        return self.due() if self.waiting else []

    def made_safe_within(self, position: int) -> list[A]:
        """Of the oldest open slice what came up to ``position`` is safe; as :meth:`made_safe`.

        A position in another slice, or that is safe already, changes nothing.
        """
        if self._open and self.safe < position < self._open[0]:
            self.safe = position
        return self.due() if self.waiting else []

    def _catch_up(self) -> None:
        """The oldest open slice may have become safe before."""
        opened, ahead = self._open, self._safe_ahead
        assert isinstance(ahead, set)
        caught = 0
        while ahead and opened[caught] in ahead:  # what is ahead is open
            self.safe = opened[caught]
            ahead.discard(self.safe)
            caught += 1
        del opened[:caught]
        if not ahead:
            self._safe_ahead = _NONE_AHEAD

    def due(self) -> list[A]:
        """Remove and return the acknowledgements whose messages are safe, and all before them."""
        marks, safe = self.waiting, self.safe
        acks = []
        for position, ack in marks:
            if position > safe:
                break
            self.acknowledged = position
            acks.append(ack)
        del marks[: len(acks)]  # all at once: each time the rest moves up
        return acks

    def never_safe(self, position: int) -> None:
        """The slice that ends at ``position`` never will be safe: nothing from its begin on is due.

        Acknowledgements of what came before it stay.  ValueError for a position that ends no open
        slice.
        """
        opened = self._open
        if position not in opened or position in self._safe_ahead:
            raise ValueError(f"no open slice ends at {position}")
        index = opened.index(position)
        begin = opened[index - 1] if index else self.safe
        while self.waiting and self.waiting[-1][0] > begin:
            self.waiting.pop()
