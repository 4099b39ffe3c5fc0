"""A MicroMsg2 client reconnects: subscriptions are renewed, messages wait for a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed
from ...net.comeback import ClientComeback
from ..wire import NO_PROPERTIES, Filter, Writable
from .sides import MicroMsg2Client, MicroMsg2ClientFactory

log: Final = Logger(namespace="twisted_msgproto.micromsg2")

_NOTHING: Final[Mapping[str, str]] = {}


class MicroMsg2ClientService(ClientComeback[MicroMsg2Client]):
    """Keeps one session with a server; see :class:`~twisted_msgproto.net.comeback.Comeback`.

    A message that was not sent waits for the next session.  One that was on its way when the
    session ended fails with ConnectionClosed, because nobody knows whether the server has it; a
    caller to whom a message may arrive twice says ``safe=True``, and it is sent again.

    Messages that the server pushes come to the hooks of the factory's ``protocol``.

    Attributes:
        subscriptions: what every new session asks for: destination → filter, or None.
    """

    factory: MicroMsg2ClientFactory

    def __init__(self, endpoint: Any, factory: MicroMsg2ClientFactory, **options: Any) -> None:
        """``options`` as :class:`~twisted_msgproto.net.comeback.Comeback` has them."""
        super().__init__(endpoint, factory, **options)
        self.subscriptions: dict[str, Filter | None] = {}

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

    def subscribe(self, destination: str, filter: str | Filter | None = None) -> Deferred[None]:
        """Ask for messages to ``destination``, now and in every session to come (``MM-25``).

        ``filter`` is an expression like ``amount>=N100;market=Teu``.  The Deferred fires when it is
        written in the session that stands, or at once where none does.  It fails with BadText for a
        filter that cannot be, with LimitExceeded, and with ValueError if ``pub-sub`` was not
        agreed; then no session asks for it.  The server's objection comes as an ERROR to the
        session's ``errorReceived``.
        """
        if not isinstance(destination, str):
            raise TypeError(f"a destination is text, not {type(destination).__name__}")
        try:
            read = Filter.read(filter) if isinstance(filter, str) else filter
        except ValueError as error:
            return fail(error)
        self.subscriptions[destination] = read
        if self.session is None:
            return succeed(None)

        def refused(failure: Failure) -> None:
            if not failure.check(ConnectionClosed):  # else the next session will ask for it
                self.subscriptions.pop(destination, None)
                failure.raiseException()

        return self.session.subscribe(destination, read).addErrback(refused)

    def unsubscribe(self, destination: str) -> Deferred[None]:
        """Ask for no further messages to ``destination``, in any session (``MM-25``)."""
        if self.subscriptions.pop(destination, self) is self or self.session is None:
            return succeed(None)

        def refused(failure: Failure) -> None:
            failure.trap(ConnectionClosed)  # then the next session will not ask for them

        return self.session.unsubscribe(destination).addErrback(refused)

    def _notSubscribed(self, failure: Failure, destination: str) -> None:
        if not failure.check(ConnectionClosed):  # else the next session will ask for it
            text = failure.getErrorMessage()
            log.warn("not subscribed to {name}: {error}", name=destination, error=text)

    def _renew(self, session: MicroMsg2Client) -> None:
        for destination, filter in self.subscriptions.items():
            asked = session.subscribe(destination, filter)
            asked.addErrback(self._notSubscribed, destination)

    def _closeSession(self, session: MicroMsg2Client) -> Deferred[None]:
        return session.close()
