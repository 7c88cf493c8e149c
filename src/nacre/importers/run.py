"""An import from beginning to end: recognize, read, assign labels, paint, write, report."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from nacre.errors import NacreError
from nacre.importers.files import Export, File, agrees
from nacre.importers.folder import make_labels, new_folder, plan_lists, plan_names, write_classes
from nacre.importers.formats import recognize
from nacre.importers.paint import MISSING, Job, Outcome, Unlabeled, import_images
from nacre.importers.problems import brief, counted, some
from nacre.importers.reading import Color, Image, Reading
from nacre.importers.report import SHEET, ImportReport, draw_sheet
from nacre.utils.progress import show_progress

_USE_IMAGES = "give their folder with --images FOLDER"


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
