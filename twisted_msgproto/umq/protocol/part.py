"""What the parts of a UMQ session (verbs, answers, storing) see of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from twisted.logger import Logger

from ...core.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.message import Message
    from ...net.ingest import Delivery
    from ...net.wires.websocket import WebSocketWire
    from ..machine.attachments import Slot
    from ..machine.sides import Client, Server
    from ..terms.events import CallbackReceived, CallReceived
    from .exchange import AttachmentStream, Request
    from .topics import Subscription, Topic


class SessionPart:
    """The base of a session's parts: the attributes which they share.

    The methods stand here for type checkers alone; the session or another part defines each.
    """

    logger: ClassVar[Logger] = Logger(namespace="twisted_msgproto.umq")

    factory: Any
    machine: Server | Client
    transport: WebSocketWire
    wire: WebSocketWire
    limits: Limits
    peer: Any
    session: str
    clientId: str | None
    topics: dict[int, Topic]
    subscriptions: dict[int, Subscription]
    _callbacks: dict[int, Callable[[Request], Any]]
    _call_seconds: float
    _delivery: Delivery | None
    _closing: bool
    _in_read: bool
    _own_paused: bool
    _reason: Exception | None
    _timer: Any

    if TYPE_CHECKING:

        def _flush(self) -> bool:
            """Write what the machine has to send."""

        def _write(self) -> bool:
            """The same, at once."""

        def _fail(self, error: Any) -> None:
            """All that is pending fails."""

        def _now(self) -> float:
            """Tell the machine the time."""

        def _bodies(self, attachments: Sequence[Any]) -> list[bytes | Slot]:
            """Attachments for the machine."""

        def _lookBacklog(self) -> None:
            """Pause reading, or go on."""

        def _lookDrained(self) -> None:
            """Close, if the server stops and nothing is left to do."""

        def _message(self, kind: str, request: Request) -> Message:
            """A call as an application sees it."""

        def _serve(self, event: CallReceived | CallbackReceived) -> None:
            """Ask the application for the answer."""

        def _streamOf(self, message: object) -> AttachmentStream | None:
            """The stream of a message's attachments."""

        def needsSafety(self, message: CallReceived | CallbackReceived) -> bool:
            """Whether the answer waits for the sink."""

        def count(self, name: str) -> None:
            """Count one more of ``name``."""

        def closeSession(self, code: int | None = None, text: str = "") -> None:
            """End the session."""
