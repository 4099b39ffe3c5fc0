"""``msgproto send lumberjack``: lines become JSON documents, sent until each is acknowledged.

A line which is a JSON object is sent as it is.  Any other line (text, a number, what is not UTF-8,
and objects which :mod:`..core.strict_json` refuses: with NaN, a key twice, deeper than 64) becomes
the document ``{"message": LINE}``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred

from ..core.errors import ConfigurationError, TimedOut
from ..core.strict_json import parse_json
from ..net.clients.endpoints import client_endpoint
from ..net.clients.shapes import Messages, Progress, SendOptions
from ..registry import PROTOCOLS
from .protocol import LumberjackShipper
from .terms import COMPRESS_DEFAULT, WINDOW_DEFAULT

DEFAULT_ENDPOINT: Final = f"tcp:127.0.0.1:{PROTOCOLS['lumberjack'].ports['tcp']}"
"""Where ``twistd lumberjack`` listens when nobody says otherwise."""

PATIENCE_SECONDS: Final = 30.0
"""So long there may be no sign of life, however often the connection is made again."""

BACKOFF_MOST_SECONDS: Final = 2.0
"""Between two attempts: somebody sits and waits."""

WINDOWS_AHEAD: Final = 2
"""Windows which are made while another is on its way."""


UNBOUNDED: Final = 1 << 62


def document(line: bytes) -> bytes:
    """The JSON document which stands for a line."""
    try:
        if isinstance(parse_json(line, len(line)), dict):
            return line
    except ValueError:
        pass
    text = line.decode("utf-8", "replace")
    return json.dumps({"message": text}, ensure_ascii=False).encode()


class _Sender(LumberjackShipper):
    """A shipper which gives up: at once when it never got an ack, later when there is no life.

    A reader which hangs up without a single ack is hardly one; after an ack it may be restarting.

    Attributes:
        error: why it gave up, or None.
    """

    def __init__(self, reactor: Any, *arguments: Any, **settings: Any) -> None:
        super().__init__(reactor, *arguments, **settings)
        self.error: BaseException | None = None
        self._gave_up: Callable[[], object] = lambda: None
        self._got_through = False
        self._last_error: BaseException | None = None
        self._patience: Any = None
        self._leaving: Any = None

    def start(self, gave_up: Callable[[], object]) -> None:
        """Connect; ``gave_up()`` is called if it comes to that."""
        self._gave_up = gave_up
        self._patience = self.clock.callLater(PATIENCE_SECONDS, self._out_of_patience)
        self.startService()

    def connectionEnded(self, error: BaseException, established: bool) -> None:
        super().connectionEnded(error, established)
        self._last_error = error
        if not self._got_through:
            self._give_up(error)

    def progressed(self, count: int) -> None:
        self._got_through = self._got_through or count > 0
        if self._patience.active():
            self._patience.reset(PATIENCE_SECONDS)
        super().progressed(count)

    def _out_of_patience(self) -> None:
        if self.unacknowledged:
            text = f"no sign of life for {PATIENCE_SECONDS:g} s"
            self._give_up(self._last_error or TimedOut(text))
        else:  # there was nothing to send
            self._patience = self.clock.callLater(PATIENCE_SECONDS, self._out_of_patience)

    def _give_up(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            # Later: the connection may be in the middle of ending.
            self._leaving = self.clock.callLater(0, self._gave_up)

    def end(self) -> Deferred[None]:
        """Stop, and let no timer remain."""
        for call in (self._patience, self._leaving):
            if call is not None and call.active():
                call.cancel()
        return self.stopService()


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all ``messages``; returns when every one is acknowledged.

    Raises ConfigurationError for options which make no sense here, and what ended the attempt when
    it gives up: no connection in the first place, or no sign of life for a while.
    """
    for name, value in (
        ("--destination", options.destination),
        ("--user", options.user),
        ("--password-file", options.password),
    ):
        if value is not None:
            raise ConfigurationError(f"lumberjack has no {name}")
    window = WINDOW_DEFAULT if options.window is None else options.window
    sender = _Sender(
        reactor,
        [client_endpoint(reactor, options)],
        window=window,
        compress=COMPRESS_DEFAULT if options.compress is None else options.compress,
        limits={
            "backoff-most": BACKOFF_MOST_SECONDS,
            # What waits is bounded by what we read ahead, however long the lines are.
            "unsent-events": UNBOUNDED,
            "unsent-octets": UNBOUNDED,
        },
    )
    waiting: deque[Deferred[None]] = deque()

    async def all_messages() -> None:
        await sender.whenConnected(1)
        while batch := await messages.some(window):
            sending = sender.sendBatch(map(document, batch))
            sending.addCallback(_acknowledged, progress, len(batch))
            waiting.append(sending)
            progress.sent(len(batch))
            while len(waiting) > WINDOWS_AHEAD or (waiting and waiting[0].called):
                await waiting.popleft()
        while waiting:
            await waiting.popleft()

    work = Deferred.fromCoroutine(all_messages())
    sender.start(work.cancel)
    try:
        await work
    except CancelledError:
        if sender.error is not None:
            raise sender.error from None
        raise
    finally:
        for deferred in waiting:
            deferred.addErrback(lambda _: None)
            deferred.cancel()
        await sender.end()


def _acknowledged(result: None, progress: Progress, count: int) -> None:
    progress.acknowledged(count)
