"""Both sides, without I/O and without a clock."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any, ClassVar

from twisted_msgproto.extend import (
    Connection,
    Deadlines,
    Fault,
    IllegalTransition,
    LimitExceeded,
    Limits,
    ReceiveWindow,
    WorkLost,
)

from .terms import (
    Acknowledged,
    BodiesReceived,
    BodiesStored,
    BodyPublished,
    Counters,
    LetIn,
    LoginAsked,
    State,
    SubscriptionAsked,
)
from .wire import Lines, escape, line, unescape

Events = list[Any]


class Side(Connection[bytes, bytes, Any]):
    """What both sides do: they read lines, and end."""

    def __init__(self, limits: Limits) -> None:
        """``limits`` are those of a factory."""
        self._state = State.OPEN
        self.limits = limits
        self.deadlines = Deadlines()
        self.counters = Counters()
        self._lines = Lines(limits.integer("line-bytes"))
        self._out: list[bytes] = []
        self._last = b""  # is written after all acks

    def receive(self, inputs: bytes, now: float) -> Events:
        """Read lines, up to the first which is wrong."""
        events: Events = []
        problem = ""
        try:
            for one in self._lines.read(inputs):
                if self.state is State.CLOSED:
                    break
                self.counters.lines += 1
                word, _, rest = one.partition(b" ")
                self.take(word, rest, now, events)
        except ValueError as error:
            problem = str(error)
        self.read_ends(events)
        if problem and self.state is not State.CLOSED:
            self.fail("line", problem, events)
        return events

    @abstractmethod
    def take(self, word: bytes, rest: bytes, now: float, events: Events) -> None:
        """Follow one line; ValueError says what is wrong with it."""

    def read_ends(self, events: Events) -> None:
        """Give out what was gathered of one read."""

    def fail(self, reason: str, text: str, events: Events) -> None:
        """Say what the peer did wrong; the connection ends."""
        self._last = line(b"error", text.encode())
        self._state = State.CLOSED
        events.append(Fault(reason, text))

    def outputs(self) -> bytes:
        """Take what is to be written."""
        out, self._out, self._last = b"".join([*self._out, self._last]), [], b""
        return out

    def drain(self, now: float) -> Events:
        """Take nothing more; finish what is under way."""
        if self.state in (State.LOGIN, State.OPEN):
            self._state = State.DRAINING
        return []

    def lost(self, now: float) -> Events:
        """End."""
        self._state = State.CLOSED
        self.outputs()  # nobody is left to read it
        self.deadlines.clear_all()
        work, self.waiting = list(self.waiting), type(self.waiting)()
        return [WorkLost(work)] if work else []

    waiting: Any
    """This is under way; it is finished before this side ends in order."""

    @property
    def state(self) -> State:
        """Return where this side stands."""
        return self._state

    @property
    def finished(self) -> bool:
        """Return whether nothing is under way, and nothing more will be."""
        return self.state is State.CLOSED or (self.state is State.DRAINING and not self.waiting)

    @property
    def input_weight(self) -> int:
        """Return how many bytes of an incomplete line are held."""
        return len(self._lines.rest)

    def snapshot(self) -> dict[str, object]:
        """Return where this side stands."""
        return {"state": self.state.name, "lines": self.counters.lines}


class Server(Side):
    """Acknowledges a line when it and all before it are done."""

    def __init__(self, limits: Limits, authenticates: bool = False) -> None:
        """``limits`` are those of a factory; ``authenticates``: clients log in first."""
        super().__init__(limits)
        if authenticates:
            self._state = State.LOGIN
        self._asked = False
        self.waiting: dict[int, list[bytes]] = {}  # bodies which are not safe, by position
        self._window: ReceiveWindow[int] = ReceiveWindow()
        self._bodies: list[bytes] = []  # of the read at hand

    def connection_made(self, now: float) -> Events:
        """Wait for a log-in, but not for ever."""
        if self.state is State.LOGIN:
            self.deadlines.set("login", now + self.limits["login-seconds"])
        return []

    def _late(self, now: float, events: Events) -> None:
        self.fail("login-seconds", "no log-in in time", events)

    timely: ClassVar[Any] = {"login": _late}

    def let_in(self) -> None:
        """Go on: the client has logged in."""
        self.deadlines.clear("login")
        self._state = State.OPEN
        self._out.append(line(b"welcome", b""))

    def keep_out(self) -> None:
        """End: the client is nobody we know."""
        self._last = line(b"error", b"the log-in is refused")
        self._state = State.CLOSED

    def take(self, word: bytes, rest: bytes, now: float, events: Events) -> None:
        """Take a log-in, a body, or a subscription."""
        if self.state is State.LOGIN:
            if word != b"login" or self._asked:
                raise ValueError("one login is expected, and nothing before its answer")
            self._asked = True
            name, _, password = unescape(rest).decode().partition("\n")
            events.append(LoginAsked(name, password))
        elif word == b"put":
            self._bodies.append(unescape(rest))
        elif word == b"subscribe":
            self.read_ends(events)
            self._acknowledge(self._window.made_safe(self._next_position(1)))
            events.append(SubscriptionAsked())
        else:
            raise ValueError("put or subscribe is expected")

    def read_ends(self, events: Events) -> None:
        """Give out the bodies of this read in one event."""
        bodies, self._bodies = self._bodies, []
        if bodies:
            first = self._window.received + 1
            position = self._next_position(len(bodies))
            self.waiting[position] = bodies
            events.append(BodiesReceived(bodies, first, position))

    def _next_position(self, lines: int) -> int:
        """Return the position of the lines which came last; all up to it are acked together."""
        self._window.receive(lines)
        position = self._window.slice()
        self._window.mark(position)
        return position

    def _acknowledge(self, acks: list[int]) -> None:
        if acks:
            self._out.append(line(b"ack", b"%d" % acks[-1]))

    def made_safe(self, position: int, now: float) -> Events:
        """Acknowledge as far as all is safe."""
        self._acknowledge(self._window.made_safe(position))
        return [BodiesStored(self.waiting.pop(position))]

    def not_safe(self, position: int, now: float) -> Events:
        """Never acknowledge it, nor what follows; end."""
        self._window.never_safe(position)
        del self.waiting[position]
        return self.drain(now)

    def publish(self, bodies: list[bytes]) -> None:
        """Send bodies to this client, which has subscribed."""
        self._out += [line(b"message", escape(body)) for body in bodies]

    def lost(self, now: float) -> Events:
        """End; what is not safe is the sink's."""
        super().lost(now)
        return []


class Client(Side):
    """Says what callers ask for, and gives each back when it is done."""

    def __init__(self, limits: Limits, user: str | None = None, password: str = "") -> None:
        """``limits`` are those of a factory; ``user`` logs in, None does not."""
        super().__init__(limits)
        self.waiting: deque[Any] = deque()  # who waits for acks, oldest first
        self._acknowledged = 0
        if user is not None:
            self._state = State.LOGIN
            self._out.append(line(b"login", escape(f"{user}\n{password}".encode())))

    def ask(self, word: bytes, body: bytes, waiter: Any, now: float) -> None:
        """Say a line; ``waiter`` comes back in Acknowledged, or in WorkLost.

        Raises LimitExceeded when nothing was sent, IllegalTransition when this side ends.
        """
        said = line(word, escape(body))
        if self.state is not State.OPEN:
            raise IllegalTransition(self.state, type(self))
        if len(said) > self._lines.limit or len(self.waiting) >= self.limits["in-flight"]:
            raise LimitExceeded("above line-bytes or in-flight; nothing was sent")
        self.waiting.append(waiter)
        self._out.append(said)
        if "ack" not in self.deadlines:
            self.resumed(now)

    def take(self, word: bytes, rest: bytes, now: float, events: Events) -> None:
        """An ack, what others have put, or why the server ends."""
        if self.state is State.LOGIN and word == b"welcome":
            self._state = State.OPEN
            events.append(LetIn())
        elif word == b"message":
            events.append(BodyPublished(unescape(rest)))
        elif word == b"error":
            self.fail("refused", rest.decode("utf-8", "replace"), events)
        elif word == b"ack":
            done = int(rest[:20]) - self._acknowledged
            if not 0 < done <= len(self.waiting):
                raise ValueError("an ack of what was not sent")
            self._acknowledged += done
            events.append(Acknowledged([self.waiting.popleft() for _ in range(done)]))
            self.resumed(now)
        else:
            raise ValueError("ack, message or error is expected")

    def resumed(self, now: float) -> Events:
        """The server has all its time from now on."""
        self.deadlines.clear("ack")
        if self.waiting:
            self.deadlines.set("ack", now + self.limits["ack-seconds"])
        return []

    def _late(self, now: float, events: Events) -> None:
        self.fail("ack-seconds", "no ack in time", events)

    timely: ClassVar[Any] = {"ack": _late}
