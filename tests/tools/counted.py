"""``python -m tests.tools.counted NAME …``: ``twist NAME …``, which tells its counters when asked.

On SIGUSR1 it prints one line, ``counters`` and then the counters of all server factories as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from typing import Any

from twisted.application.twist._twist import Twist

from twisted_msgproto.extend import MsgprotoServerFactory

_made: list[MsgprotoServerFactory] = []


def _tell(number: int, frame: Any) -> None:
    total: Counter[str] = Counter()
    for factory in _made:
        total.update(factory.counters)
    print("counters", json.dumps(total), flush=True)


def main() -> None:
    init = MsgprotoServerFactory.__init__

    def noted(self: MsgprotoServerFactory, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        _made.append(self)

    MsgprotoServerFactory.__init__ = noted  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, _tell)
    Twist.main(["twist", *sys.argv[1:]])


if __name__ == "__main__":
    main()
