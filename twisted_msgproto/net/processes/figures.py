"""The figures of several processes become those of one gateway: sums, and the sessions of all.

What cannot be added up is told so: of latencies the greatest is shown, since all messages together
have no greater one; a verdict is good while it is good in every process that runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.python.failure import Failure

from ..status.figures import (
    KEPT_SECONDS,
    OFFENDERS_SHOWN_MAX,
    SESSIONS_SHOWN_MAX,
    Figures,
    added_up,
)
from ..status.store import CONSUMERS_SHOWN_MAX, RANGES_SHOWN_MAX
from ..status.verdict import Verdict, landing, wrong_of_former

Parts = Mapping[int, Figures]
"""Maps the number of each process that answers to its figures."""

ADDED: Final = frozenset(("behind_messages", "offset"))
"""These figures of a consumer are added up; of the others the greatest is shown."""

BRIDGE_ADDED: Final = frozenset(("lag_rows",))
"""This figure of a bridge is about one queue."""


SILENT: Final = "does not answer"
"""This is said of a process that serves, and hangs."""

NOTHING_KNOWN: Final[Mapping[int, str]] = {}

NOTHING_HELD: Final[Mapping[str, int]] = {
    "waiting_octets": 0,
    "waiting_limit_octets": 0,
    "waiting_connections": 0,
    "held_octets": 0,
    "held_limit_octets": 0,
    "kept_octets": 0,
    "kept_limit_octets": 0,
}
"""This is the memory of no process; those that answer are added to it."""


def together(
    parts: Parts,
    count: int,
    away: Mapping[int, str] = NOTHING_KNOWN,
    *,
    durable: bool = True,
    former: Sequence[Figures] = (),
) -> Figures:
    """Return the figures of all processes as one gateway's, without what is the supervisor's own.

    ``count`` is how many processes there are; those that do not answer are not among ``parts``.
    ``away`` says of processes that do not serve what they do instead, such as "starts".  They have
    queues if ``durable``, and ``former`` are those that no process has.
    """
    every = list(parts.values())
    protocols: dict[str, Figures] = {}
    sessions: list[Figures] = []
    for number, one in sorted(parts.items()):
        for name, figures in one["protocols"].items():
            known = protocols.get(name)
            protocols[name] = figures if known is None else added_up(known, figures)
        sessions += ({"process": number, **session} for session in one["sessions"])
    return {
        "safe": _safe(parts, count, away, durable, former).as_dict(),
        "healthy": _healthy(parts, count, away, durable).as_dict(),
        "queue": _queue(
            {number: one["queue"] for number, one in parts.items() if one["queue"]}, former
        ),
        "memory": _sum_known((NOTHING_HELD, *(one["memory"] for one in every))),
        "flow": _flow([one["flow"] for one in every if one["flow"]]),
        "offenders": _offenders([one["offenders"] for one in every]),
        "broker": next(
            (one["broker"] for one in every if one["broker"] and one["broker"]["queues_total"]),
            every[0]["broker"] if every else {"queues": [], "queues_total": 0, "spaces": {}},
        ),
        "protocols": protocols,
        "sessions": sessions[:SESSIONS_SHOWN_MAX],
        "sessions_total": sum(one["sessions_total"] for one in every),
    }


# ── verdicts ────────────────────────────────────────────────────────────────────────────────────


def _healthy(parts: Parts, count: int, away: Mapping[int, str], durable: bool) -> Verdict:
    """Return whether any process can acknowledge messages now."""
    good = sum(one["healthy"]["ok"] for number, one in parts.items() if number not in away)
    if good == count:
        return Verdict(True, f"Messages are acknowledged by all {count} processes.")
    why = _first_wrong(parts, count, away, durable, "healthy")
    if good:
        return Verdict(True, f"Messages are acknowledged by {good} of {count} processes.  {why}")
    return Verdict(False, f"No process can acknowledge anything.  {why}")


def _safe(
    parts: Parts,
    count: int,
    away: Mapping[int, str],
    durable: bool,
    former: Sequence[Figures],
) -> Verdict:
    """Return whether everything that was acknowledged is on disk and landing, in every process."""
    why = _first_wrong(parts, count, away, durable, "safe")
    why = next(wrong_of_former(former), None) if why is None else why
    if why is not None:
        return Verdict(False, why)
    behind = sum(behind_of(one) or 0 for one in parts.values())
    return landing("the queues are", behind, former)


def behind_of(part: Mapping[str, Any]) -> int | None:
    """Return how many messages the slowest consumer of one process's queue has not landed.

    It is None without a queue, or without consumers.
    """
    consumers = part["queue"]["consumers"] if part["queue"] else ()
    return max((consumer["behind_messages"] for consumer in consumers), default=None)


def _first_wrong(
    parts: Parts, count: int, away: Mapping[int, str], durable: bool, verdict: str
) -> str | None:
    """Return what the first process says that is not well; one that is down is the worst, then
    comes one that is silent.
    """

    def badness(number: int) -> tuple[bool, bool, int]:
        return number not in away, number in parts, number

    for number in sorted(range(count), key=badness):
        if number in away or number not in parts:
            what = away.get(number, SILENT)
            rest = "; what it has acknowledged is on disk" if durable else ""
            return f"Process {number} {what}{rest}."
        if not parts[number][verdict]["ok"]:
            return f"Process {number}: {parts[number][verdict]['why']}"
    return None


# ── sums ────────────────────────────────────────────────────────────────────────────────────────


def _sum_known(every: Iterable[Mapping[str, Any]]) -> Figures:
    """Add up members that are numbers; None where one of them is unknown."""
    total: Figures = {}
    for one in every:
        for name, value in one.items():
            before = total.get(name, 0)
            total[name] = None if value is None or before is None else before + value
    return total


def _queue(queues: Mapping[int, Figures], former: Sequence[Figures]) -> Figures | None:
    """Return the queues as one: numbers are added up, and lists are put together."""
    if not queues:
        return None
    every = list(queues.values())
    shown: Figures = {
        name: sum(one.get(name) or 0 for one in every)
        for name, value in every[0].items()
        if isinstance(value, int | float)
    }
    first = next(iter(sorted(queues)))
    return {
        **queues[first],
        **shown,
        "directory": os.path.dirname(queues[first]["directory"]),
        "queue_id": ", ".join(one["queue_id"] for one in every),
        "disk_free_octets": min(one.get("disk_free_octets", 0) for one in every),
        "damaged": [part for one in every for part in one["damaged"]][:RANGES_SHOWN_MAX],
        "stalled_because": _of_first(queues, "stalled_because"),
        "refusal": _of_first(queues, "refusal"),
        "unreadable": _of_first(queues, "unreadable"),
        "oldest": min((one["oldest"] for one in every if one["oldest"] is not None), default=None),
        "consumers": _consumers(every),
        "bridges": _bridges(every),
        "former": list(former),
    }


def _of_first(queues: Mapping[int, Figures], name: str) -> str | None:
    return next(
        (f"process {number}: {one[name]}" for number, one in sorted(queues.items()) if one[name]),
        None,
    )


def _consumers(queues: Sequence[Figures]) -> list[Figures]:
    found: dict[str, Figures] = {}
    for one in (one for queue in queues for one in queue["consumers"]):
        known = found.setdefault(one["name"], one)
        if known is not one:
            found[one["name"]] = {
                name: value if name == "name" else _more(name, known[name], value, ADDED)
                for name, value in one.items()
            }
    return list(found.values())[:CONSUMERS_SHOWN_MAX]


def _bridges(queues: Sequence[Figures]) -> list[Figures]:
    """Return what each bridge said last; it says the same in every queue, but for its lag."""
    found: dict[str, Figures] = {}
    for one in (one for queue in queues for one in queue["bridges"]):
        known = found.setdefault(one["consumer"], one)
        if known is not one:
            lag = {name: _more(name, known[name], one[name], BRIDGE_ADDED) for name in BRIDGE_ADDED}
            later = one if _heard(one) < _heard(known) else known
            found[one["consumer"]] = {**later, **lag}
    return list(found.values())


def _heard(bridge: Figures) -> float:
    seconds = bridge["heard_seconds"]
    return float("inf") if seconds is None else float(seconds)


def _more(name: str, one: Any, other: Any, added: frozenset[str]) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one + other if name in added else max(one, other)


def _flow(flows: Sequence[Figures]) -> Figures | None:
    """Return the courses of all as one, the newest samples beside each other.

    The samples of two processes are up to one sample apart.
    """
    if not flows:
        return None
    longest = max(flows, key=lambda flow: len(flow["at"]))
    length = len(longest["at"])
    protocols: dict[str, dict[str, list[Any]]] = {}
    for flow in flows:
        for protocol, columns in flow["protocols"].items():
            course = protocols.setdefault(protocol, {})
            for name, values in columns.items():
                whole = [None] * (length - len(values)) + list(values)
                known = course.get(name, [None] * length)
                rates = frozenset((name,)) if name.endswith("_per_second") else frozenset()
                course[name] = [
                    _more(name, one, other, rates) for one, other in zip(known, whole, strict=True)
                ]
    return {**longest, "protocols": protocols}


def _offenders(every: Sequence[Figures]) -> Figures:
    worst: dict[tuple[str, str, str], Figures] = {}
    for one in (one for part in every for one in part["worst"]):
        place = one["protocol"], one["address"], one["reason"]
        known = worst.setdefault(place, one)
        if known is not one:
            worst[place] = {
                **one,
                "times": known["times"] + one["times"],
                "seconds_ago": min(known["seconds_ago"], one["seconds_ago"]),
            }
    most = sorted(worst.values(), key=lambda one: -one["times"])
    return {
        "worst": most[:OFFENDERS_SHOWN_MAX],
        "pairs": sum(part["pairs"] for part in every),
        "forgotten_faults": sum(part["forgotten_faults"] for part in every),
    }


def what_it_does(process: Figures) -> str:
    """Return what a process does that does not serve, as a predicate."""
    if process["state"] == "waiting":
        return f"{process['ended_because']} and starts again soon"
    if process["state"] == "starting":
        return "starts again" if process["ended_because"] else "starts"
    return "has ended"


# ── asking ──────────────────────────────────────────────────────────────────────────────────────


def nobodys() -> Deferred[list[Figures]]:
    """Return the figures of no queue: each has its process."""
    return succeed([])


class SupervisedFigures:
    """Gathers the figures of all processes; those who ask within a second get the same.

    Attributes:
        parts: what each process that answered said last, by its number.
    """

    def __init__(
        self,
        reactor: Any,
        count: int,
        ask: Callable[[int, str, Mapping[str, str]], Deferred[Any]],
        about: Callable[[], Figures],
        *,
        durable: bool = True,
        former: Callable[[], Deferred[list[Figures]]] = nobodys,
    ) -> None:
        """``ask(number, path, query)`` asks one process.  ``about()`` returns what the supervisor
        says of itself.  The processes have queues if ``durable``; ``former()`` returns the figures
        of those that no process has.
        """
        self._reactor = reactor
        self._count = count
        self._ask = ask
        self._about = about
        self._durable = durable
        self._former = former
        self.parts: dict[int, Figures] = {}
        self._kept: Figures | None = None
        self._kept_at = float("-inf")
        self._waiting: list[Deferred[Figures]] | None = None

    def latest(self) -> Deferred[Figures]:
        """Return the figures as they are now, or were within the last second."""
        if self._kept is not None and self._reactor.seconds() - self._kept_at < KEPT_SECONDS:
            return succeed(self._kept)
        asked: Deferred[Figures] = Deferred()
        if self._waiting is not None:
            self._waiting.append(asked)
            return asked
        self._waiting = [asked]
        asking: list[Deferred[Any]] = [self._every("status.json", {}), self._former()]
        both: Deferred[Any] = gatherResults(asking)
        both.addCallback(self._gathered).addBoth(self._tell)
        return asked

    def summary(self) -> Deferred[Figures]:
        """Return the same; each process has read its first sessions anyway."""
        return self.latest()

    def _gathered(self, found: list[Any]) -> Figures:
        parts, former = found
        self.parts = parts
        about = self._about()
        away = {
            one["number"]: what_it_does(one)
            for one in about["processes"]
            if one["state"] != "serving"
        }
        return {
            **together(parts, self._count, away, durable=self._durable, former=former),
            **about,
        }

    def _tell(self, result: Figures | Failure) -> None:
        waiting, self._waiting = self._waiting or [], None
        if not isinstance(result, Failure):
            self._kept, self._kept_at = result, self._reactor.seconds()
        for one in waiting:
            one.callback(result)

    def _every(self, path: str, query: Mapping[str, str]) -> Deferred[dict[int, Any]]:
        """Ask every process; those that do not answer are left out."""
        answers: dict[int, Any] = {}

        def answered(answer: Any, number: int) -> None:
            if not isinstance(answer, Failure):
                answers[number] = answer

        asking = [
            self._ask(number, path, query).addBoth(answered, number)
            for number in range(self._count)
        ]
        return gatherResults(asking).addCallback(lambda _: answers)

    def search(self, protocol: str, state: str, text: str) -> Deferred[Figures]:
        """Return the sessions of all processes that match; see :meth:`.GatewayFigures.search`."""
        query = {"protocol": protocol, "state": state, "text": text}

        def put_together(answers: dict[int, Figures]) -> Figures:
            sessions = [
                {"process": number, **session}
                for number, answer in sorted(answers.items())
                for session in answer["sessions"]
            ]
            return {
                "sessions": sessions[:SESSIONS_SHOWN_MAX],
                "found": sum(answer["found"] for answer in answers.values()),
                "sessions_total": sum(answer["sessions_total"] for answer in answers.values()),
            }

        return self._every("sessions.json", query).addCallback(put_together)


__all__ = ["SILENT", "SupervisedFigures", "behind_of", "nobodys", "together", "what_it_does"]
