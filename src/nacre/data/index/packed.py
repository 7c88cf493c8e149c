"""Records of many images in little memory: a hundred bytes each instead of several hundred.

A packed record is the signature, four numbers of 8 bytes, and then for each label two bytes with
the label and eight with its pixels.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from nacre.data.index.scan import FileSignature, Record

_SIGNATURE = struct.Struct("<4q")
_LABEL = struct.Struct("<Hq")


def pack(record: Record) -> bytes:
    """Return a record as bytes."""
    labels = (_LABEL.pack(label, count) for label, count in record.pixels.items())
    return b"".join((_SIGNATURE.pack(*record.signature), *labels))


def signature_of(packed: bytes) -> FileSignature:
    """Return by what a change of the files of a packed record is noticed."""
    return _SIGNATURE.unpack_from(packed)


def pixels_of(packed: bytes) -> dict[int, int]:
    """Return the pixels by label of a packed record."""
    return dict(_LABEL.iter_unpack(memoryview(packed)[_SIGNATURE.size :]))


class PackedPixels(Sequence[dict[int, int]]):
    """The pixels by label of many images, unpacked when they are looked at."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    @overload
    def __getitem__(self, i: int) -> dict[int, int]: ...
    @overload
    def __getitem__(self, i: slice) -> "PackedPixels": ...
    def __getitem__(self, i: int | slice) -> "dict[int, int] | PackedPixels":
        if isinstance(i, slice):
            return PackedPixels(self.packed[i])
        return pixels_of(self.packed[i])

    def __iter__(self) -> Iterator[dict[int, int]]:
        return map(pixels_of, self.packed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
