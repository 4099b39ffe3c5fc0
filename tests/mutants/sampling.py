"""A sample of mutants: the same for the same code and seed, of changed lines alone if wanted."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar


class Placed(Protocol):
    """What stands at a place of a file."""

    @property
    def file(self) -> Path: ...

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


M = TypeVar("M", bound=Placed)


def sample(
    mutants: Iterable[M],
    number: int,
    seed: int,
    changed: Mapping[Path, Container[int]] | None = None,
) -> list[M]:
    """Return ``number`` of the mutants, no two at one place.

    With ``changed`` only mutants of these lines, by file, are taken.
    """
    places: defaultdict[tuple[Path, int, int], list[M]] = defaultdict(list)
    for mutant in mutants:
        if changed is None or mutant.line in changed.get(mutant.file, ()):
            places[mutant.file, mutant.line, mutant.column].append(mutant)
    source = random.Random(seed)
    chosen = source.sample(sorted(places), min(number, len(places)))
    return [source.choice(places[place]) for place in chosen]
