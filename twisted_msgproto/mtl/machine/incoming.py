"""What a reader has received and not settled yet, under sequences of which none comes twice."""

from __future__ import annotations

from collections import OrderedDict


class Incoming:
    """The contents of one reading flow, over all its leases.

    A server numbers contents anew for each lease.  If the application confirmed one late, under its
    old number, another content could have that number by then, and would be lost.  So the server's
    sequences stay in here, and what the application sees rises over all leases.

    Attributes:
        unconfirmed: sequences, as the application knows them, which are not confirmed or rejected
            yet, in order.
    """

    __slots__ = ("_base", "_last", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed: OrderedDict[int, None] = OrderedDict()
        self._last = -1  # the last sequence of this lease
        self._base = 0  # what is added to the server's sequences

    def renew(self) -> None:
        """There is another lease: what was not settled comes again."""
        self.unconfirmed.clear()
        self._base += self._last + 1
        self._last = -1

    def passes(self, sequence: int) -> bool:
        """Return whether the server's ``sequence`` is above all before; it counts as received
        then.
        """
        if sequence <= self._last:
            return False
        self._last = sequence
        return True

    def add(self, sequence: int, confirms: bool) -> int:
        """Return the application's sequence of what the server sent as ``sequence``."""
        known = self._base + sequence
        if confirms:
            self.unconfirmed[known] = None
        return known

    def settle(self, known: int, multiple: bool) -> int | None:
        """Settle a content, or all up to it; return the server's sequence.

        None: it is settled already, was never received, or belongs to an older lease.
        """
        unconfirmed = self.unconfirmed
        if known not in unconfirmed:
            return None
        if multiple:
            while next(iter(unconfirmed)) != known:
                unconfirmed.popitem(last=False)
        del unconfirmed[known]
        return known - self._base
