"""Find the connection that is closed for a newcomer when a server has nearly all it may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar

from .addresses import network_of

K = TypeVar("K", bound=Hashable)

CROWDED: Final = 0.9
"""From this share of ``connections`` on, silent connections make room for newcomers."""

SILENT_SECONDS: Final = 60.0
"""A connection whose peer was silent for this time may be closed for a newcomer."""

ROOM_SEARCH_SECONDS: Final = 1.0
"""After a search in vain, silent connections are not searched for during this time."""

NO_NETWORK: Final = ""
"""Newcomers that have no address group, as those on this machine, stand under this name."""

ALL_NETWORKS: Final = "*"
"""A search was in vain for newcomers of every address group: no connection is silent."""


class Room:
    """Chooses among the connections of one server; remembers when it last searched in vain."""

    def __init__(self) -> None:
        self._none_until = 0.0  # for newcomers of these address groups
        self._none_for: set[str] = set()

    def search(
        self,
        host: str,
        connections: Mapping[K, str],
        heard: Callable[[K], float | None],
        now: float,
        taken: Mapping[str, int] | None = None,
    ) -> K | None:
        """Return the connection to close for a newcomer from ``host``, or None.

        ``connections`` has the host of each.  ``taken`` says how many places each host has, where
        there are more than these: a host whose connections have no session yet has places, too.
        ``heard(connection)`` returns when its peer was heard
        last, in seconds as ``now``, or None if it may not be closed.  The connection is the longest
        silent one of the largest address group; the newcomer's group is smaller than that one, with
        it as well.  A search in vain is not repeated for a second, since it reads every connection;
        one in vain for the newcomer's group alone says nothing of the next newcomer's, or a crowd
        of one group would lock out all.
        """
        if now >= self._none_until:
            self._none_for.clear()
        newcomers = network_of(host) or NO_NETWORK
        if not self._none_for.isdisjoint((newcomers, ALL_NETWORKS)):
            return None
        hosts = Counter(connections.values()) if taken is None else taken
        networks = {address: network_of(address) for address in hosts}
        sizes: Counter[str] = Counter()
        for address, count in hosts.items():
            network = networks[address]
            if network is not None:
                sizes[network] += count
        largest = max(sizes, key=sizes.__getitem__, default=NO_NETWORK)
        silent: dict[K, float] = {}
        for connection, address in connections.items():
            if networks.get(address) == largest:
                last = heard(connection)
                if last is not None and last + SILENT_SECONDS <= now:
                    silent[connection] = last
        if not silent or sizes[newcomers] + 1 >= sizes[largest]:
            if not self._none_for:
                self._none_until = now + ROOM_SEARCH_SECONDS
            self._none_for.add(newcomers if silent else ALL_NETWORKS)
            return None
        return min(silent, key=silent.__getitem__)
