"""A gateway.toml with ``processes = N`` runs N gateways behind the same ports, under a supervisor.

``python -m twisted_msgproto.processes N`` is one of them: the supervisor starts it, and nobody
else.  It reads its job from its stdin, as one line of JSON, and ends when its stdin ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from twisted.application.service import MultiService, Service
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger, globalLogBeginner
from zope.interface import implementer

from .core.errors import ConfigurationError
from .gateway import Configuration, FileAgain, Options, serve, show_status
from .net.gateway import Gateway
from .net.jsonlog import JsonLog, twistd_observer
from .net.memory import share_processor, spare_lasting_objects
from .net.monotonic import count_monotonically
from .net.processes.ports import Shareable, share_ports
from .net.processes.shares import Share
from .net.processes.supervisor import Plan, Supervisor
from .net.processes.worker import SERVES, Job
from .net.trying import BindingReactor, refusals

MODULE: Final = "twisted_msgproto.processes"
"""This module is run as each of the processes."""

WORDS: Final = (
    *("config", "queue", "limit", "set", "processes", "log-sessions", "status", "status-token"),
)
"""A process reads its file as these words of the supervisor's command line say."""

log = Logger(namespace="twisted_msgproto.processes")


# ── the supervisor ──────────────────────────────────────────────────────────────────────────────


class Servers:
    """Has the servers of a file; they are made to be checked, and never start.

    Attributes:
        gateway: the gateway of all of them; its services are those that every process runs.
        alone: the services that the first process runs alone.
    """

    def __init__(self, configuration: Configuration, reactor: Any) -> None:
        """Raises ConfigurationError for what can be told before anything starts."""
        self.gateway = Gateway(reactor, title="msgproto")
        self.alone: Any = MultiService()
        options = configuration.serversOf(Share(0, configuration.processes or 1))
        for name, service in zip(options, serve(options, self.gateway), strict=True):
            service.setServiceParent(self.alone if name in configuration.alone else self.gateway)
        refused = list(refusals(self.gateway, Shareable()))
        if refused and configuration.processes != 1:
            raise ConfigurationError("; ".join(refused))

    def refusals(self, reactor: BindingReactor) -> list[str]:
        """Return a line for each endpoint that cannot be listened on now."""
        return [*refusals(self.gateway, reactor), *refusals(self.alone, reactor)]


def check_queue_place(configuration: Configuration) -> None:
    """Raise ConfigurationError if the queues of several processes cannot be where they are to be.

    A queue that stands in the directory itself, from a time with one process, is landed like the
    others; but nobody would deliver a broker's messages in it.
    """
    from .queue.below import has_broker, is_queue, queue_of

    directory = configuration.queue.get("directory")
    if directory is None or not is_queue(directory):
        return
    if has_broker(directory):
        first = queue_of(directory, 0)
        raise ConfigurationError(
            f"[queue]: directory {directory!r} is the queue of a gateway without processes, and a"
            f" broker's messages are in it: move everything in it to {first!r} first, while neither"
            " gateway nor bridge runs"
        )


def supervised(options: Options, reactor: Any) -> Supervisor:
    """Return the service that runs the processes; SystemExit, one line, if it cannot be made."""
    configuration: Configuration = options["configuration"]
    try:
        servers = Servers(configuration, reactor)
        again = FileAgain(options, servers.gateway)
        supervisor = Supervisor(reactor, _plan(options, servers, again))
        show_status(configuration, supervisor)
    except ConfigurationError as error:
        raise SystemExit(f"msgproto: {options['config']}: {error}") from None
    supervisor.rereads.append(again.reread)
    supervisor.reloadOnHangUp()
    supervisor.logsWith(twistd_observer(options.parent) if options["json-log"] else None)
    return supervisor


def _plan(options: Options, servers: Servers, again: FileAgain) -> Plan:
    configuration: Configuration = options["configuration"]
    queue = configuration.queue.get("directory")
    count = configuration.processes or 1
    plan = Plan(
        count=count,
        queue=queue,
        sockets="" if queue is None else queue,
        job=lambda number, ports: _job(options, again, plan, number, ports),
        gateway=servers.gateway,
        alone=servers.alone,
        brokers=any(hasattr(factory, "queues") for factory in servers.gateway.factories),
        hang=configuration.hang_seconds,
        drain=max(factory.limits["drain"] for factory in servers.gateway.factories),
    )

    def before() -> None:
        if queue is None:
            plan.sockets = tempfile.mkdtemp(prefix="msgproto-")
            for number in range(count):
                os.mkdir(os.path.join(plan.sockets, str(number)))
        else:
            check_queue_place(configuration)

    def after() -> None:
        if queue is None and plan.sockets:
            shutil.rmtree(plan.sockets, ignore_errors=True)

    plan.before, plan.after = before, after
    if queue is not None:
        plan.former = partial(_former, queue, count)
        plan.leftovers = partial(_leftovers, queue, count)
    return plan


def _leftovers(directory: str, count: int) -> list[str]:
    """Mend the queues at ``directory`` that none of ``count`` processes has; return lines for the
    log.
    """
    from .queue.below import mend_former

    return mend_former(_former(directory, count))


def _former(directory: str, count: int) -> list[str]:
    """Return the queues at ``directory`` that none of ``count`` processes has."""
    from .queue.below import is_queue, numbered

    own = {str(number) for number in range(count)}
    below = [place for place in numbered(directory) if os.path.basename(place) not in own]
    return [directory, *below] if is_queue(directory) else below


def _job(options: Options, again: FileAgain, plan: Plan, number: int, ports: list[int]) -> Job:
    """Return how the process ``number`` is started now."""
    job = {
        "number": number,
        "count": plan.count,
        "tables": again.inForce(),
        "words": {name: options[name] for name in WORDS},
        "path": str(options.path),
        "queue": None if plan.queue is None else os.path.abspath(plan.queue),
        "socket": os.path.join(plan.sockets, str(number)),
        "ports": ports,
        "reactor": type(plan.gateway.reactor).__module__,
    }
    places = [os.path.join(options.directory, place) for place in sys.path]
    return Job(
        [sys.executable, "-m", MODULE, str(number)],
        {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"},
        # A file may name others by relative paths; a daemon has gone to another directory.
        options.directory if os.access(options.directory, os.X_OK) else None,
        json.dumps(job).encode() + b"\n",
    )


# ── one of its processes ────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Be one of the processes; the supervisor's job comes on stdin."""
    job = json.loads(_first_line(sys.stdin.fileno()))
    with contextlib.suppress(PermissionError):
        os.setsid()  # Ctrl-C reaches the supervisor, which ends its processes in order
    install = getattr(importlib.import_module(job["reactor"]), "install", None)
    if install is not None:
        install()
    from twisted.internet import reactor as installed

    reactor: Any = installed
    globalLogBeginner.beginLoggingTo([JsonLog(sys.stdout)], redirectStandardIO=False)
    count_monotonically(reactor)
    reactor.callWhenRunning(spare_lasting_objects)
    share_processor()
    share_ports(reactor, job["ports"])
    try:
        gateway = one_process(job, reactor)
    except ConfigurationError as error:
        raise SystemExit(f"{job['words']['config']}: {error}") from None
    reactor.addReader(_Supervisor(reactor))
    service: Any = gateway
    service.privilegedStartService()
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", gateway.stopService)
    reactor.run()


def _first_line(descriptor: int) -> bytes:
    """Return the first line of a pipe, and nothing of what follows it."""
    octets = b""
    while not octets.endswith(b"\n"):
        more = os.read(descriptor, 1 << 16)
        if not more:
            raise SystemExit("the supervisor has ended, and this process has no job")
        octets += more
    return octets


def one_process(job: dict[str, Any], reactor: Any) -> Gateway:
    """Return the gateway of one process; ConfigurationError for what cannot be."""
    share = Share(job["number"], job["count"])
    options = Options()
    for name, value in job["words"].items():
        options[name] = value
    options.path = Path(job["path"])
    configuration = options["configuration"] = Configuration(job["tables"])
    keys: dict[str, Any] = {}
    if job["queue"] is not None:
        from .queue.below import queue_of
        from .queue.log import MAX_BYTES

        keys = share.queue(configuration.queue, MAX_BYTES)
        keys["directory"] = queue_of(job["queue"], share.number)
    queue = keys.pop("directory", None)
    settings = {key.replace("-", "_"): value for key, value in keys.items()}
    gateway = Gateway(reactor, queue, title="msgproto", **settings)
    if queue is None:
        gateway.serveControl(job["socket"])
    servers = configuration.serversOf(share)
    for name, own in servers.items():
        own["limits"] = share.limits(own["limits"], name in configuration.alone)
    for service in serve(servers, gateway):
        service.setServiceParent(gateway)
    again = FileAgain(options, gateway)
    gateway.rereads.append(again.reread)
    gateway.laterChanges = again.later
    last: Any = _Serving(reactor)  # the last to start
    last.setServiceParent(gateway)
    return gateway


class _Serving(Service):
    """Says that every server listens."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def startService(self) -> None:
        """Say it once the reactor runs: the servers have said where they listen by then."""
        super().startService()  # type: ignore[no-untyped-call]
        self._reactor.callWhenRunning(log.info, "this process serves", event=SERVES)


@implementer(IReadDescriptor)
class _Supervisor:
    """Ends this process when the supervisor's end of our stdin is closed."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._ended = False

    def fileno(self) -> int:
        """Return stdin; the reactor asks for it."""
        return sys.stdin.fileno()

    def doRead(self) -> None:
        """Nothing but the end comes; the reactor calls this where a read tells it."""
        if not os.read(self.fileno(), 1 << 12):
            self._reactor.removeReader(self)
            self.connectionLost()

    def connectionLost(self, reason: object = None) -> None:
        """End; the reactor calls this when the pipe is closed, and at its own end."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ReactorNotRunning):
                self._reactor.stop()

    def logPrefix(self) -> str:
        """Return what the reactor's log calls this."""
        return "supervisor"


if __name__ == "__main__":
    main()
