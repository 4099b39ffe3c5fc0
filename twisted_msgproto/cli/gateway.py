"""Run the gateway of a gateway.toml in the foreground: what twistd -n msgproto runs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from .options import LOCATION, command, flag, option


@command(__doc__)
@option("-c --config FILE", "the gateway.toml", LOCATION, required=True)
@option("--queue DIR", "the durable queue; wins over the file", LOCATION)
@option(
    "--limit NAME=VALUE", "a limit of every server which has it; wins over the file", multiple=True
)
@option(
    "--set TABLE.KEY=VALUE", "one key of the file (VALUE as in TOML, or plain text)", multiple=True
)
@flag("--log-sessions", "log when sessions begin and end")
@flag("--json-log", "log one JSON object a line")
@flag("--show-config", "print what is in force, secrets hidden")
def run(arguments: SimpleNamespace) -> int:
    from twisted.scripts.twistd import run as twistd

    words = ["msgproto", f"--config={arguments.config}"]
    if arguments.queue is not None:
        words.append(f"--queue={arguments.queue}")
    words += [f"--limit={assignment}" for assignment in arguments.limit]
    words += [f"--set={assignment}" for assignment in arguments.set]
    for name in ("log-sessions", "json-log", "show-config"):
        if getattr(arguments, name.replace("-", "_")):
            words.append(f"--{name}")
    # No pid file: in the foreground nobody needs one, and two gateways may share a directory.
    sys.argv = ["msgproto gateway", "--nodaemon", "--pidfile=", *words]
    try:
        twistd()
    except SystemExit as end:
        if not isinstance(end.code, str):
            raise
        print(end.code, file=sys.stderr)  # as Python does, which would end with 1
        return 2
    return 0
