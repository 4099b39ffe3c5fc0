"""A gateway keeps the memory that it has used.

Every read makes a buffer as large as what has come, and some milliseconds later, when it is on
disk, the buffer is free.  glibc returns such large buffers to the kernel at once, and the kernel
clears each page of the next one; ``docs/benchmarks.md`` says what that costs.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import time
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Final

KEPT_OCTETS: Final = 64 << 20
"""This much free memory at the end of the heap is kept: what all reads of some turns need
together.
"""

HEAP_OCTETS_MAX: Final = 32 << 20
"""Larger pieces of memory have mappings of their own, released with them; glibc allows no higher
value.
"""

SWITCH_SECONDS: Final = 0.001
"""A thread that waits for the interpreter asks for it after this time; Python's default is 5 ms."""

FEW_OCTETS: Final = 64 << 20
"""Arenas with no more than this are not counted: the queue's writer and log-ins have theirs."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def spare_lasting_objects() -> None:
    """Tell Python's garbage collector not to look at what exists now: it lasts to the end.

    For a process of our own, once it is made.  Else each full collection looks at every module and
    class, and keeps the reactor for about 50 ms, in the middle of some peer's turn (``NB-07``).
    """
    gc.collect()
    gc.freeze()


def share_processor() -> None:
    """Let the queue's writer have the interpreter after a millisecond of the reactor's work.

    For a process of our own.  The writer needs it several times for a group, and by default waits
    for 5 ms each time while some peer keeps the reactor busy (``NB-07``).
    """
    sys.setswitchinterval(SWITCH_SECONDS)


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


def return_freed_memory() -> bool:
    """Return what all threads have freed to the kernel, page by page; False without glibc.

    After connections were cut off because they held too much, what they held is free in pieces
    between others, and would count as this process's for ever.  The call needs some milliseconds
    for each 100 MB, and does not need the interpreter: use a thread.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(malloc_trim(ctypes.c_size_t(KEPT_OCTETS)))


_SIZE: Final = re.compile(rb'size="([0-9]+)"')


def allocated_by_threads(few: int = FEW_OCTETS) -> int | None:
    """Return the octets that threads other than the main one have allocated and not freed.

    Threads with no more than ``few`` do not count.  Pieces above :data:`HEAP_OCTETS_MAX` have
    mappings of their own and do not count, either.  None where the C library is another than glibc.
    The call needs 0.1 ms.
    """
    told = _malloc_info()
    if told is None:
        return None
    in_use = 0
    # The first arena is the main thread's, and behind the last stand the sums of all.
    for arena in told.split(b"</heap>")[1:-1]:
        after = arena.partition(b"</sizes>")[2]
        small, other, every = map(int, islice(_SIZE.findall(after), 3))
        used = every - small - other
        if used > few:
            in_use += used
    return in_use


class _Mallinfo2(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns; all are numbers of octets or of pieces."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_by_all() -> int | None:
    """Return the octets that all threads together have allocated and not freed, the main one too.

    Pieces above :data:`HEAP_OCTETS_MAX` do not count, as above.  None where the C library is
    another than glibc, or older than 2.33.  The call needs 3 µs; like the one above, it needs more
    where many pieces are free: 3 to 15 ms for a hundred thousand.
    """
    try:
        mallinfo2 = _own_library().mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().uordblks)


def worked_by_threads() -> float:
    """Return the seconds of processor time that threads other than the calling one have used."""
    return time.process_time() - time.thread_time()


@cache
def _own_library() -> ctypes.CDLL:
    """Return the C library of this process, which is opened once: that needs half of a question."""
    return ctypes.CDLL(None)


def _malloc_info() -> bytes | None:
    """Return what glibc says of each thread's arena: how much of it is free, in small pieces and in
    others, and how much it has, in this order.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = _own_library()
        malloc_info, open_memstream = library.malloc_info, library.open_memstream
        open_memstream.restype = ctypes.c_void_p
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        stream = ctypes.c_void_p(open_memstream(ctypes.byref(text), ctypes.byref(size)))
        if stream:
            failed = malloc_info(0, stream)
            library.fclose(stream)
            told = ctypes.string_at(text, size.value)
            library.free(text)
            return None if failed else told
    return None
