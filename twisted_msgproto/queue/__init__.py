"""The durable queue has one writer process and any number of readers; it does not need Twisted.

:class:`QueueWriter` makes message batches durable in a thread of its own, :class:`QueueReader`
reads them as Arrow record batches with the columns of :data:`SCHEMA`.  The files are described in
``docs/queue-format.md``.
"""

from ..core.loading import extras_named

with extras_named():
    from ..core.disk import OS_DISK, Disk
    from .interface import Queue, Rows
    from .lineage import Description, Landed
    from .reader import QueueReader
    from .recovery import Recovery
    from .schema import SCHEMA
    from .segment_log import SegmentLog
    from .writer import QueueOptions, QueueWriter

__all__ = [
    "OS_DISK",
    "SCHEMA",
    "Description",
    "Disk",
    "Landed",
    "Queue",
    "QueueOptions",
    "QueueReader",
    "QueueWriter",
    "Recovery",
    "Rows",
    "SegmentLog",
]
