"""A connection or a server that lasts as long as a block of a program: ``connect`` and ``serve``.

Every protocol has the two functions; what they return is here.  Leaving the block ends the
connection or the server in order, and so does the reactor's own end: ``task.react`` does not cancel
a coroutine when SIGTERM comes, it only asks who has something to finish before the shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from inspect import signature
from os import PathLike, fspath
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    cast,
)

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, succeed
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.error import TimeoutError as ConnectTimedOut
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..core.errors import (
    ConfigurationError,
    ConnectionClosed,
    MsgprotoError,
    QueueError,
    QueueLocked,
    TimedOut,
)
from ..core.reasons import cannot_listen
from .clients.client import session_of, session_standing
from .clients.client_endpoints import client_endpoint, endpoint_of, websocket_endpoint
from .clients.command_types import ClientEndpoint, ConnectOptions
from .deferreds import Waiters
from .endpoints import TLS_KINDS, ServedEndpoint, address_name, check_endpoint
from .factory import MsgprotoServerFactory, SessionFactory, expect
from .session import ClientSession
from .sink import DurableSink, MessageSink

C = TypeVar("C", bound=ClientSession)
F = TypeVar("F", bound=MsgprotoServerFactory)
S = TypeVar("S", bound=SessionFactory)

log: Final = Logger(namespace="twisted_msgproto.net")

ABORTED_SECONDS: Final = 1.0  # who leaves because of a cancellation waits for the end no longer


class _Listens(Protocol):
    def listen(self, protocolFactory: Any, /) -> Deferred[Any]: ...


ServerEndpoint: TypeAlias = Union[IStreamServerEndpoint, _Listens]  # noqa: UP007
"""Where to listen: any of Twisted's server endpoints is one."""


class _SecuresClients(Protocol):
    def clientConnectionForTLS(self, tlsProtocol: Any, /) -> Any: ...


ClientTLS: TypeAlias = Union[IOpenSSLClientConnectionCreator, _SecuresClients]  # noqa: UP007
"""How a client uses TLS: what ``twisted.internet.ssl.optionsForClientTLS(…)`` returns."""


Where: TypeAlias = Union[str, ServerEndpoint]  # noqa: UP007


def running(reactor: Any) -> Any:
    if reactor is None:
        from twisted.internet import reactor
    return reactor


def factory_of(kind: type[S], factory: S | None, reactor: Any, *address: str, **settings: Any) -> S:
    """Return ``factory``, or a new ``kind``; ``client`` or ``server``: its connections' class."""
    make: Any = kind
    (side,) = settings.keys() & {"client", "server"}
    protocol, base = settings[side], make.protocol
    good = isinstance(factory, kind | None)
    expect("factory", factory, f"one of the class {kind.__name__}", good)
    if factory is not None:
        usual = {name: one.default for name, one in signature(kind).parameters.items()}
        usual[side] = base
        names = [
            name
            for name, value in settings.items()
            if (tuple(value) if usual.get(name) == () else value) != usual.get(name)
        ]
        if names:
            raise TypeError(f"{', '.join(names)} beside factory: give them to the factory")
        return factory
    if not (isinstance(protocol, type) and issubclass(protocol, base)):
        raise TypeError(f"{side} is a subclass of {base.__name__}, not {protocol!r}")
    del settings[side]
    made = make(*address, clock=reactor, **settings)
    made.protocol = protocol
    return made  # type: ignore[no-any-return]


class BeforeShutdown:
    """Lets the reactor wait for the end of something before it stops."""

    def __init__(self, reactor: Any, end: Callable[[], Deferred[None]]) -> None:
        self._reactor = reactor
        self._end = end
        add = getattr(reactor, "addSystemEventTrigger", None)  # a test's clock has none
        self._trigger = add and add("before", "shutdown", self._shutdown)

    def _shutdown(self) -> Deferred[None]:
        self._trigger = None
        return self._end()

    def forget(self) -> None:
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._reactor.removeSystemEventTrigger(trigger)


def is_cancelled(error: BaseException) -> bool:
    return isinstance(error, CancelledError | asyncio.CancelledError)


class Connecting(Generic[C]):
    """A connection that begins when this is awaited, or entered with ``async with``; once.

    Awaited it gives the client when its session stands; who has it closes it.  ``async with`` gives
    the same, and leaving the block closes it: in order (``close()``) when the block ends or raises
    an Exception, at once (``abort()``) when it is cancelled.

    Either raises Refused, TimedOut (also when the session does not stand within ``timeout``
    seconds), ProtocolViolation or ConnectionClosed (also when nobody can be reached).
    """

    def __init__(
        self,
        reach: Callable[[], Coroutine[Any, Any, C]],
        timeout: float,
        reactor: Any,
        to: object = None,
    ) -> None:
        """``reach()`` connects to ``to``, and returns a client whose session stands."""
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        expect("timeout", timeout, "a number of seconds", number)
        if not timeout > 0:
            raise ConfigurationError(f"timeout is more than 0 seconds, not {timeout:g}")
        self._reach = reach
        self._timeout = timeout
        self._reactor = reactor
        self._prefix = f"{to}: " if isinstance(to, str) else ""
        self._begun = False
        self._client: C | None = None

    if not TYPE_CHECKING:  # type checkers see that it has none

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"no {name!r} here: await connect(…), or enter it, to get the client"
            )

    def __await__(self) -> Generator[Any, Any, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._client = await self._open()
        return self._client

    async def _open(self) -> C:
        if self._begun:
            raise RuntimeError("it was awaited or entered before: connect(…) again")
        self._begun = True
        opening = Deferred.fromCoroutine(self._reach())
        opening.addTimeout(self._timeout, self._reactor, self._no_session)
        try:
            client: C = await opening
        except MsgprotoError:
            raise
        except ConnectTimedOut as error:
            raise TimedOut(f"{self._prefix}{error}") from error
        except (ConnectError, DNSLookupError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionClosed(f"{self._prefix}{reason}") from error
        finally:
            if not opening.called:  # whoever awaits is closed, or cannot await a Deferred (asyncio)
                opening.addErrback(lambda _: None)
                opening.cancel()
        shutdown = BeforeShutdown(self._reactor, client.close)
        client.link.whenGone().addCallback(lambda _: shutdown.forget())
        return client

    def _no_session(self, _: object, seconds: float) -> NoReturn:
        raise TimedOut(f"{self._prefix}there was no session within {seconds:g} s (timeout)")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        assert client is not None
        cancelled: BaseException | None = None
        if error is None or (isinstance(error, Exception) and not is_cancelled(error)):
            closed = client.close()
            try:
                await closed
                return
            except GeneratorExit:
                client.abort()
                raise
            except BaseException as interrupted:  # it never fails by itself
                cancelled = interrupted
        client.abort()
        if isinstance(error, GeneratorExit):
            return
        gone = client.link.whenGone().addTimeout(ABORTED_SECONDS, self._reactor)
        gone.addErrback(lambda _: None)  # cancelled again, or too late: it is cut off all the same
        await gone
        if error is None and cancelled is not None:
            raise cancelled


def connecting(
    to: str | ClientEndpoint,
    factory: SessionFactory,
    timeout: float,
    reactor: Any,
    *,
    tls: ClientTLS | None = None,
    connected: Callable[[str], Any] | None = None,
) -> Connecting[Any]:
    """Return what connects ``factory`` to an endpoint, or to its string as ``msgproto`` reads it.

    ``connected(url)`` makes the factory of the connections for a WebSocket address; None: there are
    none.  Raises ConfigurationError for a string that is none, TypeError for what is no endpoint.
    """
    builder: Any = factory
    endpoint: Any = to
    if isinstance(to, str):
        options = ConnectOptions(endpoint=to)
        if connected is not None and to.startswith(("ws:", "wss:")):
            builder = connected(to)
            endpoint = websocket_endpoint(reactor, options, tls)
        else:
            endpoint = client_endpoint(reactor, options, tls)
    else:
        endpoint = endpoint_of(reactor, to)
        if tls is not None:
            endpoint = wrapClientTLS(cast(Any, tls), endpoint)

    def reach() -> Coroutine[Any, Any, Any]:
        return session_standing(_reached(endpoint.connect(builder)))

    return Connecting(reach, timeout, reactor, to)


def _reached(connecting: Deferred[Any]) -> Deferred[Any]:
    """Return what fires with ``connecting``, and is cancelled also while a name is resolved."""

    def cancel(_: object) -> None:
        reached.errback(CancelledError())
        connecting.cancel()

    def fire(result: Any) -> None:
        if not reached.called:
            reached.callback(result)
        elif not isinstance(result, Failure):  # connected all the same
            session_of(result).abort()

    reached: Deferred[Any] = Deferred(cancel)
    connecting.addBoth(fire)
    return reached


# ── servers ─────────────────────────────────────────────────────────────────────────────────────


class Serving(Generic[F]):
    """A server that begins when this is awaited, or entered with ``async with``; once.

    Either gives this object when the server listens, and raises ConfigurationError when it cannot
    (an address in use, a queue that cannot be opened), or QueueLocked when another process writes
    the queue.  Leaving the block, however that happens, is :meth:`close`; a second cancellation
    meanwhile is :meth:`abort`.

    Attributes:
        factory: the server: its sessions, counters and verbs.
    """

    def __init__(self, factory: F, listening: Any, owned: DurableSink | None, reactor: Any) -> None:
        """``owned`` is opened before, and closed after the connections have ended."""
        self.factory = factory
        self._addresses: Sequence[str] | None = None
        self._listening = listening
        self._owned = owned
        self._opened = False  # what is owned
        self._reactor = reactor
        self._begun = self._closing = self._closed = False
        self._shutdown: BeforeShutdown | None = None
        self._waiting: Waiters[None] = Waiters()

    def __await__(self) -> Generator[Any, Any, Serving[F]]:
        return self._open().__await__()

    async def __aenter__(self) -> Serving[F]:
        return await self._open()

    async def _open(self) -> Serving[F]:
        if self._begun:
            raise RuntimeError("it was awaited, entered or closed before: serve(…) again")
        self._begun = True
        try:
            self._open_queue()
            self._shutdown = BeforeShutdown(self._reactor, self.close)
            self._addresses = tuple(await self._listening.listen())
            if self._closing:
                raise ConnectionClosed("the server was closed while it began")
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    def _open_queue(self) -> None:
        if self._owned is not None:
            try:
                self._owned.open()
            except QueueLocked:
                raise
            except (OSError, QueueError) as error:
                raise ConfigurationError(f"queue: {error}") from None
            self._opened = True

    @property
    def addresses(self) -> Sequence[str]:
        """Where it listens, as ``connect`` takes it; RuntimeError before it does."""
        if self._addresses is None:
            raise RuntimeError("it listens once it is entered: async with serve(…), or await it")
        return self._addresses

    def whenClosed(self) -> Deferred[None]:
        """Return a Deferred that fires when the server has ended, and never fails."""
        return succeed(None) if self._closed else self._waiting.wait()

    def close(self) -> Deferred[None]:
        """End the server in order; the Deferred fires when it has ended, and never fails.

        No more connections are taken, what has arrived is made safe and acknowledged within the
        seconds of the limit ``drain``, then the queue that ``serve`` has opened is closed.
        """
        waiting = self.whenClosed()
        if not self._closing:
            self._begun = self._closing = True
            Deferred.fromCoroutine(self._end()).addErrback(
                lambda failure: log.failure("a server did not end in order", failure)
            )
        return waiting

    def abort(self) -> None:
        """End all connections at once, and what is left as :meth:`close` does."""
        self.close()
        self._listening.abort()

    async def _end(self) -> None:
        try:
            await self._listening.stop()
        finally:
            try:
                if self._owned is not None and self._opened:
                    await self._owned.close()
            finally:
                self._closed = True
                if self._shutdown is not None:
                    self._shutdown.forget()
                self._waiting.fire(None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        """Wait for the end.  The first cancellation lets it go on, the second cuts it short."""
        closed = self.close()
        if isinstance(error, GeneratorExit):
            self.abort()
            return
        cancelled = error if error is not None and is_cancelled(error) else None
        while not self._closed:
            try:
                await closed
            except GeneratorExit:
                self.abort()
                raise
            except BaseException as interrupted:  # closed itself never fails
                if cancelled is not None:
                    self.abort()
                cancelled = cancelled or interrupted
                closed = self.whenClosed()
        if error is None and cancelled is not None:
            raise cancelled


class Ports:
    def __init__(
        self,
        reactor: Any,
        factory: MsgprotoServerFactory,
        wanted: Sequence[tuple[Where, Any, Callable[[str], str]]],
    ) -> None:
        somewhere(wanted)
        self._reactor = reactor
        self._factory = factory
        self._wanted = wanted
        self._ports: list[Any] = []
        self._stopped = False

    async def listen(self) -> Sequence[str]:
        self._factory.startFactory()  # Twisted asks only once a port is bound
        addresses = []
        for where, factory, named in self._wanted:
            text = where if isinstance(where, str) else ""
            endpoint: Any = ServedEndpoint(self._reactor, text) if text else where
            try:
                port = await maybeDeferred(endpoint.listen, factory)
            except Exception as error:
                why = getattr(error, "socketError", error)
                if why is error and not isinstance(error, OSError):
                    raise
                name = getattr(factory, "protocolName", "server")
                raise ConfigurationError(
                    f"{name}: cannot listen on {where}: {cannot_listen(why)}"
                ) from None
            self._ports.append(port)
            if self._stopped:
                await maybeDeferred(port.stopListening)
            addresses.append(named(address_of(port.getHost(), text)))
        return addresses

    async def stop(self) -> None:
        self._stopped = True
        ports, self._ports = self._ports, []
        for stopping in [maybeDeferred(port.stopListening) for port in ports]:
            await stopping
        for _, factory, _ in self._wanted:  # several may be one, which a dataclass cannot hash
            await factory.drain()

    def abort(self) -> None:
        self._factory.abort()


def address_of(address: Any, description: str) -> str:
    kind, _, rest = address_name(address, description).partition(":")
    return f"{'tls' if kind in TLS_KINDS else kind}:{rest}"


def over_websocket(address: str) -> str:
    kind, _, rest = address.partition(":")
    scheme = {"tcp": "ws", "ssl": "wss", "tls": "wss", "mtls": "wss"}.get(kind)
    return f"{scheme}://{rest}/" if scheme else address


def somewhere(wanted: Sequence[object]) -> None:
    if not wanted:
        raise ConfigurationError("a server listens on one endpoint at least, and none is given")


def each_of(at: Any) -> list[Any]:
    return list(at) if isinstance(at, Iterable) and not isinstance(at, str) else [at]


def endpoints_of(at: Where | Sequence[Where]) -> list[Where]:
    several = each_of(at)
    for one in several:
        if isinstance(one, str):
            check_endpoint(one)
        elif not callable(getattr(one, "listen", None)):
            raise TypeError(f"an endpoint or its string is wanted, not {type(one).__name__}")
    return several


def sink_of(
    sink: MessageSink | None, queue: str | PathLike[str] | None, factory: object, reactor: Any
) -> tuple[MessageSink | None, DurableSink | None]:
    if queue is None:
        return sink, None
    if sink is not None:
        raise TypeError("sink and queue: one of them")
    if factory is not None:
        raise TypeError("queue beside factory: give its sink to the factory")
    owned = DurableSink.unopened(fspath(queue), reactor)
    return owned, owned
