"""This is the durable half of a broker: it keeps what has to survive the process.

:class:`BrokerState` does everything; ``docs/queue-format.md`` describes the files.
"""

from .message_frames import Loaded
from .queue_scan import Queues, Waiting
from .state import DIRECTORY, BrokerState

__all__ = ["DIRECTORY", "BrokerState", "Loaded", "Queues", "Waiting"]
