"""This module knows all protocols and sinks: our own, and those of other packages.

The command line, the combined gateway, the demo and the benches find a protocol here and import its
modules late, by name.  Our own stand in :data:`PROTOCOLS`.  Another package adds one with an entry
point whose value is a :class:`Registered`::

    [project.entry-points."twisted_msgproto.protocols"]
    lines = "msgproto_lines:REGISTERED"

and a sink with an entry point of the group ``twisted_msgproto.sinks``.  If a package cannot be
imported, one line names it when its protocol is asked for; all others work as before.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .core.errors import ConfigurationError
from .core.loading import closest, failure_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LOOPBACK = "tcp:0:interface=127.0.0.1"
"""The endpoint of a server for this machine alone, on a port that the system chooses, is this."""

PROTOCOL_GROUP: Final = "twisted_msgproto.protocols"  # entry points to :class:`Registered`
SINK_GROUP: Final = "twisted_msgproto.sinks"  # used by ``Gateway.sinkOf``
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")  # it names a TOML table and a twistd plugin

RESERVED: Final = frozenset(["access", "broker", "limits", "msgproto", "queue", "spark", "status"])
"""These names mean something else in a gateway.toml or to ``twistd``."""


class Registered(NamedTuple):
    """One protocol.

    ``package`` has the modules ``service`` (``Options``, ``serve``, ``makeService``) and
    ``command`` (``DEFAULT_ENDPOINT``, ``send``, ``recv``).  ``ports`` names the default ports by
    their role (``"tcp"``, ``"websocket"``, ``"control"``, …).  ``demo`` is the protocol's table in
    the demo's gateway.toml; its server then listens on ``demo_addresses`` addresses.  The demo
    leaves out a protocol whose table is empty.  ``demo_send`` is what ``msgproto send`` is told
    beside each address.
    """

    name: str
    title: str
    package: str
    ports: Mapping[str, int]
    demo: Mapping[str, object]
    demo_send: tuple[str, ...] = ()
    demo_addresses: int = 1


PROTOCOLS: Mapping[str, Registered] = {
    row.name: row
    for row in (
        Registered(
            name="lumberjack",
            title="Lumberjack",
            package="twisted_msgproto.lumberjack",
            ports={"tcp": 5044},
            demo={"endpoint": [LOOPBACK]},
            demo_send=("--window", "512", "--compress", "3"),
        ),
        Registered(
            name="micromsg2",
            title="MicroMsg2",
            package="twisted_msgproto.micromsg2",
            ports={"tcp": 5045},
            demo={"endpoint": [LOOPBACK]},
            demo_send=("--window", "100"),
        ),
        Registered(
            name="sabc",
            title="sABC",
            package="twisted_msgproto.sabc",
            ports={"tcp": 5046, "websocket": 5047},
            demo={"endpoint": [LOOPBACK], "websocket": [LOOPBACK]},
            demo_send=("--window", "256"),
            demo_addresses=2,
        ),
        Registered(
            name="umq",
            title="UMQ",
            package="twisted_msgproto.umq",
            ports={"websocket": 5048},
            demo={"endpoint": [LOOPBACK]},
            demo_send=("--window", "256"),
        ),
        Registered(
            name="mtl",
            title="MTL",
            package="twisted_msgproto.mtl",
            ports={"control": 5049, "data": 5050},
            demo={"endpoint": ["tcp://127.0.0.1:*"]},
            demo_send=("--destination", "ingest/demo"),
        ),
    )
}
"""These are our own; they need no metadata of an installation."""


# ── protocols ───────────────────────────────────────────────────────────────────────────────────


def known() -> list[str]:
    """Return the names of all protocols, our own first; no other package is imported for it."""
    return [*PROTOCOLS, *sorted(_others(PROTOCOL_GROUP).keys() - PROTOCOLS.keys())]


def registered(name: str) -> Registered:
    """Return the protocol; ConfigurationError if there is none, or its package is broken."""
    row = PROTOCOLS.get(name)
    if row is not None:
        return row
    offers = _others(PROTOCOL_GROUP).get(name)
    if offers is None:
        meant = closest(name, known())
        raise ConfigurationError(f"unknown protocol {name!r}{meant}; known: {', '.join(known())}")
    return _row(name, offers)


def usable(
    complain: Callable[[str], object], parts: Iterable[tuple[str, str]] = ()
) -> Iterator[Registered]:
    """Iterate over all protocols; one broken, or without one of ``parts``, is told and left out."""
    yield from PROTOCOLS.values()
    for name in sorted(_others(PROTOCOL_GROUP)):
        if name in PROTOCOLS:
            package = package_name(_others(PROTOCOL_GROUP)[name][0])
            complain(f"protocol {name!r} of the package {package} is not used: it is one of ours")
            continue
        try:
            row = registered(name)
            for module, attribute in parts:
                part(name, module, attribute)
        except ConfigurationError as error:
            complain(str(error))
        else:
            yield row


def load(name: str, module: str) -> ModuleType:
    """Import a protocol's module; ConfigurationError when another package's cannot be."""
    package = registered(name).package
    try:
        return importlib.import_module(f"{package}.{module}")
    except (Exception, SystemExit) as error:
        if name in PROTOCOLS:
            raise
        raise _broken(f"protocol {name!r}", _others(PROTOCOL_GROUP)[name][0], error) from error


def part(name: str, module: str, attribute: str) -> Any:
    found = load(name, module)
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        if name in PROTOCOLS:
            raise
        raise _broken(f"protocol {name!r}", _others(PROTOCOL_GROUP)[name][0], error) from error


def _row(name: str, offers: tuple[EntryPoint, ...]) -> Registered:
    what = f"protocol {name!r}"
    if not NAME.fullmatch(name) or name in RESERVED:
        raise ConfigurationError(
            f"{what} of the package {package_name(offers[0])}: a protocol cannot have this name"
        )
    row = _loaded(what, offers)
    if not isinstance(row, Registered) or row.name != name:
        raise ConfigurationError(
            f"{what} of the package {package_name(offers[0])}: its entry point"
            f" {offers[0].value!r} is no twisted_msgproto.registry.Registered of this name"
        )
    return row


# ── sinks ───────────────────────────────────────────────────────────────────────────────────────


def known_sinks() -> list[str]:
    return sorted(_others(SINK_GROUP))


def registered_sink(name: str) -> object:
    """Return what makes this sink; ConfigurationError if none, or its package is broken."""
    offers = _others(SINK_GROUP).get(name)
    if offers is None:
        names = ", ".join(known_sinks()) or "none"
        raise ConfigurationError(
            f"no package has registered it (known: {names}), nor is it MODULE:NAME"
        )
    return _loaded(f"sink {name!r}", offers)


# ── entry points ────────────────────────────────────────────────────────────────────────────────


@cache
def _others(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return what other packages offer: name → entry points; more than one is a clash."""
    from importlib.metadata import entry_points  # late: most processes need our own alone

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for offer in entry_points(group=group):
        found[offer.name] = (*found.get(offer.name, ()), offer)
    return found


def forget() -> None:
    """Forget the entry points of other packages: they are searched for anew, as at the start."""
    _others.cache_clear()


def _loaded(what: str, offers: tuple[EntryPoint, ...]) -> object:
    if len(offers) > 1:
        names = " and ".join(sorted(map(package_name, offers)))
        raise ConfigurationError(f"{what} comes from more than one package, {names}: uninstall one")
    try:
        return offers[0].load()
    except (Exception, SystemExit) as error:
        raise _broken(what, offers[0], error) from error


def package_name(offer: EntryPoint) -> str:
    try:
        assert offer.dist is not None
        return f"{offer.dist.name} {offer.dist.version}"
    except Exception:  # its metadata is damaged, or there is none
        return "of an unknown name"


def _broken(what: str, offer: EntryPoint, error: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"{what}: the package {package_name(offer)} is broken ({failure_text(error)}):"
        " repair it or uninstall it"
    )
