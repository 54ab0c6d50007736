"""Keep a process that moves large messages small."""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

# A part of an upload is larger. A message of a stream is smaller: each is copied several times, and
# a block that comes fresh from the system for every copy costs more than the copying.
LARGE_BYTES = 2 * 1024 * 1024

# What each arena may keep of freed blocks: about as many messages as one stream has under way.
KEPT_BYTES = 4 * 1024 * 1024
ARENAS = 2


def return_large_blocks() -> None:
    """Have glibc give large blocks back to the system when they are freed, and keep few others.

    Left alone it learns from the first freed message to keep all of them, in an arena for each
    thread: eight copies at once then hold several times what they use. Elsewhere a no-op.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_M_ARENA_MAX, ARENAS)
