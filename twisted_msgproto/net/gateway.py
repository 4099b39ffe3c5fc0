"""A gateway has what the servers of one process share: a sink, and the services that run them.

One protocol's ``makeService`` makes a gateway of one server; ``twistd msgproto`` makes one gateway
of many.  Either way a protocol only says how its factory is made and where it listens.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import LoopingCall
from twisted.logger import ILogObserver, Logger

from ..core.errors import ConfigurationError, MsgprotoError
from ..core.loading import failure_text
from ..core.log_output import PRIVATE
from ..core.reasons import ERRNO, cannot_listen
from .broker import ServedBroker, ServedQueues
from .broker.broker_options import Namespaces
from .counters import FlowHistory
from .endpoints import Held, ServedEndpoint, address_name, exposure
from .factory import MsgprotoServerFactory
from .logs import JsonLog, twistd_observer
from .memory import SharedState
from .options import ServerOptions
from .process import (
    KEPT_BYTES,
    count_monotonically,
    give_back_memory,
    keep_freed_memory,
    share_processor,
    spare_lasting_objects,
)
from .reloading import (
    Change,
    Reloaded,
    ReloadOnHangUp,
    Reread,
    reload,
    services_in,
    told,
)
from .sink import DurableSink, MessageSink
from .site.queue_view import BrokerView

if TYPE_CHECKING:
    from ..queue import QueueOptions

log: Logger = Logger(namespace="twisted_msgproto.gateway")

FLOOD_LOOK_SECONDS: Final = 30.0

STOP_SECONDS: Final = 4.0  # connections' and queue's end together: supervisors kill after 5 s

QUEUE_SECONDS_LEAST: Final = 0.5


class CannotStart(SystemExit, Exception):
    """A service cannot start, for a reason of one line.

    SystemExit: no traceback is printed.  Exception: ``twistd`` tells the process that made the
    daemon, and removes its pid file; for SystemExit alone that process would wait for ever.
    """


class Gateway(MultiService):
    """This service is the root: it owns the sink, and its children are the servers.

    Attributes:
        reactor: where all of it runs.
        sink: what all servers put their batches into, or None.
        shared: what its servers share: bounds of memory, and who offends.
        factories: the server factories, for the status page.
        namespaces: the queues that several of its servers share.
        rereads: what else than its services reads files again when it is reloaded.
        laterChanges: returns what a reload has found changed and does not change before the next
            start.
        flow: what came in the last 15 minutes; None where nobody can ask for it.
    """

    def __init__(
        self,
        reactor: Any,
        queue: str | None = None,
        *,
        title: str = "gateway",
        **queue_options: Unpack[QueueOptions],
    ) -> None:
        """Make a gateway; ``queue`` is a queue directory (opened when the service starts), or None.

        ``title`` stands in front of the line that says why the queue cannot be opened.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.reactor = reactor
        self._title = title
        self._unopened: tuple[str, DurableSink] | None = None
        self.sink: MessageSink | None = None
        self.shared: SharedState = SharedState()
        self._floods = LoopingCall(self._lookForFlood)
        self.factories: list[MsgprotoServerFactory] = []
        self._observer: JsonLog | None = None
        self._pidfile: str | None = None
        self._sinks: dict[str, Any] = {}  # those that options name
        self._authorisers: dict[str, Any] = {}
        self.namespaces: Namespaces = Namespaces(reactor, self.sinkOf)
        self.rereads: list[Reread] = []
        self.laterChanges: Callable[[], list[str]] = list
        self.flow: FlowHistory | None = None
        if queue is not None:
            self.sink = DurableSink.unopened(queue, reactor, **queue_options)
            self._unopened = queue, self.sink
            from .site.service import ControlService

            control: Any = ControlService(self, queue)
            control.setServiceParent(self)  # the first to start, the last to end
            self._keepFlow()

    def _keepFlow(self) -> None:
        if self.flow is None:
            self.flow = FlowHistory(self.reactor, lambda: self.factories, time.time)

    def showStatus(self, endpoint: str | None, token_file: str | None = None) -> None:
        """Serve the live page on ``endpoint``, an endpoint string, once the gateway has started.

        None serves nothing.  ``token_file`` has the token in its first line.  Raises
        ConfigurationError, one line, for an endpoint beyond this machine without TLS and a token.
        """
        if endpoint is None:
            if token_file is not None:
                raise ConfigurationError("a status token is given, and no status endpoint")
            return
        from .site.service import status_site

        site: Any = status_site(self, endpoint, token_file)
        self.rereads.append(site.reread)
        self._keepFlow()
        service = ListeningService(self.reactor, site, [endpoint])
        service.setServiceParent(self)  # type: ignore[no-untyped-call]

    def makeFactory(self, options: ServerOptions, **settings: object) -> Any:
        """Make the server factory for the options of one server, with its sink.

        ``settings`` are the arguments of its own protocol.  Raises ConfigurationError when a class
        or a sink of the operator's own cannot be made.
        """
        kind: Any = options.serverFactory
        subclass: Any = options.subclass
        own_factory = subclass is not None and issubclass(subclass, kind)
        authoriser = self.authoriserOf(options)
        if authoriser is not None:
            settings["authoriser"] = authoriser
        try:
            factory = (subclass if own_factory else kind)(
                self.sinkOf(options),
                limits=options["limits"],
                clock=self.reactor,
                shared=self.shared,
                **settings,
            )
        except Exception as error:
            if not own_factory:
                raise
            text = f"making it failed: {failure_text(error)}"
            raise ConfigurationError(f"class {options['class']!r}: {text}") from error
        if subclass is not None and not own_factory:
            factory.protocol = subclass
        factory.reusePort = bool(options["reuse-port"])
        if options["turn-warn"]:
            factory.watchTurns(options["turn-warn"] / 1e3)
        if options["log-sessions"]:
            factory.logSessions()
        self.factories.append(factory)
        self.rereads.append(options.reread)
        if options["access"] is not None:
            self.rereads.append(partial(_rules_again, options, factory))
        return factory

    def reload(self) -> Reloaded:
        """Read certificates, keys, rules, password files and tokens again; no connection is lost.

        Return what is in force now.  Raises ConfigurationError, one line, if a file is broken: then
        everything is as it was.  Either is in the log, too.
        """
        try:
            own = [one.reread for one in services_in(self) if hasattr(one, "reread")]
            done = Reloaded(reload([*self.rereads, *own]), [])
        except ConfigurationError as error:
            log.error("{title}: reload: {error}", title=self._title, error=error)
            raise
        done.later.extend(self.laterChanges())
        for line in told(*done) if any(done) else ["nothing to read again"]:
            log.info("{title}: reload: {line}", title=self._title, line=line)
        return done

    def reloadOnHangUp(self) -> None:
        """Let SIGHUP reload while this runs; a program with signals of its own does not call it."""
        service: Any = ReloadOnHangUp(self.reactor, self.reload)
        service.setServiceParent(self)

    def tellsSystemd(self, environment: Mapping[str, str]) -> None:
        """Tell systemd, if it has started this process with this ``environment``, how it is."""
        service: Any = Notifier(self.reactor, environment)
        service.setServiceParent(self)

    def logsFor(self, options: Any) -> None:
        """Write the log, and name the file of the process id, as ``twistd``'s options say."""
        self._observer = twistd_observer(options.parent, bool(options["json-log"]))
        self._pidfile = (options.parent or {}).get("pidfile")

    def setServiceParent(self, parent: Any) -> None:
        """Join an application; ``twistd`` asks it how to log."""
        if self._observer is not None and hasattr(parent, "setComponent"):
            parent.setComponent(ILogObserver, self._observer)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def broker(self) -> BrokerView | None:
        """Return the queues for consumers of all servers, or None if none has any."""
        brokers = [factory.queues for factory in self.factories if hasattr(factory, "queues")]
        return ServedQueues(list(dict.fromkeys(brokers)), self.reactor) if brokers else None

    def authoriserOf(self, options: ServerOptions) -> Any:
        """Return who says what clients of one server may do; None allows everything.

        It is whom the options name (made once, for all servers that name it), or else their rules.
        """
        return self._named(options, "authoriser", self._authorisers, options.rules)

    def _named(self, options: ServerOptions, option: str, made: dict[str, Any], usual: Any) -> Any:
        name = options[option]
        if name is None:
            return usual
        if name not in made:
            made[name] = options.makers[option](self)
        return made[name]

    def sinkOf(self, options: ServerOptions) -> MessageSink | None:
        """Return the sink that the options of one server name, or the queue's, or None.

        A named sink is made once, with this gateway as its argument, for all servers that name it.
        If it has ``open()``, that is called before the servers start; if it has ``close(seconds)``,
        that is called after they have ended and before the queue closes, and may return a Deferred.
        """
        sink: MessageSink | None = self._named(options, "sink", self._sinks, self.sink)
        return sink

    def startService(self) -> None:
        """Begin to serve: this process is a gateway from now on.

        Only here is the queue opened: ``twistd`` has become a daemon and another user by now, and
        errors go to its log.  CannotStart with one line if that cannot be.
        """
        if self._pidfile:
            with suppress(OSError):  # whatever the umask: who writes it chooses whom we are to end
                os.chmod(self._pidfile, PRIVATE)
        if self._unopened is not None:
            directory, sink = self._unopened
            try:
                sink.open()
            except (MsgprotoError, OSError) as error:
                why = ERRNO.sub("", str(error))
                raise CannotStart(f"{self._title}: queue {directory!r}: {why}") from None
            self._unopened = None
        for name, own in self._sinks.items():
            try:
                if isinstance(getattr(own, "open", lambda: None)(), Coroutine | Deferred):
                    raise TypeError("open() is a coroutine or returns a Deferred: nobody awaits it")
            except Exception as error:
                raise CannotStart(f"{self._title}: sink {name!r}: {error}") from error
        self._open_queues()
        keep_freed_memory()
        self._floods.clock = self.reactor
        self._floods.start(FLOOD_LOOK_SECONDS)
        super().startService()  # type: ignore[no-untyped-call]
        if self.flow is not None:
            self.flow.start()

    def _lookForFlood(self) -> None:
        held = self.shared.held
        if held.most > KEPT_BYTES and held.held < held.most / 2:
            held.most = held.held
            self.reactor.callInThread(give_back_memory)

    def _open_queues(self) -> None:
        for factory in self.factories:
            queues = getattr(factory, "queues", None)
            if isinstance(queues, ServedBroker):
                try:
                    queues.open()
                except (MsgprotoError, OSError) as error:
                    raise CannotStart(f"{self._title}: {factory.protocolName}: {error}") from None

    def stopService(self) -> Deferred[Any]:
        """Stop listening, let the connections end well, then flush and close the queue.

        On a full disk both would wait in vain: together they last no longer than
        :data:`STOP_SECONDS`, unless an operator has set a longer ``drain`` for the connections.
        """
        until = self.reactor.seconds() + STOP_SECONDS
        if self._floods.running:
            self._floods.stop()
        if self.flow is not None:
            self.flow.stop()
        stopped: Deferred[Any] = maybeDeferred(super().stopService)
        for name, own in self._sinks.items():
            stopped.addBoth(self._closeSink, name, own, until)
        if isinstance(self.sink, DurableSink) and self._unopened is None:
            sink = self.sink

            def close(result: Any) -> Deferred[Any]:
                left = max(QUEUE_SECONDS_LEAST, until - self.reactor.seconds())
                return sink.close(left).addCallback(lambda closed: result)

            stopped.addBoth(close)
        return stopped

    def _closeSink(self, result: Any, name: str, sink: Any, until: float) -> Deferred[Any]:
        left = max(QUEUE_SECONDS_LEAST, until - self.reactor.seconds())
        closed: Deferred[Any] = maybeDeferred(getattr(sink, "close", lambda seconds: None), left)
        closed.addTimeout(left, self.reactor)
        closed.addErrback(
            lambda failure: log.failure("sink {name} was not closed", failure, name=name)
        )
        return closed.addCallback(lambda _: result)


class Notifier(Service):
    """Tells systemd when the servers listen, that the reactor turns, and when the end begins."""

    def __init__(self, reactor: Any, environment: Mapping[str, str]) -> None:
        """``environment`` has NOTIFY_SOCKET and WATCHDOG_USEC, as systemd sets them, or neither."""
        self._reactor = reactor
        socket_name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{socket_name[1:]}" if socket_name[:1] == "@" else socket_name
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._usec = int(environment.get("WATCHDOG_USEC", "0")) if mine else 0
        self._pings = LoopingCall(self._tell, "WATCHDOG=1")
        self._pings.clock = reactor

    def startService(self) -> None:
        """Tell that it serves, once the reactor runs: everything listens by then."""
        super().startService()  # type: ignore[no-untyped-call]
        self._reactor.callWhenRunning(self._ready)

    def _ready(self) -> None:
        if self.running:
            self._tell("READY=1")
            if self._usec:
                self._pings.start(self._usec / 2e6)

    def stopService(self) -> None:
        super().stopService()  # type: ignore[no-untyped-call]
        if self._pings.running:
            self._pings.stop()
        self._tell("STOPPING=1")

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(state.encode(), self._address)
            except OSError as error:
                log.warn("systemd was not told {state}: {error}", state=state, error=error)


def _rules_again(options: ServerOptions, factory: Any) -> Iterator[Change]:
    rules = options.readRules()

    def apply() -> None:
        factory.authoriser = rules

    yield Change(f"{options.protocolName}: rules of {options['access']}", apply)


def announce(name: str, address: str) -> None:
    print(f"{name} listening on {address}", file=sys.stdout, flush=True)


class ListeningService(Service):
    """One factory on any number of endpoints, with an end that loses nothing.

    ``stopService`` stops listening first; then the factory lets its connections end well.
    """

    def __init__(
        self,
        reactor: Any,
        factory: MsgprotoServerFactory,
        descriptions: Iterable[str],
        announced: Callable[[str, str], None] = announce,
    ) -> None:
        self._reactor = reactor
        self.factory = factory
        self._descriptions = list(descriptions)
        self._endpoints: list[ServedEndpoint] = []
        self._announced = announced
        self._reuses = getattr(factory, "reusePort", False)
        self._refusal = ""
        self.ports: list[IListeningPort] = []

    def startService(self) -> None:
        """Listen on every endpoint; what cannot be listened on ends the process with one line."""
        super().startService()  # type: ignore[no-untyped-call]
        self._endpoints = [
            ServedEndpoint(self._reactor, text, reused=self._reuses) for text in self._descriptions
        ]
        for endpoint in self._endpoints:
            description = endpoint.description
            endpoint.listen(self.factory).addCallbacks(
                self._listening,
                self._refused,
                callbackArgs=(description,),
                errbackArgs=(description,),
            )
            if self._refusal and not self._reactor.running:
                raise CannotStart(self._refusal)

    def reread(self) -> Iterator[Change]:
        """Yield what a reload changes: certificates that were read again."""
        for endpoint in self._endpoints:
            yield from endpoint.reread(self.factory.protocolName)

    def refusals(self, held: Held) -> Iterator[str]:
        """Yield why one of its addresses cannot be listened on; each is a line for the operator."""
        for description in self._descriptions:
            why = held.refusal(description, self.factory, reused=self._reuses)
            if why is not None:
                yield self._refusalText(description, why)

    def _refusalText(self, description: str, why: str) -> str:
        return f"{self.factory.protocolName}: cannot listen on {description}: {why}"

    def _listening(self, port: IListeningPort, description: str) -> None:
        self.ports.append(port)
        warning = exposure(description, port.getHost())
        if warning is not None:
            name = self.factory.protocolName
            log.warn("{name}: {warning}", name=name, warning=warning)
        # Once the reactor runs: from then on a signal ends the process in peace, too.
        self._reactor.callWhenRunning(
            self._announced, self.factory.protocolName, address_name(port.getHost(), description)
        )

    def _refused(self, failure: Any, description: str) -> None:
        why = cannot_listen(getattr(failure.value, "socketError", failure.value))
        self._refusal = self._refusalText(description, why)
        if self._reactor.running:
            log.critical("{text}", text=self._refusal)
            print(self._refusal, file=sys.stderr)
            # twistd knows no exit status of its own: leave with one when all is shut down.
            self._reactor.addSystemEventTrigger("after", "shutdown", os._exit, 2)
            self._reactor.stop()

    def stopService(self) -> Deferred[Any]:
        """Stop listening; fires when the connections have ended in order."""
        super().stopService()  # type: ignore[no-untyped-call]
        closed = [maybeDeferred(port.stopListening) for port in self.ports]
        self.ports = []
        return gatherResults(closed, consumeErrors=True).addBoth(lambda _: self.factory.drain())


def standalone(
    options: ServerOptions, serve: Callable[[ServerOptions, Gateway], Any], reactor: Any = None
) -> Gateway:
    """Return the service of a protocol's twistd plugin; SystemExit, one line, if it cannot be."""
    if reactor is None:
        from twisted.internet import reactor

        count_monotonically(reactor)
        cast(Any, reactor).callWhenRunning(spare_lasting_objects)
        share_processor()
    try:
        gateway = Gateway(reactor, options["queue"], title=options.protocolName)
        serve(options, gateway).setServiceParent(gateway)
        gateway.showStatus(options["status"], options["status-token"])
        gateway.reloadOnHangUp()
        gateway.tellsSystemd(os.environ)
        gateway.logsFor(options)
    except ConfigurationError as error:
        raise SystemExit(f"{options.protocolName}: {error}") from None
    return gateway
