"""`nacre predict`: predict images, folders, videos and maps, and write the results.

    OUT/masks/….png   OUT/overlays/….jpg   OUT/labelme/….json   OUT/fractions.csv

Results have the names of the inputs below their common folder. A stop request takes effect after
the current image or frame; all results that are written by then are complete.
"""

import contextlib
import csv
import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TextIO

import numpy as np
import torch

from nacre.data.image_io import IMAGE_SUFFIXES
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

OUTPUTS = ("masks", "overlays", "labelme", "csv")
DEFAULT_OUTPUTS = ("masks", "overlays", "csv")
VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
TOLERANCE_PIXELS = 1.0
"""Largest distance of LabelMe polygons from the edges of regions."""
SMALLEST_REGION = 1 / 2000
"""Smallest region of LabelMe polygons that a person can correct, as a fraction of the image, or of
a window of a larger one."""

ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class Input:
    """An image or a video.

    Attributes:
        path: The file.
        name: Its path below the common folder of all inputs, with its suffix.
        stem: The name of its results: without the suffix unless another input has the same stem.
    """

    path: Path
    name: str
    stem: str


def find_inputs(sources: Sequence[str], out: Path) -> list[Input]:
    """Return the images and videos of files, folders and globs.

    Args:
        sources: Files, folders (with everything below them) and globs such as ``day-*/*.jpg``.
        out: Folder of the results. Its files are not inputs, unless one is named.
    """
    found = [path for source in sources for path in _paths(source, out.resolve())]
    # Without `..`, which would put a result outside the folder of the results.
    paths = {Path(os.path.abspath(path)): path for path in found}
    names = names_below([*paths])
    # Inputs that share a stem have their full name, which may be the stem of another input.
    stems = [str(name.with_suffix("")) for name in names]
    counts = Counter([*stems, *map(str, names)])
    return [
        Input(path, str(name), stem if counts[stem] == 1 else str(name))
        for path, name, stem in zip(paths.values(), names, stems, strict=True)
    ]


def names_below(paths: Sequence[PurePath]) -> list[PurePosixPath]:
    """Return absolute paths relative to their common folder, if there is one."""
    if len({path.drive.lower() for path in paths}) > 1:  # drives of Windows
        return [PurePosixPath(path.drive.strip(":\\"), *path.parts[1:]) for path in paths]
    common = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return [PurePosixPath(path.relative_to(common)) for path in paths]


def _paths(source: str, out: Path) -> Iterable[Path]:
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        os.scandir(path).close()  # raises an error for a folder that may not be read
        if (path / "images").is_dir() and (path / "masks").is_dir():
            path = path / "images"  # the masks of a data folder are not inputs
        # Hidden files are not images: macOS writes some beside copied files.
        candidates = sorted(
            file
            for file in path.rglob("*")
            if not any(name.startswith(".") for name in file.relative_to(path).parts)
        )
    else:
        candidates = [Path(file) for file in sorted(glob.glob(str(path), recursive=True))]
    suffixes = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
    images = (file for file in candidates if file.suffix.lower() in suffixes and file.is_file())
    inputs = [image for image in images if out not in image.resolve().parents]
    if not inputs:
        endings = ", ".join(suffix[1:] for suffix in suffixes)
        raise NacreError(f"no images at {source}: give files, folders or globs of {endings}")
    return inputs


@dataclass(frozen=True)
class Summary:
    """The outcome of `predict_all`.

    Attributes:
        done: Number of predicted images and frames of videos.
        failed: An error for each input that could not be read.
        stopped: True after a stop request.
        fractions: Fraction of all pixels that each class covers.
    """

    done: int
    failed: tuple[str, ...]
    stopped: bool
    fractions: dict[str, float]


class _Results:
    """Paths and counts of the results; the CSV of class fractions grows row by row."""

    def __init__(
        self,
        channels: Channels,
        out: Path,
        outputs: Sequence[str],
        fractions: TextIO | None,
        window: int | None,
    ) -> None:
        self.channels, self.out, self.outputs, self.fractions = channels, out, outputs, fractions
        self.window = window
        self.counts = np.zeros(len(channels), np.int64)
        self.done = 0
        self._add_row(["image", *map(csv_text, channels.names)])

    def path(self, output: str, stem: str, suffix: str) -> Path | None:
        """Return the file of an output; None if it is not requested."""
        return self.out / output / f"{stem}{suffix}" if output in self.outputs else None

    def add(self, name: str, stem: str, image: Path | None, classes: ClassMap) -> None:
        """Write the polygons of an image, without small regions, and its class fractions."""
        if path := self.path("labelme", stem, ".json"):
            relative = _relative(image or Path(name), path.parent)
            num_seen = min(classes.size, self.window**2) if self.window else classes.size
            smallest = SMALLEST_REGION * num_seen
            names = self.channels.names
            save_json(path, labelme(classes, names, relative, TOLERANCE_PIXELS, smallest))
        counts = count_classes(classes, len(self.counts))
        self._add_row([csv_text(name), *(f"{count / counts.sum():.6f}" for count in counts)])
        self.counts += counts
        self.done += 1

    def _add_row(self, row: Sequence[str]) -> None:
        if self.fractions is not None:
            csv.writer(self.fractions).writerow(row)
            self.fractions.flush()


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder, if both are on one drive of Windows."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return str(path)


def predict_all(
    predictor: Predictor,
    channels: Channels,
    sources: Sequence[str],
    out: Path,
    outputs: Sequence[str] = DEFAULT_OUTPUTS,
    should_stop: ShouldStop = lambda: False,
) -> Summary:
    """Predict images and videos, and write the results.

    Args:
        predictor: The predictor; with windows, images of any size take bounded memory.
        channels: The channels of its network.
        sources: Files, folders and globs.
        out: Folder of the results.
        outputs: The results to write, of `OUTPUTS`.
        should_stop: Called after each image and frame.
    """
    for output in outputs:
        if output not in OUTPUTS:
            raise unknown_name("output", output, OUTPUTS)
    if not outputs:
        raise NacreError(f"no output to write: give one or more of {', '.join(OUTPUTS)}")
    inputs = find_inputs(sources, out)
    failed: list[str] = []
    stopped = False
    with contextlib.ExitStack() as stack:
        # If another command writes to this folder, temporary files there may belong to it.
        with contextlib.suppress(InUse):
            stack.enter_context(locked(out, "predict"))
            for output in OUTPUTS:
                for folder, _, _ in os.walk(out / output):
                    remove_temporaries(Path(folder))
        fractions = None
        if "csv" in outputs:
            out.mkdir(parents=True, exist_ok=True)
            path = out / "fractions.csv"
            fractions = stack.enter_context(path.open("w", newline="", encoding="utf-8"))
        results = _Results(channels, out, outputs, fractions, predictor.window)
        progress = stack.enter_context(show_progress("predicting"))
        for i, source in enumerate(inputs):
            try:
                stopped = _predict(predictor, source, results, should_stop) or should_stop()
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
    predictor: Predictor, source: Input, results: _Results, should_stop: ShouldStop
) -> bool:
    """Predict an input; return True if it was stopped before its end."""
    if source.path.suffix.lower() in VIDEO_SUFFIXES:
        return _predict_video(predictor, source, results, should_stop)
    # A georeferenced file that cannot keep its coordinates is refused, so it is checked first.
    if rasters.is_georeferenced(source.path) or predictor.window is not None:
        _predict_raster(predictor, source, results)
        return False
    pixels = np.asarray(to_rgb(source.path))
    classes = predict_image(predictor, pixels, results.channels).mask
    if path := results.path("masks", source.stem, ".png"):
        write_mask(path, classes, results.channels.colors)
    if path := results.path("overlays", source.stem, ".jpg"):
        write_overlay(path, pixels, classes, results.channels.colors)
    results.add(source.name, source.stem, source.path, classes)
    return False


def _predict_raster(predictor: Predictor, source: Input, results: _Results) -> None:
    """Predict an image that may be too large for the memory, block by block."""
    channels = results.channels
    with rasters.open_raster(source.path) as raster:
        classes = rasters.make_class_map(raster.size, len(channels), results.out)
        mask = results.path("masks", source.stem, ".tif" if raster.georeference else ".png")
        with contextlib.ExitStack() as stack:  # a GeoTIFF is complete at its end
            write = None
            if mask and raster.georeference:
                write = stack.enter_context(rasters.write_geotiff(mask, raster, channels))
            num_done = 0
            progress = stack.enter_context(show_progress("windows of a large image"))
            for block in predictor.blocks(_reader(raster), raster.size):
                classes[block.rows, block.columns] = block.classes.numpy()
                if write:
                    write(block.rows, block.columns, block.classes.numpy())
                num_done += block.classes.numel()
                progress(num_done, classes.size)
        if mask and not raster.georeference:
            write_mask(mask, classes, channels.colors)
        if path := results.path("overlays", source.stem, ".jpg"):
            preview = raster.preview()
            rows, columns = (
                ((np.arange(side) + 0.5) * full / side).astype(int)
                for side, full in zip(preview.shape[:2], classes.shape, strict=True)
            )
            write_overlay(path, preview, classes[np.ix_(rows, columns)], channels.colors)
        results.add(source.name, source.stem, source.path, classes)


def _reader(raster: rasters.Raster) -> Callable[[slice, slice], torch.Tensor]:
    """Return a function that reads a part of a raster as a tensor 3,h,w."""

    def read(rows: slice, columns: slice) -> torch.Tensor:
        return torch.tensor(raster.read(rows, columns)).permute(2, 0, 1).contiguous()

    return read


def _predict_video(
    predictor: Predictor, source: Input, results: _Results, should_stop: ShouldStop
) -> bool:
    """Predict a video frame by frame; return True if it was stopped before its end."""
    colors = results.channels.colors
    writer: VideoWriter | None = None
    video = results.path("overlays", source.stem, ".mp4")
    try:
        for i, frame in enumerate(read_frames(source.path)):
            classes = predict_image(predictor, frame, results.channels).mask
            stem = f"{source.stem}/{i:06d}"
            if path := results.path("masks", stem, ".png"):
                write_mask(path, classes, colors)
            if video:
                writer = writer or VideoWriter(video, classes.shape, source.path)
                writer.add(np.asarray(overlay(frame, classes, colors)))
            results.add(f"{source.name}#{i}", stem, None, classes)
            if should_stop():
                return True
    finally:
        if writer is not None:
            writer.close()
    return False
