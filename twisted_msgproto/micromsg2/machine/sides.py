"""The two sides of a connection differ in the handshake (``MM-02`` … ``MM-07``)."""

from __future__ import annotations

from ...core.limits import Limits
from ..terms import CLIENT, SERVER, Opened, Side
from ..wire import Handshake, encode_handshake
from . import negotiation
from .negotiation import Proposal
from .session import Session


class Client(Session):
    """Is the side that connects: it opens the handshake and closes it."""

    __slots__ = ()

    def __init__(self, proposal: Proposal | None = None, limits: Limits | None = None) -> None:
        """Make a client's machine; ``proposal`` is what we require and offer, by default
        nothing.
        """
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
    """Is the side that accepts: it answers the handshake and checks its end."""

    __slots__ = ("_asked",)

    def __init__(self, proposal: Proposal | None = None, limits: Limits | None = None) -> None:
        """Make a server's machine; ``proposal`` is what we require, suggest and know, by default
        everything we know.
        """
        super().__init__(SERVER, Side.OPENING, proposal, limits, handshakes=2)
        self._asked: negotiation.Asked | None = None

    def _receive_handshake(self, frame: Handshake) -> None:
        if self._asked is None:
            reply = negotiation.answer(frame, self.proposal, self.limits)
            self._out.append(encode_handshake(reply))
            self._asked = negotiation.asked(frame, reply, self.proposal.known)
        else:
            negotiation.check_closing(self._asked, frame, self.proposal, self.limits)
            self._asked = None
            self._establish(frame)
