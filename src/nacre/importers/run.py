"""An import from beginning to end, and its report.

An import recognizes the format, reads the annotations, assigns labels, and writes images, masks,
``classes.yaml``, the split lists, the report and a contact sheet.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from nacre.data.image_io import Pixels, load, open_image
from nacre.errors import NacreError, counted
from nacre.importers.files import Export, File, agrees
from nacre.importers.folder import (
    Labels,
    make_labels,
    new_folder,
    plan_lists,
    plan_names,
    write_classes,
)
from nacre.importers.formats import recognize
from nacre.importers.paint import MISSING, NOT_LABELED, Job, Outcome, Unlabeled, import_images
from nacre.importers.problems import Unusable, brief, some
from nacre.importers.reading import Color, Image, Reading
from nacre.utils.progress import show_progress

SHEET = "contact-sheet.jpg"
"""Some images under their masks, to check that they belong together."""

_USE_IMAGES = "give their folder with --images FOLDER"
_UNCOVERED = "covers the center of no pixel: too small, or outside the image"
_HINTS = {
    MISSING: f"; {_USE_IMAGES}",
    NOT_LABELED: "; --unlabeled background takes them as all background",
}

_MAX_TILES = 24
_MAX_LEGEND = 60
_MAX_TEXT_LENGTH = 40
_COLUMNS = 4
_TILE = 280
_LINE = 22
_GAP = 12
_PAPER, _INK = (250, 250, 248), (60, 60, 68)
_OPACITY = 0.55


@dataclass(frozen=True)
class ImportOptions:
    """The user's choices.

    Attributes:
        images: Folder or archive of the images, if they are not in the export.
        format: Name of the format; by default it is recognized.
        classes: The classes to import, in this order; by default all.
        ignore: Classes whose pixels do not count; ``background`` may be one.
        rename: New class name by name; two classes with the same new name are joined.
        fill_boxes: Accept outlines that are all boxes as areas; by default they are refused.
        colors: Class by color of mask files, if no file of the export defines it.
        unlabeled: Which images without labels are background.
        workers: Number of processes; by default all cores.
    """

    images: Path | None = None
    format: str | None = None
    classes: Sequence[str] = ()
    ignore: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    fill_boxes: bool = False
    colors: Mapping[Color, str] = field(default_factory=dict)
    unlabeled: Unlabeled = "listed"
    workers: int | None = None


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        export: The path of the export.
        target: The written folder.
        format: The title of the format.
        reading: The content of the export.
        labels: The labels in the masks.
        outcomes: The result for each image.
        splits: Number of images in each split list.
    """

    export: Path
    target: Path
    format: str
    reading: Reading
    labels: Labels
    outcomes: Sequence[Outcome]
    splits: dict[str, int]

    @cached_property
    def written(self) -> list[Outcome]:
        """The images that were written."""
        return [outcome for outcome in self.outcomes if outcome.problem is None]

    @cached_property
    def pixels(self) -> Counter[int]:
        """Number of pixels by label."""
        total: Counter[int] = Counter()
        for outcome in self.written:
            total.update(outcome.pixels)
        return total

    @cached_property
    def images(self) -> Counter[int]:
        """Number of images by label."""
        return Counter(label for outcome in self.written for label in outcome.pixels)

    @property
    def num_shapes(self) -> int:
        """Number of shapes in the written images."""
        return sum(outcome.num_shapes for outcome in self.written)

    @property
    def skipped_shapes(self) -> dict[str, int]:
        """Number of skipped shapes by reason."""
        uncovered = sum(outcome.num_uncovered for outcome in self.written)
        return dict(+Counter(self.reading.skipped_shapes | {_UNCOVERED: uncovered}))

    @property
    def empty(self) -> list[str]:
        """Images without a shape or mask: all background."""
        return [
            outcome.name
            for outcome in self.written
            if not outcome.num_shapes and not outcome.has_mask
        ]

    @property
    def rotated(self) -> list[str]:
        """Images that were annotated on the stored pixels."""
        return [outcome.name for outcome in self.written if outcome.frame == "stored"]

    @property
    def doubtful(self) -> list[str]:
        """Rotated images that were annotated on the upright or on the stored pixels."""
        return [outcome.name for outcome in self.written if outcome.frame == "unknown"]

    @property
    def left_out(self) -> list[tuple[str, Unusable]]:
        """Images that were not imported, and why."""
        return [(outcome.name, outcome.problem) for outcome in self.outcomes if outcome.problem]

    def fraction(self, label: int) -> float:
        """Return the fraction of all pixels with a label."""
        return self.pixels[label] / max(1, self.pixels.total())

    def sentences(self) -> list[str]:
        """Return what the tables do not show."""
        shapes = [f"shapes: {self.num_shapes:,}"] if self.num_shapes else []
        for reason, count in self.skipped_shapes.items():
            shapes.append(f"skipped: {counted(count, 'shape')}: {reason}")
        return [*shapes, *self._image_sentences(), *self.reading.notes]

    def _image_sentences(self) -> Iterator[str]:
        if self.empty:
            count = counted(len(self.empty), "image")
            yield f"{count} without shapes: all background ({some(self.empty)})"
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name, problem in self.left_out:
            detail = f"{brief(name)}: {problem.detail}" if problem.detail else name
            by_reason[problem.reason].append(detail)
        for reason, details in by_reason.items():
            count, hint = counted(len(details), "image"), _HINTS.get(reason, "")
            yield f"left out: {count}: {reason} ({some(details, 3)}){hint}"
        if self.rotated:
            count = counted(len(self.rotated), "image")
            yield (
                f"orientation: {count} annotated before rotation; the masks are rotated, too "
                f"({some(self.rotated)})"
            )
        if self.doubtful:
            count = counted(len(self.doubtful), "image")
            yield (
                f"orientation: {count} rotated by EXIF data, and the size does not show whether "
                "that was before or after annotation; the masks are those of the upright images, "
                f"so look at them ({some(self.doubtful)})"
            )
        names = enumerate(self.labels.names, start=1)
        unused = [name for label, name in names if not self.images[label]]
        if unused:
            yield f"no pixel has the class {some(unused, 10)}; --classes chooses what to import"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "export": brief(self.export.name),
            "format": self.format,
            "images": len(self.written),
            "splits": self.splits,
            "classes": [
                {"label": label, "name": name, "images": self.images[label]}
                for label, name in enumerate(self.labels.names, start=1)
            ],
            "left_out": [
                {"image": brief(name), "reason": problem.reason, "detail": problem.detail}
                for name, problem in self.left_out
            ],
            "orientation_unknown": [brief(name) for name in self.doubtful],
            "notes": self.sentences(),
        }


def import_export(path: Path, target: Path, options: ImportOptions | None = None) -> ImportReport:
    """Write a data folder from the export of an annotation tool.

    Args:
        path: A folder, a zip archive or an annotation file.
        target: The new folder; it may exist if it is empty.
        options: The user's choices.

    Raises:
        NacreError: The export cannot be imported; nothing was written.
    """
    options = options or ImportOptions()
    target, images = target.expanduser(), options.images and options.images.expanduser()
    with closing(Export(path.expanduser(), images)) as export, new_folder(target) as folder:
        with show_progress("reading annotations") as progress:
            reading = Reading(export, options.colors, progress)
            title = recognize(reading, options.format)
        _check(reading, title)
        labels = make_labels(reading, options.classes, options.ignore, options.rename)
        names = plan_names(reading.images)
        job = Job(reading.images, names, labels, reading.order, folder, options.unlabeled)
        with show_progress("painting masks") as progress:
            outcomes = import_images(job, progress, options.workers)
        written = [outcome for outcome in outcomes if outcome.problem is None]
        if not written:
            raise _nothing_written(outcomes, title)
        if reading.order == "area" and not options.fill_boxes:
            _refuse_boxes(written)
        lists, notes = plan_lists((outcome.file, outcome.split) for outcome in written)
        reading.notes += notes
        if export.num_links:
            links = counted(export.num_links, "link")
            reading.notes.append(f"{links} to files outside the export: not followed")
        sizes = {name: len(files) for name, files in lists.items()}
        report = ImportReport(path, target, title, reading, labels, outcomes, sizes)
        _write(folder, report, lists)
    return report


def _check(reading: Reading, title: str) -> None:
    """Refuse an export without images, and leave out images that share a file or a mask."""
    images = reading.images
    if not images:
        raise NacreError(f"the export ({title}) has no image")
    spoiled = next((image for image in images if image.problem is not None), None)
    if not reading.classes and spoiled is not None:
        # Without readable annotations there are no classes, but that is not the reason.
        why = f"{brief(spoiled.name)}: {spoiled.problem}"
        raise NacreError(f"no image of the export ({title}) can be imported; {why}")
    if not any(image.file or image.problem for image in images):
        raise NacreError(
            f"the export ({title}) lists {counted(len(images), 'image')} "
            f"({some((image.name for image in images), 3)}) but contains none of their files; "
            f"{_USE_IMAGES}"
        )
    by_file: dict[File, list[Image]] = defaultdict(list)
    by_mask: dict[File, list[Image]] = defaultdict(list)
    for image in images:
        if image.file is not None:
            by_file[image.file].append(image)
        if image.mask is not None:
            by_mask[image.mask.file].append(image)
    for file, several in by_file.items():
        # An annotation with the whole path takes precedence over one of another folder.
        rivals = [image for image in several if agrees(image.name, file)] or several
        for image in several:
            image.file = None
        for image in rivals:
            image.file = file
            if len(rivals) > 1:
                other = rivals[0 if image is not rivals[0] else 1].name
                image.spoil("two annotations name its file", f"the other one as {brief(other)}")
    for file, several in by_mask.items():
        for image in several if len(several) > 1 else ():
            image.spoil("another image has the same mask", brief(file.path))


def _refuse_boxes(written: Sequence[Outcome]) -> None:
    """Refuse outlines that are all boxes: they may be areas, or frames around objects."""
    total = sum(outcome.num_shapes for outcome in written)
    if total and all(outcome.has_only_boxes for outcome in written if outcome.num_shapes):
        raise NacreError(
            f"all outlines of the export ({counted(total, 'outline')}) are boxes with four right "
            "angles; if they are the objects themselves, use --fill-boxes; if they are frames "
            "around objects, label areas or make masks of the boxes first"
        )


def _nothing_written(outcomes: Sequence[Outcome], title: str) -> NacreError:
    """Return the error for an export without a usable image."""
    first = outcomes[0].problem
    assert first is not None
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    same = sum(problem.reason == first.reason for problem in problems)
    name = brief(outcomes[0].name)
    why = f"{first}; {_USE_IMAGES}" if first.reason == MISSING else str(first)
    if len(outcomes) == 1:
        return NacreError(f"the only image of the export ({title}), {name}, is left out: {why}")
    return NacreError(
        f"none of the {len(outcomes):,} images of the export ({title}) can be imported; "
        f"{same:,} of them, such as {name}: {why}"
    )


def _write(folder: Path, report: ImportReport, lists: Mapping[str, Sequence[str]]) -> None:
    """Write the files beside the images and masks."""
    texts = {f"{name}.txt": "".join(f"{file}\n" for file in files) for name, files in lists.items()}
    texts["import.json"] = json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    has_background = report.labels.has_background or report.pixels[0] > 0
    write_classes(folder / "classes.yaml", report.labels, has_background)
    draw_sheet(folder, report).save(folder / SHEET, quality=88)


def draw_sheet(folder: Path, report: ImportReport) -> PillowImage.Image:
    """Draw some images under their masks, and a legend of the classes."""
    step = -(-len(report.written) // _MAX_TILES)
    files = [outcome.file for outcome in report.written[::step]]
    colors = np.full((1 << 16, 3), 255, np.uint8)
    colors[: len(report.labels.colors)] = report.labels.colors
    names = dict(enumerate(report.labels.names, start=1)) | {report.labels.ignored: "(ignored)"}
    legend = [label for label in names if report.images[label]][:_MAX_LEGEND]
    row = _TILE + _LINE + _GAP
    below = _GAP + -(-len(files) // _COLUMNS) * row
    height = below + -(-len(legend) // _COLUMNS) * _LINE + _GAP
    sheet = PillowImage.new("RGB", (_COLUMNS * (_TILE + _GAP) + _GAP, height), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, file in enumerate(files):
        x, y = _GAP + i % _COLUMNS * (_TILE + _GAP), _GAP + i // _COLUMNS * row
        sheet.paste(_tile(folder, file, colors), (x, y))
        pen.text((x, y + _TILE + 2), file[:_MAX_TEXT_LENGTH], _INK, font)
    for i, label in enumerate(legend):
        x, y = _GAP + i % _COLUMNS * (_TILE + _GAP), below + i // _COLUMNS * _LINE
        pen.rectangle((x, y + 2, x + 13, y + 15), tuple(colors[label].tolist()), _INK)
        pen.text((x + 20, y), names[label][:_MAX_TEXT_LENGTH], _INK, font)
    return sheet


def _tile(folder: Path, file: str, colors: Pixels) -> PillowImage.Image:
    """Return a small image with its labels in color over it."""
    image = open_image(folder / "images" / file)
    image.draft("RGB", (2 * _TILE, 2 * _TILE))
    load(image)
    scale = _TILE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, PillowImage.Resampling.BOX)
    with PillowImage.open((folder / "masks" / file).with_suffix(".png")) as mask:
        labels = np.asarray(mask.resize(size, PillowImage.Resampling.NEAREST))
    colored = PillowImage.blend(image, PillowImage.fromarray(colors[labels]), _OPACITY)
    return PillowImage.composite(colored, image, PillowImage.fromarray(labels != 0))
