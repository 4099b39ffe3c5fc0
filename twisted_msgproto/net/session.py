"""A session is what an application sees of one connection: hooks to override, and verbs to call.

It owns its link, behind the one name ``link``, and inherits nothing of it::

    class LumberjackServer(Session, link=ReaderLink):
        …                                       # verbs, and hooks of its own

    class MyServer(LumberjackServer):           # an application's: only hooks
        def messageReceived(self, message): …
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from inspect import isfunction
from itertools import takewhile
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ..core.errors import ConnectionClosed, NotStored, QueueError
from ..core.message import Message, MessageBatch
from .authorising import Permissions
from .counters import BOUNDS
from .deferreds import Later, Waiters, awaited, guarded
from .factory import host_of
from .link import Link

GOODBYE_SECONDS: Final = 1.0  # for last words to be written and read

H = TypeVar("H", bound=Callable[..., Any])


def hook(method: H) -> H:
    """Mark a method of a session that an application may override."""
    vars(method)["hook"] = True
    return method


def only_hooks(kind: type, base: type) -> None:
    """Raise TypeError if ``kind``, an application's subclass of ``base``, replaces a name that is
    no hook, perhaps unseen, or misspells a hook, which would never be called.

    Sessions are told apart by identity: give ``kind`` an ``__eq__`` that a dataclass leaves alone.
    """
    ours = [one for one in base.__mro__ if one not in Protocol.__mro__]
    hooks = {name for one in ours for name, value in vars(one).items() if hasattr(value, "hook")}
    for theirs in takewhile(lambda one: one is not base, kind.__mro__):
        for name, value in vars(theirs).items():
            taken = not name.startswith("__") and any(name in vars(one) for one in ours)
            if taken and name not in hooks:
                raise TypeError(
                    f"{theirs.__qualname__}.{name}: {base.__name__} has something of this name that"
                    f" is no hook; its hooks are {', '.join(sorted(hooks))}"
                )
            meant = misspelt(name, hooks) if isfunction(value) and name not in hooks else None
            if meant is not None and getattr(kind, meant) is getattr(base, meant):
                raise TypeError(
                    f"{theirs.__qualname__}.{name} would never be called: the hook of"
                    f" {base.__name__} is {meant}"
                )
    if vars(kind).get("__eq__", object.__eq__) is not object.__eq__:
        raise TypeError(f"{kind.__qualname__}.__eq__: sessions are told apart by identity")
    identity: Any = kind
    identity.__eq__, identity.__hash__ = object.__eq__, object.__hash__


def misspelt(name: str, hooks: Iterable[str]) -> str | None:
    """Return the hook of which ``name`` has every letter, or all but one, and nearly in its order;
    upper case, underscores, and whether it is an s or a z make no difference.
    """
    if name.startswith("_"):
        return None
    letters = {one.replace("z", "s").lower(): one for one in hooks}
    word = name.replace("_", "").replace("z", "s").lower()
    for near in get_close_matches(word, letters, cutoff=0.9):
        if not Counter(word) - Counter(near) and len(near) <= len(word) + 1:
            return letters[near]
    return None


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class Linked(Protocol):
    """Base class of all sessions: a protocol that owns its link.

    A class of a protocol names the class of its links.  Any other subclass is an application's:
    of the names of its base it may define those of hooks.
    """

    __links: ClassVar[type[Link]]

    def __init_subclass__(cls, *, link: type[Link] | None = None) -> None:
        super().__init_subclass__()
        if link is not None:
            cls.__links = link
        else:
            ours = (one for one in cls.__mro__ if "_Linked__links" in vars(one))
            only_hooks(cls, next(ours, Linked))

    @property
    def link(self) -> Any:
        """Return what joins the session to its machine and wire: for protocols alone."""
        try:
            return self.__link
        except AttributeError:
            self.__link: Link = self.__links(self)
            return self.__link

    @property
    def session(self) -> str:
        """Return the public name of this session."""
        return str(self.link.session)

    @property
    def peer(self) -> str:
        """Return the peer's transport address as text."""
        return str(self.link.peer)

    @property
    def address(self) -> str:
        """Return the peer's host alone; empty where there is none."""
        return str(self.link.address)

    @property
    def established(self) -> bool:
        """Return whether the session stands."""
        return bool(self.link.established)

    def snapshot(self) -> Mapping[str, object]:
        """Return where the session stands, as plain values without secrets."""
        snapshot: Mapping[str, object] = self.link.snapshot()
        return snapshot

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────

    @hook
    def connectionMade(self) -> None:
        """There is a connection; its session does not stand yet."""

    @hook
    def sessionEstablished(self) -> Any:
        """The session stands: messages may come, and may be sent where the protocol can."""

    @hook
    def sessionLost(self, reason: Failure) -> Any:
        """Called when the session has ended; ``reason`` has what the peer said of it
        (ConnectionClosed, Refused), or else what Twisted passed to ``connectionLost``.
        """

    @hook
    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection is gone, whether its session stood or not."""
        self.link.connectionLost(reason)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def close(self) -> Deferred[None]:
        """End the connection in order; the Deferred fires when it is closed, and never fails.

        Nothing more can be sent.  What is in flight is finished, within the seconds of the limit
        ``drain``; what is not answered by then fails with ConnectionClosed.
        """
        closed: Deferred[None] = self.link.close()
        return closed

    def abort(self) -> None:
        """End the connection at once: what is in flight fails, and what is unwritten is lost."""
        self.link.abort()

    # ── from the transport ──────────────────────────────────────────────────────────────────────

    def makeConnection(self, transport: Any) -> None:
        """Begin.  Whatever an application's ``connectionLost`` does, the link hears of the end."""
        self.connected = 1
        self.transport = transport
        if type(self).connectionLost is not Linked.connectionLost:
            self.connectionLost = self.__both(self.connectionLost)  # type: ignore
        self.link.connect(transport)

    def __both(self, theirs: Callable[[Failure], None]) -> Callable[[Failure], None]:
        def connectionLost(reason: Failure = connectionDone) -> None:
            self.link.connectionLost(reason)
            guarded(self.link.log, self.link.peer, theirs, reason)

        return connectionLost

    def dataReceived(self, data: bytes) -> None:
        """Bytes came; once there is a connection its link has a method of this name here."""
        self.link.dataReceived(data)

    def handshakeCompleted(self) -> None:
        """TLS stands."""
        self.link.handshakeCompleted()

    def readConnectionLost(self) -> None:
        """The peer has shut its sending side."""
        self.link.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """Nobody reads what we write any more."""
        self.link.writeConnectionLost()


def put_into(sink: Any, batch: MessageBatch) -> Deferred[Any] | None:
    stored = None if sink is None else sink.put(batch)
    ready = stored is None or isinstance(stored, Deferred)
    return stored if ready else awaited(stored, sink, "put")


class SessionHooks:
    """What an application may override where messages are stored, whatever the protocol.

    ``factory`` has the sink.
    """

    factory: Any

    @hook
    def batchReceived(self, batch: MessageBatch) -> Later:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and then the
        batch goes to the factory's sink.  The acknowledgement follows when the returned Deferred
        (None: at once) and all Deferreds of ``messageReceived`` have fired; a failure withholds it.
        Both may be coroutine functions.  What else they or ``put`` of the sink return is a fault of
        the program: it is logged, and the batch is not acknowledged.
        """
        if type(self).messageReceived is SessionHooks.messageReceived:  # nobody looks at them
            return put_into(self.factory.sink, batch)
        waiting: list[Deferred[Any]] = [maybeDeferred(self.__hear, message) for message in batch]
        if self.factory.sink is not None:
            stored = put_into(self.factory.sink, batch)
            waiting.append(succeed(None) if stored is None else stored)
        if len(waiting) == 1:
            return waiting[0]
        gathered: Any = DeferredList(waiting, fireOnOneErrback=True, consumeErrors=True)
        return cast(Later, gathered.addErrback(lambda failure: failure.value.subFailure))

    def __hear(self, message: Message) -> Deferred[Any] | None:
        return awaited(self.messageReceived(message), self, "messageReceived")

    @hook
    def messageReceived(self, message: Message) -> Later:
        """One message arrived; override this to see each, return a Deferred to delay its ack."""


# ── links ───────────────────────────────────────────────────────────────────────────────────────


class OrderlyLink(Link):
    """A link that can be closed in order: :meth:`endInOrder`, or in the end :meth:`endNow`."""

    peerSaid: Exception | None = None  # why it ends the session
    _drainTimer: Any = None  # the call that ends an orderly end that takes too long

    @cached_property
    def _closeWaiters(self) -> Waiters[None]:
        return Waiters()

    @property
    def established(self) -> bool:
        return self._established and not self._ended

    @property
    def closing(self) -> bool:
        return self._drainTimer is not None

    def receivedAt(self) -> int:
        """Return the time as batches want it: microseconds since 1970-01-01 UTC."""
        return int(self.factory.wallClock() * 1_000_000)

    def whenGone(self) -> Deferred[None]:
        return succeed(None) if self._gone else self._closeWaiters.wait()

    def close(self) -> Deferred[None]:
        left = self.whenGone()
        if self._gone:
            return left
        if self._drainTimer is None:
            drain = self.factory.limits["drain"]
            self._drainTimer = self.factory.clock.callLater(drain, self._drainExpired)
            self._beginEnd()
        return left

    def _beginEnd(self) -> None:
        if self.transport is None:  # no upgrade yet
            self.setCloseReason(
                ConnectionClosed("the connection was closed before its session stood")
            )
            self._abort()
        elif not self._ended:
            self.endInOrder()

    def _drainExpired(self) -> None:
        self.setCloseReason(
            ConnectionClosed("the connection was closed before everything was answered")
        )
        self._drainTimer = self.factory.clock.callLater(GOODBYE_SECONDS, self._abort)
        if not self._ended:
            self.endNow()

    def endInOrder(self) -> None:
        """Begin the orderly end of a connection that can be used; finish what is in flight."""
        self.drain()

    def endNow(self) -> None:
        """Say the last words, such as acknowledgements, and end, whatever is in flight."""
        self._lastWords()
        self._end(fault=False)

    def neverConnected(self, error: Exception) -> None:
        """The connection is gone before it could be used (WebSocket)."""
        self.closeReason = error
        self._ended = self._gone = True
        self._closed()

    def establish(self) -> None:
        super().establish()
        if self.factory.sessionLog is not None:
            self.factory.sessionLog.began(self)
        self._guarded(self.protocol.sessionEstablished)

    def sessionEnding(self, reason: Failure) -> None:
        if self._established:
            self._established = False
            if self.factory.sessionLog is not None:
                self.factory.sessionLog.ended(self, self.closeReason)
            said = self.peerSaid
            self._guarded(self.protocol.sessionLost, reason if said is None else Failure(said))
        super().sessionEnding(reason)
        self._closed()

    def _closed(self) -> None:
        timer = self._drainTimer
        if timer is not None and timer.active():
            timer.cancel()
        if "_closeWaiters" in vars(self):  # somebody has closed it
            self._closeWaiters.fire(None)


BATCH_WEIGHT_BYTES: Final = 2000  # on top while it waits: 64 MiB of tiny ones could be millions

Hook = Callable[[MessageBatch], Later]


def log_not_stored(log: Logger, peer: str, failure: Failure, again: bool, of: object) -> None:
    """Log why messages of ``peer`` are never acknowledged: a disk's fault in one line (none if
    ``again``), others with a traceback, which has no hook of ``of`` if a Deferred has failed.
    """
    if failure.check(QueueError):
        if not again:
            log.error("{peer}: not acknowledged: {text}", peer=peer, text=str(failure.value))
    else:
        line = "{peer}: not acknowledged ({kind}.messageReceived or batchReceived, or the sink)"
        text, kind = failure.getErrorMessage(), type(of).__name__
        log.failure(line + ": {text}", failure, peer=peer, kind=kind, text=text)


class SessionLink(OrderlyLink):
    """A link that delivers what its peer sends to the hook ``batchReceived``.

    Attributes as :class:`~.link.Link` has them, and:
        clientId: who the peer is, or None.
        messageCount: how many messages the peer has sent.
    """

    clientId: str | None = None
    # On the class: an idle session weighs less.
    messageCount: int = 0
    _unsafeBytes = 0  # what is not safe yet, with the weight of batches
    _unsafeBatches = 0

    refusalEnds: ClassVar[str] = ""
    """This is added to the line in the log that tells of a refusal."""

    _permissions: Permissions | None = None  # nothing was asked yet
    _lossLogged = False  # it was logged that something is not stored

    def _prepare(self, transport: Any) -> None:
        super()._prepare(transport)
        factory = self.factory
        self._tally = factory.counters.settled

    def refuses(self, action: str, name: str = "", count: int = 1) -> bool:
        """Return whether the factory's authoriser does not allow this; then it is counted.

        Ask only where there is an authoriser, and before anything of it is stored.
        """
        permissions = self._permissions
        if permissions is None:
            # Not the address of the beginning: behind a proxy its first bytes say whose it is.
            address = host_of(self.transport.getPeer())
            permissions = self._permissions = Permissions(
                self.factory, self.clientId, address, self.peer, ends=self.refusalEnds
            )
        return permissions.refuses(action, name, count)

    def deliver(self, batch: MessageBatch, position: Any) -> None:
        """Deliver a batch; the machine is told when what stood at ``position`` is safe, or lost."""
        tally = self._tally
        self.messageCount += batch.count
        tally["events"] += batch.count
        tally["bytes"] += batch.nbytes
        self._deliverTo(self.protocol.batchReceived, batch, position)

    def _deliverTo(self, hook: Hook, batch: MessageBatch, position: Any) -> None:
        factory = self.factory
        traffic, count = factory.traffic, batch.count
        traffic.messages += count
        traffic.nbytes += batch.nbytes
        try:
            result = hook(batch)
            if result is not None and not isinstance(result, Deferred):
                result = awaited(result, getattr(hook, "__self__", hook), "batchReceived")
        except BaseException:
            self._notSafe(position, Failure())
            return
        if result is None or (result.called and not result.paused and result.result is None):
            traffic.latencies[0] += count
            self._safe(position)  # at once, without a callback
            return
        nbytes = batch.nbytes + batch.weight + BATCH_WEIGHT_BYTES
        shared = factory.shared
        if not self._unsafeBatches:
            shared.senders += 1
        self._unsafeBytes += nbytes
        self._unsafeBatches += 1
        shared.waiting += nbytes
        if shared.waiting > shared.limit and self._unsafeBytes > shared.limit / shared.senders:
            shared.paused[self] = None
            self.pauseReading("process-unsafe-bytes")
        if self._unsafeBytes > factory.unsafe_bytes_max:
            self.pauseReading("connection-bytes")
        result.addBoth(self._delivered, nbytes, position, count, traffic.seconds())

    def _delivered(self, result: Any, nbytes: int, position: Any, count: int, began: float) -> None:
        factory = self.factory
        shared = factory.shared
        self._unsafeBytes -= nbytes
        self._unsafeBatches -= 1
        if not self._unsafeBatches:
            shared.senders -= 1
        shared.waiting -= nbytes
        failed = isinstance(result, Failure)
        if failed:  # first: what is read on would be stored behind a gap
            self._notSafe(position, result)
        if shared.paused and shared.waiting <= shared.limit // 2:
            paused, shared.paused = shared.paused, {}
            for link in paused:
                link.resumeReading("process-unsafe-bytes")
        if self._unsafeBytes <= factory.unsafe_bytes_max // 2:
            self.resumeReading("connection-bytes")
        if not failed:
            traffic = factory.traffic
            waited = traffic.seconds() - began
            traffic.latencies[bisect_left(BOUNDS, waited)] += count
            traffic.waited += waited * count
            self._safe(position)

    def _safe(self, position: Any) -> None:
        if not self._gone:
            events = self.machine.made_safe(position, self._now())
            if not self._following:
                self._followAlone(events)
            elif events:
                self._follow(events)

    def _notSafe(self, position: Any, failure: Failure) -> None:
        """Neither what stood at ``position`` nor what follows is acknowledged: the machine ends the
        session, of which a gap would be stored otherwise.
        """
        log_not_stored(self.log, self.peer, failure, self._lossLogged, self.protocol)
        self.setCloseReason(
            NotStored(f"what came could not be stored: {failure.getErrorMessage()}")
        )
        self._lossLogged = self._inputIgnored = True
        self.factory.counters["unsafe_batches"] += 1
        if not self._gone:
            self.pauseReading("draining")
            follow = self._follow if self._following else self._followAlone
            follow(self.machine.not_safe(position, self._now()))

    @property
    def owes(self) -> bool:
        return bool(self._unsafeBatches) or super().owes

    def snapshot(self) -> dict[str, object]:
        mine = {"client_id": self.clientId, "unsafe_bytes": self._unsafeBytes}
        return {**mine, **super().snapshot()}


class LoginLink(SessionLink):
    """A server's link whose session decides who the client is, and may ask a portal about it."""

    factory: Any

    # On the class: an idle session weighs less.
    _deciding: Deferred[Any] | None = None
    _logout: Callable[[], Any] | None = None

    def login(self, credentials: Any, clientId: str | None = None) -> Deferred[str | None]:
        """Ask the factory's portal; the name that it gives."""
        # Not the address of the beginning: behind a proxy its first bytes say whose it is.
        address = host_of(self.transport.getPeer())
        asked = self.factory.authentication.login(credentials, address, clientId)
        return asked.addCallback(self._loggedIn)  # type: ignore[no-any-return]

    def _loggedIn(self, accepted: Any) -> str | None:
        self._logOut()  # the client was let in before, and then refused for another reason
        self.protocol.avatar, self._logout = accepted.avatar, accepted.logout
        return accepted.name  # type: ignore[no-any-return]

    def decide(self, request: Any) -> Deferred[Any]:
        """Call the hook ``authorise``; the Deferred is cancelled if the connection ends first."""
        self._deciding = maybeDeferred(self.protocol.authorise, request).addCallback(_named)
        return self._deciding

    def endLogin(self) -> None:
        """Nobody waits for a decision any more; who was let in is logged out."""
        deciding, self._deciding = self._deciding, None
        if deciding is not None:
            deciding.cancel()
        self._logOut()

    def _logOut(self) -> None:
        logout, self._logout = self._logout, None
        if logout is not None:
            maybeDeferred(logout).addErrback(
                lambda failure: self.log.failure("{peer}: logout failed", failure, peer=self.peer)
            )


def _named(who: object) -> str | None:
    """Let nobody in by mistake: not by ``return False``, nor by what has not been awaited."""
    if who is None or isinstance(who, str):
        return who
    raise TypeError(f"authorise says who it is, as text or None, or raises Refused; not {who!r}")


class Session(SessionHooks, Linked, link=SessionLink):
    """A session whose peer's messages are stored: of a server, and of clients that are asked."""

    @property
    def clientId(self) -> str | None:
        """Return who the peer is, or None."""
        client_id: str | None = self.link.clientId
        return client_id

    @property
    def messageCount(self) -> int:
        """Return how many messages the peer has sent."""
        return int(self.link.messageCount)


class ClientSession(Linked, link=OrderlyLink):
    """A client's side of one connection.

    Every verb of a client returns a Deferred, and each failure comes through that: as
    ConnectionClosed, ProtocolViolation, Refused, TimedOut, LimitExceeded or NotStored of
    :mod:`twisted_msgproto.core.errors`.
    """

    def whenEstablished(self) -> Deferred[Self]:
        """Return a Deferred that fires with this client when its session stands.

        It fails with what ended the connection before that, or has ended it since: Refused when the
        server (or TLS) said no, TimedOut, ProtocolViolation, ConnectionClosed.
        """
        standing: Deferred[Self] = self.link.whenEstablished()
        return standing
