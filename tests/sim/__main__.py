"""Replay worlds by seed: ``python -m tests.sim --seed 7 --protocol lumberjack [--count 1000]``.

``--protocol broker`` has worlds of its own, without sockets and disks.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

from twisted.logger import globalLogBeginner

from tests.sim.adapters import BUGS, WORLDS
from tests.sim.broker import BROKER_BUGS, BrokerWorld
from tests.sim.world import Violation, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="worlds, from that seed on")
    kinds, bugs = [*sorted(WORLDS), "broker"], sorted({*BUGS, *BROKER_BUGS})
    parser.add_argument("--protocol", choices=kinds, default="lumberjack")
    parser.add_argument("--bug", choices=bugs, help="plant this bug")
    arguments = parser.parse_args()
    globalLogBeginner.beginLoggingTo([lambda event: None], redirectStandardIO=False)
    begun, violations = time.perf_counter(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        with ExitStack() as planted:
            if arguments.bug:
                bug = arguments.bug
                planted.enter_context(BROKER_BUGS[bug]() if bug in BROKER_BUGS else BUGS[bug][1]())
            world: World | BrokerWorld
            if arguments.protocol == "broker":
                world = BrokerWorld(seed)
            else:
                world = World(seed, WORLDS[arguments.protocol]())
            try:
                world.run()
            except Violation as violation:
                violations += 1
                print(f"seed {seed}: {violation}\n    {world.options}")
                if isinstance(world, BrokerWorld):
                    print("\n".join(world.told))
    seconds = time.perf_counter() - begun
    rate = arguments.count / seconds
    print(f"{arguments.count} worlds, {violations} violations, {rate:.0f} worlds/s")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
