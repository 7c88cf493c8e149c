"""An import from beginning to end: recognize, read, number the classes, paint, write, report."""

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
from nacre.importers.reading import Color, Image, Progress, Reading
from nacre.importers.report import SHEET, ImportReport, draw_sheet

_WHERE = "say where they are with --images FOLDER"


@dataclass(frozen=True)
class ImportOptions:
    """The choices by which an export is read.

    Attributes:
        images: Folder or archive with the images, if the export does not hold them.
        format: Name of the format, if it should not be recognized.
        classes: The only classes to import, in this order; all if empty.
        ignore: Classes whose pixels do not count; ``background`` may be one.
        rename: New name of a class by its name; a new name may be that of another class.
        fill_boxes: Take outlines as areas though all of them are boxes; else that is refused.
        colors: What colors in masks mean, where no file of the export says so.
        unlabeled: Which images without a label are all background.
        workers: How many processes; all cores by default.
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


def import_export(
    path: Path, target: Path, options: ImportOptions | None = None, progress: Progress | None = None
) -> ImportReport:
    """Turn the export of an annotation tool into a folder that nacre learns from.

    Args:
        path: A folder, a zip archive or one annotation file.
        target: The folder to make; it must not exist or be empty.
        options: How the export is to be understood.
        progress: Told how far the import has come.

    Raises:
        NacreError: The export cannot be imported; nothing was written.
    """
    options = options or ImportOptions()
    tell = progress or (lambda what, done, total: None)
    target, images = target.expanduser(), options.images and options.images.expanduser()
    with closing(Export(path.expanduser(), images)) as export, new_folder(target) as folder:
        reading = Reading(export, options.colors, tell)
        title = recognize(reading, options.format)
        _check(reading, title)
        labels = make_labels(reading, options.classes, options.ignore, options.rename)
        names = plan_names(reading.images)
        job = Job(reading.images, names, labels, reading.order, folder, options.unlabeled)
        outcomes = import_images(
            job, lambda done, total: tell("painting masks", done, total), options.workers
        )
        written = [one for one in outcomes if one.problem is None]
        if not written:
            raise _nothing_written(outcomes, title)
        if reading.order == "area" and not options.fill_boxes:
            _ask_about_boxes(written)
        lists, notes = plan_lists((one.file, one.split) for one in written)
        reading.notes += notes
        if export.num_links:
            links = counted(export.num_links, "link")
            reading.notes.append(f"{links} that lead outside were not followed")
        sizes = {name: len(files) for name, files in lists.items()}
        report = ImportReport(path, target, title, reading, labels, outcomes, sizes)
        _write(folder, report, lists)
    return report


def _check(reading: Reading, title: str) -> None:
    """Refuse an export without images, and leave out images that share a file or a mask."""
    images = reading.images
    if not images:
        raise NacreError(f"the export ({title}) names no image")
    spoiled = next((one for one in images if one.problem is not None), None)
    if not reading.classes and spoiled is not None:
        # Where nothing could be read there are no classes either, and that is not the reason.
        why = f"{brief(spoiled.name)}: {spoiled.problem}"
        raise NacreError(f"nothing of the export ({title}) can be imported; {why}")
    if not any(one.file or one.problem for one in images):
        raise NacreError(
            f"the export ({title}) names {counted(len(images), 'image')} "
            f"({some((one.name for one in images), 3)}) but holds none of their files; {_WHERE}"
        )
    by_file: dict[File, list[Image]] = defaultdict(list)
    by_mask: dict[File, list[Image]] = defaultdict(list)
    for image in images:
        if image.file is not None:
            by_file[image.file].append(image)
        if image.mask is not None:
            by_mask[image.mask.file].append(image)
    for file, several in by_file.items():
        # One that names the whole path goes before those that name another folder.
        rivals = [one for one in several if agrees(one.name, file)] or several
        for image in several:
            image.file = None
        for image in rivals:
            image.file = file
            if len(rivals) > 1:
                other = rivals[0 if image is not rivals[0] else 1].name
                image.spoil("two annotations name its file", f"the other one as {brief(other)}")
    for file, several in by_mask.items():
        for image in several if len(several) > 1 else ():
            image.spoil("its mask is that of another image as well", brief(file.path))


def _ask_about_boxes(written: Sequence[Outcome]) -> None:
    """Refuse outlines that are all boxes: nobody can tell areas from frames around objects."""
    total = sum(one.num_shapes for one in written)
    if total and all(one.has_only_boxes for one in written if one.num_shapes):
        raise NacreError(
            f"all of the export's outlines ({counted(total, 'outline')}) are boxes with four right "
            "angles; if these are the objects themselves, say --fill-boxes; if they are frames "
            "around objects, the objects' outlines are missing: label areas, or make masks of the "
            "boxes first"
        )


def _nothing_written(outcomes: Sequence[Outcome], title: str) -> NacreError:
    """Return the error for an export of which no image could be imported."""
    first = outcomes[0].problem
    assert first is not None
    same = sum(one.problem is not None and one.problem.reason == first.reason for one in outcomes)
    name = brief(outcomes[0].name)
    why = f"{first}; {_WHERE}" if first.reason == MISSING else str(first)
    if len(outcomes) == 1:
        return NacreError(f"the only image of the export ({title}), {name}, is left out: {why}")
    return NacreError(
        f"none of the {len(outcomes):,} images of the export ({title}) can be imported; "
        f"{same:,} of them, such as {name}: {why}"
    )


def _write(folder: Path, report: ImportReport, lists: Mapping[str, Sequence[str]]) -> None:
    """Write what stands beside images and masks."""
    texts = {f"{name}.txt": "".join(f"{file}\n" for file in files) for name, files in lists.items()}
    texts["import.json"] = json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    has_background = report.labels.has_background or report.pixels[0] > 0
    write_classes(folder / "classes.yaml", report.labels, has_background)
    draw_sheet(folder, report).save(folder / SHEET, quality=88)
