"""An import from beginning to end: recognise, read, number the classes, paint, write, report.

Everything is written into a new folder beside the target and renamed when it is whole: whatever
interrupts an import, the target is there with all of it or not at all.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from nacre.data.importers.catalog import Catalog, Spool
from nacre.data.importers.classes import ClassOptions, Labels, make_labels
from nacre.data.importers.detect import Recognised, recognise
from nacre.data.importers.export import open_export
from nacre.data.importers.naming import plan_names
from nacre.data.importers.paint import MISSING, Job, Outcome, Unlabeled
from nacre.data.importers.parallel import import_pictures
from nacre.data.importers.problems import Unusable, counted, shown, some
from nacre.data.importers.reading import Boxes, Crowd, Source
from nacre.data.importers.report import ImportReport, make_report
from nacre.data.importers.sheet import choose, draw_sheet
from nacre.data.importers.splits import plan_lists
from nacre.errors import NacreError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how far it is, and the total (0 if that is not known)."""

SHEET = "contact-sheet.jpg"
REPORT = "import.json"


@dataclass(frozen=True)
class ImportOptions:
    """How an export is to be understood.

    Attributes:
        images: Folder or archive with the pictures, if the export does not hold them.
        format: Name of the format, if it should not be recognised.
        classes: Which classes, and how they are called.
        crowd: What a region of many objects (COCO's ``iscrowd``) is.
        boxes: Whether rectangles are areas or only frames around an object.
        unlabeled: Which pictures without a label are all background.
        workers: How many processes; all cores by default.
    """

    images: Path | None = None
    format: str | None = None
    classes: ClassOptions = field(default_factory=ClassOptions)
    crowd: Crowd = "class"
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
    report = progress or (lambda what, done, total: None)
    target = Path(os.path.realpath(target.expanduser()))
    export = open_export(path.expanduser(), options.images and options.images.expanduser())
    with _new_folder(target) as folder:
        spool_path = folder / ".shapes"
        source = Source(export, Catalog(Spool(spool_path)), options.boxes, options.crowd, report)
        kind = recognise(export, options.format)
        kind.read(source)
        source.catalog.spool.close()
        return _write(path, target, folder, kind, source, options, report)


def _write(
    path: Path,
    target: Path,
    folder: Path,
    kind: Recognised,
    source: Source,
    options: ImportOptions,
    progress: Progress,
) -> ImportReport:
    catalog = source.catalog
    _check_catalog(catalog, kind)
    labels = make_labels(catalog, options.classes)
    _settle_claims(catalog)
    job = Job(
        source.export,
        catalog,
        labels,
        folder,
        plan_names(catalog.pictures),
        options.crowd,
        options.unlabeled,
    )
    for part in ("images", "masks"):
        (folder / part).mkdir()
    outcomes = _paint(job, options.workers, progress)
    catalog.spool.path.unlink()
    written = [one for one in outcomes if one.problem is None]
    if not written:
        raise _nothing(catalog, outcomes, kind)
    files = [(one.file, catalog.pictures[one.index].split) for one in written]
    lists, notes = plan_lists(files)
    if source.export.links:
        notes.append(
            f"{counted(source.export.links, 'link')} that lead out of the export were not followed"
        )
    summary = make_report(
        path,
        target,
        kind.title,
        catalog,
        labels,
        outcomes,
        {name: len(one) for name, one in lists.items()},
        notes,
    )
    _write_texts(folder, labels, lists, summary)
    _write_sheet(folder, labels, written, job, summary)
    return summary


def _paint(job: Job, workers: int | None, progress: Progress) -> list[Outcome]:
    """Import all pictures; those whose orientation cannot be seen follow the others."""

    def tell(done: int, total: int) -> None:
        progress("painting masks", done, total)

    outcomes = list(import_pictures(job, range(len(job.catalog.pictures)), tell, workers))
    _check_unknown(job.catalog, outcomes)
    turned = [one for one in outcomes if one.frame == "stored" and one.problem is None]
    doubtful = [one.index for one in outcomes if not one.is_sure and one.problem is None]
    if turned and doubtful and not any(one.shows_upright for one in outcomes):
        # Whoever drew some on the stored pixels for sure drew all of them so.
        again = replace(job, drawn_stored=frozenset(doubtful))
        for one in import_pictures(again, doubtful, lambda done, total: None, workers):
            outcomes[one.index] = one
    return outcomes


def _check_catalog(catalog: Catalog, kind: Recognised) -> None:
    if not catalog.pictures:
        raise NacreError(f"the export ({kind.title}) names no picture")
    if all(picture.match is None and picture.embedded is None for picture in catalog.pictures):
        problem = next((one.problem for one in catalog.pictures if one.problem is not None), None)
        if problem is None:
            names = some((picture.name for picture in catalog.pictures), 3)
            raise NacreError(
                f"the export ({kind.title}) names {counted(len(catalog.pictures), 'picture')} ({names}) but "
                "holds none of their files; say where they are with --images FOLDER"
            )


def _settle_claims(catalog: Catalog) -> None:
    """See that no file is taken for two pictures: a wholly matching name goes before a last part."""
    claims: dict[tuple[int, str], list[int]] = {}
    for index, picture in enumerate(catalog.pictures):
        if picture.match is not None:
            claims.setdefault((picture.match.file.tree, picture.match.file.path), []).append(index)
    for indices in claims.values():
        if len(indices) == 1:
            continue
        full = [at for at in indices if catalog.pictures[at].match.is_full]  # type: ignore[union-attr]
        keeper = (full or indices)[0]
        for at in indices:
            if at == keeper:
                continue
            if full and at not in full:
                catalog.pictures[at].match = None
            else:
                other = shown(catalog.pictures[keeper].name)
                catalog.spoil(at, Unusable("the export names its file twice", f"also as {other}"))


def _check_unknown(catalog: Catalog, outcomes: Sequence[Outcome]) -> None:
    """Refuse masks with values that have no class: names and masks do not belong together."""
    bad = [one for one in outcomes if one.unknown]
    if not bad:
        return
    first = bad[0]
    mask = catalog.pictures[first.index].mask
    assert mask is not None and first.unknown is not None
    value, count = max(first.unknown.items(), key=lambda item: item[1])
    what = f"the value {value}"
    if mask.coding.kind == "colors":
        what = f"the colour {value & 255},{value >> 8 & 255},{value >> 16}"
    more = f" and {counted(len(first.unknown) - 1, 'other')}" if len(first.unknown) > 1 else ""
    raise NacreError(
        f"{counted(len(bad), 'mask')} hold what no class stands for; first {shown(mask.file.path)}: "
        f"{what} in {counted(count, 'pixel')}{more}; nothing was imported"
    )


def _nothing(catalog: Catalog, outcomes: Sequence[Outcome], kind: Recognised) -> NacreError:
    problem = outcomes[0].problem
    assert problem is not None
    same = sum(one.problem is not None and one.problem.reason == problem.reason for one in outcomes)
    detail = f" ({problem.detail})" if problem.detail else ""
    hint = "; say where they are with --images FOLDER" if problem.reason == MISSING else ""
    return NacreError(
        f"none of the {counted(len(outcomes), 'picture')} of the export ({kind.title}) can be imported; "
        f"{same:,}, such as {shown(catalog.pictures[outcomes[0].index].name)}: {problem.reason}{detail}{hint}"
    )


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside the target that becomes it at the end, or vanishes."""
    if target.exists() and not target.is_dir():
        raise NacreError(f"{target} is a file; --to names a folder to make")
    if target.is_dir() and any(target.iterdir()):
        raise NacreError(f"{target} is not empty; import into a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:50]}.", dir=target.parent))
    except OSError as error:
        raise NacreError(f"could not make {target}: {error.strerror}") from error
    try:
        yield folder
        mask = os.umask(0)
        os.umask(mask)
        folder.chmod(0o777 & ~mask)
        if target.is_dir():
            target.rmdir()
        folder.rename(target)
    except OSError as error:
        raise NacreError(f"could not write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_texts(
    folder: Path, labels: Labels, lists: dict[str, list[str]], report: ImportReport
) -> None:
    content = {
        "classes": dict(enumerate(labels.names, start=1)),
        "background": 0 if labels.has_background else None,
        "ignored": labels.ignored,
        "colors": {name: list(labels.colors[at]) for at, name in enumerate(labels.names, start=1)},
    }
    text = yaml.safe_dump(
        content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    (folder / "classes.yaml").write_text(text, encoding="utf-8")
    for name, files in lists.items():
        (folder / f"{name}.txt").write_text(
            "".join(f"{file}\n" for file in files), encoding="utf-8"
        )
    facts = json.dumps(report.as_dict(), indent=1, ensure_ascii=False)
    (folder / REPORT).write_text(facts + "\n", encoding="utf-8")


def _write_sheet(
    folder: Path, labels: Labels, written: Sequence[Outcome], job: Job, report: ImportReport
) -> None:
    pairs = [
        (one.file, folder / "images" / one.file, folder / "masks" / f"{job.names[one.index]}.png")
        for one in (written[at] for at in choose([one.pixels for one in written]))
    ]
    legend = [
        (f"{name} {report.share(label):.1%}", labels.colors[label])
        for label, name in enumerate(labels.names, start=1)
        if report.images[label]
    ]
    if report.images[labels.ignored]:
        legend.append((f"(ignored) {report.share(labels.ignored):.1%}", (255, 255, 255)))
    title = f"{report.format}: {len(pairs)} of {counted(report.pictures, 'picture')}"
    draw_sheet(pairs, labels.colors, legend, title).save(folder / SHEET, quality=88)
