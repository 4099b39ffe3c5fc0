"""Servers with queues have these options, and may share the queues of one namespace."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Final

from twisted.python import usage

from ...core.broker import LIMITS, WAIT, WHEN_FULL
from ...core.errors import ConfigurationError
from ...core.limits import Limits
from ..options import ServerOptions
from ..sink import MessageSink
from .persistence import broker_of
from .served_broker import ServedBroker

NAMESPACE: Final = re.compile(r"(?!micromsg2$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A shared namespace has such a name; no server's own space has one."""


class BrokerOptions(usage.Options):
    """These options are added to those of a server with queues."""

    optParameters: ClassVar[list[list[Any]]] = [
        [
            "queue-full",
            None,
            WAIT,
            "What happens when a queue is full: its senders wait, or its oldest messages go to its"
            " dead letters (dead-letter).",
        ],
        [
            "broker-namespace",
            None,
            None,
            "Share the queues of the namespace NAME with every server that names it too: a queue"
            " has one name for all of them.",
        ],
    ]

    def postOptions(self) -> None:
        super().postOptions()  # type: ignore[no-untyped-call]
        if self["queue-full"] not in WHEN_FULL:
            words = " or ".join(WHEN_FULL)
            raise usage.UsageError(f"--queue-full is {words}, not {self['queue-full']!r}")
        namespace = self["broker-namespace"]
        if namespace is not None and NAMESPACE.fullmatch(namespace) is None:
            raise usage.UsageError(
                "--broker-namespace is up to 64 letters, digits, dots, hyphens and underscores,"
                f" and not micromsg2, which is a server's own; not {namespace!r}"
            )


class Namespaces:
    def __init__(
        self, reactor: Any, sink_of: Callable[[ServerOptions], MessageSink | None]
    ) -> None:
        self._reactor = reactor
        self._sink_of = sink_of
        self._brokers: dict[str, tuple[ServedBroker, Limits, str, object]] = {}

    def settings(self, options: ServerOptions) -> dict[str, Any]:
        """Return the arguments of a server's factory that these options stand for."""
        settings: dict[str, Any] = {"queueFull": options["queue-full"]}
        namespace = options["broker-namespace"]
        if namespace is not None:
            settings |= {"space": namespace, "queues": self._broker(namespace, options)}
        return settings

    def _broker(self, namespace: str, options: ServerOptions) -> ServedBroker:
        known = Limits.of(LIMITS)
        changed = options["limits"].changed
        changes = {name: changed[name] for name in known if name in changed}
        sink, when_full = self._sink_of(options), options["queue-full"]
        if namespace not in self._brokers:
            limits = known.replace(changes)
            broker = broker_of(sink, self._reactor, limits, [namespace], when_full=when_full)
            self._brokers[namespace] = (broker, limits, when_full, sink)
        broker, limits, when, where = self._brokers[namespace]
        place = f"the broker-namespace {namespace!r}, which another server has made,"
        for name, value in changes.items():
            if value != limits[name]:
                raise ConfigurationError(
                    f"{place} has {name}={limits[name]:g}, and it is {value:g} here: set it alike"
                    " in both, or in [limits]"
                )
        if when != when_full:
            raise ConfigurationError(f"{place} has queue-full={when!r}, and not {when_full!r}")
        if where is not sink:
            raise ConfigurationError(f"{place} stores its messages in another sink")
        return broker
