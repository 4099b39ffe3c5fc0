"""The first line of the page says whether everything that was acknowledged is safe and lands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

STANDS_STILL_SECONDS: Final = 60.0
"""A consumer that leaves messages unread for this long does not land them: a bridge commits every
few seconds, and a slow batch takes some ten.
"""


class Verdict(NamedTuple):
    ok: bool
    why: str

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, "why": self.why}


def healthy(queue: Mapping[str, Any] | None) -> Verdict:
    if queue is None:
        return Verdict(True, "Messages are acknowledged; there is no queue.")
    if queue["refusal"] is not None:
        return Verdict(False, f"Nothing can be acknowledged: {queue['refusal']}.")
    if queue["stalled_because"] is not None:
        return Verdict(False, f"Nothing can be acknowledged: {queue['stalled_because']}.")
    return Verdict(True, "Messages are acknowledged.")


def safe_and_landing(queue: Mapping[str, Any] | None) -> Verdict:
    if queue is None:
        return Verdict(False, "There is no queue: acknowledged means accepted, not on disk.")
    wrong = next(_wrong(queue), None)
    if wrong is not None:
        return Verdict(False, wrong)
    behind = max(consumer["behind_messages"] for consumer in queue["consumers"])
    return landing("the slowest consumer is", behind, queue.get("unheld", ()))


def landing(who: str, behind: int, unheld: Iterable[Mapping[str, Any]]) -> Verdict:
    """Return that all is well, and how many messages ``who``, and queues that no gateway holds, are
    ``behind``.
    """
    left = sum(one["behind_messages"] for one in unheld)
    counts = ((who, behind), ("queues that no gateway holds are", left))
    lags = [f"{name} {count} behind" for name, count in counts if count]
    rest = f"lands; {', and '.join(lags)}" if lags else "has landed"
    return Verdict(True, f"Everything that was acknowledged is on disk and {rest}.")


def _wrong(queue: Mapping[str, Any]) -> Iterator[str]:
    if queue["damaged_messages"]:
        yield (
            f"The queue has lost {queue['damaged_messages']} messages that may have been"
            " acknowledged: msgproto queue verify says which."
        )
    health = healthy(queue)
    if not health.ok:
        yield f"What was acknowledged is on disk.  {health.why}"
    for consumer in queue["consumers"]:
        if consumer.get("lost_messages"):
            yield (
                f"The queue has lost {consumer['lost_messages']} messages that the consumer"
                f" {consumer['name']} had not committed: msgproto queue verify says which."
            )
    if queue["unreadable"] is not None:
        yield f"The queue's files cannot be read: {queue['unreadable']}."
    if not queue["consumers"]:
        yield "What was acknowledged is on disk; nothing lands: the queue has no consumer."
    for consumer in queue["consumers"]:
        if consumer["still_seconds"] >= STANDS_STILL_SECONDS:
            yield (
                f"What was acknowledged is on disk; the consumer {consumer['name']} is"
                f" {consumer['behind_messages']} messages behind and has not moved for"
                f" {consumer['still_seconds']:.0f} s."
            )
    yield from wrong_of_unheld(queue.get("unheld", ()))


def wrong_of_unheld(unheld: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in unheld:
        if not one["ok"]:
            yield f"No gateway holds the queue {one['directory']}: {one['why']}"
