"""Write half an hour of a web shop's log to stdout, as lines of JSON: the same lines each time.

Three hosts serve requests.  At minute 17 one of them, web-2, begins to fail, and the others take
over its requests until it is started again.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator

BEGIN = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
MINUTES = 30
HOSTS = ("web-1", "web-2", "web-3")
FAILING = range(17, 22)
"""In these minutes web-2 answers little, and mostly with errors."""


def requests_of(host: str, minute: int, chance: random.Random) -> int:
    """Return how many requests a host serves in a minute."""
    usual = 24 + 0.5 * minute
    if minute in FAILING:
        usual *= 0.3 if host == "web-2" else 1.4
    return max(1, round(chance.gauss(usual, 2.5)))


def lines() -> Iterator[str]:
    """Yield the log, line by line, in the order of time."""
    chance = random.Random(31)
    for minute in range(MINUTES):
        seconds = sorted(
            (chance.uniform(0, 60), host)
            for host in HOSTS
            for _ in range(requests_of(host, minute, chance))
        )
        for second, host in seconds:
            fails = chance.random() < (0.6 if host == "web-2" and minute in FAILING else 0.01)
            at = BEGIN + dt.timedelta(minutes=minute, seconds=second)
            event = {
                "@timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "host": {"name": host},
                "log": {"level": "error" if fails else "info"},
                "status": 503 if fails else 200,
                "milliseconds": round(chance.lognormvariate(7 if fails else 3, 0.5), 1),
            }
            yield json.dumps(event)


if __name__ == "__main__":
    for line in lines():
        print(line)
