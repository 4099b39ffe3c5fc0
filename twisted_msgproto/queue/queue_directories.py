"""A directory may have several queues in it, such as those of several gateways of one machine."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import unquote

from twisted_msgproto.core.errors import ConfigurationError, QueueError

from ..core.disk import OS_DISK, exists
from .format import IDENTITY_FILE

URL: Final = re.compile(r"[a-z+]+://")

FILE_URL: Final = re.compile(r"file:(//(?P<host>[^/]*))?(?P<path>/.*)", re.DOTALL)
"""Hadoop and Spark write it with one slash."""

FOLDER: Final = "queue"  # ``msgproto init`` has the queue in this folder, beside the gateway.toml
NO_QUEUES: Final = frozenset(("lost+found",))  # at a disk's root, for root alone


def path_of(location: str) -> str:
    """Return the path of a directory or ``file:`` URL; ConfigurationError for another machine's."""
    url = FILE_URL.fullmatch(location)
    if url is None:
        return location
    if url["host"] not in (None, "", "localhost"):
        raise ConfigurationError(
            f"{location} names a directory of the machine {url['host']}: on this one it is"
            " file:///PATH, with three slashes"
        )
    return unquote(url["path"])


def is_queue(directory: str | os.PathLike[str]) -> bool:
    """Return whether ``directory`` is a queue, or cannot be looked into: opening it tells why."""
    try:
        return exists(OS_DISK, os.path.join(directory, IDENTITY_FILE))
    except OSError:
        return True


def unreadable(directory: str | os.PathLike[str], error: OSError) -> str:
    may_not = isinstance(error, PermissionError)
    remedy = "; run this as the user that its gateway runs as" if may_not else ""
    return f"cannot read the queue {os.path.abspath(directory)}: {error.strerror}{remedy}"


def refuse_of_another(directory: str | os.PathLike[str]) -> None:
    """Raise QueueError for another user's queue: its gateway could not read what this one writes.

    Root may write there.  The directory itself may be a volume, which has another owner.
    """
    owner = os.stat(os.path.join(directory, IDENTITY_FILE)).st_uid
    if owner != os.geteuid():
        place = os.path.abspath(directory)
        raise QueueError(f"the queue {place} belongs to the user {owner}: run this as that user")


def queues_in(directory: str | os.PathLike[str]) -> list[str]:
    """Return the queues in ``directory``, 2 before 10; QueueError if it cannot be read."""
    try:
        names = set(os.listdir(directory)) - NO_QUEUES
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise QueueError(unreadable(directory, error)) from error
    places = (os.path.join(directory, name) for name in sorted(names, key=_by_number))
    return [place for place in places if is_queue(place)]


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def queues_at(directory: str | os.PathLike[str]) -> list[str]:
    """Return the queues in ``directory``, else itself; QueueError if it cannot be read."""
    inside = queues_in(directory)
    return [os.fspath(directory), *inside] if is_queue(directory) or not inside else inside


def no_queue(directory: str | os.PathLike[str]) -> str:
    """Return why ``directory``, as it was given, cannot be read as a queue, and what to try."""
    given = os.fspath(directory)
    place = os.path.abspath(given)
    if given.startswith(("grpc://", "grpc+tls://")):
        return f"no queue in {given}: this needs the directory itself, on the queue's machine"
    if URL.match(given):
        return (
            f"no queue in {given}: a directory, grpc://HOST:PORT or grpc+tls://HOST:PORT is meant"
        )
    if not os.path.isdir(place):
        return f"no queue in {place}: there is no such directory"
    if is_queue(place):
        return f"no queue in {place} that can be read: its file {IDENTITY_FILE} is damaged"
    if is_queue(beside := os.path.join(place, FOLDER)):
        return f"no queue in {place}; there is one in {beside}"
    if inside := queues_in(place) or queues_in(beside):
        return f"no queue in {place} itself: it has several in it, such as {inside[0]}"
    return f"no queue in {place} (nothing has written there yet)"


def has_broker(directory: str | os.PathLike[str]) -> bool:
    """Return whether a broker keeps, or has kept, its queues over this one."""
    try:
        return exists(OS_DISK, os.path.join(directory, "broker"))
    except OSError as error:
        raise QueueError(unreadable(directory, error)) from error


def unheld(directory: str | os.PathLike[str]) -> list[str]:
    """Return the readable queues in or beside ``directory`` that no process writes."""
    own = os.path.abspath(directory)
    try:
        beside = queues_at(os.path.dirname(own)) if is_queue(own) else []
    except QueueError:
        beside = []
    found = []
    for place in dict.fromkeys((*queues_in(own), *beside)):
        try:
            if place == own or not os.path.exists(os.path.join(place, IDENTITY_FILE)):
                continue
            if OS_DISK.lock_holder(os.path.join(place, "lock")) is None:
                found.append(place)
        except OSError:
            continue
    return found
