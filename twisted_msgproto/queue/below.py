"""The processes of a gateway have their queues in one directory: ``DIR/0``, ``DIR/1`` and so on."""

from __future__ import annotations

import os
import re
from typing import Final

from .disk import IDENTITY_FILE

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,3}")
"""The queue of a process is in a directory of this name."""


def queue_of(directory: str | os.PathLike[str], number: int) -> str:
    """Return the directory of the queue of the process ``number``."""
    return os.path.join(directory, str(number))


def is_queue(directory: str | os.PathLike[str]) -> bool:
    """Return whether ``directory`` itself is a queue."""
    return os.path.exists(os.path.join(directory, IDENTITY_FILE))


def numbered(directory: str | os.PathLike[str]) -> list[str]:
    """Return the queues of processes below ``directory``, by their numbers; none if it is none."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    numbers = sorted(int(name) for name in names if NUMBER.fullmatch(name))
    return [place for number in numbers if is_queue(place := queue_of(directory, number))]


def queues_at(directory: str | os.PathLike[str]) -> list[str]:
    """Return the queues that ``directory`` stands for: itself, and those of processes below it.

    A directory that is no queue, and has none below it, stands for itself.
    """
    below = numbered(directory)
    return [os.fspath(directory), *below] if is_queue(directory) or not below else below


__all__ = ["is_queue", "numbered", "queue_of", "queues_at"]
