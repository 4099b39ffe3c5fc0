"""``msgproto send lumberjack``: one connection, one window in flight, no reconnecting."""

from __future__ import annotations

import json
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from ..cli.connecting import client_endpoint
from ..cli.shapes import Messages, Progress, SendOptions
from ..core.errors import ConnectionClosed, Fault, ProtocolViolation
from ..registry import PROTOCOLS
from .wire import Ack, Decoder, encode_compressed, encode_json, encode_window

DEFAULT_ENDPOINT = f"tcp:127.0.0.1:{PROTOCOLS['lumberjack'].ports['tcp']}"

WINDOW = 1024
"""Events in flight when nobody says."""

COMPRESS_LEVEL = 3
"""zlib's level when nobody says."""


def document(line: bytes) -> bytes:
    """A JSON object stays what it is; any other line becomes the ``message`` of one."""
    if line.startswith(b"{"):
        try:
            json.loads(line)
        except ValueError:
            pass
        else:
            return line
    return json.dumps({"message": line.decode("utf-8", "replace")}).encode()


class _Sender(Protocol):
    """Sends a window and waits for its acknowledgement."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._decoder = Decoder()
        self._acknowledged = 0  # of the window in flight
        self._window = 0
        self._waiting: Deferred[None] | None = None
        self.transport: Any = None

    def send(self, octets: bytes, count: int) -> Deferred[None]:
        """Write a window of ``count`` events; fires when all of them are acknowledged."""
        self._window, self._acknowledged = count, 0
        self._waiting = Deferred()
        self.transport.write(octets)
        self._progress.sent(count)
        return self._waiting

    def dataReceived(self, data: bytes) -> None:
        """Acknowledgements; 0 is only a sign of life (LJ-14)."""
        for frame in self._decoder.feed(data):
            if isinstance(frame, Ack) and self._acknowledged < frame.sequence <= self._window:
                self._progress.acknowledged(frame.sequence - self._acknowledged)
                self._acknowledged = frame.sequence
                if frame.sequence == self._window:
                    self._finish(None)
            elif isinstance(frame, Fault) or not isinstance(frame, Ack) or frame.sequence:
                self._finish(ProtocolViolation(f"no acknowledgement of ours: {frame}"))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Whatever was in flight is not known to be safe."""
        self._finish(ConnectionClosed(f"the connection ended: {reason.getErrorMessage()}"))

    def _finish(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and error is None:
            waiting.callback(None)
        elif waiting is not None and error is not None:
            waiting.errback(error)


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all ``messages`` as JSON events, window by window; each line which is no JSON object
    becomes the ``message`` of one.

    Raises ConnectionClosed or ProtocolViolation when the reader leaves one unacknowledged.
    """
    window = options.window or WINDOW
    level = COMPRESS_LEVEL if options.compress is None else options.compress
    factory = Factory.forProtocol(lambda: _Sender(progress))
    sender = cast(_Sender, await client_endpoint(reactor, options).connect(factory))
    try:
        while lines := await messages.some(window):
            count = len(lines)
            frames = encode_json(range(1, count + 1), map(document, lines))
            octets = encode_compressed(frames, level) if level else frames
            await sender.send(encode_window(count) + octets, count)
    finally:
        sender.transport.loseConnection()
