"""What the hooks of an application may return: nothing, a Deferred, or a coroutine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import isawaitable, iscoroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..core.errors import shown

Later = Deferred[Any] | Coroutine[Any, Any, Any] | None
"""A hook for messages returns this: None is done, anything else is done later."""


def awaited(later: object, of: object, name: str) -> Deferred[Any] | None:
    """Return a Deferred for what the hook ``name`` of ``of`` returned, or None if it is done.

    Raises TypeError, which names the hook, if that is neither a Deferred nor a coroutine nor None.
    """
    if later is None or isinstance(later, Deferred):
        return later
    if iscoroutine(later):
        return Deferred.fromCoroutine(later)
    raise TypeError(
        f"{type(of).__name__}.{name} returned {shown(repr(later))[1:-1]}; it returns None, a"
        " Deferred or a coroutine"
    )


def run_on(later: object, failed: Callable[[Failure], object]) -> None:
    """Run a coroutine that a hook returned, although nobody waits for it.

    ``failed(failure)`` is called if it raises.
    """
    if iscoroutine(later):
        Deferred.fromCoroutine(later).addErrback(failed)


def promised(result: object) -> Deferred[Any] | None:
    """Return a Deferred for an answer that comes later; None if ``result`` is the answer."""
    if isinstance(result, Deferred):
        return result
    return Deferred.fromCoroutine(result) if isawaitable(result) else None  # type: ignore[arg-type]
