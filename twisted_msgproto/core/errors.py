"""The errors of the package form a tree::

    MsgprotoError
    ├── ConfigurationError      an operator's fault: printed as one line, exit status ≠ 0
    ├── PeerError               a peer's fault, given to callers whose work it ended
    │   ├── ProtocolViolation   the peer broke its protocol
    │   ├── Refused             the peer answered, and its answer is no
    │   └── TimedOut            the peer did not answer in time (a TimeoutError, too)
    ├── ConnectionClosed        the connection ended before the work was done (a ConnectionError)
    ├── LimitExceeded           the caller's own work is above a limit; nothing was sent
    ├── NotStored               the sink failed, so the connection was ended
    ├── TableError              the table cannot do what was asked: one line, exit status 2
    │   ├── Overtaken           another writer has landed rows of the same gateway
    │   ├── TableChanged        schema, partitioning or protocol are not what this writer knows
    │   └── RewindNeeded        the table was taken back or rewritten since its last own commit
    └── QueueError              the durable queue
        ├── QueueFull           max-bytes or the disk is used up; resumes by itself
        ├── QueueLocked         another process writes this queue
        ├── QueueClosed         submitted after close
        ├── QueueMismatch       an offset or checkpoint belongs to another queue, or to lost data
        ├── QueueAway           the gateway of a queue elsewhere does not answer in time
        └── QueueCorrupt        records are damaged; reads say which

A peer's fault never travels as an exception inside a machine: machines report it as their last
event (:class:`Fault`).  A programmer's fault (a verb in the wrong state, a wrong type) is a plain
``ValueError``, ``TypeError`` or :class:`~twisted_msgproto.core.machine.IllegalTransition`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "ConfigurationError",
    "ConnectionClosed",
    "Fault",
    "LimitExceeded",
    "MsgprotoError",
    "NotStored",
    "Overtaken",
    "PeerError",
    "ProtocolViolation",
    "QueueAway",
    "QueueClosed",
    "QueueCorrupt",
    "QueueError",
    "QueueFull",
    "QueueLocked",
    "QueueMismatch",
    "Refused",
    "RewindNeeded",
    "TableChanged",
    "TableError",
    "TimedOut",
]

ERROR_TEXT_BYTES_MAX = 200
"""At most this many characters of what a peer sent are shown in a log line or an error text."""


class MsgprotoError(Exception):
    """All errors of this package are subclasses of this one."""


class ConfigurationError(MsgprotoError):
    """What an operator asked for cannot be: one line says what and how to mend it."""


class PeerError(MsgprotoError):
    """The other side is the cause."""


class ProtocolViolation(PeerError):
    """The peer broke its protocol; the connection is closed."""


class Refused(PeerError):
    """The peer refused the request.  ``code`` is the protocol's own code, or None."""

    def __init__(self, text: str, code: str | int | None = None) -> None:
        super().__init__(text)
        self.code = code


class TimedOut(PeerError, TimeoutError):
    """The peer did not answer in time."""


class ConnectionClosed(MsgprotoError, ConnectionError):
    """The connection ended before the answer came; the peer may or may not have done the work."""


class LimitExceeded(MsgprotoError, ValueError):
    """The caller's message is above a limit; it was not sent."""


class NotStored(MsgprotoError):
    """What the peer sent could not be stored, so this side has ended the connection.

    It is told to whoever waits for something of that connection.  The peer has no acknowledgement
    for what was lost, and sends it again.
    """


class QueueError(MsgprotoError):
    """The durable queue cannot do what was asked."""


class QueueFull(QueueError):
    """The queue is full: ``max-bytes`` is reached or the disk has no space.  Nothing was
    acknowledged.
    """


class QueueLocked(QueueError):
    """Another process has this queue open for writing."""


class QueueClosed(QueueError):
    """The queue's writer was closed; the batch was not written."""


class QueueMismatch(QueueError):
    """An offset does not belong to this queue as it is now."""


class QueueAway(QueueError):
    """The gateway that serves a queue did not answer in time; another try may succeed."""


class QueueCorrupt(QueueError):
    """The queue's files are damaged; the error names the range of offsets that is lost."""


class TableError(MsgprotoError):
    """The Delta table cannot do what was asked; one line says why and what to do."""


class Overtaken(TableError):
    """Another writer has moved a gateway's place in the table; our rows were not committed.

    ``host``, ``pid`` and ``run`` name the writer as its commit does; they are empty and 0 when
    the commit is not one of this package.
    """

    def __init__(self, text: str, *, host: str = "", pid: int = 0, run: str = "") -> None:
        super().__init__(text)
        self.host = host
        self.pid = pid
        self.run = run


class TableChanged(TableError):
    """The table's schema, partitioning, protocol or identity is not the one this writer knows."""


class RewindNeeded(TableError):
    """The table's rows may not be what its offsets say; ``msgproto table rewind`` mends that."""


@dataclass(slots=True, frozen=True)
class Fault:
    """A machine's last event: the peer broke the protocol and the connection is to be closed.

    ``reason`` is a stable word for counters (``"frame-type"``); ``text`` says it to a person.
    ``nbytes`` are the first bytes of what was not understood, for the log.  ``limit`` names the
    limit that was met, where ``reason`` is not its name.
    """

    reason: str
    text: str
    nbytes: bytes = b""
    limit: str = field(default="", compare=False, kw_only=True)

    def __str__(self) -> str:
        return self.text


def age(seconds: float) -> str:
    """Return a time in the first unit that it has two of: ``119 s``, ``2 min``."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def escaped(text: str) -> str:
    """On one line: what a peer has chosen must not move the cursor, or turn the writing round."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(data: bytes | str, limit: int = ERROR_TEXT_BYTES_MAX) -> str:
    """Return what a peer sent, escaped and cut, fit for a log line."""
    return _cut(repr(data[: limit + 1]), limit)


def unquoted(text: str, limit: int = ERROR_TEXT_BYTES_MAX) -> str:
    """Return a peer's text, escaped and cut, fit for a log line as words of its own."""
    return _cut(escaped(text[: limit + 1]), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
