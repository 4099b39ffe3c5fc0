"""The broker on a reactor.

:class:`ServedBroker` joins the machine of :mod:`twisted_msgproto.core.broker` with time, with the
turns of the reactor, and with what keeps its queues on disk.
"""

from .served import ServedBroker, broker_of
from .withheld import Withheld

__all__ = ["ServedBroker", "Withheld", "broker_of"]
