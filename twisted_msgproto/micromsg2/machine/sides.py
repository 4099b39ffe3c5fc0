"""The two sides of a connection differ in the handshake (``MM-02`` … ``MM-07``)."""

from __future__ import annotations

from ...core.connection import WorkLost
from ...core.kept import KEPT_LIMIT, Keeping, Kept
from ...core.limits import Limits
from ..terms import CLIENT, SERVER, Event, Opened, Side
from ..wire import LIMIT_EXCEEDED, Handshake, encode_handshake
from . import negotiation
from .negotiation import Disagreement, Proposal
from .session import Session


class Client(Session):
    """The side that connects: it opens the handshake and closes it."""

    __slots__ = ()

    def __init__(self, proposal: Proposal | None = None, limits: Limits | None = None) -> None:
        super().__init__(CLIENT, Side.IDLE, proposal, limits, handshakes=1)

    def open(self) -> None:
        """Send the opening handshake; IllegalTransition the second time."""
        self._machine.step(Opened)
        self._out.append(encode_handshake(self.proposal.opening()))

    def _receive_handshake(self, frame: Handshake) -> None:
        last = negotiation.closing(frame, self.proposal, self.limits)
        self._out.append(encode_handshake(last))
        self._establish(last)


class Server(Session):
    """The side that accepts: it answers the handshake and checks its end."""

    __slots__ = ("_asked", "_every", "_keeping")

    def __init__(
        self,
        proposal: Proposal | None = None,
        limits: Limits | None = None,
        every: Kept | None = None,
    ) -> None:
        """Make a server's machine; ``proposal`` is what we require, suggest and know, by default
        everything we know.

        ``every`` counts what all sessions keep; without it this one has no bound.
        """
        super().__init__(SERVER, Side.OPENING, proposal, limits, handshakes=2)
        self._asked: negotiation.Asked | None = None
        self._every = every
        self._keeping: Keeping | None = None  # most sessions keep nothing

    def _receive_handshake(self, frame: Handshake) -> None:
        if self._asked is None:
            reply = negotiation.answer(frame, self.proposal, self.limits)
            self._out.append(encode_handshake(reply))
            self._asked = negotiation.asked(frame, reply, self.proposal.known)
        else:
            negotiation.check_closing(self._asked, frame, self.proposal, self.limits)
            self._asked = None
            self._keep(negotiation.kept_octets(frame, self.proposal.known))
            self._establish(frame)

    def _keep(self, octets: int) -> None:
        if octets:
            self._keeping = Keeping(self._every)
            if not self._keeping.take(octets):
                raise Disagreement(LIMIT_EXCEEDED, f"too many properties: {KEPT_LIMIT}")

    def lost(self, now: float) -> list[Event | WorkLost]:
        if self._keeping is not None:
            self._keeping.clear()
        return super().lost(now)
