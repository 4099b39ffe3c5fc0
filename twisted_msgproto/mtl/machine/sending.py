"""A broker serves readers: it follows what they summon, confirm and reject, and whether they have
space.

:class:`Readers` stands between :class:`.Writers` and :class:`.Server`; the duties of a caller are
those of :mod:`.server`.
"""

from __future__ import annotations

from typing import Any

from ..wire import data
from ..wire.control import LEASE_RESOURCES
from .flows import ReadingFlow, name_weight
from .receiving import Writers


class Readers(Writers):
    """The reading half of the data flows.

    A method of a profile that raises for a reader ends that flow: nobody knows what the profile
    still has of it.  What it had goes back, and its client begins anew with another lease.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._exhausted: dict[ReadingFlow, None] = {}  # readers that used their burst up
        self._out_data: list[list[bytes]] = []
        self._stirred: dict[ReadingFlow, None] = {}  # readers that were sent content

    @property
    def more_to_send(self) -> bool:
        """Tell whether readers have space for more: then call ``refill(now)`` soon, when the
        sockets have sent what waits.
        """
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
                    except Exception as error:
                        self._respond(flow.peer, flow, command.sequence, 400)
                        del flow.summoned[command.resource]
                        self._end_failed(flow, error)
                        return
                    del flow.summoned[command.resource]
                    flow.octets -= name_weight(command.resource)
                    flow.session.kept.remove(name_weight(command.resource))
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
                except Exception as error:
                    flow.restore(settled)
                    self._end_failed(flow, error)
                self._offer(flow)

    def _summon(self, flow: ReadingFlow, command: Any) -> None:
        """Follow a Summon (``MT-16``); the Response is sent before any content (``MT-18``)."""
        flow.commands.append(command.sequence)
        resource, profile = command.resource, flow.grant.profile
        octets = name_weight(resource)
        covered = bool(resource) and self._ask(False, flow.grant.covers, resource)
        try:
            refused = (
                resource in flow.summoned
                or not covered
                or not (flow.grant.resources or self._may(flow.session, True, resource))
                or len(flow.summoned) >= LEASE_RESOURCES
                or not self._may_keep(flow.session, octets, "resource")
                or not profile.summon(flow, resource)
            )
        except Exception as error:
            self._respond(flow.peer, flow, command.sequence, 400)
            # Perhaps it has begun to serve it: it is told that this is over.
            flow.summoned[resource] = data.encode_name(resource)
            self._end_failed(flow, error)
            return
        if refused:
            self._respond(flow.peer, flow, command.sequence, 400)
            return
        flow.summoned[resource] = data.encode_name(resource)
        flow.octets += octets
        flow.session.kept.add(octets)
        self._respond(flow.peer, flow, command.sequence, 200)
        self._offer(flow)

    def _offer(self, flow: ReadingFlow) -> None:
        if self._stands(flow):
            try:
                flow.grant.profile.ready(flow)
            except Exception as error:
                self._end_failed(flow, error)

    def _refill(self, flow: ReadingFlow) -> None:
        """The socket took what was sent: the next burst may come."""
        flow.burst = flow.burst_limit
        self._offer(flow)

    def refill(self, now: float) -> None:
        """Let unconfirmed readers have their next burst, because the sockets have sent what
        waited.
        """
        self._now = now
        exhausted = list(self._exhausted)
        self._exhausted.clear()
        for flow in exhausted:
            self._refill(flow)

    def blocked(self, peer: bytes) -> None:
        """Note that the socket accepts no more for this peer: no content for it until
        ``unblocked``.
        """
        flow = self._flows.get(peer)
        if isinstance(flow, ReadingFlow):
            flow.blocked = True

    def unblocked(self, peer: bytes, now: float) -> None:
        """Note that the socket accepts more for this peer again."""
        self._now = now
        flow = self._flows.get(peer)
        if isinstance(flow, ReadingFlow) and flow.blocked:
            flow.blocked = False
            self._refill(flow)
