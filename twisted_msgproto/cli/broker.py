"""List the broker's queues, show and purge what waits in them, and requeue dead letters.

WHERE is a queue's directory, or the URL of a gateway's status endpoint.  Where a gateway runs on
the directory, it is asked through its socket there; else the files themselves are read and changed.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from twisted_msgproto.core.broker import DEAD, QueueName
from twisted_msgproto.core.errors import ConfigurationError, QueueAway, QueueError, age, escaped

from .options import POSITIVE, argument, as_json, command, group, option, reading, where
from .rows import columns, iso_time

if TYPE_CHECKING:
    from twisted_msgproto.queue.broker_files import Waiting

    from ..net.site.queue_view import MessageShown, QueueShown

COLUMNS: Final = (
    "SPACE",
    "QUEUE",
    "WAITING",
    "IN-FLIGHT",
    "BYTES",
    "CONSUMERS",
    "OLDEST",
    "TRIES",
)

run = group(__doc__)


def action(name: str, text: str) -> Callable[[Callable[[Any, SimpleNamespace], int]], None]:
    """Make an action of a function that gets the broker, too; all but ``ls`` are of one queue."""

    def made(act: Callable[[Any, SimpleNamespace], int]) -> None:
        @functools.wraps(act)
        def asked(arguments: SimpleNamespace) -> int:
            broker = opened(arguments.where, arguments.token_file, arguments.tls_ca)
            try:
                with reading(arguments.where):
                    return act(broker, arguments)
            finally:
                close = getattr(broker, "close", None)
                if close is not None:
                    close()

        declared: Any = as_json(asked)
        if name != "ls":
            text_of_space = "where more than one space has such a queue"
            declared = option("--space SPACE", text_of_space)(declared)
            text_of_queue = "the queue's name, as ls shows it"
            declared = argument("queue QUEUE", text_of_queue)(declared)
        declared = where("a queue's directory, or http://HOST:PORT")(declared)
        run.add_command(command(text, name)(declared))

    return made


def opened(where: str, token_file: str | None = None, authority: str | None = None) -> Any:
    """Return a BrokerView, with plain values; QueueError for no queue, QueueAway for no answer."""
    from ..net.site.client import SOCKET_NAME, GatewayBroker, is_endpoint

    if is_endpoint(where):
        return GatewayBroker(where, token_file, authority=authority)
    if token_file is not None:
        raise ConfigurationError("--token-file goes with http://HOST:PORT")
    from twisted_msgproto.core.disk import OS_DISK
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.queue.queue_directories import refuse_of_another

    QueueReader(where)  # or else it is no queue
    holder = OS_DISK.lock_holder(os.path.join(where, "lock"))
    if holder is None:
        refuse_of_another(where)
        return StoppedBroker(where)
    if not os.path.exists(os.path.join(where, SOCKET_NAME)):
        raise QueueAway(
            f"process {holder} writes the queue {where}, and has no socket {SOCKET_NAME} in it:"
            " it is no gateway, or its log says why it could not listen"
        )
    return GatewayBroker(where)


def find(arguments: SimpleNamespace, queues: Sequence[QueueShown]) -> QueueShown:
    """Return the queue of this name; QueueError if there is none, or more than one."""
    name, space = arguments.queue, arguments.space
    named = [queue for queue in queues if queue.name == name]
    found = [queue for queue in named if space in (None, queue.space)]
    if len(found) == 1:
        return found[0]
    spaces = ", ".join(queue.space for queue in named)
    if found:
        raise QueueError(f"more than one space has a queue {name!r}, say --space: {spaces}")
    if named:
        raise QueueError(f"the space {space!r} has no queue {name!r}; these have one: {spaces}")
    where = quote(str(arguments.where))
    raise QueueError(f"there is no queue {name!r}; msgproto broker ls {where} shows all")


# ── while no gateway runs ───────────────────────────────────────────────────────────────────────


class StoppedBroker:
    """A BrokerView of plain values; it has the queue's lock, so no gateway can start meanwhile."""

    def __init__(self, directory: str) -> None:
        """Raises QueueLocked for a gateway that has just begun, and QueueError."""
        from twisted_msgproto.queue import SegmentLog
        from twisted_msgproto.queue.broker_files import BrokerState
        from twisted_msgproto.queue.queue_directories import has_broker

        self._queues: dict[QueueName, Waiting] = {}
        self._log = SegmentLog(directory)
        for line in self._log.recovery.lines:
            _report(line)
        self._state = None
        if has_broker(directory):
            self._state = BrokerState(self._log, report=_report)
            self._queues = self._state.restored()

    def close(self) -> None:
        try:
            if self._state is not None:
                self._state.close()
        finally:
            self._log.close()

    def queues(self) -> list[QueueShown]:
        from ..net.site.queue_view import QueueShown

        return [
            QueueShown(
                space=name.space,
                name=name.name,
                waiting=len(rows.message_ids),
                bytes=sum(rows.weights),
                oldest=rows.arrived[0] * 1_000_000 if rows.message_ids else None,
                tries=rows.tries.largest,
            )
            for name, rows in sorted(self._queues.items())
        ]

    def peek(self, space: str, name: str, count: int) -> list[MessageShown]:
        """Those that are damaged are left out."""
        from ..net.broker.forms import texts_of
        from ..net.site.queue_view import MessageShown

        rows = self._queues[QueueName(space, name)]
        assert self._state is not None
        message_ids = rows.message_ids[:count].tolist()
        loaded = self._state.load(message_ids)
        if loaded.error is not None:
            raise loaded.error
        arrived = dict(zip(message_ids, rows.arrived[:count], strict=True))
        return [
            MessageShown(
                message_id=message.message_id,
                received_at=arrived[message.message_id] * 1_000_000,
                tries=rows.tries.number(message.message_id),
                bytes=len(message.body),
                fields=texts_of(message.envelope),
                body=message.body,
            )
            for message in loaded.messages
        ]

    def purge(self, space: str, name: str) -> int:
        message_ids = self._queues[QueueName(space, name)].message_ids.tolist()
        assert self._state is not None
        self._state.settle(message_ids)
        self._flush()
        return len(message_ids)

    def requeue(self, space: str, name: str, to: str) -> int:
        message_ids = self._queues[QueueName(space, name)].message_ids.tolist()
        other = QueueName(space, to)
        if to.endswith(DEAD):
            raise QueueError(f"{to!r} is for dead letters: nothing is put there by hand")
        assert self._state is not None
        if other not in self._queues:
            self._state.declare({other: self._state.end})
        self._state.move(message_ids, other, tries=False)
        self._flush()
        return len(message_ids)

    def _flush(self) -> None:
        """Write what was changed; QueueError if the disk fails."""
        assert self._state is not None
        try:
            self._state.flush()
        except OSError as error:
            raise QueueError(f"cannot write what was changed: {error}") from None


def _report(line: str) -> None:
    print(line, file=sys.stderr)


# ── what is printed ─────────────────────────────────────────────────────────────────────────────


def table(queues: Sequence[QueueShown], now: float) -> list[str]:
    """Return the lines of ``ls``; ``now`` is in seconds since 1970 UTC."""
    rows: list[Sequence[str]] = [COLUMNS]
    for queue in queues:
        oldest = "-" if queue.oldest is None else age(now - queue.oldest / 1e6)
        held = queue.waiting, queue.in_flight, queue.bytes, queue.consumers
        numbers = map(str, (*held, oldest, queue.tries))
        rows.append([escaped(queue.space), escaped(queue.name), *numbers])
    return list(columns(rows, numbers=2))


def as_line(message: MessageShown) -> str:
    fields = json.dumps(dict(message.fields), ensure_ascii=False)
    body = message.body.decode("utf-8", "backslashreplace")
    tries = f"{message.tries} tries"
    columns = [str(message.message_id), iso_time(message.received_at), tries, fields, body]
    return "\t".join(map(escaped, columns))


# ── what is done ────────────────────────────────────────────────────────────────────────────────


@action("ls", "queues with what waits in them, their consumers and the oldest message's age")
def _ls(broker: Any, arguments: SimpleNamespace) -> int:
    queues = broker.queues()
    if arguments.json:
        print(json.dumps({"queues": [asdict(queue) for queue in queues]}, ensure_ascii=False))
        return 0
    if not queues:
        print("the broker has no queues", file=sys.stderr)
        return 0
    for line in table(queues, time.time()):
        print(line)
    return 0


@action("peek", "show the first messages of a queue; they stay there")
@option("--count N", "so many at most (default 10)", POSITIVE, default=10)
def _peek(broker: Any, arguments: SimpleNamespace) -> int:
    queue = find(arguments, broker.queues())
    messages = broker.peek(queue.space, queue.name, arguments.count)
    if arguments.json:
        from ..net.site.queue_view import message_in_json

        rows = [
            {**message_in_json(one), "received_at": iso_time(one.received_at)} for one in messages
        ]
        print(json.dumps({"messages": rows}, ensure_ascii=False))
        return 0
    for message in messages:
        print(as_line(message))
    return 0


@action("purge", "settle everything that waits in a queue: no consumer gets it")
def _purge(broker: Any, arguments: SimpleNamespace) -> int:
    queue = find(arguments, broker.queues())
    count = broker.purge(queue.space, queue.name)
    _tell(arguments, count, f"{count} messages of {escaped(queue.name)} are settled")
    return 0


@action("requeue", "put what waits in a queue, such as dead letters, to another queue")
@option("--to QUEUE", "the other queue; else dead letters go back")
def _requeue(broker: Any, arguments: SimpleNamespace) -> int:
    to = arguments.to
    if to is None:
        to = arguments.queue.removesuffix(DEAD)
        arguments.queue = to + DEAD
    queue = find(arguments, broker.queues())
    count = broker.requeue(queue.space, queue.name, to)
    _tell(arguments, count, f"{count} messages of {escaped(queue.name)} wait in {escaped(to)} now")
    return 0


def _tell(arguments: SimpleNamespace, count: int, line: str) -> None:
    print(json.dumps({"count": count}) if arguments.json else line)
