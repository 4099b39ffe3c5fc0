"""Servers run the broker on a reactor.

:class:`ServedBroker` joins the machine of :mod:`twisted_msgproto.core.broker` with time, with the
turns of the reactor, and with what keeps its queues on disk.  :func:`broker_of` makes the one that
fits a sink.
"""

from .persistence import BrokerPersistence, KeptBroker, broker_of
from .served_broker import SenderBackpressure, ServedBroker, ServedQueues

__all__ = [
    "BrokerPersistence",
    "KeptBroker",
    "SenderBackpressure",
    "ServedBroker",
    "ServedQueues",
    "broker_of",
]
