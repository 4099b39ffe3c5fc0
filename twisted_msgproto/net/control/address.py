"""The socket ``control`` lies in the queue's directory, however long that directory's name is."""

from __future__ import annotations

import os
from typing import Final

from ...core.errors import QueueError

SOCKET_NAME: Final = "control"

PATH_OCTETS_MAX: Final = 103
"""A path of a UNIX socket may have this many octets on every system (107 on Linux)."""

DESCRIPTORS: Final = "/proc/self/fd"
"""Linux shows the files that a process has open here, so a short path leads to each directory."""


class SocketPath:
    """A path that ``bind`` and ``connect`` accept, until it is closed.

    Attributes:
        path: the path to use; it is short, whatever the directory's name is.
        shown: the path to show to people.
    """

    def __init__(self, directory: str | os.PathLike[str], descriptors: str = DESCRIPTORS) -> None:
        """Find the path of the socket in ``directory``.

        Raises QueueError, one line, if the path is too long and this system has no ``descriptors``;
        OSError if there is no such directory.
        """
        self._descriptor: int | None = None
        self.shown = self.path = os.path.join(os.path.abspath(directory), SOCKET_NAME)
        octets = len(os.fsencode(self.path))
        if octets <= PATH_OCTETS_MAX:
            return
        if not os.path.isdir(descriptors):
            raise QueueError(
                f"the path of the socket {self.shown} has {octets} octets, and this system takes"
                f" {PATH_OCTETS_MAX}: use the queue through a symbolic link with a shorter path"
            )
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = f"{descriptors}/{self._descriptor}/{SOCKET_NAME}"

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
