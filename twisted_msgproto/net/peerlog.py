"""Everything that peers do wrong is logged here: one address cannot fill the log.

A topic has a window of :data:`WINDOW_SECONDS`.  In it the first lines of each address are written;
the others are counted, and their sum is written when the window is over.  Counters are not kept
here: they stay exact whatever is written.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.logger import Logger, LogLevel

from .addresses import network_of

WINDOW_SECONDS: Final = 60.0
"""Lines are counted, and summed up, for a minute."""

LINES_MAX: Final = 5
"""At most this many lines of a topic are written for one address in a window.  That is enough for
fail2ban and similar programs.
"""

ALL_LINES_MAX: Final = 200
"""At most this many lines of a topic are written in a window, for all addresses together."""

SUMS_MAX: Final = 20
"""At most this many addresses have a sum of their own; those with the fewest share one line."""

ADDRESSES_MAX: Final = 1000
"""Lines are counted for at most this many addresses in a window; the oldest is then counted with
the others that have no sum of their own.
"""


@dataclass(frozen=True)
class Topic:
    """What is summed up together.

    Attributes:
        more: what a sum calls the lines that were not written.
        lines_max: how many lines are written for one address in a window.
        all_lines_max: how many lines are written for all addresses; None: :data:`ALL_LINES_MAX`.
    """

    more: str
    lines_max: int = LINES_MAX
    all_lines_max: int | None = None


FAULTS: Final = Topic("more like it from this address")

NEWS: Final = Topic("more like it from this address", 20)

LOGINS: Final = Topic("more logins refused")

LIMITS: Final = Topic("more like it", 1)
"""These lines tell of connections that were refused or closed because a limit was met."""

TURNS: Final = Topic("more long turns", 1)
"""These lines name inputs that needed much CPU time in one turn, if an operator asks for them."""


@dataclass(slots=True)
class _Address:
    lines: int = 0
    unwritten: Counter[str] = field(default_factory=Counter)  # by reason


@dataclass(slots=True)
class _Window:
    log: Logger
    until: float
    lines: int = 0
    addresses: OrderedDict[str, _Address] = field(default_factory=OrderedDict)
    others: int = 0  # lines not written, of addresses that are not remembered any more

    @property
    def unwritten(self) -> bool:
        return self.others > 0 or any(one.unwritten for one in self.addresses.values())


class PeerLog:
    """The log of what peers did, with a limited number of lines for each address.

    Attributes:
        clock: writes a sum as soon as its window is over.  None: the next line that anybody causes
            comes after it.
    """

    def __init__(self) -> None:
        self.clock: Any = None
        self._windows: dict[Topic, _Window] = {}
        self._timer: Any = None

    def write(
        self,
        topic: Topic,
        log: Logger,
        address: str,
        now: float,
        text: str,
        /,
        *,
        reason: str,
        level: Any = LogLevel.warn,
        **fields: Any,
    ) -> None:
        """Write ``text`` with its ``fields`` as a line of ``log``, or count it.

        ``address``: the peer's host; "" if it has none (for :data:`LIMITS` the limit).  ``reason``:
        one of few words; a sum says how many lines had it.  ``now``: seconds of the clock.
        """
        self.sum_up(now)
        window = self._windows.get(topic)
        if window is None:
            window = self._windows[topic] = _Window(log, now + WINDOW_SECONDS)
        who = network_of(address) or address or "a client"
        of_address = window.addresses.get(who)
        if of_address is None:
            of_address = window.addresses[who] = _Address()
            if len(window.addresses) > ADDRESSES_MAX:
                window.others += window.addresses.popitem(last=False)[1].unwritten.total()
        if of_address.lines < topic.lines_max and window.lines < (
            topic.all_lines_max or ALL_LINES_MAX
        ):
            of_address.lines += 1
            window.lines += 1
            log.emit(level, text, reason=reason, **fields)
        else:
            of_address.unwritten[reason] += 1
            self._come_back(window.until, now)

    def sum_up(self, now: float | None = None) -> None:
        """Write the sums of the windows that are over; ``now`` None: of all of them."""
        for topic, window in list(self._windows.items()):
            if now is None or window.until <= now:
                del self._windows[topic]
                self._write_sums(topic, window)
        if not self._windows and self._timer is not None:
            timer, self._timer = self._timer, None
            timer.cancel()

    def _come_back(self, at: float, now: float) -> None:
        if self.clock is None:
            return
        if self._timer is None:
            self._timer = self.clock.callLater(at - now, self._due)
        elif at < self._timer.getTime():
            self._timer.reset(at - now)

    def _due(self) -> None:
        self._timer = None
        now = self.clock.seconds()
        self.sum_up(now)
        for window in self._windows.values():
            if window.unwritten:
                self._come_back(window.until, now)

    def _write_sums(self, topic: Topic, window: _Window) -> None:
        unwritten = [(who, one.unwritten) for who, one in window.addresses.items() if one.unwritten]
        unwritten.sort(key=lambda pair: -pair[1].total())
        for who, counts in unwritten[:SUMS_MAX]:
            window.log.warn(
                "{address}: … and {count} {more} within {seconds:g} s ({reasons})",
                address=who,
                count=counts.total(),
                more=topic.more,
                seconds=WINDOW_SECONDS,
                reasons=", ".join(f"{count} {reason}" for reason, count in counts.most_common()),
            )
        others = window.others + sum(counts.total() for _, counts in unwritten[SUMS_MAX:])
        if others:
            window.log.warn(
                "other addresses: … and {count} {more} within {seconds:g} s",
                count=others,
                more=topic.more.replace("this address", "other addresses"),
                seconds=WINDOW_SECONDS,
            )
