"""``msgproto send lumberjack`` makes events of lines, and sends until each is acknowledged.

A line that is a JSON object is sent as it is.  Any other line (text, a number, and objects that
:mod:`..core.strict_json` refuses: with NaN, a key twice, deeper than 64) becomes the document
``{"message": LINE}``.  In version 1 of the protocol every line becomes the pair ``line``.

Neither carries bytes that are not UTF-8: such a line is refused, or changed where the operator
asks for that.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred

from ..core.errors import TimedOut
from ..core.strict_json import parse_json
from ..net.clients.client_endpoints import client_endpoint, host_and_port
from ..net.clients.command_types import TLS_OPTIONS, Messages, Progress, SendOptions
from ..net.clients.reconnect import ReconnectState
from ..registry import PROTOCOLS
from .protocol.reconnect import LumberjackShipper
from .terms import COMPRESS_DEFAULT, WINDOW_DEFAULT, Event

DEFAULT_ENDPOINT: Final = f"tcp:127.0.0.1:{PROTOCOLS['lumberjack'].ports['tcp']}"

SEND_OPTIONS: Final = TLS_OPTIONS | {
    "window",
    "compress",
    "protocol_version",
    "hosts",
    "ttl",
    "pipelining",
    "replace_invalid",
}

RETRY_MOST_SECONDS: Final = 2.0
"""This is the pause between two attempts: somebody sits and waits."""

WINDOWS_AHEAD: Final = 2
"""Windows that are made while another is on its way."""

UNBOUNDED: Final = 1 << 62


def encode(line: bytes, options: SendOptions) -> bytes:
    """Return a line's JSON document, or its text in version 1; ValueError if not UTF-8."""
    errors = "replace" if options.replace_invalid else "strict"
    try:
        text = line.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise ValueError(
            "it is not UTF-8, and Lumberjack carries nothing else;"
            " --replace-invalid sends U+FFFD instead"
        ) from None
    return text.encode() if options.protocol_version == 1 else document(text.encode())


def document(line: bytes) -> bytes:
    try:
        if isinstance(parse_json(line, len(line)), dict):
            return line
    except ValueError:
        pass
    return json.dumps({"message": line.decode()}, ensure_ascii=False).encode()


def _event(message: bytes, options: SendOptions) -> Event:
    return {"line": message.decode()} if options.protocol_version == 1 else message


class _Sender(LumberjackShipper):
    """Gives up if it never got an ack: who hangs up so is no reader; later it may be restarting."""

    def __init__(
        self, reactor: Any, endpoints: list[Any], progress: Progress, **settings: Any
    ) -> None:
        super().__init__(reactor, endpoints, **settings)
        self.error: BaseException | None = None
        self._ended: BaseException | None = None  # why the last connection has
        self._progress = progress
        self._gave_up: Callable[[], object] = lambda: None
        self._tries = len(endpoints)  # that have to fail before there is an ack
        self._got_through = False
        self._leaving: Any = None

    def start(self, gave_up: Callable[[], object]) -> None:
        self._gave_up = gave_up
        self.startService()

    def connectionEnded(self, error: BaseException) -> None:
        super().connectionEnded(error)
        self._ended = error
        self._tries -= 1
        if not self._got_through and self._tries <= 0 and self.error is None:
            self.error = error
            # Later: the connection may be in the middle of ending.
            self._leaving = self.clock.callLater(0, self._gave_up)

    def progressed(self, count: int) -> None:
        if count:
            self._got_through = True
            self._progress.acknowledged(count)
        else:
            self._progress.alive()
        super().progressed(count)

    def why(self) -> BaseException | None:
        if self.error is None and self._ended is not None and self.state is ReconnectState.UP:
            text = f"the server acknowledges no more; the connection before this one: {self._ended}"
            return TimedOut(text)
        return self.error or self._ended

    def end(self) -> Deferred[None]:
        if self._leaving is not None and self._leaving.active():
            self._leaving.cancel()
        return self.stopService()


def _endpoints(reactor: Any, options: SendOptions) -> list[Any]:
    """Return the endpoint, and those of ``--host``: like it with ``HOST:PORT``, or endpoints."""
    texts = [options.endpoint]
    kind = options.endpoint.partition(":")[0]
    for host in options.hosts:
        if not host.startswith(("tcp:", "tls:", "unix:")):
            host_and_port(host)
            host = f"{kind if kind in ('tcp', 'tls') else 'tcp'}:{host}"
        texts.append(host)
    return [client_endpoint(reactor, replace(options, endpoint=text)) for text in texts]


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all until acknowledged; raises ConfigurationError, or what made it give up."""
    window = WINDOW_DEFAULT if options.window is None else options.window
    sender = _Sender(
        reactor,
        _endpoints(reactor, options),
        progress,
        version=options.protocol_version or 2,
        window=window,
        compress=COMPRESS_DEFAULT if options.compress is None else options.compress,
        pipelining=options.pipelining or 1,
        limits={
            "ttl": options.ttl or 0,
            # What waits is bounded by what we read ahead, however long the lines are.
            "unsent-events": UNBOUNDED,
            "unsent-bytes": UNBOUNDED,
        },
        reconnectLimits={"retry-most": RETRY_MOST_SECONDS},
    )
    waiting: deque[Deferred[None]] = deque()

    def taken(now: float) -> float:
        return 0.0 if sender.session is None else sender.session.link.takenAt(now)

    progress.follow(taken)

    async def all_messages() -> None:
        await sender.whenEstablished()
        ahead = WINDOWS_AHEAD + (options.pipelining or 1) - 1
        while batch := await messages.some(window):
            progress.sent(len(batch))
            waiting.append(sender.sendBatch([_event(message, options) for message in batch]))
            while len(waiting) > ahead or (waiting and waiting[0].called):
                await waiting.popleft()
        while waiting:
            await waiting.popleft()

    work = Deferred.fromCoroutine(all_messages())
    sender.start(work.cancel)
    try:
        await work
    except CancelledError as cancelled:
        raise sender.why() or cancelled from None
    finally:
        for deferred in waiting:
            deferred.addErrback(lambda _: None)
            deferred.cancel()
        with suppress(CancelledError):  # who waits no longer is told why all the same
            await sender.end()
