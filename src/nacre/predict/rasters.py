"""Large images that are read and written part by part: TIFF by rasterio, others by Pillow.

Whoever reads an image, it has the same pixels: colors of a palette are looked up, 16 bits become 8,
alpha is left out, and an image that its file says to be turned is turned.
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

_TIFF = (".tif", ".tiff")
_ORIENTATION = 274
_CACHE_MIB = 256
"""What GDAL may keep of an image; by default it takes a part of the machine's memory."""

IN_MEMORY = 1 << 26
"""Pixels of the largest class map that is not in a file."""

PREVIEW = 4096
"""Longest side of the overlay of an image that is too large to be shown whole."""


@dataclass(frozen=True)
class Raster:
    """An image of which parts can be read.

    Attributes:
        size: Height and width.
        read: Returns rows and columns, height x width x RGB.
        preview: Returns the whole image with its longer side at most `PREVIEW`.
        place: Where on Earth it lies, as rasterio has it, if it says so.
    """

    size: tuple[int, int]
    read: Callable[[slice, slice], Pixels]
    preview: Callable[[], Pixels]
    place: Mapping[str, Any] = field(default_factory=dict)


def has_rasterio() -> bool:
    """Return whether rasterio is installed."""
    return find_spec("rasterio") is not None


@contextlib.contextmanager
def open_raster(path: Path) -> Iterator[Raster]:
    """Open an image of any size: a TIFF by rasterio where it is installed, else by Pillow."""
    if path.suffix.lower() in _TIFF and has_rasterio() and not _is_turned(path):
        with _rasterio_open(path) as file:
            yield _open_windowed(file, path)
    else:
        yield _in_memory(path)


def _is_turned(path: Path) -> bool:
    """Return whether a TIFF says that it is to be turned, of which GDAL knows nothing."""
    # Pillow takes large images for an attack; no pixel is read here.
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with Image.open(path, formats=("TIFF",)) as image:
            tags: Any = getattr(image, "tag_v2", {})
            return tags.get(_ORIENTATION, 1) in range(2, 9)
    except Exception:  # GDAL says what is wrong with it, or can read what Pillow cannot
        return False
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _in_memory(path: Path) -> Raster:
    image = load(open_image(path))

    def read(rows: slice, columns: slice) -> Pixels:
        return np.asarray(image.crop((columns.start, rows.start, columns.stop, rows.stop)))

    def preview() -> Pixels:
        return np.asarray(
            image if max(image.size) <= PREVIEW else image.reduce(_factor(image.size))
        )

    return Raster((image.height, image.width), read, preview)


def _factor(size: tuple[int, ...]) -> int:
    return max(1, -(-max(size) // PREVIEW))


@contextlib.contextmanager
def _rasterio_open(path: Path) -> Iterator[Any]:
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    try:
        with warnings.catch_warnings(), rasterio.Env(GDAL_CACHEMAX=_CACHE_MIB):
            warnings.simplefilter("ignore", NotGeoreferencedWarning)  # plain images are welcome
            # By its content alone GDAL would take it for a description of other files or addresses.
            with rasterio.open(path, driver="GTiff") as file:
                yield file
    except RasterioError as error:
        raise NacreError(f"the image {path} is damaged: {error}") from error


def _open_windowed(file: Any, path: Path) -> Raster:
    dtype, palette = np.dtype(file.dtypes[0]), _palette(file)
    if dtype not in (np.uint8, np.uint16):
        raise NacreError(f"the image {path} holds {dtype} values; 8 or 16 bits are read")
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
        factor = _factor((file.height, file.width))
        shape = (3, -(-file.height // factor), -(-file.width // factor))
        return as_rgb(file.read(bands, out_shape=shape))

    return Raster((file.height, file.width), read, preview, _place(file))


def _place(file: Any) -> dict[str, Any]:
    is_known = file.crs is not None or not file.transform.is_identity
    return {"crs": file.crs, "transform": file.transform} if is_known else {}


def _palette(file: Any) -> Pixels | None:
    """Return the color of each value; None if values are colors.

    GDAL also gives images of one bit, and those in which 0 is white, a palette.
    """
    from rasterio.enums import ColorInterp

    if file.colorinterp[0] != ColorInterp.palette:
        return None
    colors = np.zeros((1 << (8 * np.dtype(file.dtypes[0]).itemsize), 3), np.uint8)
    for value, (red, green, blue, _) in file.colormap(1).items():
        colors[value] = red, green, blue
    return colors


@contextlib.contextmanager
def make_class_map(size: tuple[int, int], channels: int, folder: Path) -> Iterator[ClassMap]:
    """Yield a class map to be filled; a large one lies in a file, which is then removed.

    Args:
        size: Height and width.
        channels: How many classes there are.
        folder: Where the file lies meanwhile.
    """
    dtype = np.uint16 if is_wide(channels) else np.uint8
    if size[0] * size[1] <= IN_MEMORY:
        yield np.zeros(size, dtype)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".class-map.", dir=folder, ignore_cleanup_errors=True
    ) as place:
        yield np.memmap(Path(place) / "classes", dtype, "w+", shape=size)


def is_georeferenced(path: Path) -> bool:
    """Return whether an image says where on Earth it lies, and rasterio is there to read it.

    Raises:
        NacreError: it says so of an image that is to be turned, whose place is then unclear.
    """
    if path.suffix.lower() not in _TIFF or not has_rasterio():
        return False
    with _rasterio_open(path) as file:
        found = bool(_place(file))
    if found and _is_turned(path):
        raise NacreError(
            f"the image {path} has a place on Earth and an orientation that turns it; save it "
            "upright, without the TIFF tag Orientation"
        )
    return found


@contextlib.contextmanager
def write_geotiff(
    path: Path, raster: Raster, channels: Channels
) -> Iterator[Callable[[slice, slice, Pixels], None]]:
    """Write the class map of an image part by part, with the image's place on Earth."""
    import rasterio

    profile = {
        **raster.place,
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
