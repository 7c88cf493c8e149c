"""`nacre predict`: a model over pictures, folders, videos and maps; results lie as inputs lay.

    OUT/masks/…png  OUT/overlays/…jpg  OUT/labelme/…json  OUT/coco.json  OUT/shares.csv

A wish to stop is heard after the picture at hand; whatever was done by then is written and whole.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nacre.api.inputs import Input, find_inputs
from nacre.api.model import Model, to_rgb
from nacre.api.rasters import Raster, is_georeferenced, open_raster, write_geotiff
from nacre.api.video import VideoWriter, read_frames
from nacre.errors import NacreError, unknown_name
from nacre.evaluation.predictor import Predictor
from nacre.export.class_map import ClassMap, count_classes, make_class_map, row_strips
from nacre.export.predictions import (
    CocoWriter,
    Legend,
    ShareWriter,
    overlay,
    write_labelme,
    write_mask,
    write_overlay,
)
from nacre.utils.io import InUse, locked, remove_temporaries
from nacre.utils.progress import show_progress

Pixels = npt.NDArray[np.uint8]

LEAST_WINDOW, MOST_WINDOW = 32, 65_536
"""Sides of windows in pixels."""

TOLERANCE = 1.0
"""Pixels that LabelMe polygons may be from the edges of regions."""

_WRITTEN = {"masks": (".png", ".tif"), "overlays": (".jpg",), "labelme": (".json",)}
FORMS = ("masks", "overlays", "labelme", "coco", "csv")


@dataclass(frozen=True)
class PredictOptions:
    """How pictures are seen and what is written of them.

    Attributes:
        forms: Of `FORMS`.
        window: Side of the windows through which images are seen, at the scale that the model
            learned at and in bounded memory; None shows them as the model was tested.
        mirror: Whether mirror images are looked at, too.
        edges: Whether classes follow the edges of the image.
    """

    forms: tuple[str, ...] = ("masks", "overlays", "csv")
    window: int | None = None
    mirror: bool = False
    edges: bool = False

    def predictor(self, model: Model) -> Predictor:
        """Return how a model sees images."""
        return model.predictor(window=self.window, mirror=self.mirror, edges=self.edges)

    def predict(self, model: Model, pixels: Pixels) -> npt.NDArray[Any]:
        """Return the channel of each pixel of an image."""
        return model.predict(pixels, window=self.window, mirror=self.mirror, edges=self.edges).mask

    def __post_init__(self) -> None:
        for form in self.forms:
            if form not in FORMS:
                raise unknown_name("form", form, FORMS)
        if not self.forms:
            raise NacreError(f"no form to write: give one or more of {', '.join(FORMS)}")
        if self.window is not None and not LEAST_WINDOW <= self.window <= MOST_WINDOW:
            raise NacreError(
                f"windows of {self.window} pixels: give {LEAST_WINDOW} to {MOST_WINDOW:,}"
            )


@dataclass(frozen=True)
class Summary:
    """What was done.

    Attributes:
        done: Pictures, and frames of videos.
        failed: What could not be read, and why.
        stopped: Whether there was a wish to stop.
        shares: Which share of all that was seen each class covers.
    """

    done: int
    failed: tuple[str, ...]
    stopped: bool
    shares: dict[str, float]


class _Results:
    """Where the results of a call go."""

    def __init__(self, model: Model, out: Path, options: PredictOptions) -> None:
        colors = tuple((color[0], color[1], color[2]) for color in model.info.colors)
        self.legend = Legend(model.classes, colors)
        self.out, self.options = out, options
        self.counts = np.zeros(len(model.classes), np.int64)
        self.done = 0
        forms = options.forms
        self.coco = CocoWriter(out / "coco.json", self.legend) if "coco" in forms else None
        self.shares = ShareWriter(out / "shares.csv", self.legend) if "csv" in forms else None

    def __enter__(self) -> "_Results":
        return self

    def __exit__(self, *error: object) -> None:
        for collected in (self.coco, self.shares):
            if collected is not None:
                collected.close()

    def add(self, name: str, stem: str, picture: Path | None, classes: ClassMap) -> None:
        """Write what has nothing to do with the picture's pixels."""
        forms = self.options.forms
        if "labelme" in forms:
            path = self.out / "labelme" / f"{stem}.json"
            shown = _relative(picture or Path(name), path.parent)
            write_labelme(path, classes, self.legend, shown, TOLERANCE)
        if self.coco is not None:
            self.coco.add(name, classes)
        if self.shares is not None:
            self.shares.add(name, classes)
        self.counts += count_classes(classes, len(self.counts))
        self.done += 1

    def share_of_classes(self) -> dict[str, float]:
        total = max(1, int(self.counts.sum()))
        order = np.argsort(-self.counts, kind="stable")
        return {
            self.legend.classes[i]: int(self.counts[i]) / total for i in order if self.counts[i]
        }


def _relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder; as it is where that cannot be."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive of Windows
        return str(path)


def _tidy(out: Path) -> None:
    """Remove what killed processes left of results."""
    remove_temporaries(out, ["coco.json"])
    for left in out.glob(".class-map.????????"):
        shutil.rmtree(left, ignore_errors=True)
    for form, suffixes in _WRITTEN.items():
        for folder, _, _ in os.walk(out / form):
            remove_temporaries(Path(folder), suffixes=suffixes)


def predict_all(
    model: Model,
    given: Sequence[str],
    out: Path,
    options: PredictOptions,
    should_stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Say what is in pictures and videos, and write it.

    Args:
        model: The model.
        given: Files, folders and globs.
        out: Folder of the results.
        options: How, and what is written.
        should_stop: Asked after each picture and frame.
    """
    inputs, model = find_inputs(given, out), model.fused()
    failed: list[str] = []
    stopped = False
    with contextlib.ExitStack() as held:
        # Two commands may write to one folder; what lies there may be the other one's then.
        with contextlib.suppress(InUse):
            held.enter_context(locked(out, "predict"))
            _tidy(out)
        results = held.enter_context(_Results(model, out, options))
        progress = held.enter_context(show_progress("predicting"))
        for i, one in enumerate(inputs):
            try:
                stopped = _predict(model, one, results, should_stop) or should_stop()
            except NacreError as error:
                if len(inputs) == 1:
                    raise
                failed.append(str(error))
            progress(i + 1, len(inputs))
            if stopped:
                break
    return Summary(results.done, tuple(failed), stopped, results.share_of_classes())


def _predict(model: Model, one: Input, results: _Results, should_stop: Callable[[], bool]) -> bool:
    """Do one input; return whether it was left in its middle."""
    if one.is_video:
        return _predict_video(model, one, results, should_stop)
    if results.options.window is not None or is_georeferenced(one.path):
        _predict_map(model, one, results)
    else:
        _predict_picture(model, one, results)
    return False


def _predict_picture(model: Model, one: Input, results: _Results) -> None:
    pixels = np.asarray(to_rgb(one.path))
    classes = results.options.predict(model, pixels)
    if "masks" in results.options.forms:
        write_mask(results.out / "masks" / f"{one.stem}.png", classes, results.legend)
    if "overlays" in results.options.forms:
        path = results.out / "overlays" / f"{one.stem}.jpg"
        write_overlay(path, pixels, classes, results.legend)
    results.add(one.name, one.stem, one.path, classes)


def _predict_map(model: Model, one: Input, results: _Results) -> None:
    """Do a picture that may be too large to be seen, or held, at once."""
    with (
        open_raster(one.path) as raster,
        make_class_map(raster.size, len(model.classes), results.out) as classes,
    ):
        with _map_writer(one, results) as write:
            for rows, columns, part in _blocks(results.options.predictor(model), raster):
                classes[rows, columns] = part
                if write is not None:
                    write(rows, columns, part)
        if "masks" in results.options.forms and write is None:
            write_mask(results.out / "masks" / f"{one.stem}.png", classes, results.legend)
        if "overlays" in results.options.forms:
            path = results.out / "overlays" / f"{one.stem}.jpg"
            preview = raster.preview()
            write_overlay(path, preview, _shrunk(classes, preview.shape[:2]), results.legend)
        results.add(one.name, one.stem, one.path, classes)


@contextlib.contextmanager
def _map_writer(
    one: Input, results: _Results
) -> Iterator[Callable[[slice, slice, Pixels], None] | None]:
    """Open a GeoTIFF for the mask of a georeferenced picture; None for others."""
    if "masks" not in results.options.forms or not is_georeferenced(one.path):
        yield None
        return
    path = results.out / "masks" / f"{one.stem}.tif"
    with write_geotiff(path, one.path, results.legend) as write:
        yield write


def _blocks(predictor: Predictor, raster: Raster) -> Iterator[tuple[slice, slice, Pixels]]:
    def read(rows: slice, columns: slice) -> torch.Tensor:
        part = np.ascontiguousarray(raster.read(rows, columns).transpose(2, 0, 1))
        return torch.from_numpy(part)

    done = 0
    with show_progress("windows of a large picture") as progress:
        for block in predictor.blocks(read, raster.size):
            yield block.rows, block.columns, block.classes.numpy()
            done += block.classes.numel()
            progress(done, raster.size[0] * raster.size[1])


def _shrunk(classes: ClassMap, size: tuple[int, ...]) -> Pixels:
    """Return the class at the middle of each pixel of a smaller picture."""
    rows = ((np.arange(size[0]) + 0.5) * classes.shape[0] / size[0]).astype(int)
    columns = ((np.arange(size[1]) + 0.5) * classes.shape[1] / size[1]).astype(int)
    parts = []
    for place, part in row_strips(classes):
        within = rows[(rows >= place.start) & (rows < place.stop)] - place.start
        parts.append(part[within][:, columns])
    return np.concatenate(parts)


def _predict_video(
    model: Model, one: Input, results: _Results, should_stop: Callable[[], bool]
) -> bool:
    forms = results.options.forms
    writer: VideoWriter | None = None
    try:
        for i, frame in enumerate(read_frames(one.path)):
            classes = results.options.predict(model, frame)
            stem = f"{one.stem}/{i:06d}"
            if "masks" in forms:
                write_mask(results.out / "masks" / f"{stem}.png", classes, results.legend)
            if "overlays" in forms:
                if writer is None:
                    path = results.out / "overlays" / f"{one.stem}.mp4"
                    writer = VideoWriter(path, classes.shape, one.path)
                writer.add(np.asarray(overlay(frame, classes, results.legend)))
            results.add(f"{one.name}#{i}", stem, None, classes)
            if should_stop():
                return True
    finally:
        if writer is not None:
            writer.close()
    return False
