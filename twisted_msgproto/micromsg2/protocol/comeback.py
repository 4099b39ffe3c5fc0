"""A MicroMsg2 client reconnects: subscriptions are renewed, messages wait for a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger

from ...core.message import Message
from ...net.clients import subscriptions
from ...net.comeback import ClientComeback
from ..wire import NO_PROPERTIES, Filter, Writable
from .sides import MicroMsg2Client, MicroMsg2ClientFactory
from .subscriptions import Arrivals, Subscription

log: Final = Logger(namespace="twisted_msgproto.micromsg2")

_NOTHING: Final[Mapping[str, str]] = {}


class Renewed(subscriptions.Renewed):
    """A destination to which every session subscribes; iterate it through all of them.

    Its messages go to the sessions' ``messageReceived`` until it is iterated for the first time.
    What had come from a session that has ended can still be iterated; what was not acknowledged
    from a queue comes again.  Its ``reason`` is one of those of
    :class:`~.subscriptions.Subscription`, but never ``"lost"``.

    Of what waits to be iterated there may be as many octets as the limit ``unsafe-octets`` says.

    Attributes:
        destination: the name of the topic or queue.
        filter: the messages meant, or None for all.
    """

    log = log

    def __init__(
        self, service: MicroMsg2ClientService, destination: str, filter: Filter | None
    ) -> None:
        super().__init__(service, service.subscriptions, destination)
        self._arrivals = Arrivals(self._taken)
        self._most = service.factory.limits.integer("unsafe-octets")
        self.destination = destination
        self.filter = filter

    def __aiter__(self) -> Renewed:
        """Return this subscription; its messages come to who iterates from now on."""
        self._arrivals.want()
        return self

    async def __anext__(self) -> Message:
        """Return the next message; at the end StopAsyncIteration, or what has ended it early."""
        self._arrivals.want()
        return await self._arrivals.take()

    def _begin(self) -> None:
        super()._begin()
        self._arrivals.reopen()

    def _share(self) -> float:
        return self._arrivals.octets / self._most

    def _ask(self, session: MicroMsg2Client) -> Subscription:
        return session._subscribe(self.destination, self.filter, self._arrivals)

    def _end(self, reason: str, failure: Exception | None) -> None:
        if self.reason is None:
            self._arrivals.end(failure)
        super()._end(reason, failure)


class MicroMsg2ClientService(ClientComeback[MicroMsg2Client]):
    """One session with a server; see :class:`~twisted_msgproto.net.comeback.Comeback`.

    A message that was not sent waits for the next session.  One that was on its way when the
    session ended fails with ConnectionClosed, because nobody knows whether the server has it; a
    caller to whom a message may arrive twice says ``safe=True``, and it is sent again.

    Messages that the server pushes come to the hooks of the factory's ``protocol``, or to those who
    iterate what :meth:`subscribe` has returned.

    Attributes:
        subscriptions: what every new session asks for, by its destination.
    """

    factory: MicroMsg2ClientFactory

    def __init__(self, endpoint: Any, factory: MicroMsg2ClientFactory, **options: Any) -> None:
        super().__init__(endpoint, factory, **options)
        self.subscriptions: dict[str, Renewed] = {}

    def send(
        self,
        destination: str,
        payload: Any,
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
        *,
        timeout: float | None = None,
        safe: bool = False,
    ) -> Deferred[None]:
        """Send one message in the session that stands, or in the next one; as ``sendMany``."""
        return self.sendMany(
            destination, (payload,), properties, typeName, notes, timeout=timeout, safe=safe
        )

    def sendMany(
        self,
        destination: str,
        payloads: Iterable[Any],
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
        *,
        timeout: float | None = None,
        safe: bool = False,
    ) -> Deferred[None]:
        """Send many messages to one destination; fires when all of them are acknowledged.

        ``timeout`` (None: the limit ``waiting-seconds``) is for the wait for a session.  ``safe``:
        they may arrive twice, so they are sent again when a session ends before all are
        acknowledged.  Fails as :meth:`MicroMsg2Client.sendMany` does, with TimedOut when no session
        comes in time, and with Refused when the server refuses the session.
        """
        payloads = list(payloads)
        return self.perform(
            lambda session, left: session.sendMany(
                destination, payloads, properties, typeName, notes
            ),
            seconds=timeout,
            octets=sum(len(one) for one in payloads if isinstance(one, bytes | bytearray)),
            safe=safe,
        )

    def subscribe(self, destination: str, filter: str | Filter | None = None) -> Deferred[Renewed]:
        """Ask for messages to ``destination``, now and in every session to come (``MM-25``).

        ``filter`` is an expression like ``amount>=N100;market=Teu``; subscribing again replaces it.
        The Deferred fires when it is written in the session that stands, or at once where none
        does.  It fails with BadText for a filter that cannot be, with LimitExceeded, and with
        ValueError if ``pub-sub`` was not agreed; then no session asks for it.  An objection of the
        server ends it until the next session: see :class:`Renewed`.
        """
        if not isinstance(destination, str):
            raise TypeError(f"a destination is text, not {type(destination).__name__}")
        try:
            read = Filter.read(filter) if isinstance(filter, str) else filter
        except ValueError as error:
            return fail(error)
        renewed = self.subscriptions.get(destination)
        if renewed is None:
            renewed = Renewed(self, destination, read)
        renewed.filter = read
        if self.session is not None:
            renewed._renew(self.session)
            if renewed.failure is not None:  # it could not even be asked for
                del self.subscriptions[destination]
                return fail(renewed.failure)
        return succeed(renewed)

    def unsubscribe(self, destination: str) -> Deferred[None]:
        """Ask for no further messages to ``destination``, in any session (``MM-25``)."""
        renewed = self.subscriptions.get(destination)
        return succeed(None) if renewed is None else renewed.end()

    def _renew(self, session: MicroMsg2Client) -> None:
        for renewed in list(self.subscriptions.values()):
            renewed._renew(session)

    def _closeSession(self, session: MicroMsg2Client) -> Deferred[None]:
        return session.close()
