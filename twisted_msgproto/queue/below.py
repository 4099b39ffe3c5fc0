"""The processes of a gateway have their queues in one directory: ``DIR/0``, ``DIR/1`` and so on."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from typing import Final

from twisted_msgproto.core.errors import QueueError

from .disk import IDENTITY_FILE

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,3}")
"""The queue of a process is in a directory of this name."""

URL: Final = re.compile(r"[a-z+]+://")
"""Begins an address, and no directory."""

REMEDY: Final = (
    "if the disk never reads that file again: stop the gateway, put a copy with zeros for what is "
    "lost in its place (dd if=FILE of=COPY bs=4096 conv=noerror,sync; truncate -r FILE COPY && "
    "mv COPY FILE), and start the gateway"
)
"""This ends a line about a file that the disk cannot read; the start then finds what is lost."""

FOLDER: Final = "queue"
"""``msgproto init`` has the queue in this folder, beside the gateway.toml."""


def queue_of(directory: str | os.PathLike[str], number: int) -> str:
    """Return the directory of the queue of the process ``number``."""
    return os.path.join(directory, str(number))


def failure(what: str, error: OSError) -> str:
    """Return one line that says that ``what`` failed, and what to do where the disk cannot read."""
    if error.errno != errno.EIO:
        return f"{what}: {error}"
    return f"{what}: {error}; nothing is given up: try again, or {REMEDY}"


def is_queue(directory: str | os.PathLike[str]) -> bool:
    """Return whether ``directory`` itself is a queue, or may be one that cannot be looked into.

    Who opens that one is told why it cannot be; left out, nobody would hear that it is not landed.
    """
    try:
        os.stat(os.path.join(directory, IDENTITY_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def numbered(directory: str | os.PathLike[str]) -> list[str]:
    """Return the queues of processes below ``directory``, by their numbers; none if it is none.

    Raises QueueError where the directory cannot be read: there may be queues in it.
    """
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise QueueError(f"cannot read the directory: {error}") from error
    numbers = sorted(int(name) for name in names if NUMBER.fullmatch(name))
    return [place for number in numbers if is_queue(place := queue_of(directory, number))]


def queues_at(directory: str | os.PathLike[str]) -> list[str]:
    """Return the queues that ``directory`` stands for: itself, and those of processes below it.

    A directory that is no queue, and has none below it, stands for itself.  Raises QueueError
    where the directory cannot be read.
    """
    below = numbered(directory)
    return [os.fspath(directory), *below] if is_queue(directory) or not below else below


def no_queue(directory: str | os.PathLike[str]) -> str:
    """Return why ``directory``, as it was given, cannot be read as a queue, and what to try."""
    given = os.fspath(directory)
    place = os.path.abspath(given)
    if URL.match(given):
        return (
            f"no queue in {given}: a directory, grpc://HOST:PORT or grpc+tls://HOST:PORT is meant"
        )
    if not os.path.isdir(place):
        return f"no queue in {place}: there is no such directory"
    if is_queue(place):
        return f"no queue in {place} that can be read: its file {IDENTITY_FILE} is damaged"
    if below := numbered(place):
        return f"no queue in {place} itself: its processes have theirs, such as {below[0]}"
    if is_queue(beside := os.path.join(place, FOLDER)):
        return f"no queue in {place}; there is one in {beside}"
    return f"no queue in {place} (nothing has written there yet)"


def has_broker(directory: str | os.PathLike[str]) -> bool:
    """Return whether a broker keeps, or has kept, its queues over the queue in ``directory``.

    Raises QueueError where that cannot be known.
    """
    try:
        os.stat(os.path.join(directory, "broker"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise QueueError(f"cannot read the directory: {error}") from error
    return True


def mend(directory: str) -> list[str]:
    """Start and end the writer of a queue that no process has; return what it has found.

    After a loss of power the published end may be older than the messages, and nobody else would
    publish those again that were acknowledged.  Raises QueueLocked while another process has the
    queue, QueueError if it cannot be opened.
    """
    from .log import SegmentLog  # it loads Arrow, for which most starts have no use here

    log = SegmentLog(directory, check_octets=0)
    log.close()
    return log.recovery.lines


def mend_former(directories: Iterable[str]) -> list[str]:
    """Mend the queues of former processes; return lines for the log that say what becomes of
    each.
    """
    lines = []
    for place in directories:
        lines.append(f"no process has the queue {place}; the bridge lands it like the others")
        try:
            if has_broker(place):
                lines.append(
                    f"messages in the broker's queues of {place} are not delivered until a process "
                    "has them again"
                )
            lines += mend(place)
        except (QueueError, OSError) as error:
            lines.append(str(error))
    return lines


__all__ = [
    "has_broker",
    "is_queue",
    "mend",
    "mend_former",
    "no_queue",
    "numbered",
    "queue_of",
    "queues_at",
]
