"""Large images that are read and written in parts: TIFF files by rasterio, others by Pillow.

Both readers return the same pixels: palettes are looked up, 16 bits are scaled to 8, alpha is
dropped, and the orientation is applied.
"""

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.data.image_io import Pixels, load, open_image
from nacre.errors import NacreError
from nacre.labels.channels import Channels, is_wide
from nacre.predict.polygons import ClassMap
from nacre.utils.io import atomic_write

MAX_PIXELS_IN_MEMORY = 1 << 26
"""Pixels of a class map; a larger one is in a file."""
MAX_PREVIEW_SIDE = 4096
"""Longer side of the overlay of a large image."""

_TIFF = (".tif", ".tiff")
_ORIENTATION = 274
_GDAL_CACHE_MIB = 256  # by default, GDAL takes a part of the machine's memory


@dataclass(frozen=True)
class Raster:
    """An image that can be read in parts.

    Attributes:
        size: Height and width.
        read: Returns rows and columns, height x width x RGB.
        preview: Returns the whole image with a longer side of at most `MAX_PREVIEW_SIDE`.
        georeference: rasterio's coordinate system and transform, if the file has them.
    """

    size: tuple[int, int]
    read: Callable[[slice, slice], Pixels]
    preview: Callable[[], Pixels]
    georeference: Mapping[str, Any] = field(default_factory=dict)


def has_rasterio() -> bool:
    """Return True if rasterio is installed."""
    return find_spec("rasterio") is not None


def is_georeferenced(path: Path) -> bool:
    """Return True if an image has a georeference and rasterio is installed to read it.

    Raises:
        NacreError: the image also has an orientation, so that its georeference is ambiguous.
    """
    if path.suffix.lower() not in _TIFF or not has_rasterio():
        return False
    with _open_tiff(path) as file:
        if not _georeference(file):
            return False
    if _is_turned(path):
        raise NacreError(
            f"the image {path} has a georeference and an orientation that turns it; save it "
            "upright, without the TIFF tag Orientation"
        )
    return True


@contextlib.contextmanager
def open_raster(path: Path) -> Iterator[Raster]:
    """Open an image: a TIFF by rasterio if it is installed, otherwise by Pillow."""
    if path.suffix.lower() in _TIFF and has_rasterio() and not _is_turned(path):
        with _open_tiff(path) as file:
            yield _windowed(file, path)
    else:
        yield _in_memory(path)


def _is_turned(path: Path) -> bool:
    """Return True for a TIFF with an orientation, which GDAL ignores."""
    # Pillow's limit is for decoding; no pixel is read here.
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with Image.open(path, formats=("TIFF",)) as image:
            tags: Any = getattr(image, "tag_v2", {})
            return tags.get(_ORIENTATION, 1) in range(2, 9)
    except Exception:  # GDAL reports the error, or can read what Pillow cannot
        return False
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _in_memory(path: Path) -> Raster:
    image = load(open_image(path))

    def read(rows: slice, columns: slice) -> Pixels:
        return np.asarray(image.crop((columns.start, rows.start, columns.stop, rows.stop)))

    def preview() -> Pixels:
        factor = _reduction(image.size)
        return np.asarray(image if factor == 1 else image.reduce(factor))

    return Raster((image.height, image.width), read, preview)


def _reduction(size: tuple[int, ...]) -> int:
    """Return the factor by which a preview is smaller than an image."""
    return max(1, -(-max(size) // MAX_PREVIEW_SIDE))


@contextlib.contextmanager
def _open_tiff(path: Path) -> Iterator[Any]:
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    try:
        with warnings.catch_warnings(), rasterio.Env(GDAL_CACHEMAX=_GDAL_CACHE_MIB):
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            # Without the driver, GDAL would accept files that refer to other files or addresses.
            with rasterio.open(path, driver="GTiff") as file:
                yield file
    except RasterioError as error:
        raise NacreError(f"the image {path} is damaged: {error}") from error


def _windowed(file: Any, path: Path) -> Raster:
    dtype, palette = np.dtype(file.dtypes[0]), _palette(file)
    if dtype not in (np.uint8, np.uint16):
        raise NacreError(f"the image {path} has {dtype} values; save it with 8 or 16 bits")
    bands = [1, 2, 3] if file.count >= 3 else [1, 1, 1]

    def as_rgb(values: npt.NDArray[Any]) -> Pixels:
        if palette is not None:
            return palette[values[0]]
        if dtype == np.uint16:
            values = values >> 8
        return np.ascontiguousarray(values.astype(np.uint8).transpose(1, 2, 0))

    def read(rows: slice, columns: slice) -> Pixels:
        window = ((rows.start, rows.stop), (columns.start, columns.stop))
        return as_rgb(file.read(bands, window=window))

    def preview() -> Pixels:
        factor = _reduction((file.height, file.width))
        shape = (3, -(-file.height // factor), -(-file.width // factor))
        return as_rgb(file.read(bands, out_shape=shape))

    return Raster((file.height, file.width), read, preview, _georeference(file))


def _georeference(file: Any) -> dict[str, Any]:
    is_known = file.crs is not None or not file.transform.is_identity
    return {"crs": file.crs, "transform": file.transform} if is_known else {}


def _palette(file: Any) -> Pixels | None:
    """Return the color of each value; None if values are colors.

    GDAL also gives a palette to images of one bit and to those in which 0 is white.
    """
    from rasterio.enums import ColorInterp

    if file.colorinterp[0] != ColorInterp.palette:
        return None
    colors = np.zeros((1 << (8 * np.dtype(file.dtypes[0]).itemsize), 3), np.uint8)
    for value, (red, green, blue, _) in file.colormap(1).items():
        colors[value] = red, green, blue
    return colors


def make_class_map(size: tuple[int, int], num_channels: int, folder: Path) -> ClassMap:
    """Return an empty class map; a large one is in an unnamed temporary file in a folder."""
    dtype = np.uint16 if is_wide(num_channels) else np.uint8
    if size[0] * size[1] <= MAX_PIXELS_IN_MEMORY:
        return np.zeros(size, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    # The system removes the file when the map is gone, even if the process is killed.
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=size)


@contextlib.contextmanager
def write_geotiff(
    path: Path, raster: Raster, channels: Channels
) -> Iterator[Callable[[slice, slice, Pixels], None]]:
    """Yield a function that writes a part of a class map; the file has the georeference."""
    import rasterio

    profile = {
        **raster.georeference,
        "driver": "GTiff",
        "height": raster.size[0],
        "width": raster.size[1],
        "count": 1,
        "dtype": "uint16" if is_wide(len(channels)) else "uint8",
        "compress": "deflate",
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
    }
    with atomic_write(path) as temporary, rasterio.open(temporary, "w", **profile) as file:
        if not is_wide(len(channels)):
            file.write_colormap(1, {i: (*color, 255) for i, color in enumerate(channels.colors)})
        file.update_tags(classes=", ".join(channels.names))

        def write(rows: slice, columns: slice, classes: Pixels) -> None:
            window = ((rows.start, rows.stop), (columns.start, columns.stop))
            file.write(classes, 1, window=window)

        yield write
