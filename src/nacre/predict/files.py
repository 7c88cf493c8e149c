"""`nacre predict`: a model over images, folders, videos and maps; results lie as inputs lay.

    OUT/masks/…png  OUT/overlays/…jpg  OUT/labelme/…json  OUT/fractions.csv

A wish to stop is heard after the image at hand; whatever was done by then is written and whole.
"""

import contextlib
import csv
import glob
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TextIO

import numpy as np
import torch

from nacre.data.image_io import IMAGE_SUFFIXES, Pixels
from nacre.errors import NacreError, unknown_name
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import Channels
from nacre.predict import rasters
from nacre.predict.polygons import ClassMap
from nacre.predict.prediction import (
    class_fractions,
    count_classes,
    labelme,
    overlay,
    predict_image,
    to_rgb,
    write_mask,
    write_overlay,
)
from nacre.predict.video import VideoWriter, read_frames
from nacre.utils.io import InUse, csv_text, locked, remove_temporaries, save_json
from nacre.utils.progress import show_progress

TOLERANCE = 1.0
"""Pixels that LabelMe polygons may be from the edges of regions."""

FORMS = ("masks", "overlays", "labelme", "csv")
USUAL_FORMS = ("masks", "overlays", "csv")

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")


@dataclass(frozen=True)
class Input:
    """An image or a video.

    Attributes:
        path: The file.
        name: Its path below the folder that all have in common, with its suffix.
        stem: The same for its results: without the suffix unless another has the same stem.
    """

    path: Path
    name: str
    stem: str


def find_inputs(given: Sequence[str], out: Path) -> list[Input]:
    """Return all images and videos that files, folders and globs name.

    Args:
        given: Files, folders (with all below them) and globs such as ``day-*/*.jpg``.
        out: Where results go; what lies there is no input, unless a file is named.
    """
    found = [path for one in given for path in _paths(one, out.resolve())]
    # Without `..`: a result must lie below the folder of the results.
    paths = {Path(os.path.abspath(path)): path for path in found}
    names = names_below([*paths])
    # Those that share a stem are called by their whole name, which may be another one's stem.
    short = [str(name.with_suffix("")) for name in names]
    stems = Counter([*short, *map(str, names)])
    return [
        Input(path, str(name), stem if stems[stem] == 1 else str(name))
        for path, name, stem in zip(paths.values(), names, short, strict=True)
    ]


def names_below(paths: Sequence[PurePath]) -> list[PurePosixPath]:
    """Return absolute paths from the folder that all have in common, if there is one."""
    if len({path.drive.lower() for path in paths}) > 1:  # drives of Windows
        return [PurePosixPath(path.drive.strip(":\\"), *path.parts[1:]) for path in paths]
    common = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return [PurePosixPath(path.relative_to(common)) for path in paths]


def _paths(given: str, out: Path) -> Iterable[Path]:
    path = Path(given).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        os.scandir(path).close()  # what may not be read is no folder without images
        if (path / "images").is_dir() and (path / "masks").is_dir():
            path = path / "images"  # of a data folder the masks are no photographs
        # Hidden files are no images: macOS leaves some beside those that it copies.
        candidates = sorted(
            one
            for one in path.rglob("*")
            if not any(part.startswith(".") for part in one.relative_to(path).parts)
        )
    else:
        candidates = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    suffixes = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
    images = (one for one in candidates if one.suffix.lower() in suffixes and one.is_file())
    found = [one for one in images if out not in one.resolve().parents]
    if not found:
        endings = ", ".join(suffix[1:] for suffix in suffixes)
        raise NacreError(f"no images at {given}: give files, folders or globs of {endings}")
    return found


@dataclass(frozen=True)
class Summary:
    """The outcome.

    Attributes:
        done: Images, and frames of videos.
        failed: What could not be read, and why.
        stopped: Whether there was a wish to stop.
        fractions: Fraction of all pixels that each class covers.
    """

    done: int
    failed: tuple[str, ...]
    stopped: bool
    fractions: dict[str, float]


class _Results:
    """The destination of a call's results; the CSV of fractions grows row by row.

    Args:
        channels: Of the network.
        out: Folder of the results.
        forms: What is written.
        fractions: The file of the CSV, or None.
    """

    def __init__(
        self, channels: Channels, out: Path, forms: Sequence[str], fractions: TextIO | None
    ) -> None:
        self.channels, self.out, self.forms, self.fractions = channels, out, forms, fractions
        self.counts = np.zeros(len(channels), np.int64)
        self.done = 0
        self._add_row(["image", *map(csv_text, channels.names)])

    def path(self, form: str, stem: str, suffix: str) -> Path | None:
        """Return the file of a form; None if it is not wanted."""
        return self.out / form / f"{stem}{suffix}" if form in self.forms else None

    def add(self, name: str, stem: str, image: Path | None, classes: ClassMap) -> None:
        """Write what has nothing to do with the image's pixels, and count the classes."""
        if path := self.path("labelme", stem, ".json"):
            shown = _relative(image or Path(name), path.parent)
            save_json(path, labelme(classes, self.channels.names, shown, TOLERANCE))
        counts = count_classes(classes, len(self.counts))
        self._add_row([csv_text(name), *(f"{count / counts.sum():.6f}" for count in counts)])
        self.counts += counts
        self.done += 1

    def _add_row(self, row: Sequence[str]) -> None:
        if self.fractions is not None:
            csv.writer(self.fractions).writerow(row)
            self.fractions.flush()


def _relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder; as it is where that cannot be."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive of Windows
        return str(path)


def _tidy(out: Path) -> None:
    """Remove what killed processes left of results."""
    for left in out.glob(".class-map.????????"):
        shutil.rmtree(left, ignore_errors=True)
    for form in FORMS:
        for folder, _, _ in os.walk(out / form):
            remove_temporaries(Path(folder))


def predict_all(
    predictor: Predictor,
    channels: Channels,
    given: Sequence[str],
    out: Path,
    forms: Sequence[str] = USUAL_FORMS,
    should_stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Predict images and videos, and write the results.

    Args:
        predictor: How the network sees images; through windows they take bounded memory.
        channels: Of the network.
        given: Files, folders and globs.
        out: Folder of the results.
        forms: What is written, of `FORMS`.
        should_stop: Asked after each image and frame.
    """
    for form in forms:
        if form not in FORMS:
            raise unknown_name("form", form, FORMS)
    if not forms:
        raise NacreError(f"no form to write: give one or more of {', '.join(FORMS)}")
    inputs = find_inputs(given, out)
    failed: list[str] = []
    stopped = False
    with contextlib.ExitStack() as held:
        # Two commands may write to one folder; what lies there may be the other one's then.
        with contextlib.suppress(InUse):
            held.enter_context(locked(out, "predict"))
            _tidy(out)
        fractions = None
        if "csv" in forms:
            out.mkdir(parents=True, exist_ok=True)
            path = out / "fractions.csv"
            fractions = held.enter_context(path.open("w", newline="", encoding="utf-8"))
        results = _Results(channels, out, forms, fractions)
        progress = held.enter_context(show_progress("predicting"))
        for i, one in enumerate(inputs):
            try:
                stopped = _predict(predictor, one, results, should_stop) or should_stop()
            except NacreError as error:
                if len(inputs) == 1:
                    raise
                failed.append(str(error))
            progress(i + 1, len(inputs))
            if stopped:
                break
    covered = class_fractions(results.counts, channels.names)
    return Summary(results.done, tuple(failed), stopped, covered)


def _predict(
    predictor: Predictor, one: Input, results: _Results, should_stop: Callable[[], bool]
) -> bool:
    """Do one input; return whether it was left in its middle."""
    if one.path.suffix.lower() in VIDEO_SUFFIXES:
        return _predict_video(predictor, one, results, should_stop)
    if rasters.is_georeferenced(one.path) or predictor.window is not None:
        _predict_map(predictor, one, results)
    else:
        _predict_image(predictor, one, results)
    return False


def _predict_image(predictor: Predictor, one: Input, results: _Results) -> None:
    pixels = np.asarray(to_rgb(one.path))
    classes = predict_image(predictor, pixels, results.channels).mask
    if path := results.path("masks", one.stem, ".png"):
        write_mask(path, classes, results.channels.colors)
    if path := results.path("overlays", one.stem, ".jpg"):
        write_overlay(path, pixels, classes, results.channels.colors)
    results.add(one.name, one.stem, one.path, classes)


def _predict_map(predictor: Predictor, one: Input, results: _Results) -> None:
    """Do an image that may be too large to be seen, or held, at once."""
    channels = results.channels
    with (
        rasters.open_raster(one.path) as raster,
        rasters.make_class_map(raster.size, len(channels), results.out) as classes,
    ):
        path = results.path("masks", one.stem, ".tif" if raster.place else ".png")
        with contextlib.ExitStack() as held:
            write = None
            if path and raster.place:
                write = held.enter_context(rasters.write_geotiff(path, raster, channels))
            for rows, columns, part in _blocks(predictor, raster):
                classes[rows, columns] = part
                if write:
                    write(rows, columns, part)
        if path and not raster.place:
            write_mask(path, classes, channels.colors)
        if path := results.path("overlays", one.stem, ".jpg"):
            preview = raster.preview()
            rows, columns = (
                ((np.arange(side) + 0.5) * full / side).astype(int)
                for side, full in zip(preview.shape[:2], classes.shape, strict=True)
            )
            write_overlay(path, preview, classes[np.ix_(rows, columns)], channels.colors)
        results.add(one.name, one.stem, one.path, classes)


def _blocks(predictor: Predictor, raster: rasters.Raster) -> Iterator[tuple[slice, slice, Pixels]]:
    def read(rows: slice, columns: slice) -> torch.Tensor:
        return torch.tensor(raster.read(rows, columns)).permute(2, 0, 1).contiguous()

    done = 0
    with show_progress("windows of a large image") as progress:
        for block in predictor.blocks(read, raster.size):
            yield block.rows, block.columns, block.classes.numpy()
            done += block.classes.numel()
            progress(done, raster.size[0] * raster.size[1])


def _predict_video(
    predictor: Predictor, one: Input, results: _Results, should_stop: Callable[[], bool]
) -> bool:
    writer: VideoWriter | None = None
    video = results.path("overlays", one.stem, ".mp4")
    try:
        for i, frame in enumerate(read_frames(one.path)):
            classes = predict_image(predictor, frame, results.channels).mask
            stem = f"{one.stem}/{i:06d}"
            if path := results.path("masks", stem, ".png"):
                write_mask(path, classes, results.channels.colors)
            if video:
                writer = writer or VideoWriter(video, classes.shape, one.path)
                writer.add(np.asarray(overlay(frame, classes, results.channels.colors)))
            results.add(f"{one.name}#{i}", stem, None, classes)
            if should_stop():
                return True
    finally:
        if writer is not None:
            writer.close()
    return False
