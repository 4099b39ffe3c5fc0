"""Find out how far messages were published, also where the file ``end`` is old or gone.

``end`` is not synced after every group, so a power loss may leave an older one.  Three other files
are durable before anything relies on them, and each proves that all offsets below a number were
published once:

* a consumer's file: a consumer commits only what it could read;
* ``lineage``: a start of the writer notes its first offset when all below it is durable;
* ``damaged``: what it names was published, or stands below something that was.

"""

from __future__ import annotations

from dataclasses import dataclass

from . import consumers, damage, lineage
from .disk import Disk
from .format import Published


@dataclass(frozen=True, slots=True)
class Proven:
    """A proof that all offsets below ``offset`` were published; ``by`` says it in words."""

    offset: int
    by: str


def proven(disk: Disk, directory: str, queue_id: str) -> Proven:
    """Return the greatest offset that something other than the file ``end`` proves.

    A damaged file of a consumer proves nothing.  Raises OSError for what cannot be read now.
    """
    known = lineage.read(disk, directory)
    starts = known.starts if known is not None else ()
    found = [
        Proven(max((hi for _, hi in damage.read(disk, directory)), default=0), "known damage"),
        Proven(max((first for first, _ in starts), default=0), "an earlier start of the gateway"),
    ]
    for name in consumers.names(disk, directory):
        offset = consumers.read(disk, directory, name, queue_id) or 0
        found.append(Proven(offset, f"what consumer {name!r} has committed"))
    return max(found, key=lambda one: one.offset)


def furthest(published: Published | None, other: Proven) -> Proven:
    """Return the greater one of what the file ``end`` says and what something else proves."""
    if published is not None and published.offset >= other.offset:
        return Proven(published.offset, "the published end")
    return other
