"""One image of an export: copied, looked at, its mask painted and written, in one pass.

A camera that was held sideways stores the image as its sensor saw it and says how to turn it (EXIF
orientation). Annotation tools show the turned image, but not all of them, and some code that
handles exports reads the stored one. nacre turns images when it reads them, so masks are upright,
too: one that was drawn on the stored pixels is turned.
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
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import BACKGROUND, NO_OUTLINE, Image, Order
from nacre.importers.shapes import Outline, Shape
from nacre.utils.progress import worker_pool
from nacre.utils.system import usable_cores

LabelMap = npt.NDArray[Any]
Frame = Literal["only", "upright", "stored", "doubtful"]
Unlabeled = Literal["listed", "background", "skip"]
Size = tuple[int, int]

MISSING = "the image file is missing"
NOT_LABELED = "nothing says what is in it"
ONLY_BOXES = (
    "it has boxes, no outlines, and boxes of COCO and YOLO are never filled: label areas, or make "
    "masks of the boxes first, with a tool such as SAM"
)

_MOST_PAINTED = 1 << 33
"""Pixels to fill for one image: 64 shapes as large as the largest image, thousands in others."""

_MOST_ALONE = 32
_CHUNK = 4
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)


@dataclass(frozen=True)
class Job:
    """The masks and images to write: of each image its name, in ``images/`` and ``masks/``."""

    images: list[Image]
    names: list[str]
    labels: Labels
    order: Order
    folder: Path
    unlabeled: Unlabeled = "listed"


@dataclass
class Outcome:
    """The outcome for one image.

    Attributes:
        name: What the export calls it.
        split: The split that it belongs to.
        file: The file in ``images/`` that was written.
        pixels: Pixels by label.
        num_shapes: How many shapes it has; without one, and without a mask, it is all background.
        has_only_boxes: All of them are boxes, and there is one.
        has_mask: Its labels are a mask file.
        frame: Which pixels it was annotated on: the only ones if no camera turned it; else the
            upright or the stored ones, or, where that cannot be told, it is doubtful.
        uncovered: How many shapes cover no pixel.
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
    uncovered: int = 0
    problem: Unusable | None = None


_job: Job | None = None


def import_images(
    job: Job, progress: Callable[[int, int], None], workers: int | None = None
) -> list[Outcome]:
    """Write images and masks; those whose orientation cannot be seen follow the others.

    Where ``workers`` does not say how many processes, it is all cores, and one for few images.
    """
    count = workers or usable_cores()
    outcomes = _import_all(job, range(len(job.images)), "doubtful", progress, count)
    frames = [one.frame for one in outcomes if one.problem is None]
    if "stored" in frames and "upright" not in frames:
        # Whoever drew some on the stored pixels for sure drew all of them so.
        doubtful = [i for i, one in enumerate(outcomes) if one.frame == "doubtful"]
        again = _import_all(job, doubtful, "stored", lambda done, total: None, count)
        for i, outcome in zip(doubtful, again, strict=True):
            outcomes[i] = outcome
    return outcomes


def _import_all(
    job: Job,
    indices: Sequence[int],
    doubtful: Frame,
    progress: Callable[[int, int], None],
    workers: int,
) -> list[Outcome]:
    global _job
    _job = job  # for the processes, which are forked
    progress(0, len(indices))
    outcomes = []
    count = min(workers, len(indices))
    is_alone = count < 2 or len(indices) < _MOST_ALONE
    several = worker_pool(count, "imports images")
    with nullcontext() if is_alone else several as pool:
        run = map if pool is None else partial(pool.map, chunksize=_CHUNK)
        for outcome in run(partial(_import_image, doubtful), indices):
            outcomes.append(outcome)
            progress(len(outcomes), len(indices))
    return outcomes


def _import_image(doubtful: Frame, index: int) -> Outcome:
    """Write image and mask, or say why not; then nothing of it is left behind.

    The frame is taken where it cannot be seen on which pixels the image was annotated.
    """
    assert _job is not None
    job, image = _job, _job.images[index]
    outcome = Outcome(image.name, image.split, num_shapes=len(image.shapes))
    path: Path | None = None
    try:
        _check(image, job.unlabeled)
        path = _copy_image(image, job.folder / "images" / job.names[index])
        mask = _make_mask(job, image, path, outcome, doubtful)
        outcome.pixels = count_labels(mask)
        if set(outcome.pixels) == {job.labels.ignored}:
            raise Unusable("not one pixel of it counts")
        save_mask(job.folder / "masks" / f"{job.names[index]}.png", mask, job.labels)
        outcome.file = path.relative_to(job.folder / "images").as_posix()
    except Unusable as problem:
        outcome.problem = problem
        if path is not None:
            path.unlink(missing_ok=True)
    return outcome


def _check(image: Image, unlabeled: Unlabeled) -> None:
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
    """Copy the image file as it is, so that nothing of it is lost."""
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
    """Read an image as nacre will; return its upright size and its orientation.

    Raises:
        Unusable: It is damaged, too large or not an image.
    """
    try:
        upright, _ = examine_image(path, decode=True)
        with open_image(path.read_bytes(), FORMATS) as image:
            is_tiff = image.format == "TIFF"  # which Pillow turns by itself
            turn = image.getexif().get(_ORIENTATION, 1) if is_tiff else orientation(image)
    except (NacreError, ValueError) as error:
        reason = str(error).rpartition(str(path))[2].strip()
        raise Unusable("the image cannot be used", brief(reason)) from error
    return upright, turn if turn in TURNS else 1


def _choose_frame(upright: Size, turn: int, annotated: Size | None, is_relative: bool) -> Frame:
    """Return in which frame an image was annotated, as its size tells.

    Raises:
        Unusable: The annotation fits in neither.
    """

    def fits(size: Size) -> bool:
        if annotated is None or size == annotated:
            return True
        # Of shares of the size only the proportions must fit, rounding to whole pixels aside.
        apart = abs(size[0] * annotated[1] - size[1] * annotated[0])
        return is_relative and apart <= max(*size, *annotated)

    fits_stored = fits(_stored(upright, turn))
    if fits(upright):
        return "only" if turn == 1 else "doubtful" if fits_stored else "upright"
    if fits_stored:
        return "stored"
    assert annotated is not None
    raise Unusable(
        "the image has another size than its annotation",
        f"{upright[0]} x {upright[1]}, annotated at {annotated[0]} x {annotated[1]}",
    )


def _stored(upright: Size, turn: int) -> Size:
    return (upright[1], upright[0]) if turn in _SIDEWAYS else upright


def _make_mask(job: Job, image: Image, path: Path, outcome: Outcome, doubtful: Frame) -> LabelMap:
    upright, turn = look_at(path)
    mask = image.mask.read(job.labels.of, job.labels.dtype) if image.mask else None
    size = image.size if mask is None else (mask.shape[1], mask.shape[0])
    is_relative = mask is None and (image.is_relative or not image.shapes)
    frame = _choose_frame(upright, turn, size, is_relative)
    outcome.frame = doubtful if frame == "doubtful" else frame
    outcome.has_mask = mask is not None
    is_stored = outcome.frame == "stored"
    if mask is None:
        size = _stored(upright, turn) if is_stored else upright
        mask, outcome.uncovered = _paint(image.shapes, size, job.labels, job.order)
        areas = [shape.area for shape in image.shapes]
        boxes = (isinstance(area, Outline) and area.is_box(*size) for area in areas)
        outcome.has_only_boxes = bool(areas) and all(boxes)
    if not is_stored or turn == 1:
        return mask
    return np.asarray(PillowImage.fromarray(mask).transpose(TURNS[turn]))


def _paint(
    shapes: Sequence[Shape], size: Size, labels: Labels, order: Order
) -> tuple[LabelMap, int]:
    """Paint shapes over each other, the later or, in order of area, the smaller ones on top.

    Every pixel remembers how large a shape has painted it, so that only one is filled at a time.

    Returns:
        The labels, height x width, and how many shapes cover no pixel.
    """
    width, height = size
    canvas = np.full((height, width), labels.of[BACKGROUND], labels.dtype)
    areas = np.full((height, width), np.iinfo(np.int32).max, np.int32) if order == "area" else None
    uncovered, budget = 0, _MOST_PAINTED
    for shape in shapes:
        patch = shape.patch(width, height)
        budget -= patch.bits.size
        if budget < 0:
            raise Unusable("its shapes are too large and too many to be real")
        bits, area = patch.bits, int(np.count_nonzero(patch.bits))
        if area == 0:
            uncovered += 1
            continue
        rows, columns = bits.shape
        box = (slice(patch.top, patch.top + rows), slice(patch.left, patch.left + columns))
        if areas is not None:
            bits = bits & (areas[box] >= area)
            areas[box][bits] = area
        canvas[box][bits] = labels.of[shape.name]
    return canvas, uncovered


def save_mask(path: Path, mask: LabelMap, labels: Labels) -> None:
    """Write a palette PNG, or a gray one of 16 bits where labels need them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = PillowImage.fromarray(np.ascontiguousarray(mask))
    if labels.dtype == np.uint8:
        palette = np.zeros((256, 3), np.uint8)
        palette[: len(labels.colors)] = labels.colors
        palette[labels.ignored] = 255
        image.putpalette(palette.tobytes())
    image.save(path, format="PNG")
