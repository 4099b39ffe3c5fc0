"""A UMQ session serves the peer's calls in turns, so that nobody waits long for the others.

One read may bring hundreds of calls, each of which an application answers in a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from sys import getsizeof
from typing import Any, Final

from twisted.internet.defer import Deferred

from ...net.turns import Turn
from ..terms import CallbackReceived, CallReceived, CallsSafe
from .answering import Answering

SERVING: Final = "serving"
"""A connection is not read for this reason while what came before is still to be followed."""


class Serving(Answering):
    """The part of a session which serves calls for one turn of the reactor at most."""

    _ready: list[CallReceived | CallbackReceived] | None = None  # safe calls of the next turn
    _rest: Iterator[Any] | None = None  # what else came, in order: a part of one read, mostly
    _serving: Any = None  # the call of the clock that goes on with them
    _holds: tuple[Deferred[Any], ...] = ()  # they have to fire before the next call is served
    _restOctets = 0  # what the reads take of which the rest is a part
    _restKept = 0  # as much of it as ``machine.kept`` counts now

    def serveAfter(self, done: Deferred[Any]) -> None:
        """Serve no more calls of this peer, and do not read it, before ``done`` has fired.

        Otherwise calls that come behind one with a late answer may pass it.  Answers are sent as
        ever, that of the call which waits for ``done`` among them.  ``done`` must not wait for what
        this peer has still to send, such as the answer to a call of ours.  If the session ends
        first, ``done`` is cancelled.
        """
        self._holds += (done,)
        if self._rest is None:
            self._rest = iter(())
        self._control.pause(SERVING)
        done.addBoth(self._serveAgain, done)
        self._keepRest()

    def _serveAgain(self, result: Any, done: Deferred[Any]) -> Any:
        self._holds = tuple(held for held in self._holds if held is not done)
        if not self._ended:
            self._keepRest()
            self._serveLater()
        return result

    def _keepRest(self) -> None:
        """Count what came behind a call that is held, for as long as an application wants."""
        if self._rest is None:
            self._restOctets = 0
        octets = self._restOctets if self._holds else 0
        if octets != self._restKept:
            kept = self.machine.kept
            kept.remove(self._restKept)
            kept.add(octets)
            self._restKept = octets

    def _restCame(self, inputs: Sequence[Any]) -> None:
        self._restOctets += sum(map(getsizeof, inputs))
        self._keepRest()

    def _goOn(self, events: Iterator[Any]) -> None:
        raise NotImplementedError

    def _followInTurns(self, events: Iterator[Any], before: bool = False) -> None:
        """Follow events while there is time, and the rest in the next turns; reading waits for it.

        ``before``: they came before those that wait already.
        """
        rest = self._rest
        if rest is None:
            self._follow(self._whileTime(events))
        else:
            self._rest = chain(events, rest) if before else chain(rest, events)

    def _whileTime(self, events: Iterator[Any]) -> Iterator[Any]:
        """Yield events as long as a turn lasts; what is left waits.

        The clock counts what other processes take as well, but to ask for CPU time after each event
        would cost a twentieth of everything.
        """
        turn = Turn(self._now)
        for event in events:
            yield event
            if (self._holds or turn.over()) and not (self._ended or self.machine.closed):
                rest = self._rest  # after a hold there is one: it came before
                self._rest = events if rest is None else chain(rest, events)
                self._control.pause(SERVING)
                self._serveLater()
                return

    def _onCallsSafe(self, event: CallsSafe) -> None:
        """Serve the calls that are safe, as many as one turn has time for, in their order.

        One read may bring a thousand, each to be sent on to a thousand subscribers.
        """
        if self._ready is not None:
            self._ready += event.calls
            return
        if self._holds:
            self._ready = list(event.calls)
            return
        calls = event.calls
        turn = Turn(self.factory.spent) if len(calls) > 1 else None
        for served, call in enumerate(calls, 1):
            self._serve(call)
            if turn and served < len(calls) and (self._holds or turn.over()):
                self._ready = list(calls[served:])
                self._serveLater()
                return

    def _serveLater(self) -> None:
        if self._serving is None:
            self._serving = self.factory.clock.callLater(0, self._serveReady)

    def _serveReady(self) -> None:
        """Go on in a turn of its own: with the calls that are safe, then with what else came."""
        self._serving = None
        if self._holds:
            return  # the last of them asks for another turn
        self._time()
        if self._ready:
            calls, self._ready = self._ready, None
            self._followAlone([CallsSafe(calls)])
        elif self._rest is not None:
            events, self._rest = self._rest, None
            self._goOn(self._whileTime(events))
            self._keepRest()
        if self._ready or self._rest is not None:
            self._serveLater()
        elif not self._ended:
            self._control.resume(SERVING)

    def _serveNoMore(self) -> None:
        self._ready = self._rest = None
        self._keepRest()
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        for done in self._holds:
            done.cancel()
