"""What the server knows of its clients, and what profiles do with their content.

Profiles (``MT-25``, ``MT-26``) are a public extension point.  A profile is a sans-I/O machine too:
it is called by the server and sends with :meth:`.ReadingFlow.send` to readers that have summoned
the resource and whose ``room`` is above 0.

A ZeroMQ identity does not name a connection: it may have another owner at once when its owner has
left.  So a connection's name is its identity together with a serial that is never given again
(``MT-30``).  Names are never logged or shown.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutine
from math import inf
from typing import Any, ClassVar, Final, NamedTuple

from ...core.machine import Machine, ReceiveWindow
from ...core.session_memory import ENTRY_BYTES, SESSION_WEIGHT_BYTES, MemoryShare
from ..terms import BURST, SESSION, FlowState, SessionState
from ..wire import data

# ── Connections ───────────────────────────────────────────────────────────────────────────────────


SERIAL_BYTES: Final = 8

AUTOMATIC_BYTES: Final = 5
"""Of an identity that a ROUTER has made up; its first byte is 0."""


class Peer(NamedTuple):
    address: str = ""  # without the port; "" if it is not known
    key: bytes = b""  # the CURVE key that it has proved


UNKNOWN: Final = Peer()


def connection_name(identity: bytes, serial: int) -> bytes:
    return identity + serial.to_bytes(SERIAL_BYTES, "big")


def is_automatic(name: bytes) -> bool:
    """The connection's identity is one that a ROUTER makes up."""
    return len(name) == AUTOMATIC_BYTES + SERIAL_BYTES and name[0] == 0


# ── Profiles ────────────────────────────────────────────────────────────────────────────────────


class Profile:
    """What a server does with content; the base accepts all and delivers nothing.

    What a method raises is logged and counted, and concerns the flow that it was called for alone:
    contents that it was asked about are rejected, a Confirm is withheld until :meth:`congested` can
    say, a reader's flow ends (``MT-13``, ``MT-20``).  Nothing is awaited: what decides with a
    Deferred, or anything else that is no bool, counts as having raised.

    Attributes:
        name: in lower case, as clients select it in any case.
        confirmations: the values of ``confirm`` that it supports; another gets 501.
        reads: readers are allowed; else Connection.Reader gets 403.
        writes: writers are allowed; else Connection.Writer gets 403.
        stored: the contents of writers go to the sink (and the hooks) first; else they are accepted
            as they arrive.
        bounded: ask :meth:`has_room` for each content.
        enveloped: ask :meth:`envelopes` for the contents of each read.
        only_resource: its one resource, if it has exactly one: then names may be empty.
        counters: plain integers by name.
        draining: the server stops: whoever waits for a Confirm sends its contents again, to the
            next one.
        release: call this when writers whose Confirm was withheld may have it now.
        wake: call this when something was sent to readers, or released, and the server had not
            called the profile: what is to be sent is sent soon.
        end_flow: call this with a flow and an error to end that flow.
    """

    name: ClassVar[str] = ""
    confirmations: ClassVar[Sequence[str]] = ("none", "full")
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    stored: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    enveloped: ClassVar[bool] = False
    only_resource: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.draining: bool = False
        self.release: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None
        self.end_flow: Callable[[Flow, Exception], None] = lambda flow, error: None

    def knows(self, virtual_host: str, resource: str) -> bool:
        """There is such a resource; else a lease for it gets 404 (``MT-10``)."""
        return self.only_resource is None or resource == self.only_resource

    def missing(self, virtual_host: str, resources: Sequence[str]) -> Sequence[str]:
        """Return those of a writer's resources that do not exist before it writes to them."""
        return ()

    def has_room(self, flow: WritingFlow, resource: str, nbytes: int) -> bool:
        """One more content may come; else it is refused.  Only asked where ``bounded``."""
        return True

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        """Called when contents of ``flow`` are safe (or the profile stores none): do with them what
        you do.

        Return False to refuse them: they are rejected, and so they are when this raises.
        """
        return None

    def envelopes(
        self, flow: WritingFlow, resources: Sequence[str], properties: Sequence[bytes]
    ) -> list[bytes | None] | None:
        """Return what the log keeps beside each content, for a broker's queues; None: nothing.

        Called with the contents of one read, before they go to the sink.  Only asked where
        ``enveloped``.
        """
        return None

    def congested(self, flow: WritingFlow) -> bool:
        """The flow's writer should wait: its Confirm is withheld until ``release`` (``MT-27``)."""
        return False

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        """Called when ``flow`` wants a resource that it has not summoned yet; False answers 400."""
        return True

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        """``flow`` wants no more of the resource, or is at its end."""

    def ready(self, flow: ReadingFlow) -> None:
        """Called when ``flow`` may have space: it summoned, confirmed, or its socket takes more."""

    def confirmed(self, flow: ReadingFlow, contents: list[tuple[str, Stored]]) -> None:
        """The reader has these contents safe."""

    def rejected(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], recycle: bool
    ) -> None:
        """Do something about contents that the reader refuses."""

    def gone(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], orderly: bool = False
    ) -> None:
        """Called when the reader is at its end, with what it has not confirmed.

        ``orderly``: the server ends, or the reader had dismissed all that it had summoned.  By
        default these contents are ``rejected`` with ``recycle`` and its resources dismissed.
        """
        self.rejected(flow, contents, True)
        for resource in flow.summoned:
            self.dismiss(flow, resource)

    def snapshot(self) -> dict[str, object]:
        """Return the profile's figures as plain values."""
        return dict(self.counters)


def decided(answer: Any) -> Any:
    """Return what a profile has decided; TypeError for what is true, but no answer."""
    if answer is None or isinstance(answer, bool):
        return answer
    if iscoroutine(answer):
        answer.close()  # nobody will await it
    raise TypeError(f"a profile answers True or False at once, not with a {type(answer).__name__}")


def by_name(profiles: Iterable[Profile]) -> dict[str, Profile]:
    """The profiles by their names; ValueError for a name that is none or stands twice."""
    found: dict[str, Profile] = {}
    for profile in profiles:
        if not profile.name or profile.name != profile.name.lower() or profile.name in found:
            raise ValueError(f"a profile's name is in lower case and unique: {profile.name!r}")
        found[profile.name] = profile
    return found


# ── Sessions, leases and flows ──────────────────────────────────────────────────────────────────

COMMANDS_REMEMBERED: Final = 256
"""Sequences of a flow's last commands: a Response with one of them could be taken for theirs."""


def names_weight(names: Sequence[str]) -> int:
    """Return what is kept for these names: Python may need four bytes for a character."""
    return SESSION_WEIGHT_BYTES + sum(ENTRY_BYTES + 4 * len(name) for name in names)


@dataclass(slots=True, eq=False)
class LeaseGrant:
    """A data lease: who may do what with it (``MT-11``)."""

    token: str
    session: Session
    profile: Profile  # selected when it was given
    reads: bool
    resources: tuple[str, ...]  # empty: all
    confirm: bool  # ``full``
    expires_at: float
    nbytes: int  # that its session keeps for it, and what is summoned by it

    def covers(self, resource: str) -> bool:
        if self.resources:
            return resource in self.resources
        return bool(decided(self.profile.knows(self.session.virtual_host, resource)))

    @property
    def only_resource(self) -> str | None:
        """Return what an empty name means; None where a name is required (``MT-18``)."""
        if len(self.resources) == 1:
            return self.resources[0]
        return None if self.resources else self.profile.only_resource


@dataclass(slots=True)
class Stored:
    """One content on its way from a writer to readers; ``properties`` as they came."""

    properties: bytes
    body: bytes


@dataclass(slots=True, eq=False)
class Flow:
    peer: bytes  # the data connection; never shown to anybody
    grant: LeaseGrant
    heard_at: float
    sent_at: float  # what is answered: nobody must answer contents, or what settles them
    # Sequences of the last commands, which a Response may still be on its way for:
    commands: deque[int] = field(default_factory=lambda: deque(maxlen=COMMANDS_REMEMBERED))
    state: FlowState = FlowState.UNLEASED
    address: str = ""  # the network address behind it; "" if it is not known

    @property
    def session(self) -> Session:
        return self.grant.session


@dataclass(slots=True, eq=False)
class ReadingFlow(Flow):
    """A flow whose peer gets content.

    Attributes:
        summoned: the resources that the peer has summoned, with their names encoded.
        unconfirmed: contents by sequence, oldest first, with their resource (confirm ``full``).
        last_sent: the sequence of the last content; they count from 1 (``MT-18``).
        burst: how many more contents an unconfirmed reader gets before its socket is looked at.
        exhausted: where the flow puts itself when its burst is used up.
        blocked: the socket takes no more for this peer now.
        outbox: where the server's messages wait to be sent.
    """

    outbox: list[list[bytes]] = field(default_factory=list)
    prefetch: int = field(kw_only=True)
    burst: int = BURST
    summoned: dict[str, bytes] = field(default_factory=dict)
    unconfirmed: OrderedDict[int, tuple[str, Stored]] = field(default_factory=OrderedDict)
    last_sent: int = 0
    blocked: bool = False
    exhausted: dict[ReadingFlow, None] = field(default_factory=dict)
    state: FlowState = FlowState.READING

    @property
    def room(self) -> int:
        """How many contents the peer may be sent now (``MT-27``)."""
        if self.blocked:
            return 0
        return self.prefetch - len(self.unconfirmed) if self.grant.confirm else self.burst

    def send(self, resource: str, content: Stored, properties: bytes | None = None) -> None:
        """Send ``content`` of a summoned resource, with other ``properties`` if they are given.

        Raises KeyError for a resource that is not summoned, TypeError for a body that is no bytes.
        """
        name, body = self.summoned[resource], content.body
        if type(body) is not bytes:
            body = data.as_bytes(body)
        if properties is None:
            properties = content.properties
        frames = data.encode_content(self.last_sent + 1, name, properties, body)
        self.last_sent = sequence = self.last_sent + 1
        self.outbox.append([self.peer, *frames])
        if self.grant.confirm:
            self.unconfirmed[sequence] = (resource, content)
            return
        self.burst -= 1
        if not self.burst:
            self.exhausted[self] = None

    def settle(self, sequence: int, multiple: bool) -> list[tuple[str, Stored]] | None:
        """Take what a Confirm or Reject covers, oldest first; None if it is invalid (``MT-20``).

        Sequences rise strictly and are never used again, so here their size says what was sent.
        """
        if not 1 <= sequence <= self.last_sent:
            return None
        unconfirmed = self.unconfirmed
        if not multiple:
            found = unconfirmed.pop(sequence, None)
            return None if found is None else [found]
        settled = []
        while unconfirmed and next(iter(unconfirmed)) <= sequence:
            settled.append(unconfirmed.popitem(last=False)[1])
        return settled

    def restore(self, settled: list[tuple[str, Stored]]) -> None:
        """Take back what was settled, because the profile could not hear of it.

        The flow ends now, so sequences do not matter any more.
        """
        self.unconfirmed = OrderedDict(enumerate([*settled, *self.unconfirmed.values()]))

    def drain(self) -> list[tuple[str, Stored]]:
        """Take everything that is unconfirmed, oldest first: the peer is gone."""
        drained = list(self.unconfirmed.values())
        self.unconfirmed.clear()
        return drained


@dataclass(slots=True, eq=False)
class Slice:
    """Contents of one read and one writer, which wait for the sink."""

    sequences: list[int]
    position: int
    resources: list[str]
    properties: list[bytes]
    bodies: list[bytes]


@dataclass(slots=True, eq=False)
class WritingFlow(Flow):
    """A flow whose peer sends content.

    Attributes:
        last_received: the sequence of the last Content; -1 before the first.
        name: the encoded name that was looked at last and is allowed; None before there is one.
        resource: the resource of that name.
        window: what has arrived and what of it is safe; its marks are the slices.
        lost_at: the position of the first slice that never will be safe; None while there is none.
        over: that slice and all behind it were rejected: nothing of the flow counts any more.
        withheld: the sequence of a Confirm that is not sent; it may wait until the profile has room
            again.
    """

    last_received: int = -1
    name: bytes | None = None
    resource: str = ""
    window: ReceiveWindow[Slice] = field(default_factory=ReceiveWindow)
    lost_at: int | None = None
    over: bool = False
    state: FlowState = FlowState.WRITING
    withheld: int | None = None
    # The contents of the read that is under way:
    sequences: list[int] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    texts: list[dict[str, str] | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def take(self) -> int:
        """Make the contents of the read under way a slice, and return its position."""
        window = self.window
        window.receive(len(self.sequences))
        position = window.slice()
        window.mark(Slice(self.sequences, position, self.resources, self.properties, self.bodies))
        self.discard()
        return position

    def discard(self) -> None:
        """Forget what was read and not given out."""
        self.sequences, self.resources, self.properties = [], [], []
        self.texts, self.bodies = [], []


@dataclass(slots=True, eq=False)
class Session:
    peer: bytes  # the control connection; never shown to anybody
    name: str  # its public name
    virtual_host: str
    opened_at: float
    heard_at: float  # when any of its connections sent anything last
    user: str | None = None
    profile: Profile | None = None
    mechanism: str | None = None  # of the SASL cycle under way
    address: str = ""  # the network address behind the control connection; "" if it is not known
    key: bytes = b""  # the CURVE key behind it; empty where there is none
    left: bool = False  # the control connection has ended; it lives as long as its flows
    application: Any = None  # whatever the caller keeps with it
    permissions: Any = None  # what the caller remembers of the answers to ``may``
    machine: Machine[SessionState] = field(
        default_factory=lambda: Machine(SESSION, SessionState.UNAUTHORIZED)
    )
    grants: dict[str, LeaseGrant] = field(default_factory=dict)  # not used by a connection yet
    flows: dict[bytes, Flow] = field(default_factory=dict)
    envelope: list[bytes] = field(default_factory=list)  # of the request under way
    asked_at: float = 0.0
    kept: MemoryShare = field(default_factory=MemoryShare)  # what leases and flows make us keep
    refused_until: float = inf  # then the reply is due that a failure has delayed
    ended: bool = False

    @property
    def state(self) -> SessionState:
        return self.machine.state

    @property
    def established(self) -> bool:
        return self.state in (SessionState.READY, SessionState.PROFILED)


Position = tuple[WritingFlow, int]
"""What ``made_safe`` and ``not_safe`` are told: a flow, and a position in what it has written."""


# ── What the broker's machine reports ───────────────────────────────────────────────────────────


@dataclass(slots=True)
class AuthenticationRequested:
    """A response arrived; answer with ``challenge``, ``authorize`` or ``refuse`` (``MT-08``).

    ``first`` is True where a new cycle begins.
    """

    session: Session
    mechanism: str
    response: bytes
    first: bool


@dataclass(slots=True)
class SessionOpened:
    """A client has opened a session; it may have to authenticate still."""

    session: Session


@dataclass(slots=True)
class LimitMet:
    """A client was refused ``what`` it wanted, above the limit of this name."""

    limit: str
    what: str


@dataclass(slots=True)
class LeaseRefused:
    """A data connection from ``address`` showed a lease that it may not use, for this reason."""

    address: str
    reason: str


@dataclass(slots=True)
class SessionEstablished:
    """The session's client is authenticated, or need not be."""

    session: Session


@dataclass(slots=True)
class SessionEnded:
    """The session is over; ``reason`` is a word for logs: ``reopened``, ``idle``, ``lost``, …"""

    session: Session
    reason: str


@dataclass(slots=True)
class ContentReceived:
    """Contents of one writer arrived, as columns; answer ``position`` with ``made_safe`` or
    ``not_safe``.

    ``texts`` are the properties as texts, None where a content has none; ``envelopes`` what the log
    keeps of contents for a broker's queues, None where there are none.
    """

    flow: WritingFlow
    position: Position
    sequences: list[int]
    resources: list[str]
    texts: list[dict[str, str] | None]
    bodies: list[bytes]
    nbytes: int
    envelopes: list[bytes | None] | None = None


ServerEvent = (
    AuthenticationRequested
    | SessionOpened
    | LimitMet
    | LeaseRefused
    | SessionEstablished
    | SessionEnded
    | ContentReceived
)
