"""The import of one image: copy it, check it, paint its mask and write that.

A camera that was held sideways stores the pixels of its sensor and their rotation (EXIF
orientation). Most annotation tools show the upright image, but some tools and scripts use the
stored pixels. nacre rotates images when it reads them, so masks are upright, too: a mask that was
drawn on the stored pixels is rotated.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from nacre.data.image_io import FORMATS, TURNS, count_labels, examine_image, orientation
from nacre.errors import NacreError
from nacre.importers.folder import Labels
from nacre.importers.masks import open_image
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.reading import BACKGROUND, NO_OUTLINE, Image, Order
from nacre.importers.shapes import Area, Outline
from nacre.utils.progress import Progress, worker_pool
from nacre.utils.system import usable_cores

LabelMap = npt.NDArray[Any]
Frame = Literal["only", "upright", "stored", "unknown"]
Unlabeled = Literal["listed", "background", "skip"]
Size = tuple[int, int]

MISSING = "the image file is missing"
NOT_LABELED = "it has no labels"
ONLY_BOXES = (
    "it has boxes but no outlines, and boxes of COCO and YOLO are never filled; label areas, or "
    "make masks of the boxes first, with a tool such as SAM"
)

_MAX_PAINTED_PIXELS = 1 << 33
"""Pixels to fill in one image: 64 shapes of the largest image, thousands of usual ones."""

_MIN_PARALLEL_IMAGES = 32
_CHUNK = 4
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)


@dataclass(frozen=True)
class Job:
    """The images to import, with their names below ``images/`` and ``masks/``."""

    images: list[Image]
    names: list[str]
    labels: Labels
    order: Order
    folder: Path
    unlabeled: Unlabeled = "listed"


@dataclass
class Outcome:
    """The result for one image.

    Attributes:
        name: Its name in the export.
        split: Its split.
        file: The written file below ``images/``.
        pixels: Number of pixels by label.
        num_shapes: Number of its shapes. Without shapes and mask file, it is all background.
        has_only_boxes: True if it has shapes and all of them are boxes.
        has_mask: True if its labels are a mask file.
        frame: The pixels that were annotated: the only ones if the image is not rotated, else the
            upright or the stored ones, or unknown.
        num_uncovered: Number of shapes that cover no pixel.
        problem: Why nothing was written.
    """

    name: str
    split: str | None
    file: str = ""
    pixels: dict[int, int] = field(default_factory=dict)
    num_shapes: int = 0
    has_only_boxes: bool = False
    has_mask: bool = False
    frame: Frame = "only"
    num_uncovered: int = 0
    problem: Unusable | None = None


_job: Job | None = None


def import_images(job: Job, progress: Progress, workers: int | None = None) -> list[Outcome]:
    """Write images and masks.

    Args:
        job: The images.
        progress: Called after each image.
        workers: Number of processes; by default, all cores, or one for few images.
    """
    count = workers or usable_cores()
    outcomes = _import_all(job, range(len(job.images)), "unknown", progress, count)
    frames = [outcome.frame for outcome in outcomes if outcome.problem is None]
    if "stored" in frames and "upright" not in frames:
        # Images of unknown frame follow the others.
        unknown = [i for i, outcome in enumerate(outcomes) if outcome.frame == "unknown"]
        again = _import_all(job, unknown, "stored", lambda done, total: None, count)
        for i, outcome in zip(unknown, again, strict=True):
            outcomes[i] = outcome
    return outcomes


def _import_all(
    job: Job, indices: Sequence[int], unknown: Frame, progress: Progress, workers: int
) -> list[Outcome]:
    global _job
    _job = job  # for the forked processes
    progress(0, len(indices))
    outcomes = []
    count = min(workers, len(indices))
    is_alone = count < 2 or len(indices) < _MIN_PARALLEL_IMAGES
    with nullcontext() if is_alone else worker_pool(count, "imports images") as pool:
        run: Callable[..., Any] = map if pool is None else partial(pool.map, chunksize=_CHUNK)
        for outcome in run(partial(_import_image, unknown), indices):
            outcomes.append(outcome)
            progress(len(outcomes), len(indices))
    return outcomes


def _import_image(unknown: Frame, index: int) -> Outcome:
    """Write image and mask, or neither.

    Args:
        unknown: The frame to record if it cannot be determined.
        index: The number of the image.
    """
    assert _job is not None
    job, image = _job, _job.images[index]
    outcome = Outcome(image.name, image.split, num_shapes=len(image.shapes))
    path: Path | None = None
    try:
        _check(image, job.unlabeled)
        path = _copy_image(image, job.folder / "images" / job.names[index])
        mask = _make_mask(job, image, path, outcome, unknown)
        outcome.pixels = count_labels(mask)
        if set(outcome.pixels) == {job.labels.ignored}:
            raise Unusable("all of its pixels are ignored")
        save_mask(job.folder / "masks" / f"{job.names[index]}.png", mask, job.labels)
        outcome.file = path.relative_to(job.folder / "images").as_posix()
    except Unusable as problem:
        outcome.problem = problem
        if path is not None:
            path.unlink(missing_ok=True)
    return outcome


def _check(image: Image, unlabeled: Unlabeled) -> None:
    """Raise `Unusable` for an image that cannot be imported, whatever its pixels are."""
    if image.problem is not None:
        raise image.problem
    is_background = unlabeled == "background" or (image.is_listed and unlabeled == "listed")
    if not image.is_labeled and not is_background:
        raise Unusable(NOT_LABELED)
    if image.file is None:
        raise Unusable(MISSING)
    if image.skipped and not image.shapes:
        is_boxes = image.skipped == {NO_OUTLINE}
        raise Unusable(ONLY_BOXES if is_boxes else "it has only shapes without an area")


def _copy_image(image: Image, stem: Path) -> Path:
    """Copy the image file unchanged."""
    assert image.file is not None
    try:
        data = image.file.read()
    except NacreError as error:
        raise Unusable("the image cannot be read", str(error)) from error
    suffix = image.file.suffix
    path = stem.with_name(stem.name + (".jpg" if suffix == ".jfif" else suffix))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def look_at(path: Path) -> tuple[Size, int]:
    """Decode an image as nacre does; return its upright size and its EXIF orientation."""
    try:
        upright, _ = examine_image(path, decode=True)
        with open_image(path.read_bytes(), FORMATS) as image:
            is_tiff = image.format == "TIFF"  # Pillow rotates these
            turn = image.getexif().get(_ORIENTATION, 1) if is_tiff else orientation(image)
    except (NacreError, ValueError) as error:
        reason = str(error).rpartition(str(path))[2].strip()
        raise Unusable("the image cannot be used", brief(reason)) from error
    return upright, turn if turn in TURNS else 1


def _choose_frame(upright: Size, turn: int, annotated: Size | None, is_relative: bool) -> Frame:
    """Return the frame that was annotated, as far as its size shows it."""

    def fits(size: Size) -> bool:
        if annotated is None or size == annotated:
            return True
        # For relative shapes only the aspect must fit, up to rounding to whole pixels.
        difference = abs(size[0] * annotated[1] - size[1] * annotated[0])
        return is_relative and difference <= max(*size, *annotated)

    fits_stored = fits(_stored(upright, turn))
    if fits(upright):
        return "only" if turn == 1 else "unknown" if fits_stored else "upright"
    if fits_stored:
        return "stored"
    assert annotated is not None
    raise Unusable(
        "the image and its annotation have different sizes",
        f"{upright[0]} x {upright[1]}, annotated at {annotated[0]} x {annotated[1]}",
    )


def _stored(upright: Size, turn: int) -> Size:
    return (upright[1], upright[0]) if turn in _SIDEWAYS else upright


def _make_mask(job: Job, image: Image, path: Path, outcome: Outcome, unknown: Frame) -> LabelMap:
    """Return the upright mask of an image, and complete its outcome."""
    upright, turn = look_at(path)
    mask = image.mask.read(job.labels.of, job.labels.dtype) if image.mask else None
    size = image.size if mask is None else (mask.shape[1], mask.shape[0])
    is_relative = mask is None and (image.is_relative or not image.shapes)
    frame = _choose_frame(upright, turn, size, is_relative)
    outcome.frame = unknown if frame == "unknown" else frame
    outcome.has_mask = mask is not None
    is_stored = outcome.frame == "stored"
    if mask is None:
        size = _stored(upright, turn) if is_stored else upright
        mask, outcome.num_uncovered = _paint(image.shapes, size, job.labels, job.order)
        boxes = [isinstance(area, Outline) and area.is_box(*size) for _, area in image.shapes]
        outcome.has_only_boxes = bool(boxes) and all(boxes)
    if not is_stored or turn == 1:
        return mask
    return np.asarray(PillowImage.fromarray(mask).transpose(TURNS[turn]))


def _paint(
    shapes: Sequence[tuple[str, Area]], size: Size, labels: Labels, order: Order
) -> tuple[LabelMap, int]:
    """Paint shapes over each other: later ones on top, or smaller ones if the order is by area.

    Only one shape is filled at a time: each pixel stores the area of the shape that painted it.

    Returns:
        The labels, height x width, and the number of shapes that cover no pixel.
    """
    width, height = size
    canvas = np.full((height, width), labels.of[BACKGROUND], labels.dtype)
    areas = np.full((height, width), np.iinfo(np.int32).max, np.int32) if order == "area" else None
    num_uncovered, budget = 0, _MAX_PAINTED_PIXELS
    for name, area in shapes:
        try:
            patch = area(width, height)
        except ValueError as error:
            raise Unusable(DAMAGED, str(error)) from error
        budget -= patch.bits.size
        if budget < 0:
            raise Unusable("its shapes are too large and too many to be real")
        bits, num_pixels = patch.bits, int(np.count_nonzero(patch.bits))
        if num_pixels == 0:
            num_uncovered += 1
            continue
        box = patch.slices()
        if areas is not None:
            bits = bits & (areas[box] >= num_pixels)
            areas[box][bits] = num_pixels
        canvas[box][bits] = labels.of[name]
    return canvas, num_uncovered


def save_mask(path: Path, mask: LabelMap, labels: Labels) -> None:
    """Write a palette PNG, or a 16-bit gray one for many classes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = PillowImage.fromarray(np.ascontiguousarray(mask))
    if labels.dtype == np.uint8:
        palette = np.zeros((256, 3), np.uint8)
        palette[: len(labels.colors)] = labels.colors
        palette[labels.ignored] = 255
        image.putpalette(palette.tobytes())
    image.save(path, format="PNG")
