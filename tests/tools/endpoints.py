"""Many gateways in few processes, for tests: see ``twisted_msgproto/cli/benches/endpoints.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools.processes import environment
from twisted_msgproto.cli.benches.endpoints import serving


@contextmanager
def endpoints(
    directory: Path, count: int, *, processes: int = 2, rows: int = 10, delay: float = 0.0
) -> Iterator[list[str]]:
    """The locations of ``count`` endpoints, which ``processes`` processes serve meanwhile."""
    counts = [count // processes + (number < count % processes) for number in range(processes)]
    with serving(directory, counts, rows=rows, delay=delay, env=environment()) as served:
        yield [location for one in served for location in one.locations]
