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

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from ...core.connection import WorkLost
from ...core.kept import Kept
from ...core.limits import Limits
from ..terms import SERVER_LIMITS
from ..wire.data import IllFormed
from .content import DataFlows
from .flows import Flow, Profile, ReadingFlow, ServerEvent, Session, WritingFlow
from .sessions import (
    Arrival,
    Channel,
    May,
    Outputs,
    everything,
)


class Server(DataFlows):
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
        data_port: int = 0,
        counters: dict[str, int] | None = None,
        may: May = everything,
        every: Kept | None = None,
    ) -> None:
        """Make a broker.

        ``random(n)`` returns n bytes that nobody can foresee.  ``mechanisms`` empty: clients need
        not authenticate.  ``virtual_hosts`` None: any.  ``may(session, reads, resource)`` says
        what clients may do: it is asked for each lease's resources, and where a lease is for all,
        for each that is summoned or written to.  ``every`` bounds what the sessions of the process
        keep for their peers.
        """
        limits = Limits.of(SERVER_LIMITS) if limits is None else limits
        super().__init__(
            profiles,
            limits,
            random=random,
            session_names=session_names,
            mechanisms=mechanisms,
            virtual_hosts=virtual_hosts,
            data_port=data_port,
            counters=counters,
            may=may,
            every=every,
        )
        self._draining = False
        self._closed = False

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def whole(self) -> bool:
        """ZeroMQ's messages come whole."""
        return True

    @property
    def finished(self) -> bool:
        """Return whether the server was closed, or drained and everything accepted is answered."""
        return self._closed or (
            self._draining
            and not any(type(f) is WritingFlow and f.window.unsafe for f in self._flows.values())
        )

    @property
    def state(self) -> str:
        """Return where the broker stands: ``open``, ``draining`` or ``closed``."""
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
        """Read what a socket delivered at ``now``."""
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
                flow = flows.get(parts[0])
                if type(flow) is WritingFlow and parts[1][:1] == b"\x05" and flow.lost_at is None:
                    try:
                        self._content(flow, parts[1], parts[2])
                    except IllFormed as error:
                        self._ill_formed_content(flow, parts[1], error.reason)
                else:
                    self._data(parts[0], flow, parts[1], parts[2])
            elif len(parts) > 1 and self._is_content(flow := flows.get(parts[0]), parts[1]):
                assert isinstance(flow, WritingFlow)
                self._ill_formed_content(flow, parts[1], "frames")
            elif shared:
                self._control(parts)
            else:
                self._dropped("frames")
        self._flush()
        return self._take_events()

    # ── the ends ────────────────────────────────────────────────────────────────────────────────

    def peer_lost(self, peer: bytes, now: float) -> list[ServerEvent]:
        """Abandon this connection: what it owns ends at once (``MT-21``, ``MT-24``)."""
        self._now = now
        flow = self._flows.get(peer)
        if flow is not None:
            self.counters["flows_lost"] += 1
            self._end_flow(flow)
        session = self._sessions.get(peer)
        if session is not None:
            self._end_session(session, "lost")
        return self._take_events()

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
        self._now = now
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

    def close(self, now: float) -> list[ServerEvent]:
        """End every session."""
        self._now = now
        self._closing = True
        for session in self.sessions():
            self._end_session(session, "closed")
        self._closing = False
        return self._take_events()

    def drain(self, now: float) -> list[ServerEvent]:
        """Prepare to stop: the server is ``finished`` when everything accepted is answered."""
        self._draining = True
        return []

    def lost(self, now: float) -> list[ServerEvent | WorkLost]:
        """The server stops: every session ends, and nothing is read or sent any more."""
        ended = self.close(now)
        self._closed = True
        self.deadlines.clear_all()
        self._out_control.clear()
        self._out_data.clear()
        return [*ended]

    # ── messages out ────────────────────────────────────────────────────────────────────────────

    def outputs(self) -> Outputs:
        """What is to be sent now, the peer's identity first: on control, on data sockets."""
        out = self._out_control[:], self._out_data[:]
        for flow in self._stirred:
            flow.sent_at = self._now
        self._stirred.clear()
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
        """The data socket is not read from now on: nobody's silence counts."""
        self._now = now
        self._paused = True
        return []

    def resumed(self, now: float) -> list[ServerEvent]:
        """The data socket is read again: everybody's silence begins anew."""
        self._now = self._resumed_at = now
        self._paused = False
        return []
