"""The broker above its sockets: frames in, frames out, with the time as an argument.

How the protocol works
----------------------
On the **control flow** a client opens a session, authenticates, selects a profile and asks for
leases; each request gets one reply.  On a **data flow** it shows a lease and then reads (it summons
resources and gets content) or writes.  A session is known by the control connection which opened
it, a flow by the data connection which showed the lease; both end when they have been silent for
too long, because a ROUTER socket does not say that a peer has gone.

Duties of the caller of a :class:`Server`, in this order:

1. ``receive_parts(channel, messages, now)`` with what a socket gave, the peer's identity first;
2. for each event: hand :class:`ContentReceived` to a sink, and answer
   :class:`AuthenticationRequested` with ``challenge``, ``authorize`` or ``refuse``, now or later;
3. ``made_safe(flow, place, now)`` or ``not_safe(flow, place, now)`` when the sink has spoken;
4. send ``data_to_send()`` after every call; ``blocked(peer)`` and ``unblocked(peer)`` say whose
   socket takes no more, ``peer_lost(peer)`` who cannot be reached;
5. call ``tick(now)`` when the time comes which the last call of it returned;
6. ``paused(now)`` and ``resumed(now)`` around times in which the data socket is not read.

Ill-formed messages are dropped and counted in ``counters`` under ``dropped:REASON``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from enum import Enum, auto
from typing import Any

from ...core.limits import Limits
from ..wire import data
from ..wire.data import CONTENT_HEADER_OCTETS_MIN, PING, PONG, IllFormed
from ..wire.fields import EMPTY
from .flows import (
    FLOW,
    NAMES_REMEMBERED,
    REFUSALS,
    ContentLost,
    Flow,
    FlowState,
    ReaderLeased,
    ReadingFlow,
    Slice,
    Stored,
    WriterLeased,
    WritingFlow,
)
from .limits import SERVER_LIMITS
from .profiles import Profile
from .sessions import ContentReceived, ServerEvent, Sessions, key_of


class Channel(Enum):
    """Which socket a message came through (``MT-12``)."""

    CONTROL = auto()
    DATA = auto()
    SHARED = auto()  # one socket for both: told apart by the number of frames


class Server(Sessions):
    """The broker's machine: sessions, leases, flows, profiles.

    Serves ``MT-01`` … ``MT-22`` and ``MT-25`` … ``MT-30`` above the sockets.

    Attributes:
        counters: plain integers by name, for metrics.
        data_port: what a 202 reply says.
        profiles: by name.
    """

    def __init__(
        self,
        profiles: Iterable[Profile],
        limits: Limits | None = None,
        *,
        random: Callable[[int], bytes],
        session_names: Callable[[], str],
        mechanisms: Sequence[str] = (),
        virtual_hosts: Container[str] | None = None,
        automatic_identities: bool = True,
        data_port: int = 0,
        counters: Counter[str] | None = None,
    ) -> None:
        """Make a broker.

        ``random(n)`` gives n octets which nobody can foresee.  ``mechanisms`` empty: clients need
        not authenticate.  ``virtual_hosts`` None: any.  ``automatic_identities``: only peers whose
        identity is one which ROUTER made up may have a session or a flow (``MT-30``); False where
        the caller has bound identities to authenticated keys.
        """
        limits = Limits.of(SERVER_LIMITS) if limits is None else limits
        super().__init__(
            profiles,
            limits,
            random=random,
            session_names=session_names,
            mechanisms=mechanisms,
            virtual_hosts=virtual_hosts,
            automatic_identities=automatic_identities,
            data_port=data_port,
            counters=counters,
        )
        for profile in self.profiles.values():
            profile.release = self._release
        self._heartbeat = limits["heartbeat"]
        self._liveness = limits["liveness"]
        self._flows: dict[bytes, Flow] = {}
        self._withheld: dict[WritingFlow, None] = {}
        self._exhausted: dict[ReadingFlow, None] = {}  # readers which used their burst up
        self._out_data: list[list[bytes]] = []
        self._written: dict[WritingFlow, None] = {}  # flows with contents of the read under way
        self._paused = False

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def more_to_send(self) -> bool:
        """Readers have room for more: call ``refill(now)`` soon, when the sockets took what was."""
        return bool(self._exhausted)

    def snapshot(self) -> dict[str, object]:
        """The broker's figures as plain values; no identity and no lease is among them."""
        flows = self._flows.values()
        return {
            "sessions": len(self._sessions),
            "leases": len(self._leases),
            "readers": sum(type(flow) is ReadingFlow for flow in flows),
            "writers": sum(type(flow) is WritingFlow for flow in flows),
            "profiles": {name: profile.snapshot() for name, profile in self.profiles.items()},
        }

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def receive_parts(
        self, channel: Channel, messages: Iterable[list[bytes]], now: float
    ) -> list[ServerEvent]:
        """Read messages of ``channel``; each is the peer's identity and the frames it sent."""
        self._now = now
        flows = self._flows
        if channel is Channel.CONTROL:
            for parts in messages:
                self._control(parts)
            return self._take_events()
        shared = channel is Channel.SHARED
        for parts in messages:
            if len(parts) == 3:
                flow = flows.get(parts[0])
                if type(flow) is WritingFlow and parts[1][:1] == b"\x05" and flow.lost_at is None:
                    try:
                        self._content(flow, parts[1], parts[2])
                    except IllFormed as error:
                        self._dropped(error.reason)
                else:
                    self._data(parts[0], flow, parts[1], parts[2])
            elif shared:
                self._control(parts)
            else:
                self._dropped("frames")
        self._flush()
        return self._take_events()

    # ── the ends ────────────────────────────────────────────────────────────────────────────────

    def _end_flow(self, flow: Flow) -> None:
        """The flow is over: its unconfirmed content is recycled (``MT-21``, ``MT-30``)."""
        del self._flows[flow.peer]
        del flow.session.flows[flow.peer]
        profile = flow.grant.profile
        if isinstance(flow, ReadingFlow):
            flow.blocked = True
            self._exhausted.pop(flow, None)
            profile.rejected(flow, flow.drain(), True)
            for resource in flow.summoned:
                profile.dismiss(flow, resource)
            flow.summoned.clear()
        else:
            assert isinstance(flow, WritingFlow)
            # What came before the end is still content.
            self._flush_writer(flow)
            self._withheld.pop(flow, None)

    def peer_lost(self, peer: bytes, now: float) -> list[ServerEvent]:
        """A socket says that nobody has this identity any more (``MT-21``, ``MT-24``)."""
        self._now = now
        flow = self._flows.get(peer)
        if flow is not None:
            self.counters["flows_lost"] += 1
            self._end_flow(flow)
        session = self._sessions.get(peer)
        if session is not None:
            self._end_session(session, "lost")
        return self._take_events()

    def close(self, now: float) -> list[ServerEvent]:
        """The server stops: every session ends."""
        self._now = now
        for session in self.sessions():
            self._end_session(session, "closed")
        return self._take_events()

    # ── the data flow ───────────────────────────────────────────────────────────────────────────

    def _data(self, peer: bytes, flow: Flow | None, header: bytes, body: bytes) -> None:
        try:
            command = data.decode(header, body)
        except IllFormed as error:
            self._dropped(error.reason)
            return
        kind = type(command)
        if flow is not None:
            flow.heard_at = self._now
        state = FlowState.UNLEASED if flow is None else flow.state
        if kind is data.Lease and flow is None:
            self._lease(peer, command)
        elif kind in FLOW[state]:
            if kind is data.Ping:
                self._send(peer, flow, PONG)
            elif isinstance(flow, ReadingFlow):
                self._read(flow, command)
        else:
            self._refuse_command(peer, flow, state, command)

    def _refuse_command(
        self, peer: bytes, flow: Flow | None, state: FlowState, command: Any
    ) -> None:
        kind = type(command)
        code = REFUSALS[state].get(kind)
        if code is None:
            self._dropped(f"{kind.__name__.lower()}-not-allowed")
        elif flow is not None and kind is data.Content:
            self._refuse_content(flow, command.sequence, code)
        else:
            if flow is not None:
                flow.commands.append(command.sequence)
            self._respond(peer, flow, command.sequence, code)

    def _send(self, peer: bytes, flow: Flow | None, frames: list[bytes]) -> None:
        if flow is not None:
            flow.sent_at = self._now
        self._out_data.append([peer, *frames])

    def _respond(self, peer: bytes, flow: Flow | None, sequence: int, code: int) -> None:
        self.counters[f"responses:{code}"] += 1
        self._send(peer, flow, data.encode(data.Response(sequence, code)))

    def _lease(self, peer: bytes, command: Any) -> None:
        """The first command of a data connection (``MT-11``, ``MT-14``, ``MT-30``)."""
        grant = self._leases.get(command.lease)
        if (
            grant is None
            or grant.expires_at <= self._now
            or (self._automatic and not (len(peer) == 5 and peer[0] == 0))
            or not self._same_key(peer, grant.session.peer)
        ):
            self._respond(peer, None, command.sequence, 403)
            return
        session = grant.session
        del self._leases[grant.token], session.grants[grant.token]
        assert (ReaderLeased if grant.reads else WriterLeased) in FLOW[FlowState.UNLEASED]
        flow: Flow
        if grant.reads:
            burst = self.limits.integer("burst")
            flow = ReadingFlow(
                peer,
                grant,
                self._now,
                self._now,
                outbox=self._out_data,
                prefetch=self.limits.integer("prefetch"),
                burst=burst,
                burst_limit=burst,
                exhausted=self._exhausted,
            )
        else:
            flow = WritingFlow(peer, grant, self._now, self._now)
        flow.commands.append(command.sequence)
        self._flows[peer] = session.flows[peer] = flow
        session.heard_at = self._now
        self.counters["flows_total"] += 1
        self._respond(peer, flow, command.sequence, 200)

    def _same_key(self, peer: bytes, other: bytes) -> bool:
        """Where identities are bound to keys, a lease is only for the key it was given to."""
        return self._automatic or key_of(peer) == key_of(other)

    # ── readers ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, flow: ReadingFlow, command: Any) -> None:
        profile = flow.grant.profile
        match command:
            case data.Summon():
                self._summon(flow, command)
            case data.Dismiss():
                flow.commands.append(command.sequence)
                summoned = command.resource in flow.summoned
                if summoned:
                    profile.dismiss(flow, command.resource)
                    del flow.summoned[command.resource]
                self._respond(flow.peer, flow, command.sequence, 200 if summoned else 400)
            case data.Confirm() | data.Reject():
                settled = None
                if flow.grant.confirm:
                    settled = flow.settle(command.sequence, command.multiple)
                if settled is None:
                    self._dropped("nothing-to-settle")
                    return
                if isinstance(command, data.Reject):
                    profile.rejected(flow, settled, command.recycle)
                else:
                    profile.confirmed(flow, settled)
                profile.ready(flow)

    def _summon(self, flow: ReadingFlow, command: Any) -> None:
        """``MT-16``; the Response goes out before any content (``MT-18``)."""
        flow.commands.append(command.sequence)
        resource, profile = command.resource, flow.grant.profile
        if (
            resource in flow.summoned
            or not resource
            or not flow.grant.covers(resource)
            or len(flow.summoned) >= self.limits.integer("lease-resources")
            or not profile.summon(flow, resource)
        ):
            self._respond(flow.peer, flow, command.sequence, 400)
            return
        flow.summoned[resource] = data.encode_name(resource)
        self._respond(flow.peer, flow, command.sequence, 200)
        profile.ready(flow)

    def refill(self, now: float) -> None:
        """The sockets took what was to be sent: unconfirmed readers may have their next burst."""
        self._now = now
        exhausted = list(self._exhausted)
        self._exhausted.clear()
        for flow in exhausted:
            flow.refill()

    def blocked(self, peer: bytes) -> None:
        """The socket takes no more for this peer: no content for it until ``unblocked``."""
        flow = self._flows.get(peer)
        if isinstance(flow, ReadingFlow):
            flow.blocked = True

    def unblocked(self, peer: bytes, now: float) -> None:
        """The socket takes more for this peer again."""
        self._now = now
        flow = self._flows.get(peer)
        if isinstance(flow, ReadingFlow) and flow.blocked:
            flow.blocked = False
            flow.refill()

    # ── writers ─────────────────────────────────────────────────────────────────────────────────

    def _content(self, flow: WritingFlow, header: bytes, body: bytes) -> None:
        """One Content of a writer: the hot path (``MT-18``)."""
        size = len(header)
        end = 10 + header[9] if size >= CONTENT_HEADER_OCTETS_MIN else size
        if size < end + 4:
            raise IllFormed("header-length", "the header ends within its fields")
        (sequence,) = data.read_sequence(header)
        encoded = header[10:end]
        resource = flow.names.get(encoded)
        properties, texts = header[end:], None
        if properties != EMPTY:
            properties, texts = data.decode_properties(properties)
        if resource is None:
            resource = self._resource(flow, encoded)
        flow.heard_at = self._now
        if sequence <= flow.last_received:
            self._refuse_content(flow, sequence, 400)
            return
        flow.last_received = sequence
        if type(resource) is int:
            self._refuse_content(flow, sequence, resource)
            return
        if flow.grant.profile.bounded and not flow.grant.profile.has_room(
            flow, resource, size + len(body)
        ):
            self.counters["contents_without_room"] += 1
            self._refuse_content(flow, sequence, 403)
            return
        if not flow.sequences:
            self._written[flow] = None
        flow.sequences.append(sequence)
        flow.resources.append(resource)
        flow.properties.append(properties)
        flow.texts.append(texts)
        flow.bodies.append(body)

    def _resource(self, flow: WritingFlow, encoded: bytes) -> Any:
        """The resource of this name, or the code for one which is not allowed (``MT-18``)."""
        name = data.decode_name(encoded)
        grant = flow.grant
        resource = name or grant.only_resource
        if resource is None:
            return 400
        if not grant.covers(resource):
            return 403 if grant.profile.knows(grant.session.virtual_host, resource) else 404
        if len(flow.names) >= NAMES_REMEMBERED:
            flow.names.clear()
        flow.names[encoded] = resource
        return resource

    def _refuse_content(self, flow: Flow, sequence: int, code: int) -> None:
        """An invalid Content: Reject, or a Response where it cannot be taken for another's."""
        self.counters["contents_refused"] += 1
        if flow.grant.confirm:
            self._send(flow.peer, flow, data.encode(data.Reject(sequence)))
        elif sequence in flow.commands:
            self._dropped("ambiguous-content")
        else:
            self._respond(flow.peer, flow, sequence, code)

    def _flush(self) -> None:
        """Give the contents of this read out as events, one for each writer."""
        for flow in list(self._written):
            self._flush_writer(flow)

    def _flush_writer(self, flow: WritingFlow) -> None:
        self._written.pop(flow, None)
        sequences, resources, texts, bodies = (
            flow.sequences, flow.resources, flow.texts, flow.bodies,
        )  # fmt: skip
        if not sequences:
            return
        count = len(sequences)
        octets = sum(map(len, bodies)) + sum(map(len, flow.properties))
        octets += count * CONTENT_HEADER_OCTETS_MIN
        self.counters["contents"] += count
        self.counters["octets"] += octets
        flow.session.heard_at = self._now
        place = flow.take()
        if flow.grant.profile.stored:
            self._events.append(
                ContentReceived(flow, place, sequences, resources, texts, bodies, octets)
            )
        else:
            self._settle(flow, place)

    def made_safe(self, flow: WritingFlow, place: int, now: float) -> None:
        """The contents of the event with this place are safe (``MT-19``)."""
        self._now = now
        self._settle(flow, place)

    def not_safe(self, flow: WritingFlow, place: int, now: float) -> None:
        """The contents of the event with this place never will be safe: the flow breaks.

        It takes no more content.  What came before these contents is confirmed when it is safe;
        then they and all behind them are rejected and the flow ends (``MT-19``, ``MT-30``): taking
        what follows would leave a gap.
        """
        self._now = now
        self.counters["slices_not_safe"] += 1
        flow.state = FLOW[flow.state][ContentLost]
        flow.lost_at = place if flow.lost_at is None else min(place, flow.lost_at)
        self._settle(flow, place)

    def _settle(self, flow: WritingFlow, place: int) -> None:
        """Slices become safe in any order; they are confirmed in the order of their arrival."""
        if flow.over:
            return
        confirm: int | None = None
        for settled in flow.window.made_safe(place):
            if settled.place == flow.lost_at:
                self._confirm(flow, confirm)
                self._break(flow)
                return
            self._accept(flow, settled)
            confirm = settled.last_sequence
        if confirm is None:
            return
        if self._stands(flow) and flow.grant.profile.congested(flow):
            flow.withheld = confirm
            self._withheld[flow] = None
        else:
            self._confirm(flow, confirm)

    def _break(self, flow: WritingFlow) -> None:
        """All before what was lost is settled: reject the rest, whatever becomes of it, and end."""
        flow.over = True
        self._confirm_or_reject(flow, data.Reject(flow.last_received, True))
        if self._stands(flow):
            self.counters["flows_broken"] += 1
            self._end_flow(flow)

    def _accept(self, flow: WritingFlow, contents: Slice) -> None:
        """Give safe contents to the profile, run by run of one resource."""
        profile, resources = flow.grant.profile, contents.resources
        start = 0
        for end in range(1, len(resources) + 1):
            if end == len(resources) or resources[end] != resources[start]:
                run = slice(start, end)
                profile.accept(
                    flow,
                    resources[start],
                    list(map(Stored, contents.properties[run], contents.bodies[run])),
                )
                start = end

    def _confirm(self, flow: WritingFlow, sequence: int | None) -> None:
        if sequence is None:
            sequence = flow.withheld
        self._withheld.pop(flow, None)
        flow.withheld = None
        if sequence is not None:
            self._confirm_or_reject(flow, data.Confirm(sequence, True))

    def _confirm_or_reject(self, flow: WritingFlow, command: data.Confirm | data.Reject) -> None:
        """Only confirmed flows which still stand hear of it."""
        if flow.grant.confirm and self._stands(flow):
            self.counters["confirms"] += 1
            self._send(flow.peer, flow, data.encode(command))

    def _stands(self, flow: Flow) -> bool:
        return self._flows.get(flow.peer) is flow

    def _release(self) -> None:
        """A profile has room again: writers whose Confirm was withheld may have it (MT-27)."""
        for flow in list(self._withheld):
            if not flow.grant.profile.congested(flow):
                self._confirm(flow, None)

    # ── messages out ────────────────────────────────────────────────────────────────────────────

    def data_to_send(self) -> tuple[list[list[bytes]], list[list[bytes]]]:
        """What is to be sent now, the peer's identity first: on control, on data sockets."""
        out = self._out_control[:], self._out_data[:]
        # Readers hold on to these lists, so they are emptied and not replaced.
        self._out_control.clear()
        self._out_data.clear()
        return out

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> tuple[list[ServerEvent], float | None]:
        """Do what is due at ``now``: events, and when to call again (None: when something came)."""
        self._now = now
        self._answer_refusals(now)
        for flow in list(self._flows.values()):
            if flow.heard_at + self._liveness <= now and not self._paused:
                self.counters["flows_silent"] += 1
                self._end_flow(flow)
            elif isinstance(flow, ReadingFlow) and flow.last_sent > flow.last_looked_at:
                flow.last_looked_at, flow.sent_at = flow.last_sent, now
            elif flow.sent_at + self._heartbeat <= now:
                self._send(flow.peer, flow, PING)
        for session in self.sessions():
            self._look_after(session, now, not self._paused)
        self._end_unused_leases(now)
        return self._take_events(), self._next_tick(now)

    def _next_tick(self, now: float) -> float | None:
        """Soon enough for refusals and heartbeats; nothing here is worth a finer clock."""
        if not self._sessions:
            return None
        step = min(1.0, self._heartbeat / 2, self._liveness / 4)
        due = min(self._refusals.values(), default=now + step)
        return min(due, now + step)

    def paused(self, now: float) -> None:
        """The data socket is not read from now on: nobody's silence counts."""
        self._paused = True

    def resumed(self, now: float) -> None:
        """The data socket is read again: everybody's silence begins anew."""
        self._paused = False
        for flow in self._flows.values():
            flow.heard_at = max(flow.heard_at, now)
