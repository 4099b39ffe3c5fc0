"""The protocols of the simulated world, and the bugs it must catch."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim import bugs
from tests.sim.bugs import Bug
from tests.sim.lumberjack import Lumberjack
from tests.sim.micromsg2 import MICROMSG2_BUGS, MicroMsg2
from tests.sim.mixed import Mixed
from tests.sim.mtl import MTL_BUGS, Mtl
from tests.sim.sabc import SABC_BUGS, Sabc
from tests.sim.umq import UMQ_BUGS, Umq
from tests.sim.world import Adapter

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
