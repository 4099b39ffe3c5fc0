"""Validate a gateway.toml without running anything: every table, key, limit and endpoint string."""

from __future__ import annotations

import argparse
from pathlib import Path

from twisted_msgproto.core.errors import ConfigurationError

SUMMARY = "validate a gateway.toml"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the gateway.toml")


def run(arguments: argparse.Namespace) -> int:
    """0 if a gateway would start with it, as far as that can be told without opening anything."""
    from twisted_msgproto.gateway import Configuration, read_file

    try:
        configuration = Configuration(read_file(arguments.file))
    except ConfigurationError as error:
        raise ConfigurationError(f"{arguments.file}: {error}") from None
    for name, options in configuration.servers.items():
        print(f"{name}: {', '.join(options['endpoints'])}")
    queue = configuration.queue.get("directory", "none: acknowledged means accepted, not on disk")
    print(f"queue: {queue}")
    return 0
