"""The broker's machine is above its sockets: frames in, frames out, with the time as an argument.

It is the whole broker, and no single connection, because its sockets are.  A session is known by
the control connection that opened it, a flow by the data connection that showed the lease; a flow
ends with its connection, and a session with the last of its connections (``MT-30``).

Answer :class:`AuthenticationRequested` with ``challenge``, ``authorize`` or ``refuse``, now or
later.  ``blocked(peer)`` and ``unblocked(peer)`` say whose socket takes no more,
``peer_lost(peer)`` who is given up because of that; ``leaving(peer)`` when a connection has ended,
``left(peers, now)`` when all of it was read.  Ill-formed messages are dropped and counted in
``counters`` under ``dropped:REASON``.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from ...core.connection import WorkLost
from ..terms import BURST, FLOW, REFUSALS, FlowState, Step
from ..wire import LEASE_RESOURCES, data
from ..wire.data import (
    CONTENT,
    CONTENT_HEADER_BYTES_MIN,
    EMPTY,
    PING,
    PONG,
    SEQUENCE_BYTES,
    IllFormed,
)
from .flows import (
    ContentReceived,
    Flow,
    Position,
    ReadingFlow,
    ServerEvent,
    Session,
    Slice,
    Stored,
    WritingFlow,
    decided,
    names_weight,
)
from .sessions import Arrival, Channel, Outputs, Sessions

SETTLING: Final = (data.Confirm, data.Reject)
"""Only these are obeyed of a connection that has ended: it had those contents."""


class Server(Sessions):
    """The broker's machine: sessions, leases, flows, profiles.

    Serves ``MT-01`` … ``MT-22`` and ``MT-25`` … ``MT-30`` above the sockets.  A method of a profile
    that raises for a reader ends that flow: nobody knows what the profile still has of it.  What it
    had goes back, and its client begins anew with another lease.

    Attributes:
        counters: plain integers by name, for metrics.
        data_port: what a 202 reply says.
        moved_at: when a part of a message went through last, to or from a peer; the caller may say
            so, as a function of the peer.  While one does, its silence means nothing.
        profiles: by name.
    """

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def no_partial_input(self) -> bool:
        return True  # ZeroMQ's messages come whole

    @property
    def finished(self) -> bool:
        return self._closed or (
            self._draining
            and not any(type(f) is WritingFlow and f.window.unsafe for f in self._flows.values())
        )

    @property
    def state(self) -> str:
        return "closed" if self._closed else "draining" if self._draining else "open"

    def has_flow(self, peer: bytes) -> bool:
        """Return whether the connection of this name has opened a flow with a lease."""
        return peer in self._flows

    def snapshot(self) -> dict[str, object]:
        """Return the broker's figures as plain values; no identity and no lease is among them."""
        flows = self._flows.values()
        nothing: dict[str, object] = {}
        return {
            "sessions": len(self._sessions),
            "leases": len(self._leases),
            "readers": sum(type(flow) is ReadingFlow for flow in flows),
            "writers": sum(type(flow) is WritingFlow for flow in flows),
            "profiles": {
                name: self._ask(nothing, profile.snapshot)
                for name, profile in self.profiles.items()
            },
        }

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: Arrival, now: float) -> list[ServerEvent]:
        if self._closed:
            return []
        channel, messages = inputs.channel, inputs.messages
        self._now = now
        self._peers = inputs.peers
        flows = self._flows
        if channel is Channel.CONTROL:
            for parts in messages:
                self._control(parts)
            return self._take_events()
        shared = channel is Channel.SHARED
        for parts in messages:
            if len(parts) == 3:
                peer, header, body = parts
                flow = flows.get(peer)
                try:
                    if type(flow) is not WritingFlow or header[:1] != CONTENT or flow.lost_at:
                        self._data(peer, flow, data.decode(header, body))
                    else:
                        self._content(flow, header, body)
                except IllFormed as error:
                    self._ill_formed(flow, header, error.reason)
            else:
                peer, header, *_ = *parts, b""
                flow = flows.get(peer)
                if shared and not (type(flow) is WritingFlow and header[:1] == CONTENT):
                    self._control(parts)
                else:
                    self._ill_formed(flow, header, "frames")
        self._flush()
        return self._take_events()

    # ── the ends ────────────────────────────────────────────────────────────────────────────────

    def peer_lost(self, peer: bytes, now: float) -> list[ServerEvent]:
        """Abandon this connection: what it owns ends at once (``MT-21``, ``MT-24``)."""
        flow = self._flows.get(peer)
        if flow is not None:
            self.counters["flows_lost"] += 1
            self._end_flow(flow)
        session = self._sessions.get(peer)
        if session is not None:
            self._end_session(session, "lost")
        return self._take_events()

    def drain(self, now: float) -> list[ServerEvent]:
        """Prepare to stop: the server is ``finished`` when everything accepted is answered.

        Profiles are told: what is not confirmed comes again, to the next server.
        """
        self._draining = True
        for profile in self.profiles.values():
            profile.draining = True
        self._release()
        return []

    def lost(self, now: float) -> list[ServerEvent | WorkLost]:
        self._closed = True
        for session in self.sessions():
            self._end_session(session, "closed")
        self.deadlines.clear_all()
        self._out_control.clear()
        self._out_data.clear()
        return [*self._take_events()]

    # ── messages out ────────────────────────────────────────────────────────────────────────────

    def outputs(self) -> Outputs:
        out = self._out_control[:], self._out_data[:]
        # Readers hold on to these lists, so they are emptied and not replaced.
        self._out_control.clear()
        self._out_data.clear()
        return out

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> list[ServerEvent]:
        self._now = now
        super().advance(now)
        return self._take_events()

    def _due(self, key: Any, now: float, events: list[ServerEvent]) -> None:
        if isinstance(key, Session):
            if not key.ended:
                self._look_after_session(key, now)
        elif isinstance(key, Flow):
            if self._stands(key):
                self._look_after_flow(key, now)
        elif key.token in self._leases:
            self._end_unused(key)

    def paused(self, now: float) -> list[ServerEvent]:
        self._resumed_at = inf
        return []

    def resumed(self, now: float) -> list[ServerEvent]:
        self._resumed_at = now
        return []

    # ── commands ──────────────────────────────────────────────────────────────────────────────────

    def _data(self, peer: bytes, flow: Flow | None, command: data.DataCommand) -> None:
        kind = type(command)
        if peer in self._leaving and kind not in SETTLING:
            self._dropped("left")
            return
        if flow is not None:
            flow.heard_at = self._now
        state = FlowState.UNLEASED if flow is None else flow.state
        if flow is None and isinstance(command, data.Lease):
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

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────

    def _end_flow(self, flow: Flow) -> None:
        """The flow is over: its unconfirmed content is recycled (``MT-21``, ``MT-30``)."""
        del self._flows[flow.peer]
        self.deadlines.clear(flow)
        del flow.session.flows[flow.peer]
        profile = flow.grant.profile
        if isinstance(flow, ReadingFlow):
            flow.blocked = True
            self._exhausted.pop(flow, None)
            self._ask(None, profile.gone, flow, flow.drain(), self._closed or not flow.summoned)
            flow.summoned.clear()
        else:
            assert isinstance(flow, WritingFlow)
            # What came before the end is still content.
            self._flush_writer(flow)
            self._withheld.pop(flow, None)
        flow.session.kept.remove(flow.grant.nbytes)
        self._end_if_left(flow.session)

    def _end_failed(self, flow: Flow, error: BaseException) -> None:
        self._profile_failed(error)
        if self._stands(flow):
            self._end_flow(flow)

    # ── writers ───────────────────────────────────────────────────────────────────────────────────

    def _content(self, flow: WritingFlow, header: bytes, body: bytes) -> None:
        """Follow one Content of a writer: this is the hot path (``MT-18``)."""
        size = len(header)
        end = 10 + header[9] if size >= CONTENT_HEADER_BYTES_MIN else size
        if size < end + 4:
            raise IllFormed("header-length", "the header ends within its fields")
        (sequence,) = data.read_sequence(header)
        encoded = header[10:end]
        properties, texts = header[end:], None
        if properties != EMPTY:
            texts = data.as_texts(properties)
        resource = flow.resource if encoded == flow.name else self._resource(flow, encoded)
        flow.heard_at = self._now
        if sequence <= flow.last_received:
            self._refuse_content(flow, sequence, 400)
            return
        flow.last_received = sequence
        if type(resource) is int:
            self._refuse_content(flow, sequence, resource)
            return
        profile = flow.grant.profile
        nbytes = size + len(body)
        if profile.bounded and not self._ask(False, profile.has_room, flow, resource, nbytes):
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

    def _ill_formed(self, flow: Flow | None, header: bytes, reason: str) -> None:
        """Drop a message; reject a Content; if it is unnumbered, end the flow (``MT-13``)."""
        self._dropped(reason)
        if not isinstance(flow, WritingFlow) or header[:1] != CONTENT:
            return
        flow.heard_at = self._now
        if not flow.grant.confirm:
            return
        if len(header) < SEQUENCE_BYTES:
            self.counters["flows_broken"] += 1
            self._end_flow(flow)
            return
        (sequence,) = data.read_sequence(header)
        flow.last_received = max(flow.last_received, sequence)
        self._refuse_content(flow, sequence, 400)

    def _resource(self, flow: WritingFlow, encoded: bytes) -> Any:
        """Return the resource of this name, or the code for one that is not allowed (``MT-18``)."""
        name = data.decode_name(encoded)
        grant = flow.grant
        resource = name or grant.only_resource
        if resource is None:
            return 400
        try:
            if not grant.covers(resource):
                return 403 if grant.profile.knows(grant.session.virtual_host, resource) else 404
        except BaseException as error:
            self._profile_failed(error)
            return 403
        if not (grant.resources or self._may(grant.session, False, resource)):
            return 403
        flow.name, flow.resource = encoded, resource
        return resource

    def _refuse_content(self, flow: Flow, sequence: int, code: int) -> None:
        """Answer with Reject, or with a Response where that cannot be mistaken for another's."""
        self.counters["contents_refused"] += 1
        if flow.grant.confirm:
            self._send(flow.peer, None, data.encode(data.Reject(sequence)))
        elif sequence in flow.commands:
            self._dropped("ambiguous-content")
        else:
            self._respond(flow.peer, flow, sequence, code)

    def _flush(self) -> None:
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
        nbytes = sum(map(len, bodies)) + sum(map(len, flow.properties))
        nbytes += count * CONTENT_HEADER_BYTES_MIN
        self.counters["contents"] += count
        self.counters["bytes"] += nbytes
        flow.session.heard_at = self._now
        profile = flow.grant.profile
        envelopes = None
        if profile.enveloped:
            try:
                envelopes = profile.envelopes(flow, resources, flow.properties)
                if envelopes is not None and len(envelopes) != count:
                    raise ValueError(f"{len(envelopes)} envelopes for {count} contents")
            except BaseException as error:
                self._profile_failed(error)
                self.counters["contents_lost_by_profile"] += count
                flow.discard()
                for sequence in sequences:
                    self._refuse_content(flow, sequence, 403)
                return
        position = flow.take()
        if profile.stored:
            self._events.append(
                ContentReceived(
                    flow, (flow, position), sequences, resources, texts, bodies, nbytes, envelopes
                )
            )
        else:
            self._settle(flow, position)

    def made_safe(self, position: Position, now: float) -> list[ServerEvent]:
        self._settle(*position)
        return self._take_events()

    def not_safe(self, position: Position, now: float) -> list[ServerEvent]:
        """Break the flow, because the contents of the event with this position never will be safe.

        It accepts no more content.  What came before these contents is confirmed when it is safe;
        then they and all behind them are rejected and the flow ends (``MT-19``, ``MT-30``): taking
        what follows would leave a gap.
        """
        flow, end = position
        flow.state = FLOW[flow.state][Step.CONTENT_LOST]
        flow.lost_at = min(end, flow.lost_at or end)
        self._settle(flow, end)
        return self._take_events()

    def _settle(self, flow: WritingFlow, position: int) -> None:
        """Slices become safe in any order; they are confirmed in the order of their arrival."""
        if flow.over:
            return
        for settled in flow.window.made_safe(position):
            if settled.position == flow.lost_at:
                self._confirm(flow)
                self._break(flow)
                return
            self._accept(flow, settled)
        if flow.withheld is None:
            return
        if self._stands(flow) and self._congested(flow):
            self._withheld[flow] = None
        else:
            self._confirm(flow)

    def _break(self, flow: WritingFlow) -> None:
        """Reject the rest and end, since everything before what was lost is settled."""
        flow.over = True
        self._confirm_or_reject(flow, data.Reject(flow.last_received, True))
        if self._stands(flow):
            self.counters["flows_broken"] += 1
            self._end_flow(flow)

    def _accept(self, flow: WritingFlow, contents: Slice) -> None:
        """Hand on safe contents by resource; reject before a Confirm what fails (``MT-20``)."""
        profile, resources, sequences = flow.grant.profile, contents.resources, contents.sequences
        refused: bool | None = False
        start = 0
        for end in range(1, len(resources) + 1):
            if end == len(resources) or resources[end] != resources[start]:
                run = slice(start, end)
                stored = list(map(Stored, contents.properties[run], contents.bodies[run]))
                if (
                    self._ask(refused, profile.accept, flow, resources[start], stored)
                    is not refused
                ):
                    flow.withheld = sequences[end - 1]
                else:
                    self.counters["contents_lost_by_profile"] += end - start
                    for sequence in sequences[run]:
                        self._confirm_or_reject(flow, data.Reject(sequence))
                start = end

    def _confirm(self, flow: WritingFlow) -> None:
        self._withheld.pop(flow, None)
        sequence, flow.withheld = flow.withheld, None
        if sequence is not None:
            self._confirm_or_reject(flow, data.Confirm(sequence, True))

    def _confirm_or_reject(self, flow: WritingFlow, command: data.Confirm | data.Reject) -> None:
        if flow.grant.confirm and self._stands(flow):
            self.counters["confirms"] += 1
            self._send(flow.peer, None, data.encode(command))

    def _stands(self, flow: Flow) -> bool:
        return self._flows.get(flow.peer) is flow

    def _release(self) -> None:
        for flow in list(self._withheld):
            if not self._congested(flow):
                self._confirm(flow)

    def _congested(self, flow: WritingFlow) -> bool:
        return self._ask(True, flow.grant.profile.congested, flow)

    # ── readers ───────────────────────────────────────────────────────────────────────────────────

    @property
    def more_to_send(self) -> bool:
        """Tell whether to call ``refill(now)`` soon, when the sockets have sent what waits."""
        return bool(self._exhausted)

    def _read(self, flow: ReadingFlow, command: Any) -> None:
        profile = flow.grant.profile
        match command:
            case data.Summon():
                self._summon(flow, command)
            case data.Dismiss():
                flow.commands.append(command.sequence)
                summoned = command.resource in flow.summoned
                if summoned:
                    try:
                        profile.dismiss(flow, command.resource)
                    except BaseException as error:
                        self._respond(flow.peer, flow, command.sequence, 400)
                        del flow.summoned[command.resource]
                        self._end_failed(flow, error)
                        return
                    del flow.summoned[command.resource]
                    nbytes = names_weight([command.resource])
                    flow.grant.nbytes -= nbytes
                    flow.session.kept.remove(nbytes)
                self._respond(flow.peer, flow, command.sequence, 200 if summoned else 400)
            case data.Confirm() | data.Reject():
                settled = None
                if flow.grant.confirm:
                    settled = flow.settle(command.sequence, command.multiple)
                if settled is None:
                    self._dropped("nothing-to-settle")
                    return
                try:
                    if isinstance(command, data.Reject):
                        profile.rejected(flow, settled, command.recycle)
                    else:
                        profile.confirmed(flow, settled)
                except BaseException as error:
                    flow.restore(settled)
                    self._end_failed(flow, error)
                self._offer(flow)

    def _summon(self, flow: ReadingFlow, command: Any) -> None:
        """Follow a Summon (``MT-16``); the Response is sent before any content (``MT-18``)."""
        flow.commands.append(command.sequence)
        resource, profile = command.resource, flow.grant.profile
        nbytes = names_weight([resource])
        covered = bool(resource) and self._ask(False, flow.grant.covers, resource)
        try:
            refused = (
                resource in flow.summoned
                or not covered
                or not (flow.grant.resources or self._may(flow.session, True, resource))
                or len(flow.summoned) >= LEASE_RESOURCES
                or not self._may_keep(flow.session, nbytes, "resource")
                or not decided(profile.summon(flow, resource))
            )
        except BaseException as error:
            self._respond(flow.peer, flow, command.sequence, 400)
            # Perhaps it has begun to serve it: it is told that this is over.
            flow.summoned[resource] = data.encode_name(resource)
            self._end_failed(flow, error)
            return
        if refused:
            self._respond(flow.peer, flow, command.sequence, 400)
            return
        flow.summoned[resource] = data.encode_name(resource)
        flow.grant.nbytes += nbytes
        flow.session.kept.add(nbytes)
        self._respond(flow.peer, flow, command.sequence, 200)
        self._offer(flow)

    def _offer(self, flow: ReadingFlow) -> None:
        if self._stands(flow):
            try:
                flow.grant.profile.ready(flow)
            except BaseException as error:
                self._end_failed(flow, error)

    def _refill(self, flow: ReadingFlow) -> None:
        flow.burst = BURST
        self._offer(flow)

    def refill(self, now: float) -> None:
        """Send more to readers that have used up what they were sent at once."""
        exhausted = list(self._exhausted)
        self._exhausted.clear()
        for flow in exhausted:
            self._refill(flow)

    def blocked(self, peer: bytes) -> None:
        """Note that the socket takes no more for this peer now."""
        flow = self._flows.get(peer)
        if isinstance(flow, ReadingFlow):
            flow.blocked = True

    def unblocked(self, peer: bytes, now: float) -> None:
        """The socket has sent what waited for this peer."""
        flow = self._flows.get(peer)
        if isinstance(flow, ReadingFlow) and flow.blocked:
            flow.blocked = False
            self._refill(flow)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def _look_after_flow(self, flow: Flow, now: float) -> None:
        """Ping who was sent nothing that is answered; end who is silent too long (``MT-21``)."""
        if self._heard(flow) + self._liveness <= now:
            self.counters["flows_silent"] += 1
            self._end_flow(flow)
            return
        if flow in self._withheld and not self._congested(flow):
            self._confirm(flow)  # the profile could not say when it was asked
        if flow.sent_at + self._heartbeat <= now:
            self._send(flow.peer, flow, PING)
        self._watch_flow(flow)
