"""One image of an export: copied, looked at, its mask painted and written, in one pass.

A camera that was held sideways stores the image as its sensor saw it and says how to turn it (EXIF
orientation). Annotation tools show the turned image, but not all of them, and some code that
handles exports reads the stored one. nacre turns images when it reads them, so masks are upright,
too: one that was drawn on the stored pixels is turned.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from nacre.data.image_io import FORMATS, count_labels, load, open_image, orientation
from nacre.errors import NacreError
from nacre.importers.documents import load_json
from nacre.importers.files import Export
from nacre.importers.folder import written_suffix
from nacre.importers.labels import Labels
from nacre.importers.masks import BAD_IMAGE, UnknownValues, read_mask
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Image, Order
from nacre.importers.shapes import Shape

LabelMap = npt.NDArray[Any]
Frame = Literal["upright", "stored"]
Unlabeled = Literal["listed", "background", "skip"]

MISSING = "the image file is missing"
NOT_LABELED = "nothing says what is in it"
ONLY_BOXES = (
    "it has boxes, no outlines, and boxes of COCO and YOLO are never filled: label areas, or make "
    "masks of the boxes first, with a tool such as SAM"
)

_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
_SMALL = 64
_TURNS: dict[int, Callable[[LabelMap], LabelMap]] = {
    1: lambda mask: mask,
    2: np.fliplr,
    3: lambda mask: np.rot90(mask, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda mask: np.rot90(mask, -1),
    7: lambda mask: np.transpose(np.rot90(mask, 2)),
    8: np.rot90,
}


@dataclass(frozen=True)
class Job:
    """What is to be written.

    Attributes:
        export: Where images and masks are read from.
        images: What there is.
        names: Name by image.
        labels: What the values to write mean.
        order: Which of two shapes lies on top.
        folder: Where ``images/`` and ``masks/`` go.
        unlabeled: Which images without a label are all background.
        are_stored: Where it cannot be seen, the stored pixels were annotated.
    """

    export: Export
    images: list[Image]
    names: list[str]
    labels: Labels
    order: Order
    folder: Path
    unlabeled: Unlabeled = "listed"
    are_stored: bool = False


@dataclass
class Outcome:
    """What became of one image.

    Attributes:
        index: Its place.
        file: The file in ``images/`` that was written.
        pixels: Pixels by label.
        is_empty: It has no shape and no mask: all background.
        frame: Which pixels it was annotated on.
        is_sure: Whether that can be told.
        orientation: How the camera says that it is to be turned; 1 is not at all.
        uncovered: How many shapes cover no pixel.
        problem: Why nothing was written.
        unknown: Values of its mask without a class, with their pixels.
    """

    index: int
    file: str = ""
    pixels: dict[int, int] = field(default_factory=dict)
    is_empty: bool = False
    frame: Frame = "upright"
    is_sure: bool = True
    orientation: int = 1
    uncovered: int = 0
    problem: Unusable | None = None
    unknown: dict[int, int] | None = None

    @property
    def shows_upright(self) -> bool:
        """Whether it is sure that a turned image was annotated upright."""
        return self.frame == "upright" and self.is_sure and self.orientation > 1


def import_image(job: Job, index: int) -> Outcome:
    """Write image and mask, or say why not; then nothing of it is left behind."""
    outcome, image = Outcome(index), job.images[index]
    path: Path | None = None
    try:
        _check(image, job.unlabeled)
        path = _copy_image(job, index)
        look = look_at(path)
        outcome.orientation = look.orientation
        mask = _make_mask(job, image, look, outcome)
        outcome.pixels = count_labels(mask)
        if set(outcome.pixels) == {job.labels.ignored}:
            raise Unusable("not one pixel of it counts")
        target = job.folder / "masks" / f"{job.names[index]}.png"
        _writing(target, lambda: save_mask(target, mask, job.labels))
        outcome.file = path.relative_to(job.folder / "images").as_posix()
        return outcome
    except Unusable as problem:
        outcome.problem = problem
    except UnknownValues as problem:
        outcome.unknown = problem.values
    if path is not None:
        path.unlink(missing_ok=True)
    return outcome


def _check(image: Image, unlabeled: Unlabeled) -> None:
    if image.problem is not None:
        raise image.problem
    is_background = unlabeled == "background" or (image.is_listed and unlabeled == "listed")
    if not image.is_labeled and not is_background:
        raise Unusable(NOT_LABELED)
    if image.file is None and image.embedded is None:
        raise Unusable(MISSING)
    if image.num_skipped and not image.shapes:
        raise Unusable(ONLY_BOXES if image.has_only_boxes else "it has only shapes without an area")


def _copy_image(job: Job, index: int) -> Path:
    """Copy the image file as it is, so that nothing of it is lost."""
    image = job.images[index]
    stem = job.folder / "images" / job.names[index]
    if image.file is None:
        data = _read_embedded(job.export, image)
        path = stem.with_name(stem.name + (".png" if data.startswith(b"\x89PNG") else ".jpg"))
        _writing(path, lambda: path.write_bytes(data))
        return path
    path = stem.with_name(stem.name + written_suffix(image.file.path))
    try:
        source = job.export.open(image.file)
    except NacreError as error:
        raise Unusable("the image cannot be read", str(error)) from error
    with source:
        try:
            _writing(path, lambda: _copy(source, path))
        except Unusable:
            path.unlink(missing_ok=True)
            raise
    return path


def _copy(source: BinaryIO, path: Path) -> None:
    with path.open("wb") as target:
        while True:
            try:
                chunk = source.read(1 << 20)
            except (OSError, NacreError) as error:
                raise Unusable("the image cannot be read", brief(str(error))) from error
            if not chunk:
                return
            target.write(chunk)


def _read_embedded(export: Export, image: Image) -> bytes:
    """Return the image that LabelMe keeps in its annotation."""
    assert image.embedded is not None
    try:
        content = load_json(export.read(image.embedded), image.embedded.path)
        return base64.b64decode(content["imageData"])
    except (NacreError, binascii.Error, ValueError, TypeError, KeyError) as error:
        raise Unusable("the image inside the annotation is damaged", brief(str(error))) from error


def _writing(path: Path, write: Callable[[], object]) -> None:
    """Write a file, telling a full disk from a damaged export."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise NacreError(f"could not write {path.name}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Look:
    """What an image file says of itself: the size of the stored pixels, how to turn them."""

    stored: tuple[int, int]
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height of the turned image."""
        wide, high = self.stored
        return (high, wide) if self.orientation in _SIDEWAYS else (wide, high)


def look_at(path: Path) -> Look:
    """Read an image as nacre will, to see that it is whole; return its size and orientation.

    Raises:
        Unusable: It is damaged, too large or not an image.
    """
    try:
        decoded = open_image(path)
        # A JPEG is decoded at an eighth of its size, which reads all of the file as well.
        decoded.draft("RGB", (_SMALL, _SMALL))
        load(decoded)
        with PillowImage.open(path, formats=FORMATS) as image:
            size, turn = image.size, orientation(image)
            if image.format == "PNG":
                # Pillow takes the pixels from a file whose chunks are wrong; the index does not.
                image.verify()
            if image.format != "TIFF":
                return Look(size, turn)
            # Pillow turns TIFF files by itself and tells their upright size.
            turn = int(image.getexif().get(_ORIENTATION, 1) or 1)
    except (NacreError, *BAD_IMAGE, TypeError) as error:
        reason = str(error).rpartition(str(path))[2].strip() or type(error).__name__
        raise Unusable("the image cannot be used", brief(reason)) from error
    turn = turn if 1 <= turn <= 8 else 1
    return Look((size[1], size[0]) if turn in _SIDEWAYS else size, turn)


def choose_frame(
    look: Look, annotated: tuple[int, int] | None, is_relative: bool
) -> tuple[Frame, bool]:
    """Return in which frame an image was annotated, and whether that is sure.

    Args:
        look: The image.
        annotated: Width and height that the annotation was made at, if known.
        is_relative: Coordinates are shares of the size, so that only its proportions count.

    Raises:
        Unusable: The annotation fits in neither.
    """
    if annotated is None:
        return "upright", look.orientation == 1
    fits_upright, fits_stored = (
        size == annotated or (is_relative and _are_alike(size, annotated))
        for size in (look.upright, look.stored)
    )
    if fits_upright:
        return "upright", look.orientation == 1 or not fits_stored
    if fits_stored:
        return "stored", True
    raise Unusable(
        "the image has another size than its annotation",
        f"{look.upright[0]} x {look.upright[1]}, annotated at {annotated[0]} x {annotated[1]}",
    )


def _are_alike(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two sizes have the same proportions, rounding to whole pixels aside."""
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(*size, *other)


def _make_mask(job: Job, image: Image, look: Look, outcome: Outcome) -> LabelMap:
    classes = None
    size, is_relative = image.size, all(one.area.is_relative for one in image.shapes)
    if image.mask is not None:
        try:
            classes = read_mask(job.export, image.mask)
        except NacreError as error:
            raise Unusable("the mask cannot be read", str(error)) from error
        size, is_relative = (classes.shape[1], classes.shape[0]), False
    outcome.frame, outcome.is_sure = choose_frame(look, size, is_relative)
    if job.are_stored and not outcome.is_sure:
        outcome.frame = "stored"
    if classes is None:
        outcome.is_empty = not image.shapes
        size = look.stored if outcome.frame == "stored" else look.upright
        mask, outcome.uncovered = paint_shapes(image.shapes, size, job.labels, job.order)
    else:
        mask = job.labels.by_class.astype(job.labels.dtype).take(classes)
    return _TURNS[look.orientation](mask) if outcome.frame == "stored" else mask


def paint_shapes(
    shapes: Sequence[Shape], size: tuple[int, int], labels: Labels, order: Order = "list"
) -> tuple[LabelMap, int]:
    """Paint shapes over each other: higher layers on top, then the later or the smaller ones.

    Every pixel remembers how high it was painted, so that only one shape is filled at a time.

    Args:
        shapes: What to paint.
        size: Width and height of the image.
        labels: Which value to paint for a class.
        order: Which of two shapes of a layer lies on top.

    Returns:
        The labels, height x width, and how many shapes cover no pixel.
    """
    width, height = size
    canvas = np.full((height, width), labels.by_class[0], labels.dtype)
    levels: LabelMap | None = None
    is_layered = any(shape.layer for shape in shapes)
    if order == "area" or is_layered:
        kind = np.int64 if is_layered else np.int32
        levels = np.full((height, width), np.iinfo(kind).min, kind)
    uncovered = 0
    for shape in shapes:
        patch = shape.patch(width, height)
        bits, area = patch.bits, int(np.count_nonzero(patch.bits))
        if area == 0:
            uncovered += 1
            continue
        rows, columns = bits.shape
        box = (slice(patch.top, patch.top + rows), slice(patch.left, patch.left + columns))
        if levels is not None:
            level = (shape.layer << 32) - (area if order == "area" else 0)
            bits = bits & (levels[box] <= level)
            levels[box][bits] = level
        canvas[box][bits] = labels.by_class[shape.class_id]
    return canvas, uncovered


def save_mask(path: Path, mask: LabelMap, labels: Labels) -> None:
    """Write a palette PNG, or a gray one of 16 bits where labels need them."""
    image = PillowImage.fromarray(np.ascontiguousarray(mask))
    if not labels.is_wide:
        palette = np.zeros((256, 3), np.uint8)
        palette[: len(labels.colors)] = labels.colors
        palette[labels.ignored] = 255
        image.putpalette(palette.tobytes())
    image.save(path, format="PNG")
