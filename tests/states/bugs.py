"""Bugs planted on purpose in machines: a harness that does not catch them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tests.sim.bugs import LUMBERJACK_BUGS, SHARED_BUGS
from tests.sim.mtl import MTL_BUGS
from twisted_msgproto.core.deadlines import Deadlines
from twisted_msgproto.core.machine import ReceiveWindow
from twisted_msgproto.lumberjack.machine import Reader
from twisted_msgproto.micromsg2.machine.sides import Session
from twisted_msgproto.queue import recovery
from twisted_msgproto.sabc.machine.sides import Side
from twisted_msgproto.spark.loop import Loop
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.umq.machine.sides import Peer

Bug = Callable[[], AbstractContextManager[object]]


def keepalive_is_forgotten() -> AbstractContextManager[object]:
    """Lumberjack: a reader whose sink is slow says nothing."""
    return mock.patch.object(Reader, "_look_at_waiting", lambda self, now: None)


def acknowledges_what_arrived() -> AbstractContextManager[object]:
    """MicroMsg2: an ack covers what has come, not what is safe."""
    write = Session._write_ack

    def careless(self: Session) -> None:
        self._window.safe = self._window.received
        write(self)

    return mock.patch.object(Session, "_write_ack", careless)


def numbers_end_early() -> AbstractContextManager[object]:
    """MicroMsg2: an ack's number is wrong by one behind the end of the numbers."""
    write = Session._write_ack

    def wrapping(self: Session) -> None:
        before = len(self._out)
        write(self)
        if len(self._out) > before and self._window.safe > 65_535:
            number = int.from_bytes(self._out[-1][-2:], "big") - 1
            self._out[-1] = self._out[-1][:-2] + max(number, 0).to_bytes(2, "big")

    return mock.patch.object(Session, "_write_ack", wrapping)


def answers_before_safe() -> AbstractContextManager[object]:
    """sABC: a batch that is lost is answered like one that is safe."""
    return mock.patch.object(Side, "not_safe", Side.made_safe)


def forgets_a_waiter() -> AbstractContextManager[object]:
    """sABC: the newest request is forgotten when the connection is lost."""
    lost = Side.lost

    def forgetful(self: Any, now: float) -> list[Any]:
        events = lost(self, now)
        for event in events:
            event.work = event.work[:-1]
        return events

    return mock.patch.object(Side, "lost", forgetful)


def timer_stays() -> AbstractContextManager[object]:
    """UMQ (and others): a deadline stays when the connection is lost."""
    return mock.patch.object(Deadlines, "clear_all", lambda self: None)


def refuses_and_answers() -> AbstractContextManager[object]:
    """UMQ: calls that are not stored are answered as if they were."""

    def careless(self: Peer, place: Any, now: float) -> list[Any]:
        for call in place:
            self.result(call.id, call.payload, call.attachments)
        return []

    return mock.patch.object(Peer, "not_safe", careless)


def safe_in_any_order() -> AbstractContextManager[object]:
    """Lumberjack: a slice that becomes safe makes all before it safe."""

    def made_safe(self: ReceiveWindow[Any], place: int) -> list[Any]:
        self._open = [end for end in self._open if end > place]
        self.safe = max(self.safe, place)
        return self.due()

    return mock.patch.object(ReceiveWindow, "made_safe", made_safe)


def releases_before_it_commits() -> AbstractContextManager[object]:
    """The bridge says that rows are not needed any more, and commits them then."""
    commit = Loop._commit

    def ahead(self: Loop, plan: Any, landed: Any) -> int | None:
        self.marks.want(plan.landed)
        self.marks.send()
        return commit(self, plan, landed)

    return mock.patch.object(Loop, "_commit", ahead)


def forgets_its_commit() -> AbstractContextManager[object]:
    """A commit whose folder could not be synced is not known again."""
    return mock.patch.object(Table, "_confirmed", lambda self, proposal: None)


def start_believes_a_sync() -> AbstractContextManager[object]:
    """A start of the gateway only syncs what it finds, after a start whose sync failed."""
    return mock.patch.object(recovery, "_write_again", lambda segment, published: None)


BUGS: dict[str, tuple[str, Bug]] = {
    "no-resend": ("lumberjack", LUMBERJACK_BUGS["no-resend"]),
    "window-plus-one": ("lumberjack", LUMBERJACK_BUGS["window-plus-one"]),
    "keepalive-is-forgotten": ("lumberjack", keepalive_is_forgotten),
    "safe-in-any-order": ("lumberjack", safe_in_any_order),
    "no-sync": ("bridge", SHARED_BUGS["no-sync"]),
    "swallowed-io-error": ("bridge", SHARED_BUGS["swallowed-io-error"]),
    "forgets-its-commit": ("bridge", forgets_its_commit),
    "acknowledges-what-arrived": ("micromsg2", acknowledges_what_arrived),
    "numbers-end-early": ("micromsg2", numbers_end_early),
    "not-safe-is-confirmed": ("mtl", MTL_BUGS["mtl-not-safe-is-confirmed"]),
    "nothing-is-sent-again": ("mtl", MTL_BUGS["mtl-nothing-is-sent-again"]),
    "answers-before-safe": ("sabc", answers_before_safe),
    "forgets-a-waiter": ("sabc", forgets_a_waiter),
    "timer-stays": ("umq", timer_stays),
    "refuses-and-answers": ("umq", refuses_and_answers),
}
"""Name → the state machine which must catch it, and what plants it."""
