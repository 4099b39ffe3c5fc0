"""MTL uses ZeroMQ through these: bounded sockets in the reactor, who may connect, keys, and
addresses.

Importing txzmq installs the default reactor; it is imported when the first socket is made.
"""

from .addresses import check_address, data_beside, is_local, port_of, with_port
from .bounded import Bounds, messages_within
from .curve import CurveClient, CurveServer
from .sockets import Sockets
from .unfinished import EveryUnfinished

__all__ = [
    "Bounds",
    "CurveClient",
    "CurveServer",
    "EveryUnfinished",
    "Sockets",
    "check_address",
    "data_beside",
    "is_local",
    "messages_within",
    "port_of",
    "with_port",
]
