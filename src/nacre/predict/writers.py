"""Writers of predictions: masks, overlays, LabelMe polygons, a CSV of shares.

Masks, overlays and polygons are one file per image and lie where the image lay. The CSV is one file
for all that grows row by row.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.predict.polygons import ClassMap, simplify, trace_rings
from nacre.utils.io import csv_text, save, save_json

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, int, int]

_PIXELS_AT_ONCE = 1 << 24
"""Pixels of a class map that are counted at once."""

_STRIP = 256
"""Rows of an overlay that are mixed at once."""


@dataclass(frozen=True)
class Legend:
    """Class name and RGB by channel; channel 0 is the background."""

    classes: tuple[str, ...]
    colors: tuple[Color, ...]


def palette_image(classes: ClassMap, legend: Legend) -> Image.Image:
    """Return a class map as a palette image, or of 16 bits: its values are channels."""
    image = Image.fromarray(classes)
    if classes.dtype == np.uint16:
        return image  # a palette has 256 colors
    image.putpalette([value for color in legend.colors for value in color])
    return image


def write_mask(path: Path, classes: ClassMap, legend: Legend) -> None:
    """Write a class map as a palette PNG, or of 16 bits: its values are channels."""
    image = palette_image(classes, legend)
    save(path, lambda temporary: image.save(temporary, "PNG"))


def overlay(
    pixels: Pixels, classes: ClassMap, legend: Legend, strength: float = 0.6
) -> Image.Image:
    """Return an image with its classes laid over it in color, all but the background."""
    colors = np.array(legend.colors, np.float32) * strength
    mixed = np.empty_like(pixels)
    for top in range(0, len(pixels), _STRIP):
        rows = slice(top, top + _STRIP)
        part, found = pixels[rows], classes[rows]
        laid = part * np.float32(1 - strength) + colors[found]
        mixed[rows] = np.where(found[..., None] > 0, laid.round().astype(np.uint8), part)
    return Image.fromarray(mixed)


def write_overlay(path: Path, pixels: Pixels, classes: ClassMap, legend: Legend) -> None:
    """Write an image with its classes over it as a JPEG."""
    image = overlay(pixels, classes, legend)
    save(path, lambda file: image.save(file, "JPEG", quality=90))


def labelme(classes: ClassMap, legend: Legend, image: str, tolerance: float) -> dict[str, Any]:
    """Return a class map as the JSON of LabelMe, larger polygons first.

    Args:
        classes: Channel of each pixel.
        legend: What the channels mean.
        image: Path of the image, from where the JSON lies.
        tolerance: How far, in pixels, a polygon may be from the edge of its region.
    """
    shapes = [
        {
            "label": legend.classes[ring.channel] if ring.channel else "_background_",
            "points": simplify(ring.points, tolerance).tolist(),
            "group_id": None,
            "shape_type": "polygon",
            "flags": {},
        }
        for ring in trace_rings(classes)
    ]
    # Background that lies beneath everything else needs no polygon.
    while shapes and shapes[0]["label"] == "_background_":
        shapes.pop(0)
    height, width = classes.shape
    return {
        "version": "5.5.0",
        "flags": {},
        "shapes": shapes,
        "imagePath": image,
        "imageData": None,
        "imageHeight": height,
        "imageWidth": width,
    }


def write_labelme(
    path: Path, classes: ClassMap, legend: Legend, image: str, tolerance: float
) -> None:
    """Write the polygons of an image for LabelMe."""
    save_json(path, labelme(classes, legend, image, tolerance))


def count_classes(classes: ClassMap, channels: int) -> npt.NDArray[np.int64]:
    """Return how many pixels each channel has; of a large map some rows at a time."""
    counts = np.zeros(channels, np.int64)
    step = max(1, _PIXELS_AT_ONCE // classes.shape[1])
    for top in range(0, len(classes), step):
        counts += np.bincount(classes[top : top + step].ravel(), minlength=channels)
    return counts


def share_of_classes(counts: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, float]:
    """Return which share of the pixels each class covers, largest first."""
    total = max(1, int(counts.sum()))
    order = np.argsort(-counts, kind="stable")
    return {names[i]: int(counts[i]) / total for i in order if counts[i]}


class ShareWriter:
    """Writes which share of each image each class covers, a row at a time."""

    def __init__(self, path: Path, legend: Legend) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w", newline="", encoding="utf-8")
        self.rows = csv.writer(self.file)
        self._write(["image", *map(csv_text, legend.classes)])

    def add(self, name: str, counts: npt.NDArray[np.int64]) -> None:
        """Add an image by the pixels of each channel."""
        self._write([csv_text(name), *(f"{count / counts.sum():.6f}" for count in counts)])

    def _write(self, row: Iterable[object]) -> None:
        self.rows.writerow(row)
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()
