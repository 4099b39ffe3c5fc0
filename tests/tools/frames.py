"""Lumberjack's frames as they stood on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from twisted_msgproto.lumberjack.wire import Json, Window


def windows_apart(frames: Iterable[Any]) -> Iterator[Any]:
    """``frames``, with each W frame that stands among J frames as a frame of its own."""
    for frame in frames:
        if not isinstance(frame, Json):
            yield frame
            continue
        start = 0
        for end, size in (*frame.windows, (len(frame.sequences), None)):
            if end > start:
                bodies: Any = frame.bodies[start:end]
                numbers: Any = frame.sequences[start:end]
                octets = 10 * len(bodies) + sum(map(len, bodies))
                yield Json(frame.version, numbers, bodies, octets, frame.compressed)
            if size is not None:
                yield Window(frame.version, size, frame.compressed)
            start = end
