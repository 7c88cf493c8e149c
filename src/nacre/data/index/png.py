"""The pixel data of plain PNG masks, without a picture library.

A PNG file is a signature and chunks: length, kind, data, checksum. The IDAT chunks together are
one zlib stream of rows, each with a byte in front that says how the row is filtered. Masks are
mostly saved with eight bits and without filters; then the rows are the labels. Decompressing
them in one go takes two thirds of the time of a general decoder. Everything else is left to it.
"""

import zlib
from typing import NamedTuple

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PLAIN = (bytes((8, 0)), bytes((8, 3)))  # eight bits of grey, or of a palette's index
_MAX_BYTES = 1 << 27


class Rows(NamedTuple):
    """Rows of labels, each with one zero in front of it."""

    width: int
    height: int
    data: bytes


def plain_rows(data: bytes) -> Rows | None:
    """Return the rows of a PNG of 8-bit labels without filters; None if it is anything else.

    Args:
        data: The whole file.
    """
    # Signature, then the head: length, IHDR, width, height, depth, colour, ..., interlacing.
    if len(data) < 33 or data[:8] != _SIGNATURE or data[24:26] not in _PLAIN or data[28]:
        return None
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    size = (width + 1) * height
    rows = _decompress(data, size) if 0 < size <= _MAX_BYTES else None
    if rows is None or rows[:: width + 1].count(0) != height:
        return None
    return Rows(width, height, rows)


def _decompress(data: bytes, size: int) -> bytes | None:
    """Return the pixel data of a PNG file if it is whole and of this size."""
    parts = []
    i = 8
    while i + 12 <= len(data):
        length, kind = int.from_bytes(data[i : i + 4], "big"), data[i + 4 : i + 8]
        if kind == b"eXIf":
            return None  # which may turn the picture
        if kind == b"IDAT":
            parts.append(data[i + 8 : i + 8 + length])
        i += length + 12
    stream = zlib.decompressobj()
    try:
        # At most one byte too many, whatever the file says: a small file can unpack to terabytes.
        rows = stream.decompress(parts[0] if len(parts) == 1 else b"".join(parts), size + 1)
    except zlib.error:
        return None
    return rows if len(rows) == size and stream.eof else None
