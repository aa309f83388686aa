# SPDX-License-Identifier: Apache-2.0
"""glibc keeps the memory of large bodies, instead of giving it back to the kernel after each call.

Its thresholds are made for programs that seldom have a buffer of a megabyte; a worker has one a
call, and the kernel clears each page of it anew. What is kept is given back now and then
(:func:`give_back_memory`), so that rollouts that are gone leave nothing behind.

For a process of ours alone: a library does not change the allocator of a process that it is a guest
in. The figures are in docs/decisions/0015-glibc-keeps-what-a-worker-frees.md.
"""

import asyncio
import ctypes
import os
from typing import Any, Final

__all__ = ["give_back_memory", "keep_freed_memory", "keep_giving_back"]

_GIVE_BACK_S: Final = 10.0  # between two times
_MIB: Final = 1024 * 1024
_THRESHOLDS: Final = {  # the numbers are those of malloc.h
    -3: 32 * _MIB,  # M_MMAP_THRESHOLD: a smaller buffer comes from the heap; the most glibc allows
    -1: 16 * _MIB,  # M_TRIM_THRESHOLD: more free memory at the heap's end goes back
    -2: 1 * _MIB,  # M_TOP_PAD: the heap grows by so much at once
}


def keep_freed_memory() -> bool:
    """Set the thresholds of this process; True where they are set.

    Nothing happens with another C library, or where the environment sets thresholds of its own
    (``GLIBC_TUNABLES``, ``MALLOC_…_``).
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = _function("mallopt", ctypes.c_int, ctypes.c_int)
    if mallopt is None:
        return False
    return all(mallopt(name, value) == 1 for name, value in _THRESHOLDS.items())


def give_back_memory() -> None:
    """Give every free page of the heap to the kernel, wherever it lies.

    Takes 4 to 20 ms for 100 MB, the longer the smaller its pieces (measured), in which no thread
    gets memory; nothing where there is none to give. Call it in a thread.
    """
    trim = _function("malloc_trim", ctypes.c_size_t)
    if trim is not None:
        trim(0)


async def keep_giving_back() -> None:
    """Give back what is free every 10 seconds, until cancelled; the event loop goes on."""
    while True:
        await asyncio.sleep(_GIVE_BACK_S)
        await asyncio.to_thread(give_back_memory)


def _function(name: str, *arguments: Any) -> Any:
    """A function of glibc; None with another C library."""
    try:
        if not os.confstr("CS_GNU_LIBC_VERSION"):
            return None
        found = getattr(ctypes.CDLL(None), name)
    except (OSError, ValueError, AttributeError):  # no such name in another C library
        return None
    found.argtypes, found.restype = arguments, ctypes.c_int
    return found
