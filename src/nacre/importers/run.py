"""An import from beginning to end: recognise, read, number the classes, paint, write, report.

Everything is written into a new folder beside the target and renamed when it is whole: whatever
interrupts an import, the target is there with all of it or not at all.
"""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from nacre.importers.catalog import Catalog, Spool
from nacre.importers.checks import (
    check_catalog,
    check_masks,
    nothing_written,
    settle_claims,
    settle_masks,
)
from nacre.importers.detect import recognize
from nacre.importers.files.export import Export, open_export
from nacre.importers.painting.paint import Job, Outcome, Unlabeled
from nacre.importers.painting.parallel import import_pictures
from nacre.importers.problems import counted
from nacre.importers.reading import Boxes, Source
from nacre.importers.report import ImportReport, make_report
from nacre.importers.writing.classes import ClassOptions, make_labels
from nacre.importers.writing.folder import new_folder, write_sheet, write_texts
from nacre.importers.writing.naming import plan_names
from nacre.importers.writing.splits import plan_lists

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how far it is, and the total."""


@dataclass(frozen=True)
class ImportOptions:
    """How an export is to be understood.

    Attributes:
        images: Folder or archive with the pictures, if the export does not hold them.
        format: Name of the format, if it should not be recognised.
        classes: Which classes, and how they are called.
        boxes: Whether rectangles are areas or only frames around an object.
        unlabeled: Which pictures without a label are all background.
        workers: How many processes; all cores by default.
    """

    images: Path | None = None
    format: str | None = None
    classes: ClassOptions = field(default_factory=ClassOptions)
    boxes: Boxes = "fill"
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
    # A link to an empty folder elsewhere is as good as that folder.
    target = Path(os.path.realpath(target.expanduser()))
    images = options.images and options.images.expanduser()
    with closing(open_export(path.expanduser(), images)) as export, new_folder(target) as folder:
        with closing(Spool(folder / ".shapes")) as spool:
            catalog, title = _read(export, spool, options, tell)
        labels, names = make_labels(catalog, options.classes), plan_names(catalog.pictures)
        job = Job(export, catalog, labels, folder, names, options.unlabeled)
        outcomes = _paint(job, options.workers, tell)
        catalog.spool.path.unlink()
        files = [
            (one.file, catalog.pictures[one.index].split) for one in outcomes if one.problem is None
        ]
        if not files:
            raise nothing_written(catalog, outcomes, title)
        lists, notes = plan_lists(files)
        if export.links:
            notes.append(f"{counted(export.links, 'link')} that lead outside were not followed")
        report = make_report(path, target, title, job, outcomes, lists, notes)
        write_texts(folder, labels, lists, report)
        write_sheet(folder, job, outcomes, report)
    return report


def _read(
    export: Export, spool: Spool, options: ImportOptions, progress: Progress
) -> tuple[Catalog, str]:
    """Read all that the export says of its pictures; return it and what the format is called."""
    catalog = Catalog(spool)
    found = recognize(export, options.format)
    found.read(Source(export, catalog, options.boxes, progress))
    check_catalog(catalog, found.title)
    settle_claims(catalog)
    settle_masks(catalog)
    return catalog, found.title


def _paint(job: Job, workers: int | None, progress: Progress) -> list[Outcome]:
    """Import all pictures; those whose orientation cannot be seen follow the others."""

    def tell(done: int, total: int) -> None:
        progress("painting masks", done, total)

    outcomes = list(import_pictures(job, range(len(job.catalog.pictures)), tell, workers))
    check_masks(job.catalog, outcomes)
    turned = [one for one in outcomes if one.frame == "stored" and one.problem is None]
    doubtful = [one.index for one in outcomes if not one.is_sure and one.problem is None]
    if turned and doubtful and not any(one.shows_upright for one in outcomes):
        # Whoever drew some on the stored pixels for sure drew all of them so.
        again = replace(job, drawn_stored=frozenset(doubtful))
        for one in import_pictures(again, doubtful, lambda done, total: None, workers):
            outcomes[one.index] = one
    return outcomes
