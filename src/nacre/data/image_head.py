"""What the first and last bytes of a picture's file tell, without decoding it.

The index looks at every picture: its size, and whether the file seems to be whole. Where the bytes
do not tell, the picture is opened or decoded (see `image_io`).
"""

import os
import struct

from nacre.data.member import File, Member

HEAD = 4096
"""So many first bytes hold the size of most pictures."""

_TAIL = 64
_PNG = b"\x89PNG\r\n\x1a\n"
_START_OF_SCAN = 0xDA
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)


def plain_jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Read the size from a JPEG's frame header, if nothing in the file can turn the picture.

    This is a third of the time that opening one takes. EXIF data may stand anywhere before the
    pixels, so all segments up to there are looked at.

    Args:
        head: The first `HEAD` bytes.
    """
    if head[:2] != b"\xff\xd8":
        return None
    size = None
    i = 2
    while i + 9 <= len(head) and head[i] == 0xFF:
        kind = head[i + 1]
        if kind == _START_OF_SCAN:
            return size
        if kind in (0xC0, 0xC1, 0xC2):
            height, width = struct.unpack(">HH", head[i + 5 : i + 9])
            size = (width, height) if width and height else None
        elif kind == 0xE1 or not 0xC4 <= kind <= 0xFE:
            return None
        i += 2 + int.from_bytes(head[i + 2 : i + 4], "big")
    return None


def seems_whole(path: File, head: bytes, size: int) -> bool:
    """Whether a file ends as it should; where it does not, or cannot tell, decoding must show it.

    Args:
        path: The file.
        head: Its first bytes.
        size: How many it has.
    """
    if head[:2] == b"\xff\xd8":
        # Within the pixels of a JPEG its end mark cannot stand; some programs write more behind it.
        return b"\xff\xd9" in _read_at(path, max(0, size - _TAIL), _TAIL)
    if is_png(head):
        return _has_whole_chunks(path, size)
    if head[:4] == b"RIFF":
        return int.from_bytes(head[4:8], "little") + 8 <= size
    return False


def is_png(head: bytes) -> bool:
    """Whether a file begins as a PNG does."""
    return head[:8] == _PNG


def _has_whole_chunks(path: File, size: int) -> bool:
    """Walk along the chunks of a PNG, each of which says its length, to the last one."""
    begin = path.offset if isinstance(path, Member) else 0
    handle = os.open(path.archive if isinstance(path, Member) else path, _READ)
    try:
        i = len(_PNG)
        while i + 12 <= size:
            os.lseek(handle, begin + i, os.SEEK_SET)
            length, kind = struct.unpack(">I4s", os.read(handle, 8))
            i += length + 12
            if kind == b"IEND":
                return i <= size
    except struct.error:  # the file became shorter meanwhile
        return False
    finally:
        os.close(handle)
    return False


def _read_at(path: File, start: int, count: int) -> bytes:
    if isinstance(path, Member):
        return path.read(start, count)
    handle = os.open(path, _READ)
    try:
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, count)
    finally:
        os.close(handle)
