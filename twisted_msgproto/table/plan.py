"""Plan what the next batch lands: shares of rows among gateways, and tasks that read them.

The work is cut into at most ``cores`` tasks, however many gateways there are, so files and time
depend on rows and not on gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..queue.lineage import Description, Landed

ROWS_MAX = 1_000_000  # this bounds the time of a batch, and what a failed one repeats
BYTES_MAX = 1 << 30  # of a batch, as gateways estimate: bounds what tasks hold in memory
TASK_ROWS_MIN = 20_000  # below it a second task (some 10 ms, measured) does not pay
TASK_GATEWAYS_MIN = 50  # worth a second task: each is asked over the network


@dataclass(frozen=True, slots=True)
class Range:
    """Rows lo ≤ offset < hi of one gateway, for a task, which has many; all can be pickled."""

    location: str
    gateway: str
    lo: int
    hi: int
    landed: Landed | None = None  # the batch's end here, which the read proves first, if it can
    access: object = None  # what else opens the queue
    erased: tuple[tuple[int, int], ...] = ()  # from the table: they do not land again


@dataclass(frozen=True, slots=True)
class Waiting:
    """A gateway that has answered, and how far the table has landed it (None: not yet)."""

    gateway: str
    location: str
    before: Landed | None
    description: Description
    access: object = None

    @property
    def lo(self) -> int:
        return self.description.begin if self.before is None else self.before.offset

    @property
    def rows(self) -> int:
        return max(0, self.description.end - self.lo)

    @property
    def bytes(self) -> int:
        return self.description.waiting_bytes if self.rows else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: the tasks' ranges, and for each gateway where it begins and ends."""

    tasks: Sequence[Sequence[Range]]
    before: Mapping[str, Landed | None]
    landed: Mapping[str, Landed]
    rows: int


def joined(first: Plan, then: Plan) -> Plan:
    """Return both as one: ``then`` goes on where ``first`` ends."""
    return Plan(
        [*first.tasks, *then.tasks],
        {**then.before, **first.before},
        {**first.landed, **then.landed},
        first.rows + then.rows,
    )


Place = Callable[[Mapping[str, int]], Mapping[str, Landed]]  # leaves out who does not answer


def plan_batch(
    waiting: Sequence[Waiting],
    place: Place,
    *,
    cores: int,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Plan | None:
    """Return the next batch, or None; ``place`` is asked once for ends that need a proof."""
    ends = batch_ends(waiting, rows_max, bytes_max)
    described = {one.gateway: one for one in waiting if ends.get(one.gateway, 0) > one.lo}
    capped = {
        gateway: ends[gateway]
        for gateway, one in described.items()
        if ends[gateway] < one.description.end
    }
    places = place(capped) if capped else {}
    landed: dict[str, Landed] = {}
    ranges: list[Range] = []
    for gateway, one in sorted(described.items()):
        end = places.get(gateway) if gateway in capped else one.description.landed
        if end is None:
            continue
        landed[gateway] = end
        ranges.append(Range(one.location, gateway, one.lo, end.offset, end, one.access))
    if not ranges:
        return None
    rows = sum(part.hi - part.lo for part in ranges)
    return Plan(
        cut(ranges, task_number(rows, len(ranges), cores)),
        {gateway: described[gateway].before for gateway in landed},
        landed,
        rows,
    )


def batch_ends(
    waiting: Sequence[Waiting], rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX
) -> dict[str, int]:
    """Return where the batch ends in each gateway, which gets on by at least one row."""
    shares = share({one.gateway: one.rows for one in waiting}, rows_max)
    nbytes = sum(one.bytes * shares[one.gateway] // max(1, one.rows) for one in waiting)
    if nbytes > bytes_max:
        shares = {
            gateway: max(1, rows * bytes_max // nbytes) if rows else 0
            for gateway, rows in shares.items()
        }
    return {one.gateway: one.lo + shares[one.gateway] for one in waiting}


def share(room: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """Divide ``rows_max`` rows evenly; what one queue does not need goes to the others."""
    shares: dict[str, int] = {}
    left = rows_max
    for position, name in enumerate(sorted(room, key=lambda name: (room[name], name))):
        shares[name] = min(room[name], left // (len(room) - position))
        left -= shares[name]
    return shares


def task_number(rows: int, gateways: int, cores: int) -> int:
    """Return how many tasks are worth their cost, at most ``cores``."""
    wanted = max(rows // TASK_ROWS_MIN, gateways // TASK_GATEWAYS_MIN)
    return max(1, min(cores, wanted, rows))


def cut(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Cut ``ranges``, in order, into at most ``tasks`` lists of about the same number of rows."""
    rows = sum(part.hi - part.lo for part in ranges)
    parts: list[list[Range]] = [[]]
    taken = 0
    for part in ranges:
        lo = part.lo
        while lo < part.hi:
            bound = rows * len(parts) // tasks
            hi = min(part.hi, lo + bound - taken)
            if hi <= lo:
                parts.append([])
                continue
            parts[-1].append(replace(part, lo=lo, hi=hi))
            taken += hi - lo
            lo = hi
    return [part for part in parts if part]
