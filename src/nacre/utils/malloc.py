"""Memory of the C library: freed memory is kept for the next update instead of returned.

An update frees hundreds of large buffers and asks for the same ones again. glibc returns such
buffers to the system at once, so that every update has all its pages cleared and mapped anew,
a fifth of its time on a CPU or more. The commands that learn call this; in a program of one's own
it is one's own choice, as it holds for the whole process.
"""

import ctypes
import sys

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1  # as mallopt(3) has it


def keep_freed_memory() -> bool:
    """Have this process keep what it frees; return whether the C library can (glibc can)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))
