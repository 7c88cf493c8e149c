"""Reading one image or one mask from a file, with errors that name the file.

An image is opened lazily where that is possible (an upright RGB JPEG), so that whoever needs
only a small version can have it decoded at a smaller scale. It is turned as the EXIF data say that
stand before its pixels: that is the frame in which a mask is drawn. A mask is read as it is stored:
the index of a palette, or the gray value, of 1 to 16 bits, and never a color; what is gray
everywhere may be saved as RGB.

Only the formats that are meant are opened, whatever a file is called: Pillow knows some that start
other programs. An image is refused by its size before any memory is taken for it.
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
"""An image: height x width x RGB, unless something else is said."""

Mask = npt.NDArray[np.unsignedinteger[Any]]
"""Label values, height x width, as uint8 or uint16."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
MOST_PIXELS = 2**27
"""The largest image that is opened."""

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
"""What turns an image upright, by its EXIF orientation."""

_SIDEWAYS = (5, 6, 7, 8)
_BITS_16 = ("I;16", "I;16L", "I;16B", "I;16N")
# Pillow stretches gray values of 2 and 4 bits to 0..255; a label is what is stored.
_STRETCH = {"L;2": 85, "L;4": 17}


@contextlib.contextmanager
def _naming(path: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever Pillow raises for a bad file into one sentence that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is an error here
            yield
    except (NacreError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise NacreError(f"the {kind} {path} is missing") from error
    except UnidentifiedImageError as error:
        raise NacreError(
            f"the {kind} {path} is damaged or not an image ({', '.join(FORMATS)}; a TIFF of at "
            "most four bands, in color of 8 bits each)"
        ) from error
    except Image.DecompressionBombError as error:
        raise NacreError(
            f"the {kind} {path} is too large: at most {MOST_PIXELS:,} pixels"
        ) from error
    except OSError as error:
        # Only an error of the system has a number; Pillow's own mean a damaged file.
        what = f"cannot be read: {error.strerror}" if error.errno else f"is damaged: {_line(error)}"
        raise NacreError(f"the {kind} {path} {what}") from error
    except Exception as error:  # damaged bytes end in errors of any type
        raise NacreError(f"the {kind} {path} is damaged: {_line(error)}") from error


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _open_whole(path: Path, kind: str) -> Image.Image:
    """Open a file from memory: an image that is never decoded would leave its file open."""
    with open_regular(path, _MAX_BYTES) as file:
        return _open(io.BytesIO(file.read()), path, kind)


def _open(file: BinaryIO, path: Path, kind: str) -> Image.Image:
    """Open what is an image of a known format and not too large."""
    image = Image.open(file, formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise NacreError(
            f"the {kind} {path} has {image.width} x {image.height} pixels, and {MOST_PIXELS:,} are "
            "the most; cut it into parts"
        )
    return image


def open_image(path: Path) -> Image.Image:
    """Open an image as upright RGB; a plain RGB JPEG is not decoded yet.

    Args:
        path: The file; its EXIF orientation is applied.
    """
    with _naming(path, "image"):
        image = _open_whole(path, "image")
        if image.mode == "RGB" and image.format == "JPEG" and orientation(image) == 1:
            image.filename = str(path)  # type: ignore[attr-defined]
            return image
        with image:
            return upright_rgb(image, f"the image {path}")


def upright_rgb(image: Image.Image, what: str = "the image") -> Image.Image:
    """Return an opened image as a network sees it: turned as its EXIF data say, 8-bit RGB.

    Gray values of 16 bits are scaled, a palette is looked up, alpha is left out.

    Args:
        image: An image that Pillow opened or made.
        what: It, for messages.
    """
    turn = TURNS.get(orientation(image))
    upright = image if turn is None else image.transpose(turn)
    if upright.mode in _BITS_16 or (upright.mode == "I" and _has_16_bits(image)):
        # Pillow clips 16 bits to 8 instead of scaling them.
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode in ("F", "I"):
        raise NacreError(
            f"{what} has pixels of 32 bits (mode {upright.mode}), whose range nobody knows; "
            "save it with 8 or 16 bits per channel"
        )
    return upright.convert("RGB")


def _has_16_bits(image: Image.Image) -> bool:
    """Return whether gray values stored in 32 bits are certainly of 16: in a PNG, or by size."""
    if image.format is not None:
        return image.format == "PNG"
    low, high = image.getextrema()
    return bool(low >= 0 and 255 < high < 65536)  # type: ignore[operator]


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image that was not decoded yet, from 1 (upright) to 8.

    Data behind the pixels do not count, and neither do data that cannot be understood.
    """
    may_turn = image.format != "JPEG" or "exif" in image.info or "xmp" in image.info
    if image.format == "TIFF" or not may_turn:
        return 1  # Pillow turns a TIFF itself
    try:
        # Not the image's own method: a PNG's would decode it to look behind the pixels.
        found = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # as for all damaged bytes
        return 1
    return int(found) if found in TURNS else 1


def load(image: Image.Image) -> Image.Image:
    """Decode a lazily opened image, naming its file if it is damaged."""
    with _naming(getattr(image, "filename", "") or "in memory", "image"):
        image.load()
    return image


def examine_image(path: Path, decode: bool = False) -> tuple[tuple[int, int], bool]:
    """Check that an image file is whole, decoding it only where nothing else tells.

    Args:
        path: The file.
        decode: Decode it in any case.

    Returns:
        Width and height of the upright image, and whether EXIF data turn it.
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
    """Return whether an opened file ends as it should; False if that takes decoding it."""
    if image.format == "PNG":
        image.verify()  # Pillow might take the pixels from a file with a damaged chunk
        return True
    if image.format in ("JPEG", "MPO"):
        # The end mark cannot occur within the pixels; some programs write more behind it.
        file.seek(max(0, file.seek(0, os.SEEK_END) - _JPEG_TAIL))
        return b"\xff\xd9" in file.read()
    return image.format == "WEBP"  # which is not opened unless it is whole


def read_mask(path: Path) -> Mask:
    """Read the label values of a mask.

    Returns:
        The labels, height x width: uint8, or uint16 for a mask of 16 bits.
    """
    with _naming(path, "mask"), _open_whole(path, "mask") as image:
        if image.format == "JPEG" and image.mode == "L":
            raise NacreError(
                f"the mask {path} is a JPEG, which mixes the labels of neighbors; save the masks "
                "as PNG from where they were drawn"
            )
        if orientation(image) != 1:
            raise NacreError(f"the mask {path} has EXIF data that turn it; save it upright")
        mode, is_exact = image.mode, image.format != "JPEG" and ";16" not in _stored_mode(image)
        labels = stored_labels(image)
        if labels is None and mode in ("LA", "RGB", "RGBA") and is_exact:
            colors = np.asarray(image)[..., : 1 if mode == "LA" else 3]
            if (colors == colors[..., :1]).all():  # gray, as many programs save it
                labels = np.ascontiguousarray(colors[..., 0])
    if labels is None:
        raise NacreError(
            f"the mask {path} holds colors (mode {mode}), not labels; a mask must be a palette or "
            "gray PNG of at most 16 bits, which `nacre import --colors` makes of masks in colors"
        )
    return labels


def stored_labels(image: Image.Image) -> Mask | None:
    """Return the index of a palette or the gray value of each pixel; None for anything else.

    Args:
        image: An image that was opened and not decoded yet.
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
    """Count the pixels of each label of a mask, in the order of the labels."""
    if mask.dtype == np.uint8:
        counts = Image.fromarray(np.ascontiguousarray(mask)).histogram()
        return {label: count for label, count in enumerate(counts) if count}
    labels, numbers = np.unique(mask, return_counts=True)
    return dict(zip(labels.tolist(), numbers.tolist(), strict=True))


def _stored_mode(image: Image.Image) -> str:
    """Return Pillow's name of how the pixels lie in the file; empty if it does not say."""
    tile = getattr(image, "tile", ())
    args = tile[0][3] if tile else ""
    return args if isinstance(args, str) else str(args[0]) if args else ""
