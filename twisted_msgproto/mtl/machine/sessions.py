"""The broker's control flow has sessions, authentication, profiles and leases.

:class:`Sessions` is the half of :class:`.Server` that answers requests, and with which data flows
begin.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import Enum, auto
from math import ceil, inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from ...core.connection import Connection
from ...core.deadlines import ManyDeadlines
from ...core.limits import Limits
from ...core.session_memory import SESSION_LIMIT, MemoryShare, SessionMemory
from ..terms import (
    LEASE_SECONDS,
    SERVER_LIMITS,
    SESSION,
    SESSION_LEASES,
    SessionState,
    Step,
)
from ..wire import (
    COMMANDS,
    Authorize,
    Invalid,
    Open,
    Request,
    RequestReader,
    RequestWriter,
    SelectProfile,
    data,
    encode_base64,
    encode_reply,
    parse_body,
    parse_command,
    parse_request,
    split_envelope,
)
from ..wire.data import IllFormed
from .flows import (
    UNKNOWN,
    AuthenticationRequested,
    Flow,
    LeaseGrant,
    LeaseRefused,
    LimitMet,
    Peer,
    Profile,
    ReadingFlow,
    ServerEvent,
    Session,
    SessionEnded,
    SessionEstablished,
    SessionOpened,
    WritingFlow,
    by_name,
    decided,
    is_automatic,
    names_weight,
)

TOKEN_BYTES: Final = 20
"""A lease is 160 random bits, in hexadecimal digits (``MT-11``)."""


OWN_IDENTITY: Final = "a socket without CURVE may have no identity of its own"
LEASED_FOR_ANOTHER: Final = "it is leased for another client's CURVE key"

NOTHING_KNOWN: Final[Mapping[bytes, Peer]] = MappingProxyType({})

T = TypeVar("T")

PROFILE_ERRORS_MAX: Final = 16
"""Of what profiles raise in one read no more is kept."""


class Channel(Enum):
    """A message came through one of these sockets (``MT-12``)."""

    CONTROL = auto()
    DATA = auto()
    SHARED = auto()  # one socket for both: told apart by the number of frames


class Arrival(NamedTuple):
    """What one read of a socket brought.

    Each of ``messages`` is the name of its connection and the frames that were sent; ``peers`` says
    by those names what is known of the connections.
    """

    channel: Channel
    messages: Iterable[list[bytes]]
    peers: Mapping[bytes, Peer] = NOTHING_KNOWN


Outputs = tuple[list[list[bytes]], list[list[bytes]]]
"""What is to be sent on control and on data sockets, behind the names of the connections."""


May = Callable[["Session", bool, str], bool]
"""Says whether the client of a session may read (True) or write (False) a resource."""


_UNAUTHENTICATED: Final = (SessionState.NEW, SessionState.UNAUTHORIZED, SessionState.CHALLENGED)


class Sessions(Connection[Arrival, Outputs, ServerEvent]):
    """The control flow of a broker, with the state of all of it.

    Its deadlines are those of sessions, of leases that nobody has used, and of flows: each has one,
    so that what one message costs does not grow with those who are silent.
    """

    counters: dict[str, int]
    deadlines: ManyDeadlines[Session | LeaseGrant | Flow]
    moved_at: Callable[[bytes], float] = staticmethod(lambda peer: 0.0)

    def __init__(
        self,
        profiles: Iterable[Profile],
        limits: Limits | None = None,
        *,
        random: Callable[[int], bytes],
        session_names: Callable[[], str],
        mechanisms: Sequence[str] = (),
        virtual_hosts: Container[str] | None = None,
        data_port: int = 0,
        counters: dict[str, int] | None = None,
        may: May = lambda session, reads, resource: True,
        every: SessionMemory | None = None,
    ) -> None:
        """Make a broker.

        ``random(n)`` returns n bytes that nobody can foresee.  ``mechanisms`` empty: clients need
        not authenticate.  ``virtual_hosts`` None: any.  ``may(session, reads, resource)`` says
        what clients may do: it is asked for each lease's resources, and where a lease is for all,
        for each that is summoned or written to.  ``every`` bounds what the sessions of the process
        keep for their peers.
        """
        limits = Limits.of(SERVER_LIMITS) if limits is None else limits
        self.limits = limits
        self._every = SessionMemory() if every is None else every
        self.profiles: dict[str, Profile] = by_name(profiles)
        self.counters = Counter() if counters is None else counters
        self.deadlines = ManyDeadlines()
        self.data_port = data_port
        self._may = may
        self._random = random
        self._session_names = session_names
        self._mechanisms = tuple(mechanisms)
        self._virtual_hosts = virtual_hosts
        self._sessions: dict[bytes, Session] = {}
        self._leases: dict[str, LeaseGrant] = {}
        self._out_control: list[list[bytes]] = []
        self._events: list[ServerEvent] = []
        # Nothing here is worth a finer clock than this, and so many silent peers are looked after
        # in few turns; the answer to a failed login, which is worth one, has its own time.
        self._grain = min(1.0, limits["heartbeat"] / 2, limits["liveness"] / 4)
        self._resumed_at = -inf  # when reading was; inf while it is paused
        self._now = 0.0
        self._peers: Mapping[bytes, Peer] = {}
        self._leaving: set[bytes] = set()  # what these connections sent may still come
        # What profiles have raised, for the log; all of it is counted.
        self.profile_errors: deque[BaseException] = deque(maxlen=PROFILE_ERRORS_MAX)
        self._draining = self._closed = False
        for profile in self.profiles.values():
            profile.release = self._release
            profile.end_flow = self._end_failed
        self._heartbeat = self.limits["heartbeat"]
        self._liveness = self.limits["liveness"]
        self._flows: dict[bytes, Flow] = {}
        self._withheld: dict[WritingFlow, None] = {}
        self._written: dict[WritingFlow, None] = {}  # flows with contents of the read under way
        self._exhausted: dict[ReadingFlow, None] = {}  # readers that used their burst up
        self._out_data: list[list[bytes]] = []

    # ── profiles that fail ──────────────────────────────────────────────────────────────────────

    def take_profile_errors(self) -> list[BaseException]:
        errors = list(self.profile_errors)
        self.profile_errors.clear()
        return errors

    def _profile_failed(self, error: BaseException) -> None:
        self.counters["profile_errors"] += 1
        self.profile_errors.append(error)

    def _ask(self, otherwise: T, method: Callable[..., T], *arguments: Any) -> T:
        try:
            answer = method(*arguments)
            return decided(answer) if isinstance(otherwise, bool) else answer
        except BaseException as error:
            self._profile_failed(error)
            return otherwise

    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def _take_events(self) -> list[ServerEvent]:
        events, self._events = self._events, []
        return events

    def _dropped(self, reason: str) -> None:
        self.counters["dropped"] += 1
        self.counters[f"dropped:{reason}"] += 1

    # ── the control flow ────────────────────────────────────────────────────────────────────────

    def _control(self, parts: list[bytes]) -> None:
        if parts[0] in self._leaving:
            self._dropped("left")
            return
        try:
            count = split_envelope(parts[1:])
            command = parse_command(parts[-2])
        except IllFormed as error:
            self._dropped(error.reason)
            return
        peer, envelope = parts[0], parts[1 : 1 + count]
        self.counters["requests"] += 1
        try:
            # JSON that is none is dropped; what else is wrong waits for the questions before it.
            body: Mapping[str, Any] | Invalid
            try:
                body = parse_body(parts[-1], self.limits)
            except Invalid as error:
                body = error
            self._request(peer, self._sessions.get(peer), envelope, command, body)
        except IllFormed as error:
            self._dropped(error.reason)
        except Invalid as error:
            reason = {"reason": str(error), **error.more}
            self._reply(peer, envelope, error.code, **reason)
        except BaseException as error:  # of a profile, or of what knows the virtual hosts
            self._profile_failed(error)
            self._reply(peer, envelope, 403, reason="the server cannot answer this")
        session = self._sessions.get(peer)
        if session is not None:
            self._watch(session)

    def _request(
        self,
        peer: bytes,
        session: Session | None,
        envelope: list[bytes],
        command: str,
        body: Mapping[str, Any] | Invalid,
    ) -> None:
        if not self._may_own(peer):
            raise Invalid(401, OWN_IDENTITY, mechanisms=self._mechanisms)
        state = SessionState.NEW if session is None else session.state
        if session is not None:
            session.heard_at = self._now
        kind = COMMANDS.get(command)
        if state is SessionState.AUTHORIZING:
            raise Invalid(409, "an answer to Connection.Authorize is still owed")
        legal = kind in SESSION[state]
        if not legal and state in _UNAUTHENTICATED:
            first = "Connection.Open" if state is SessionState.NEW else "Connection.Authorize"
            raise Invalid(401, f"{first} comes first", mechanisms=self._mechanisms)
        if kind is None:
            raise Invalid(404, "there is no such command")
        if isinstance(body, Invalid):
            raise body
        if not legal:
            raise Invalid(409, "a profile is to be selected first")
        request = parse_request(kind, body, self.limits)
        if type(request) is Open:
            self._open(peer, session, envelope, request)
        else:
            assert session is not None  # without one only Open is in the table
            session.envelope, session.asked_at = envelope, self._now
            self._obey(session, request)

    def _may_own(self, peer: bytes) -> bool:
        return is_automatic(peer) or bool(self._peers.get(peer, UNKNOWN).key)

    def _open(
        self, peer: bytes, session: Session | None, envelope: list[bytes], request: Open
    ) -> None:
        hosts = self._virtual_hosts
        if hosts is not None and request.virtual_host not in hosts:
            raise Invalid(404, "there is no such virtual host")
        if session is not None:
            self._end_session(session, "reopened")
        elif len(self._sessions) >= self.limits.integer("sessions"):
            self._events.append(LimitMet("sessions", "session"))
            raise Invalid(403, "too many sessions")
        known = self._peers.get(peer, UNKNOWN)
        self._sessions[peer] = session = Session(
            peer,
            self._session_names(),
            request.virtual_host,
            self._now,
            self._now,
            address=known.address,
            key=known.key,
            envelope=envelope,
            kept=MemoryShare(self._every),
        )
        self.counters["sessions_total"] += 1
        self._events.append(SessionOpened(session))
        if self._mechanisms:
            self._answer(session, 401, mechanisms=self._mechanisms)
        else:
            self._ready(session)

    def _obey(self, session: Session, request: Request) -> None:
        match request:
            case Authorize():
                self._authenticate(session, request)
            case SelectProfile():
                profile = self.profiles.get(request.profile)
                if profile is None:
                    raise Invalid(400, "there is no such profile")
                session.machine.step(SelectProfile)
                self._end_leases(session)
                session.profile = profile
                self._answer(session, 200)
            case _:
                assert isinstance(request, RequestReader | RequestWriter)
                session.machine.step(type(request))
                self._grant(session, request)

    def _authenticate(self, session: Session, request: Authorize) -> None:
        if not self._mechanisms:
            raise Invalid(409, "nobody has to authenticate here")
        first = session.mechanism is None
        if not first and request.mechanism != session.mechanism:
            session.mechanism = None
            session.machine.step(Step.DENIED)
            raise Invalid(400, "the mechanism was switched within a cycle")
        if request.mechanism not in self._mechanisms:
            raise Invalid(400, "there is no such mechanism")
        if session.state not in _UNAUTHENTICATED:
            session.opened_at = self._now  # from now on it has its time to authenticate again
            self._end_leases(session)
        session.machine.step(Authorize)
        session.user, session.profile = None, None
        session.mechanism = request.mechanism
        self._events.append(
            AuthenticationRequested(session, request.mechanism, request.response, first)
        )

    def _grant(self, session: Session, request: RequestReader | RequestWriter) -> None:
        profile = session.profile
        assert profile is not None
        reads = type(request) is RequestReader
        if not (profile.reads if reads else profile.writes):
            raise Invalid(403, f"the profile has no {'readers' if reads else 'writers'}")
        if request.confirm not in profile.confirmations:
            raise Invalid(501, f"the profile does not support confirm {request.confirm}")
        for resource in request.resources:
            if not decided(profile.knows(session.virtual_host, resource)):
                raise Invalid(404, "there is no such resource")
        for resource in request.resources:
            if not self._may(session, reads, resource):
                what = "consume from" if reads else "publish to"
                raise Invalid(403, f"not allowed to {what} {resource}")
        if len(session.grants) + len(session.flows) >= SESSION_LEASES:
            raise Invalid(403, "too many leases")
        nbytes = names_weight(request.resources)
        if not self._may_keep(session, nbytes, "lease"):
            raise Invalid(403, f"too many leases: {SESSION_LIMIT}")
        token = self._random(TOKEN_BYTES).hex()
        grant = LeaseGrant(
            token,
            session,
            profile,
            reads,
            request.resources,
            request.confirm == "full",
            self._now + LEASE_SECONDS,
            nbytes,
        )
        session.kept.add(nbytes)
        self._leases[token] = session.grants[token] = grant
        self.deadlines.set(grant, grant.expires_at)
        # libzmq ends the connection of who sends more, without a reason.
        more: dict[str, Any] = {"content-bytes": self.limits.integer("content-bytes")}
        if not reads:
            nothing: Sequence[str] = ()
            new = self._ask(nothing, profile.missing, session.virtual_host, request.resources)
            more |= {"new": list(new)} if new else {}
        self._answer(session, 202, port=self.data_port, lease=token, **more)

    def _may_keep(self, session: Session, nbytes: int, what: str) -> bool:
        if session.kept.fits(nbytes):
            return True
        self._events.append(LimitMet(SESSION_LIMIT, what))
        return False

    def _ready(self, session: Session) -> None:
        session.machine.step(Step.GRANTED)
        session.mechanism = None
        self._answer(session, 201, profiles=list(self.profiles))
        self._events.append(SessionEstablished(session))

    def _answer(self, session: Session, code: int, **body: Any) -> None:
        self._reply(session.peer, session.envelope, code, **body)

    def _reply(self, peer: bytes, envelope: list[bytes], code: int, **body: Any) -> None:
        self.counters[f"replies:{code}"] += 1
        self._out_control.append([peer, *envelope, *encode_reply(code, **body)])

    # ── data flows begin ────────────────────────────────────────────────────────────────────────

    def _send(self, peer: bytes, flow: Flow | None, frames: list[bytes]) -> None:
        if flow is not None:
            flow.sent_at = self._now
        self._out_data.append([peer, *frames])

    def _respond(self, peer: bytes, flow: Flow | None, sequence: int, code: int) -> None:
        self.counters[f"responses:{code}"] += 1
        self._send(peer, flow, data.encode(data.Response(sequence, code)))

    def _lease(self, peer: bytes, command: Any) -> None:
        """Follow the first command of a data connection (``MT-11``, ``MT-14``, ``MT-30``)."""
        grant, known = self._leases.get(command.lease), self._peers.get(peer, UNKNOWN)
        if grant is None or grant.expires_at <= self._now:
            self._respond(peer, None, command.sequence, 403)
            return
        refused = "" if self._may_own(peer) else OWN_IDENTITY
        if known.key != grant.session.key:
            refused = LEASED_FOR_ANOTHER
        if refused:
            # A Response has no place for a reason: whoever looks for it asks the operator.
            self._events.append(LeaseRefused(known.address, refused))
            self._respond(peer, None, command.sequence, 403)
            return
        session = grant.session
        self._forget(grant)
        flow: Flow
        if grant.reads:
            flow = ReadingFlow(
                peer,
                grant,
                self._now,
                self._now,
                outbox=self._out_data,
                prefetch=self.limits.integer("prefetch"),
                exhausted=self._exhausted,
            )
        else:
            flow = WritingFlow(peer, grant, self._now, self._now)
        flow.address = known.address
        flow.commands.append(command.sequence)
        self._flows[peer] = session.flows[peer] = flow
        self._watch_flow(flow)
        session.heard_at = self._now
        self.counters["flows_total"] += 1
        self._respond(peer, flow, command.sequence, 200)

    # ── the caller's answers to AuthenticationRequested ─────────────────────────────────────────

    def challenge(self, session: Session, challenge: bytes, now: float) -> None:
        """Continue the SASL cycle with ``challenge`` (``MT-08``)."""
        if self._awaits_answer(session, now):
            session.machine.step(Step.CHALLENGED)
            text = encode_base64(challenge)
            self._answer(session, 402, mechanism=session.mechanism, challenge=text)

    def authorize(self, session: Session, user: str | None, now: float) -> list[ServerEvent]:
        if self._awaits_answer(session, now):
            session.user = user
            self._ready(session)
        return self._take_events()

    def refuse(self, session: Session, now: float) -> None:
        """Note that the attempt failed; the reply follows after its delay (``MT-08``)."""
        if self._awaits_answer(session, now):
            self.counters["failed_authentications"] += 1
            session.refused_until = session.asked_at + self.limits["login-delay"]
            self._watch(session)

    def _awaits_answer(self, session: Session, now: float) -> bool:
        self._now = now
        authorizing = session.state is SessionState.AUTHORIZING
        return authorizing and session.refused_until == inf and not session.ended

    def withdraw(self, session: Session, now: float) -> list[ServerEvent]:
        """The session's authentication has ended: its leases end, its next request gets 401."""
        self._now = now
        if not session.ended:
            if session.state is SessionState.AUTHORIZING:
                self.refuse(session, now)
            else:
                session.machine.step(Step.DENIED)
            session.user, session.profile, session.mechanism = None, None, None
            session.opened_at = now
            self._end_leases(session)
            self._watch(session)
        return self._take_events()

    # ── the ends ────────────────────────────────────────────────────────────────────────────────

    def _end_session(self, session: Session, reason: str) -> None:
        session.ended = True
        del self._sessions[session.peer]
        self.deadlines.clear(session)
        self._end_leases(session)
        self._events.append(SessionEnded(session, reason))

    def _end_leases(self, session: Session) -> None:
        for grant in list(session.grants.values()):
            self._end_unused(grant)
        for flow in list(session.flows.values()):
            self._end_flow(flow)

    def leaving(self, peer: bytes) -> None:
        """Note that this connection has ended; what it sent before may still come.

        Its contents are accepted, and what it confirms or rejects is settled; nothing else of it is
        obeyed, and it is sent nothing (``MT-30``).
        """
        self._leaving.add(peer)
        self.blocked(peer)

    def left(self, peers: Iterable[bytes], now: float) -> list[ServerEvent]:
        """End what these connections own, because all that they sent was read (``MT-30``).

        A session continues as long as it has a flow on another connection.
        """
        for peer in peers:
            self._leaving.discard(peer)
            flow = self._flows.get(peer)
            if flow is not None:
                self._end_flow(flow)
            session = self._sessions.get(peer)
            if session is not None:
                session.left = True
                self._end_if_left(session)
        return self._take_events()

    def _end_if_left(self, session: Session) -> None:
        if session.left and not session.flows and not session.ended:
            self._end_session(session, "left")

    # :class:`.Server` has these:
    _end_flow: Callable[[Flow], None]
    _end_failed: Callable[[Flow, BaseException], None]
    _release: Callable[[], None]
    blocked: Callable[[bytes], None]

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _coarse(self, at: float) -> float:
        return max(at, ceil(at / self._grain) * self._grain)

    def _watch(self, session: Session) -> None:
        due = self._silent_since(session.heard_at) + self.limits["session-idle"]
        if not session.established:
            due = min(due, session.opened_at + self.limits["authentication"])
        due = min(self._coarse(due), session.refused_until)
        self.deadlines.set(session, max(self._now, due))

    def _look_after_session(self, session: Session, now: float) -> None:
        """Answer a failed login in its time; end who is idle (data counts) or never logs in."""
        if session.refused_until <= now:
            session.refused_until, session.mechanism = inf, None
            session.machine.step(Step.DENIED)
            self._answer(session, 401, mechanisms=self._mechanisms)
        heard = [self._silent_since(session.heard_at), *map(self._heard, session.flows.values())]
        session.heard_at = max(heard)
        if not session.established and session.opened_at + self.limits["authentication"] <= now:
            self._end_session(session, "not authenticated in time")
        elif session.heard_at + self.limits["session-idle"] <= now:
            self._end_session(session, "idle")
        else:
            self._watch(session)

    def _forget(self, grant: LeaseGrant) -> None:
        del self._leases[grant.token], grant.session.grants[grant.token]
        self.deadlines.clear(grant)

    def _end_unused(self, grant: LeaseGrant) -> None:
        self._forget(grant)
        grant.session.kept.remove(grant.nbytes)

    def _silent_since(self, heard_at: float) -> float:
        """While nobody is read, and before that ends, silence means nothing."""
        return max(heard_at, min(self._resumed_at, self._now))

    def _heard(self, flow: Flow) -> float:
        return self._silent_since(max(flow.heard_at, self.moved_at(flow.peer)))

    def _watch_flow(self, flow: Flow) -> None:
        due = min(flow.sent_at + self._heartbeat, self._heard(flow) + self._liveness)
        self.deadlines.set(flow, self._coarse(max(due, self._now)))
