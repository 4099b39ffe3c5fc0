"""What may happen to a letter, as a table.

The broker does not step through this table for each letter: it moves whole batches.  The table is
its specification.  The model in the tests follows each letter through it, and fails where the
broker does anything else; the page about the broker shows it.
"""

from __future__ import annotations

from typing import Final

from twisted_msgproto.core.machine import State, Table


class LetterState(State):
    """Says where a letter is."""

    WAITING = "in a queue, at its place"
    IN_FLIGHT = "with one consumer, which has to acknowledge it"
    DONE = "never delivered again"


class Delivered:
    """A consumer got it."""


class Acknowledged:
    """Its consumer has acknowledged it, or nobody acknowledges where it was delivered."""


class Refused:
    """Its consumer has rejected it for good."""


class Returned:
    """Its consumer has rejected it, went, or failed: it is back at its place."""


class Buried:
    """It is a dead letter from now on, after its last try, or as too old or one too many."""


class Requeued:
    """Somebody has moved it to another queue, mostly from the dead letters."""


class Dropped:
    """Somebody has purged it, it was one dead letter too many, or it cannot be read."""


LETTER: Final[Table[LetterState]] = {
    LetterState.WAITING: {
        Delivered: LetterState.IN_FLIGHT,
        Buried: LetterState.WAITING,
        Requeued: LetterState.WAITING,
        Dropped: LetterState.DONE,
    },
    LetterState.IN_FLIGHT: {
        Acknowledged: LetterState.DONE,
        Refused: LetterState.DONE,
        Returned: LetterState.WAITING,
        Buried: LetterState.WAITING,
    },
    LetterState.DONE: {},
}
