"""Load a running server with made-up messages, and say how fast it acknowledges them.

Each client has a connection of its own and sends what its window allows, or --rate messages a
second in all.  The clock runs from when all are connected until the last acknowledgement.  The
exit status is 0 only if no client failed and every message was acknowledged.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from . import INTERRUPTED
from .clients import FAILED, command_of, connecting, tell, why_not
from .options import POSITIVE, SECONDS, SIZE, SIZE_BYTES, command, flag, option
from .progress import Counted
from .send import incomplete, options_of, sending

if TYPE_CHECKING:
    from ..net.clients.command_types import SendOptions

SECONDS_OF_LOAD = 10.0
NUMBERS = 1_000_000_000


class Load:
    clock: Any

    def __init__(self, asked: SimpleNamespace) -> None:
        from .messages import MadeUp

        self.counted = Counted()  # the messages, which are all of ``documents``
        self.documents = MadeUp(NUMBERS, asked.size)
        self.latencies: Counter[float] = Counter()  # seconds, to three digits
        self.errors: Counter[str] = Counter()  # clients by why they failed
        self.began = self.ended = 0.0
        self.length = asked.seconds
        self.rate = None if asked.rate is None else asked.rate / asked.clients  # of each client
        self._absent = asked.clients
        self._started: list[Any] = []

    async def start(self) -> None:
        from twisted.internet.defer import Deferred

        self._started.append(Deferred())
        mine = self._started[-1]
        self.arrived()
        await mine

    def arrived(self) -> None:
        self._absent -= 1
        if self._absent == 0:
            self.began = self.ended = self.clock.seconds()
            for waiting in self._started:
                waiting.callback(None)

    @property
    def seconds(self) -> float:
        return float(self.ended - self.began)

    def percentile(self, share: float) -> float | None:
        """In seconds; None if nothing was acknowledged."""
        left = share * self.latencies.total()
        for latency, count in sorted(self.latencies.items()):
            left -= count
            if left <= 0:
                return latency
        return None

    def result(self) -> dict[str, Any]:
        counted, took = self.counted, self.seconds
        done = counted.messages_acknowledged + counted.messages_written
        nbytes = done * self.documents.size
        return {
            "sent": counted.messages_sent,
            "acknowledged": counted.messages_acknowledged,
            "bytes": nbytes,
            "seconds": round(took, 6),
            "messages_per_second": round(done / took, 1) if took else 0.0,
            "bytes_per_second": round(nbytes / took, 1) if took else 0.0,
            "latency_p50_seconds": self.percentile(0.50),
            "latency_p99_seconds": self.percentile(0.99),
            "errors": dict(self.errors),
        }


class Client:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._begun = 0  # messages that were handed out
        self._flight: deque[list[Any]] = deque()  # when a batch was sent, and its messages
        self.here: bool = False

    async def some(self, most: int) -> list[bytes]:
        """Return the next messages when they are due; none when the time is over."""
        from twisted.internet.task import deferLater

        load = self._load
        if not self.here:
            self.here = True
            await load.start()
        while (passed := load.clock.seconds() - load.began) < load.length:
            due = most if load.rate is None else int(load.rate * passed) + 1 - self._begun
            if due > 0:
                found = await load.documents.some(min(due, most))
                self._begun += len(found)
                return found
            assert load.rate is not None
            wait = min(self._begun / load.rate, load.length) - passed
            await deferLater(load.clock, max(0.0, wait), lambda: None)
        return []

    def sent(self, count: int) -> None:
        self._load.counted.sent(count)
        self._flight.append([self._load.clock.seconds(), count])

    def acknowledged(self, count: int) -> None:
        self._load.counted.acknowledged(count)
        self._done(count, timed=True)

    def written(self, count: int) -> None:
        self._load.counted.written(count)
        self._done(count, timed=False)

    def _done(self, count: int, *, timed: bool) -> None:
        load = self._load
        now = load.ended = load.clock.seconds()
        while count:
            batch = self._flight[0]
            some = min(count, batch[1])
            if timed:
                load.latencies[float(f"{now - batch[0]:.3g}")] += some
            batch[1] -= some
            if not batch[1]:
                self._flight.popleft()
            count -= some

    def note(self, text: str) -> None:
        """Every message has one destination, which the operator has named."""


async def drive(
    load: Load, command: ModuleType, options: SendOptions, arguments: SimpleNamespace
) -> None:
    """Have all clients send; what one of them fails with is counted, and the others go on."""
    from twisted.internet.defer import CancelledError, Deferred, gatherResults

    from twisted_msgproto.core.errors import ConfigurationError, LimitExceeded
    from twisted_msgproto.core.reasons import reason

    from .waiting import PATIENCE_SECONDS, Patience

    async def one() -> None:
        client = Client(load)
        patience = Patience(load.clock, arguments.timeout or PATIENCE_SECONDS, client, client)
        try:
            await patience.run(command.send(load.clock, options, patience, patience))
        except (ConfigurationError, LimitExceeded, ModuleNotFoundError):
            raise  # it is the same for every client
        except CancelledError:
            return  # Ctrl-C, of which ``run`` tells
        except Exception as error:
            load.errors[
                reason(error, options.endpoint, served=bool(load.counted.messages_acknowledged))
            ] += 1
            if not client.here:
                load.arrived()

    running = [Deferred.fromCoroutine(one()) for _ in range(arguments.clients)]
    await gatherResults(running).addErrback(_first)


def _first(failure: Any) -> Any:
    return failure.value.subFailure


def shown(load: Load, clients: int) -> str:
    result = load.result()
    text = (
        f"{load.counted.messages_acknowledged:,} of {load.counted.messages_sent:,} messages"
        f" acknowledged in {load.seconds:.2f} s, {clients} client{'s' * (clients > 1)}:"
        f" {result['messages_per_second']:,.0f} messages/s,"
        f" {result['bytes_per_second']:,.0f} bytes/s"
    )
    if load.latencies:
        p50, p99 = result["latency_p50_seconds"], result["latency_p99_seconds"]
        text += f"\nacknowledged after p50 {p50 * 1e3:.3g} ms, p99 {p99 * 1e3:.3g} ms"
    if load.counted.messages_written:
        text += "\nthe server was not asked to acknowledge: nobody knows what arrived"
    return text


@command(__doc__)
@connecting
@option("--clients N", "connections (default 1)", POSITIVE, default=1)
@option(
    "--seconds S",
    f"begin messages for S seconds (default {SECONDS_OF_LOAD:g})",
    SECONDS,
    default=SECONDS_OF_LOAD,
)
@option(
    "--rate N",
    "N messages a second, of all clients together; default: as many as the windows allow",
    SECONDS,
)
@option("--size B", f"bytes of a message (default {SIZE_BYTES})", SIZE, default=SIZE_BYTES)
@sending
@flag("--json", "print one line of JSON")
def run(arguments: SimpleNamespace) -> int:
    command = command_of(arguments.protocol, "send")
    arguments.count = arguments.call = None
    options = options_of(arguments, command)
    load = Load(arguments)

    async def work(reactor: Any) -> None:
        load.clock = reactor
        await drive(load, command, options, arguments)

    status = FAILED
    why: str | None
    try:
        why = why_not(work, options.endpoint, lambda: load.counted.messages_acknowledged)
    except KeyboardInterrupt:
        status, why = INTERRUPTED, "interrupted"
    if arguments.json:
        click.echo(json.dumps(load.result()))
    elif load.counted.messages_sent:
        click.echo(shown(load, arguments.clients))
    for text, count in load.errors.items():
        tell("bench", f"{count} of {arguments.clients} clients failed: {text}")
    missing = incomplete(load.counted, None, why)
    if missing is not None and not load.errors:
        tell("bench", missing)
    return status if load.errors or missing is not None else 0
