"""A MicroMsg2 session sends messages, commands, frames of extensions and errors (``MM-12`` …
``MM-19``, ``MM-31``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ...core.connection import Connection
from ...core.deadlines import Deadlines
from ...core.errors import Fault, LimitExceeded
from ...core.limits import Limits
from ...core.machine import IllegalTransition, Machine, SendWindow, Table
from ..terms import (
    ANSWER_CHARACTERS_MAX,
    ERROR_CHARACTERS_MAX,
    LIMITS,
    Counters,
    Event,
    Side,
)
from ..wire.frames import (
    LARGE_HEADER_BYTES,
    Command,
    Error,
    ExtensionFrame,
    Messages,
    Unnumbered,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
    encode_numbered,
    encode_unnumbered,
    following,
)
from ..wire.texts import Writable, write_properties
from .extensions import Extension

_NOTHING: Final[Mapping[str, str]] = {}


class Sending(Connection[bytes, bytes, Event]):
    """The sending half of a session.

    Attributes:
        sending: numbers in flight; None unless acknowledgements were agreed (``MM-18``, ``MM-19``).
    """

    # There may be ten thousand sessions: without slots each has a dict of more than a KiB.
    __slots__ = (
        "_ack_wait_seconds",
        "_annotating",
        "_heard_at",
        "_last_sent",
        "_machine",
        "_no_ack_since",
        "_out",
        "_payload_bytes_max",
        "counters",
        "deadlines",
        "extensions",
        "fault",
        "limits",
        "sending",
    )

    counters: Counters
    deadlines: Deadlines
    fault: Fault | None

    def __init__(self, table: Table[Side], initial: Side, limits: Limits | None) -> None:
        limits = Limits.of(LIMITS) if limits is None else limits
        self.limits: Limits = limits
        self.counters = Counters()
        self.deadlines = Deadlines()
        self.fault = None
        self.extensions: Sequence[Extension] = ()
        self.sending: SendWindow[int] | None = None
        self._annotating: Sequence[tuple[int, Extension]] = ()
        self._machine = Machine(table, initial)
        self._out: list[bytes] = []
        self._last_sent = 0  # number of our newest message
        self._payload_bytes_max = limits.integer("payload-bytes")
        self._ack_wait_seconds = limits["ack-wait"]
        self._no_ack_since: float | None = None  # by the caller's clock; None: nothing is awaited
        self._heard_at = 0.0  # by the caller's clock
        self._paused = False

    @property
    def state(self) -> Side:
        return self._machine.state

    @property
    def established(self) -> bool:
        return self._machine.state is Side.ESTABLISHED

    @property
    def room(self) -> int | None:
        """How many more messages may be sent now; None: as many as you like (no acks agreed)."""
        if not self.established:
            return 0
        return None if self.sending is None else self.sending.room

    @property
    def in_flight(self) -> int:
        return 0 if self.sending is None else len(self.sending)

    def extension(self, name: str) -> Extension | None:
        return next((found for found in self.extensions if found.name == name), None)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def address(self, destination: str, properties: Mapping[str, Writable]) -> bytes:
        """Return the address for :meth:`send_run`; BadText for what cannot be one."""
        text = write_properties(properties)
        self._limit(len(text), "properties-bytes")
        return encode_address(destination, text)

    def check(self, payload_sizes: Iterable[int], notes: Mapping[str, str] = _NOTHING) -> None:
        """Raise LimitExceeded for too large a payload, or what an extension says to a note."""
        largest = max(payload_sizes, default=0)
        if largest > self._payload_bytes_max:
            allowed = f"payload-bytes allows {self._payload_bytes_max}"
            raise LimitExceeded(f"a payload of {largest} bytes, {allowed}")
        for _, extension in self._annotating:
            if extension.name in notes:
                extension.check_note(notes[extension.name])

    def _limit(self, nbytes: int, limit: str) -> None:
        if nbytes > self.limits[limit]:
            allowed = self.limits.integer(limit)
            raise LimitExceeded(f"{nbytes} bytes, {limit} allows {allowed}")

    def send_run(
        self,
        address: bytes,
        payloads: Iterable[bytes],
        notes: Mapping[str, str] = _NOTHING,
        *,
        now: float | None = None,
    ) -> list[int]:
        """Send messages to one address (see ``encode_address``); return their numbers, in order.

        All of one payload's parts are queued here, so no ack for a number can come before its last
        part was written (``MM-31``).  Raises IllegalTransition outside a session, and ValueError
        with the first message above the window, having sent what came before; sizes are looked at
        by :meth:`check` alone.  The time in which the peer has to acknowledge runs from ``now``
        (None: from when it was heard last).
        """
        return self.send_encoded(
            [encode_unnumbered(address, payload) for payload in payloads], notes, now=now
        )

    def send_encoded(
        self,
        messages: Sequence[tuple[Unnumbered, ...]],
        notes: Mapping[str, str] = _NOTHING,
        *,
        now: float | None = None,
    ) -> list[int]:
        """Do what :meth:`send_run` does, for messages from ``encode_unnumbered``."""
        if not self.established:
            raise IllegalTransition(self.state, Messages)
        numbers: list[int] = []
        if not self._annotating:
            self._number(messages, numbers)
        else:
            for message in messages:
                self._write_notes(notes)
                self._number((message,), numbers)
        if self.sending is not None and self._no_ack_since is None and numbers:
            self._await_ack(self._heard_at if now is None else now)
        if len(numbers) < len(messages):
            raise ValueError("the window is full")
        return numbers

    def _number(self, messages: Sequence[tuple[Unnumbered, ...]], numbers: list[int]) -> None:
        window = self.sending
        if window is not None:
            messages = messages[: window.room]
        if not messages:
            return
        given = following(self._last_sent, len(messages))
        if window is not None:
            window.sent_run(given, given)
        self._last_sent = given[-1]
        self.counters.sent += len(given)
        numbers += given
        self._out += encode_numbered(given, messages)

    def _await_ack(self, now: float) -> None:
        self._no_ack_since = now
        if self._ack_wait_seconds and not self._paused:
            self.deadlines.no_later("ack-wait", now + self._ack_wait_seconds)

    def _write_notes(self, notes: Mapping[str, str]) -> None:
        if self.sending is not None and self.sending.full:
            return  # the message will be refused, so nothing is said about it
        frames = [
            (index, extension.frame_before(notes.get(extension.name)))
            for index, extension in self._annotating
        ]
        self._out += [
            encode_extension(index, frame) for index, frame in frames if frame is not None
        ]

    def send_command(self, name: str, parameters: Mapping[str, str]) -> None:
        """Send a COMMAND (``MM-15``); LimitExceeded above ``command-bytes``."""
        if not self.established:
            raise IllegalTransition(self.state, Command)
        frame = encode_command(name, parameters)
        self._limit(len(frame) - LARGE_HEADER_BYTES, "command-bytes")
        self._out.append(frame)

    def send_extension(self, name: str, payload: bytes) -> None:
        """Send a frame of an extension (``MM-16``); ValueError if that was not agreed."""
        if not self.established:
            raise IllegalTransition(self.state, ExtensionFrame)
        self._limit(len(payload), "command-bytes")
        for index, extension in enumerate(self.extensions, 1):
            if extension.name == name:
                self._out.append(encode_extension(index, payload))
                return
        raise ValueError(f"extension {name} was not agreed")

    def send_error(self, code: str, text: str) -> None:
        if not self.established:
            raise IllegalTransition(self.state, Error)
        self._write_error(code, text, ANSWER_CHARACTERS_MAX)

    def _write_error(self, code: str, text: str, most: int = ERROR_CHARACTERS_MAX) -> None:
        line = code + ": " + text
        if len(line) > most:
            line = line[: most - 1] + "…"
        self._out.append(encode_error(line))
