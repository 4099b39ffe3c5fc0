"""A good client of one protocol beside a hostile input to another (NB-02, NB-03, NB-07, NB-09)."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from tests.chaos.clients import PROTOCOLS, GoodClients
from tests.chaos.gateways import Five, most_resident
from tests.chaos.inputs import INPUTS, attacking
from tests.chaos.report import Found, Row
from tests.tools.processes import launching

MESSAGES = 400
"""The good client sends this many alone and this many beside each input."""

WARM_SECONDS = 2.0
"""The attacker has this long to begin."""

TURN_MILLISECONDS = 100.0
TIMES, LEAST_MILLISECONDS = 6.0, 100.0
GOAL = "*beside*"
"""The page says what that is: p99 ≤ max(6 × p50 alone, 100 ms), a turn ≤ 100 ms, never cut off."""


def goal(name: str) -> str:
    most = INPUTS[name].peak_mib
    return GOAL + (f"; peak ≤ {most} MiB" if most else "")


class Beside(NamedTuple):
    """What a good client saw, in ms, and what it cost the gateway."""

    alone: tuple[float, float]
    beside: tuple[float, float]
    turn: float
    reconnected: bool
    lost: int
    resident_mib: float

    def found(self, most_mib: float = inf) -> Found:
        allowed = max(TIMES * self.alone[0], LEAST_MILLISECONDS)
        kept = self.beside[1] <= allowed and self.turn <= TURN_MILLISECONDS
        kept = kept and self.resident_mib <= most_mib
        return Found(
            f"alone p50 {self.alone[0]:.1f} p99 {self.alone[1]:.1f} ms,"
            f" beside it {self.beside[0]:.1f} and {self.beside[1]:.1f} ms;"
            f" longest turn {self.turn:.0f} ms; peak {self.resident_mib:.0f} MiB"
            + ("; CUT OFF" if self.reconnected else "")
            + (f"; {self.lost} LOST" if self.lost else ""),
            kept and not self.reconnected and not self.lost,
        )


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    return median(seconds) * 1e3, quantiles(seconds, n=100, method="inclusive")[98] * 1e3


def neighbour_of(protocol: str) -> str:
    return PROTOCOLS[(PROTOCOLS.index(protocol) + 1) % len(PROTOCOLS)]


def beside(five: Five, clients: GoodClients, name: str, messages: int, warm: float) -> Beside:
    """Measure a good client alone and beside the input ``name``; its client stands already."""
    protocol = INPUTS[name].protocol
    good = neighbour_of(protocol)
    connections = clients.connections(good)
    alone = clients.send(good, messages)
    five.longest_turn()
    with attacking(name, five.ports[protocol]):
        time.sleep(warm)
        latencies = clients.send(good, messages)
    return Beside(
        percentiles(alone),
        percentiles(latencies),
        five.longest_turn(),
        clients.connections(good) != connections,
        len(five.lost(clients.told())),
        most_resident(five.server) / (1 << 20),
    )


def measure(name: str, scale: float) -> Found:
    with (
        tempfile.TemporaryDirectory() as directory,
        launching(Path(directory)) as launch,
        contextlib.closing(GoodClients(Path(directory))) as clients,
    ):
        five = Five(launch)
        good = neighbour_of(INPUTS[name].protocol)
        clients.stand(good, five.ports[good])
        told = beside(five, clients, name, max(20, int(MESSAGES * scale)), WARM_SECONDS)
        return told.found(INPUTS[name].peak_mib or inf)


ROWS = tuple(
    Row(
        "neighbours",
        f"{neighbour_of(entry.protocol)} beside {entry.protocol}: {name}",
        goal(name),
        partial(measure, name),
    )
    for name, entry in INPUTS.items()
)
