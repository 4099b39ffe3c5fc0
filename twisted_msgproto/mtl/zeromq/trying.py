"""Try whether ZeroMQ could listen, as a start would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq

from ...core.reasons import cannot_listen
from ...net.endpoints import Held


class BoundSockets:
    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def bind(self, address: str) -> None:
        self._context.socket(zmq.ROUTER).bind(address)

    def close(self) -> None:
        self._context.destroy(linger=0)


def try_addresses(addresses: Sequence[str], held: Held) -> Iterator[str]:
    """Bind every address until ``held`` is closed, and yield a line for each refusal."""
    bound = BoundSockets()
    held.hold(bound)
    for address in addresses:
        try:
            bound.bind(address)
        except zmq.ZMQError as error:
            yield f"cannot listen on {address}: {cannot_listen(zmq.strerror(error.errno or 0))}"
