"""A destination as its subscriber has it: messages, and why there are no more of them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, succeed

from ...core.errors import Refused, shown
from ...core.kept import KEPT_WEIGHT_OCTETS
from ...core.message import Message
from ...net.clients.subscriptions import LOST, REFUSED, UNSUBSCRIBED, Backlog, Ending
from ..application import BAD_FILTER, NOT_ALLOWED, TOPIC_PREFIX
from ..machine import ErrorReceived
from ..terms import BAD_COMMAND, ERROR_CHARACTERS_MAX, UNKNOWN_COMMAND
from ..wire import LIMIT_EXCEEDED, Filter

if TYPE_CHECKING:
    from .sides import MicroMsg2Client

OBJECTIONS: Final = frozenset({BAD_FILTER, BAD_COMMAND, LIMIT_EXCEEDED, NOT_ALLOWED})
"""A server refuses one subscription with these codes; the text begins with its destination."""

NAME_CHARACTERS: Final = 258
"""A destination has at most 255 octets; behind it stands a colon and a space."""

AFTER_NAME: Final = re.compile(": ")

LATE_OCTETS: Final = 1 << 20
"""Of a topic that has ended this much may wait to be iterated, with what was on its way."""


def weigh(message: Message) -> int:
    fields = message.fields or {}
    texts = sum(len(name) + len(value) + KEPT_WEIGHT_OCTETS for name, value in fields.items())
    return len(message.body or b"") + texts + KEPT_WEIGHT_OCTETS


class Arrivals(Backlog[Message]):
    """Messages of one destination until they are iterated, and their acknowledgements.

    Attributes:
        wanted: somebody has iterated; until then messages go to ``messageReceived`` alone.
    """

    __slots__ = ("_held", "_holds", "_taken", "wanted")

    def __init__(self, taken: Callable[[], object] = lambda: None) -> None:
        super().__init__(self._acknowledge, weigh)
        self._taken = taken
        self._held: deque[Deferred[None]] = deque()  # as many as there are messages
        self._holds = True
        self.wanted = False

    def want(self) -> None:
        self.wanted = True

    def arrived(self, message: Message) -> Deferred[None] | None:
        """A message came; it may be acknowledged when the Deferred fires (None: at once).

        After the end of a topic messages of :data:`LATE_OCTETS` are kept, and later ones are
        dropped.
        """
        if not self._holds:
            if self.octets <= LATE_OCTETS:
                self.put((message,))
            return None
        held: Deferred[None] = Deferred()
        self._held.append(held)
        self.put((message,))
        return held

    def _acknowledge(self, message: Message, octets: int) -> None:
        if self._held:
            self._held.popleft().callback(None)
        self._taken()

    def release(self) -> None:
        """Acknowledge what waits here: no one else would get it anyway."""
        self._holds = False
        while self._held:
            self._held.popleft().callback(None)

    def reopen(self) -> None:
        super().reopen()
        self._holds = True


class Subscription(Ending):
    """A destination to which a session has subscribed: iterate it with ``async for``.

    Its messages go to ``messageReceived`` until it is iterated for the first time, and from then on
    to those who iterate, each to one of them.  A message is acknowledged when iteration returns it.
    So a server with a window stops when nobody iterates, and messages of a queue that were not
    acknowledged go to another consumer when the session has ended.  Cancelling a step, as a
    time-out does, loses nothing.

    It ends once, for one of these reasons; what had come before can still be iterated:

    * ``"unsubscribed"``: we said UNSUBSCRIBE;
    * ``"refused"``: the server said with an ERROR that it does not grant it;
    * ``"lost"``: the session ended first.  ``failure`` tells if the server has dropped us because
      we read too slowly.

    Attributes:
        destination: the name of the topic or queue.
        filter: the messages meant, or None for all.
        reason: why it has ended, as above; None while it lives.
        failure: the exception that iteration raises at the end, or None.
    """

    def __init__(
        self,
        session: MicroMsg2Client,
        destination: str,
        filter: Filter | None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """``arrivals`` belong to somebody who outlives the session."""
        super().__init__()
        self._session = session
        self._borrowed = arrivals is not None
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self.destination = destination
        self.filter = filter

    def unsubscribe(self) -> Deferred[None]:
        """Ask for no further messages, if it lives; as :meth:`MicroMsg2Client.unsubscribe`."""
        return succeed(None) if self.ended else self._session.unsubscribe(self.destination)

    def __aiter__(self) -> Subscription:
        """Return this subscription; its messages come to who iterates from now on."""
        self._arrivals.want()
        return self

    async def __anext__(self) -> Message:
        """Return the next message; at the end StopAsyncIteration, or what has ended it early."""
        self._arrivals.want()
        return await self._arrivals.take()

    # The session's side

    def _end(self, reason: str, failure: Exception | None = None) -> None:
        """It has ended: everybody who waits for anything of it hears so."""
        if not self._conclude(reason, failure):
            return
        if reason == UNSUBSCRIBED and self.destination.startswith(TOPIC_PREFIX):
            self._arrivals.release()
        if not self._borrowed:
            self._arrivals.end(failure)
        self._tellEnd()
        self._session._guarded(self._session.subscriptionEnded, self, reason)


class Subscriptions:
    """The subscriptions of one session, and what came for those that were iterated."""

    def __init__(self) -> None:
        self.living: dict[str, Subscription] = {}
        self._arrivals: dict[str, Arrivals] = {}  # those that have ended as well

    def add(
        self,
        session: MicroMsg2Client,
        destination: str,
        filter: Filter | None,
        arrivals: Arrivals | None,
    ) -> Subscription:
        """``session`` has asked for it, perhaps not for the first time."""
        living = self.living.get(destination)
        if living is not None:
            living.filter = filter
            return living
        subscription = Subscription(session, destination, filter, arrivals)
        if arrivals is None and destination in self._arrivals:
            subscription._arrivals = self._arrivals[destination]
            subscription._arrivals.reopen()
        self.living[destination] = subscription
        self._arrivals[destination] = subscription._arrivals
        return subscription

    def end(self, destination: str, reason: str, failure: Exception | None = None) -> None:
        subscription = self.living.pop(destination, None)
        if subscription is not None:
            subscription._end(reason, failure)

    def objected(self, event: ErrorReceived) -> None:
        """The server said ERROR: which subscriptions does it refuse?"""
        for destination in self._refused(event):
            error = Refused(f"the server said {shown(event.text)}", event.code)
            self.end(destination, REFUSED, error)

    def _refused(self, event: ErrorReceived) -> list[str]:
        """Return the destinations that this ERROR does not grant.

        A destination is looked up in the text, because a server may send thousands of ERRORs in
        one read.
        """
        living, said = self.living, event.text.partition(":")[2].strip()
        if event.code == UNKNOWN_COMMAND:
            return list(living) if said == "subscribe" else []
        if event.code not in OBJECTIONS or not living:
            return []
        head = said[:NAME_CHARACTERS]
        ends = [match.start() for match in AFTER_NAME.finditer(head)]
        refused = [head[:end] for end in ends if head[:end] in living]
        if said.endswith("…") and len(event.text) >= ERROR_CHARACTERS_MAX:
            cut = said[:-1]
            refused += [
                name
                for name in living
                if len(name) + 2 >= len(cut) > 0 and f"{name}: ".startswith(cut)
            ]
        return refused

    def lost(self, error: Exception) -> None:
        for destination in list(self.living):
            self.end(destination, LOST, error)

    @property
    def wanted(self) -> bool:
        return any(one.wanted for one in self._arrivals.values())

    @property
    def untaken(self) -> bool:
        return any(map(len, self._arrivals.values()))

    def taker(self, destination: str | None) -> Callable[[Message], Any] | None:
        """Return where messages to ``destination`` go, or None: to the session's hooks."""
        arrivals = None if destination is None else self._arrivals.get(destination)
        return arrivals.arrived if arrivals is not None and arrivals.wanted else None
