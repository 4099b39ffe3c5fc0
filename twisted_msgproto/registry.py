"""This is the only list of protocols: it says where each package is and what runs it by default.

The command line, the combined gateway and the demo find a protocol here and import its modules
late, by name.  A sixth protocol is a package and one more row.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from .core.errors import ConfigurationError

LOOPBACK = "tcp:0:interface=127.0.0.1"
"""The endpoint of a server for this machine alone, on a port that the system chooses, is this."""


class Registered(NamedTuple):
    """Describes one protocol.

    ``ports`` names the default ports by their role (``"tcp"``, ``"websocket"``, ``"control"``, …).
    ``demo`` is the protocol's table in the demo's gateway.toml; its server then listens on
    ``demo_addresses`` addresses. ``demo_send`` is what ``msgproto send`` is told beside each.
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


def registered(name: str) -> Registered:
    """The protocol of this name; ConfigurationError if there is none."""
    try:
        return PROTOCOLS[name]
    except KeyError:
        raise ConfigurationError(
            f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}"
        ) from None


def load(name: str, module: str) -> ModuleType:
    """Import one module of a protocol's package: ``load("lumberjack", "service")``."""
    return importlib.import_module(f"{registered(name).package}.{module}")
