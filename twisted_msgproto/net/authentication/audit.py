"""Write a line for each refused login; many of one address are summed up.

A line names the address, the name that was claimed and why it was refused, never the password or
proof.  ``LINES_MAX`` lines are written for an address within ``SUM_SECONDS``, then its refusals are
counted; the sum is written with the next refusal or login after that time, whoever's it is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from twisted.logger import Logger

from ...core.errors import shown

log = Logger(namespace="twisted_msgproto.authentication.audit")

WRONG: Final = "name and password do not fit"
NOT_TRIED: Final = "not checked, since too many have failed (limits login-line and login-wait)"
UNFINISHED: Final = "the client did not wait for the answer"

LINES_MAX: Final = 5
"""At most this many lines are written for one address in ``SUM_SECONDS``: enough for fail2ban
and similar programs.
"""

SUM_SECONDS: Final = 60.0
"""Refusals of one address are summed up for a minute."""

ADDRESSES_MAX: Final = 1000
"""Refusals are counted for at most this many addresses at a time; the oldest is summed up to
make space.
"""


@dataclass(slots=True)
class _Sum:
    until: float
    lines: int = 0
    unsaid: int = 0
    not_tried: int = 0


class Audit:
    """Tells the operator that logins were refused."""

    def __init__(self) -> None:
        self._sums: OrderedDict[str, _Sum] = OrderedDict()  # in the order of their ends

    def refused(self, address: str, name: str | None, why: str, now: float) -> None:
        """A login of ``address`` was refused."""
        self.sum_up(now)
        place = address or "a client"
        of_place = self._sums.get(place)
        if of_place is None:
            of_place = self._sums[place] = _Sum(now + SUM_SECONDS)
            if len(self._sums) > ADDRESSES_MAX:
                self._say(*self._sums.popitem(last=False))
        if of_place.lines < LINES_MAX:
            of_place.lines += 1
            claimed = shown(name) if name else "nobody"
            log.warn(
                "{address}: login as {name} refused: {why}", address=place, name=claimed, why=why
            )
        else:
            of_place.unsaid += 1
            of_place.not_tried += why is NOT_TRIED

    def sum_up(self, now: float) -> None:
        """Write the sums whose time is over."""
        sums = self._sums
        while sums and (first := next(iter(sums.items())))[1].until <= now:
            del sums[first[0]]
            self._say(*first)

    def _say(self, place: str, summed: _Sum) -> None:
        if summed.unsaid:
            log.warn(
                "{address}: {count} more logins refused within {seconds:g} s,"
                " {not_tried} of them not checked",
                address=place,
                count=summed.unsaid,
                seconds=SUM_SECONDS,
                not_tried=summed.not_tried,
            )
