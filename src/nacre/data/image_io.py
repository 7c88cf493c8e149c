"""Reading one picture or one mask from a file, with errors that name the file.

A picture is opened lazily where that is possible (an upright RGB JPEG), so that whoever needs
only a small version can have it decoded at a smaller scale. A mask is read as it is stored: the
index of a palette, or the grey value, of 1 to 16 bits, and never a colour.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nacre.data.index.png import plain_rows
from nacre.data.source import Mask
from nacre.data.worker_monitor import set_current_file
from nacre.errors import NacreError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
HEAD = 4096
IN_MEMORY = "in memory"
"""What stands for the path of a picture that has none."""

_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
# Pillow stretches grey values of 2 and 4 bits to 0..255; a label is what is stored.
_STRETCH = {"L;2": 85, "L;4": 17}
_BAD_FILE = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)


@contextlib.contextmanager
def _naming(path: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever Pillow raises for a bad file into one sentence that names it."""
    if path != IN_MEMORY:
        set_current_file(f"the {kind} {path}")
    try:
        yield
    except NacreError:
        raise
    except FileNotFoundError as error:
        raise NacreError(f"the {kind} {path} is missing") from error
    except UnidentifiedImageError as error:
        raise NacreError(f"the {kind} {path} is damaged or not a picture") from error
    except _BAD_FILE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NacreError(f"the {kind} {path} is damaged: {reason}") from error


def read_bytes(path: Path | str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """Read a file, or its first bytes, without the cost of a Python file object.

    Args:
        path: A regular file.
        limit: How many bytes at most; all by default.

    Returns:
        The bytes, and what the file system knows of the file.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        state = os.fstat(handle)
        return os.read(handle, state.st_size if limit is None else limit), state
    finally:
        os.close(handle)


def open_image(path: Path) -> Image.Image:
    """Open a picture as upright RGB; a plain RGB JPEG is not decoded yet.

    Args:
        path: The file; its EXIF orientation is applied.
    """
    with _naming(path, "image"):
        image = Image.open(path)
        if image.mode == "RGB" and image.format == "JPEG" and _orientation(image) == 1:
            return image
        with image:
            return upright_rgb(image)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return an opened picture as a network sees it: turned as its EXIF data say, 8-bit RGB.

    Grey values of 16 bits are scaled, a palette is looked up, alpha is left out.
    """
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("I;16", "I;16B", "I"):
        # Pillow clips 16 bits to 8 instead of scaling them.
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    return upright.convert("RGB")


def load(image: Image.Image) -> Image.Image:
    """Decode a lazily opened picture, naming its file if it is damaged."""
    with _naming(getattr(image, "filename", "") or IN_MEMORY, "image"):
        image.load()
    return image


def image_size(path: Path, head: bytes) -> tuple[int, int]:
    """Return width and height of the upright picture without decoding it.

    Args:
        path: The file.
        head: Its first `HEAD` bytes, in which the size of most pictures stands.
    """
    size = _plain_jpeg_size(head)
    if size is not None:
        return size
    with _naming(path, "image"), Image.open(path) as image:
        width, height = image.size
        # A PNG may tell its orientation after the pixels; looking there means decoding.
        turned = "exif" in image.info and _orientation(image) in _SIDEWAYS
        return (height, width) if turned else (width, height)


def read_mask(path: Path) -> Mask:
    """Read the label values of a mask.

    Returns:
        The labels, height x width: uint8, or uint16 for a mask of 16 bits.
    """
    with _naming(path, "mask"):
        rows = plain_rows(read_bytes(path)[0])
        if rows is not None:
            return np.frombuffer(rows.data, np.uint8).reshape(rows.height, -1)[:, 1:].copy()
        return _read_any_mask(path)


def _read_any_mask(path: Path) -> Mask:
    with Image.open(path) as image:
        stored = _stored_mode(image)
        labels = np.array(image)
    if image.mode in ("L", "P"):
        return labels // _STRETCH[stored] if stored in _STRETCH else labels
    if image.mode == "1":
        return labels.astype(np.uint8)
    if image.mode.startswith("I") and labels.min() >= 0 and labels.max() <= 65535:
        return labels.astype(np.uint16)
    raise NacreError(
        f"the mask {path} holds colours (mode {image.mode}), not labels; "
        "a mask must be a palette or grey PNG of at most 16 bits"
    )


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 is upright."""
    if image.format == "JPEG" and "exif" not in image.info:
        return 1
    return int(image.getexif().get(_ORIENTATION, 1))


def _stored_mode(image: Image.Image) -> str:
    """Return Pillow's name of how the pixels lie in the file; empty if it does not say."""
    tile = getattr(image, "tile", ())
    args = tile[0][3] if tile else ""
    return args if isinstance(args, str) else str(args[0]) if args else ""


def _plain_jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Read the size from a JPEG's frame header, if no EXIF data come before it.

    The index looks at every picture; this is a third of the time that opening one takes.
    """
    if head[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        kind = head[at + 1]
        if kind in (0xC0, 0xC1, 0xC2):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return (width, height) if width and height else None
        if kind == 0xE1 or not 0xC4 <= kind <= 0xFE:
            return None
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None
