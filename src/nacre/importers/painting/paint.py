"""One picture of an export: copied, looked at, and its mask painted and written."""

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nacre.data.image_io import count_labels
from nacre.errors import NacreError
from nacre.importers.catalog import Catalog, Picture
from nacre.importers.files.export import Export
from nacre.importers.files.jsonstream import load_whole
from nacre.importers.painting.canvas import LabelMap, paint_shapes, save_mask
from nacre.importers.painting.masks import UnknownValues, read_mask
from nacre.importers.painting.pictures import Frame, Look, choose_frame, look_at, turn_upright
from nacre.importers.problems import Unusable, brief
from nacre.importers.writing.classes import Labels
from nacre.importers.writing.naming import written_suffix

Unlabeled = Literal["listed", "background", "skip"]

MISSING = "the picture file is missing"
NOT_LABELED = "nothing says what is in it"


@dataclass(frozen=True)
class Job:
    """What is to be written.

    Attributes:
        export: Where pictures and masks are read from.
        catalog: What there is.
        labels: What the values to write mean.
        folder: Where ``images/`` and ``masks/`` go.
        names: Name by picture.
        unlabeled: Which pictures without a label are all background.
        drawn_stored: Pictures that were annotated on the stored pixels although it cannot be seen.
    """

    export: Export
    catalog: Catalog
    labels: Labels
    folder: Path
    names: list[str]
    unlabeled: Unlabeled = "listed"
    drawn_stored: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """What became of one picture.

    Attributes:
        index: Its place in the catalogue.
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
        """Whether it is sure that a turned picture was annotated upright."""
        return self.frame == "upright" and self.is_sure and self.orientation > 1


def import_picture(job: Job, index: int) -> Outcome:
    """Write picture and mask, or say why not; then nothing of it is left behind."""
    outcome = Outcome(index)
    picture = job.catalog.pictures[index]
    path: Path | None = None
    try:
        _check(picture, job.unlabeled)
        path = _copy_picture(job, index)
        look = look_at(path)
        outcome.orientation = look.orientation
        _write_mask(job, index, look, outcome)
        outcome.file = path.relative_to(job.folder / "images").as_posix()
        return outcome
    except Unusable as problem:
        outcome.problem = problem
    except UnknownValues as problem:
        outcome.unknown = problem.values
    if path is not None:
        path.unlink(missing_ok=True)
    return outcome


def _check(picture: Picture, unlabeled: Unlabeled) -> None:
    if picture.problem is not None:
        raise picture.problem
    if (
        not picture.is_labeled
        and unlabeled != "background"
        and not (picture.is_listed and unlabeled == "listed")
    ):
        raise Unusable(NOT_LABELED)
    if picture.match is None and picture.embedded is None:
        raise Unusable(MISSING)
    if picture.num_skipped and not picture.num_shapes:
        raise Unusable("it has only shapes without an area")


def _copy_picture(job: Job, index: int) -> Path:
    """Copy the picture file as it is, so that nothing of it is lost."""
    picture = job.catalog.pictures[index]
    if picture.match is None:
        assert picture.embedded is not None
        data = _read_embedded(job.export, picture)
        suffix = ".png" if data.startswith(b"\x89PNG") else ".jpg"
    else:
        suffix = written_suffix(picture.match.file.path)
    path = job.folder / "images" / f"{job.names[index]}{suffix}"
    if picture.match is None:
        _writing(path, lambda: path.write_bytes(data))
        return path
    try:
        source = job.export.open(picture.match.file)
    except NacreError as error:
        raise Unusable("the picture cannot be read", str(error)) from error
    with source:
        try:
            _writing(path, lambda: _copy(source, path))
        except Unusable:
            path.unlink(missing_ok=True)
            raise
    return path


def _copy(source: Any, path: Path) -> None:
    with path.open("wb") as target:
        while True:
            try:
                chunk = source.read(1 << 20)
            except (OSError, NacreError) as error:
                raise Unusable("the picture cannot be read", brief(str(error))) from error
            if not chunk:
                return
            target.write(chunk)


def _read_embedded(export: Export, picture: Picture) -> bytes:
    """Return the picture that LabelMe keeps in its annotation."""
    assert picture.embedded is not None
    try:
        content = load_whole(export.read(picture.embedded), picture.embedded.path)
        return base64.b64decode(content["imageData"])
    except (NacreError, binascii.Error, ValueError, TypeError, KeyError) as error:
        raise Unusable("the picture inside the annotation is damaged", brief(str(error))) from error


def _write_mask(job: Job, index: int, look: Look, outcome: Outcome) -> None:
    picture = job.catalog.pictures[index]
    if picture.mask is not None:
        mask = _from_mask_file(job, picture, look, outcome)
    else:
        mask = _from_shapes(job, index, look, outcome)
    if index in job.drawn_stored and not outcome.is_sure:
        outcome.frame = "stored"
    if outcome.frame == "stored":
        mask = turn_upright(mask, look.orientation)
    outcome.pixels = count_labels(mask)
    if set(outcome.pixels) == {job.labels.ignored}:
        raise Unusable("not one pixel of it counts")
    path = job.folder / "masks" / f"{job.names[index]}.png"
    _writing(path, lambda: save_mask(path, mask, job.labels))


def _from_mask_file(job: Job, picture: Picture, look: Look, outcome: Outcome) -> LabelMap:
    assert picture.mask is not None
    try:
        with job.export.open(picture.mask.file) as file:
            classes = read_mask(file, picture.mask.coding)
    except NacreError as error:
        raise Unusable("the mask cannot be read", str(error)) from error
    height, width = classes.shape
    outcome.frame, outcome.is_sure = choose_frame(look, (width, height), is_relative=False)
    return job.labels.by_class.astype(np.uint16 if job.labels.is_wide else np.uint8).take(classes)


def _from_shapes(job: Job, index: int, look: Look, outcome: Outcome) -> LabelMap:
    picture, spool = job.catalog.pictures[index], job.catalog.spool
    is_relative, is_layered = True, False
    for shape in spool.shapes(index):
        is_relative &= shape.is_relative
        is_layered |= shape.layer != 0
    outcome.frame, outcome.is_sure = choose_frame(look, picture.size, is_relative)
    outcome.is_empty = not spool.places.get(index)
    frame = outcome.frame
    if index in job.drawn_stored and not outcome.is_sure:
        frame = "stored"
    size = look.stored if frame == "stored" else look.upright
    mask, outcome.uncovered = paint_shapes(
        spool.shapes(index),
        size,
        job.labels,
        order=job.catalog.order,
        is_layered=is_layered,
    )
    return mask


def _writing(path: Path, write: Any) -> None:
    """Write a file, telling a full disk from a damaged export."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise NacreError(f"could not write {path.name}: {error.strerror or error}") from error
