"""Both sides of a UMQ connection are machines: messages in, events out, without I/O or clock.

Nothing travels twice and nothing is acknowledged but calls, by their answers.  So what is pending
when the connection ends has failed, and nobody knows whether the peer did it.

Inputs and outputs are WebSocket messages, ``str`` for text and ``bytes`` for binary ones.  After a
``UmqFault`` or a ``FatalReceived`` send what is left, close the WebSocket, and fail what
``lost(now)`` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from ...core.machine import IllegalTransition
from ...core.session_memory import SESSION_LIMIT, SESSION_WEIGHT_BYTES, text_bytes
from ..terms import (
    CLIENT,
    HELLO_ATTACHMENTS,
    HELLO_CHARACTERS,
    SERVER,
    ClientState,
    Event,
    HelloReceived,
    HelloSent,
    MemoryLimitExceeded,
    ServerState,
    WelcomeReceived,
    WelcomeSent,
)
from ..wire import VERSION, Code, Frame, Hello, UmqFault, Welcome, base36
from .attachments import Filled, Slot, attachments_bytes
from .peer import ACTIONS, Peer

UNDECIDED: Final = "undecided"
"""A fault has this reason if nobody has said in time whether the client may come in."""


class Client(Peer):
    """The side that connects: ``hello``, then ``accept`` after WelcomeReceived (``UM-06``,
    ``UM-07``).
    """

    table = CLIENT
    first_state: ClientState = ClientState.START
    open_state: ClientState = ClientState.OPEN
    closed_state: ClientState = ClientState.CLOSED

    @property
    def finished(self) -> bool:
        """The machine is closed, or it was drained and no call waits on either side."""
        return self.closed or (super().finished and not self._pending)

    def hello(self, payload: str = "", attachments: Sequence[bytes | Slot] = ()) -> None:
        """Say ``H``: the first verb of all (``UM-06``)."""
        if self._machine.state is not ClientState.START:
            raise IllegalTransition(self._machine.state, HelloSent)
        self._send(Hello, base36(VERSION), payload, attachments)
        self._machine.step(HelloSent)

    def _on_welcome(self, frame: Frame, events: list[Event]) -> None:
        version = frame.number
        if not 1 <= version <= VERSION:
            text = f"W has version {version}, H had {VERSION}"
            self._fail(UmqFault("version", text, b"", Code.UNSUPPORTED_VERSION), events)
            return
        self._barrier = []
        self._deliver(WelcomeReceived(version, frame.payload), frame.attachments, None, events)

    def accept(self, now: float) -> list[Event]:
        """We accept the server: what it has said since ``W`` is told from here on (``UM-07``)."""
        self.clock = max(now, self.clock)
        return self._lift_barrier()


Client.actions = {**ACTIONS, Welcome: Client._on_welcome}


class Server(Peer):
    """The side that answers: after HelloReceived, ``welcome`` or ``fatal`` (UM-06, UM-07)."""

    table = SERVER
    first_state: ServerState = ServerState.AWAITING_HELLO
    open_state: ServerState = ServerState.OPEN
    closed_state: ServerState = ServerState.CLOSED

    def _on_hello(self, frame: Frame, events: list[Event]) -> None:
        version = frame.number
        fault = None
        if version < 1:
            text = f"H has version {version}"
            fault = UmqFault("version", text, b"", Code.UNSUPPORTED_VERSION)
        elif len(frame.payload) > HELLO_CHARACTERS:
            fault = UmqFault("hello-characters", "H is too long")
        elif frame.attachments > HELLO_ATTACHMENTS:
            fault = UmqFault("hello-attachments", "H has attachments", b"", Code.REJECTED)
        if fault is not None:
            self._fail(fault, events)
            return
        self._deliver(HelloReceived(version, frame.payload), frame.attachments, None, events)

    def _oversize(self) -> UmqFault:
        if self._machine.state is ServerState.AWAITING_HELLO:
            return UmqFault("hello-characters", "H, or an attachment of it, is too long")
        return super()._oversize()

    def _emit(self, message: Filled, events: list[Event]) -> None:
        if type(message) is HelloReceived:
            # From H to W is our own time: it is limited, and H with its attachments is kept.
            nbytes = text_bytes(message.payload) + attachments_bytes(message.attachments)
            nbytes += SESSION_WEIGHT_BYTES
            if not self.memory.take(nbytes):
                events.append(MemoryLimitExceeded("log-in"))
                text = f"too many log-ins wait: {SESSION_LIMIT}"
                self._fail(UmqFault(SESSION_LIMIT, text, b"", Code.UNAVAILABLE), events)
                return
            self.deadlines.set("hello", self.clock + self._limits["hello-seconds"])
        super()._emit(message, events)

    def _hello_expired(self, now: float, events: list[Event]) -> None:
        if self._machine.state is ServerState.AUTHORISING:
            text = "nobody decided in time whether the client may come in"
            self._fail(UmqFault(UNDECIDED, text, b"", Code.UNAVAILABLE), events)
        else:
            super()._hello_expired(now, events)

    timely: ClassVar[dict[Any, Any]] = {**Peer.timely, "hello": _hello_expired}

    def welcome(self, payload: str = "", attachments: Sequence[bytes | Slot] = ()) -> None:
        """Accept the client: the session is open (``UM-07``).  Only after HelloReceived."""
        if self._machine.state is not ServerState.AUTHORISING:
            raise IllegalTransition(self._machine.state, WelcomeSent)
        self._send(Welcome, base36(VERSION), payload, attachments)
        self._machine.step(WelcomeSent)
        self.deadlines.clear("hello")
        self.memory.remove(self.memory.nbytes)  # of H: nothing else is kept before W


Server.actions = {**ACTIONS, Hello: Server._on_hello}
