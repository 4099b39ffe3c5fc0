"""The counters of a factory include those of its live connections (FC-03)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping


class Counters(MutableMapping[str, int]):
    """Maps names to plain integers; a name that was never counted has 0.

    A connection joins with a function that returns its own counters.  They are added whenever
    somebody reads, and kept when the connection leaves.

    Attributes:
        settled: what was counted here and by connections that have left.  What counts with each
            message counts there: a name that connections have as well must not stand in both.
    """

    __slots__ = ("_live", "_names", "settled")

    def __init__(self) -> None:
        self.settled: defaultdict[str, int] = defaultdict(int)
        self._live: dict[object, Callable[[], Mapping[str, int]]] = {}
        self._names: set[str] = set()  # of what connections count

    def join(self, connection: object, figures: Callable[[], Mapping[str, int]]) -> None:
        """Add ``figures()`` to what is read, until ``connection`` leaves."""
        self._live[connection] = figures
        self._names.update(figures())

    def leave(self, connection: object) -> None:
        """Keep the last figures of ``connection``; nothing happens if it has left already."""
        figures = self._live.pop(connection, None)
        if figures is not None:
            for name, count in figures().items():
                self.settled[name] += count

    def as_dict(self) -> dict[str, int]:
        """Return all of them, each connection having been asked once."""
        return next(filter(None, self.in_slices(len(self._live) + 1)), {})

    def in_slices(self, connections: int) -> Iterator[dict[str, int] | None]:
        """Yield None after each so many connections were asked, and at last what :meth:`as_dict`
        returns.

        Connections may come and go between the slices: each is counted once.
        """
        summed = defaultdict(int, self.settled)
        for number, figures in enumerate(list(self._live.values()), 1):
            for name, count in figures().items():
                summed[name] += count
            if number % connections == 0:
                yield None
        yield summed

    def __getitem__(self, name: str) -> int:
        count = self.settled.get(name, 0)
        if name in self._names:
            count += sum(figures().get(name, 0) for figures in self._live.values())
        return count

    def __setitem__(self, name: str, count: int) -> None:
        self.settled[name] += count - self[name]

    def __delitem__(self, name: str) -> None:
        del self.settled[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())

    def items(self) -> ItemsView[str, int]:
        """Behave as a dict's method does."""
        return self.as_dict().items()

    def __repr__(self) -> str:
        return f"Counters({dict(self.as_dict())!r})"


__all__ = ["Counters"]
