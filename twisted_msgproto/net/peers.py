"""Whose address it is, who broke the protocol, and who gives its place to a newcomer."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from heapq import nlargest
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple, TypeVar


def ip_of(address: str) -> IPv4Address | IPv6Address | None:
    """Return an address without its zone, and one of IPv4 as such; None if it is none."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip if mapped is None else mapped


def network_of(address: str) -> str | None:
    """Return an IPv4 address, or an IPv6 network of 64 bits; None for what stands for many: this
    machine's addresses, and none (UNIX sockets).
    """
    ip = ip_of(address)
    if ip is None or ip.is_loopback:
        return None
    if isinstance(ip, IPv6Address):
        return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
    return str(ip)


def is_address(host: str) -> bool:
    return ip_of(host) is not None and host.isprintable()  # an IPv6 zone may be anything


# ── who broke the protocol ────────────────────────────────────────────────────────────────────────


OFFENDERS_MAX: Final = 1000  # of address and reason, 300 kB; the longest silent goes first


class Offence(NamedTuple):
    """How often an address, or its network, had the same fault, and when last."""

    protocol: str
    address: str
    reason: str
    times: int
    last: float


class Offenders:
    def __init__(self) -> None:
        self._counted: OrderedDict[tuple[str, str, str], tuple[int, float]] = OrderedDict()
        self.forgotten: int = 0

    def note(self, protocol: str, host: str, reason: str, now: float) -> None:
        key = protocol, network_of(host) or host or "local", reason
        count, _ = self._counted.pop(key, (0, 0.0))
        self._counted[key] = count + 1, now
        if len(self._counted) > OFFENDERS_MAX:
            self.forgotten += self._counted.popitem(last=False)[1][0]

    def worst(self, most: int) -> list[Offence]:
        found = (Offence(*key, *counted) for key, counted in self._counted.items())
        return nlargest(most, found, key=lambda one: one.times)

    def __len__(self) -> int:
        return len(self._counted)


# ── who gives its place to a newcomer ─────────────────────────────────────────────────────────────


K = TypeVar("K", bound=Hashable)

CROWDED: Final = 0.9  # of ``connections``: from here on silent ones make room for newcomers

SILENT_SECONDS: Final = 60.0

ROOM_SEARCH_SECONDS: Final = 1.0  # without another search after one in vain

NO_NETWORK: Final = ""  # for newcomers without an address group, as those on this machine

ALL_NETWORKS: Final = "*"  # a search was in vain for all: no connection is silent


class Eviction:
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
        ``heard(connection)`` returns when its peer was heard last, or None if it may not be closed.

        It is the longest silent one of the largest address group; the newcomer's group is smaller,
        with it as well.  A search in vain is not repeated for a second, since it reads every
        connection; one in vain for the newcomer's group alone says nothing of the next newcomer's,
        or a crowd of one group would lock out all.
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
