"""How much of what is random or large is tested: ``./run test`` has the short form, ``./run long``
the long one.

What is planted (the simulator's bugs, the fuzzers' bugs) must be caught in the short form.
"""

from __future__ import annotations

SHORT = {"worlds": 200, "fuzz": 5_000, "gateways": 200, "states": 40}
"""Option → how many: simulated worlds a protocol, spoiled streams a decoder, gateways of a bridge,
examples of a state machine.

The simulator's rarest planted bug shows in world 181 of the 200, the fuzzers' rarest
fault in stream 1,918.
"""

LONG = {"worlds": 2500, "fuzz": 50_000, "gateways": 1000, "states": 2000}
"""The same with ``--long``."""
