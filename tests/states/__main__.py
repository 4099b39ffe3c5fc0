"""Run state machines out of band: ``python -m tests.states sabc --seed 7 --examples 1000``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from contextlib import nullcontext

from tests.states.bugs import BUGS
from tests.states.running import STATES, STEPS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.states", description=__doc__)
    parser.add_argument("name", choices=sorted(STATES))
    parser.add_argument("--seed", type=int, help="examples of this seed; without it the tests'")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=STEPS, help="of an example at most")
    parser.add_argument("--no-shrink", action="store_true", help="show the first failing example")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    arguments = parser.parse_args()
    planted = BUGS[arguments.bug][1]() if arguments.bug else nullcontext()
    begun, failed = time.process_time(), False
    try:
        with planted:
            run(
                arguments.name,
                arguments.examples,
                fresh=arguments.seed,
                shrink=not arguments.no_shrink,
                steps=arguments.steps,
            )
    except Exception as error:
        failed = True
        traceback.print_exc(limit=-6)
        print(*getattr(error, "__notes__", []), sep="\n")
    print(f"{arguments.examples} examples, {time.process_time() - begun:.1f} s of CPU time")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
