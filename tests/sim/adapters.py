"""The protocols of the simulated world, alone and together, and the bugs it must catch.

Where several are together, over one queue and one state, each part is the adapter of one protocol,
with a server and a client of its own and its share of the world's events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from tests.sim import bugs
from tests.sim.bugs import Bug
from tests.sim.clock import ProcessClock
from tests.sim.lumberjack import Lumberjack
from tests.sim.micromsg2 import MICROMSG2_BUGS, MicroMsg2
from tests.sim.mtl import MTL_BUGS, Mtl
from tests.sim.sabc import SABC_BUGS, Sabc
from tests.sim.umq import UMQ_BUGS, Umq
from tests.sim.world import Adapter, Crowd, Way, World, count_each_byte, in_order
from twisted_msgproto.net.memory import SharedState

CLIENTS = 3


class Part:
    """What an adapter sees of the world: all of it, but with a server and events of its own."""

    def __init__(self, world: World, adapter: Adapter, bodies: list[bytes], first: int) -> None:
        self._world = world
        self.adapter = adapter
        self.bodies = bodies
        self.numbers = range(first, first + len(bodies))
        self.factory: Any = None
        self.in_order: Callable[[list[int]], bool] = getattr(adapter, "in_order", in_order)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def endpoint(self, clock: ProcessClock) -> Way:
        return Way(self, clock)  # type: ignore[arg-type]

    def listening_factory(self) -> Any:
        """This part's server, or None if the gateway is down."""
        return None if self._world.gateway is None else self.factory


class Together:
    def __init__(self, factories: list[Any], shared: SharedState) -> None:
        self._factories = factories
        self.shared = shared

    @property
    def counters(self) -> dict[str, int]:
        return {"faults": sum(factory.counters["faults"] for factory in self._factories)}

    @property
    def liveConnections(self) -> list[Any]:
        return [one for factory in self._factories for one in factory.liveConnections]

    def drain(self) -> Deferred[Any]:
        return gatherResults([factory.drain() for factory in self._factories])


class Mixed:
    """The adapter: the world's seed chooses the protocols, and who has most of the events."""

    name = "mixed"
    clients = CLIENTS

    def __init__(self, kinds: Iterable[Callable[[], Adapter]]) -> None:
        self._kinds = list(kinds)
        self._parts: list[Part] = []
        self._owner: dict[bytes, Part] = {}

    def _divide(self, world: World) -> None:
        """One is the bulk sender with most of the events; the others have a few."""
        few = max(1, len(world.bodies) // (4 * CLIENTS))
        ends = [few * number for number in range(1, CLIENTS)] + [len(world.bodies)]
        start = 0
        for kind, end in zip(world.source.sample(self._kinds, CLIENTS), ends, strict=True):
            part = Part(world, kind(), world.bodies[start:end], start)
            self._parts.append(part)
            self._owner.update(dict.fromkeys(part.bodies, part))
            start = end

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Together:
        if not self._parts:
            self._divide(world)
        world.shared = SharedState()
        for part in self._parts:
            part.factory = part.adapter.make_server(part, sink, clock)  # type: ignore[arg-type]
        count_each_byte(world.shared.held)
        return Together([part.factory for part in self._parts], world.shared)

    def make_client(self, world: World, bodies: list[bytes]) -> Crowd:
        return Crowd([part.adapter.make_client(part, part.bodies) for part in self._parts])  # type: ignore[arg-type]

    def duplicates_max(self, world: World) -> int:
        return sum(part.adapter.duplicates_max(world) for part in self._parts)

    def acknowledged(self, body: bytes) -> None:
        told: Callable[[bytes], None] | None
        told = getattr(self._owner[body].adapter, "acknowledged", None)
        if told is not None:
            told(body)

    def handed_on(self) -> bool:
        parts = [getattr(part.adapter, "handed_on", None) for part in self._parts]
        return all(complete() for complete in parts if complete is not None)

    def in_order(self, numbers: list[int]) -> bool:
        (part,) = (part for part in self._parts if numbers[0] in part.numbers)
        return all(number in part.numbers for number in numbers) and part.in_order(numbers)


ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "lumberjack": Lumberjack,
    "micromsg2": MicroMsg2,
    "mtl": Mtl,
    "sabc": Sabc,
    "umq": Umq,
}
"""Protocol → its adapter."""

WORLDS: dict[str, Callable[[], Adapter]] = {
    **ADAPTERS,
    "mixed": lambda: Mixed(ADAPTERS.values()),
}
"""What a world can have: clients of one protocol, or of several."""


BUGS: dict[str, tuple[str, Bug]] = {
    **{name: ("lumberjack", bug) for name, bug in bugs.SHARED_BUGS.items()},
    **{name: ("lumberjack", bug) for name, bug in bugs.LUMBERJACK_BUGS.items()},
    **{name: ("micromsg2", bug) for name, bug in MICROMSG2_BUGS.items()},
    **{name: ("mtl", bug) for name, bug in MTL_BUGS.items()},
    **{name: ("sabc", bug) for name, bug in SABC_BUGS.items()},
    **{name: ("umq", bug) for name, bug in UMQ_BUGS.items()},
    **{name: ("mixed", bug) for name, bug in bugs.MIXED_BUGS.items()},
}
"""Name → the kind of world which must catch it, and what plants it."""
