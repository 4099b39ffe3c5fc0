"""The counters of a factory include those of its live connections (FC-03)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields
from operator import attrgetter
from typing import Any


class Places:
    """Says where the counters of a connection stand: this maps names to dotted attributes of it.

    The counters of ten thousand connections are added in 10 ms so; a mapping for each of them
    would need three times as long.

    Attributes:
        names: the counters' names.
        read: returns the counters of a connection, in the order of ``names``.
    """

    __slots__ = ("names", "read")

    def __init__(self, places: Mapping[str, str]) -> None:
        self.names = tuple(places)
        # With a single name an attrgetter returns no tuple.
        self.read: Callable[[Any], tuple[int, ...]] = attrgetter(*places.values())
        if len(places) < 2:
            raise ValueError("a connection has at least two counters")

    @classmethod
    def of(cls, counters: type[Any], **others: str) -> Places:
        """Return the places where the machine's ``counters`` are of this dataclass; ``others`` are
        places of counters beside them.
        """
        machine = {field.name: f"machine.counters.{field.name}" for field in fields(counters)}
        return cls(machine | others)

    def figures(self, connection: object) -> dict[str, int]:
        """Return the counters of ``connection`` by name."""
        return dict(zip(self.names, self.read(connection), strict=True))


Figures = Callable[[], Mapping[str, int]]


class Counters(MutableMapping[str, int]):
    """Maps names to plain integers; a name that was never counted has 0.

    A connection joins with :class:`Places`, or with a function that returns its own counters.  They
    are added whenever somebody reads, and kept when the connection leaves.

    Attributes:
        settled: what was counted here and by connections that have left.  What counts with each
            message counts there: a name that connections have as well must not stand in both.
    """

    __slots__ = ("_live", "_names", "settled")

    def __init__(self) -> None:
        self.settled: defaultdict[str, int] = defaultdict(int)
        self._live: dict[object, Places | Figures] = {}
        self._names: set[str] = set()  # of what connections count

    def join(self, connection: object, figures: Places | Figures) -> None:
        """Add what ``figures`` says of ``connection`` to what is read, until it leaves."""
        self._live[connection] = figures
        self._names.update(_figures(connection, figures))

    def leave(self, connection: object) -> None:
        """Keep the last figures of ``connection``; nothing happens if it has left already."""
        figures = self._live.pop(connection, None)
        if figures is not None:
            for name, count in _figures(connection, figures).items():
                self.settled[name] += count

    def as_dict(self) -> dict[str, int]:
        """Return all of them, each connection having been asked once."""
        return next(filter(None, self.in_slices(len(self._live) + 1)), {})

    def in_slices(self, connections: int) -> Iterator[dict[str, int] | None]:
        """Yield None after each slice of this many ``connections``, and at last the counters that
        :meth:`as_dict` returns.

        Connections may come and go between the slices: each is counted once.
        """
        summed = defaultdict(int, self.settled)
        live = list(self._live.items())
        for first in range(0, len(live), connections):
            _add(summed, live[first : first + connections])
            if first + connections <= len(live):
                yield None
        yield summed

    def __getitem__(self, name: str) -> int:
        count = self.settled.get(name, 0)
        if name in self._names:
            count += sum([_figures(*live).get(name, 0) for live in self._live.items()])
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


def _figures(connection: object, figures: Places | Figures) -> Mapping[str, int]:
    return figures.figures(connection) if isinstance(figures, Places) else figures()


def _add(summed: defaultdict[str, int], live: Iterable[tuple[object, Places | Figures]]) -> None:
    """Add the counters of these connections to ``summed``."""
    alike: defaultdict[Places, list[object]] = defaultdict(list)
    for connection, figures in live:
        if isinstance(figures, Places):
            alike[figures].append(connection)
        else:
            for name, count in figures().items():
                summed[name] += count
    for places, connections in alike.items():
        columns = zip(*map(places.read, connections), strict=True)
        for name, column in zip(places.names, columns, strict=True):
            summed[name] += sum(column)


__all__ = ["Counters", "Places"]
