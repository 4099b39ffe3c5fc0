"""Find the connection that is closed for a newcomer when a server has nearly all it may have
(NB-08).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar

from .addresses import network_of

K = TypeVar("K", bound=Hashable)

CROWDED: Final = 0.9
"""From this share of ``connections`` on, silent connections make room for newcomers."""

SILENT_SECONDS: Final = 60.0
"""A connection whose peer said nothing for so long may be closed for a newcomer."""

ROOM_SEARCH_SECONDS: Final = 1.0
"""After a search in vain, silent connections are not searched for during this time."""


class Room:
    """Chooses among the connections of one server; remembers when it last searched in vain."""

    def __init__(self) -> None:
        self._none_until = 0.0

    def search(
        self,
        host: str,
        connections: Mapping[K, str],
        heard: Callable[[K], float | None],
        now: float,
    ) -> K | None:
        """Return the connection to close for a newcomer from ``host``, or None.

        ``connections`` has the host of each.  ``heard(connection)`` returns when its peer was heard
        last, in seconds as ``now``, or None if it may not be closed.  The connection is the longest
        silent one of the largest address group; the newcomer's group is smaller than that one, with
        it as well.  A search in vain is not repeated for a second, since it reads every connection.
        """
        if now < self._none_until:
            return None
        groups: dict[str, list[K]] = {}
        networks = {address: network_of(address) for address in set(connections.values())}
        for connection, address in connections.items():
            network = networks[address]
            if network is not None:
                groups.setdefault(network, []).append(connection)
        largest = max(groups.values(), key=len, default=[])
        own = len(groups.get(network_of(host) or "", ()))
        silent: dict[K, float] = {}
        if own + 1 < len(largest):
            for connection in largest:
                last = heard(connection)
                if last is not None and last + SILENT_SECONDS <= now:
                    silent[connection] = last
        if not silent:
            self._none_until = now + ROOM_SEARCH_SECONDS
            return None
        return min(silent, key=silent.__getitem__)


__all__ = ["CROWDED", "Room"]
