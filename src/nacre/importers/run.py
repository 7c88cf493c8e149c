"""An import from beginning to end: recognize, read, number the classes, paint, write, report.

Everything is written into a new folder beside the target and renamed when it is whole: whatever
interrupts an import, the target is there with all of it or not at all.
"""

import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from nacre.errors import NacreError
from nacre.importers.boxes import ask_about_boxes
from nacre.importers.files import Export, agrees
from nacre.importers.folder import (
    REPORT,
    SHEET,
    new_folder,
    one_sentence,
    plan_lists,
    plan_names,
    write_classes,
)
from nacre.importers.formats import recognize
from nacre.importers.labels import ClassOptions, Labels, make_labels
from nacre.importers.masks import shown_color
from nacre.importers.paint import MISSING, Job, Outcome, Unlabeled, import_image
from nacre.importers.problems import Unusable, brief, counted, some
from nacre.importers.reading import NUM_SPECIAL, Boxes, Color, Image, Progress, Reading
from nacre.importers.report import ImportReport, make_report
from nacre.importers.sheet import choose, draw_sheet
from nacre.utils.progress import worker_pool
from nacre.utils.system import usable_cores

_WHERE = "say where they are with --images FOLDER"
_ALONE_SECONDS = 0.5
_CHUNK = 4

_job: Job | None = None


@dataclass(frozen=True)
class ImportOptions:
    """How an export is to be understood.

    Attributes:
        images: Folder or archive with the images, if the export does not hold them.
        format: Name of the format, if it should not be recognized.
        classes: Which classes, and how they are called.
        boxes: Whether rectangles are areas or only frames around an object; ``ask`` fills those
            that were drawn as areas and refuses outlines that are all boxes.
        colors: What colors in masks mean, where no file of the export says so.
        unlabeled: Which images without a label are all background.
        workers: How many processes; all cores by default.
    """

    images: Path | None = None
    format: str | None = None
    classes: ClassOptions = field(default_factory=ClassOptions)
    boxes: Boxes = "ask"
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
    # A link to an empty folder elsewhere is as good as that folder.
    target = Path(os.path.realpath(target.expanduser()))
    images = options.images and options.images.expanduser()
    with closing(Export(path.expanduser(), images)) as export, new_folder(target) as folder:
        reading = Reading(export, options.boxes, options.colors, tell)
        title = _read(reading, options.format)
        labels, names = make_labels(reading, options.classes), plan_names(reading.images)
        job = Job(export, reading.images, names, labels, reading.order, folder, options.unlabeled)
        outcomes = _paint(job, options.workers, tell)
        written = [one for one in outcomes if one.problem is None]
        if not written:
            raise _nothing_written(reading, outcomes, title)
        lists, notes = plan_lists((one.file, job.images[one.index].split) for one in written)
        links = sum(tree.links for tree in export.trees)
        if links:
            notes.append(f"{counted(links, 'link')} that lead outside were not followed")
        reading.notes += notes
        report = make_report((path, target), title, reading, labels, outcomes, lists)
        _write_texts(folder, labels, lists, report)
        _write_sheet(job, written, report)
    return report


def _read(reading: Reading, wanted: str | None) -> str:
    """Read all that the export says of its images; return what the format is called."""
    title = recognize(reading, wanted)
    images = reading.images
    if not images:
        raise NacreError(f"the export ({title}) names no image")
    spoiled = next((one for one in images if one.problem is not None), None)
    if len(reading.names) == NUM_SPECIAL and spoiled is not None:
        # Where nothing could be read there are no classes either, and that is not the reason.
        why = f"{brief(spoiled.name)}: {spoiled.problem}"
        raise NacreError(f"nothing of the export ({title}) can be imported; {why}")
    if not any(one.file or one.embedded or one.problem for one in images):
        raise NacreError(
            f"the export ({title}) names {counted(len(images), 'image')} "
            f"({some((one.name for one in images), 3)}) but holds none of their files; {_WHERE}"
        )
    _settle_files(images)
    _settle_masks(images)
    ask_about_boxes(reading)
    return title


def _settle_files(images: Sequence[Image]) -> None:
    """See that no file is taken for two images: a whole matching path goes before a last part."""
    claims: dict[tuple[int, str], list[Image]] = defaultdict(list)
    for image in images:
        if image.file is not None:
            claims[image.file.tree, image.file.path].append(image)
    for claimants in claims.values():
        if len(claimants) == 1:
            continue
        whole = [one for one in claimants if one.file and agrees(one.name, one.file)]
        rivals = whole or claimants
        for image in claimants:
            if image not in rivals:
                image.file = None
            elif len(rivals) > 1:
                # Nobody can say which of them was drawn on it.
                other = next(one.name for one in rivals if one is not image)
                detail = f"the other one as {brief(other)}"
                image.spoil(Unusable("two annotations name its file", detail))


def _settle_masks(images: Sequence[Image]) -> None:
    """See that no mask is taken for two images: nobody can say for which it was made."""
    owners: dict[tuple[int, str], Image] = {}
    for image in images:
        if image.mask is None:
            continue
        file = image.mask.file
        first = owners.setdefault((file.tree, file.path), image)
        if first is not image:
            for one in (first, image):
                one.spoil(Unusable("its mask is that of another image as well", brief(file.path)))


def _paint(job: Job, workers: int | None, progress: Progress) -> list[Outcome]:
    """Import all images; those whose orientation cannot be seen follow the others."""

    def tell(done: int, total: int) -> None:
        progress("painting masks", done, total)

    outcomes = list(_import_images(job, range(len(job.images)), tell, workers))
    _check_masks(job, outcomes)
    turned = [one for one in outcomes if one.frame == "stored" and one.problem is None]
    doubtful = [one.index for one in outcomes if not one.is_sure and one.problem is None]
    if turned and doubtful and not any(one.shows_upright for one in outcomes):
        # Whoever drew some on the stored pixels for sure drew all of them so.
        again = replace(job, are_stored=True)
        for one in _import_images(again, doubtful, lambda done, total: None, workers):
            outcomes[one.index] = one
    return outcomes


def _import_images(
    job: Job, indices: Sequence[int], progress: Callable[[int, int], None], workers: int | None
) -> Iterator[Outcome]:
    """Yield what became of each image, in order: in this process, or in several for much work."""
    progress(0, len(indices))
    began = time.perf_counter()
    done = 0
    for index in indices:
        if done and time.perf_counter() - began > _ALONE_SECONDS and workers != 1:
            break
        yield import_image(job, index)
        done += 1
        progress(done, len(indices))
    rest = indices[done:]
    if not rest:
        return
    # Closed when the user stops it: no process may write on after that.
    with closing(_share(job, rest, min(workers or usable_cores(), len(rest)))) as outcomes:
        for count, outcome in enumerate(outcomes, start=done + 1):
            yield outcome
            progress(count, len(indices))


def _share(job: Job, indices: Sequence[int], workers: int) -> Generator[Outcome, None, None]:
    """Import images by several processes."""
    chunks = iter(indices[i : i + _CHUNK] for i in range(0, len(indices), _CHUNK))
    begin = partial(_take, job)
    with worker_pool(workers, begin, "imports images", cancel=True) as executor:
        # Few are under way at a time, so that little is waited for when the user stops it.
        under_way = deque(executor.submit(_import, one) for one in islice(chunks, 2 * workers))
        while under_way:
            yield from under_way.popleft().result()
            under_way.extend(executor.submit(_import, one) for one in islice(chunks, 1))


def _take(job: Job, forked: bool) -> None:
    """Hold what is to be done; forked processes do not read through each other's open files."""
    global _job
    if forked:
        job.export.reopen()
    _job = job


def _import(indices: Sequence[int]) -> list[Outcome]:
    assert _job is not None
    return [import_image(_job, index) for index in indices]


def _check_masks(job: Job, outcomes: Sequence[Outcome]) -> None:
    """Refuse masks with values that have no class: names and masks do not belong together."""
    bad = [one for one in outcomes if one.unknown]
    if not bad:
        return
    values = bad[0].unknown or {}
    mask = job.images[bad[0].index].mask
    assert mask is not None
    value, count = max(values.items(), key=lambda item: item[1])
    what = f"the color {shown_color(value)}" if mask.kind == "colors" else f"the value {value}"
    more = f" and {counted(len(values) - 1, 'other')}" if len(values) > 1 else ""
    raise NacreError(
        f"{counted(len(bad), 'mask')} hold what no class stands for; first "
        f"{brief(mask.file.path)}: {what} in {counted(count, 'pixel')}{more}; nothing was imported"
    )


def _nothing_written(reading: Reading, outcomes: Sequence[Outcome], title: str) -> NacreError:
    """Return the error for an export of which no image could be imported."""
    first = outcomes[0]
    assert first.problem is not None
    reason = first.problem.reason
    same = sum(one.problem is not None and one.problem.reason == reason for one in outcomes)
    name = brief(reading.images[first.index].name)
    why = f"{first.problem}; {_WHERE}" if reason == MISSING else str(first.problem)
    if len(outcomes) == 1:
        return NacreError(f"the only image of the export ({title}), {name}, is left out: {why}")
    return NacreError(
        f"none of the {len(outcomes):,} images of the export ({title}) can be imported; "
        f"{same:,} of them, such as {name}: {why}"
    )


def _write_texts(
    folder: Path, labels: Labels, lists: Mapping[str, Sequence[str]], report: ImportReport
) -> None:
    """Write ``classes.yaml``, the split lists and the report."""
    texts = {f"{name}.txt": "".join(f"{file}\n" for file in files) for name, files in lists.items()}
    texts[REPORT] = json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n"
    with one_sentence(folder):
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    write_classes(folder, labels, labels.has_background or report.pixels[0] > 0)


def _write_sheet(job: Job, written: Sequence[Outcome], report: ImportReport) -> None:
    """Write the contact sheet."""
    folder, labels = job.folder, job.labels
    pairs = [
        (one.file, folder / "images" / one.file, folder / "masks" / f"{job.names[one.index]}.png")
        for one in (written[i] for i in choose([one.pixels for one in written]))
    ]
    legend = [
        (f"{name} {report.share(label):.1%}", labels.colors[label])
        for label, name in enumerate(labels.names, start=1)
        if report.images[label]
    ]
    if report.images[labels.ignored]:
        legend.append((f"(ignored) {report.share(labels.ignored):.1%}", (255, 255, 255)))
    title = f"{report.format}: {len(pairs)} of {counted(report.num_images, 'image')}"
    with one_sentence(folder):
        draw_sheet(pairs, labels.colors, legend, title).save(folder / SHEET, quality=88)
