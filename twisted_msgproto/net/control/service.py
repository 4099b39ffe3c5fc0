"""A gateway listens for its operator on a UNIX socket in its queue's directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import Site

from ...core.errors import QueueError
from .address import SocketPath
from .resources import BodilessRequest, control_root
from .shapes import BrokerView
from .site import ControlSite

SOCKET_MODE: Final = 0o600

log = Logger(namespace="twisted_msgproto.control")


class ControlService(Service):
    """Answers to an operator's questions, from the start of the gateway to its end.

    A gateway works without it: where the socket cannot be made one line says so.

    Attributes:
        listening: whether the socket could be made.
    """

    def __init__(
        self,
        reactor: Any,
        directory: str,
        broker: Callable[[], BrokerView | None],
        make_root: Callable[[Callable[[], BrokerView | None]], Resource] = control_root,
    ) -> None:
        """``directory`` is the queue's; it is locked by this process while the service runs.

        ``broker()`` returns what has the queues now, or None.  ``make_root(broker)`` returns the
        root of the site that is served.
        """
        self._reactor = reactor
        self._directory = directory
        self._broker = broker
        self._make_root = make_root
        self._path: SocketPath | None = None
        self._port: Any = None

    @property
    def listening(self) -> bool:
        return self._port is not None

    def startService(self) -> None:
        """Listen.  A socket that a process left behind is replaced: the queue's lock is ours."""
        super().startService()  # type: ignore[no-untyped-call]
        site: Site = ControlSite(self._make_root(self._broker), requestFactory=BodilessRequest)
        try:
            self._path = SocketPath(self._directory)
            _remove_old(self._path.path)
            self._port = self._reactor.listenUNIX(self._path.path, site, mode=SOCKET_MODE)
        except (QueueError, OSError, CannotListenError) as error:
            self._forget_path()
            log.warn(
                "msgproto broker cannot ask this gateway, which works without that: {error}",
                error=getattr(error, "socketError", error),
            )

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        port, self._port = self._port, None
        stopped: Deferred[Any] = maybeDeferred(lambda: port and port.stopListening())
        return stopped.addBoth(lambda _: self._forget_path())

    def _forget_path(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            path.close()


def _remove_old(path: str) -> None:
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
