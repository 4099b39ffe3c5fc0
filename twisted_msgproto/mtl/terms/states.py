"""MTL has four tables: a session and a data flow, as the server and as the client know them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import auto
from typing import Final

from ...core.machine import State, Table
from ..wire.control import Authorize, Open, RequestReader, RequestWriter, SelectProfile
from ..wire.data import (
    Confirm,
    Content,
    Dismiss,
    Lease,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
)

# ── The server's session ──────────────────────────────────────────────────────────────────────────


class Granted:
    """The client is who it says, or need not say."""


class Challenged:
    """The SASL cycle continues."""


class Denied:
    """The SASL cycle ended without success, or the authentication has ended."""


class SessionState(State):
    """A session is in one of these states; a peer without one is in ``NEW``."""

    NEW = auto()
    UNAUTHORIZED = auto()
    AUTHORIZING = auto()  # a response is being looked at
    CHALLENGED = auto()
    READY = auto()
    PROFILED = auto()


SESSION: Final[Table[SessionState]] = {
    SessionState.NEW: {Open: SessionState.UNAUTHORIZED},
    SessionState.UNAUTHORIZED: {
        Open: SessionState.UNAUTHORIZED,
        Authorize: SessionState.AUTHORIZING,
        Granted: SessionState.READY,
        Denied: SessionState.UNAUTHORIZED,
    },
    SessionState.AUTHORIZING: {
        Granted: SessionState.READY,
        Challenged: SessionState.CHALLENGED,
        Denied: SessionState.UNAUTHORIZED,
    },
    SessionState.CHALLENGED: {
        Open: SessionState.UNAUTHORIZED,
        Authorize: SessionState.AUTHORIZING,
        Denied: SessionState.UNAUTHORIZED,
    },
    SessionState.READY: {
        Open: SessionState.UNAUTHORIZED,
        Authorize: SessionState.AUTHORIZING,
        SelectProfile: SessionState.PROFILED,
        Denied: SessionState.UNAUTHORIZED,
    },
    SessionState.PROFILED: {
        Open: SessionState.UNAUTHORIZED,
        Authorize: SessionState.AUTHORIZING,
        SelectProfile: SessionState.PROFILED,
        RequestReader: SessionState.PROFILED,
        RequestWriter: SessionState.PROFILED,
        Denied: SessionState.UNAUTHORIZED,
    },
}
"""A request that is in no row gets 401 before authentication and 409 after it (``MT-03``)."""


# ── The server's data flow ────────────────────────────────────────────────────────────────────────


class FlowState(State):
    """A data connection is in one of these states."""

    UNLEASED = auto()  # no lease was shown, or what it gave has ended
    READING = auto()
    WRITING = auto()
    BROKEN = auto()  # what it wrote could not be made safe; it ends when all before it is settled


class ReaderLeased:
    """The lease that was shown is one of Connection.Reader."""


class WriterLeased:
    """The lease that was shown is one of Connection.Writer."""


class ContentLost:
    """Content of the flow never will be safe."""


class FlowEnded:
    """The peer is gone, the session of the lease has ended, or content was lost."""


FLOW: Final[Table[FlowState]] = {
    FlowState.UNLEASED: {
        ReaderLeased: FlowState.READING,
        WriterLeased: FlowState.WRITING,
        Ping: FlowState.UNLEASED,
    },
    FlowState.READING: {
        Summon: FlowState.READING,
        Dismiss: FlowState.READING,
        Confirm: FlowState.READING,
        Reject: FlowState.READING,
        Ping: FlowState.READING,
        Pong: FlowState.READING,
        FlowEnded: FlowState.UNLEASED,
    },
    FlowState.WRITING: {
        Content: FlowState.WRITING,
        Ping: FlowState.WRITING,
        Pong: FlowState.WRITING,
        ContentLost: FlowState.BROKEN,
        FlowEnded: FlowState.UNLEASED,
    },
    FlowState.BROKEN: {
        Ping: FlowState.BROKEN,
        Pong: FlowState.BROKEN,
        ContentLost: FlowState.BROKEN,
        FlowEnded: FlowState.UNLEASED,
    },
}

REFUSALS: Final[Mapping[FlowState, Mapping[type, int]]] = {
    FlowState.UNLEASED: {Lease: 403, Summon: 403, Dismiss: 403, Content: 403},
    FlowState.READING: {Lease: 403, Content: 403},
    FlowState.WRITING: {Lease: 403, Summon: 400, Dismiss: 400},
    FlowState.BROKEN: {Lease: 403, Summon: 400, Dismiss: 400, Content: 403},
}
"""This maps an illegal command to the code of its Response; one without a code is dropped and
counted (``MT-11``, ``MT-14``, ``MT-18``, ``MT-19``)."""


# ── The client's session ──────────────────────────────────────────────────────────────────────────


class ClientState(State):
    """What the server has agreed to, as far as the client knows."""

    CLOSED = auto()
    UNAUTHORIZED = auto()
    READY = auto()
    PROFILED = auto()


class Opened:
    """The server answered 201 to Open or Authorize."""


class Unauthorized:
    """The server answered 401."""


class ProfileSelected:
    """The server answered 200 to Profile."""


class SocketChanged:
    """The server does not know the new socket."""


CLIENT: Final[Table[ClientState]] = {
    ClientState.CLOSED: {
        Opened: ClientState.READY,
        Unauthorized: ClientState.UNAUTHORIZED,
        SocketChanged: ClientState.CLOSED,
    },
    ClientState.UNAUTHORIZED: {
        Opened: ClientState.READY,
        Unauthorized: ClientState.UNAUTHORIZED,
        SocketChanged: ClientState.CLOSED,
    },
    ClientState.READY: {
        Opened: ClientState.READY,
        ProfileSelected: ClientState.PROFILED,
        Unauthorized: ClientState.UNAUTHORIZED,
        SocketChanged: ClientState.CLOSED,
    },
    ClientState.PROFILED: {
        Opened: ClientState.READY,
        ProfileSelected: ClientState.PROFILED,
        Unauthorized: ClientState.UNAUTHORIZED,
        SocketChanged: ClientState.CLOSED,
    },
}
"""A request is sent in any state: the server says what it thinks of it."""


# ── The client's data flow ────────────────────────────────────────────────────────────────────────


class ClientFlowState(State):
    """Where a data flow stands, as its client knows it."""

    LOST = auto()  # no lease, or no socket: renew
    LEASING = auto()  # the lease was shown
    OPEN = auto()
    CLOSED = auto()


class Renewed:
    """A lease and a socket are there."""


class LeaseAccepted:
    """The server answered 200 to the lease."""


class FlowLost:
    """The server answered 403 to a command, or nothing."""


class FlowClosed:
    """The caller wants no more."""


CLIENT_FLOW: Final[Table[ClientFlowState]] = {
    ClientFlowState.LOST: {
        Renewed: ClientFlowState.LEASING,
        FlowLost: ClientFlowState.LOST,
        FlowClosed: ClientFlowState.CLOSED,
    },
    ClientFlowState.LEASING: {
        Renewed: ClientFlowState.LEASING,
        LeaseAccepted: ClientFlowState.OPEN,
        FlowLost: ClientFlowState.LOST,
        FlowClosed: ClientFlowState.CLOSED,
        Ping: ClientFlowState.LEASING,
        Pong: ClientFlowState.LEASING,
        Response: ClientFlowState.LEASING,
    },
    ClientFlowState.OPEN: {
        Renewed: ClientFlowState.LEASING,
        FlowLost: ClientFlowState.LOST,
        FlowClosed: ClientFlowState.CLOSED,
        Response: ClientFlowState.OPEN,
        Content: ClientFlowState.OPEN,
        Confirm: ClientFlowState.OPEN,
        Reject: ClientFlowState.OPEN,
        Ping: ClientFlowState.OPEN,
        Pong: ClientFlowState.OPEN,
    },
    ClientFlowState.CLOSED: {FlowClosed: ClientFlowState.CLOSED},
}
"""A command in no row is dropped and counted."""
