"""The client's side of one data flow: frames in, frames out, over as many sockets as it takes.

When the server is silent for too long, or does not know the flow any more, the flow is suspended:
the caller gets another lease and a new socket and calls ``renew``; then the flow summons what it
had summoned and sends again what was not confirmed.  Commands and contents draw their sequences
from one counter, so that a Response never has two meanings (``MT-18``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ...core.connection import Connection, WorkLost
from ...core.deadlines import Deadlines, Pending
from ...core.errors import LimitExceeded
from ...core.limits import Limits
from ...core.machine import Machine, SendWindow
from ..terms import (
    CLIENT_FLOW,
    CLIENT_LIMITS,
    LEASE_UNANSWERED,
    WAITING_WEIGHT_BYTES,
    ClientFlowEvent,
    ClientFlowState,
    ContentsConfirmed,
    ContentsReceived,
    ContentsRefused,
    FlowGivenUp,
    FlowOpened,
    FlowSuspended,
    Responded,
    Step,
)
from ..wire import data
from ..wire.data import (
    EMPTY,
    PING,
    PONG,
    SEQUENCE_BYTES,
    Confirm,
    Content,
    DataCommand,
    Dismiss,
    IllFormed,
    Lease,
    Ping,
    Reject,
    Response,
    Summon,
)

LEASE_REFUSED: Final = "the lease was refused: it is used, has ended or is another client's"

_STANDING: Final = (ClientFlowState.LEASING, ClientFlowState.OPEN)


COMMANDS_MAX: Final = 4096
"""Commands of one flow that wait for their Responses, or to be sent."""


@dataclass(slots=True)
class _Sent:
    number: int
    name: bytes
    properties: bytes
    body: bytes
    weight: int  # in bytes, while it waits

    @property
    def largest(self) -> int:
        return max(SEQUENCE_BYTES + len(self.name) + len(self.properties), len(self.body))


class ClientFlow(Connection[Iterable[Sequence[bytes]], list[list[bytes]], ClientFlowEvent]):
    """One data flow of a client: a reader or a writer.

    Attributes:
        counters: plain integers by name.
        unconfirmed: sequences of contents received and not confirmed or rejected yet.
        moved_at: when a part of a message went through last; the caller may say so, as a function
            of the time.  While one does, the server's silence means nothing.
        doubted: the server has rejected content and has not said since that the flow stands still.
    """

    counters: dict[str, int]
    deadlines: Deadlines
    moved_at: Callable[[float], float] = staticmethod(lambda now: 0.0)

    def __init__(
        self,
        *,
        reads: bool,
        confirm: bool,
        limits: Limits | None = None,
        counters: dict[str, int] | None = None,
    ) -> None:
        """``confirm`` is True for ``full``; ``limits`` has at least :data:`.CLIENT_LIMITS`.  It
        counts in ``counters``; None: in a mapping of its own.
        """
        limits = Limits.of(CLIENT_LIMITS) if limits is None else limits
        self.reads = reads
        self.confirms = confirm
        self.counters = Counter() if counters is None else counters
        self.deadlines = Deadlines()
        self._draining = False
        self._heartbeat = limits["heartbeat"]
        self._liveness = limits["liveness"]
        self._timeout = limits["request-timeout"] * limits.integer("request-tries")
        self._limits = limits
        self._bytes_max = limits.integer("content-bytes")
        self._server_max: int | None = None  # what the server says likewise
        self._renewals_max = limits.integer("renewals")
        self._renewals = 0  # in a row, in which nothing was answered that waits for an answer
        self._machine = Machine(CLIENT_FLOW, ClientFlowState.LOST)
        self._sequence = 0
        self._numbers = 0
        self._lease_sequence: int | None = None
        self._commands: Pending[int, tuple[int, Summon | Dismiss]] = Pending(COMMANDS_MAX)
        self._unsent: deque[tuple[int, type[Summon] | type[Dismiss], str]] = deque()
        self._summoned: dict[str, None] = {}
        self._window: SendWindow[_Sent] = SendWindow(limits.integer("window"))
        self._waiting: deque[_Sent] = deque()  # contents that wait for room or for the lease
        self._waiting_bytes = 0  # of these, and with ``none`` of what ``outputs`` has not given
        self.unconfirmed: OrderedDict[int, None] = OrderedDict()
        # A server numbers contents anew for each lease.  If the application confirmed one late,
        # under its old number, another content could have that number by then, and would be lost.
        # So what the application sees rises over all leases: the server's sequence and ``_base``.
        self._base = 0
        self._received = -1  # the server's last sequence of this lease
        self.doubted: bool = False
        self._heard_at = 0.0
        self._sent_at = 0.0  # what is answered: nobody must answer contents, or what settles them
        self._probed_at = 0.0
        self._paused = False
        self._out: list[list[bytes]] = []

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def state(self) -> ClientFlowState:
        return self._machine.state

    @property
    def room(self) -> int:
        """How many contents may be sent at once: those in flight and waiting are bounded."""
        return self._window.room - len(self._waiting)

    @property
    def unsettled(self) -> int:
        return len(self._window) + len(self._waiting)

    @property
    def finished(self) -> bool:
        return self.state is ClientFlowState.CLOSED or (
            self._draining and not (self.unsettled or self._unsent or len(self._commands))
        )

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "reads": self.reads,
            "confirm": self.confirms,
            "summoned": list(self._summoned),
            "in_flight": len(self._window),
            "waiting": len(self._waiting),
            "unconfirmed": len(self.unconfirmed),
        }

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def renew(self, token: str, now: float, content_bytes: int | None = None) -> None:
        """Show ``token`` on a new socket; what was to be sent on the old one is forgotten.

        ``content_bytes`` is the most that the server takes of a content; None: it does not say.
        """
        self._machine.step(Step.RENEWED)
        self._renewals += 1
        self._out.clear()
        self.unconfirmed.clear()
        self._base += self._received + 1
        self._received = -1
        again = [
            (number, type(command), command.resource)
            for _, (number, command) in self._commands.drain()
            if number
        ]
        self._unsent.extendleft(reversed(again))
        in_flight = self._window.drain()
        self._waiting.extendleft(reversed(in_flight))
        self._waiting_bytes += sum(content.weight for content in in_flight)
        self._server_max = content_bytes
        self._lease_sequence = self._next()
        self._send(Lease(self._lease_sequence, token), now)
        self.deadlines.clear_all()
        self.deadlines.set("lease", now + self._timeout)
        self.deadlines.set("silence", now + self._liveness)
        self.deadlines.set("heartbeat", now + self._heartbeat)

    def summon(self, resource: str, now: float) -> int:
        """Ask for this resource's content; answered by :class:`Responded` with this number."""
        return self._command(Summon, resource, now)

    def dismiss(self, resource: str, now: float) -> int:
        """Ask for no more of it; answered by :class:`Responded` with this number."""
        return self._command(Dismiss, resource, now)

    def _command(self, kind: type[Summon] | type[Dismiss], resource: str, now: float) -> int:
        data.encode_name(resource)
        if len(self._commands) + len(self._unsent) >= COMMANDS_MAX:
            raise LimitExceeded(f"{COMMANDS_MAX} commands wait for an answer; nothing was sent")
        self._numbers += 1
        self._unsent.append((self._numbers, kind, resource))
        self._send_commands(now)
        return self._numbers

    def send(
        self, contents: Iterable[tuple[str, bytes, bytes]], now: float, unread: int = 0
    ) -> list[int]:
        """Send contents (resource, encoded properties, body); their numbers, in order.

        Those above the window wait, and with confirm ``none``, where there is no window, all until
        the socket has taken them: it has ``unread`` bytes still.  Raises LimitExceeded when too
        much would wait or a content is above ``content-bytes``, ours or the server's, and
        ValueError for what is no resource's name; nothing is sent then.
        """
        if self.reads:
            raise ValueError("a reader sends no content")
        new: list[_Sent] = []
        for resource, properties, body in contents:
            if type(body) is not bytes:
                body = data.as_bytes(body)
            name = data.encode_name(resource)
            weight = WAITING_WEIGHT_BYTES + len(name) + len(properties) + len(body)
            number = self._numbers + 1 + len(new)
            content = _Sent(number, name, properties or EMPTY, body, weight)
            if content.largest > self._bytes_max:
                raise too_large(content.largest, self._bytes_max)
            if self._server_max is not None and content.largest > self._server_max:
                raise too_large(content.largest, self._server_max, "the server's ")
            new.append(content)
        if self.confirms:
            waits, unread = new[max(0, self.room) :], 0
        else:
            waits = new
        if waits:
            more = sum(content.weight for content in waits)
            self._limits.check("unsent-bytes", self._waiting_bytes + unread + more)
        self._waiting_bytes += sum(content.weight for content in new)
        self._numbers += len(new)
        self._waiting.extend(new)
        self._send_waiting()
        return [content.number for content in new]

    def confirm(self, sequence: int, multiple: bool, now: float) -> None:
        """These contents are safe; what was settled or never received is no error."""
        server_sequence = self._settle(sequence, multiple)
        if server_sequence is not None:
            self._out.append(data.encode(Confirm(server_sequence, multiple)))

    def reject(self, sequence: int, multiple: bool, recycle: bool, now: float) -> None:
        """These contents are not taken; ``recycle``: somebody else may have them."""
        server_sequence = self._settle(sequence, multiple)
        if server_sequence is not None:
            self._out.append(data.encode(Reject(server_sequence, multiple, recycle)))

    def _settle(self, sequence: int, multiple: bool) -> int | None:
        if not self.reads or not self.confirms:
            raise ValueError("only a reader with confirm full settles contents")
        unconfirmed = self.unconfirmed
        if self.state is not ClientFlowState.OPEN or sequence not in unconfirmed:
            return None  # it is settled already, was never received, or belongs to an older lease
        if multiple:
            while next(iter(unconfirmed)) != sequence:
                unconfirmed.popitem(last=False)
        del unconfirmed[sequence]
        return sequence - self._base

    def drain(self, now: float) -> list[ClientFlowEvent]:
        self._draining = True
        return []

    def lost(self, now: float) -> list[ClientFlowEvent | WorkLost]:
        """The flow is over: the numbers of commands and contents that nobody answered."""
        self._machine.step(Step.FLOW_CLOSED)
        self.deadlines.clear_all()
        numbers = [number for _, (number, _) in self._commands.drain() if number]
        numbers += [number for number, _, _ in self._unsent]
        contents = [*self._window.drain(), *self._waiting]
        self._unsent.clear()
        self._waiting.clear()
        self._out.clear()
        numbers += [content.number for content in contents]
        return [WorkLost(numbers)] if numbers else []

    def suspend(self, reason: str) -> list[ClientFlowEvent]:
        """The caller knows that the server does not know the flow (its session began anew)."""
        events: list[ClientFlowEvent] = []
        self._lose(reason, events)
        return events

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _send(self, command: DataCommand, now: float) -> None:
        self._out.append(data.encode(command))
        self._sent_at = now

    def _send_commands(self, now: float) -> None:
        if self.state is not ClientFlowState.OPEN:
            return
        while self._unsent and not self._commands.full:
            number, kind, resource = self._unsent.popleft()
            sequence = self._next()
            command = kind(sequence, resource)
            self._await_response(sequence, (number, command), now)
            self._send(command, now)

    def _await_response(
        self, sequence: int, asked: tuple[int, Summon | Dismiss], now: float
    ) -> None:
        self._commands.add(sequence, asked, now + self._timeout)
        self.deadlines.no_later("response", now + self._timeout)

    def _send_waiting(self) -> None:
        if self.state is not ClientFlowState.OPEN or not self._waiting:
            return
        waiting, window, out = self._waiting, self._window, self._out
        count = min(len(waiting), window.room) if self.confirms else len(waiting)
        for _ in range(count):
            content = waiting.popleft()
            self._sequence = sequence = self._sequence + 1
            out.append(
                data.encode_content(sequence, content.name, content.properties, content.body)
            )
            if self.confirms:
                self._waiting_bytes -= content.weight
                window.sent(sequence, content)

    def outputs(self) -> list[list[bytes]]:
        out, self._out = self._out, []
        if not self._waiting:
            self._waiting_bytes = 0
        return out

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: Iterable[Sequence[bytes]], now: float) -> list[ClientFlowEvent]:
        """Read messages of the flow's socket: header and body each."""
        events: list[ClientFlowEvent] = []
        for parts in inputs:
            if len(parts) != 2:
                self._ill_formed(parts, "frames", events)
                continue
            try:
                command = data.decode(*parts)
            except IllFormed as error:
                self._ill_formed(parts, error.reason, events)
                continue
            self._heard_at = now
            if not self._machine.try_step(type(command)):
                self._dropped(f"{type(command).__name__.lower()}-not-allowed")
                continue
            self._obey(command, events, now)
        return events

    def _ill_formed(
        self, parts: Sequence[bytes], reason: str, events: list[ClientFlowEvent]
    ) -> None:
        """Reject a Content before a Confirm covers it (``MT-13``); if unnumbered, end the flow."""
        self._dropped(reason)
        header = parts[0] if parts else b""
        if header[:1] != data.CONTENT or not (self.reads and self.confirms):
            return
        if self.state is not ClientFlowState.OPEN:
            return
        if len(header) < data.SEQUENCE_BYTES:
            self._lose("a content came without its sequence", events)
            return
        (sequence,) = data.read_sequence(header)
        if self._passes(sequence):
            self._out.append(data.encode(Reject(sequence)))

    def _obey(self, command: DataCommand, events: list[ClientFlowEvent], now: float) -> None:
        match command:
            case Content():
                self._receive(command, events)
            case Confirm() | Reject():
                self._settled(command, events, now)
            case Response():
                self._responded(command, events, now)
            case Ping():
                self._out.append(PONG)
                self._sent_at = now
            case _:
                pass  # a Pong: that it came is all it says

    def _passes(self, sequence: int) -> bool:
        if sequence <= self._received:
            return False
        self._received = sequence
        return True

    def _receive(self, content: Content, events: list[ClientFlowEvent]) -> None:
        if not self.reads or not self._passes(content.sequence):
            self._dropped("content")
            return
        last = events[-1] if events else None
        if not isinstance(last, ContentsReceived):
            last = ContentsReceived([], [], [], [])
            events.append(last)
        known = self._base + content.sequence
        if self.confirms:
            self.unconfirmed[known] = None
        last.sequences.append(known)
        last.resources.append(content.resource)
        last.properties.append(content.properties)
        last.bodies.append(content.body)

    def _settled(
        self, command: Confirm | Reject, events: list[ClientFlowEvent], now: float
    ) -> None:
        numbers = [content.number for content in self._take(command.sequence, command.multiple)]
        if not numbers:
            self._dropped("nothing-to-settle")
            return
        self._renewals = 0
        if isinstance(command, Confirm):
            events.append(ContentsConfirmed(numbers))
        else:
            events.append(ContentsRefused(numbers))
            if not self.doubted:
                self.doubted = True
                self._probe(now)
        self._send_waiting()

    def _take(self, sequence: int, multiple: bool) -> list[_Sent]:
        """Return what a Confirm or Reject covers: nothing if it is invalid (``MT-20``)."""
        window = self._window
        if not multiple:
            one = window.acknowledge_one(sequence)
            return [] if one is None else [one]
        if sequence > self._sequence:
            return []
        if sequence not in window:
            # Sequences of a flow rise; the newest one in flight that is covered ends what is.
            sequence = max((one for one in window.sequences() if one <= sequence), default=0)
        return window.acknowledge_up_to(sequence) or []

    def _responded(self, response: Response, events: list[ClientFlowEvent], now: float) -> None:
        if response.sequence == self._lease_sequence:
            self._lease_sequence = None
            self.deadlines.clear("lease")
            if response.code != 200:
                self._lose(LEASE_REFUSED, events, response.code)
                return
            self._machine.step(Step.LEASE_ACCEPTED)
            if not (self.confirms and self.unsettled) and not self._unsent and not self._summoned:
                self._renewals = 0  # nothing of it waits for an answer
            self.deadlines.set("probe", now + self._liveness)
            events.append(FlowOpened())
            self._unsent.extendleft((0, Summon, name) for name in reversed(self._summoned))
            self._send_commands(now)
            self._send_waiting()
            return
        waiter = self._commands.resolve(response.sequence)
        if waiter is not None:
            self._answered(*waiter, response.code, events)
            self._send_commands(now)
        elif response.code == 403 and response.sequence in self._window:
            self._lose("content was forbidden", events, 403)
        elif not (self.reads or self.confirms) and response.sequence <= self._sequence:
            self.counters["contents_refused"] += 1
            if response.code == 403:
                self._probe(now)
        else:
            self._dropped("nobody-asked")

    def _answered(
        self, number: int, command: Summon | Dismiss, code: int, events: list[ClientFlowEvent]
    ) -> None:
        if code == 403:
            # The server does not know the flow: ask again when it does.
            self._ask_again(number, command)
            self._lose("a command was forbidden", events, 403)
            return
        if number == 0:
            self.doubted = False
        if command.resource:  # else it was a probe
            self._renewals = 0
        if type(command) is Summon and code == 200:
            self._summoned[command.resource] = None
        elif (type(command) is Dismiss and code == 200) or number == 0:
            self._summoned.pop(command.resource, None)
        if number:
            events.append(Responded(number, code))

    def _ask_again(self, number: int, command: Summon | Dismiss) -> None:
        if number:
            self._unsent.append((number, type(command), command.resource))

    def _probe(self, now: float) -> None:
        """Ask whether the server knows the flow: 400 says yes, 403 no.  A Pong everybody gets."""
        if not self._commands.full:
            command = Summon(self._next(), "")
            self._await_response(command.sequence, (0, command), now)
            self._probed_at = now
            self._send(command, now)

    def _lose(self, reason: str, events: list[ClientFlowEvent], code: int | None = None) -> None:
        if self.state in _STANDING:
            self._machine.step(Step.FLOW_LOST)
            self.deadlines.clear_all()
            self._out.clear()
            if self.doubted:
                events.append(FlowGivenUp("the server rejected content and ended the flow", 403))
            elif self._renewals >= self._renewals_max:
                events.append(FlowGivenUp(self._in_vain(reason), code))
            else:
                events.append(FlowSuspended(reason))

    def _in_vain(self, reason: str) -> str:
        text = f"{reason}; {self._renewals} leases in a row came to nothing"
        if self.unsettled:
            text += "; a content may be above the server's limits"
        return text

    def _dropped(self, reason: str) -> None:
        self.counters[f"dropped:{reason}"] += 1

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def resumed(self, now: float) -> list[ClientFlowEvent]:
        self._paused = False
        self._heard_at = now
        for name in ("lease", "response"):
            if name in self.deadlines:
                self.deadlines.set(name, now + self._timeout)
        return []

    def _due(self, key: str, now: float, events: list[ClientFlowEvent]) -> None:
        if self.state in _STANDING:  # what was due before may have lost the flow
            super()._due(key, now, events)

    def _lease_expired(self, now: float, events: list[ClientFlowEvent]) -> None:
        if self._paused:
            self.deadlines.set("lease", now + self._timeout)
        else:
            self._lose(LEASE_UNANSWERED, events)

    def _silence_expired(self, now: float, events: list[ClientFlowEvent]) -> None:
        heard = now if self._paused else max(self._heard_at, self.moved_at(now))
        deadline = heard + self._liveness
        if now < deadline:
            self.deadlines.set("silence", deadline)
        else:
            self._lose("the server is silent", events)

    def _responses_expired(self, now: float, events: list[ClientFlowEvent]) -> None:
        later = now if self._paused else self.moved_at(now)
        if later + self._timeout > now:
            self.deadlines.set("response", later + self._timeout)
            return
        expired = self._commands.expire(now)
        for _, (number, command) in expired:
            self._ask_again(number, command)
        following = self._commands.next_deadline()
        if expired:
            self._lose("a command was not answered", events)
        elif following is not None:
            self.deadlines.set("response", following)

    def _probe_again(self, now: float, events: list[ClientFlowEvent]) -> None:
        deadline = self._probed_at + self._liveness
        if now >= deadline:
            if not self._paused:
                self._probe(now)
            deadline = now + self._liveness
        self.deadlines.set("probe", deadline)

    def _beat(self, now: float, events: list[ClientFlowEvent]) -> None:
        if now >= self._sent_at + self._heartbeat:
            self._out.append(PING)
            self._sent_at = now
        self.deadlines.set("heartbeat", self._sent_at + self._heartbeat)

    timely: ClassVar[dict[Any, Any]] = {
        "lease": _lease_expired,
        "silence": _silence_expired,
        "response": _responses_expired,
        "probe": _probe_again,
        "heartbeat": _beat,
    }


def too_large(nbytes: int, most: int, whose: str = "") -> LimitExceeded:
    return LimitExceeded(
        f"a content of {nbytes} bytes in one frame is too large: {whose}content-bytes is {most}"
    )
