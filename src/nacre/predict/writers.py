"""Writers of predictions: masks, overlays, LabelMe polygons, COCO JSON, a CSV of shares.

Masks and overlays are one file per image and lie where the image lay. COCO JSON and the CSV are
one file for all: the CSV grows row by row, the JSON is written at the end, also of an interruption.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.predict.class_map import (
    ClassMap,
    Part,
    column_strips,
    count_classes,
    row_strips,
    write_png,
)
from nacre.predict.polygons import simplify, trace_rings
from nacre.utils.io import csv_text, save, save_json, save_text

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, int, int]

_AT_ONCE = 1 << 20
"""How many run lengths are written as text at once."""

_STRIP = 256
"""Rows of an overlay that are mixed at once."""


@dataclass(frozen=True)
class Legend:
    """Class name and RGB by channel; channel 0 is the background."""

    classes: tuple[str, ...]
    colors: tuple[Color, ...]


def palette_image(classes: Part, legend: Legend) -> Image.Image:
    """Return a class map as a palette image, or of 16 bits: its values are channels."""
    image = Image.fromarray(classes)
    if classes.dtype == np.uint16:
        return image  # a palette has 256 colors
    image.putpalette([value for color in legend.colors for value in color])
    return image


def write_mask(path: Path, classes: ClassMap, legend: Legend) -> None:
    """Write a class map as a palette PNG, or of 16 bits: its values are channels."""
    palette = bytes(value for color in legend.colors for value in color)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            write_png(file, classes, palette)

    save(path, write)


def overlay(pixels: Pixels, classes: Part, legend: Legend, strength: float = 0.6) -> Image.Image:
    """Return an image with its classes laid over it in color, all but the background."""
    colors = np.array(legend.colors, np.float32) * strength
    mixed = np.empty_like(pixels)
    for top in range(0, len(pixels), _STRIP):
        rows = slice(top, top + _STRIP)
        part, found = pixels[rows], classes[rows]
        laid = part * np.float32(1 - strength) + colors[found]
        mixed[rows] = np.where(found[..., None] > 0, laid.round().astype(np.uint8), part)
    return Image.fromarray(mixed)


def write_overlay(path: Path, pixels: Pixels, classes: Part, legend: Legend) -> None:
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


def encode_runs(classes: ClassMap, channel: int) -> npt.NDArray[np.int64]:
    """Return the lengths of runs of a channel down the columns, others first, as COCO has them."""
    height, width = classes.shape
    changes: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
    last = False
    for columns, part in column_strips(classes):
        flat = np.concatenate([[last], (part == channel).ravel(order="F")])
        changes.append(np.flatnonzero(flat[1:] != flat[:-1]) + columns.start * height)
        last = bool(flat[-1])
    changes.append(np.array([height * width]))
    places = np.concatenate(changes)
    return places[1:] - places[:-1]


def compress_runs(runs: npt.ArrayLike) -> str:
    """Return run lengths as COCO's text: groups of 5 bits, differences from the fourth on."""
    lengths = np.asarray(runs, np.int64)
    values = lengths.copy()
    values[3:] -= lengths[1:-2]
    parts = range(0, len(values), _AT_ONCE)
    return "".join(_compress(values[start : start + _AT_ONCE]) for start in parts)


def _compress(values: npt.NDArray[np.int64]) -> str:
    """Return numbers as text, the low groups first; a sixth bit says that another one follows."""
    columns, left = [], values
    ended = np.zeros(len(values), bool)
    while not ended.all():
        bits, left = left & 0x1F, left >> 5
        last = left == np.where(bits & 0x10, -1, 0)
        columns.append(np.where(ended, 0, 48 + bits + np.where(last, 0, 0x20)).astype(np.uint8))
        ended |= last
    text = np.stack(columns, 1) if columns else np.zeros((0, 1), np.uint8)
    return text[text > 0].tobytes().decode("ascii")


def _box(classes: ClassMap, channel: int) -> list[int]:
    """Return left, top, width and height of the pixels of a channel."""
    rows: list[int] = []
    columns = np.zeros(classes.shape[1], bool)
    for place, part in row_strips(classes):
        mask = part == channel
        rows += (np.flatnonzero(mask.any(1)) + place.start).tolist()
        columns |= mask.any(0)
    left, right = np.flatnonzero(columns)[[0, -1]].tolist()
    return [left, rows[0], right + 1 - left, rows[-1] + 1 - rows[0]]


@dataclass
class CocoWriter:
    """Collects the classes found in images, one region per image and class.

    Attributes:
        path: The JSON file.
        legend: What the channels mean.
    """

    path: Path
    legend: Legend
    images: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, classes: ClassMap) -> None:
        """Add an image."""
        height, width = classes.shape
        number = len(self.images) + 1
        self.images.append({"id": number, "file_name": name, "width": width, "height": height})
        counts = count_classes(classes, len(self.legend.classes))
        for channel in np.flatnonzero(counts).tolist():
            if channel:
                found = {"id": len(self.annotations) + 1, "image_id": number} | {
                    "category_id": channel,
                    "iscrowd": 1,
                    "area": int(counts[channel]),
                    "bbox": _box(classes, channel),
                    "segmentation": {
                        "size": [height, width],
                        "counts": compress_runs(encode_runs(classes, channel)),
                    },
                }
                self.annotations.append(found)

    def close(self) -> None:
        """Write the file."""
        named = enumerate(self.legend.classes[1:], start=1)
        categories = [{"id": i, "name": name, "supercategory": ""} for i, name in named]
        content = {
            "images": self.images,
            "annotations": self.annotations,
            "categories": categories,
        }
        save_text(self.path, json.dumps(content) + "\n")


class ShareWriter:
    """Writes which share of each image each class covers, a row at a time."""

    def __init__(self, path: Path, legend: Legend) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.channels = len(legend.classes)
        self.file = path.open("w", newline="", encoding="utf-8")
        self.rows = csv.writer(self.file)
        self._write(["image", *map(csv_text, legend.classes)])

    def add(self, name: str, classes: ClassMap) -> None:
        """Add an image."""
        counts = count_classes(classes, self.channels)
        self._write([csv_text(name), *(f"{count / counts.sum():.6f}" for count in counts)])

    def _write(self, row: Iterable[object]) -> None:
        self.rows.writerow(row)
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def write_labelme(
    path: Path, classes: ClassMap, legend: Legend, image: str, tolerance: float
) -> None:
    """Write the polygons of an image for LabelMe."""
    save_json(path, labelme(classes, legend, image, tolerance))
