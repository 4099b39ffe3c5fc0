"""Run the gateway of a gateway.toml in the foreground: what ``twistd -n msgproto`` runs."""

from __future__ import annotations

import argparse
import sys

SUMMARY = "run all servers of a gateway.toml in the foreground"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", required=True, help="the gateway.toml")
    parser.add_argument("--queue", metavar="DIR", help="the durable queue; wins over the file")
    parser.add_argument(
        "--limit",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a limit of every server which has it; wins over the file",
    )
    parser.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        help="one key of the file (VALUE as in TOML, or plain text)",
    )
    parser.add_argument(
        "--log-sessions", action="store_true", help="log when sessions begin and end"
    )
    parser.add_argument("--json-log", action="store_true", help="log one JSON object a line")
    parser.add_argument(
        "--show-config", action="store_true", help="print what is in force, secrets hidden"
    )


def run(arguments: argparse.Namespace) -> int:
    """Become twistd; its exit status is ours."""
    from twisted.scripts.twistd import run as twistd

    words = ["msgproto", f"--config={arguments.config}"]
    if arguments.queue is not None:
        words.append(f"--queue={arguments.queue}")
    words += [f"--limit={assignment}" for assignment in arguments.limit]
    words += [f"--set={assignment}" for assignment in arguments.set]
    for flag in ("log-sessions", "json-log", "show-config"):
        if getattr(arguments, flag.replace("-", "_")):
            words.append(f"--{flag}")
    # No pid file: in the foreground nobody needs one, and two gateways may share a directory.
    sys.argv = ["msgproto gateway", "--nodaemon", "--pidfile=", *words]
    twistd()
    return 0
