"""What the server knows of one data flow: its lease, and what a reader and a writer hold.

What is legal on a flow stands in :data:`~twisted_msgproto.mtl.terms.states.FLOW`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...core.kept import KEPT_WEIGHT_OCTETS
from ...core.window import ReceiveWindow
from ..terms.states import FlowState
from ..wire import data

if TYPE_CHECKING:
    from .profile import Profile
    from .sessions import Session

COMMANDS_REMEMBERED: Final = 256
"""Sequences of a flow's last commands: a Response with one of them could be taken for theirs."""

NAMES_REMEMBERED: Final = 1024
"""Resources of a writer whose names were looked at already."""

LEASED_NAME_OCTETS: Final = 96
"""Python needs this much for a string without characters, and for its place."""

CHARACTER_OCTETS: Final = 4
"""Python needs up to this much memory for each character of a name."""


def name_weight(name: str) -> int:
    return KEPT_WEIGHT_OCTETS + (CHARACTER_OCTETS + 1) * len(name)


def lease_weight(resources: Sequence[str]) -> int:
    octets = KEPT_WEIGHT_OCTETS + LEASED_NAME_OCTETS * len(resources)
    return octets + CHARACTER_OCTETS * sum(map(len, resources))


@dataclass(slots=True, eq=False)
class LeaseGrant:
    """A data lease: who may do what with it (``MT-11``).

    ``resources`` empty means all; ``confirm`` is True for ``full``.  ``profile`` is the one that
    was selected when it was given.  Its session keeps ``octets`` for it, until its flow ends.
    """

    token: str
    session: Session
    profile: Profile
    reads: bool
    resources: tuple[str, ...]
    confirm: bool
    expires_at: float
    octets: int

    def covers(self, resource: str) -> bool:
        """This resource is among those of the lease and the profile has it."""
        if self.resources:
            return resource in self.resources
        return self.profile.knows(self.session.virtual_host, resource)

    @property
    def only_resource(self) -> str | None:
        """Return the resource that an empty name means; None where a name is required
        (``MT-18``).
        """
        if len(self.resources) == 1:
            return self.resources[0]
        return None if self.resources else self.profile.only_resource


@dataclass(slots=True)
class Stored:
    """One content on its way from a writer to readers; ``properties`` as they came."""

    properties: bytes
    body: bytes
    deliveries: int = 0


@dataclass(slots=True, eq=False)
class Flow:
    """What readers and writers have in common.

    Attributes:
        peer: the data connection; never shown to anybody.
        grant: the lease that opened the flow.
        heard_at: when the peer sent anything last.
        sent_at: when anything was sent to it last.
        commands: sequences of the last commands, which a Response may still be on its way for.
        state: where the connection stands.
        address: the network address behind it; "" if it is not known.
        octets: what the session keeps for the names of the flow.
    """

    peer: bytes
    grant: LeaseGrant
    heard_at: float
    sent_at: float
    commands: deque[int] = field(default_factory=lambda: deque(maxlen=COMMANDS_REMEMBERED))
    state: FlowState = FlowState.UNLEASED
    address: str = ""
    octets: int = 0

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
        prefetch: how many contents may be unconfirmed.
        burst: how many more contents an unconfirmed reader gets before its socket is looked at.
        exhausted: where the flow puts itself when its burst is used up.
        blocked: the socket takes no more for this peer now.
        outbox: where the server's messages wait to be sent.
        stirred: where the flow puts itself when it was sent content, so that its time is noted.
    """

    outbox: list[list[bytes]] = field(default_factory=list)
    prefetch: int = 1
    burst: int = 1
    burst_limit: int = 1
    summoned: dict[str, bytes] = field(default_factory=dict)
    unconfirmed: OrderedDict[int, tuple[str, Stored]] = field(default_factory=OrderedDict)
    last_sent: int = 0
    blocked: bool = False
    exhausted: dict[ReadingFlow, None] = field(default_factory=dict)
    stirred: dict[ReadingFlow, None] = field(default_factory=dict)
    state: FlowState = FlowState.READING

    @property
    def room(self) -> int:
        """How many contents the peer may be sent now (``MT-27``)."""
        if self.blocked:
            return 0
        return self.prefetch - len(self.unconfirmed) if self.grant.confirm else self.burst

    def send(self, resource: str, content: Stored, properties: bytes | None = None) -> None:
        """Send ``content`` of a summoned resource, with other ``properties`` if they are given."""
        self.last_sent = sequence = self.last_sent + 1
        if properties is None:
            properties = content.properties
        name = self.summoned[resource]
        frames = data.encode_content(sequence, name, properties, content.body)
        self.outbox.append([self.peer, *frames])
        self.stirred[self] = None
        if self.grant.confirm:
            self.unconfirmed[sequence] = (resource, content)
            return
        self.burst -= 1
        if self.burst <= 0:
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
    place: int
    resources: list[str]
    properties: list[bytes]
    bodies: list[bytes]


@dataclass(slots=True, eq=False)
class WritingFlow(Flow):
    """A flow whose peer sends content.

    Attributes:
        last_received: the sequence of the last Content; -1 before the first.
        names: encoded names → the resource, for those that are allowed.
        window: what has arrived and what of it is safe; its marks are the slices.
        lost_at: the place of the first slice that never will be safe; None while there is none.
        over: that slice and all behind it were rejected: nothing of the flow counts any more.
        withheld: the sequence of a Confirm that waits until the profile has room again.
    """

    last_received: int = -1
    names: dict[bytes, str] = field(default_factory=dict)
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
        """Make the contents of the read under way a slice, and return its place."""
        window, sequences = self.window, self.sequences
        window.receive(len(sequences))
        place = window.slice()
        window.mark(Slice(sequences, place, self.resources, self.properties, self.bodies))
        self.discard()
        return place

    def discard(self) -> None:
        self.sequences, self.resources, self.properties = [], [], []
        self.texts, self.bodies = [], []
