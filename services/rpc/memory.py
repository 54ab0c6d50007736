"""Keeps a process that moves large messages as small as what it holds."""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

# Every message of a stream is larger, every object of ours smaller.
LARGE_BYTES = 256 * 1024
ARENAS = 2


def return_large_blocks() -> None:
    """Have glibc give each large block back to the system when it is freed.

    Left alone it learns from the first freed message to keep all of them, in an arena for each
    thread: eight copies at once then hold several times what they use. Elsewhere a no-op.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, LARGE_BYTES)
    mallopt(_M_ARENA_MAX, ARENAS)
