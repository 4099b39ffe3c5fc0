"""Messages that are sent in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import wire
from ..wire import CONTENT_LENGTH, END, SESSION_ID

if TYPE_CHECKING:
    from .sending import Speaker

_HEAD_OCTETS = len("msg-more::yes\r\ncontent-length::1234567890\r\n\r\n")
"""The most that a head of ours has beside the session, the message's own id and its headers."""


class OutgoingMessage:
    """A message whose body is sent in parts (``SA-18``).

    The last part is kept back until the next one comes, because only the last frame of a message
    carries the end mark, and because without lengths no part may begin with NUL (``SA-21``).
    """

    __slots__ = (
        "_begun",
        "_extra",
        "_kept",
        "_lines",
        "_reach",
        "_sent",
        "_session_line",
        "_side",
        "_tail",
        "finished",
        "id",
    )

    def __init__(self, side: Speaker, lines: str, extra: str, id: str | None = None) -> None:  # type: ignore[type-arg]
        """Made by ``open_message``; ``finished`` says that no more may be written."""
        self._side = side
        self._lines = lines
        self._extra = extra
        self._kept = bytearray()
        self._session_line = f"{SESSION_ID}::".encode() + side._session_id
        self._reach = len(self._session_line)
        self._tail = b""  # the end of what was sent, for what parts make together
        self._begun = False  # a part was sent
        self._sent = 0  # octets of all parts, with what the framing adds
        self.id = id
        self.finished = False

    def check(self, octets: bytes) -> None:
        """Raise ValueError if these octets cannot be sent next (``SA-21``); nothing is sent then.

        Raise LimitExceeded if the message would be larger with them than the peer accepts.
        """
        side = self._side
        if self.id is not None:
            left = len(self._kept) + len(octets)
            frames = 1 + left // side.part_octets
            heads = frames * (len(side._prefix) + len(self._lines.encode()) + _HEAD_OCTETS)
            total = self._sent + left + heads + len(self._extra.encode()) + len(END)
            if total > side.sent_octets_max:
                raise side.too_large(total)
        if side.lengths:
            return
        before = (self._tail + bytes(self._kept[-self._reach :]))[-self._reach :]
        # Fewer than four octets before are all there is: then the body may still begin badly.
        if wire.ends_early(before + octets) if len(before) < 4 else wire.END in before + octets:
            raise ValueError("without lengths a body cannot hold an end mark (SA-21)")
        if not side._framed and self._session_line in before + octets:
            raise ValueError("a body in parts cannot hold its own session (SA-26)")

    def write(self, octets: bytes) -> None:
        """Send more of the body; ValueError as :meth:`check` says, and when it is finished."""
        if self.finished:
            raise ValueError("the message is finished")
        self.check(octets)
        if self._side.closed:
            return
        self._kept += octets
        kept, size = self._kept, self._side.part_octets
        start = 0
        # Three octets ahead: then it is known whether the next part begins with CRLF NUL.
        while len(kept) - start > size + 3:
            end = self._cut(start, start + size)
            if end + 3 > len(kept):
                break
            self._part(bytes(kept[start:end]), False)
            start = end
        if start:
            del kept[:start]

    def _cut(self, start: int, end: int) -> int:
        side, kept = self._side, self._kept
        if side.lengths:
            return end
        while True:
            end = wire.part_start(kept, end)
            if side._framed or end >= len(kept):
                return end
            # A body that looks like the beginning of a frame must not lean against our next head.
            if not wire.leads_into_frame(kept, start, end, side.bounds):
                return end
            end += 1

    def _part(self, body: bytes, final: bool) -> None:
        lines, self._extra = self._lines + self._extra, ""
        self._begun = True
        self._tail = (self._tail + body[-self._reach :])[-self._reach :]
        self._side._send_part(lines, body, final)
        self._sent += len(self._side._out[-1])

    def finish(self) -> None:
        """Send the last part."""
        if not self.finished:
            self.finished = True
            self._release()
            if not self._side.closed:
                self._part(bytes(self._kept), True)

    def abort(self) -> None:
        """Never finish it: an error frame tells the peer where the framing can (``SA-20``).

        On a stream without lengths the peer drops it after its own time (``SA-27``).
        """
        if self.finished:
            return
        self.finished = True
        self._release()
        side = self._side
        assert self.id is not None  # the side itself finishes what it sends without one
        side.forget(self.id)
        if self._begun and not side.closed and (side.lengths or side._framed):
            length = f"{CONTENT_LENGTH}::0\r\n" if side.lengths else ""
            side._out.append(f"{side._prefix}{self._lines}{length}\r\n".encode())

    def _release(self) -> None:
        if self.id is not None:
            self._side._sending -= 1
