"""Memory that a gateway has used stays with it.

Every read makes a buffer as large as what has come, and some milliseconds later, when it is on
disk, the buffer is free.  glibc gives such large ones back to the kernel at once, which clears each
page of the next one: a sixth of a gateway's CPU time, and on a virtual machine more.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_OCTETS: Final = 64 << 20
"""Free memory at the end of the heap that is kept: what all reads of some turns take together."""

HEAP_OCTETS_MAX: Final = 32 << 20
"""A larger piece of memory has a mapping of its own, which ends with it; glibc allows no more."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Ask the C library to keep what this process frees, up to :data:`KEPT_OCTETS`.

    For a process of our own: it is a setting of the whole process.  False where the C library is
    another than glibc, and manages without.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no such library
        return False
    settings = ((_MMAP_THRESHOLD, HEAP_OCTETS_MAX), (_TRIM_THRESHOLD, KEPT_OCTETS))
    return all([mallopt(name, octets) == 1 for name, octets in settings])
