"""Validate a gateway.toml without running anything: every table, key, limit and endpoint string."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from twisted_msgproto.core.errors import ConfigurationError

if TYPE_CHECKING:
    from twisted_msgproto.gateway import Configuration

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
    if configuration.access is not None:
        count = len(configuration.access.rules)
        rules = "1 rule" if count == 1 else f"{count} rules"
        print(f"access: {rules}; the first that fits decides, what none fits is refused")
        for line in unproven(configuration):
            print(f"access: {line}")
    queue = configuration.queue.get("directory", "none: acknowledged means accepted, not on disk")
    print(f"queue: {queue}")
    return 0


def unproven(configuration: Configuration) -> Iterator[str]:
    """Yield a line for each server whose users are rules' business, and prove nothing."""
    assert configuration.access is not None
    for name, options in configuration.servers.items():
        doubt = options.doubtOfUsers()
        if doubt is not None and any(
            rule.user is not None and (rule.protocol is None or name in rule.protocol)
            for rule in configuration.access.rules
        ):
            yield f"{name}: {doubt}"
