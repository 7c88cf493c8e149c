"""The run-length codes of the annotation tools, each decoded strictly.

========================  =========================================================================
COCO                      lengths of runs down the columns, zeros first
COCO, compressed          the same as text: groups of 5 bits, differences from the 4th number on
CVAT (XML)                lengths of runs along the rows of a box, zeros first
Label Studio (brush)      a bit stream of runs and literals over height x width x 4 bytes (RGBA);
                          the alpha channel is the mask
========================  =========================================================================

A code whose runs do not add up to the image exactly is damaged: filling up or cutting off would
give a wrong mask without a word.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nacre.importers.rasterize import Bits, Patch, empty_patch

Runs = npt.NDArray[np.int64]

LONGEST_RUN = 2**31


def parse_compressed(text: str) -> Runs:
    """Return the run lengths of COCO's compressed text.

    Raises:
        ValueError: It is not such a text.
    """
    lengths: list[int] = []
    value = shift = 0
    for char in text:
        bits = ord(char) - 48
        if not 0 <= bits < 64 or shift > 40:
            raise ValueError(f"the compressed RLE holds {char!r} where a number should go on")
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        # From the fourth number on it is the difference to the number two before.
        lengths.append(value + lengths[-2] if len(lengths) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("the compressed RLE ends in the middle of a number")
    return check_runs(lengths)


def check_runs(lengths: Sequence[object] | npt.NDArray[np.float64]) -> Runs:
    """Return run lengths as an array.

    Raises:
        ValueError: One is not a whole number, negative or absurdly long.
    """
    try:
        runs = np.asarray(lengths)
    except (ValueError, OverflowError) as error:
        raise ValueError("the RLE holds something else than numbers") from error
    if runs.size == 0:
        return np.zeros(0, np.int64)
    if runs.ndim != 1 or runs.dtype.kind not in "iuf" or np.any(runs != np.floor(runs)):
        raise ValueError("the RLE holds something else than whole numbers")
    if runs.min() < 0 or runs.max() > LONGEST_RUN:
        raise ValueError(f"the RLE holds a run of {runs.min() if runs.min() < 0 else runs.max()}")
    return runs.astype(np.int64)


def decode_columns(runs: Runs, width: int, height: int) -> Patch:
    """Decode runs down the columns of a image (COCO)."""
    bits, first = _decode(runs, width * height, height)
    return Patch(first, 0, bits.T) if bits.size else empty_patch()


def decode_rows(runs: Runs, left: int, top: int, width: int, height: int) -> Patch:
    """Decode runs along the rows of a box (CVAT)."""
    bits, first = _decode(runs, width * height, width)
    return Patch(left, top + first, bits) if bits.size else empty_patch()


def _decode(runs: Runs, size: int, line: int) -> tuple[Bits, int]:
    """Return the lines between the first and the last one that is touched, and which is first."""
    total = int(runs.sum())
    if total != size:
        raise ValueError(f"the RLE is of {total:,} pixels, not of {size:,}")
    ends = np.cumsum(runs)
    starts, stops = ends[0::2][: len(ends[1::2])], ends[1::2]
    there = stops > starts
    starts, stops = starts[there], stops[there]
    if not len(starts):
        return np.zeros((0, 0), np.bool_), 0
    first, last = int(starts[0]) // line, (int(stops[-1]) - 1) // line + 1
    # Objects are small in large images: only the lines that they touch are unrolled.
    steps = np.zeros((last - first) * line + 1, np.int8)
    steps[starts - first * line] += 1
    steps[stops - first * line] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_).reshape(-1, line), first


def decode_brush(code: bytes, width: int, height: int) -> Patch:
    """Decode Label Studio's brush: what has any opacity is inside.

    Raises:
        ValueError: The stream is damaged or of another size.
    """
    stream = _BitStream(code)
    size = stream.read(32)
    if size != width * height * 4:
        raise ValueError(f"the brush is of {size:,} bytes, not of {width * height * 4:,}")
    word = stream.read(5) + 1
    lengths = [stream.read(4) + 1 for _ in range(4)]
    if word != 8:
        raise ValueError(f"the brush has words of {word} bits, not of 8")
    alpha = np.zeros(width * height, np.bool_)
    position = 0
    while position < size:
        is_run = stream.read(1)
        stop = min(position + 1 + stream.read(lengths[stream.read(2)]), size)
        # Byte 4k + 3 is the alpha of pixel k, so [at, stop) holds those of [at // 4, stop // 4).
        if is_run:
            alpha[position // 4 : stop // 4] = stream.read(8) > 0
        else:
            values = stream.read_bytes(stop - position)
            alpha[position // 4 : stop // 4] = values[(3 - position) % 4 :: 4] > 0
        position = stop
    return Patch(0, 0, alpha.reshape(height, width))


class _BitStream:
    """Reads numbers of some bits, the high bit first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.end = 8 * len(data)

    def read(self, bits: int) -> int:
        """Read one number of at most 32 bits."""
        stop = self._stop(bits)
        window = int.from_bytes(self.data[self.position >> 3 : (stop + 7) >> 3], "big")
        value = (window >> (-stop % 8)) & ((1 << bits) - 1)
        self.position = stop
        return value

    def read_bytes(self, count: int) -> npt.NDArray[np.uint8]:
        """Read some bytes, which need not begin where a byte of the stream does."""
        start, stop = self.position, self._stop(8 * count)
        bits = np.unpackbits(np.frombuffer(self.data[start >> 3 : (stop + 7) >> 3], np.uint8))
        self.position = stop
        return np.packbits(bits[start % 8 : start % 8 + 8 * count])

    def _stop(self, bits: int) -> int:
        if self.position + bits > self.end:
            raise ValueError("the brush ends before its image does")
        return self.position + bits
