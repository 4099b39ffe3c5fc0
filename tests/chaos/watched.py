"""``python -m tests.chaos.watched WORD …``: ``msgproto WORD …``, which measures its turns.

On SIGUSR1 it prints the longest turn since it was asked last: ``longest turn 12.3 ms of PEER``.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from twisted_msgproto.__main__ import main
from twisted_msgproto.extend import SessionFactory
from twisted_msgproto.net.turns import TurnWatch


class Longest:
    def __init__(self) -> None:
        self._found = (0.0, "nobody")

    def taken(self, peer: str, host: str, spent: float) -> None:
        self._found = max(self._found, (spent, peer))

    def tell(self, number: int, frame: Any) -> None:
        spent, peer = self._found
        self._found = (0.0, "nobody")
        print(f"longest turn {spent * 1e3:.1f} ms of {peer}", flush=True)


if __name__ == "__main__":
    longest = Longest()
    SessionFactory.turnWatch = TurnWatch(-1.0, longest.taken)
    signal.signal(signal.SIGUSR1, longest.tell)
    sys.exit(main())
