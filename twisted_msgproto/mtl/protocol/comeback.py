"""An MTL client reconnects with its session, its leases and what a writer has in flight.

:class:`~.client.MtlClient` begins anew by itself when the server does not answer; the service adds
the first session and whatever ends one for good: a log-in that is refused, a server that is away
while no flow waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.python.failure import Failure

from ...core.errors import Refused, TimedOut
from ...net.clients.reconnect import DRAIN_SECONDS, ReconnectingService, ReconnectState
from ..terms.events import (
    Answered,
    ClientEvent,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    SocketDropped,
)
from ..wire.fields import FieldValue
from ..zeromq import check_address
from .client import MtlClient, MtlClientFactory
from .flows import MtlReader, MtlWriter, Received


class MtlClientService(ReconnectingService[MtlClient]):
    """A session and its flows; see ``ReconnectingService``.

    A flow that stands survives the server: its lease is renewed, and what it has in flight is sent
    again, so contents arrive at least once.  A log-in that is refused ends the flows with Refused.

    While the server is away nobody hears of it before somebody asks: a flow does so by itself
    within the limit ``liveness``, a client without flows with its next verb.
    """

    def __init__(self, endpoint: str, factory: MtlClientFactory, **options: Any) -> None:
        """``endpoint`` is the control flow's ZeroMQ address; ``options`` are those of the base.

        Raises ConfigurationError for what is no address.
        """
        check_address(endpoint)
        drain = factory.limits.get("drain", DRAIN_SECONDS)
        super().__init__(factory.clock, **{"drain": drain, **options})
        self.factory = factory
        self._endpoint = endpoint
        self._client: MtlClient | None = None  # of the session, or of the attempt at hand
        self._entering: Deferred[MtlClient] | None = None
        self._call: Any = None  # the next attempt
        self._writers: dict[str, MtlWriter] = {}
        self._leasing: dict[str, list[Deferred[MtlWriter]]] = {}
        kind = factory.protocol
        self._kind: Any = type(kind.__name__, (_Watched, kind), {"service": self})

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """Is a data flow that writes, in the present session or in the next one.

        Waiting for a session lasts at most ``request-timeout`` × ``request-tries`` (TimedOut).
        """
        return self.perform(
            lambda client, left: client.writer(resources, confirm), seconds=self._seconds
        )

    def reader(
        self,
        resources: Sequence[str],
        confirm: str = "full",
        received: Callable[[Received], object] | None = None,
    ) -> Deferred[MtlReader]:
        """A data flow that reads, as :meth:`.MtlClient.reader`; waits as :meth:`writer` does."""
        return self.perform(
            lambda client, left: client.reader(resources, confirm, received),
            seconds=self._seconds,
        )

    def send(
        self,
        resource: str,
        body: bytes,
        properties: Mapping[str, FieldValue] | None = None,
    ) -> Deferred[None]:
        """Send one content; fires when the server has it safe, however often it goes away.

        The service keeps a flow with confirm ``full`` for each resource.  Waiting for the first
        session is bounded as for :meth:`writer`; fails as :meth:`~.flows.MtlWriter.send` does.
        """
        return self.perform(
            lambda client, left: self._writerFor(client, resource).addCallback(
                lambda writer: writer.send(resource, body, properties)
            ),
            seconds=self._seconds,
            octets=len(body),
        )

    @property
    def _seconds(self) -> float:
        limits = self.factory.limits
        return limits["request-timeout"] * limits["request-tries"]

    def _writerFor(self, client: MtlClient, resource: str) -> Deferred[MtlWriter]:
        writer = self._writers.get(resource)
        if writer is not None and writer.stands:
            return succeed(writer)
        waiting: Deferred[MtlWriter] = Deferred()
        asking = self._leasing.setdefault(resource, [])
        asking.append(waiting)
        if len(asking) == 1:
            leased = client.writer([resource])
            leased.addCallbacks(
                self._leased, self._notLeased, callbackArgs=(resource,), errbackArgs=(resource,)
            )
        return waiting

    def _leased(self, writer: MtlWriter, resource: str) -> None:
        self._writers[resource] = writer
        for waiting in self._leasing.pop(resource, ()):
            if not waiting.called:  # its caller may have cancelled it
                waiting.callback(writer)

    def _notLeased(self, failure: Failure, resource: str) -> None:
        for waiting in self._leasing.pop(resource, ()):
            if not waiting.called:
                waiting.errback(failure)

    # ── attempts ────────────────────────────────────────────────────────────────────────────────

    def whenEstablished(self) -> Deferred[MtlClient]:
        """As :meth:`ReconnectingService.whenEstablished`; it waits while the server is away."""
        if self.session is not None and self.state is not ReconnectState.UP:
            return self._standing.wait()
        return super().whenEstablished()

    def _begin(self) -> None:
        self._call = None
        self._attempting()
        self._client = client = self.factory.buildClient(self._endpoint, self._kind)
        self._entering = ensureDeferred(self.factory.enter(client))
        self._entering.addCallbacks(self._entered, self._lost)

    def _entered(self, client: MtlClient) -> None:
        self._entering = None
        self._established(client)

    def _lost(self, failure: Failure) -> None:
        """There is no session, or none any more: drop the client, and try again later."""
        self._entering = None
        client, self._client = self._client, None
        if self._closing:
            return
        error: Any = failure.value
        self._failed(error)
        if client is not None:
            for flow in list(client.flows.values()):
                flow.fail(error)
            client.abort()
        if self._closing:
            return  # somebody's callback has stopped the service
        seconds = self._delay()
        if not (self._stopWhenRefused and self.state is ReconnectState.REFUSED):
            self._call = self.clock.callLater(seconds, self._begin)

    # ── what the client of the session says ─────────────────────────────────────────────────────

    def happened(self, client: MtlClient, event: ClientEvent) -> None:
        if client is not self.session or self._closing:
            return
        match event:
            case SocketDropped():
                if self.state is ReconnectState.UP:
                    self._change(ReconnectState.CONNECTING)
            case Answered() | LeaseGranted():
                if self.state is not ReconnectState.UP:
                    self._established(client)
            case RequestTimedOut():
                self._change(ReconnectState.DOWN)
                self._unasked(client)
            case RequestRefused(code=401):
                self._change(ReconnectState.CONNECTING)  # it does not stand any more
                self._lost(Failure(Refused(event.reason, event.code)))

    def _unasked(self, client: MtlClient) -> None:
        if client is self.session and self.state is ReconnectState.DOWN and not client.flows:
            self._lost(Failure(TimedOut("the server does not answer")))

    def _isOver(self, session: MtlClient) -> bool:
        return session is not self._client

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def _closeSession(self, session: MtlClient) -> Deferred[None]:
        return session.close()

    def _leave(self) -> Deferred[None]:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        self._cutOff()
        return succeed(None)

    def _cutOff(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.abort()


class _Watched(MtlClient):
    """A client that tells its service what happens on its control flow."""

    service: MtlClientService

    def _follow(self, events: Iterable[ClientEvent]) -> None:
        events = list(events)
        super()._follow(events)
        for event in events:
            self.service.happened(self, event)

    def flowEnded(self, flow: Any) -> None:
        super().flowEnded(flow)
        self.service._unasked(self)
