"""The client's control flow: one request at a time, repeated until it is answered (``MT-28``).

When a reply does not come in time it begins anew on another socket, and after a 401 on the same
one: Open, Authorize as asked, Profile, every lease that is held, and the interrupted request.

Verbs queue requests and return their number; the answer comes as an event with that number.  On
:class:`SocketDropped` close the socket, make a new one, and send to that.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from ...core.connection import Connection, WorkLost
from ...core.deadlines import Deadlines
from ...core.limits import Limits
from ...core.machine import Machine
from ..terms import (
    CLIENT,
    CLIENT_LIMITS,
    Answered,
    ClientEvent,
    ClientState,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    SocketDropped,
    Step,
)
from ..wire import (
    Authorize,
    Open,
    Reply,
    Request,
    RequestReader,
    RequestWriter,
    SelectProfile,
    encode_request,
    parse_reply,
)
from ..wire.data import IllFormed


class SaslClient(Protocol):
    mechanism: str

    @property
    def finished(self) -> bool:
        """A 201 now is no surprise: the server has proved whatever it has to prove."""

    def respond(self, challenge: bytes | None) -> bytes:
        """Return the response to ``challenge`` (None: the first); ValueError for a bad one."""


Credentials = Callable[[Sequence[str]], "SaslClient | None"]
"""Gives a cycle of one of these mechanisms (in upper case); None if it can none of them."""


AGREED: Final[Mapping[type, int]] = {
    Open: 201,
    Authorize: 201,
    SelectProfile: 200,
    RequestReader: 202,
    RequestWriter: 202,
}
"""The code with which a server agrees to a request.  Another one belongs to another request: it is
late, or was sent twice, and a reply does not say what it answers."""


@dataclass(slots=True, eq=False)
class _Task:
    """One request, and how it stands.  ``number`` is None for what the machine asks by itself."""

    number: int | None
    request: Request
    began_anew: bool = False  # once, because of a 401
    cycle: SaslClient | None = None
    credentials: Credentials | None = None


class Client(Connection[Sequence[Sequence[bytes]], list[list[bytes]], ClientEvent]):
    """The control flow's client.

    Attributes:
        counters: plain integers by name.
        mechanisms: what the server's last 401 offered.
        profiles: what the server's last 201 listed.
    """

    counters: dict[str, int]
    deadlines: Deadlines

    def __init__(
        self, limits: Limits | None = None, counters: dict[str, int] | None = None
    ) -> None:
        """``limits`` has at least :data:`.CLIENT_LIMITS`; their defaults where it is None.  It
        counts in ``counters``; None: in a mapping of its own.
        """
        limits = Limits.of(CLIENT_LIMITS) if limits is None else limits
        self._limits = limits
        self._timeout = limits["request-timeout"]
        self._login_timeout = max(self._timeout, limits["login-timeout"])
        self._tries_max = limits.integer("request-tries")
        self.counters = Counter() if counters is None else counters
        self.deadlines = Deadlines()
        self._draining = False
        self._closed = False
        self.mechanisms: list[str] = []
        self.profiles: list[str] = []
        self._machine = Machine(CLIENT, ClientState.CLOSED)
        self._numbers = 0
        self._waiting: deque[_Task] = deque()
        self._script: deque[_Task] = deque()  # what is done anew before the task in hand
        self._current: _Task | None = None  # what was sent and is not answered
        self._task: _Task | None = None  # for whose sake the script runs
        self._turned_away = False  # nobody will ever answer on this socket
        self._begins_anew = False  # the next request does, for this one could not
        self._tries = 0  # sockets that were dropped for the task in hand
        self._open: Open | None = None
        self._credentials: Credentials | None = None
        self._profile: SelectProfile | None = None
        self._leases: dict[int, Request] = {}
        self._out: list[list[bytes]] = []
        self._events: list[ClientEvent] = []

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def state(self) -> ClientState:
        return self._machine.state

    @property
    def unfinished(self) -> bool:  # where a verb has failed at once
        return bool(self._events)

    @property
    def finished(self) -> bool:
        asking = self._task is not None or bool(self._waiting)
        return self._closed or (self._draining and not asking)

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "waiting": len(self._waiting) + len(self._script) + (self._current is not None),
            "leases": len(self._leases),
            "tries": self._tries,
        }

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def open(self, virtual_host: str, now: float) -> int:
        """Open a session; 401 is an answer too: ``mechanisms`` then says what to do."""
        return self._submit(Open(virtual_host), now)

    def authorize(self, credentials: Credentials, now: float) -> int:
        """Authenticate with a cycle that ``credentials`` gives for one of ``mechanisms``."""
        return self._submit(Authorize("", b""), now, credentials)

    def profile(self, name: str, now: float) -> int:
        """Select a profile."""
        return self._submit(SelectProfile(name), now)

    def reader(self, resources: Sequence[str], confirm: str, now: float) -> int:
        """Ask for a lease to read; it is renewed whenever the client begins anew."""
        return self._submit(RequestReader(tuple(resources), confirm), now)

    def writer(self, resources: Sequence[str], confirm: str, now: float) -> int:
        """Ask for a lease to write; it is renewed whenever the client begins anew."""
        return self._submit(RequestWriter(tuple(resources), confirm), now)

    def renew(self, number: int, now: float) -> None:
        """The data flow of this lease is lost: ask for another lease in its place."""
        if number in self._leases:
            self._waiting.append(_Task(number, self._leases[number]))
            self._go_on(now)

    def release(self, number: int) -> None:
        """Forget this lease, which is not wanted any more."""
        self._leases.pop(number, None)

    def _submit(self, request: Request, now: float, credentials: Credentials | None = None) -> int:
        """Queue a request; raises LimitExceeded for one above ``control-bytes``."""
        _, body = encode_request(request)
        self._limits.check("control-bytes", len(body))
        self._numbers += 1
        self._waiting.append(_Task(self._numbers, request, credentials=credentials))
        self._go_on(now)
        return self._numbers

    # ── one request at a time ───────────────────────────────────────────────────────────────────

    def _go_on(self, now: float) -> None:
        while self._current is None:
            if self._script:
                self._current = self._script.popleft()
            elif self._task is not None:
                self._current = self._task
            elif self._waiting:
                self._current = self._task = self._waiting.popleft()
                self._tries = 0
                if self._turned_away:
                    self._change_socket()
                    self._begins_anew = True
                if self._begins_anew:
                    self._anew()
                    continue
            else:
                return
            self._send(now)

    def _change_socket(self) -> None:
        self._turned_away = False
        self._out.clear()
        self._events.append(SocketDropped())
        self._machine.step(Step.SOCKET_CHANGED)

    def _send(self, now: float) -> None:
        task = self._current
        assert task is not None
        if task.credentials is None:
            self._send_request(task.request, now)
            return
        try:
            task.cycle = task.credentials([name.upper() for name in self.mechanisms])
            if task.cycle is None:
                self._fail(401, "none of the server's mechanisms can be used")
            else:
                self._respond(task, task.cycle, None, now)
        except Exception as error:  # an application's
            self._fail(401, f"the credentials failed: {error}")

    def _respond(self, task: _Task, cycle: SaslClient, challenge: bytes | None, now: float) -> None:
        task.request = Authorize(cycle.mechanism, cycle.respond(challenge))
        self._send_request(task.request, now)

    def _send_request(self, request: Request, now: float) -> None:
        self._out.append([b"", *encode_request(request)])
        logs_in = type(request) is Authorize
        self.deadlines.set("reply", now + (self._login_timeout if logs_in else self._timeout))
        self.counters["requests"] += 1

    def _anew(self) -> None:
        self._begins_anew = False
        self._script.clear()
        self._current = None
        task = self._task
        kind = None if task is None else type(task.request)
        if self._open is None or kind is Open:
            return
        self._script.append(_Task(None, self._open))
        if self._profile is None or kind in (Authorize, SelectProfile):
            return
        self._script.append(_Task(None, self._profile))
        for number, request in self._leases.items():
            if task is None or task.number != number:
                self._script.append(_Task(number, request))

    # ── replies ─────────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: Sequence[Sequence[bytes]], now: float) -> list[ClientEvent]:
        """Read messages of the control socket: an empty frame, a status, a body each."""
        for frames in inputs:
            self._receive_reply(frames, now)
        return self._take_events()

    def _receive_reply(self, frames: Sequence[bytes], now: float) -> None:
        task = self._current
        try:
            reply = parse_reply(frames, self._limits)
        except IllFormed as error:
            self.counters[f"dropped:{error.reason}"] += 1
            return
        if task is None:
            self.counters["dropped:nobody-asked"] += 1
            return
        agreed = AGREED[type(task.request)]
        if reply.code < 300 and reply.code != agreed:
            self.counters["dropped:another-answer"] += 1
            return
        self.deadlines.clear("reply")
        if reply.code == 401:
            self._unauthorized(task, reply)
        elif reply.code == 402 and task.cycle is not None:
            self._challenged(task, reply, now)
        elif reply.code == agreed:
            self._agreed(task, reply)
        else:
            self._fail(reply.code, str(reply.body.get("reason", reply.body.get("status", ""))))
        self._go_on(now)

    def _unauthorized(self, task: _Task, reply: Reply) -> None:
        self.mechanisms = _texts(reply.body.get("mechanisms"))
        self._machine.step(Step.UNAUTHORIZED)
        kind = type(task.request)
        reason = str(reply.body.get("reason", "not authorized"))
        if kind is Authorize:
            self._fail(401, reason)
        elif isinstance(task.request, Open):
            again = task is not self._task
            self._done(task, reply)
            if again:
                self._authorize_again(reason)
            else:
                self._began(task.request)
        elif task.began_anew or self._task is not task or self._open is None:
            self._fail(401, reason)
        else:
            task.began_anew = True
            self._anew()

    def _authorize_again(self, reason: str) -> None:
        """The script's Open was answered 401: authenticate as before, if there is a way."""
        if self._task is not None and type(self._task.request) is Authorize:
            return  # that is what comes next
        if self._credentials is None:
            self._fail(401, reason)
        else:
            request = Authorize("", b"")
            self._script.appendleft(_Task(None, request, credentials=self._credentials))

    def _challenged(self, task: _Task, reply: Reply, now: float) -> None:
        assert task.cycle is not None
        try:
            challenge = b64decode(reply.body.get("challenge", "?"), validate=True)
            self._respond(task, task.cycle, challenge, now)
        except Exception as error:  # the cycle may be an application's
            self._fail(402, f"the challenge is wrong: {error}")

    def _agreed(self, task: _Task, reply: Reply) -> None:
        request = task.request
        match request:
            case Open() | Authorize():
                try:
                    proved = task.cycle is None or task.cycle.finished
                except Exception as error:  # an application's
                    self._fail(401, f"the credentials failed: {error}")
                    return
                if not proved:
                    self._fail(reply.code, "the server has not proved that it knows the password")
                    return
                self._machine.step(Step.OPENED)
                self.profiles = _texts(reply.body.get("profiles"))
                if isinstance(request, Authorize):
                    self._credentials = task.credentials
                elif task is self._task:
                    self._began(request)
            case SelectProfile():
                if self.state in (ClientState.READY, ClientState.PROFILED):
                    self._machine.step(Step.PROFILE_SELECTED)
                if task is self._task:
                    self._leases.clear()
                self._profile = request
            case _:
                self._leased(task, reply)
                return
        self._done(task, reply)

    def _began(self, request: Open) -> None:
        self._open, self._profile = request, None
        self._leases.clear()

    def _leased(self, task: _Task, reply: Reply) -> None:
        port, token = reply.body.get("port"), reply.body.get("lease")
        most = reply.body.get("content-bytes")
        number = task.number
        if type(port) is not int or type(token) is not str or not 0 <= port < 65536:
            self._fail(reply.code, "a lease without a port or a token")
            return
        assert number is not None
        self._leases[number] = task.request
        # Its flow may have asked for another one, because it was lost before all began anew.
        self._waiting = deque(waiting for waiting in self._waiting if waiting.number != number)
        most = most if type(most) is int and most > 0 else None
        new = tuple(_texts(reply.body.get("new")))
        self._events.append(LeaseGranted(number, port, token, most, new))
        self._done(task, None)

    def _done(self, task: _Task, reply: Reply | None) -> None:
        self._current = None
        if task is self._task:
            self._task = None
            if reply is not None and task.number is not None:
                self._events.append(Answered(task.number, reply))

    def _fail(self, code: int, reason: str) -> None:
        current = self._current
        if current is not None and current is not self._task and current.number is not None:
            # Only a lease that was to be renewed: that one is lost, the rest goes on.
            self._current = None
            self._refused(current.number, code, reason)
            return
        self._begins_anew = current is not self._task
        number = self._give_up()
        assert number is not None
        self._refused(number, code, reason)

    def _give_up(self) -> int | None:
        task, self._task, self._current = self._task, None, None
        self._script.clear()
        return None if task is None else task.number

    def _refused(self, number: int, code: int, reason: str) -> None:
        self._leases.pop(number, None)
        self._events.append(RequestRefused(number, code, reason))

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> list[ClientEvent]:
        super().advance(now)
        return self._take_events()

    def _reply_missing(self, now: float, events: list[ClientEvent]) -> None:
        """``MT-28``: no reply came in time, so begin anew on another socket."""
        self._tries += 1
        self.counters["sockets_dropped"] += 1
        self._change_socket()
        if self._tries < self._tries_max:
            self._anew()
        else:
            number = self._give_up()
            assert number is not None  # a request was out for its sake
            self._events.append(RequestTimedOut(number))
        self._go_on(now)

    timely: ClassVar[dict[Any, Any]] = {"reply": _reply_missing}

    # ── turned away ───────────────────────────────────────────────────────────────────────────────

    def turned_away(self, reason: str, now: float) -> list[ClientEvent]:
        """The server will not have us: nobody answers on this socket, however long we wait.

        The request in hand is refused with 401; the next one is tried on another socket.
        """
        self._turned_away = True
        number = self._give_up()
        if number is not None:
            self._out.clear()
            self.deadlines.clear("reply")
            self._refused(number, 401, reason)
        self._go_on(now)
        return self._take_events()

    # ── messages out ────────────────────────────────────────────────────────────────────────────

    def outputs(self) -> list[list[bytes]]:
        """What is to be sent now, as a plain REQ socket would put it on the wire."""
        out, self._out = self._out, []
        return out

    def drain(self, now: float) -> list[ClientEvent]:
        self._draining = True
        return []

    def lost(self, now: float) -> list[ClientEvent | WorkLost]:
        """The client is closed: the numbers of the requests that will not be answered."""
        tasks = [self._task, *self._waiting]
        self._task = self._current = None
        self._closed = True
        self._script.clear()
        self._waiting.clear()
        self._out.clear()
        self.deadlines.clear_all()
        numbers = [task.number for task in tasks if task is not None and task.number is not None]
        return [*self._take_events(), *([WorkLost(numbers)] if numbers else ())]

    def _take_events(self) -> list[ClientEvent]:
        events, self._events = self._events, []
        return events


def _texts(value: object) -> list[str]:
    return [item for item in value if type(item) is str] if type(value) is list else []
