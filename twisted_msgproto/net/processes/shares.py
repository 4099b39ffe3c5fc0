"""Limits of a whole gateway are divided by the number of its processes (:class:`Share`).

A limit of one connection, one message or one time stays as it is.  A limit of everything together
is divided, so that N processes hold and let in what one would.  Numbers are rounded up, so that no
process gets nothing; the sum may be larger by less than N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from ...core.errors import ConfigurationError
from ...core.kept import KEPT_LIMIT
from ...core.limits import Limits

OF_THE_GATEWAY: Final = frozenset(("process-octets", "process-held-octets", KEPT_LIMIT))
"""Each process has its share of these: they are limits of all servers together."""

OF_THE_SERVER: Final = frozenset(
    (
        "connections",
        "connections-per-address",
        "login-address-failures",
        "login-failures",
        "login-rate",
    )
)
"""Each process that runs a server has its share of these: they are limits of all its connections.

Whoever guesses passwords may reach every process, so the buckets of logins are among them.
"""

QUEUE_KEYS: Final = frozenset(("max-bytes",))
"""Each process has its share of these keys of [queue]: the room on the disk is for all queues."""

PROCESSES_MAX: Final = 64
"""A gateway has at most this many processes: more than processors are of no use, and each costs
more than 100 MiB of memory.
"""


def processes_of(value: object) -> int | None:
    """Return the key ``processes`` of a gateway.toml; ConfigurationError if it cannot be."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= PROCESSES_MAX:
        raise ConfigurationError(
            f"processes is a whole number from 1 to {PROCESSES_MAX}, not {value!r}"
        )
    return value


@dataclass(frozen=True, slots=True)
class Share:
    """Is the share of one process.

    Attributes:
        number: the process, from 0.
        count: how many processes there are.
    """

    number: int
    count: int

    def limits(self, limits: Limits, alone: bool) -> Limits:
        """Return the limits of one server in this process.

        ``alone`` says that no other process runs this server.
        """
        divided = OF_THE_GATEWAY if alone else OF_THE_GATEWAY | OF_THE_SERVER
        changes = {
            name: max(self.of(limits[name]), limits.table[name].minimum)
            for name in limits
            if name in divided and limits[name]
        }
        return Limits(limits.table, {**limits.changed, **changes})

    def of(self, whole: float) -> float:
        """Return this process's part of a limit; an integer stays one, and is rounded up."""
        return ceil(whole / self.count) if isinstance(whole, int) else whole / self.count

    def queue(self, keys: Mapping[str, object], default: int) -> dict[str, object]:
        """Return the keys of [queue] for this process; ``default`` is the usual ``max-bytes``."""
        shares = {"max-bytes": default, **keys}
        return {
            name: self.of(value) if name in QUEUE_KEYS and isinstance(value, int) else value
            for name, value in shares.items()
        }


__all__ = [
    "OF_THE_GATEWAY",
    "OF_THE_SERVER",
    "PROCESSES_MAX",
    "QUEUE_KEYS",
    "Share",
    "processes_of",
]
