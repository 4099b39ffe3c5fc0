"""A gateway serves its status site on its control socket, and where an operator wants it."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from twisted.internet.defer import Deferred, succeed
from twisted.web.resource import Resource

from ...core.errors import ConfigurationError
from ..control.resources import BodilessRequest
from ..control.service import REQUEST_SECONDS, ControlSite
from .access import Guarded, check_access, read_token
from .figures import GatewayFigures
from .resources import status_root
from .stream import Events


class StatusSite(ControlSite):
    """Is the site on an endpoint of its own; it is named and ended as servers are."""

    protocolName: ClassVar[str] = "status"

    def __init__(self, root: Guarded, events: Events) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            cast(Any, root), requestFactory=BodilessRequest, timeout=REQUEST_SECONDS
        )
        self._events = events

    def drain(self) -> Deferred[None]:
        """End the streams; the other answers are short."""
        self._events.end()
        return succeed(None)


def events_of(gateway: Any) -> Events:
    """Return a gateway's stream of samples."""
    return Events(GatewayFigures(gateway, gateway.reactor), gateway.reactor)


def unguarded_root(gateway: Any) -> Resource:
    """Return the root of a gateway's site for its control socket: the file guards it."""
    return status_root(gateway, events_of(gateway))


def status_site(gateway: Any, endpoint: str, token_file: str | None = None) -> StatusSite:
    """Return the site that shows ``gateway``; it is for ``endpoint``, an endpoint string.

    ``token_file`` has the token in its first line; None lets everybody in who can connect.  Raises
    ConfigurationError, one line, for an endpoint beyond this machine without TLS and a token, and
    for a file without a token.
    """
    try:
        check_access(endpoint, token_file)
    except ValueError as error:
        raise ConfigurationError(f"bad status endpoint {endpoint!r}: {error}") from None
    token = None if token_file is None else read_token(token_file)
    events = events_of(gateway)
    return StatusSite(Guarded(status_root(gateway, events), token), events)
