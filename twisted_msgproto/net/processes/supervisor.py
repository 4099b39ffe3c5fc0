"""The service that starts the processes of a gateway, keeps them running, and ends them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, fail, gatherResults
from twisted.logger import ILogObserver, Logger
from twisted.python.failure import Failure

from ...core.errors import ConfigurationError, MsgprotoError, QueueAway
from ..control.shapes import BrokerView
from ..gateway import STOP_SECONDS, CannotStart, Gateway, ListeningService, announce
from ..jsonlog import JsonLog
from ..reloading import Reloaded, ReloadOnHangUp, Reread, reload, told
from ..trying import BindingReactor, refusals
from .asking import RELOAD_SECONDS, BrokerOf, ask
from .figures import SILENT, SupervisedFigures, behind_of, nobodys, what_it_does
from .former import FormerQueues
from .ports import HeldPorts
from .watch import HANG_SECONDS, Watch
from .worker import Job, State, Worker

LISTENS: Final = re.compile(r"(.+) listening on (\S+)")
"""A server says so where it listens."""

KILL_SECONDS: Final = 3.0
"""A process that has not ended this long after its time is ended with SIGKILL."""

LOCK_FILE: Final = "lock"
"""The supervisor locks this file in the directory of the queues, as a queue's writer does."""

log = Logger(namespace="twisted_msgproto.processes")


@dataclass
class Plan:
    """Says what a supervisor runs.

    Attributes:
        count: how many processes.
        queue: the directory of the processes' queues; None: there are no queues.
        sockets: the directory of the directories with their sockets.
        job: returns how the process of a number is started, and shares these ports.
        gateway: the servers of all processes, which never start: they know where to listen.
        alone: the services that the first process runs alone.
        brokers: whether process 0 has a broker.
        drain: the longest time that connections may take to end, in seconds.
        hang: a process that does not answer for this long is killed, in seconds; 0: none is.
        before: what is checked before anything starts; raises ConfigurationError or QueueError.
        after: what is removed when everything has ended.
        leftovers: mends the queues that no process has, and returns lines for the log.  This is
            called before the directory is locked, which may be such a queue itself.
        former: returns the directories of these queues; None: there can be none.
    """

    count: int
    queue: str | None
    sockets: str
    job: Callable[[int, list[int]], Job]
    gateway: Gateway
    alone: Any
    brokers: bool = False
    drain: float = STOP_SECONDS
    hang: float = HANG_SECONDS
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    leftovers: Callable[[], list[str]] = field(default=list)
    former: Callable[[], list[str]] | None = None


class Supervisor(MultiService):
    """Runs the processes of one gateway.

    To a status site it is what a gateway is: it has ``figures``, ``broker()``, ``reload()`` and the
    ``factories`` that describe the servers.

    Attributes:
        workers: one for each process.
        figures: gathers the figures of all.
        rereads: what the supervisor itself reads again when it is reloaded.
        laterChanges: returns what a reload has found changed and does not change.
    """

    def __init__(self, reactor: Any, plan: Plan, title: str = "msgproto") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reactor = reactor
        self.factories = plan.gateway.factories
        self.rereads: list[Reread] = []
        self.workers = [
            Worker(number, reactor, self._job, self._changed, self._plain)
            for number in range(plan.count)
        ]
        former = None if plan.former is None else FormerQueues(reactor, plan.former)
        self.figures = SupervisedFigures(
            *(reactor, plan.count, self._ask, self._about),
            durable=plan.queue is not None,
            former=nobodys if former is None else former.latest,
        )
        self._watch = Watch(reactor, self._ask_alive, self._answers, self._hangs, plan.hang)
        self._plan = plan
        self._title = title
        self._held: HeldPorts | None = None
        self._unlock: Callable[[], None] | None = None
        self._announced: set[str] = set()
        # The files have changed since these processes have started, perhaps after they read them.
        self._behind: set[int] = set()
        self._refused = False
        self._ending = False
        self._observer: JsonLog | None = None
        self._began = time.time()
        if plan.queue is not None:
            from ..control.service import ControlService
            from ..status.service import unguarded_root

            control: Any = ControlService(
                reactor, plan.queue, self.broker, lambda broker: unguarded_root(self)
            )
            control.setServiceParent(self)

    # ── its parts, as a gateway has them ────────────────────────────────────────────────────────

    def showStatus(self, endpoint: str | None, token_file: str | None = None) -> None:
        """Serve the live page on ``endpoint``; see :meth:`.Gateway.showStatus`."""
        if endpoint is None:
            if token_file is not None:
                raise ConfigurationError("a status token is given, and no status endpoint")
            return
        from ..status.service import status_site

        site: Any = status_site(self, endpoint, token_file)
        self.rereads.append(site.reread)
        service: Any = ListeningService(self.reactor, site, [endpoint])
        service.setServiceParent(self)

    def reloadOnHangUp(self) -> None:
        """Let SIGHUP reload while this runs."""

        def again() -> Any:
            # What went wrong is in the log.
            return self.reload().addErrback(lambda failure: failure.trap(MsgprotoError) and None)

        service: Any = ReloadOnHangUp(self.reactor, again)
        service.setServiceParent(self)

    def logsWith(self, observer: JsonLog | None) -> None:
        """Log with ``observer``; ``twistd`` asks for it."""
        self._observer = observer

    def setServiceParent(self, parent: Any) -> None:
        """Join an application; ``twistd`` asks it how to log."""
        if self._observer is not None and hasattr(parent, "setComponent"):
            parent.setComponent(ILogObserver, self._observer)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def broker(self) -> BrokerView | None:
        """Return the queues of the broker in process 0; None if there is none."""
        if not self._plan.brokers:
            return None
        return BrokerOf(self.reactor, self._socket(0), lambda: self._away(self.workers[0]))

    # ── start and end ───────────────────────────────────────────────────────────────────────────

    def startService(self) -> None:
        """Hold every port, then start the processes; CannotStart, one line, if that cannot be."""
        try:
            lines = self._prepare()
            self._hold_ports()
            super().startService()  # type: ignore[no-untyped-call]
        except CannotStart:
            self._plan.after()
            raise
        for line in lines:
            log.warn("{line}", line=line)
        for worker in self.workers:
            worker.start()
        self._watch.start()

    def _prepare(self) -> list[str]:
        """Check the queues' directory and lock it; return lines for the log."""
        try:
            self._plan.before()
            lines = self._plan.leftovers()
            self._lock()
        except (MsgprotoError, OSError) as error:
            raise CannotStart(f"{self._title}: {error}") from None
        return lines

    def _lock(self) -> None:
        """Lock the directory of the queues: no other gateway has its processes there."""
        if self._plan.queue is None:
            return
        from ...queue.disk import OS_DISK

        OS_DISK.make_directory(self._plan.queue)
        path = os.path.join(self._plan.queue, LOCK_FILE)
        busy = f"queue {self._plan.queue!r}: another gateway has its queues there"
        self._unlock = OS_DISK.lock(path, busy)

    def _hold_ports(self) -> None:
        trying, held = BindingReactor(), HeldPorts(len(self.workers) == 1)
        try:
            # First as the only one: a port that another gateway shares would be shared unnoticed.
            refused = [
                *refusals(self._plan.gateway, trying),
                *refusals(self._plan.alone, trying),
            ]
        finally:
            trying.close()
        refused = refused or list(refusals(self._plan.gateway, held))
        if refused:
            held.close()
            raise CannotStart("; ".join(refused))
        self._held = held

    def _job(self, number: int) -> Job:
        return self._plan.job(number, [] if self._held is None else self._held.ports)

    def stopService(self) -> Deferred[Any]:
        """Let every process end in peace, and end with SIGKILL what does not end in time."""
        self._ending = True
        self._watch.stop()
        stopped = [worker.stop() for worker in self.workers]
        seconds = max(STOP_SECONDS, self._plan.drain) + KILL_SECONDS
        late = self.reactor.callLater(seconds, self._kill)

        def ended(_: object) -> Any:
            if late.active():
                late.cancel()
            if self._held is not None:
                self._held.close()
            if self._unlock is not None:
                self._unlock()
            self._plan.after()
            return MultiService.stopService(self)

        return gatherResults(stopped).addCallback(ended)

    def _kill(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGKILL)

    # ── what processes do and say ───────────────────────────────────────────────────────────────

    def _changed(self, worker: Worker) -> None:
        if worker.state is not State.SERVING:
            self._watch.end(worker.number)
        if worker.state is State.SERVING:
            self._watch.begin(worker.number)
            serving = sum(one.state is State.SERVING for one in self.workers)
            log.info(
                "process {process} serves ({serving} of {count} do)",
                process=worker.number,
                serving=serving,
                count=len(self.workers),
                event="process serves",
            )
            self._catch_up(worker)
        elif worker.state is State.WAITING and not worker.served and not self._ending:
            self._refuse(f"{self._title}: process {worker.number} {worker.ended_because}")
            worker.stop()  # all end now: it does not start again

    def _answers(self, number: int) -> None:
        """A process turns; the watch calls this."""
        self._catch_up(self.workers[number])

    def _hangs(self, number: int, seconds: float) -> None:
        """A process hangs: kill it, and it starts again.  The watch calls this."""
        log.error(
            "process {process} has not answered for {seconds:g} s: it is killed",
            process=number,
            seconds=seconds,
            event="process hangs",
        )
        self.workers[number].kill(f"was killed because it did not answer for {seconds:g} s")

    def _refuse(self, text: str) -> None:
        """A process cannot start: end all, as one process alone would end."""
        if self._refused:
            return
        self._refused = True
        log.critical("{text}", text=text)
        print(text, file=sys.stderr, flush=True)
        # twistd knows no exit status of its own: leave with one when all is shut down.
        self.reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
        self.reactor.callWhenRunning(self.reactor.stop)

    def _plain(self, worker: Worker, line: str) -> None:
        """A process has said a line that is no log's: where it listens is said once for all."""
        listens = LISTENS.fullmatch(line)
        if listens is None:
            log.info("process {process}: {text}", process=worker.number, text=line)
        elif line not in self._announced:
            self._announced.add(line)
            announce(listens[1], listens[2])

    # ── asking them ─────────────────────────────────────────────────────────────────────────────

    def _socket(self, number: int) -> str:
        return os.path.join(self._plan.sockets, str(number))

    def _ask(self, number: int, path: str, query: Mapping[str, str]) -> Deferred[Any]:
        away = self._away(self.workers[number])
        if away is not None:
            return fail(QueueAway(f"process {number} {away}"))
        return Deferred.fromCoroutine(ask(self.reactor, self._socket(number), path, query=query))

    def _ask_alive(self, number: int) -> Deferred[Any]:
        asked = ask(self.reactor, self._socket(number), "alive", seconds=None)
        return Deferred.fromCoroutine(asked)

    def _away(self, worker: Worker) -> str | None:
        """Return what a process does that is not to be asked, as a predicate; None: it is."""
        if worker.state is not State.SERVING:
            return what_it_does(self._shown(worker, None))
        return SILENT if self._watch.silent(worker.number) else None

    def _about(self) -> dict[str, Any]:
        from ... import __version__

        now = time.time()
        parts = self.figures.parts
        return {
            "at": int(now * 1e6),
            "gateway": {
                "version": __version__,
                "pid": os.getpid(),
                "started_at": int(self._began * 1e6),
                "uptime_seconds": round(now - self._began, 1),
            },
            "limits": self._limits(parts),
            "processes": [self._shown(worker, parts.get(worker.number)) for worker in self.workers],
        }

    def _shown(self, worker: Worker, part: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the page shows of one process; ``part`` are its figures, if it answers."""
        return {
            "number": worker.number,
            "state": worker.state.value,
            "pid": worker.pid,
            "restarts": worker.restarts,
            "ended_because": worker.ended_because,
            "answers": part is not None,
            "sessions": None if part is None else part["sessions_total"],
            "behind_messages": None if part is None else behind_of(part),
        }

    def _limits(self, parts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the limits that were met, with the values that the operator set for all."""
        shown: dict[str, Any] = {}
        for factory in self.factories:
            met = {
                name
                for one in parts.values()
                for name in one["limits"].get(factory.protocolName, ())
                if name in factory.limits
            }
            shown[factory.protocolName] = {
                name: {"value": factory.limits[name], "unit": factory.limits.table[name].unit}
                for name in sorted(met)
            }
        return shown

    def reload(self) -> Deferred[Reloaded]:
        """Let every process read its files again, one after the other; no connection is lost.

        It fails with ConfigurationError if a file is broken.  Files are the same for all, so the
        first process refuses what every other one would, and nothing has changed then.
        """
        return Deferred.fromCoroutine(self._reload())

    async def _reload(self) -> Reloaded:
        done: list[str] = []
        later: list[str] = []
        changed = 0
        silent: list[str] = []
        try:
            own = list(self._own_changes())
            for worker in self.workers:
                if worker.state is not State.SERVING:
                    self._behind.add(worker.number)
                    continue
                try:
                    answer = await self._reload_one(worker)
                except QueueAway as error:
                    # It may have died just now; the others are to have what is new all the same.
                    self._behind.add(worker.number)
                    silent.append(f"process {worker.number}: {error}")
                    continue
                changed += 1
                done += answer["done"]
                later += answer["later"]
            done += reload([partial(iter, own)])
            if silent:
                raise QueueAway("; ".join(silent))
        except MsgprotoError as error:
            text = str(error)
            if changed:
                text = f"{changed} of {len(self.workers)} processes have changed, then: {text}"
            log.error("{title}: reload: {text}", title=self._title, text=text)
            raise ConfigurationError(text) from None
        told_once = Reloaded(list(dict.fromkeys(done)), list(dict.fromkeys(later)))
        for line in told(*told_once) if any(told_once) else ["nothing to read again"]:
            log.info("{title}: reload: {line}", title=self._title, line=line)
        return told_once

    async def _reload_one(self, worker: Worker) -> Any:
        if self._watch.silent(worker.number):
            raise QueueAway("it does not answer, and reads its files again when it does")
        place = self._socket(worker.number)
        return await ask(self.reactor, place, "reload", method="POST", seconds=RELOAD_SECONDS)

    def _catch_up(self, worker: Worker) -> None:
        """Let a process read its files again if it was not reached when they changed."""
        if worker.number not in self._behind:
            return
        self._behind.discard(worker.number)

        def failed(failure: Failure) -> None:
            if failure.check(QueueAway) and self._watch.silent(worker.number):
                self._behind.add(worker.number)  # it hangs again: this is for its next answer
            text = failure.getErrorMessage()
            log.error("process {process}: reload: {text}", process=worker.number, text=text)

        Deferred.fromCoroutine(self._reload_one(worker)).addErrback(failed)

    def _own_changes(self) -> Iterator[Any]:
        for reread in self.rereads:
            yield from reread()


__all__ = ["Plan", "Supervisor"]
