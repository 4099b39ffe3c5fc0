"""A gateway serves its status site on its control socket, and where an operator wants it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, cast

from twisted.internet.defer import Deferred, succeed
from twisted.web.resource import Resource

from ...core.errors import ConfigurationError
from ..control.resources import BodilessRequest
from ..control.site import ControlSite
from ..reloading import Change
from .access import Guarded, check_access, read_token
from .figures import GatewayFigures
from .resources import status_root
from .stream import Events


class StatusSite(ControlSite):
    """The site on an endpoint of its own; it is named and ended as servers are."""

    protocolName: ClassVar[str] = "status"

    def __init__(self, root: Guarded, events: Events, token_file: str | None = None) -> None:
        super().__init__(cast(Any, root), requestFactory=BodilessRequest)
        self._events = events
        self._root = root
        # Read again from another directory perhaps: twistd may go to one of its own.
        self._token_file = None if token_file is None else os.path.abspath(token_file)

    def reread(self) -> Iterator[Change]:
        if self._token_file is not None:
            token = read_token(self._token_file)
            yield Change(
                f"status: the token of {self._token_file}", partial(self._root.changeToken, token)
            )

    def drain(self) -> Deferred[None]:
        """End the streams; the other answers are short."""
        self._events.end()
        return succeed(None)


def unguarded_root(gateway: Any) -> Resource:
    """Return the root of a gateway's site for its control socket: the file guards it."""
    return status_root(gateway, _events(gateway))


def _events(gateway: Any) -> Events:
    return Events(GatewayFigures(gateway, gateway.reactor), gateway.reactor)


def status_site(gateway: Any, endpoint: str, token_file: str | None = None) -> StatusSite:
    """Return the site that shows ``gateway``; it is for ``endpoint``, an endpoint string.

    ``token_file`` has the token in its first line; None lets everybody in who can connect, and then
    the site shows figures and does nothing else.  Raises ConfigurationError, one line, for an
    endpoint beyond this machine without TLS and a token, and for a file without a token.
    """
    try:
        check_access(endpoint, token_file)
    except ValueError as error:
        raise ConfigurationError(f"bad status endpoint {endpoint!r}: {error}") from None
    token = None if token_file is None else read_token(token_file)
    events = _events(gateway)
    root = status_root(gateway, events, for_everybody=token is None)
    return StatusSite(Guarded(root, token), events, token_file)
