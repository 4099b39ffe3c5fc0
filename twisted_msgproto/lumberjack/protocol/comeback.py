"""A Lumberjack writer that reconnects has the methods of all protocols' clients."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint

from .client import LumberjackClientFactory
from .shipper import LumberjackShipper


class LumberjackClientService(LumberjackShipper):
    """Sends events to one reader; see ``ReconnectingService``.

    Events are kept until they are acknowledged, however many connections that takes; they wait for
    a connection without a limit of time, up to ``unsent-events`` and ``unsent-octets``.  For
    several readers there is :class:`~.shipper.LumberjackShipper`.
    """

    def __init__(
        self, endpoint: IStreamClientEndpoint, factory: LumberjackClientFactory, **options: Any
    ) -> None:
        """``options`` are ``retryPolicy``, ``stopWhenRefused``, ``random`` and ``limits``, as
        ``ReconnectingService`` has them.
        """
        changes = options.pop("limits", {})
        super().__init__(
            factory.clock, [endpoint], factory=factory, reconnectLimits=changes, **options
        )
