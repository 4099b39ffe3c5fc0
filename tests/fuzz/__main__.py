"""Fuzz out of band, or replay: ``python -m tests.fuzz lumberjack --seed 7 [--count 1000000]``."""

from __future__ import annotations

import argparse
import sys
import time

from .streams import fuzz
from .targets import TARGETS

SHOWN_MAX = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="streams, from that seed on")
    arguments = parser.parse_args()
    begun, found = time.perf_counter(), 0
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    for seed, error in fuzz(TARGETS[arguments.target], seeds):
        print(f"seed {seed}: {type(error).__name__}: {error}"[:500])
        found += 1
        if found == SHOWN_MAX:
            break
    rate = arguments.count / (time.perf_counter() - begun)
    print(f"{arguments.count} streams, {found} findings, {rate:.0f} streams/s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
