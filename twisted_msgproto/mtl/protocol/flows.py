"""One data flow of an MTL client on Twisted: a reader or a writer, over sockets in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from twisted.internet.defer import CancelledError, Deferred, fail, gatherResults, succeed
from twisted.logger import Logger

from ...core.errors import ConnectionClosed, LimitExceeded, Refused, TimedOut
from ...core.limits import Limits
from ...net.timer import MachineTimer
from ..machine.client_flow import ClientFlow
from ..terms.events import (
    LEASE_UNANSWERED,
    ClientFlowEvent,
    ContentsConfirmed,
    ContentsReceived,
    ContentsRefused,
    FlowBroken,
    FlowGivenUp,
    FlowOpened,
    FlowSuspended,
    Responded,
)
from ..wire.fields import EMPTY, FieldValue, decode_table, encode_table
from ..zeromq.hooks import guarded

if TYPE_CHECKING:
    from .client import MtlClient

log = Logger(namespace="twisted_msgproto.mtl")


@dataclass(slots=True)
class Received:
    """One content which a reader got; ``properties`` are the field table, decoded when asked."""

    sequence: int
    resource: str
    table: bytes
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """The content's field table."""
        return decode_table(self.table)


class MtlFlow:
    """One data flow of a client: see :class:`MtlReader` and :class:`MtlWriter`.

    Attributes:
        machine: decides everything; its ``snapshot()`` tells where the flow stands.
        lost: called with the error when the flow is over without ``close``; its verbs fail then.
    """

    reads: ClassVar[bool]

    def __init__(self, client: MtlClient, confirm: bool, limits: Limits) -> None:
        self.machine = ClientFlow(reads=self.reads, confirm=confirm, limits=limits)
        self.lost: Callable[[Exception], object] = _logLoss
        self._client = client
        self._number = 0
        self._socket: Any = None
        self._port = 0
        self._draining = False
        self._waiting: dict[int, Deferred[None]] = {}
        self._timer = MachineTimer(client.clock, self.machine, self._settle)
        self._opened: Deferred[Any] | None = Deferred(self._cancelled)
        self._ended = False
        self._sending: Any = None

    def _cancelled(self, _: Deferred[Any]) -> None:
        self._opened = None
        self._end(CancelledError())

    # ── sockets ─────────────────────────────────────────────────────────────────────────────────

    def _renew(self, port: int, token: str) -> None:
        """A lease is there: show it on a socket of its own."""
        if self._ended:
            return
        if self.machine.doubted:
            # Whether the flow stands was never answered, and now it does not.
            self._settle(self.machine.suspend("its session began anew"))
            return
        self._drop()
        self._port = port
        self._socket = self._client.dataSocket(self._received, port)
        self.machine.renew(token, self._client.clock.seconds())
        self._look()

    def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            if socket.unread and not self._ended and not self.machine.confirms:
                text = "{count} contents with confirm none were lost with their connection"
                log.warn(text, count=socket.unread)
            socket.shutdown()

    def _received(self, messages: list[list[bytes]]) -> None:
        self._settle(self.machine.receive(messages, self._client.clock.seconds()))

    def _look(self) -> None:
        self._send()
        self._timer.look()
        if self._draining:
            self._endIfDrained()

    def _send(self) -> None:
        messages = self.machine.outputs()
        if messages and self._socket is not None:
            self._socket.sendAll(messages)

    def _sendSoon(self) -> None:
        """Once a turn: what many calls have queued goes out together."""
        if self._sending is None:
            self._sending = self._client.clock.callLater(0, self._sendNow)

    def flush(self) -> None:
        """Hand over now what otherwise goes out with the next turn of the reactor."""
        self._send()

    def _sendNow(self) -> None:
        self._sending = None
        if not self._ended:
            self._look()

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def _settle(self, events: Iterable[ClientFlowEvent]) -> None:
        for event in events:
            if self._ended:
                return
            self.actions[type(event)](self, event)
        if not self._ended:
            self._look()

    def _opens(self, event: FlowOpened) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.callback(self)

    def _responded(self, event: Responded) -> None:
        error = None
        if event.code != 200:
            error = Refused("the server says no to the command", event.code)
        self._fire([event.number], error)

    def _confirmed(self, event: ContentsConfirmed) -> None:
        self._fire(event.numbers, None)

    def _refused(self, event: ContentsRefused) -> None:
        self._fire(event.numbers, Refused("the server does not take the content", event.code))

    def _suspended(self, event: FlowSuspended) -> None:
        trouble = "" if self._socket is None else self._socket.trouble
        log.info("a data flow was lost: {reason} {trouble}", reason=event.reason, trouble=trouble)
        self._drop()
        if self._opened is not None and event.reason == LEASE_UNANSWERED:
            text = f"the server's data port {self._port} does not answer"
            self._end(TimedOut(f"{text}: {trouble}" if trouble else text))
        else:
            self._client.renewFlow(self)

    def _broken(self, event: FlowBroken) -> None:
        self._end(Refused("the server rejected content and ended the flow", 403))

    def _givenUp(self, event: FlowGivenUp) -> None:
        self._end(TimedOut(event.reason))

    def _contents(self, event: ContentsReceived) -> None:
        raise NotImplementedError

    actions: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        FlowOpened: _opens,
        Responded: _responded,
        ContentsReceived: lambda flow, event: flow._contents(event),
        ContentsConfirmed: _confirmed,
        ContentsRefused: _refused,
        FlowSuspended: _suspended,
        FlowBroken: _broken,
        FlowGivenUp: _givenUp,
    }
    """Event class → what is done about it."""

    def _over(self) -> Deferred[None] | None:
        """What a verb gives when there is no flow any more."""
        over = self._ended or self._draining
        return fail(ConnectionClosed("the flow has ended")) if over else None

    def _fire(self, numbers: Iterable[int], error: Exception | None) -> None:
        for number in numbers:
            waiter = self._waiting.pop(number, None)
            if waiter is None:
                continue
            if error is None:
                waiter.callback(None)
            else:
                waiter.errback(error)

    def _wait(self, number: int) -> Deferred[None]:
        waiter: Deferred[None] = Deferred(lambda _: self._forget(number))
        self._waiting[number] = waiter
        return waiter

    def _forget(self, number: int) -> None:
        """Nobody wants to know any more; what was sent stays sent."""
        self._waiting.pop(number, None)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    @property
    def stands(self) -> bool:
        """The flow is not over, though it may just be away from its server."""
        return not self._ended

    def close(self) -> None:
        """No more of this flow; what nobody has answered fails with ConnectionClosed."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """No more of this flow; what nobody has answered fails with ``error``."""
        self._end(error)

    def drain(self) -> None:
        """The flow ends when what is in flight is answered; its verbs fail from now on."""
        if self._opened is not None:
            self._end(None)  # nothing could be sent yet
        else:
            self._draining = True
            self.machine.drain(self._client.clock.seconds())
            self._look()

    def _endIfDrained(self) -> None:
        if self._ended or not self.machine.finished:
            return
        if self._socket is not None and self._socket.unread:
            # With confirm none nobody says when it has gone.
            self._sendSoon()
        else:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.stop()
        if self._sending is not None:
            self._sending.cancel()
        unanswered = self.machine.close()
        self._drop()
        self._client.flowEnded(self)
        self._fire(unanswered, error or ConnectionClosed("the flow was closed"))
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.errback(error or ConnectionClosed("the flow was closed"))
        elif error is not None:
            guarded(self.lost, error)


def _logLoss(error: Exception) -> None:
    log.warn("a data flow has ended: {error}", error=error)


class MtlReader(MtlFlow):
    """A flow which gets content; ``received`` is called with each :class:`Received`."""

    reads = True

    def __init__(
        self,
        client: MtlClient,
        confirm: bool,
        limits: Limits,
        received: Callable[[Received], object],
    ) -> None:
        super().__init__(client, confirm, limits)
        self.received = received

    def summon(self, resource: str) -> Deferred[None]:
        """Ask for this resource's content; fails with Refused (400: summoned already, …)."""
        if over := self._over():
            return over
        waiter = self._wait(self.machine.summon(resource, self._client.clock.seconds()))
        self._look()
        return waiter

    def dismiss(self, resource: str) -> Deferred[None]:
        """Ask for no more of it; fails with Refused."""
        if over := self._over():
            return over
        waiter = self._wait(self.machine.dismiss(resource, self._client.clock.seconds()))
        self._look()
        return waiter

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """This content (or all up to it) is safe."""
        self.machine.confirm(sequence, multiple, self._client.clock.seconds())
        self._sendSoon()

    def reject(self, sequence: int, multiple: bool = False, recycle: bool = False) -> None:
        """This content (or all up to it) is not taken; ``recycle``: others may have it."""
        self.machine.reject(sequence, multiple, recycle, self._client.clock.seconds())
        self._sendSoon()

    def _contents(self, event: ContentsReceived) -> None:
        for row in zip(
            event.sequences, event.resources, event.properties, event.bodies, strict=True
        ):
            if not self._ended:
                guarded(self.received, Received(*row))


class MtlWriter(MtlFlow):
    """A flow which sends content."""

    reads = False

    @property
    def room(self) -> int:
        """How many more contents the window takes now; below 0: so many wait."""
        return self.machine.room

    def send(
        self,
        resource: str,
        body: bytes,
        properties: Mapping[str, FieldValue] | None = None,
    ) -> Deferred[None]:
        """Send one content.

        With confirm ``full`` it fires when the server has it safe and fails with Refused if it does
        not take it; with ``none`` it fires at once.  Fails with LimitExceeded when too much waits,
        and with ConnectionClosed when the flow has ended.

        A content above ``content-octets`` is not sent: LimitExceeded.  Where the server's own limit
        is lower it ends the connection each time; after ``renewals`` of these the flow ends with
        TimedOut.

        When the server could not make a content safe it takes nothing that follows and ends the
        flow: that content, all behind it and ``lost`` fail with Refused.  Send them again on
        another flow, in their order.
        """
        if over := self._over():
            return over
        table = encode_table(properties) if properties else EMPTY
        try:
            (number,) = self._hand([(resource, table, body)])
        except LimitExceeded as error:
            return fail(error)
        return self._wait(number) if self.machine.confirms else succeed(None)

    def _hand(self, contents: list[tuple[str, bytes, bytes]]) -> list[int]:
        """Give contents to the machine: their numbers; raises LimitExceeded."""
        machine, socket = self.machine, self._socket
        if not machine.confirms and socket is not None:
            waiting = machine.queued + socket.unread
            if waiting + len(contents) > self._client.limits["waiting"]:
                raise LimitExceeded(f"the server takes no more: {waiting} contents wait already")
        numbers = machine.send(contents, self._client.clock.seconds())
        self._sendSoon()
        return numbers

    def sendMany(self, resource: str, bodies: Sequence[bytes]) -> Deferred[None]:
        """Send contents together; fires when all are safe, fails with the first refusal."""
        if over := self._over():
            return over
        contents = [(resource, EMPTY, body) for body in bodies]
        try:
            numbers = self._hand(contents)
        except LimitExceeded as error:
            return fail(error)
        if not self.machine.confirms:
            return succeed(None)
        waiters = [self._wait(number) for number in numbers]
        gathered: Deferred[list[None]] = gatherResults(waiters, consumeErrors=True)
        return gathered.addCallbacks(lambda results: None, lambda failure: failure.value.subFailure)
