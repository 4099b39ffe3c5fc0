"""Cut bytes into frames: a byte stream (``SA-26``) and WebSocket messages (``SA-02``).

On a byte stream the end of a frame has to be found in one of three ways:

* the four commands without a body end at the blank line, or at an end mark that follows; behind an
  end mark line ends are read over: a terminal sends one there;
* where both sides announced ``framing::length``, ``content-length`` says how long the body is;
* otherwise a body ends at the first end mark or, with ``msg-more::yes``, where the next frame of
  this session begins: its session id is a secret, so no foreign body can look like such a frame.

Each search remembers where it stopped: a body that comes in byte by byte costs linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from sys import getsizeof
from typing import Final

from ...core.errors import Fault
from ...core.session_memory import table_bytes
from . import (
    BLANK,
    COMMANDS,
    CONTENT_LENGTH,
    CRLF,
    END,
    IN_BODIES,
    LENIENT,
    MSG_MORE,
    SESSION_ID,
    STRICT,
    YES,
    Bounds,
    Connect,
    Frame,
    Message,
    quick_head,
    read_header,
)

_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)
_CR, _LF = 13, 10
_LENGTH_LINE = f"\r\n{CONTENT_LENGTH}::".encode()
_COMMAND_BYTES_MAX = len(b"DISCONNECTING")
_HEAD_BYTES_EXTRA = 32  # a command, its CRLF, a blank line, and room to spare

# What the other side gets wrong, as (reason, text).  The texts show nothing of what was sent.
_UNKNOWN_COMMAND = ("command", "unknown command")
_NO_HEADERS = ("headers-missing", "a frame has at least one header")
_TOO_MANY_HEADERS = ("header-lines", "too many headers")
_LINE_TOO_LONG = ("header-line-bytes", "a header line is too long")
_BLOCK_TOO_LONG = ("header-block-bytes", "the header block is too long")
_CONTENT_LENGTH = ("content-length", "content-length is 1 to 10 digits, on every frame with a body")
_AFTER_LENGTH = ("framing", "neither an end mark nor a frame follows the announced body")
_AFTER_BODYLESS = ("framing", "this command has no body")
_NO_LINE_END = ("framing", "neither a line end nor a frame follows")
_AFTER_END = ("framing", "bytes follow the end mark")
_INCOMPLETE_HEAD = ("framing", "no blank line ends the headers")


@dataclass(slots=True)
class FrameOpened:
    """The head of a frame with a body whose end is not here yet; the rest follows."""

    frame: Frame


@dataclass(slots=True)
class BodyContinued:
    nbytes: bytes


@dataclass(slots=True)
class FrameClosed:
    """The end of the opened frame.  ``nbytes``: the size of its end mark (0: it has none)."""

    final: bool
    nbytes: int


Piece = Frame | FrameOpened | BodyContinued | FrameClosed | Fault


_NO_FRAME: Final = Frame({})
"""All decoders share this while no head waits for its end; nobody is handed it."""


class Decoder:
    """What cuts a byte stream into frames (``SA-26``), in linear time and bounded memory.

    ``feed`` bytes, then call ``next`` until it returns None.  A frame whose end is already here
    comes whole; of any other, head, parts of the body and end come apart as
    :class:`FrameOpened`, :class:`BodyContinued` and :class:`FrameClosed`.  Parts are multiples of
    ``part_bytes`` long, so that they depend on how much has come, not on how it came.  After a
    :class:`Fault` nothing more comes out.
    """

    def __init__(
        self,
        bounds: Bounds | None = None,
        *,
        part_bytes: int = 65536,
        lenient: bool = False,
        framed: bool = False,
    ) -> None:
        """``lenient``: bare LF ends a line as well; ``framed``: what comes is one frame."""
        # Instances share the names of up to 30 attributes; with more a session weighs 1.2 KB more.
        # The machine sets these two; without an id ``msg-more`` has no next frame to look for.
        self.lengths: bool = False
        self.session_id: str | None = None
        self._bounds = bounds = bounds or Bounds()
        self._lines = LENIENT if lenient else STRICT
        self._part_bytes = part_bytes
        self._quick_bytes = min(bounds.line_bytes, bounds.block_bytes)
        # How much of a body may still turn out to be the head of the next frame.
        self._hold = bounds.block_bytes + _HEAD_BYTES_EXTRA
        self._buffer = bytearray()
        self._start = 0  # everything before it is done with
        self._read: Callable[[], Piece | None] = self._read_head
        self._ended = False
        self._swallow = False  # an end mark may follow a command without a body
        self._between = False  # line ends may stand here: a frame was before
        self._framed = framed
        # the head being read line by line
        self._kind: type[Frame] | None = None  # None: its command was not read yet
        self._headers: dict[str, str] = {}
        self._head = 0  # its bytes so far, from the command on
        self._remaining = 0  # bytes left for its lines; later: for the body, with lengths
        # the body being read
        self._frame = _NO_FRAME
        self._opened = False  # the head was handed out by itself
        self._fresh = False  # nothing of the body was handed out yet
        self._empty = False  # a body of 0 bytes was announced
        self._scan = 0  # where the search for an end mark goes on
        self._end = (False, 0)  # the end found behind the last part: final, bytes
        # the search for the next frame of this session
        self._session_line = b""  # with the id; empty: no next frame is looked for
        self._session_scan = 0  # where the search for the session's id goes on
        self._run = -1  # the line with the id, while its header block is examined
        self._run_lines = 0  # examined lines from there on
        self._forward = 0  # the first line of the block that is not examined yet

    @property
    def at_head(self) -> bool:
        return self._kind is None and self._read == self._read_head

    @property
    def buffered(self) -> int:
        return len(self._buffer) - self._start

    @property
    def weight(self) -> int:
        """Return what an unfinished frame occupies, the lines of its head that were read too."""
        head = 0 if self._kind is None else self._head + table_bytes(self._headers)
        return len(self._buffer) - self._start + head

    @property
    def has_body(self) -> bool | None:
        """Whether the frame whose head is being read has a body; None: its command is not here."""
        return None if self._kind is None else self._kind.has_body

    def feed(self, nbytes: bytes) -> None:
        self._buffer += nbytes

    def end(self) -> None:
        self._ended = True
        self._kind = None
        self._headers = {}
        self._buffer.clear()
        self._start = 0

    def next(self) -> Piece | None:
        piece = None if self._ended else self._read()
        if piece is None and self._start:
            # The peer may be silent from now on, so what was handed out is forgotten.
            start = self._start
            del self._buffer[:start]
            self._scan -= start
            self._session_scan -= start
            self._forward -= start
            if self._run >= 0:
                self._run -= start
            self._start = 0
        return piece

    def clear(self) -> None:
        self._buffer.clear()
        self._start = 0

    def plain(
        self,
        prefix: bytes,
        bytes_max: int,
        taken: Mapping[str, object],
        taken_max: int,
        count: int = 0,
    ) -> tuple[list[str], list[bytes], int] | None:
        """Return all complete frames at once, if each is a message with one header after the
        session.

        ``prefix`` is what each begins with, up to the value of that header (``…\\r\\nmsg-id::``).
        The values, the bodies, and the bytes that the values occupy; or None (and nothing is
        consumed) if only one frame is any different, above ``bytes_max``, or in the least odd:
        :meth:`next` then reads them singly.  Odd is also a value that stands twice or in ``taken``,
        or that these would be more than ``taken_max``.  ``count`` says how many frames there are,
        where that is known.

        All work is done for all frames together: a frame costs a fraction of the time of ``next``.
        """
        buffer, start = self._buffer, self._start
        if (
            self._lines.lenient
            or not self.at_head
            or self._bounds.header_lines < 3
            or len(buffer) - start > bytes_max
            or not buffer.startswith(b"MESSAGE\r\n", start)
        ):
            return None
        frames = bytes(buffer[start:]).split(END)
        tail = len(frames.pop())
        if not frames or (count and (tail or count != len(frames))):
            return None
        pairs = [frame.partition(BLANK) for frame in frames]
        bodies = [body for _, _, body in pairs]
        size = len(prefix)
        heads = [head for head, _, _ in pairs]
        if len(max(heads, key=len)) > self._quick_bytes or not compare_digest(
            b"".join([head[:size] for head in heads]), prefix * len(heads)
        ):
            return None
        values = [head[size:] for head in heads]
        if self.lengths:
            # An end mark within a body, or a frame without one, shows as a wrong length.
            split = [value.partition(_LENGTH_LINE) for value in values]
            values = [value for value, _, _ in split]
            if [length for _, _, length in split] != [b"%d" % len(body) for body in bodies]:
                return None
        joined = b"\n".join(values)
        if b"\r" in joined or b"\0" in joined or b"::" in joined:
            return None
        try:
            texts = joined.decode().split("\n")
        except UnicodeDecodeError:
            return None
        if (
            len(texts) != len(values)
            or len(texts) + len(taken) > taken_max
            or len(set(texts)) != len(texts)
            or not taken.keys().isdisjoint(texts)
        ):
            return None
        self._swallow = False
        self._between = True
        self._start = len(buffer) - tail
        return texts, bodies, len(joined) if joined.isascii() else sum(map(getsizeof, texts))

    def _fail(self, problem: tuple[str, str], data: bytes = b"") -> Fault:
        self.end()
        return Fault(problem[0], problem[1], data)

    # --- heads ---------------------------------------------------------------------------------

    def _read_head(self) -> Piece | None:
        buffer, start = self._buffer, self._start
        if self._kind is None:
            if self._lines.lenient:
                start = self._skip_blank_lines()
            else:
                if self._swallow and start < len(buffer):
                    size = self._lines.end_here(buffer, start, True)
                    if size is None:
                        return None
                    self._swallow = False
                    self._start = start = start + size
                if self._between and start < len(buffer) and buffer[start] == _CR:
                    if self._framed:
                        return self._fail(_AFTER_BODYLESS)
                    start = self._skip_line_ends()
                    if start < len(buffer) and buffer[start] == _CR:
                        half = start + 1 == len(buffer)  # half a line end
                        return None if half else self._fail(_NO_LINE_END)
            if start >= len(buffer):
                return None
            # The common case: the whole head is here, and nothing is wrong with it.
            end = -1 if self._lines.lenient else buffer.find(BLANK, start)
            if 0 <= end <= start + self._quick_bytes:
                head = quick_head(bytes(buffer[start:end]), self._bounds)
                if head is not None:
                    self._start = end + 4
                    return self._begin(head[0], head[1], end + 4 - start)
        return self._read_lines()

    def _skip_line_ends(self) -> int:
        """Read over CRLF that stands between two frames; the first byte behind it (``SA-26``)."""
        buffer, start = self._buffer, self._start
        while buffer.startswith(CRLF, start):
            start += 2
        self._start = start
        return start

    def _skip_blank_lines(self) -> int:
        """A terminal sends an end mark with a line end behind it (``SA-28``)."""
        buffer, start = self._buffer, self._start
        while start < len(buffer):
            byte = buffer[start]
            if byte == _LF:
                start += 1
            elif byte == _CR and buffer[start + 1 : start + 2] == b"\n":
                start += 2
            elif byte == 0 and self._swallow:
                start += 1
                self._swallow = False
            else:
                break  # a CR alone may be half a line end: the line reader waits for the rest
        self._start = start
        return start

    def _read_lines(self) -> Piece | None:
        bounds, buffer = self._bounds, self._buffer
        while True:
            start = self._start
            end, after = self._lines.next(buffer, start)
            # A lone CR at the end may be half a line end.
            reach = end if end >= 0 else max(start, len(buffer) - buffer.endswith(b"\r"))
            if self._kind is None:
                if reach - start > _COMMAND_BYTES_MAX:
                    data = bytes(buffer[start : start + _COMMAND_BYTES_MAX + 1])
                    return self._fail(_UNKNOWN_COMMAND, data)
                if end < 0:
                    return None
                command = bytes(buffer[start:end])
                self._kind = COMMANDS.get(command.decode("latin-1"))
                if self._kind is None:
                    return self._fail(_UNKNOWN_COMMAND, command)
                self._start = after
                self._swallow = False
                self._head = after - start
                self._headers = {}
                self._remaining = bounds.block_bytes
                continue
            # Whichever bound lies nearer is the one to name, however the bytes came in.
            if reach - start > min(bounds.line_bytes, self._remaining):
                block = self._remaining < bounds.line_bytes
                return self._fail(_BLOCK_TOO_LONG if block else _LINE_TOO_LONG)
            if end < 0:
                return None
            self._start = after
            self._head += after - start
            self._remaining -= after - start
            if end == start:
                kind, self._kind = self._kind, None
                if not self._headers and kind is not Connect:
                    return self._fail(_NO_HEADERS)
                return self._begin(kind, self._headers, self._head)
            if len(self._headers) >= bounds.header_lines:
                return self._fail(_TOO_MANY_HEADERS)
            line = bytes(buffer[start:end])
            problem = read_header(line, self._headers)
            if problem is not None:
                return self._fail(problem)

    def _begin(self, kind: type[Frame], headers: dict[str, str], nbytes: int) -> Piece | None:
        frame = kind(headers, b"", True, nbytes)
        self._between = True
        if not kind.has_body:
            self._swallow = True
            return frame
        self._frame = frame
        self._opened = False
        self._fresh = True
        if self.lengths:
            text = headers.pop(CONTENT_LENGTH, "")
            if _DIGITS.fullmatch(text) is None:
                return self._fail(_CONTENT_LENGTH)
            self._remaining = int(text)
            self._empty = not self._remaining
            self._read = self._read_length
        else:
            self._scan = self._session_scan = self._start
            self._read = self._read_mark
            self._session_line = b""
            if kind is Message and headers.get(MSG_MORE) == YES and self.session_id is not None:
                self._session_line = f"{SESSION_ID}::{self.session_id}".encode()
                self._run = -1
        return self._read()

    # --- bodies --------------------------------------------------------------------------------

    def _close(self, body_end: int, final: bool, end_bytes: int) -> Piece:
        body = bytes(self._buffer[self._start : body_end])
        self._start = body_end + end_bytes
        if not self._opened:
            self._read = self._read_head
            frame, self._frame = self._frame, _NO_FRAME
            frame.body = body
            frame.final = final
            frame.end_bytes = end_bytes
            return frame
        self._end = (final, end_bytes)
        self._read = self._read_end
        return BodyContinued(body) if body else self._read_end()

    def _read_end(self) -> Piece:
        self._read = self._read_head
        return FrameClosed(*self._end)

    def _open(self, decided: int) -> Piece | None:
        """The end is not here: hand out the head, then whole parts of the ``decided`` bytes."""
        if not self._opened:
            self._opened = True
            frame, self._frame = self._frame, _NO_FRAME
            return FrameOpened(frame)
        size = decided - decided % self._part_bytes
        if size <= 0:
            return None
        start = self._start
        self._start += size
        self._fresh = False
        return BodyContinued(bytes(self._buffer[start : start + size]))

    def _read_length(self) -> Piece | None:
        buffer = self._buffer
        available = len(buffer) - self._start
        broken = False
        if available > self._remaining:
            body_end = self._start + self._remaining
            size = self._lines.end_here(buffer, body_end, self._empty)
            broken = size == 0 and not 65 <= buffer[body_end] <= 90  # no command begins here
            if size is not None and not broken:
                return self._close(body_end, size > 0, size)
        piece = self._open(min(available, self._remaining))
        if isinstance(piece, BodyContinued):
            self._remaining -= len(piece.nbytes)
        # What was announced comes out first, as it would have if the bytes had come one by one.
        return self._fail(_AFTER_LENGTH) if piece is None and broken else piece

    def _read_mark(self) -> Piece | None:
        lines, buffer, start = self._lines, self._buffer, self._start
        size = lines.end_at_start(buffer, start) if self._fresh else 0
        if size:
            return self._close(start, True, size)
        found, after = lines.end_in(buffer, self._scan)
        if found < 0:
            self._scan = max(start, len(buffer) - 4)
        if self._session_line:
            frame = self._find_frame(start, found if found >= 0 else len(buffer))
            if frame >= 0:
                return self._close(frame, False, 0)
        if found >= 0:
            return self._close(found, True, after - found)
        return self._open(len(buffer) - start - (self._hold if self._session_line else 4))

    def _find_frame(self, floor: int, ceiling: int) -> int:
        """Return where between ``floor`` and ``ceiling`` the next frame of this session begins, or
        -1.

        Header blocks with this session's id are searched, not commands: those are rare, so that
        nearly all of a body is only searched at the speed of ``find``.  A line with the id is
        followed to the end of its block; from there the block is read backwards for the earliest
        command under which it is valid.  Each line is read once in either direction.
        """
        buffer, bounds, session_line = self._buffer, self._bounds, self._session_line
        while True:
            if self._run < 0:
                found = buffer.find(session_line, self._session_scan, ceiling)
                if found < 0:
                    scan = len(buffer) - len(session_line) + 1
                    self._session_scan = max(self._session_scan, scan)
                    return -1
                self._session_scan = found + 1
                if self._lines.begin(buffer, found, max(floor, found - 2)) != found:
                    continue  # it is not at a line's start
                self._run = self._forward = found
                self._run_lines = 0
            end, after = self._lines.next(buffer, self._forward)
            if end < 0 and len(buffer) - self._forward <= bounds.line_bytes + 1:
                return -1  # the line may go on
            if end == self._forward:
                frame = self._walk_back(floor, end)
                if frame >= 0:
                    return frame
                self._give_up_run()
                continue
            line = bytes(buffer[self._forward : end]) if end >= 0 else b""
            if line == session_line:  # a second one: no block holds both
                self._run = self._forward
                self._run_lines = 0
            self._run_lines += 1
            if (
                not line
                or self._run_lines > bounds.header_lines
                or after - self._run > bounds.block_bytes
                or len(line) > bounds.line_bytes
                or (self._run_lines == 1 and line != session_line)
                or read_header(line, {}) is not None
            ):
                self._give_up_run()
            else:
                self._forward = after

    def _give_up_run(self) -> None:
        self._run = -1
        self._session_scan = max(self._session_scan, self._forward)

    def _walk_back(self, floor: int, blank: int) -> int:
        buffer, lines, bounds = self._buffer, self._lines, self._bounds
        headers: dict[str, str] = {}
        frame = -1
        ours = False
        end = lines.end_before(buffer, blank)
        while True:
            low = max(floor, end - bounds.line_bytes - 2)
            begin = lines.begin(buffer, end, low)
            line = bytes(buffer[max(begin, low) : end])
            if ours:
                for command in IN_BODIES:
                    if line.endswith(command):
                        frame = end - len(command)
            if (
                begin < 0
                or len(line) > bounds.line_bytes
                or len(headers) >= bounds.header_lines
                or blank - begin > bounds.block_bytes
                or read_header(line, headers) is not None
            ):
                return frame
            ours = ours or line == self._session_line
            end = lines.end_before(buffer, begin)


def read_frame(
    data: bytes, bounds: Bounds | None = None, *, lenient: bool = False
) -> Frame | Fault:
    """Return the one frame of a WebSocket message.

    The commands without a body may end after their last header, with or without its line end
    (``SA-02``); nothing stands behind an end mark (``SA-21``).  A MESSAGE or ERROR without an end
    mark comes back with ``final=False``.
    """
    decoder = Decoder(bounds, part_bytes=len(data) + 1, lenient=lenient, framed=True)
    try:
        decoder.feed(data)
        piece = decoder.next()
        if piece is None:
            if decoder.has_body is not False:
                return Fault(*_INCOMPLETE_HEAD)
            decoder.feed(CRLF if data.endswith(b"\n") else BLANK)
            piece = decoder.next()
        if isinstance(piece, FrameOpened):
            frame = piece.frame
            frame.body = data[len(data) - decoder.buffered :]
            frame.final = False
            return frame
        if not isinstance(piece, Frame):
            return piece if isinstance(piece, Fault) else Fault(*_INCOMPLETE_HEAD)
        behind = decoder.next() if decoder.buffered and (lenient or not piece.has_body) else None
        if decoder.buffered or behind is not None:  # a fault, too, leaves nothing to hold
            return Fault(*(_AFTER_END if piece.has_body else _AFTER_BODYLESS))
        return piece
    finally:
        # A decoder refers to itself: else it would hold the bytes until garbage is collected.
        decoder._buffer.clear()
        del decoder._read
