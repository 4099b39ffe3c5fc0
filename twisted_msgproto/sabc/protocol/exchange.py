"""Applications exchange these over sABC: bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: ``request`` returns it, and ``requestReceived`` may return it.

    ``truncated``: the peer's answer was above our limit and cut (``SA-22``).
    """

    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    truncated: bool = False

    @property
    def text(self) -> str:
        """Return the body as UTF-8 text; U+FFFD for what is none (``SA-04``)."""
        return self.body.decode("utf-8", "replace")


Answer = Response | bytes | str | None
Body = bytes | str | Iterable[bytes]


def octets_of(body: object) -> bytes:
    """Return a body as octets; text is UTF-8, None is empty.  TypeError for anything else."""
    if isinstance(body, bytes):
        return body
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes, text or None, not {type(body).__name__}")
