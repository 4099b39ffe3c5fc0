"""Gathers the figures of a gateway as plain values, while its connections live.

Sessions that have not changed are not asked again, and whatever asks many does it in slices, so
that 10,000 sessions do not keep the reactor.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from enum import Enum
from itertools import accumulate, islice
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred, succeed
from twisted.internet.task import Cooperator
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from ..counters import BOUNDS
from ..deferreds import Waiters
from ..sink import DurableSink
from .queue_figures import (
    NOTHING_READ,
    SHOWN_MAX,
    healthy,
    queue_figures,
    read_figures,
    safe_and_landing,
    short,
)

Figures = dict[str, Any]  # as JSON has them; ``docs/status.md`` describes them

KEPT_SECONDS: Final = 1.0

SLICE_SESSIONS: Final = 500

OFFENDERS_SHOWN_MAX: Final = 50

LATENCY_BOUNDS: Final = tuple(
    place for place, bound in enumerate(BOUNDS) if f"{bound:e}"[:3] in ("1.0", "2.5", "5.0")
)

QUEUE_SECONDS: Final = 3.0

DISK_SILENT: Final = f"the disk does not answer within {QUEUE_SECONDS:g} s"


class GatewayFigures:
    def __init__(self, gateway: Any, reactor: Any) -> None:
        self._gateway = gateway
        self._reactor = reactor
        self._began = reactor.seconds()
        self._started_at = time.time()
        self._kept: Figures | None = None
        self._kept_at = -inf
        self._gathering: Waiters[Figures] | None = None
        self._reading: Deferred[Figures] | None = None
        self._read_last: Mapping[str, Any] = NOTHING_READ
        self._searching = DeferredLock()
        self._cooperator = Cooperator(
            terminationPredicateFactory=lambda: lambda: True,
            scheduler=lambda slice: reactor.callLater(0, slice),
        )

    def latest(self) -> Deferred[Figures]:
        def with_sessions(summary: Figures) -> Figures:
            answer: Figures = {}
            list(self._search("", "", "", answer))
            return {**summary, "sessions": answer["sessions"]}

        return self.summary().addCallback(with_sessions)

    def summary(self) -> Deferred[Figures]:
        """Return the figures as they are now, or were within the last second."""
        kept_for = self._reactor.seconds() - self._kept_at
        if self._kept is not None and kept_for < KEPT_SECONDS:
            return succeed(self._kept)
        if self._gathering is not None:
            return self._gathering.wait()
        gathering: Waiters[Figures] = Waiters()
        self._gathering = gathering
        asked = gathering.wait()
        self._gather().addBoth(self._gathered, gathering)
        return asked

    def _gathered(self, result: Figures | Failure, gathering: Waiters[Figures]) -> None:
        self._gathering = None
        if isinstance(result, Failure):
            gathering.fail(result)
        else:
            self._kept, self._kept_at = result, self._reactor.seconds()
            gathering.fire(result)

    def _gather(self) -> Deferred[Figures]:
        figures: Figures = {}

        def with_queue(queue: Figures | None) -> Deferred[Any]:
            figures["at"] = int(time.time() * 1e6)
            figures["gateway"] = self._about()
            figures["safe"] = safe_and_landing(queue).as_dict()
            figures["healthy"] = healthy(queue).as_dict()
            figures["queue"] = queue
            figures["memory"] = self._memory()
            figures["flow"] = None if self._gateway.flow is None else self._gateway.flow.figures()
            figures["offenders"] = self._offenders()
            self._protocols(figures)
            view = self._gateway.broker()
            return maybeDeferred(lambda: () if view is None else view.queues())

        def with_broker(queues: Any) -> Figures:
            figures["broker"] = _broker(list(queues))
            return figures

        return self._read_queue().addCallback(with_queue).addCallback(with_broker)

    def _about(self) -> Figures:
        from ... import __version__

        return {
            "version": __version__,
            "pid": os.getpid(),
            "started_at": int(self._started_at * 1e6),
            "uptime_seconds": round(self._reactor.seconds() - self._began, 1),
        }

    # ── the queue ───────────────────────────────────────────────────────────────────────────────

    def _read_queue(self) -> Deferred[Figures | None]:
        """Read the queue's files in a thread; a disk that hangs is not asked twice."""
        sink = self._gateway.sink
        if not isinstance(sink, DurableSink):
            return succeed(None)
        from ...queue import QueueWriter  # without a queue its packages need not be there

        writer = getattr(sink, "writer", None)  # there is none before the start
        if not isinstance(writer, QueueWriter):
            return succeed(None)
        if self._reading is not None:  # whoever asked for that does not wait any more
            return succeed(queue_figures(writer, self._of_silent_disk()))
        pool = self._reactor.getThreadPool()
        self._reading = deferToThreadPool(
            self._reactor, pool, read_figures, writer.directory, time.time()
        ).addBoth(self._read)
        answer: Deferred[Mapping[str, Any]] = Deferred()
        self._reading.addBoth(_passed_to, answer)
        answer.addTimeout(QUEUE_SECONDS, self._reactor)
        answer.addErrback(lambda _: self._of_silent_disk())
        return answer.addCallback(lambda read: queue_figures(writer, read))

    def _read(self, result: Figures | Failure) -> Figures | Failure:
        self._reading = None
        if not isinstance(result, Failure):
            self._read_last = result
        return result

    def _of_silent_disk(self) -> Figures:
        return {**self._read_last, "unreadable": DISK_SILENT}

    # ── the connections ─────────────────────────────────────────────────────────────────────────

    def _memory(self) -> Figures:
        shared = self._gateway.shared
        ledger = shared.held
        return {
            "waiting_bytes": shared.waiting,
            "waiting_limit_bytes": _finite(shared.limit),
            "waiting_connections": shared.senders,
            "held_bytes": ledger.held,
            "held_limit_bytes": _finite(ledger.limit),
            "kept_bytes": shared.session_memory.nbytes,
            "kept_limit_bytes": _finite(shared.session_memory.limit),
        }

    def _offenders(self) -> Figures:
        offenders, now = self._gateway.shared.offenders, self._reactor.seconds()
        return {
            "worst": [
                {
                    "protocol": one.protocol,
                    "address": one.address,
                    "reason": one.reason,
                    "times": one.times,
                    "seconds_ago": round(now - one.last, 1),
                }
                for one in offenders.worst(OFFENDERS_SHOWN_MAX)
            ],
            "pairs": len(offenders),
            "forgotten_faults": offenders.forgotten,
        }

    def _limits(self, protocols: Mapping[str, Figures]) -> Figures:
        return {
            factory.protocolName: {
                name: {"value": factory.limits[name], "unit": factory.limits.table[name].unit}
                for name in protocols[factory.protocolName]["limits_met"]
                if name in factory.limits
            }
            for factory in self._gateway.factories
        }

    # ── searching for sessions ──────────────────────────────────────────────────────────────────

    def search(self, protocol: str, state: str, text: str) -> Deferred[Figures]:
        """Return sessions of this protocol, in this state, with this text; "" stands for any."""
        answer: Figures = {}
        looked = self._searching.run(
            lambda: self._cooperator.coiterate(self._search(protocol, state, text, answer))
        )
        return looked.addCallback(lambda _: answer)

    def _search(self, protocol: str, state: str, text: str, answer: Figures) -> Iterator[None]:
        found, total, wanted = 0, 0, text.casefold()
        sessions: list[Figures] = []
        for factory in self._gateway.factories:
            total += len(factory.liveConnections)
            if protocol not in ("", factory.protocolName):
                continue
            if not state and not wanted:
                found += len(factory.liveConnections)
                first = islice(factory.liveConnections, SHOWN_MAX - len(sessions))
                sessions += [_shown_session(factory.protocolName, session) for session in first]
                continue
            for number, session in enumerate(list(factory.liveConnections), 1):
                if state in ("", _name_of(_state_of(session))):
                    shown = _shown_session(factory.protocolName, session)
                    if not wanted or any(wanted in str(one).casefold() for one in shown.values()):
                        found += 1
                        if len(sessions) < SHOWN_MAX:
                            sessions.append(shown)
                if number % SLICE_SESSIONS == 0:
                    yield None
        answer.update(sessions=sessions, found=found, sessions_total=total)

    # ── all of them ─────────────────────────────────────────────────────────────────────────────

    def _protocols(self, figures: Figures) -> None:
        protocols: dict[str, Figures] = {}
        for factory in self._gateway.factories:
            summed = factory.counters.as_dict()
            states = Counter(factory.counters.states)
            if states.total() != len(factory.liveConnections):
                _walk_states(factory, states)
            shown = {
                "connections": len(factory.liveConnections),
                "states": {_name_of(state): count for state, count in states.items() if count},
                **_traffic(factory.traffic),
                **_counters(summed, factory.limits),
            }
            known = protocols.get(factory.protocolName, {})
            protocols[factory.protocolName] = added_up(known, shown)
        figures["protocols"] = protocols
        figures["limits"] = self._limits(protocols)
        figures["sessions_total"] = sum(one["connections"] for one in protocols.values())


def _walk_states(factory: Any, states: Counter[Any]) -> None:
    """Count what ``states`` lacks: MTL's sessions share a machine, subclasses count as they do."""
    tracks = factory.counters.tracks if states else lambda _: False
    live = [one for one in factory.liveConnections if not tracks(getattr(one, "link", None))]
    states.update(map(_state_of, live))  # by the state itself, because its name takes longer


def _passed_to(result: Any, answer: Deferred[Any]) -> None:
    if not answer.called:  # else it has waited too long
        answer.callback(result)


def _finite(limit: float) -> int | None:
    return None if limit == inf else int(limit)


def _state_of(session: Any) -> Enum | str:
    owner = getattr(session, "link", session)  # MTL's sessions share one link
    state = getattr(getattr(owner, "machine", None), "state", None)
    if isinstance(state, Enum):
        return state
    return "ESTABLISHED" if getattr(session, "established", False) else "OPEN"


def _name_of(state: Enum | str) -> str:
    return state if isinstance(state, str) else state.name


def _shown_session(protocol: str, session: Any) -> Figures:
    shown: Figures = {"protocol": protocol, "state": _name_of(_state_of(session))}
    try:
        snapshot = session.snapshot()
    except Exception as error:
        return {**shown, "unreadable": type(error).__name__}
    for name, value in snapshot.items():
        if value is None or isinstance(value, bool | int | float):
            shown[name] = value
        else:
            shown[name] = short(value if isinstance(value, str) else str(value))
    return shown


def _traffic(traffic: Any) -> Figures:
    reached = list(accumulate(traffic.latencies))
    buckets = {f"{BOUNDS[place]:g}": reached[place] for place in LATENCY_BOUNDS}
    return {
        "messages": traffic.messages,
        "bytes": traffic.nbytes,
        "latency": {"buckets": buckets, "count": reached[-1], "sum_seconds": traffic.waited},
    }


def _counters(summed: Mapping[str, int], limits: Collection[str] = ()) -> Figures:
    plain: dict[str, int] = {}
    reasons: dict[str, dict[str, int]] = {}
    for name, count in sorted(summed.items()):
        family, colon, reason = name.partition(":")
        if not colon:
            plain[name] = count
            continue
        of_family = reasons.setdefault(family, {})
        if reason not in of_family and len(of_family) >= SHOWN_MAX:
            reason = "other"
        of_family[reason] = of_family.get(reason, 0) + count
    faults, met = reasons.pop("fault", {}), reasons.pop("turned_away", {})
    named = reasons.pop("limit", {})
    for found in ({name: times for name, times in faults.items() if name in limits}, named):
        for limit, times in found.items():
            met[limit] = met.get(limit, 0) + times
    if plain.get("displaced"):
        met["connections"] = met.get("connections", 0) + plain["displaced"]
    return {"counters": plain, "faults": faults, "limits_met": met, "reasons": reasons}


def added_up(one: Figures, other: Figures) -> Figures:
    summed = dict(one)
    for name, value in other.items():
        if name in summed:
            inner = isinstance(value, dict)
            value = added_up(summed[name], value) if inner else summed[name] + value
        summed[name] = value
    return summed


def _broker(queues: list[Any]) -> Figures | None:
    spaces: dict[str, Figures] = {}
    for queue in queues:
        # A virtual host stands behind the slash, and clients may choose it.
        space = spaces.setdefault(
            queue.space.partition("/")[0],
            {"queues": 0, "waiting_messages": 0, "in_flight_messages": 0, "bytes": 0},
        )
        space["queues"] += 1
        space["waiting_messages"] += queue.waiting
        space["in_flight_messages"] += queue.in_flight
        space["bytes"] += queue.bytes
    most = sorted(queues, key=lambda queue: -(queue.waiting + queue.in_flight))
    shown = [asdict(queue) for queue in most[:SHOWN_MAX]]
    return {"queues": shown, "queues_total": len(queues), "spaces": spaces}
