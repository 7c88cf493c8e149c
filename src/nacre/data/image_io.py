"""Reading an image or a mask from a file, with errors that name the file.

An upright RGB JPEG is opened without decoding it, so that a caller can decode a smaller version.
Images are rotated as their EXIF data specify (only data before the pixels count); masks must match
the rotated image. A mask is read as stored: palette index or gray value of 1 to 16 bits. RGB masks
are accepted if all of their pixels are gray.

Only a few formats are opened, whatever the file's suffix: Pillow knows formats that start other
programs. Images that are too large are refused before memory is allocated for them.
"""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from nacre.errors import NacreError
from nacre.utils.io import open_regular

Pixels = npt.NDArray[np.uint8]
"""An image: height x width x RGB, unless stated otherwise."""

Mask = npt.NDArray[np.unsignedinteger[Any]]
"""Label values, height x width, as uint8 or uint16."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
MAX_PIXELS = 2**27
"""The size of the largest image that is opened."""

_MAX_BYTES = 1 << 30
_JPEG_TAIL = 64
_ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that makes an image upright, by EXIF orientation."""

_SIDEWAYS = (5, 6, 7, 8)
_BITS_16 = ("I;16", "I;16L", "I;16B", "I;16N")
# Pillow stretches gray values of 2 and 4 bits to 0..255; a label is the stored value.
_STRETCH = {"L;2": 85, "L;4": 17}


@contextlib.contextmanager
def _naming(path: Path | str, what: str) -> Iterator[None]:
    """Convert any error that Pillow raises for a bad file to one sentence that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # relevant problems are errors
            yield
    except (NacreError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise NacreError(f"the {what} {path} is missing") from error
    except UnidentifiedImageError as error:
        raise NacreError(
            f"the {what} {path} is damaged or not an image ({', '.join(FORMATS)}; a TIFF of at "
            "most four bands, in color of 8 bits each)"
        ) from error
    except Image.DecompressionBombError as error:
        raise NacreError(
            f"the {what} {path} is too large: at most {MAX_PIXELS:,} pixels"
        ) from error
    except OSError as error:
        # Only errors of the system have a number; Pillow's own errors mean a damaged file.
        reason = (
            f"cannot be read: {error.strerror}" if error.errno else f"is damaged: {_line(error)}"
        )
        raise NacreError(f"the {what} {path} {reason}") from error
    except Exception as error:  # damaged bytes raise errors of any type
        raise NacreError(f"the {what} {path} is damaged: {_line(error)}") from error


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _open_whole(path: Path, what: str) -> Image.Image:
    """Read a file and open it from memory: an image that is not decoded keeps its file open."""
    with open_regular(path, _MAX_BYTES) as file:
        return _open(io.BytesIO(file.read()), path, what)


def _open(file: BinaryIO, path: Path, what: str) -> Image.Image:
    """Open an image of a known format if it is not too large."""
    image = Image.open(file, formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise NacreError(
            f"the {what} {path} has {image.width} x {image.height} pixels; the limit is "
            f"{MAX_PIXELS:,}; cut it into parts"
        )
    return image


def open_image(path: Path) -> Image.Image:
    """Open an image as upright RGB; an upright RGB JPEG is not decoded yet."""
    with _naming(path, "image"):
        image = _open_whole(path, "image")
        if image.mode == "RGB" and image.format == "JPEG" and orientation(image) == 1:
            image.filename = str(path)  # type: ignore[attr-defined]
            return image
        with image:
            return upright_rgb(image, f"the image {path}")


def upright_rgb(image: Image.Image, what: str = "the image") -> Image.Image:
    """Return an image as upright 8-bit RGB; errors call it `what`.

    16-bit gray values are scaled, palettes are applied, alpha is dropped.
    """
    turn = TURNS.get(orientation(image))
    upright = image if turn is None else image.transpose(turn)
    if upright.mode in _BITS_16 or (upright.mode == "I" and _has_16_bits(image)):
        # Pillow clips 16 bits to 8 instead of scaling them.
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode in ("F", "I"):
        raise NacreError(
            f"{what} has 32-bit pixels of unknown range (mode {upright.mode}); save it with 8 or "
            "16 bits per channel"
        )
    return upright.convert("RGB")


def _has_16_bits(image: Image.Image) -> bool:
    """Return whether gray values stored as 32 bits have 16: in a PNG, or by their range."""
    if image.format is not None:
        return image.format == "PNG"
    low, high = image.getextrema()
    return bool(low >= 0 and 255 < high < 65536)  # type: ignore[operator]


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image that is not decoded yet, from 1 (upright) to 8.

    Data after the pixels and invalid data are ignored.
    """
    may_turn = image.format != "JPEG" or "exif" in image.info or "xmp" in image.info
    if image.format == "TIFF" or not may_turn:
        return 1  # Pillow rotates a TIFF itself
    try:
        # Not the image's own method: for a PNG it would decode the image to read data at the end.
        value = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # damaged bytes raise errors of any type
        return 1
    return int(value) if value in TURNS else 1


def load(image: Image.Image) -> Image.Image:
    """Decode an opened image; an error names its file."""
    with _naming(getattr(image, "filename", "") or "in memory", "image"):
        image.load()
    return image


def examine_image(path: Path, decode: bool = False) -> tuple[tuple[int, int], bool]:
    """Check that an image file is complete, decoding it only if requested or necessary.

    Returns:
        Width and height of the upright image, and whether EXIF data rotate it.
    """
    with _naming(path, "image"):
        with open_regular(path, _MAX_BYTES) as file:
            image = _open(file, path, "image")
            turn = orientation(image)
            whole = _is_whole(image, file)
        if decode or not whole:
            load(open_image(path))
    width, height = image.size
    return (height, width) if turn in _SIDEWAYS else (width, height), turn != 1


def _is_whole(image: Image.Image, file: BinaryIO) -> bool:
    """Return whether a file is known to be complete without decoding it."""
    if image.format == "PNG":
        image.verify()  # Pillow may decode a file with a damaged chunk
        return True
    if image.format in ("JPEG", "MPO"):
        # The end mark cannot occur within the pixels; some programs write more after it.
        file.seek(max(0, file.seek(0, os.SEEK_END) - _JPEG_TAIL))
        return b"\xff\xd9" in file.read()
    return image.format == "WEBP"  # Pillow opens complete files only


def read_mask(path: Path) -> Mask:
    """Read the label values of a mask (H,W), as uint8 or, for a 16-bit mask, uint16."""
    with _naming(path, "mask"), _open_whole(path, "mask") as image:
        if image.format in ("JPEG", "MPO"):
            raise NacreError(
                f"the mask {path} is a JPEG, whose compression changes labels; export the masks "
                "as PNG from the annotation tool"
            )
        if orientation(image) != 1:
            raise NacreError(f"the mask {path} has EXIF data that rotate it; save it upright")
        mode, is_exact = image.mode, ";16" not in _stored_mode(image)
        labels = stored_labels(image)
        if labels is None and mode in ("LA", "RGB", "RGBA") and is_exact:
            colors = np.asarray(image)[..., : 1 if mode == "LA" else 3]
            if (colors == colors[..., :1]).all():  # gray, as many programs save masks
                labels = np.ascontiguousarray(colors[..., 0])
    if labels is None:
        raise NacreError(
            f"the mask {path} contains colors (mode {mode}), not labels; a mask must be a palette "
            "or gray PNG of at most 16 bits; `nacre import --colors` converts masks in colors"
        )
    return labels


def stored_labels(image: Image.Image) -> Mask | None:
    """Return the palette index or gray value of each pixel; None if the image has neither.

    The image must not be decoded yet.
    """
    stored, mode = _stored_mode(image), image.mode
    labels = np.array(image)
    if mode in ("L", "P"):
        return labels // _STRETCH[stored] if stored in _STRETCH else labels
    if mode == "1":
        return labels.astype(np.uint8)
    if mode.startswith("I") and labels.min() >= 0 and labels.max() <= 65535:
        return labels.astype(np.uint16)
    return None


def count_labels(mask: Mask) -> dict[int, int]:
    """Count the pixels of each label of a mask, in ascending order of the labels."""
    if mask.dtype == np.uint8:
        counts = Image.fromarray(np.ascontiguousarray(mask)).histogram()
        return {label: count for label, count in enumerate(counts) if count}
    labels, numbers = np.unique(mask, return_counts=True)
    return dict(zip(labels.tolist(), numbers.tolist(), strict=True))


def _stored_mode(image: Image.Image) -> str:
    """Return Pillow's name of the pixel format in the file; empty if there is none."""
    tile = getattr(image, "tile", ())
    args = tile[0][3] if tile else ""
    return args if isinstance(args, str) else str(args[0]) if args else ""
