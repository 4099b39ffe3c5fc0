"""Validate a gateway.toml or bridge.toml by trying what a start would do, and ending before it.

Every table, key, limit and rule is read; keys, certificates and password files are opened; every
endpoint is bound for a moment; the queue's directory has to be writable and nobody may write it.
Beside a gateway that runs with the file, --file-only leaves out the endpoints and the queue.
Of a bridge.toml every table and column is read, and local queues are opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from twisted_msgproto.core.errors import ConfigurationError, QueueError

from .options import FILE, argument, command, flag

if TYPE_CHECKING:
    from twisted_msgproto.gateway import Configuration


@command(__doc__)
@argument("file FILE", "the gateway.toml or bridge.toml", FILE)
@flag("--file-only", "try neither endpoints nor the queue: for the file of a gateway that runs")
def run(arguments: SimpleNamespace) -> int:
    """0 if a gateway would start with it; ConfigurationError with everything that is wrong."""
    from twisted_msgproto.gateway import Configuration, read_file

    try:
        tables = read_file(arguments.file)
        of_bridge = "table" in tables or not isinstance(tables.get("queue", {}), dict)
        if not of_bridge:
            configuration = Configuration(tables)
            try_start(configuration, file_only=arguments.file_only)
    except (ConfigurationError, QueueError) as error:
        raise ConfigurationError(f"{arguments.file}: {error}") from None
    if of_bridge:
        return check_bridge(arguments.file, file_only=arguments.file_only)
    for name, options in configuration.servers.items():
        print(f"{name}: {', '.join(options.listenAddresses())}")
        for warning in (*options.exposures(), options.passwordWarning()):
            if warning is not None:
                print(f"{name}: warning: {warning}")
        for line in certificate_troubles(options.endpointStrings()):
            print(f"{name}: {line}")
    if configuration.access is not None:
        count = len(configuration.access.rules)
        rules = "1 rule" if count == 1 else f"{count} rules"
        print(f"access: {rules}; the first that fits decides, what none fits is refused")
        for line in unproven(configuration):
            print(f"access: {line}")
    if configuration.status:
        endpoint = configuration.status["endpoint"]
        print(f"status: {endpoint}")
        for line in certificate_troubles([endpoint]):
            print(f"status: {line}")
    queue = configuration.queue.get("directory", "none: acknowledged means accepted, not on disk")
    print(f"queue: {queue}")
    return 0


def check_bridge(file: Path, *, file_only: bool) -> int:
    from twisted_msgproto.spark.configuration import read_bridge_file
    from twisted_msgproto.spark.source_options import is_remote, open_queue

    bridges = read_bridge_file(file)
    for place in [] if file_only else bridges[0].locations:
        if not is_remote(place):
            open_queue(place)
    for bridge in bridges:
        print(f"{bridge.name}: {bridge.table}")
        if bridge.dead_letters is not None:
            print(f"{bridge.name}: dead letters: {bridge.dead_letters}")
        shape = bridge.shape
        for column in () if shape is None or shape.columns is None else shape.columns.columns:
            source = "fields" if column.in_fields else "the body"
            path = ".".join(column.path) or "all of it"
            print(f"{bridge.name}: {column.name} {column.kind} from {source}: {path}")
    print(f"queue: {', '.join(bridges[0].queues)}")
    return 0


def try_start(configuration: Configuration, *, file_only: bool) -> None:
    """Raises ConfigurationError or QueueError; ``file_only``: a gateway runs with the file."""
    from twisted.internet import reactor

    from twisted_msgproto.gateway import make_gateway
    from twisted_msgproto.net.endpoints import Held, refusals

    gateway = make_gateway(configuration, reactor)
    directory = configuration.queue.get("directory")
    if file_only:
        return
    if directory is not None:
        try_queue(Path(directory))
    held = Held()
    try:
        refused = list(refusals(gateway, held))
    finally:
        held.close()
    if refused:
        raise ConfigurationError("; ".join(refused))


NEW_QUEUE_BYTES = 64 << 10  # first files and directories; an old queue starts on a full disk, too


def try_queue(directory: Path) -> None:
    """Raise QueueError if a start could not open the queue in ``directory``; nothing is written."""
    from twisted_msgproto.core.disk import OS_DISK

    try:
        holder = OS_DISK.lock_holder(str(directory / "lock"))
    except OSError as error:
        raise QueueError(f"[queue]: directory {str(directory)!r}: {error.strerror}") from None
    if holder is not None:
        raise QueueError(
            f"[queue]: process {holder} has the queue {directory} open;"
            " --file-only checks the file alone"
        )
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        raise QueueError(f"[queue]: directory {str(directory)!r}: {existing} cannot be written")
    disk = os.statvfs(existing)
    if not (directory / "identity").exists() and disk.f_bavail * disk.f_frsize < NEW_QUEUE_BYTES:
        raise QueueError(f"[queue]: directory {str(directory)!r}: the disk has no room for a queue")


def certificate_troubles(endpoints: list[str]) -> Iterator[str]:
    from twisted_msgproto.net.endpoints import check_directory, outdated

    for description in endpoints:
        try:
            check_directory(description)
        except ConfigurationError as error:
            yield f"{description}: every hand-shake is refused: {error}"
        for line in outdated(description):
            yield f"{description}: {line}"


def unproven(configuration: Configuration) -> Iterator[str]:
    assert configuration.access is not None
    for name, options in configuration.servers.items():
        warning = options.authWarning()
        if warning is not None and any(
            rule.user is not None and (rule.protocol is None or name in rule.protocol)
            for rule in configuration.access.rules
        ):
            yield f"{name}: {warning}"
